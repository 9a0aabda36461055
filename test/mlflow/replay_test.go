// Package mlflow asks Falaj and a real `mlflow server` the same, request by
// request, and compares what they answer.
package mlflow

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"math"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/falaj-ml/falaj/client"
	"github.com/falaj-ml/falaj/test/live"
)

var rewrite = flag.Bool("rewrite", false, "write what differs from MLflow into testdata/differences.txt")

// replayed is one request of testdata/cases.jsonl. Requests build on those before
// them: ${name} in a path or body stands for what Save kept of an answer.
type replayed struct {
	Name   string            `json:"name"`
	Method string            `json:"method"`
	Path   string            `json:"path"`
	Body   json.RawMessage   `json:"body"`   // sent as JSON
	Raw    *string           `json:"raw"`    // or as it is
	Header map[string]string `json:"header"` // beside Content-Type: application/json
	Save   map[string]string `json:"save"`   // name → path into the answer, "run.info.run_id"
	// Differs is why Falaj answers something else, which testdata/differences.txt
	// then has. Without it the answers are equal.
	Differs string `json:"differs"`
}

// server is one of the two that are asked.
type server struct {
	url   string
	token string
	saved map[string]string
	dir   string // of a real MLflow's database and artifacts
}

// answer is what a server said, without what no two servers have in common.
type answer struct {
	status int
	body   any
}

func TestReplay(t *testing.T) {
	t.Parallel()
	python := live.Installed(t, "mlflow-full")
	cases := read(t)
	if len(cases) < 300 {
		t.Fatalf("%d cases", len(cases))
	}
	theirs := startMLflow(t, python)
	ours := startFalaj(t)
	var got strings.Builder
	differ := 0
	for _, c := range cases {
		want, have := theirs.send(t, c), ours.send(t, c)
		beyond(want.body, have.body)
		same := want.status == have.status && cmp.Equal(want.body, have.body, messages)
		switch {
		case same && c.Differs != "":
			t.Errorf("%s: the answers are the same now; say no more why they differ", c.Name)
		case !same && c.Differs == "":
			t.Errorf("%s: %s %s\nMLflow: %d %s\nFalaj:  %d %s\n%s", c.Name, c.Method, c.Path, want.status, text(want.body), have.status, text(have.body), cmp.Diff(want.body, have.body, messages))
		}
		if !same {
			differ++
			fmt.Fprintf(&got, "%s: %s\n  MLflow: %d %s\n  Falaj:  %d %s\n", c.Name, c.Differs, want.status, text(want.body), have.status, text(have.body))
		}
	}
	t.Logf("%d cases; %d answers are equal, %d differ with a reason", len(cases), len(cases)-differ, differ)
	live.Differences(t, "MLflow", "testdata/differences.txt", got.String(), *rewrite)
}

// otherwise is why Falaj answers a repetition of a case otherwise.
var otherwise = map[string]string{
	"create with longest name": "a name of 500 letters is cut in the message, which shows no SQL",
	"params of logged model":   "what is there already is no error, and no SQL statement",
	"log outputs":              "what is there already is no error, and no SQL statement",
}

// TestThrice: a client that sends its requests three times, as those do whose connections
// break, hears the second and third time what it would of MLflow, and leaves the same.
func TestThrice(t *testing.T) {
	t.Parallel()
	theirs := startMLflow(t, live.Installed(t, "mlflow-full"))
	ours := startFalaj(t)
	for _, c := range read(t) {
		reads := c.Method == http.MethodGet || strings.Contains(c.Path, "search") || strings.Contains(c.Path, "get-latest-versions")
		times := 3
		if reads || c.Differs != "" || strings.HasSuffix(c.Path, "/runs/create") || strings.HasSuffix(c.Path, "/model-versions/create") {
			times = 1 // what changes nothing; what only one of them takes; and what is another thing each time, of which many are in no order
		}
		for n := range times {
			want, have := theirs.send(t, c), ours.send(t, c)
			c.Save = nil // later requests are about what the first made
			if n == 0 && (!reads || c.Differs != "") {
				continue
			}
			beyond(want.body, have.body)
			same := want.status == have.status && cmp.Equal(want.body, have.body, messages)
			if _, known := otherwise[c.Name]; same == known {
				t.Errorf("%s, again: %s %s\nMLflow: %d %s\nFalaj:  %d %s\n%s", c.Name, c.Method, c.Path, want.status, text(want.body), have.status, text(have.body), cmp.Diff(want.body, have.body, messages))
			}
		}
	}
}

// beyond takes out of an answer of Falaj's what it says of model versions and MLflow
// does not: who registered them, and in lists their aliases; and the models that
// runs read in searches for runs.
func beyond(want, have any) {
	switch w := want.(type) {
	case []any:
		if h, ok := have.([]any); ok {
			for i := range min(len(w), len(h)) {
				beyond(w[i], h[i])
			}
		}
	case map[string]any:
		h, ok := have.(map[string]any)
		if !ok {
			return
		}
		if _, version := w["current_stage"]; version {
			for _, field := range []string{"user_id", "aliases"} {
				if _, said := w[field]; !said {
					delete(h, field)
				}
			}
		}
		if _, said := w["dataset_inputs"]; said && w["model_inputs"] == nil {
			delete(h, "model_inputs")
		}
		for k := range w {
			beyond(w[k], h[k])
		}
	}
}

func read(t *testing.T) (cases []replayed) {
	t.Helper()
	f, err := os.Open("testdata/cases.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 4<<20)
	names := map[string]bool{}
	for lines.Scan() {
		d := json.NewDecoder(bytes.NewReader(lines.Bytes()))
		d.DisallowUnknownFields()
		var c replayed
		if err := d.Decode(&c); err != nil {
			t.Fatalf("case %d: %v", len(cases)+1, err)
		}
		if c.Name == "" || names[c.Name] {
			t.Fatalf("case %d: the name %q is empty or twice there", len(cases)+1, c.Name)
		}
		names[c.Name] = true
		cases = append(cases, c)
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	return cases
}

var (
	variable = regexp.MustCompile(`\$\{[a-z0-9_]+\}`)
	repeated = regexp.MustCompile(`\$\{([a-z0-9]+)\*([0-9]+)\}`) // ${x*500} is x 500 times
)

func (s *server) fill(t *testing.T, in string) string {
	t.Helper()
	in = repeated.ReplaceAllStringFunc(in, func(m string) string {
		parts := repeated.FindStringSubmatch(m)
		n, _ := strconv.Atoi(parts[2])
		return strings.Repeat(parts[1], n)
	})
	return variable.ReplaceAllStringFunc(in, func(m string) string {
		v, ok := s.saved[m[2:len(m)-1]]
		if !ok {
			t.Errorf("nothing was saved as %s", m)
		}
		return v
	})
}

func (s *server) send(t *testing.T, c replayed) answer {
	t.Helper()
	body := string(c.Body)
	if c.Raw != nil {
		body = *c.Raw
	}
	ctx, cancel := context.WithTimeout(t.Context(), live.Wait)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, c.Method, s.url+s.fill(t, c.Path), strings.NewReader(s.fill(t, body)))
	if err != nil {
		t.Fatalf("%s: %v", c.Name, err)
	}
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	for k, v := range c.Header {
		r.Header.Set(k, v)
	}
	if s.token != "" {
		r.Header.Set("Authorization", "Bearer "+s.token)
	}
	resp, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		t.Fatalf("%s: %v", c.Name, err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatalf("%s: %v", c.Name, err)
	}
	a := answer{status: resp.StatusCode}
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	if d.Decode(&a.body) != nil {
		a.body = string(b)
		if strings.HasPrefix(strings.ToLower(a.body.(string)), "<!doctype html") || resp.StatusCode == http.StatusMethodNotAllowed {
			a.body = nil // a page for people: nobody depends on it
		}
	}
	for name, path := range c.Save {
		v := a.body
		for step := range strings.SplitSeq(path, ".") {
			switch x := v.(type) {
			case map[string]any:
				v = x[step]
			case []any:
				if n, err := strconv.Atoi(step); err == nil && n < len(x) {
					v = x[n]
				}
			}
		}
		found, ok := v.(string)
		if !ok {
			t.Errorf("%s: %s is not in %d %s", c.Name, path, resp.StatusCode, b)
		}
		s.saved[name] = found
	}
	a.body = s.common("", a.body, strings.Contains(c.Path, "get-history"))
	if m, ok := a.body.(map[string]any); ok && m["error_code"] == "ENDPOINT_NOT_FOUND" {
		a.body = nil
	}
	return a
}

var (
	identifier = regexp.MustCompile(`\b(m-)?[0-9a-f]{32}\b|\b(run|m|wh|svc|usr)_[0-9A-HJKMNP-TV-Z]{26}\b|\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b`)
	madeUp     = regexp.MustCompile(`^[a-z]+-[a-z]+-[0-9]+$`)
	pythonSet  = regexp.MustCompile(`\{'[^'{}]*'(?:, '[^'{}]*')*\}`) // whose order changes from process to process
	timed      = regexp.MustCompile(`time|timestamp`)
)

// common leaves out what differs between any two servers: identifiers, the time,
// names that were made up, tokens of pages; and puts lists in order that have
// none: those of an object's tags, params and latest metrics.
func (s *server) common(field string, v any, ordered bool) any {
	switch v := v.(type) {
	case string:
		for name, value := range s.saved {
			if len(value) > 20 {
				v = strings.ReplaceAll(v, value, "${"+name+"}")
			}
		}
		switch {
		case field == "next_page_token":
			return "TOKEN"
		case madeUp.MatchString(v) && (field == "run_name" || field == "name" || field == "value"):
			return "NAME"
		}
		if field == "message" {
			v, _, _ = strings.Cut(v, "\n[SQL: ") // what MLflow shows of its statements
			v = pythonSet.ReplaceAllStringFunc(v, func(set string) string {
				words := strings.Split(strings.Trim(set, "{}"), ", ")
				slices.Sort(words)
				return "{" + strings.Join(words, ", ") + "}"
			})
		}
		return identifier.ReplaceAllString(v, "ID")
	case json.Number:
		if n, err := v.Int64(); err == nil && timed.MatchString(field) {
			if since := time.Since(time.UnixMilli(n)); since > -time.Hour && since < time.Hour {
				return "NOW"
			}
		}
		f, err := v.Float64()
		if math.Abs(f) == math.MaxFloat64 { // as MLflow keeps infinities, which Falaj gives back
			return map[bool]string{false: "Infinity", true: "-Infinity"}[f < 0]
		}
		if err == nil && field == "value" { // a double, 1 or 1.0
			return f
		}
		return v
	case []any:
		for i, item := range v {
			v[i] = s.common(field, item, ordered)
		}
		if !ordered && (field == "tags" || field == "params" || field == "metrics" || field == "aliases" || field == "events" || field == "dataset_inputs") {
			slices.SortFunc(v, func(a, b any) int { return strings.Compare(text(a), text(b)) })
		}
		return v
	case map[string]any:
		for k, item := range v {
			v[k] = s.common(k, item, ordered)
		}
		return v
	}
	return v
}

// messages holds of two error texts that Falaj's may go on with what to do next.
var messages = cmp.FilterPath(func(p cmp.Path) bool {
	step, ok := p.Last().(cmp.MapIndex)
	return ok && step.Key().String() == "message"
}, cmp.Comparer(func(a, b any) bool {
	x, _ := a.(string)
	y, _ := b.(string)
	x, y = strings.TrimSuffix(strings.TrimSpace(x), "."), strings.TrimSuffix(strings.TrimSpace(y), ".")
	return x != "" && y != "" && (strings.HasPrefix(x, y+". ") || strings.HasPrefix(y, x+". ") || x == y)
}))

func text(v any) string {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(v) // it was JSON
	out := strings.TrimSpace(b.String())
	if len(out) > 1500 {
		return out[:1500] + "…"
	}
	return out
}

func startFalaj(t *testing.T) *server {
	t.Helper()
	s := live.New(t, "")
	s.Env = append(s.Env, "FALAJ_ALERTS_HOSTS=127.0.0.1")
	s.Up(t)
	p := s.Project(t, "nyc")
	var made client.Object
	p.Must(p.C.Do(t.Context(), http.MethodPost, "/api/v1/tokens", map[string]any{"project": p.Name, "name": "replay", "role": "admin", "expires_in": "24h"}, &made))
	return &server{url: s.URL, token: made.Text("secret"), saved: map[string]string{}}
}

// startMLflow starts `mlflow server` with its database and its artifacts in a
// directory of the test.
func startMLflow(t *testing.T, python string) *server {
	t.Helper()
	dir := t.TempDir()
	address, port := live.Address(t)
	cmd := exec.Command(python, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", port, "--workers", "1",
		"--backend-store-uri", "sqlite:///"+filepath.Join(dir, "mlflow.db"), "--artifacts-destination", filepath.Join(dir, "artifacts"))
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "HOME="+dir, "MLFLOW_DISABLE_TELEMETRY=true", "DO_NOT_TRACK=true", "GIT_PYTHON_REFRESH=quiet", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION=false",
		"MLFLOW_WEBHOOK_ALLOW_PRIVATE_IPS=true", "MLFLOW_WEBHOOK_ALLOWED_SCHEMES=https,http")
	live.Peer{Cmd: cmd, Ready: live.Answers("http://" + address + "/health")}.Start(t)
	return &server{url: "http://" + address, saved: map[string]string{}, dir: dir}
}
