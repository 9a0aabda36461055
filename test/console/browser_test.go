// Package console drives the web console in headless Chromium: against the real
// binary (console_test.go), and against answers that are made up here, for
// pictures that would take months of traffic (pictures_test.go, answers_test.go).
//
// In each, nothing may be written to the browser's console, no rule of the
// Content-Security-Policy be broken and no other origin be asked. With
// -screenshots DIR what was seen is kept to be looked at.
package console

import (
	"context"
	"flag"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	cdplog "github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"github.com/falaj-ml/falaj/test/live"
)

var screenshots = flag.String("screenshots", "", "directory for pictures of the pages")

// browser is one tab of Chromium that watches what its pages do.
type browser struct {
	t    *testing.T
	ctx  context.Context
	base string

	mu     sync.Mutex
	wrong  []string
	asked  int
	secret string   // a token that no address may hold
	others []string // origins that may be asked, too
}

// open starts Chromium on an address of ours. What went wrong in it fails the
// test when the test ends.
func open(t *testing.T, base string) *browser {
	t.Helper()
	program := ""
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			program = path
			break
		}
	}
	if _, err := os.Stat(filepath.Join("..", "..", "internal", "console", "dist", "index.html")); err != nil {
		absent(t, "the web console is not built; `make console` builds it")
	}
	if program == "" {
		absent(t, "Chromium is not here; `make engines` installs it")
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(program), chromedp.WSURLReadTimeout(live.Wait), chromedp.NoSandbox, chromedp.WindowSize(1440, 1000),
		chromedp.Flag("lang", "en-GB"), chromedp.Flag("disable-background-networking", true), chromedp.Flag("force-color-profile", "srgb"))
	alloc, stop := chromedp.NewExecAllocator(t.Context(), options...)
	t.Cleanup(stop)
	ctx, cancel := chromedp.NewContext(alloc, chromedp.WithErrorf(func(string, ...any) {}))
	t.Cleanup(func() {
		cancel()
		chromedp.FromContext(ctx).Allocator.Wait()
	})
	if err := chromedp.Run(ctx); err != nil { // starts it
		t.Fatal(err)
	}
	b := &browser{t: t, ctx: ctx, base: base}
	chromedp.ListenTarget(ctx, b.heard)
	t.Cleanup(b.check)
	b.do(
		chromedp.ActionFunc(func(ctx context.Context) error {
			_, err := page.AddScriptToEvaluateOnNewDocument(
				`document.addEventListener('securitypolicyviolation', (e) => console.error('policy broken:', e.violatedDirective, e.blockedURI, e.sourceFile, e.lineNumber))`).Do(ctx)
			return err
		}),
		cdplog.Enable(), network.Enable(), runtime.Enable(), emulation.SetTimezoneOverride("Asia/Dubai"),
	)
	return b
}

func absent(t *testing.T, what string) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatal(what)
	}
	t.Skip(what)
}

func (b *browser) heard(event any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch e := event.(type) {
	case *runtime.EventExceptionThrown:
		b.wrong = append(b.wrong, "exception: "+e.ExceptionDetails.Error())
	case *runtime.EventConsoleAPICalled:
		if e.Type == runtime.APITypeError || e.Type == runtime.APITypeWarning || e.Type == runtime.APITypeAssert {
			words := make([]string, len(e.Args))
			for i, a := range e.Args {
				words[i] = string(a.Value) + a.Description
			}
			b.wrong = append(b.wrong, "console: "+strings.Join(words, " "))
		}
	case *cdplog.EventEntryAdded:
		// Refusals by the API are the pages' business; they show them.
		if e.Entry.Source != cdplog.SourceNetwork && e.Entry.Level != cdplog.LevelVerbose {
			b.wrong = append(b.wrong, fmt.Sprintf("%s %s: %s", e.Entry.Source, e.Entry.Level, e.Entry.Text))
		}
	case *network.EventRequestWillBeSent:
		b.asked++
		u, err := url.Parse(e.Request.URL)
		if err != nil || u.Scheme != "data" && u.Scheme+"://"+u.Host != b.base && !slices.Contains(b.others, u.Scheme+"://"+u.Host) {
			b.wrong = append(b.wrong, "another origin was asked: "+e.Request.URL)
		}
		if b.secret != "" && strings.Contains(e.Request.URL, b.secret) {
			b.wrong = append(b.wrong, "a token is in an address: "+e.Request.URL)
		}
	}
}

func (b *browser) check() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, w := range b.wrong {
		b.t.Error(w)
	}
	if b.asked == 0 && !b.t.Failed() {
		b.t.Error("the browser asked for nothing: nothing was tested")
	}
}

// do runs actions in order.
func (b *browser) do(actions ...chromedp.Action) {
	b.t.Helper()
	ctx, late := context.WithTimeout(b.ctx, live.Wait)
	defer late()
	if err := chromedp.Run(ctx, actions...); err != nil {
		var text string
		_ = chromedp.Run(b.ctx, chromedp.Evaluate(`location.href + "\n" + document.body.innerText`, &text))
		b.check()
		if *screenshots != "" {
			var png []byte
			_ = chromedp.Run(b.ctx, chromedp.CaptureScreenshot(&png))
			_ = os.WriteFile(filepath.Join(*screenshots, "failed.png"), png, 0o600)
		}
		b.t.Fatalf("%v\nthe page:\n%s", err, text)
	}
}

// see waits until the page shows all the words.
func (b *browser) see(words ...string) {
	b.t.Helper()
	for _, w := range words {
		b.until(fmt.Sprintf("document.body.innerText.includes(%q)", w))
	}
}

// until waits until an expression is true.
func (b *browser) until(expression string) {
	b.t.Helper()
	poll := chromedp.Poll(expression, nil, chromedp.WithPollingTimeout(live.Wait), chromedp.WithPollingInterval(50*time.Millisecond))
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for range 100 {
		// On a busy machine the page that was left may be asked, and is gone.
		if err := chromedp.Run(b.ctx, poll); err == nil {
			return
		} else if !strings.Contains(err.Error(), "Cannot find context") {
			break
		}
		<-tick.C
	}
	b.do(poll)
}

// text is what an expression says.
func (b *browser) text(expression string) string {
	b.t.Helper()
	var s string
	b.do(chromedp.Evaluate("String("+expression+")", &s))
	return s
}

// press sends keys to the page.
func (b *browser) press(keys ...string) {
	b.t.Helper()
	for _, k := range keys {
		b.do(chromedp.KeyEvent(k))
	}
}

// pages are where "g" and a key lead to.
var pages = map[string]string{
	"o": "", "d": "/deployments", "m": "/monitoring", "j": "/jobs", "w": "/gateways", "e": "/runs", "x": "/sweeps", "s": "/datasets", "f": "/features", "r": "/models", "a": "/audit",
}

// visit goes to a page by its keys. On a busy machine the two may come too far
// apart; then they are pressed again.
func (b *browser) visit(key string) {
	b.t.Helper()
	there := fmt.Sprintf("/^\\/console\\/p\\/[^/]+$/.test(location.pathname.replace(%q, ''))&&location.pathname.endsWith(%q)", pages[key], pages[key])
	for range 40 {
		b.press("g", key)
		if chromedp.Run(b.ctx, chromedp.Poll(there, nil, chromedp.WithPollingTimeout(live.Wait/40), chromedp.WithPollingInterval(50*time.Millisecond))) == nil {
			return
		}
	}
	b.t.Fatalf("g %s does not lead to %q", key, pages[key])
}

// login pastes a token.
func (b *browser) login(token string) {
	b.t.Helper()
	b.mu.Lock()
	b.secret = token
	b.mu.Unlock()
	b.do(chromedp.Navigate(b.base+"/"), chromedp.WaitVisible(`input[name=token]`))
	b.do(chromedp.SendKeys(`input[name=token]`, token), chromedp.Click(`button[type=submit]`, chromedp.NodeVisible))
}

// accessible fails the test with what axe finds against WCAG 2.1 AA on the page.
func (b *browser) accessible(page string) {
	b.t.Helper()
	axe, err := os.ReadFile(filepath.Join("..", "..", "console", "node_modules", "axe-core", "axe.min.js"))
	if err != nil {
		absent(b.t, "axe-core is not here; `make console` installs it")
	}
	var found []string
	b.do(
		chromedp.Evaluate(string(axe)+";0", nil),
		chromedp.Evaluate(`axe.run(document, { runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa'] }).then((r) => r.violations.flatMap((v) => v.nodes.map((n) => v.id + ': ' + n.target.join(' ') + ': ' + n.any.concat(n.all, n.none).map((c) => c.message).join(' '))))`,
			&found, awaited),
	)
	for _, f := range found {
		b.t.Errorf("%s: %s", page, f)
	}
}

func awaited(p *runtime.EvaluateParams) *runtime.EvaluateParams { return p.WithAwaitPromise(true) }

// picture keeps what is seen, if it is asked for.
func (b *browser) picture(name string) {
	b.t.Helper()
	if *screenshots == "" {
		return
	}
	var png []byte
	b.do(chromedp.CaptureScreenshot(&png))
	if err := os.MkdirAll(*screenshots, 0o750); err != nil {
		b.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(*screenshots, name+".png"), png, 0o600); err != nil {
		b.t.Fatal(err)
	}
}
