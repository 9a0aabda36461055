// Package full runs the real server on a disk that becomes full: a small file
// system in memory, in a mount namespace of its own. Writes are refused in words
// that say what to do, what was acknowledged stays, and with space again
// everything goes on, also after kill -9 in between.
package full

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/client"
	"github.com/falaj-ml/falaj/test/live"
)

const (
	project = "full"
	base    = "/api/v1/projects/" + project
	mlflow  = "/api/2.0/mlflow"
)

// world is what a server is asked and what it has acknowledged.
type world struct {
	d                     *live.Disk
	c, tracker            *client.Client
	token, run, artifacts string

	next     int
	projects []string
	versions map[string]string // dataset version: digest
	params   []string
	tokens   []string
	pushed   int // events that were acknowledged
	tried    int // and those that were not
}

const manifests = `
{api_version: falaj/v1, kind: Project, name: full}
---
{api_version: falaj/v1, kind: Dataset, name: small, project: full, spec: {}}
---
{api_version: falaj/v1, kind: Dataset, name: events, project: full, spec: {columns: [{name: k, type: string}, {name: at, type: timestamp}, {name: note, type: string}]}}
---
{api_version: falaj/v1, kind: Entity, name: k, project: full, spec: {}}
---
{api_version: falaj/v1, kind: FeatureView, name: seen, project: full, spec: {source: {dataset: events, stream: {push: {}}}, entities: [k], timestamp: at,
  aggregations: [{name: times, function: count, window: 10d}]}}
`

// prepare makes what the writes need.
func prepare(t *testing.T, d *live.Disk) *world {
	t.Helper()
	w := &world{d: d, versions: map[string]string{}}
	w.connect(t)
	if _, err := w.c.Apply(t.Context(), "", []byte(manifests), false); err != nil {
		t.Fatal(err)
	}
	if err := w.c.Do(t.Context(), http.MethodPost, base+"/feature-views/seen/materialise", map[string]any{"wait": "60s"}, nil); err != nil {
		t.Fatal(err)
	}
	w.token = w.create(t, w.c, "/api/v1/tokens", map[string]any{"project": project, "name": "tracker", "role": "engineer", "expires_in": "24h"}, "secret")
	w.connect(t)
	experiment := w.create(t, w.tracker, mlflow+"/experiments/create", map[string]any{"name": "full"}, "experiment_id")
	w.run = w.create(t, w.tracker, mlflow+"/runs/create", map[string]any{"experiment_id": experiment, "start_time": 1}, "run.info.run_id")
	w.artifacts = experiment + "/" + w.run + "/artifacts"
	return w
}

func (w *world) connect(t *testing.T) {
	t.Helper()
	w.c, w.tracker = w.d.Server.Client(t), w.d.Server.ClientWith(t, w.token)
}

func (w *world) create(t *testing.T, c *client.Client, path string, body map[string]any, field string) string {
	t.Helper()
	var o client.Object
	if err := c.Do(t.Context(), http.MethodPost, path, body, &o); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return o.Text(field)
}

// writes are the kinds of writes. Each notes what was acknowledged.
var writes = []struct {
	name  string
	write func(ctx context.Context, w *world, n int) error
}{
	{"a project", func(ctx context.Context, w *world, n int) error {
		name := fmt.Sprintf("p%d", n)
		_, err := w.c.Apply(ctx, "", fmt.Appendf(nil, "{api_version: falaj/v1, kind: Project, name: %s}\n", name), false)
		if err == nil {
			w.projects = append(w.projects, name)
		}
		return err
	}},
	{"events", func(ctx context.Context, w *world, n int) error {
		var events []map[string]any
		for range 100 {
			events = append(events, map[string]any{"k": "a", "at": time.Now().UTC().Format(time.RFC3339Nano), "note": strings.Repeat("n", 300)})
		}
		w.tried += len(events)
		err := w.c.Do(ctx, http.MethodPost, base+"/feature-views/seen/push", map[string]any{"events": events}, nil)
		if err == nil {
			w.pushed += len(events)
		}
		return err
	}},
	{"data", func(ctx context.Context, w *world, n int) error {
		v, err := w.c.Import(ctx, project, "small", "small.csv", strings.NewReader(fmt.Sprintf("a,b\n%d,x\n%d,y\n", n, n+1)))
		if err == nil {
			w.versions[v.Text("version")] = v.Text("digest")
		}
		return err
	}},
	{"a token", func(ctx context.Context, w *world, n int) error {
		var o client.Object
		err := w.c.Do(ctx, http.MethodPost, "/api/v1/tokens", map[string]any{"project": project, "name": fmt.Sprintf("t%d", n), "role": "viewer", "expires_in": "24h"}, &o)
		if err == nil {
			w.tokens = append(w.tokens, o.Text("secret"))
		}
		return err
	}},
	{"an artifact", func(ctx context.Context, w *world, n int) error {
		return w.tracker.Do(ctx, http.MethodPut, "/api/2.0/mlflow-artifacts/artifacts/"+w.artifacts+"/"+strconv.Itoa(n), strings.NewReader(strings.Repeat("x", 100_000)), nil)
	}},
	{"parameters", func(ctx context.Context, w *world, n int) error {
		key := fmt.Sprintf("k%d", n)
		var params []map[string]any
		for i := range 20 {
			params = append(params, map[string]any{"key": fmt.Sprintf("%s-%d", key, i), "value": strings.Repeat("v", 400)})
		}
		err := w.tracker.Do(ctx, http.MethodPost, mlflow+"/runs/log-batch", map[string]any{"run_id": w.run, "params": params}, nil)
		if err == nil {
			w.params = append(w.params, key+"-0", key+"-19")
		}
		return err
	}},
}

// refused writes of each kind until the disk is so full that it is refused, and
// checks what is said then.
func (w *world) refused(t *testing.T, says string) {
	t.Helper()
	const most = 3000 // the log of the database has space of its own for a while
	for _, kind := range writes {
		var err error
		for range most {
			w.next++
			ctx, stop := context.WithTimeout(t.Context(), live.Wait)
			err = kind.write(ctx, w, w.next)
			stop()
			if err != nil {
				break
			}
		}
		t.Logf("%s: %v", kind.name, err)
		var e *client.Error
		switch {
		case err == nil:
			t.Errorf("%s was never refused", kind.name)
		case !errors.As(err, &e):
			t.Fatalf("%s: %v", kind.name, err)
		case e.Status != http.StatusInsufficientStorage && e.Status != http.StatusServiceUnavailable || !strings.Contains(e.Detail+" "+e.Hint, says):
			t.Errorf("%s: refused by %d %q %q, which does not say %q", kind.name, e.Status, e.Detail, e.Hint, says)
		}
	}
}

// accepted writes of each kind, which may take a moment after there is space.
func (w *world) accepted(t *testing.T) {
	t.Helper()
	for _, kind := range writes {
		eventually(t, func() error {
			w.next++
			return kind.write(t.Context(), w, w.next)
		})
	}
}

func eventually(t *testing.T, try func() error) {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), live.Wait)
	defer stop()
	if err := live.Until(ctx, func() (bool, error) {
		err := try()
		return err == nil, err
	}); err != nil {
		t.Fatal(err)
	}
}

// kept checks that everything acknowledged is there.
func (w *world) kept(t *testing.T) {
	t.Helper()
	has := map[string]bool{}
	for path, fields := range map[string][]string{"/api/v1/projects": {"name"}, base + "/datasets/small/versions": {"version", "digest"}} {
		err := w.c.List(t.Context(), path, nil, func(o client.Object) error {
			key := []string{path}
			for _, f := range fields {
				key = append(key, o.Text(f))
			}
			has[strings.Join(key, " ")] = true
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, p := range w.projects {
		if !has["/api/v1/projects "+p] {
			t.Errorf("lost: project %s", p)
		}
	}
	for v, digest := range w.versions {
		if !has[base+"/datasets/small/versions "+v+" "+digest] {
			t.Errorf("lost: small@%s with digest %s", v, digest)
		}
	}
	for _, secret := range w.tokens {
		if err := w.d.Server.ClientWith(t, secret).Do(t.Context(), http.MethodGet, "/api/v1/whoami", nil, nil); err != nil {
			t.Errorf("lost: a token: %v", err)
		}
	}
	var o struct {
		Run struct {
			Data struct{ Params []struct{ Key string } }
		}
	}
	if err := w.tracker.Do(t.Context(), http.MethodGet, mlflow+"/runs/get?run_id="+url.QueryEscape(w.run), nil, &o); err != nil {
		t.Fatal(err)
	}
	for _, p := range o.Run.Data.Params {
		has["param "+p.Key] = true
	}
	for _, key := range w.params {
		if !has["param "+key] {
			t.Errorf("lost: parameter %s", key)
		}
	}
}

// folded waits until reads find every event that was acknowledged: it goes on by
// itself when there is space.
func (w *world) folded(t *testing.T) {
	t.Helper()
	var got struct {
		Columns []struct{ Values []int }
	}
	eventually(t, func() error {
		body := map[string]any{"entities": []any{map[string]any{"k": "a"}}, "features": []string{"seen:times"}}
		if err := w.c.Do(t.Context(), http.MethodPost, base+"/features/online", body, &got); err != nil {
			return err
		}
		if n := got.Columns[0].Values[0]; n < w.pushed || n > w.tried {
			return fmt.Errorf("%d events are online of %d that were acknowledged, and %d that were sent", n, w.pushed, w.tried)
		}
		return nil
	})
}

// verify proves the audit log, exported and without the server.
func (w *world) verify(t *testing.T) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "audit.jsonl")
	for _, args := range [][]string{
		{"audit", "export", "-f", file},
		{"audit", "verify", file, "--checkpoints", filepath.Join(w.d.Root, "checkpoints")},
	} {
		if out, code := w.d.Server.Command(t.Context(), args...); code != 0 {
			t.Errorf("falaj %s: exit code %d\n%s", strings.Join(args, " "), code, out)
		}
	}
}

// job submits a job with little resources.
func (w *world) job(t *testing.T, command ...string) string {
	t.Helper()
	return w.create(t, w.c, base+"/jobs", map[string]any{"name": "job", "spec": map[string]any{
		"command": command, "grace": "1s", "resources": map[string]any{"cpu": "0.1", "memory": "32MiB"},
	}}, "id")
}

func (w *world) state(t *testing.T, job, wait string) string {
	t.Helper()
	var o client.Object
	if err := w.c.Do(t.Context(), http.MethodGet, base+"/jobs/"+job+"?wait="+wait, nil, &o); err != nil {
		t.Fatal(err)
	}
	return o.Text("state")
}

func (w *world) runs(t *testing.T, job string) {
	t.Helper()
	eventually(t, func() error {
		if state := w.state(t, job, "0s"); state != "running" {
			return fmt.Errorf("job %s is %s", job, state)
		}
		return nil
	})
}

func (w *world) ends(t *testing.T, job string) (state string) {
	t.Helper()
	eventually(t, func() error {
		if state = w.state(t, job, "10s"); state == "queued" || state == "running" {
			return fmt.Errorf("job %s is %s", job, state)
		}
		return nil
	})
	return state
}

// reason is why a job ended.
func (w *world) reason(t *testing.T, job string) string {
	t.Helper()
	var j client.Object
	if err := w.c.Do(t.Context(), http.MethodGet, base+"/jobs/"+job, nil, &j); err != nil {
		return err.Error()
	}
	return j.Text("reason")
}

// TestFullDisk takes the last byte away, twice, and kills the server once.
func TestFullDisk(t *testing.T) {
	s := live.New(t, "")
	s.Env = []string{"FALAJ_LIMITS_FREE=0"} // no reserve: everything meets the full disk itself
	d := s.Disk(t, 96)
	if err := d.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	w := prepare(t, d)
	w.accepted(t)
	short, long := w.job(t, "/bin/sleep", "10"), w.job(t, "/bin/sleep", "3600")
	w.runs(t, short)
	w.runs(t, long)

	live.Fill(t, d.Root, 0)
	w.refused(t, "pace")
	w.kept(t) // reading goes on
	// Who may not is refused for that, and it is on record: there is a reserve.
	var e *client.Error
	err := w.d.Server.ClientWith(t, w.tokens[0]).Do(t.Context(), http.MethodPost, base+"/jobs/"+long+"/cancel", map[string]any{}, nil)
	if !errors.As(err, &e) || e.Status != http.StatusForbidden {
		t.Errorf("a viewer cancels a job: %v", err)
	}
	eventually(t, func() error {
		for _, p := range s.Processes() {
			if p.Line == "/bin/sleep 10" {
				return errors.New("it sleeps")
			}
		}
		return nil
	})
	live.Free(t, d.Root)
	w.accepted(t)
	w.kept(t)
	w.folded(t)
	if state := w.ends(t, short); state != "succeeded" {
		t.Errorf("the job that ended on a full disk %s", state)
	}

	live.Fill(t, d.Root, 0)
	w.refused(t, "pace")
	if err := s.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := d.Start(t.Context()); err == nil {
		t.Error("it starts on a full disk")
	} else if !saysFull.MatchString(err.Error()) {
		t.Errorf("started on a full disk it does not say what to do: %v", err)
	}
	live.Free(t, d.Root)
	if err := d.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.connect(t)
	w.kept(t)
	w.accepted(t)
	w.kept(t)
	w.folded(t)
	if err := w.c.Do(t.Context(), http.MethodPost, base+"/jobs/"+long+"/cancel", map[string]any{}, nil); err != nil {
		t.Error(err)
	}
	if state := w.ends(t, long); state != "cancelled" {
		t.Errorf("a job that ran all the time is %s", state)
	}
	err = w.c.List(t.Context(), "/api/v1/audit", url.Values{"action": {"job.cancel"}, "outcome": {"refused"}}, func(client.Object) error { return errFound })
	if !errors.Is(err, errFound) {
		t.Errorf("what was refused on the full disk is not in the audit log: %v", err)
	}
	w.verify(t)
}

// saysFull is that a disk is full and what to do: of the database's or of a file.
var saysFull = regexp.MustCompile(`(?s)(no space left on device|disk is full).*Free (disk )?space`)

var errFound = errors.New("found")

// TestReserve keeps limits.free for what was begun and for making room.
func TestReserve(t *testing.T) {
	s := live.New(t, "")
	s.Env = []string{"FALAJ_LIMITS_FREE=24MiB"}
	d := s.Disk(t, 128)
	if err := d.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	w := prepare(t, d)
	w.accepted(t)
	experiment := w.create(t, w.tracker, mlflow+"/experiments/create", map[string]any{"name": "room"}, "experiment_id")
	gone := w.create(t, w.tracker, mlflow+"/runs/create", map[string]any{"experiment_id": experiment, "start_time": 1}, "run.info.run_id")
	file := "/api/2.0/mlflow-artifacts/artifacts/" + experiment + "/" + gone + "/artifacts/large"
	if err := w.tracker.Do(t.Context(), http.MethodPut, file, strings.NewReader(strings.Repeat("x", 100_000)), nil); err != nil {
		t.Fatal(err)
	}
	short, long := w.job(t, "/bin/sleep", "1"), w.job(t, "/bin/sleep", "3600")
	w.runs(t, long)
	live.Fill(t, d.Root, 20<<20) // the database's log takes a few before the job ends
	w.refused(t, "lower limits.free")
	if state := w.ends(t, short); state != "succeeded" {
		t.Errorf("a job that was running %s: %s", state, w.reason(t, short))
	}
	if err := w.c.Do(t.Context(), http.MethodPost, base+"/jobs/"+long+"/cancel", map[string]any{}, nil); err != nil {
		t.Errorf("cancelling: %v", err)
	}
	if state := w.ends(t, long); state != "cancelled" {
		t.Errorf("a job that was cancelled %s", state)
	}
	// What was logged makes room, too.
	if err := w.tracker.Do(t.Context(), http.MethodPost, mlflow+"/experiments/delete", map[string]any{"experiment_id": experiment}, nil); err != nil {
		t.Errorf("deleting: %v", err)
	}
	var pruned client.Object
	if err := w.c.Do(t.Context(), http.MethodPost, base+"/runs/prune", map[string]any{"older": "0s"}, &pruned); err != nil || pruned.Text("experiments") != "1" || pruned.Text("bytes") != "100000" {
		t.Errorf("pruning: %v %v", pruned, err)
	}
	live.Free(t, d.Root)
	w.accepted(t)
	w.kept(t)
	w.verify(t)
}
