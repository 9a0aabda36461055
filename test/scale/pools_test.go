package scale

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

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
	var all sync.WaitGroup
	var answered, parted, other atomic.Int64
	done := make(chan struct{})
	for c := range 6 {
		all.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-done:
					return
				default:
				}
				x, y := float64(c), float64(n%50)
				a, err := w.Infer(w.C, "d", nil, live.Tensor("X", "FP32", []float64{x, y}, 1, 2))
				switch {
				case err == nil && len(a.Outputs) > 0:
					answered.Add(1)
				case err != nil && strings.Contains(err.Error(), "the model's replica ended"):
					parted.Add(1)
				default:
					other.Add(1)
					t.Error(err)
				}
			}
		})
	}
	for range 2 {
		pids := w.replicas()
		if len(pids) == 0 {
			t.Fatal("no replica is left")
		}
		w.Must(syscall.Kill(pids[0], syscall.SIGKILL))
		w.Eventually("it is not replaced", func() (bool, error) { return w.on("far") == 2 && len(w.replicas()) == 2, nil })
	}
	close(done)
	all.Wait()
	t.Logf("%d answers, %d lost with a replica", answered.Load(), parted.Load())
	if n := parted.Load(); n > 2*6 || answered.Load() == 0 {
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
