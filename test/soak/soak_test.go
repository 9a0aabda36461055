// Package soak runs a real server under a mixed load: jobs that succeed, fail, are
// cancelled and are preempted, runs, tokens that are made and revoked, imports, pushes to a
// feature view, predictions. It measures what the server
// holds now and then, fits a line through each figure over the units of work, and fails
// when one grows that no retention explains (docs/reference/retention.md).
//
//	go test ./test/soak -args -for=8h -table=soak.md
package soak

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/client"
	"github.com/falaj-ml/falaj/internal/id"
	"github.com/falaj-ml/falaj/internal/sandbox"
	"github.com/falaj-ml/falaj/test/live"
)

var (
	lasts = flag.Duration("for", 0, fmt.Sprintf("how long the load lasts; 0 is %d rounds, however long they take", samples*roundsPerSample))
	table = flag.String("table", "", "file for the table of what was measured, as Markdown")
)

const (
	project = "soak"
	base    = "/api/v1/projects/" + project
	mlflow  = "/api/2.0/mlflow"
	samples = 24

	roundsPerSample = 2 // of a load that lasts for no given time
)

// figure is what is measured, and the most that it may grow by a unit of work. A unit is
// a job, a run, a token and so on. What has a retention may grow by about its bytes a unit;
// what has none may not grow: the rest is noise of a short measurement.
type figure struct {
	name string
	most float64
	warm float64 // that it may grow in all while caches and heap fill, however short the run is
	now  func(w *world) float64
}

var figures = []figure{
	{"descriptors", 0.05, 0, func(w *world) float64 { return count(fmt.Sprintf("/proc/%d/fd", w.s.PID())) }},
	{"goroutines", 0.05, 0, (*world).goroutines},
	{"control groups", 0.01, 0, (*world).groups},
	{"files", 8, 0, (*world).files},                          // of jobs, until retention.outputs
	{"memory in bytes", 64 << 10, 48 << 20, (*world).memory}, // 1 KB a job
	{"written in bytes", 640 << 10, 0, (*world).written},     // to the disk, by the server
	{"data directory in bytes", 64 << 10, 0, (*world).size},  // 25 KB a job, with its row
}

type world struct {
	s          *live.Server
	admin      *client.Client
	tracker    *client.Client
	experiment string
	units      int
	rounds     int
	payload    int // bytes of what clients sent to be kept
	preempted  int
}

func TestNothingGrowsWithoutARetention(t *testing.T) {
	if testing.Short() {
		t.Skip("runs a real server for a while")
	}
	s := live.New(t, "")
	s.Mark = "FALAJ_SOAK_TEST_" + id.New("x")
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	w := &world{s: s, admin: s.Client(t)}
	w.prepare(t)
	for range 3 { // caches, pools and shims are there from then on
		w.round(t)
	}
	measured := [][]float64{w.measure()}
	began := time.Now()
	for n := 1; n <= samples; n++ {
		for round := 0; round < roundsPerSample || time.Since(began) < time.Duration(n)**lasts/samples; round++ {
			w.round(t)
		}
		measured = append(measured, w.measure())
	}
	w.report(t, measured, time.Since(began))
}

// manifests are what the load needs. Of the queue's quota there is enough for one job.
const manifests = `
{api_version: falaj/v1, kind: Project, name: PROJECT}
---
{api_version: falaj/v1, kind: Queue, name: narrow, spec: {quota: {cpu: 50m}}}
---
{api_version: falaj/v1, kind: Dataset, name: small, project: PROJECT, spec: {keep: {versions: 3}}}
---
{api_version: falaj/v1, kind: Dataset, name: seen, project: PROJECT, spec: {keep: {versions: 3}, columns: [{name: k, type: string}, {name: at, type: timestamp}, {name: n, type: int64}]}}
---
{api_version: falaj/v1, kind: Entity, name: k, project: PROJECT, spec: {}}
---
{api_version: falaj/v1, kind: FeatureView, name: seen, project: PROJECT, spec: {source: {dataset: seen, stream: {push: {}}}, entities: [k], timestamp: at, features: [{name: n, type: int64}]}}
`

func (w *world) prepare(t *testing.T) {
	t.Helper()
	p := &live.Project{Server: w.s, T: t, C: w.admin, Name: project}
	p.Apply(manifests)
	w.tracker = w.s.ClientWith(t, w.token(t, "tracker", "engineer").Text("secret"))
	var o client.Object
	w.do(t, w.tracker, http.MethodPost, mlflow+"/experiments/create", map[string]any{"name": "soak"}, &o)
	w.experiment = o.Text("experiment_id")
	p.Register("delay", p.Logistic())
	p.Apply("{api_version: falaj/v1, kind: Deployment, name: delay, project: PROJECT, spec: {model: delay}}")
	p.Loaded()
}

func (w *world) do(t *testing.T, c *client.Client, method, path string, in, out any) {
	t.Helper()
	if body, err := json.Marshal(in); err == nil && in != nil {
		w.payload += len(body)
	}
	if err := c.Do(t.Context(), method, path, in, out); err != nil {
		t.Fatalf("%s %s: %v", method, path, err)
	}
}

func (w *world) token(t *testing.T, name, role string) (o client.Object) {
	t.Helper()
	w.do(t, w.admin, http.MethodPost, "/api/v1/tokens", map[string]any{"project": project, "name": name, "role": role, "expires_in": "24h"}, &o)
	return o
}

// round is one of each kind of work.
func (w *world) round(t *testing.T) {
	t.Helper()
	jobs := map[string]string{"succeeds": "/bin/true", "fails": "/bin/false", "cancelled": "3600"}
	var ids []string
	for name, what := range jobs {
		command := []string{what}
		if name == "cancelled" {
			command = []string{"/bin/sleep", what}
		}
		var o client.Object
		w.do(t, w.admin, http.MethodPost, base+"/jobs", map[string]any{"name": name, "spec": map[string]any{
			"command": command, "env": map[string]string{"MARK": w.s.Mark}, "grace": "1s",
			"resources": map[string]any{"cpu": "0.05", "memory": "32MiB"},
		}}, &o)
		if ids = append(ids, o.Text("id")); name == "cancelled" {
			w.do(t, w.admin, http.MethodPost, base+"/jobs/"+o.Text("id")+"/cancel", map[string]any{}, nil)
		}
	}
	var o client.Object
	w.do(t, w.tracker, http.MethodPost, mlflow+"/runs/create", map[string]any{"experiment_id": w.experiment, "start_time": 1}, &o)
	run := o.Text("run.info.run_id")
	w.do(t, w.tracker, http.MethodPost, mlflow+"/runs/log-batch", map[string]any{
		"run_id": run, "metrics": []map[string]any{{"key": "loss", "value": 0.5, "timestamp": 1, "step": 0}},
	}, nil)
	w.do(t, w.tracker, http.MethodPost, mlflow+"/runs/delete", map[string]any{"run_id": run}, nil)
	made := w.token(t, fmt.Sprint("t-", w.units), "viewer")
	w.do(t, w.admin, http.MethodDelete, "/api/v1/tokens/"+made.Text("id"), nil, nil)
	var events []map[string]any
	for n := range 20 {
		events = append(events, map[string]any{"k": fmt.Sprint("k", n), "at": time.Now().UTC().Format(time.RFC3339Nano), "n": w.units})
	}
	w.do(t, w.admin, http.MethodPost, base+"/feature-views/seen/push", map[string]any{"events": events}, nil)
	for n := range 5 {
		w.do(t, w.tracker, http.MethodPost, "/v2/models/delay/infer", map[string]any{"inputs": []any{live.Tensor("X", "FP32", []float64{float64(n), 3}, 1, 2)}}, nil)
	}
	w.units += len(ids) + 2 + 2
	if w.rounds%4 == 0 {
		text := fmt.Sprintf("a,b\n%d,x\n", w.units)
		w.payload += len(text)
		if _, err := w.admin.Import(t.Context(), project, "small", "small.csv", strings.NewReader(text)); err != nil {
			t.Fatal(err)
		}
		w.preempt(t)
		w.units += 3
	}
	w.rounds++
	for _, job := range ids {
		w.ended(t, job)
	}
}

// preempt has a job leave for one of a higher priority, and run again.
func (w *world) preempt(t *testing.T) {
	t.Helper()
	submit := func(name string, priority int, command ...string) string {
		var o client.Object
		w.do(t, w.admin, http.MethodPost, base+"/jobs", map[string]any{"name": name, "spec": map[string]any{
			"command": command, "env": map[string]string{"MARK": w.s.Mark}, "grace": "1s", "queue": "narrow", "priority": priority,
			"resources": map[string]any{"cpu": "0.05", "memory": "32MiB"},
		}}, &o)
		return o.Text("id")
	}
	low := submit("low", 0, "/bin/sleep", "3600")
	w.until(t, low, func(o client.Object) bool { return o.Text("state") == "running" })
	w.ended(t, submit("urgent", 10, "/bin/true"))
	o := w.until(t, low, func(o client.Object) bool { return o.Text("state") == "running" })
	if o.Text("attempts") != "1" {
		w.preempted++
	}
	w.do(t, w.admin, http.MethodPost, base+"/jobs/"+low+"/cancel", map[string]any{}, nil)
	w.ended(t, low)
}

// ended waits until a job has.
func (w *world) ended(t *testing.T, job string) {
	t.Helper()
	w.until(t, job, func(o client.Object) bool { return o.Text("state") != "queued" && o.Text("state") != "running" })
}

// until waits until a job is so.
func (w *world) until(t *testing.T, job string, so func(client.Object) bool) client.Object {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), live.Wait)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		var o client.Object
		if err := w.admin.Do(ctx, http.MethodGet, base+"/jobs/"+job, nil, &o); err != nil {
			t.Fatal(err)
		}
		if so(o) {
			return o
		}
		select {
		case <-ctx.Done():
			t.Fatalf("job %s is %s", job, o.Text("state"))
		case <-tick.C:
		}
	}
}

// measure is the units of work so far, and each figure.
func (w *world) measure() []float64 {
	out := []float64{float64(w.units)}
	for _, f := range figures {
		out = append(out, f.now(w))
	}
	return out
}

// report fits the lines over the second half, where nothing warms up any more.
func (w *world) report(t *testing.T, measured [][]float64, spent time.Duration) {
	t.Helper()
	half := measured[len(measured)/2:]
	var text strings.Builder
	text.WriteString("| what | at first | at last | a unit of work | the most |\n|---|---|---|---|---|\n")
	first, last := measured[0], measured[len(measured)-1]
	for i, f := range figures {
		by := slope(half, i+1)
		fmt.Fprintf(&text, "| %s | %.0f | %.0f | %.3f | %g |\n", f.name, first[i+1], last[i+1], by, f.most)
		if by > f.most && last[i+1]-first[i+1] > f.warm {
			t.Errorf("%s grow by %.3f with each unit of work, at most %g are explained", f.name, by, f.most)
		}
	}
	fmt.Fprintf(&text, "\n%d units of work in %s, with %d bytes that clients sent to be kept; %d jobs were preempted.\n", w.units, spent.Round(time.Second), w.payload, w.preempted)
	t.Logf("%s", text.String())
	if w.preempted == 0 {
		t.Error("no job was preempted")
	}
	if *table != "" {
		if err := os.WriteFile(*table, []byte(text.String()), 0o600); err != nil {
			t.Error(err)
		}
	}
}

// slope is that of the line of least squares of a column over the first one.
func slope(rows [][]float64, column int) float64 {
	var x, y, xx, xy float64
	n := float64(len(rows))
	for _, r := range rows {
		x, y = x+r[0], y+r[column]
	}
	x, y = x/n, y/n
	for _, r := range rows {
		xx += (r[0] - x) * (r[0] - x)
		xy += (r[0] - x) * (r[column] - y)
	}
	if xx == 0 {
		return 0
	}
	return xy / xx
}

func TestSlope(t *testing.T) {
	for _, c := range []struct {
		y    []float64
		want float64
	}{{[]float64{5, 5, 5, 5}, 0}, {[]float64{0, 2, 4, 6}, 2}, {[]float64{6, 4, 2, 0}, -2}, {[]float64{0, 1, 1, 2}, 0.6}} {
		var rows [][]float64
		for i, y := range c.y {
			rows = append(rows, []float64{float64(i), y})
		}
		if got := slope(rows, 1); got < c.want-1e-12 || got > c.want+1e-12 {
			t.Errorf("%v: %g, want %g", c.y, got, c.want)
		}
	}
}

func count(dir string) float64 {
	entries, _ := os.ReadDir(dir)
	return float64(len(entries))
}

// goroutines are what the server's metrics say.
func (w *world) goroutines() float64 {
	ctx, cancel := context.WithTimeout(context.Background(), live.Wait)
	defer cancel()
	r, err := w.admin.Send(ctx, http.MethodGet, "/metrics", nil, nil)
	if err != nil {
		return -1
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		return -1
	}
	return after(string(b), "\ngo_goroutines ")
}

func (w *world) memory() float64 {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", w.s.PID()))
	return after(string(b), "\nVmRSS:") * 1024
}

func (w *world) written() float64 {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/io", w.s.PID()))
	return after(string(b), "\nwrite_bytes: ")
}

// after is the number that follows a word.
func after(text, word string) float64 {
	_, rest, _ := strings.Cut(text, word)
	fields := strings.Fields(rest)
	if len(fields) == 0 {
		return -1
	}
	n, _ := strconv.ParseFloat(fields[0], 64)
	return n
}

// groups counts the control groups of what the server runs: its own children's, and those
// of the jobs in its directory.
func (w *world) groups() (n float64) {
	b, _ := os.ReadFile(filepath.Join(w.s.Data, "cgroups.json"))
	if len(b) == 0 {
		return -1
	}
	jobs, _ := os.ReadDir(filepath.Join(w.s.Data, "workloads"))
	for _, base := range sandbox.CgroupBases() {
		for _, j := range jobs {
			if _, err := os.Stat(filepath.Join(base, "falaj-"+j.Name())); err == nil {
				n++
			}
		}
	}
	return n
}

func (w *world) walk(each func(fs.FileInfo)) {
	_ = filepath.WalkDir(w.s.Data, func(_ string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			return err
		}
		if info, err := d.Info(); err == nil {
			each(info)
		}
		return nil
	})
}

func (w *world) files() (n float64) {
	w.walk(func(fs.FileInfo) { n++ })
	return n
}

func (w *world) size() (n float64) {
	w.walk(func(i fs.FileInfo) { n += float64(i.Size()) })
	return n
}
