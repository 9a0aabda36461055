package loop

import (
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"os"
	"path"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/client"
	"github.com/falaj-ml/falaj/test/live"
)

var begin = time.Date(2013, 6, 3, 0, 0, 0, 0, time.UTC)

// rows sends rows of two columns to a deployment, a hundred at a time, as of a
// minute each; nil is a number that is missing.
func (p *pond) rows(name string, from, n int, row func() [2]any) (ids []string) {
	p.T.Helper()
	const some = 50
	for i := 0; i < n; i += some {
		var data []any
		for range some {
			r := row()
			data = append(data, r[0], r[1])
		}
		at := begin.Add(time.Duration(from+i) * time.Minute)
		a, err := p.Infer(p.C, name, map[string]any{"as_of": at.Format(time.RFC3339)}, live.Tensor("X", "FP32", data, some, 2))
		p.Must(err)
		ids = append(ids, a.ID)
	}
	return ids
}

func normal(r *rand.Rand, shift float64) func() [2]any {
	return func() [2]any { return [2]any{shift + r.NormFloat64(), shift + r.NormFloat64()} }
}

const watched = `
{api_version: falaj/v1, kind: Monitor, name: NAME, project: PROJECT, spec: {deployment: delay, window: {rows: 250}, baseline: "BASELINE"}}`

// oddMonitors compare what cannot be compared, and say so; none stops.
func oddMonitors(p *pond) {
	t := p.T
	p.Apply(live.Weather)
	for name, spec := range map[string]string{
		"one": "float64", "constant": "float64", "missing": "float64", "words": "string", "usual": "float64",
	} {
		p.Apply("{api_version: falaj/v1, kind: Dataset, name: " + name + ", project: PROJECT, spec: {columns: [{name: hours, type: " + spec + "}, {name: weather__temp, type: " + spec + "}]}}")
	}
	p.Apply("{api_version: falaj/v1, kind: Dataset, name: strange, project: PROJECT, spec: {columns: [{name: other, type: float64}]}}")
	r := rand.New(rand.NewPCG(3, 4))
	table := func(header string, n int, row func() string) string {
		var b strings.Builder
		b.WriteString(header + "\n")
		for range n {
			b.WriteString(row() + "\n")
		}
		return b.String()
	}
	const header = "hours,weather__temp"
	for name, csv := range map[string]string{
		"weather":  "origin,observed_at,temp\nJFK,2013-06-01T00:00:00Z,3\n",
		"one":      table(header, 1, func() string { return "0.5,0.5" }),
		"constant": table(header, 1000, func() string { return "4,4" }),
		"missing":  table(header, 1000, func() string { return "," }),
		"words":    table(header, 1000, func() string { return "warm,w" + strconv.Itoa(r.IntN(5)) }),
		"usual":    table(header, 1000, func() string { return fmt.Sprintf("%g,%g", r.NormFloat64(), r.NormFloat64()) }),
		"strange":  table("other", 10, func() string { return "1" }),
	} {
		_, err := p.C.Import(t.Context(), p.Name, name, name+".csv", strings.NewReader(csv))
		p.Must(err)
	}
	p.Register("delay", linear(0, 1, 1))
	p.Apply(delay)
	for _, name := range []string{"one", "constant", "missing", "words", "usual", "strange"} {
		p.Apply(strings.NewReplacer("NAME", name, "BASELINE", "dataset:"+name+"@1").Replace(watched))
	}
	_, err := p.Try(p.C, strings.NewReplacer("NAME", "nowhere", "BASELINE", "dataset:nowhere@1").Replace(watched))
	p.refused("a baseline that is not there", err, http.StatusNotFound, "nowhere")
	for _, wrong := range []string{
		"window: {rows: 1}", "window: {every: 1s}", "window: {every: 1d, rows: 300}", "window: {every: 7d, slide: 2d}", "lateness: never", "lateness: 999d",
		"baseline: guess", "drift: {method: magic}", "drift: {alpha: 2}", "drift: {share: 0}, window: {rows: -5}", "drift: {threshold: .inf}",
		"detectors: [crystal]", "performance: {metrics: [luck]}", "performance: {alert: {auc: {}}}", "repeat: -2",
		"retrain: {job: j}", "retrain: {job: j, data: d, training_set: t, timestamp: t, window: 0s, spine: 'SELECT 1'}", "alerts: [{}]",
	} {
		_, err := p.Try(p.C, "{api_version: falaj/v1, kind: Monitor, name: wrong, project: PROJECT, spec: {deployment: delay, "+wrong+"}}")
		p.refused(wrong, err, http.StatusBadRequest)
	}

	p.rows("delay", 0, 250, normal(r, 0))
	p.rows("delay", 300, 250, func() [2]any { return [2]any{4, 4} })
	p.rows("delay", 600, 250, func() [2]any { return [2]any{"NaN", "NaN"} })
	p.rows("delay", 900, 250, normal(r, 0))

	const yes, no = "true", "false"
	for _, x := range []struct {
		monitor string
		drifted [4]string
		says    string // in the first window
	}{
		{"one", [4]string{no, no, no, no}, "one row"},
		{"constant", [4]string{yes, no, yes, yes}, ""},
		{"missing", [4]string{yes, yes, no, yes}, "100.00 % of the baseline's"},
		{"words", [4]string{yes, yes, yes, yes}, "the baseline is categorical and the window numeric"},
		{"usual", [4]string{no, yes, yes, no}, ""},
		{"strange", [4]string{no, yes, yes, no}, "no input of the model is a column"},
	} {
		all := p.windows(x.monitor, 4)
		m, err := p.C.Monitor(t.Context(), p.Name, x.monitor)
		p.Must(err)
		if m.Text("problem") != "" {
			t.Errorf("%s: %s", x.monitor, m.Text("problem"))
		}
		for i, w := range all {
			if w.Text("drifted") != x.drifted[i] || len(all) != 4 {
				t.Errorf("%s: window %d: drifted %s\n%v", x.monitor, i, w.Text("drifted"), w)
			}
		}
		if text := fmt.Sprint(all[0]); !strings.Contains(text, x.says) {
			t.Errorf("%s does not say %q: %s", x.monitor, x.says, text)
		}
		for _, command := range []string{"show", "windows"} {
			if out, code := p.Command(t.Context(), "monitor", command, x.monitor, "-p", p.Name); code != 0 || strings.Contains(out, "NaN") {
				t.Errorf("falaj monitor %s %s:\n%s", command, x.monitor, out)
			}
		}
		if _, err := p.C.Baseline(t.Context(), p.Name, x.monitor, 0); err != nil {
			t.Errorf("baseline of %s: %v", x.monitor, err)
		}
	}
}

// peak is the most memory that the server has had, in bytes.
func (o *ocean) peak(t *testing.T) int64 {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", o.PID()))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(b), "VmHWM:")
	n, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n << 10
}

// manyCategories are counted in bounded space.
func manyCategories(p *pond) {
	t := p.T
	p.Register("words", reader())
	p.Apply(`{api_version: falaj/v1, kind: Deployment, name: words, project: PROJECT, spec: {model: words}}
---
{api_version: falaj/v1, kind: Monitor, name: words, project: PROJECT, spec: {window: {rows: 1000000}, baseline: "window:first", performance: {segments: [word], metrics: [brier]}}}`)
	const some, all = 50_000, 1_000_000
	n := 0
	send := func() string {
		words, numbers := make([]string, some), make([]float64, some)
		for i := range words {
			words[i] = "w" + strconv.Itoa(n)
			numbers[i] = float64(n % 2)
			n++
		}
		a, err := p.Infer(p.C, "words", nil, live.Tensor("word", "BYTES", words, some), live.Tensor("x", "FP32", numbers, some))
		p.Must(err)
		return a.ID
	}
	for range 4 { // what a request of this size takes, once
		send()
	}
	before := p.ocean.peak(t)
	id := ""
	for n < all {
		id = send()
	}
	// All rows of a request are labelled at once.
	values := make([]float64, some)
	if _, err := p.C.Label(t.Context(), p.Name, "words", []client.Label{{ID: id, Values: values}}); err != nil {
		t.Error(err)
	}
	w := p.windows("words", 1)[0]
	if w.Text("rows") != strconv.Itoa(all) {
		t.Errorf("%v", w)
	}
	one, err := p.C.Window(t.Context(), p.Name, "words", w.Text("id"))
	p.Must(err)
	for _, c := range one["columns"].([]any) {
		o := client.Object(c.(map[string]any))
		if o.Text("name") != "word" {
			continue
		}
		if d, err := strconv.ParseFloat(o.Text("summary.distinct"), 64); err != nil || math.Abs(d/all-1) > 0.1 {
			t.Errorf("%v distinct words of %d: %v", d, all, err)
		}
		if len(o.Text("summary")) > 64<<10 {
			t.Errorf("the summary has %d bytes", len(o.Text("summary")))
		}
	}
	if grown := p.ocean.peak(t) - before; grown > 400<<20 {
		t.Errorf("the server's memory grew by %d MiB", grown>>20)
	} else {
		t.Logf("the server's memory grew by %d MiB", grown>>20)
	}
}

// hook is what monitors tell, by the last word of the path.
func (o *ocean) hook(w http.ResponseWriter, r *http.Request) {
	b, _ := io.ReadAll(io.LimitReader(r.Body, 1<<20))
	seen, _ := o.posts.LoadOrStore(r.URL.Path, make(chan string, 1000))
	select {
	case seen.(chan string) <- string(b):
	default:
	}
	what := path.Base(r.URL.Path)
	switch what {
	case "hang":
		select {
		case <-o.hung:
		case <-r.Context().Done():
		}
	case "broken":
		w.WriteHeader(http.StatusInternalServerError)
	case "loopback":
		http.Redirect(w, r, "https://127.0.0.1:1/inside", http.StatusTemporaryRedirect)
	case "plain":
		http.Redirect(w, r, "http://localhost:1/inside", http.StatusPermanentRedirect)
	case "round":
		http.Redirect(w, r, r.URL.Path, http.StatusTemporaryRedirect)
	case "gone":
		w.WriteHeader(http.StatusGone)
	case "endless":
		for r.Context().Err() == nil {
			if _, err := w.Write(make([]byte, 64<<10)); err != nil {
				return
			}
		}
	}
}

// wrongWebhooks hang, fail, lead elsewhere, and hold up no other.
func wrongWebhooks(p *pond) {
	t := p.T
	p.Register("m", linear(0, 1, 1))
	p.Apply(`{api_version: falaj/v1, kind: Deployment, name: m, project: PROJECT, spec: {model: m}}`)
	for url, status := range map[string]int{
		"https://127.0.0.1/x": 403, "https://[::1]/x": 403, "https://169.254.169.254/latest": 403, "https://10.0.0.1/x": 403, "https://0.0.0.0/x": 403,
		"https://[::ffff:127.0.0.1]/x": 403, "http://127.0.0.1:1/x": 400, "http://example.com/x": 400, "ftp://example.com/x": 400,
		"file:///etc/passwd": 400, "https://user:secret@example.com/x": 400,
	} {
		_, err := p.Try(p.C, "{api_version: falaj/v1, kind: Monitor, name: m, project: PROJECT, spec: {alerts: [{webhook: \""+url+"\"}]}}")
		p.refused(url, err, status)
	}
	// Deliveries name the receivers without their paths, which may be secret.
	kinds, alerts := map[string]string{}, []string{}
	for kind, hooks := range p.ocean.hooks {
		kinds["webhook "+hooks.URL] = kind
		alerts = append(alerts, `{webhook: "`+hooks.URL+"/"+p.Name+"/"+kind+`"}`)
	}
	p.Apply("{api_version: falaj/v1, kind: Monitor, name: m, project: PROJECT, spec: {window: {rows: 250}, baseline: 'window:first', repeat: 1, alerts: [" + strings.Join(alerts, ", ") + "]}}")
	r := rand.New(rand.NewPCG(5, 6))
	p.rows("m", 0, 250, normal(r, 0))
	for i := range 3 {
		p.rows("m", 300*(i+1), 250, normal(r, 5))
	}
	good, _ := p.ocean.posts.LoadOrStore("/"+p.Name+"/good", make(chan string, 1000))
	for range 3 { // the others do not hold it up
		select {
		case body := <-good.(chan string):
			if !strings.Contains(body, `"type":"dev.falaj.monitor.drifted"`) || !strings.Contains(body, p.Name) {
				t.Errorf("%s", body)
			}
		case <-time.After(live.Wait):
			t.Fatal("what drifted is not told")
		}
	}
	for kind, x := range map[string]struct{ state, reason string }{
		"hang": {"queued", "no response within"}, "broken": {"queued", "500"}, "loopback": {"dead", "not a public address"}, "plain": {"dead", "require https"},
		"round": {"dead", "redirects more than"}, "gone": {"dead", "410"}, "good": {"delivered", ""}, "endless": {"delivered", ""},
	} {
		p.Eventually("the alert is not "+x.state+": "+kind, func() (ok bool, err error) {
			var seen []client.Object
			err = p.C.List(t.Context(), p.Path("alerts"), nil, func(d client.Object) error {
				if kinds[d.Text("target")] == kind {
					seen = append(seen, d)
					ok = ok || d.Text("state") == x.state && strings.Contains(d.Text("reason"), x.reason) && (kind != "broken" || d.Text("attempts") != "1")
				}
				return nil
			})
			if err == nil {
				err = fmt.Errorf("%v", seen)
			}
			return ok, err
		})
	}
	if s := p.status("m"); s.Text("deployment.state") != "ready" {
		t.Errorf("%v", s)
	}
}

// strangeTimes are those of gateways whose clocks are wrong, and of replays that
// jump: what is in no window is counted.
func strangeTimes(p *pond) {
	t := p.T
	p.Register("m", linear(0, 1, 1))
	p.Apply(`{api_version: falaj/v1, kind: Deployment, name: m, project: PROJECT, spec: {model: m}}
---
{api_version: falaj/v1, kind: Monitor, name: m, project: PROJECT, spec: {window: {every: 1h}, lateness: 10m, baseline: "window:first", drift: {min_rows: 2}}}`)
	ask := func(at time.Time) error {
		_, err := p.Infer(p.C, "m", map[string]any{"as_of": at.Format(time.RFC3339)}, live.Tensor("X", "FP32", []float64{1, 2, 3, 4}, 2, 2))
		return err
	}
	for _, after := range []time.Duration{0, 30 * time.Minute, 65 * time.Minute, 50 * time.Minute, 71 * time.Minute, 59 * time.Minute, 100 * time.Minute} {
		p.Must(ask(begin.Add(after))) // at 71 minutes the first hour is closed; what is of 59 is late
	}
	p.refused("an hour ahead", ask(time.Now().Add(time.Hour)), http.StatusBadRequest, "future")
	for _, year := range []int{1, 9999} {
		p.refused(strconv.Itoa(year), ask(time.Date(year, 1, 1, 0, 0, 0, 0, time.UTC)), http.StatusBadRequest)
	}
	p.Must(ask(time.Unix(0, 0)))                  // late, too
	p.Must(ask(time.Now().Add(30 * time.Second))) // clocks differ; what was open is closed
	all := p.windows("m", 2)
	if all[0].Text("rows") != "6" || all[1].Text("rows") != "6" || len(all) != 2 {
		t.Errorf("%v", all)
	}
	var m client.Object
	p.Eventually("late records are not counted", func() (bool, error) {
		var err error
		m, err = p.C.Monitor(t.Context(), p.Name, "m")
		return m.Text("late") == "2", fmt.Errorf("%w %v", err, m)
	})
	if m.Text("problem") != "" || m.Text("lost") != "" && m.Text("lost") != "0" {
		t.Errorf("%v", m)
	}
	// Live requests have windows of their own, whatever was replayed.
	if _, err := p.Infer(p.C, "m", nil, live.Tensor("X", "FP32", []float64{1, 2}, 1, 2)); err != nil {
		t.Error(err)
	}
}
