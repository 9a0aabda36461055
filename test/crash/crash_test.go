// Package crash kills the server at random moments (SIGKILL, also while it
// starts) under random writes, starts it again, and compares what it has with
// what it acknowledged. The seed is printed; the flags are
//
//	go test ./test/crash -args -kills=200 -seed=7
//
// The seed fixes the operations and the moments that are asked for, not how
// the machine interleaves them.
package crash

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/client"
	"github.com/falaj-ml/falaj/internal/id"
	"github.com/falaj-ml/falaj/test/live"
)

var (
	kills = flag.Int("kills", 12, "how often the server is killed")
	seed  = flag.Uint64("seed", 0, "seed of the operations; 0 takes one from the clock")
)

// workers is how many writers there are at a time.
const workers = 3

// acknowledged is what the server said it has. A write that was cut off is in
// neither state: it may be there or not, and is not written down.
type acknowledged struct {
	sync.Mutex
	projects map[string]bool
	versions map[string]string // dataset@version: digest
	jobs     map[string]bool   // cancelled?
	runs     map[string]bool
	metrics  []metric
	params   []metric
	tokens   map[string]bool // secret: still good?
	ids      map[string]string
	count    int
}

type metric struct{ run, key, value string }

func TestNothingAcknowledgedIsLost(t *testing.T) {
	if testing.Short() {
		t.Skip("kills a real server many times")
	}
	if *seed == 0 {
		*seed = uint64(time.Now().UnixNano())
	}
	t.Logf("seed %d, %d kills", *seed, *kills)
	s := live.New(t, "")
	s.Mark = "FALAJ_CRASH_TEST_" + id.New("x")
	w := &world{s: s, ack: &acknowledged{
		projects: map[string]bool{}, versions: map[string]string{}, jobs: map[string]bool{}, runs: map[string]bool{},
		tokens: map[string]bool{}, ids: map[string]string{},
	}}
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.prepare(t)
	moments := rand.New(rand.NewPCG(*seed, 0))
	for n := 0; n < *kills || w.ack.count < *kills && n < 4**kills; n++ { // a busy machine writes little before a kill
		w.epoch(t, n, time.Duration(moments.IntN(700))*time.Millisecond)
		// Now and then it is killed while it starts, too.
		for moments.IntN(4) == 0 {
			w.startAndKill(t, time.Duration(20+moments.IntN(400))*time.Millisecond)
		}
		if err := s.Start(t.Context()); err != nil {
			t.Fatalf("after kill %d: %v", n+1, err)
		}
		w.c = s.Client(t)
		w.verify(t, false)
		if t.Failed() {
			t.Fatalf("after kill %d", n+1)
		}
	}
	t.Logf("acknowledged: %d writes, %d jobs, %d metrics, %d versions, %d tokens", w.ack.count, len(w.ack.jobs), len(w.ack.metrics), len(w.ack.versions), len(w.ack.tokens))
	if w.ack.count < *kills {
		t.Errorf("only %d writes were acknowledged: the test tests nothing", w.ack.count)
	}
	w.end(t)
	w.verify(t, true)
	w.audit(t)
}

// world is the server and what is known of it.
type world struct {
	s   *live.Server
	c   *client.Client
	ack *acknowledged

	token      string // of a service of the project, for MLflow
	experiment string
	seen       struct{ metrics, params int } // verified so far
}

const (
	project = "crash"
	base    = "/api/v1/projects/" + project
	mlflow  = "/api/2.0/mlflow"
)

func (w *world) prepare(t *testing.T) {
	t.Helper()
	w.c = w.s.Client(t)
	ctx := t.Context()
	if _, err := w.c.Apply(ctx, "", []byte("{api_version: falaj/v1, kind: Project, name: crash}\n---\n{api_version: falaj/v1, kind: Dataset, name: small, project: crash, spec: {}}\n"), false); err != nil {
		t.Fatal(err)
	}
	var o client.Object
	if err := w.c.Do(ctx, http.MethodPost, "/api/v1/tokens", map[string]any{"project": project, "name": "tracker", "role": "engineer", "expires_in": "24h"}, &o); err != nil {
		t.Fatal(err)
	}
	w.token = o.Text("secret")
	if err := w.s.ClientWith(t, w.token).Do(ctx, http.MethodPost, mlflow+"/experiments/create", map[string]any{"name": "crash"}, &o); err != nil {
		t.Fatal(err)
	}
	w.experiment = o.Text("experiment_id")
}

// epoch writes at random until the moment of the kill, and kills.
func (w *world) epoch(t *testing.T, n int, after time.Duration) {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), live.Wait)
	defer stop()
	admin, tracker := w.s.Client(t), w.s.ClientWith(t, w.token)
	var writers sync.WaitGroup
	for i := range workers {
		r := rand.New(rand.NewPCG(*seed, uint64(n*workers+i+1)))
		writers.Go(func() {
			for ctx.Err() == nil {
				err := w.write(ctx, admin, tracker, r)
				var refused *client.Error
				switch {
				case errors.As(err, &refused) && refused.Status < 500 && refused.Status != http.StatusConflict:
					t.Errorf("refused: %d %s", refused.Status, refused.Detail)
					return
				case err != nil && !errors.As(err, &refused):
					return // the server is gone
				}
			}
		})
	}
	moment := time.NewTimer(after)
	defer moment.Stop()
	<-moment.C
	if err := w.s.Kill(); err != nil {
		t.Fatal(err)
	}
	writers.Wait()
}

// startAndKill kills the server while it starts, or just after.
func (w *world) startAndKill(t *testing.T, after time.Duration) {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), after)
	defer stop()
	if err := w.s.Start(ctx); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	if err := w.s.Kill(); err != nil {
		t.Fatal(err)
	}
}

// write does one random write and notes it when it was acknowledged.
func (w *world) write(ctx context.Context, admin, tracker *client.Client, r *rand.Rand) error {
	a := w.ack
	note := func(f func()) {
		a.Lock()
		defer a.Unlock()
		f()
		a.count++
	}
	switch pick := r.IntN(20); {
	case pick < 2:
		name := fmt.Sprintf("p%08x", r.Uint32())
		if _, err := admin.Apply(ctx, "", fmt.Appendf(nil, "{api_version: falaj/v1, kind: Project, name: %s}\n", name), false); err != nil {
			return err
		}
		note(func() { a.projects[name] = true })
	case pick < 3:
		rows := fmt.Sprintf("a,b\n%d,x\n%d,y\n", r.Int32(), r.Int32())
		v, err := admin.Import(ctx, project, "small", "small.csv", strings.NewReader(rows))
		if err != nil {
			return err
		}
		note(func() { a.versions[v.Text("version")] = v.Text("digest") })
	case pick < 5:
		command := [][]string{{"/bin/true"}, {"/bin/false"}, {"/bin/sleep", "0.2"}, {"/bin/sleep", "3600"}}[r.IntN(4)]
		var o client.Object
		err := admin.Do(ctx, http.MethodPost, base+"/jobs", map[string]any{"name": "job", "spec": map[string]any{
			"command": command, "env": map[string]string{"MARK": w.s.Mark}, "grace": "1s",
			"resources": map[string]any{"cpu": "0.05", "memory": "32MiB"},
		}}, &o)
		if err != nil {
			return err
		}
		note(func() { a.jobs[o.Text("id")] = false })
		if command[len(command)-1] != "3600" || r.IntN(3) == 0 {
			return nil
		}
		if err := admin.Do(ctx, http.MethodPost, base+"/jobs/"+o.Text("id")+"/cancel", map[string]any{}, nil); err != nil {
			return err
		}
		note(func() { a.jobs[o.Text("id")] = true })
	case pick < 6:
		var o client.Object
		name := fmt.Sprintf("s%06x", r.Uint32()>>8)
		if err := admin.Do(ctx, http.MethodPost, "/api/v1/tokens", map[string]any{"project": project, "name": name, "role": "viewer", "expires_in": "24h"}, &o); err != nil {
			return err
		}
		secret := o.Text("secret")
		note(func() { a.tokens[secret], a.ids[secret] = true, o.Text("id") })
		if r.IntN(2) == 0 {
			return nil
		}
		// From here on it is not known to be good until the answer says it is not.
		note(func() { delete(a.tokens, secret) })
		if err := admin.Do(ctx, http.MethodDelete, "/api/v1/tokens/"+o.Text("id"), nil, nil); err != nil {
			return err
		}
		note(func() { a.tokens[secret] = false })
	case pick < 9:
		var o client.Object
		if err := tracker.Do(ctx, http.MethodPost, mlflow+"/runs/create", map[string]any{"experiment_id": w.experiment, "start_time": 1}, &o); err != nil {
			return err
		}
		note(func() { a.runs[o.Text("run.info.run_id")] = true })
	default:
		a.Lock()
		run := ""
		for run = range a.runs {
			break
		}
		a.Unlock()
		if run == "" {
			return nil
		}
		var metrics, params []map[string]any
		var m, p []metric
		for range 1 + r.IntN(20) {
			key, value := fmt.Sprintf("m%08x", r.Uint32()), strconv.Itoa(r.IntN(1000))
			metrics = append(metrics, map[string]any{"key": key, "value": value, "timestamp": 1, "step": 0})
			m = append(m, metric{run, key, value})
		}
		if r.IntN(4) == 0 {
			key := fmt.Sprintf("p%08x", r.Uint32())
			params = append(params, map[string]any{"key": key, "value": "v"})
			p = append(p, metric{run, key, "v"})
		}
		for _, x := range metrics {
			var f float64
			_, _ = fmt.Sscan(x["value"].(string), &f)
			x["value"] = f
		}
		if err := tracker.Do(ctx, http.MethodPost, mlflow+"/runs/log-batch", map[string]any{"run_id": run, "metrics": metrics, "params": params}, nil); err != nil {
			return err
		}
		note(func() { a.metrics, a.params = append(a.metrics, m...), append(a.params, p...) })
	}
	return nil
}

// verify compares. What was compared after a former start is left out unless
// all is asked for.
func (w *world) verify(t *testing.T, all bool) {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), live.Wait)
	defer stop()
	a := w.ack
	has := map[string]bool{}
	w.list(t, "/api/v1/projects", func(o client.Object) { has["project "+o.Text("name")] = true })
	w.list(t, base+"/datasets/small/versions", func(o client.Object) { has["version "+o.Text("version")+" "+o.Text("digest")] = true })
	w.list(t, base+"/jobs", func(o client.Object) { has["job "+o.Text("id")] = true })
	for name := range a.projects {
		if !has["project "+name] {
			t.Errorf("lost: project %s", name)
		}
	}
	for v, digest := range a.versions {
		if !has["version "+v+" "+digest] {
			t.Errorf("lost: small@%s with digest %s", v, digest)
		}
	}
	for job := range a.jobs {
		if !has["job "+job] {
			t.Errorf("lost: job %s", job)
		}
	}
	for secret, good := range a.tokens {
		err := w.s.ClientWith(t, secret).Do(ctx, http.MethodGet, "/api/v1/whoami", nil, nil)
		var refused *client.Error
		if good != (err == nil) || (err != nil && (!errors.As(err, &refused) || refused.Status != http.StatusUnauthorized)) {
			t.Errorf("token %s: good should be %t, whoami says %v", a.ids[secret], good, err)
		}
	}
	tracker := w.s.ClientWith(t, w.token)
	from := w.seen
	if all {
		from.metrics, from.params = 0, 0
	}
	runs := map[string]bool{}
	for _, m := range append(a.metrics[from.metrics:len(a.metrics):len(a.metrics)], a.params[from.params:]...) {
		if runs[m.run] = true; len(runs) > 10_000 {
			break
		}
	}
	for run := range a.runs {
		if all {
			runs[run] = true
		}
	}
	logged := map[metric]bool{}
	for run := range runs {
		var o struct {
			Run struct {
				Data struct {
					Metrics, Params []struct {
						Key   string
						Value any
					}
				}
			}
		}
		if err := tracker.Do(ctx, http.MethodGet, mlflow+"/runs/get?run_id="+url.QueryEscape(run), nil, &o); err != nil {
			t.Errorf("lost: run %s: %v", run, err)
			continue
		}
		for _, x := range append(o.Run.Data.Metrics, o.Run.Data.Params...) {
			logged[metric{run, x.Key, strings.TrimSuffix(fmt.Sprint(x.Value), ".0")}] = true
		}
	}
	for _, m := range append(a.metrics[from.metrics:len(a.metrics):len(a.metrics)], a.params[from.params:]...) {
		if !logged[m] {
			t.Errorf("lost: %s = %s of run %s", m.key, m.value, m.run)
		}
	}
	w.seen.metrics, w.seen.params = len(a.metrics), len(a.params)
}

func (w *world) list(t *testing.T, path string, yield func(client.Object)) {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), live.Wait)
	defer stop()
	if err := w.c.List(ctx, path, nil, func(o client.Object) error { yield(o); return nil }); err != nil {
		t.Errorf("%s: %v", path, err)
	}
}

// end cancels what would run on; every job, also one whose submission was not
// acknowledged, reaches a final state, and nothing of any is left running.
func (w *world) end(t *testing.T) {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), 2*live.Wait)
	defer stop()
	var open []string
	w.list(t, base+"/jobs", func(o client.Object) {
		if s := o.Text("state"); s == "queued" || s == "running" {
			open = append(open, o.Text("id"))
		}
	})
	for _, job := range open {
		err := w.c.Do(ctx, http.MethodPost, base+"/jobs/"+job+"/cancel", map[string]any{}, nil)
		var refused *client.Error
		if err != nil && (!errors.As(err, &refused) || refused.Status != http.StatusConflict) { // it may have ended by itself
			t.Errorf("cancelling %s: %v", job, err)
		}
	}
	for _, job := range open {
		for state := ""; state != "succeeded" && state != "failed" && state != "cancelled"; {
			var o client.Object
			if err := w.c.Do(ctx, http.MethodGet, base+"/jobs/"+job+"?wait=30s", nil, &o); err != nil {
				t.Fatalf("job %s, last %q: %v", job, state, err)
			}
			state = o.Text("state")
		}
	}
	w.list(t, base+"/jobs", func(o client.Object) {
		if w.ack.jobs[o.Text("id")] && o.Text("state") != "cancelled" {
			t.Errorf("job %s was cancelled and is %s", o.Text("id"), o.Text("state"))
		}
	})
	// A process may take a moment to be gone after its job's end is recorded.
	look := time.NewTicker(100 * time.Millisecond)
	defer look.Stop()
	for left := w.s.Processes(); len(left) > 0; left = w.s.Processes() {
		select {
		case <-look.C:
		case <-ctx.Done():
			for _, p := range left {
				t.Errorf("left running: %d %s", p.PID, p.Line)
			}
			return
		}
	}
}

// audit exports the log and verifies it as somebody without the server does.
func (w *world) audit(t *testing.T) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "audit.jsonl")
	for _, args := range [][]string{
		{"audit", "export", "-f", file},
		{"audit", "verify", file, "--checkpoints", filepath.Join(w.s.Data, "checkpoints")},
	} {
		out, code := w.s.Command(t.Context(), args...)
		if code != 0 {
			t.Fatalf("falaj %s: exit code %d\n%s", strings.Join(args, " "), code, out)
		}
		_, _ = io.WriteString(t.Output(), out)
	}
}
