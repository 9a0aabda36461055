package ray

import (
	"archive/zip"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/falaj-ml/falaj/internal/compute/engine"
	"github.com/falaj-ml/falaj/internal/compute/engine/remote"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/resource"
)

// cluster answers as Ray's dashboard does: its texts are recorded from Ray 2.60.
// What needs a real Ray is in test/engines/ray.
type cluster struct {
	*httptest.Server
	mu       sync.Mutex
	packages map[string][]byte
	jobs     map[string]*job
	groups   string // JSON
	broken   int    // answers to lose: the call is done, its answer is not given
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{packages: map[string][]byte{}, jobs: map[string]*job{}, groups: "[]"}
	mux := http.NewServeMux()
	mux.HandleFunc("PUT /api/packages/gcs/{name}", func(_ http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		c.packages[r.PathValue("name")] = b
	})
	mux.HandleFunc("POST /api/jobs/", func(w http.ResponseWriter, r *http.Request) {
		var s submission
		_ = json.NewDecoder(r.Body).Decode(&s)
		if c.jobs[s.ID] != nil {
			http.Error(w, "ValueError: Job with submission_id "+s.ID+" already exists. Please use a different submission_id.", http.StatusInternalServerError)
			return
		}
		c.jobs[s.ID] = &job{Type: "SUBMISSION", ID: s.ID, Status: "PENDING", Metadata: s.Metadata}
		if c.broken > 0 {
			c.broken--
			http.Error(w, "gone", http.StatusBadGateway)
			return
		}
		_, _ = fmt.Fprint(w, "{}")
	})
	mux.HandleFunc("GET /api/jobs/{$}", func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(slices.Collect(maps.Values(c.jobs)))
	})
	mux.HandleFunc("GET /api/jobs/{id}", func(w http.ResponseWriter, r *http.Request) {
		if j := c.jobs[r.PathValue("id")]; j != nil {
			_ = json.NewEncoder(w).Encode(j)
			return
		}
		http.Error(w, "Job "+r.PathValue("id")+" does not exist", http.StatusNotFound)
	})
	mux.HandleFunc("POST /api/jobs/{id}/stop", func(w http.ResponseWriter, r *http.Request) {
		c.jobs[r.PathValue("id")].Status = "STOPPED"
		_, _ = fmt.Fprint(w, `{"stopped": true}`)
	})
	mux.HandleFunc("DELETE /api/jobs/{id}", func(w http.ResponseWriter, r *http.Request) {
		if !c.jobs[r.PathValue("id")].over() {
			http.Error(w, "RuntimeError: it is in a non-terminal state", http.StatusInternalServerError)
			return
		}
		delete(c.jobs, r.PathValue("id"))
		_, _ = fmt.Fprint(w, `{"deleted": true}`)
	})
	mux.HandleFunc("GET /api/v0/placement_groups", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprintf(w, `{"result": true, "data": {"result": {"result": %s}}}`, c.groups)
	})
	mux.HandleFunc("GET /api/v0/nodes", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprint(w, `{"result": true, "data": {"result": {"result": [
			{"node_id": "aa", "node_ip": "10.0.0.1", "node_name": "head", "is_head_node": true, "state": "ALIVE", "resources_total": {"memory": 100}},
			{"node_id": "bb", "node_ip": "10.0.0.2", "node_name": "n1", "state": "ALIVE", "resources_total": {"CPU": 8, "GPU": 4, "memory": 8589934592, "fpga": 2, "node:10.0.0.2": 1, "accelerator_type:H100": 1, "object_store_memory": 5}, "labels": {"zone": "a"}},
			{"node_id": "cc", "node_ip": "10.0.0.3", "node_name": "twin", "state": "ALIVE", "resources_total": {"CPU": 2, "memory": 1024}, "labels": {"zone": "b"}},
			{"node_id": "dd", "node_ip": "10.0.0.3", "node_name": "twin", "state": "ALIVE", "resources_total": {"CPU": 2, "memory": 1024}, "labels": {"zone": "b"}},
			{"node_id": "ee", "node_name": "n9", "state": "DEAD", "resources_total": {"CPU": 2}}]}}}`)
	})
	mux.HandleFunc("GET /api/cluster_status", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprint(w, `{"result": true, "data": {"clusterStatus": {"loadMetricsReport": {"usageByNode": {"bb": {"CPU": [5.0, 8.0], "GPU": [3.0, 4.0], "memory": [1073741824, 8589934592], "node:10.0.0.2": [0, 1]}}}}}}`)
	})
	c.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c.mu.Lock()
		defer c.mu.Unlock()
		if r.Header.Get("Authorization") != "Bearer secret" {
			http.Error(w, "Unauthorized: Missing authentication token", http.StatusUnauthorized)
			return
		}
		mux.ServeHTTP(w, r)
	}))
	t.Cleanup(c.Close)
	return c
}

func (c *cluster) launcher(t *testing.T, change func(*Config)) *Launcher {
	t.Helper()
	token := filepath.Join(t.TempDir(), "token")
	check(t, os.WriteFile(token, []byte("secret\n"), 0o600))
	cfg := Config{Address: c.URL + "/", TokenFile: token, Worker: "/opt/falaj-worker", Installation: "ours"}
	if change != nil {
		change(&cfg)
	}
	l, err := New(cfg)
	check(t, err)
	return l
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func launchOf(id string, options map[string]string) remote.Launch {
	return remote.Launch{
		ID: id, Workers: 2, Agent: map[string]string{"FALAJ_AGENT_TOKEN": "flj_token"},
		Spec: engine.Spec{ID: id, Project: "p", Options: options, Workers: 2, Roles: []engine.Role{
			{Name: "learner", Workers: 1, Resources: resource.Amount{CPU: 1500, Memory: resource.GiB, Accelerators: map[string]int64{"nvidia.com/gpu": 1}}},
			{Name: "actor", Workers: 1, Resources: resource.Amount{CPU: 500, Memory: 2 * resource.GiB}},
		}},
	}
}

func TestStart(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	worker := filepath.Join(t.TempDir(), "falaj-worker")
	check(t, os.WriteFile(worker, []byte("a program"), 0o755))
	l := c.launcher(t, func(cfg *Config) { cfg.Worker, cfg.Ship = "", worker })
	x := launchOf("att_1", map[string]string{"strategy": "SPREAD", "labels": "zone=a", "python": "/opt/ray/bin/python"})
	c.broken = 1
	for range 3 { // the first answer is lost; later ones find the job
		check(t, l.Start(t.Context(), x))
	}
	if len(c.jobs) != 1 || len(c.packages) != 1 || c.jobs["att_1"].Metadata["falaj"] != "ours" {
		t.Fatalf("%+v %d", c.jobs, len(c.packages))
	}
	for name, pack := range c.packages {
		if !strings.HasPrefix(name, "_ray_pkg_") || !strings.HasSuffix(name, ".zip") {
			t.Errorf("package %s", name)
		}
		z, err := zip.NewReader(bytes.NewReader(pack), int64(len(pack)))
		check(t, err)
		files := map[string]string{}
		for _, f := range z.File {
			r, err := f.Open()
			check(t, err)
			b, err := io.ReadAll(r)
			check(t, err)
			files[f.Name] = string(b)
		}
		if files["falaj-worker"] != "a program" || files["gang.py"] != string(gangScript) {
			t.Errorf("files %v", slices.Sorted(maps.Keys(files)))
		}
		var g gang
		check(t, json.Unmarshal([]byte(files["launch.json"]), &g))
		want := gang{
			ID: "att_1", Strategy: "SPREAD", Bundles: []map[string]float64{
				{"CPU": 1.5, "GPU": 1, "memory": float64(resource.GiB)}, {"CPU": 0.5, "memory": float64(2 * resource.GiB)},
			},
			Selectors: []map[string]string{{"zone": "a"}, {"zone": "a"}}, Agent: map[string]string{"FALAJ_AGENT_TOKEN": "flj_token"},
		}
		if d := cmp.Diff(want, g); d != "" {
			t.Error(d)
		}
	}
	c.jobs["other"] = &job{ID: "other", Status: "RUNNING", Metadata: map[string]string{"falaj": "theirs"}}
	if ids, err := l.List(t.Context()); err != nil || !slices.Equal(ids, []string{"att_1"}) {
		t.Errorf("%v %v", ids, err)
	}
	check(t, l.Forget(t.Context(), "att_1")) // it still runs as Ray sees it
	check(t, l.Forget(t.Context(), "att_1"))
	if len(c.jobs) != 1 {
		t.Errorf("%v", c.jobs)
	}

	// Ray writes a job down again that was removed too soon for it.
	c.jobs["att_1"] = &job{ID: "att_1", Status: "FAILED", ErrorType: "JOB_SUPERVISOR_ACTOR_DIED"}
	c.jobs["att_theirs"] = &job{ID: "att_theirs", Status: "FAILED"}
	if _, err := l.List(t.Context()); err != nil || c.jobs["att_1"] != nil || c.jobs["att_theirs"] == nil {
		t.Errorf("%v %v", c.jobs, err)
	}
}

func TestRefused(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	l := c.launcher(t, nil)
	image := launchOf("att_image", nil)
	image.Spec.Image = "r/x@sha256:0"
	nodes := launchOf("att_nodes", nil)
	nodes.Spec.Nodes = []string{"n1"}
	for name, x := range map[string]remote.Launch{
		"image": image, "nodes": nodes, "option": launchOf("a", map[string]string{"partition": "x"}),
		"strategy": launchOf("a", map[string]string{"strategy": "spread"}), "python": launchOf("a", map[string]string{"python": "python; rm -rf /"}),
		"labels": launchOf("a", map[string]string{"labels": "zone"}), "shared": launchOf("a", map[string]string{"shared": "perhaps"}),
	} {
		if err := l.Start(t.Context(), x); !fault.Is(err, fault.Invalid) && !fault.Is(err, fault.Unsupported) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if len(c.jobs)+len(c.packages) > 0 {
		t.Errorf("%v", c.jobs)
	}
	for name, change := range map[string]func(*Config){
		"no address": func(c *Config) { c.Address = "" }, "a path": func(c *Config) { c.Address = "/tmp/ray" },
		"no worker": func(c *Config) { c.Worker = "" }, "a relative worker": func(c *Config) { c.Worker = "falaj-worker" },
	} {
		cfg := Config{Address: c.URL, Worker: "/opt/falaj-worker"}
		change(&cfg)
		if _, err := New(cfg); !fault.Is(err, fault.Invalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	open, err := New(Config{Address: c.URL, Worker: "/w"})
	check(t, err)
	if _, err := open.List(t.Context()); !fault.Is(err, fault.PermissionDenied) || fault.HintOf(err) == "" {
		t.Errorf("%v", err)
	}
	c.Close()
	if _, err := l.Observe(t.Context(), []string{"x"}); !fault.Is(err, fault.Unavailable) {
		t.Errorf("%v", err)
	}
}

func TestObserve(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	l := c.launcher(t, nil)
	failed := func(kind, message string) *job {
		return &job{Status: "FAILED", ErrorType: kind, Message: message, Start: 1_700_000_000_000, End: 1_700_000_001_500}
	}
	const command = "JOB_ENTRYPOINT_COMMAND_ERROR"
	for id, x := range map[string]struct {
		j      *job
		state  engine.State
		reason engine.Reason
		says   string // in Message or Words
	}{
		"pending":    {&job{Status: "PENDING", Message: "Job has not started yet."}, engine.Pending, "", "has not started"},
		"running":    {&job{Status: "RUNNING"}, engine.Running, "", ""},
		"waiting":    {&job{Status: "RUNNING"}, engine.Pending, "", "no capacity now for 1 × (1 CPU), 2 × (4 CPU, 1 GPU, 2GiB memory) together"},
		"infeasible": {&job{Status: "RUNNING"}, engine.Pending, "", "no node of this Ray cluster can ever fit 1 × (99 CPU)"},
		"done":       {&job{Status: "SUCCEEDED", Message: "Job finished successfully."}, engine.Ended, engine.Exited, ""},
		"stopped":    {&job{Status: "STOPPED"}, engine.Ended, engine.Stopped, "stopped on Ray"},
		"node": {
			failed(command, "Job entrypoint command failed with exit code 1, last available logs (truncated to 20,000 chars):\n(run_agent pid=1) x\nfalaj-verdict {\"reason\": \"node_failed\", \"message\": \"worker 1: Ray lost n2\"}\n"),
			engine.Ended, engine.NodeFailed, "Ray lost n2",
		},
		"oom":         {failed(command, `falaj-verdict {"reason": "out_of_memory", "message": "m"}`), engine.Ended, engine.OutOfMemory, "m"},
		"agent":       {failed(command, `falaj-verdict {"reason": "agent_failed", "message": "ended with 1"}`), engine.Ended, engine.Exited, "ended with 1"},
		"killed":      {failed(command, `falaj-verdict {"reason": "killed", "message": "ended with 137"}`), engine.Ended, engine.Signalled, "ended with 137"},
		"half":        {failed(command, `falaj-verdict {"reason": "node_fa`), engine.Ended, engine.NodeFailed, "without a message"},
		"diaries":     {failed(command, "Killed\n[2026-11-21 23:21:34,214 I 295 295] (raylet) worker_pool.cc:811: Job 02000000 already started"), engine.Ended, engine.NodeFailed, "without a message: Killed"},
		"no ray":      {failed(command, "…\nModuleNotFoundError: No module named 'ray'\n"), engine.Ended, engine.NotStarted, "option python"},
		"no python":   {failed(command, "…\nbash: line 1: /no/python: not found"), engine.Ended, engine.NotStarted, "option python"},
		"environment": {failed("RUNTIME_ENV_SETUP_FAILED", "runtime_env setup failed: disk full"), engine.Ended, engine.NotStarted, "disk full"},
		"supervisor":  {failed("JOB_SUPERVISOR_ACTOR_DIED", "The actor died because its node has died."), engine.Ended, engine.NodeFailed, "its node has died"},
		"early stop":  {failed("JOB_SUPERVISOR_ACTOR_DIED", "The actor is dead because its worker process has died. Worker exit type: INTENDED_USER_EXIT"), engine.Ended, engine.Stopped, "stopped"},
		"absent":      {nil, engine.Lost, "", ""},
		"new":         {&job{Status: "DREAMING"}, engine.Lost, "", "DREAMING"},
	} {
		if x.j != nil {
			x.j.ID, x.j.Metadata = id, map[string]string{"falaj": "ours"}
			c.jobs[id] = x.j
		}
		c.groups = `[{"name": "waiting", "state": "PENDING", "bundles": [{"unit_resources": {"CPU": 4, "GPU": 1, "memory": 2147483648}}, {"unit_resources": {"CPU": 1}},
			{"unit_resources": {"CPU": 4, "GPU": 1, "memory": 2147483648}}], "stats": {"scheduling_state": "QUEUED"}},
			{"name": "infeasible", "state": "PENDING", "bundles": [{"unit_resources": {"CPU": 99}}], "stats": {"scheduling_state": "INFEASIBLE"}}]`
		all, err := l.Observe(t.Context(), []string{id})
		check(t, err)
		o := all[id]
		if o.State != x.state || o.Reason != x.reason || !strings.Contains(strings.Join(o.Words, " ")+o.Message, x.says) {
			t.Errorf("%s: %+v", id, o)
		}
		if x.j != nil && x.j.End > 0 && o.Ended.Sub(o.Started).Milliseconds() != 1500 {
			t.Errorf("%s: %+v", id, o)
		}
	}
}

func TestInventory(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	l := c.launcher(t, nil)
	c.jobs["att_1"] = &job{ID: "att_1", Status: "RUNNING", Metadata: map[string]string{"falaj": "ours"}}
	c.groups = `[{"name": "att_1", "state": "CREATED", "bundles": [{"node_id": "bb", "unit_resources": {"CPU": 2, "GPU": 1, "memory": 1073741824}}]},
		{"name": "theirs", "state": "CREATED", "bundles": [{"node_id": "bb", "unit_resources": {"CPU": 3}}]}]`
	nodes, err := l.Inventory(t.Context(), map[string]string{"exclude": "n1"})
	check(t, err)
	small := resource.Amount{CPU: 2000, Memory: 1024, Accelerators: map[string]int64{}}
	want := []engine.Node{
		{Name: "cc", Amount: small, Labels: map[string]string{"ip": "10.0.0.3", "ray.io/node-id": "cc", "zone": "b"}},
		{Name: "dd", Amount: small, Labels: map[string]string{"ip": "10.0.0.3", "ray.io/node-id": "dd", "zone": "b"}},
		{
			Name: "n1", Amount: resource.Amount{CPU: 5000, Memory: 8 * resource.GiB, Accelerators: map[string]int64{"nvidia.com/gpu": 2, "fpga": 2}},
			Labels: map[string]string{"ip": "10.0.0.2", "ray.io/node-id": "bb", "zone": "a"}, Down: "excluded by the pool's option exclude",
			Busy: "other work on Ray holds 3 of 8 CPU, 2 of 4 GPU",
		},
	}
	if d := cmp.Diff(want, nodes); d != "" {
		t.Error(d)
	}
	if nodes, err = l.Inventory(t.Context(), map[string]string{"labels": "zone=b"}); err != nil || len(nodes) != 2 {
		t.Errorf("%+v %v", nodes, err)
	}
}

func TestBundle(t *testing.T) {
	t.Parallel()
	got := bundle(resource.Amount{Accelerators: map[string]int64{"nvidia.com/h100": 2, "nvidia.com/mig-1g.10gb": 1, "google.com/tpu": 4, "fpga": 1, "amd.com/gpu": 0}})
	want := map[string]float64{"CPU": 0.001, "GPU": 2, "accelerator_type:H100": 0.001, "nvidia.com/mig-1g.10gb": 1, "TPU": 4, "fpga": 1}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

// FuzzFailure: whatever a job's log ends with, a failure has a reason and words.
func FuzzFailure(f *testing.F) {
	f.Add("JOB_ENTRYPOINT_COMMAND_ERROR", `falaj-verdict {"reason": "node_failed", "message": "x"}`)
	f.Add("", "falaj-verdict {} falaj-verdict {")
	f.Fuzz(func(t *testing.T, kind, message string) {
		if r, words := failure(job{ErrorType: kind, Message: message}); r == "" || words == "" {
			t.Errorf("%q %q", r, words)
		}
	})
}
