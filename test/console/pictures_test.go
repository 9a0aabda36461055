package console

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/falaj-ml/falaj/internal/console"
)

// TestPages walks through all pages with months of made-up traffic.
func TestPages(t *testing.T) {
	b := open(t, pretend(t).URL)
	b.login("not-the-token")
	b.see("The token is unknown, revoked or expired")
	b.accessible("login")
	b.picture("login")
	b.login(token)
	b.see("Needs attention", "layla", "monitor delay")
	b.until(`document.querySelector('.link.live') !== null`)
	b.accessible("overview")
	b.picture("overview")

	b.visit("d")
	b.see("Deployments", "v3 80 % · v4 20 % · v5 shadow", "drifted")
	b.accessible("deployments")
	b.picture("deployments")
	b.press(kb.ArrowDown)
	b.do(chromedp.Click(`tr[data-index="0"] td:nth-child(2)`))
	b.see("Versions", "v4 against v3", "weather:temp", "in training", "History")
	b.until(`document.querySelectorAll('.plot canvas').length >= 3`)
	b.until(`document.querySelectorAll('.histogram .pair').length === 24`)
	b.accessible("deployment")
	b.picture("deployment")
	b.do(chromedp.ScrollIntoView(`.heatmap`))
	b.picture("deployment-drift")
	// The arrow keys move through the cells, and what is chosen is shown below.
	b.do(chromedp.Click(`.heatmap tbody tr:nth-child(3) td:nth-of-type(5)`))
	chosen := b.text(`document.querySelector('.heatmap td[aria-selected=true]').ariaLabel`)
	b.press(kb.ArrowRight)
	b.until(`document.querySelector('.heatmap td[aria-selected=true]').ariaLabel !== ` + strconv.Quote(chosen))
	b.until(`document.activeElement === document.querySelector('.heatmap td[aria-selected=true]')`)
	b.do(chromedp.Click(`.plot ~ details summary`))
	b.see("carrier = EV")
	b.do(chromedp.ScrollIntoView(`.history`))
	b.picture("deployment-history")

	b.press("?")
	b.until(`document.querySelector('dialog').open`)
	b.picture("help")
	b.press(kb.Escape)
	b.until(`!document.querySelector('dialog').open`)

	// Dark: by hand, and as the system.
	b.do(chromedp.Evaluate(`document.querySelector('.page').scrollTo(0, 0)`, nil), emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: "dark"}}))
	b.until(`document.documentElement.dataset.mantineColorScheme === 'dark' && getComputedStyle(document.body).backgroundColor === 'rgb(15, 22, 26)'`)
	b.accessible("deployment, dark")
	b.picture("deployment-dark")
	b.do(chromedp.ScrollIntoView(`.heatmap`))
	b.picture("deployment-drift-dark")
	b.press("t")
	b.until(`document.documentElement.dataset.mantineColorScheme === 'light'`)

	b.visit("w")
	b.see("delay v3", "diversion: version 7 has the residency DE", "5 MiB")
	b.until(`[...document.querySelectorAll('tbody .state')].map((s) => s.textContent).sort().join() === 'away,ready,waiting'`)
	b.accessible("gateways")
	b.picture("gateways")
	b.visit("m")
	b.see("Records up to", "taxi-out")
	b.picture("monitoring")
	for key, words := range map[string]string{"s": "There is no dataset", "f": "There is no feature view", "r": "champion → v3", "a": "monitor.finding"} {
		b.visit(key)
		b.see(words)
		b.picture("page-" + key)
	}

	// A revoked token ends the session, and says so.
	b.do(chromedp.Evaluate(`sessionStorage.setItem('falaj.token', 'revoked-token')`, nil))
	b.press("g", "d")
	b.see("The token is no longer accepted")
}

// TestDataset: a version with its expectations and what its columns look like; of
// classified data that is asked for when the reader says so.
func TestDataset(t *testing.T) {
	s := pretend(t)
	b := open(t, s.URL)
	b.login(token)
	b.see("Needs attention")
	b.do(chromedp.Navigate(s.URL + "/console/p/nyc/datasets/orders"))
	b.see("orders@3", "In quarantine", "price", "by customers@7", "first at row 1\u2009204: -3.5", "a random sample", "country", "no values")
	b.until(`document.querySelectorAll('.column').length === 5 && document.querySelectorAll('.histogram .pair').length === 40 && document.querySelectorAll('.frequent li').length === 7`)
	// What holds for most of the rows set none of them aside.
	b.until(`[...document.querySelectorAll('.verdicts tr')].some((r) => r.textContent.includes('country') && r.textContent.includes('ok'))`)
	b.accessible("dataset")
	b.picture("dataset")
	b.do(chromedp.ScrollIntoView(`.columns`))
	b.picture("dataset-columns")
	b.do(chromedp.Click(`.versions a:nth-child(2)`))
	b.see("Why it is rejected", "psi is 0.612")
	b.picture("dataset-rejected")
	b.do(chromedp.Click(`.versions a:nth-child(3)`))
	b.see("reads of its values are recorded")
	b.until(`document.querySelectorAll('.column').length === 0`)
	b.do(chromedp.Click(`.panel button`))
	b.until(`document.querySelectorAll('.column').length === 5`)
}

// TestManyRows: a table of 10,000 rows holds what is in sight, and is walked
// through with the keyboard.
func TestManyRows(t *testing.T) {
	b := open(t, pretend(t).URL)
	b.login(token)
	b.see("Needs attention")
	b.do(chromedp.Evaluate(`performance.mark('before'); window.opened = new Promise((done) => new MutationObserver((_, o) => {
		if (document.querySelector('table[aria-label=Jobs] tbody tr[data-index]')) { o.disconnect(); requestAnimationFrame(() => done(performance.now() - performance.getEntriesByName('before')[0].startTime)); }
	}).observe(document.body, { childList: true, subtree: true })); history.pushState(null, '', '/console/p/nyc/jobs')`, nil))
	b.see("train-delay-0")
	var milliseconds float64
	b.do(chromedp.Evaluate(`window.opened`, &milliseconds, chromedp.EvalAsValue, awaited))
	t.Logf("the table of %d rows was open after %.0f ms", rows, milliseconds)
	b.until(`document.querySelector('table').ariaRowCount === '10001'`)
	b.until(`document.querySelectorAll('tbody tr[data-index]').length < 80`)
	b.accessible("jobs")
	b.picture("jobs")
	b.do(chromedp.Focus(`tr[data-index="0"]`))
	b.press(kb.End)
	b.until(`document.activeElement.dataset.index === '9999'`)
	b.see("train-delay-9999")
	b.press(kb.Home, kb.ArrowDown, kb.ArrowDown, kb.ArrowDown, kb.ArrowDown)
	b.until(`document.activeElement.dataset.index === '4'`)
	b.press("/")
	b.until(`document.activeElement.type === 'search'`)
	b.press("taxi-out-77")
	b.until(`Number(document.querySelector('table').ariaRowCount) < 100`)
	b.press(kb.Escape)
	b.until(`document.querySelector('table').ariaRowCount === '10001'`)
	b.do(chromedp.Click(`tr[data-index="4"] a`))
	b.see("Why", "It runs in pool local since a minute.", "epoch 399")
	b.see("Roles", "chief", "the server's disk is full", "exited with code 0", "node failed, no heartbeat for 5m0s", "and 44 more", "ps", "evaluator", "not placed yet")
	b.accessible("job")
	b.picture("job")
	b.press(kb.Escape)
	b.until(`location.pathname === '/console/p/nyc/jobs'`)
}

// TestResumes: a connection that breaks is made again, and nothing that happened
// meanwhile is missed.
func TestResumes(t *testing.T) {
	s := pretend(t)
	b := open(t, s.URL)
	b.login(token)
	b.see("rollout delay")
	s.CloseClientConnections()
	b.see("told after 1-2", "rollout delay")
	b.until(`document.querySelector('.link.live') !== null`)
}

// TestPlain: what a binary without the built console shows is styled, and breaks
// no rule either.
func TestPlain(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "..", "internal", "console", "index.html"))
	if err != nil {
		t.Fatal(err)
	}
	rec := httptest.NewRecorder()
	console.Plain().ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/", nil))
	if rec.Body.String() != string(page) {
		t.Fatal("it is not the committed page")
	}
	s := httptest.NewServer(console.Plain())
	t.Cleanup(s.Close)
	b := open(t, s.URL)
	b.do(chromedp.Navigate(s.URL))
	b.see("This server is running")
	if colour := b.text(`getComputedStyle(document.querySelector('h1')).color`); colour != "rgb(11, 92, 99)" {
		t.Error("the style is not applied:", colour)
	}
	b.accessible("plain")
	b.picture("plain")
}

// TestNarrow: on a telephone, pages are no wider than it.
func TestNarrow(t *testing.T) {
	b := open(t, pretend(t).URL)
	b.do(emulation.SetDeviceMetricsOverride(390, 844, 2, true))
	b.login(token)
	for _, path := range []string{"", "/deployments", "/deployments/delay", "/gateways", "/jobs"} {
		b.see("Falaj", "Overview")
		b.do(chromedp.Navigate(b.base + "/console/p/nyc" + path))
		b.until(`document.querySelector('#content') !== null && document.querySelector('.wait') === null`)
		if wide := b.text(`document.documentElement.scrollWidth > innerWidth`); wide != "false" {
			t.Errorf("%s is wider than the screen", path)
		}
	}
	b.picture("narrow")
}
