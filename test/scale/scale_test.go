// Package scale serves models that leave the memory and come back, and models of several
// processes, with a real server that is killed.
package scale

import (
	"io"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/client"
	"github.com/falaj-ml/falaj/test/live"
)

// world is a server with a deployment of a model that no job made.
type world struct {
	*live.Project
}

func begin(t *testing.T, spec string) world {
	t.Helper()
	if testing.Short() {
		t.Skip("runs a real server")
	}
	s := live.New(t, "")
	s.Up(t)
	w := world{s.Project(t, "nyc")}
	w.Register("alien", w.Logistic())
	w.change(spec)
	return w
}

func (w world) change(spec string) {
	w.T.Helper()
	w.Apply("{api_version: falaj/v1, kind: Deployment, name: d, project: PROJECT, spec: {model: alien, " + spec + "}}")
}

func (w world) ask() error {
	_, err := w.Infer(w.C, "d", nil, live.Tensor("X", "FP32", []float64{1, 2}, 1, 2))
	return err
}

// processes are those of models.
func (w world) processes() (pids []int) {
	w.T.Helper()
	entries, err := os.ReadDir("/proc")
	w.Must(err)
	parent := map[int]int{}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		dir := filepath.Join("/proc", e.Name())
		stat, _ := os.ReadFile(filepath.Join(dir, "stat"))
		if fields := strings.Fields(string(stat)[strings.LastIndexByte(string(stat), ')')+1:]); len(fields) > 1 {
			parent[pid], _ = strconv.Atoi(fields[1])
		}
		line, _ := os.ReadFile(filepath.Join(dir, "cmdline"))
		if args := strings.Split(string(line), "\x00"); len(args) > 2 && args[1] == "child" && args[2] == "model" {
			pids = append(pids, pid)
		}
	}
	mine := pids[:0]
	for _, pid := range pids {
		for up := pid; up > 1; up = parent[up] {
			if up == w.PID() {
				mine = append(mine, pid)
				break
			}
		}
	}
	return mine
}

// awaited waits until the deployment says that it has so many replicas, and has.
func (w world) awaited(replicas int) {
	w.T.Helper()
	var d client.Object
	w.Eventually("there are not "+strconv.Itoa(replicas)+" replicas", func() (bool, error) {
		err := w.C.Do(w.T.Context(), http.MethodGet, w.Path("deployments/d"), nil, &d)
		return err == nil && d.Text("replicas") == strconv.Itoa(replicas) && len(w.processes()) == replicas, err
	})
	if d.Text("state") != "ready" {
		w.T.Errorf("with %d replicas it is %s: %s", replicas, d.Text("state"), d.Text("reason"))
	}
}

// awake asks until one process has loaded the model, which goes when nobody has asked for a while.
func (w world) awake() {
	w.T.Helper()
	w.Eventually("there is not one replica", func() (bool, error) {
		if err := w.ask(); err != nil {
			return false, err
		}
		var d client.Object
		err := w.C.Do(w.T.Context(), http.MethodGet, w.Path("deployments/d"), nil, &d)
		return err == nil && d.Text("replicas") == "1" && d.Text("state") == "ready" && len(w.processes()) == 1, err
	})
}

func (w world) ready() bool {
	return w.Foreign(w.C, http.MethodGet, "/v2/models/d/ready", nil, nil) == nil && w.Foreign(w.C, http.MethodGet, "/v2/health/ready", nil, nil) == nil
}

// used is what workloads have of this machine, in thousandths of a core.
func (w world) used() string {
	w.T.Helper()
	var pool client.Object
	w.Must(w.C.Do(w.T.Context(), http.MethodGet, "/api/v1/pools/home", nil, &pool))
	return pool.Text("used.cpu")
}

// TestToZeroAndBack: a model that nobody asks for has no process, and answers whoever
// asks; also after a kill of the server, which loads nothing that nobody asks for.
func TestToZeroAndBack(t *testing.T) {
	w := begin(t, "scale: {min: 0, idle: 5s}")
	if err := w.ask(); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		w.awake()
		w.awaited(0)
		if !w.ready() || len(w.processes()) != 0 {
			t.Errorf("asleep, ready is %v, and %d processes", w.ready(), len(w.processes()))
		}
		out, code := w.Command(t.Context(), "get", "deployments", "-p", w.Name)
		if code != 0 || !strings.Contains(out, "REPLICAS") {
			t.Errorf("%d %s", code, out)
		}
		var all sync.WaitGroup
		var failed atomic.Int64
		began := time.Now()
		for range 30 {
			all.Go(func() {
				if err := w.ask(); err != nil {
					failed.Add(1)
					t.Log(err)
				}
			})
		}
		all.Wait()
		t.Logf("30 held requests were answered in %s", time.Since(began))
		if n := failed.Load(); n > 0 {
			t.Errorf("%d of 30 held requests failed", n)
		}
		w.awake()
		w.awaited(0)
		w.Must(w.Kill())
		w.Again()
		w.Loaded() // it is ready
		if n := len(w.processes()); n != 0 || !w.ready() {
			t.Errorf("after a restart %d processes that nobody asked for", n)
		}
		if err := w.ask(); err != nil {
			t.Errorf("after a restart: %v", err)
		}
	}
	resp, err := w.C.Send(t.Context(), http.MethodGet, "/metrics", nil, nil)
	w.Must(err)
	defer resp.Body.Close()
	page, err := io.ReadAll(resp.Body)
	w.Must(err)
	for _, line := range []string{
		`falaj_serving_cold_starts_total{deployment="d",project="nyc"} 1`, `falaj_serving_replicas_running{deployment="d",project="nyc",version="1"} 1`,
		`falaj_serving_held_requests{deployment="d",project="nyc"} 0`,
	} {
		if !strings.Contains(string(page), line+"\n") {
			t.Errorf("there is no %s", line)
		}
	}
	if err := w.Stop(); err != nil {
		t.Error(err)
	}
}

// TestReplicas: as many processes as the manifest wants; losing one costs nobody an
// answer but those whom it was answering; those beyond the first have their place among
// the machine's workloads, and give it back, also when the server is killed.
func TestReplicas(t *testing.T) {
	w := begin(t, "runtime: {memory: 512MiB}, scale: {min: 2, max: 2}")
	w.awaited(2)
	one := w.used()
	if one == "" || one == "0" {
		t.Errorf("a replica takes nothing: %q", one)
	}
	var ended atomic.Int64
	const clients = 4
	stop := live.Load(t, clients, func(int, int) bool {
		switch err := w.ask(); {
		case err == nil:
		case strings.Contains(err.Error(), "the model's process exited"):
			ended.Add(1)
		default:
			t.Error(err)
		}
		return true
	})
	for range 2 { // a third time could set the version aside
		pids := w.processes()
		if len(pids) < 2 {
			t.Fatalf("%d processes", len(pids))
		}
		w.Must(syscall.Kill(pids[0], syscall.SIGKILL))
		w.Eventually("it goes on", func() (bool, error) { return !slices.Contains(w.processes(), pids[0]), nil })
		w.awaited(2)
	}
	stop()
	if n := ended.Load(); n > 2*clients { // those that were in a run of the one that was killed
		t.Errorf("%d requests failed for two lost processes", n)
	}
	w.Must(w.Kill())
	w.Again()
	w.awaited(2)
	if u := w.used(); u != one {
		t.Errorf("after a restart replicas take %s, and took %s", u, one)
	}
	w.change("runtime: {memory: 512MiB}, scale: {min: 1, max: 2}")
	w.awaited(1)
	w.Eventually("its place is not given back", func() (bool, error) { u := w.used(); return u == "0" || u == "", nil })
	w.change("runtime: {memory: 512MiB}, scale: {min: 8, max: 8}") // more than the machine has cores
	waits := func() (bool, error) {
		out, _ := w.Command(t.Context(), "get", "deployment", "d", "-p", w.Name, "-o", "json")
		return strings.Contains(out, "another one waits for a place on this machine: ") && strings.Contains(out, "cpu wanted"), nil
	}
	w.Eventually("it does not say why there are so few", waits)
	w.Must(w.Kill())
	w.Again()
	w.Eventually("after a restart it does not say why there are so few", waits)
	if err := w.ask(); err != nil {
		t.Error(err)
	}
	w.Must(w.C.Do(t.Context(), http.MethodDelete, w.Path("deployments/d"), nil, nil))
	w.Eventually("a process or a place is left", func() (bool, error) {
		u := w.used()
		return len(w.processes()) == 0 && (u == "0" || u == ""), nil
	})
	if err := w.Stop(); err != nil {
		t.Error(err)
	}
}

// TestGrows: requests that come faster than they are answered make another replica, if
// it finds a core.
func TestGrows(t *testing.T) {
	w := begin(t, "runtime: {memory: 512MiB}, scale: {max: 64, concurrency: 0.5}")
	w.awaited(1)
	const rows = 500 // of 4096 that may wait
	many := live.Tensor("X", "FP32", make([]float64, 2*rows), rows, 2)
	var all sync.WaitGroup
	done := make(chan struct{})
	for range 8 {
		all.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				if a, err := w.Infer(w.C, "d", nil, many); err != nil || len(a.Outputs) == 0 || len(a.Outputs[0].Data) != rows {
					t.Error(err)
					return
				}
			}
		})
	}
	w.awaited(min(2, runtime.GOMAXPROCS(0)))
	out, _ := w.Command(t.Context(), "get", "deployment", "d", "-p", w.Name, "-o", "json")
	// The one that came may be more than what goes on needs: then it is kept for a while.
	if !strings.Contains(out, "in flight, averaged over") && !strings.Contains(out, "2 were needed within the last") {
		t.Error(out)
	}
	close(done)
	all.Wait()
	if err := w.Stop(); err != nil {
		t.Error(err)
	}
}
