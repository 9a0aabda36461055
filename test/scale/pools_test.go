package scale

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/client"
	"github.com/falaj-ml/falaj/test/live"
)

// on is how many replicas the deployment says answer on a pool.
func (w world) on(pool string) int {
	w.T.Helper()
	var d client.Object
	w.Must(w.C.Do(w.T.Context(), http.MethodGet, w.Path("deployments/d"), nil, &d))
	targets, _ := d["targets"].([]any)
	if len(targets) == 0 {
		return 0
	}
	on, _ := targets[0].(map[string]any)["replicas_on"].(map[string]any)
	n, _ := strconv.Atoi(fmt.Sprint(on[pool]))
	return n
}

func (w world) placed(pool string, replicas int) {
	w.T.Helper()
	w.T.Cleanup(func() {
		if w.T.Failed() {
			w.T.Log(w.scaling())
		}
	})
	w.Eventually("there are not "+strconv.Itoa(replicas)+" replicas on "+pool, func() (bool, error) { return w.on(pool) == replicas, nil })
}

// scaling is what the deployment says of its replicas.
func (w world) scaling() string {
	out, _ := w.Command(w.T.Context(), "get", "deployment", "d", "-p", w.Name, "-o", "json")
	return out
}

// replicas are the processes on other pools, of this machine: those that call a server.
func (w world) replicas() (pids []int) {
	w.T.Helper()
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	w.Must(err)
	for _, file := range lines {
		line, _ := os.ReadFile(file)
		args := strings.Split(string(line), "\x00")
		if len(args) < 4 || args[0] != w.Bin.Falaj || args[1] != "child" || args[2] != "replica" {
			continue
		}
		environ, _ := os.ReadFile(filepath.Join(filepath.Dir(file), "environ"))
		if strings.Contains(string(environ), "FALAJ_PROJECT="+w.Name+"\x00") {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(file)))
			pids = append(pids, pid)
		}
	}
	return pids
}

// pool makes one beside home whose engine runs its work on this machine.
func (w world) pool(name, more string) {
	w.T.Helper()
	w.Apply("{api_version: falaj/v1, kind: Pool, name: " + name + ", spec: {" + more + "nodes: [{name: n1, cpu: 2, memory: 4GiB}]}}")
}

// TestPools: replicas on another pool answer, share its places, are replaced when they
// are killed, and end with the server that is killed, and with the deployment.
func TestPools(t *testing.T) {
	w := begin(t, "runtime: {memory: 512MiB}, scale: {min: 1}")
	w.pool("far", "")
	w.change("runtime: {memory: 512MiB}, scale: {min: 3, max: 3, pools: [far]}")
	w.placed("far", 2)
	if n := len(w.replicas()); n != 2 || len(w.processes()) != 1 {
		t.Fatalf("%d replicas on the pool, %d at the server", n, len(w.processes()))
	}
	var answered, parted atomic.Int64
	const clients = 6
	stop := live.Load(t, clients, func(c, n int) bool {
		a, err := w.Infer(w.C, "d", nil, live.Tensor("X", "FP32", []float64{float64(c), float64(n % 50)}, 1, 2))
		switch {
		case err == nil && len(a.Outputs) > 0:
			answered.Add(1)
		case err != nil && strings.Contains(err.Error(), "the model's replica ended"):
			parted.Add(1)
		default:
			t.Error(err)
		}
		return true
	})
	for range 2 {
		pids := w.replicas()
		if len(pids) == 0 {
			t.Fatal("no replica is left")
		}
		w.Must(syscall.Kill(pids[0], syscall.SIGKILL))
		w.Eventually("it is not replaced", func() (bool, error) { return w.on("far") == 2 && len(w.replicas()) == 2, nil })
	}
	stop()
	t.Logf("%d answers, %d lost with a replica", answered.Load(), parted.Load())
	if n := parted.Load(); n > 2*clients || answered.Load() == 0 {
		t.Errorf("%d requests failed for two lost replicas, of %d", n, answered.Load())
	}
	w.Must(w.Kill())
	w.Eventually("replicas outlive a server that was killed", func() (bool, error) { return len(w.replicas()) == 0, nil })
	w.Again()
	w.placed("far", 2)
	if err := w.ask(); err != nil {
		t.Error(err)
	}
	w.change("runtime: {memory: 512MiB}, scale: {min: 2, max: 2, pools: [far]}")
	w.placed("far", 1)
	w.Must(w.C.Do(t.Context(), http.MethodDelete, w.Path("deployments/d"), nil, nil))
	w.Eventually("a replica is left", func() (bool, error) { return len(w.replicas()) == 0, nil })
	if err := w.Stop(); err != nil {
		t.Error(err)
	}
}

// TestPoolsStop: a server that is told to end does not wait for replicas elsewhere, which
// end with their connections, and begins anew.
func TestPoolsStop(t *testing.T) {
	w := begin(t, "scale: {min: 1}")
	w.pool("far", "")
	w.change("runtime: {memory: 512MiB}, scale: {min: 2, max: 2, pools: [far]}")
	w.placed("far", 1)
	began := time.Now()
	if err := w.Stop(); err != nil {
		t.Errorf("%v: %s", err, w.LogTail(20))
	}
	t.Logf("it took %s", time.Since(began))
	w.Eventually("replicas outlive their server", func() (bool, error) { return len(w.replicas()) == 0, nil })
	w.Again()
	w.placed("far", 1)
}

// TestPoolsCall: only a replica's own token opens its connection, for its own workload,
// and only once; and it is good for nothing else.
func TestPoolsCall(t *testing.T) {
	w := begin(t, "scale: {min: 1}")
	w.pool("far", "")
	w.change("runtime: {memory: 512MiB}, scale: {min: 3, max: 3, pools: [far]}")
	w.placed("far", 2)
	var tokens, workloads []string
	for _, pid := range w.replicas() {
		environ, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "environ"))
		w.Must(err)
		for v := range strings.SplitSeq(string(environ), "\x00") {
			if token, ok := strings.CutPrefix(v, "FALAJ_TOKEN="); ok {
				tokens = append(tokens, token)
			}
			if id, ok := strings.CutPrefix(v, "FALAJ_WORKLOAD="); ok {
				workloads = append(workloads, id)
			}
		}
	}
	if len(tokens) != 2 || len(workloads) != 2 {
		t.Fatalf("%d tokens of %v, %v", len(tokens), workloads, w.replicas())
	}
	call := func(token, project, workload, upgrade string) (status int, said string) {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, w.URL+"/api/v1/projects/"+project+"/workloads/"+workload+"/replica", http.NoBody)
		w.Must(err)
		r.Header.Set("Authorization", "Bearer "+token)
		r.Header.Set("Connection", "Upgrade")
		r.Header.Set("Upgrade", upgrade)
		resp, err := http.DefaultTransport.RoundTrip(r)
		w.Must(err)
		defer resp.Body.Close()
		if resp.StatusCode == http.StatusSwitchingProtocols {
			return resp.StatusCode, ""
		}
		b, err := io.ReadAll(resp.Body)
		w.Must(err)
		return resp.StatusCode, string(b)
	}
	other := w.Server.Project(t, "elsewhere")
	const protocol = "falaj-replica"
	for _, c := range []struct {
		what, token, project, workload, upgrade string
		status                                  int
	}{
		{"its second call", tokens[0], w.Name, workloads[0], protocol, http.StatusConflict},
		{"as another replica", tokens[0], w.Name, workloads[1], protocol, http.StatusForbidden},
		{"as one of another project", tokens[0], other.Name, workloads[0], protocol, http.StatusNotFound}, // its token is of one
		{"as one that there is not", tokens[0], w.Name, "rep_01J00000000000000000000000", protocol, http.StatusForbidden},
		{"an administrator", w.Token, w.Name, workloads[0], protocol, http.StatusForbidden},
		{"without a token", "", w.Name, workloads[0], protocol, http.StatusUnauthorized},
		{"with another protocol", tokens[0], w.Name, workloads[0], "websocket", http.StatusBadRequest},
	} {
		if status, said := call(c.token, c.project, c.workload, c.upgrade); status != c.status {
			t.Errorf("%s: %d %s", c.what, status, said)
		}
	}
	own := w.ClientWith(t, tokens[0])
	for _, path := range []string{"deployments/d", "models/alien", "models/alien/versions/1", "jobs", "workloads"} {
		if err := own.Do(t.Context(), http.MethodGet, w.Path(path), nil, nil); err == nil {
			t.Errorf("a replica's token reads %s", path)
		}
	}
	if _, err := w.Infer(own, "d", nil, live.Tensor("X", "FP32", []float64{1, 2}, 1, 2)); err == nil {
		t.Error("a replica's token asks the model")
	}
	if w.on("far") != 2 { // nobody has been disturbed
		t.Error(w.scaling())
	}
	w.Must(w.C.Do(t.Context(), http.MethodDelete, w.Path("deployments/d"), nil, nil))
	w.Eventually("the token of a replica that has ended is good for something", func() (bool, error) {
		status, said := call(tokens[0], w.Name, workloads[0], protocol)
		return status == http.StatusUnauthorized, errors.New(said)
	})
}
