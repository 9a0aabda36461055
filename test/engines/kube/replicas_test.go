package kube_test

import (
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/falaj-ml/falaj/client"
	"github.com/falaj-ml/falaj/internal/compute/engine/kube/kubetest"
	"github.com/falaj-ml/falaj/test/live"
)

// TestReplicas are those of a served model, in pods: they are given their model over the
// connection by which they call, answer, are replaced when their pod is deleted, and end
// with the deployment.
func TestReplicas(t *testing.T) {
	c, s := up(t)
	x := &site{s.Project(t, "p")}
	x.Apply(pool("pods", c.Import("torch"))) // it has the C library that the server's binary needs
	x.Register("m", x.Logistic())
	x.Apply(`{api_version: falaj/v1, kind: Deployment, name: d, project: PROJECT, spec: {model: m, version: "1", runtime: {memory: 512MiB}, scale: {min: 2, max: 2, pools: [pods]}}}`)
	x.Eventually("no replica answers in a pod", x.on("d", "pods", 1))

	done := make(chan struct{})
	var all sync.WaitGroup
	var answered, failed atomic.Int64
	for range 4 {
		all.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				if a, err := x.Infer(x.C, "d", nil, live.Tensor("X", "FP32", []float64{1, 2}, 1, 2)); err != nil || len(a.Outputs) == 0 {
					failed.Add(1)
				} else {
					answered.Add(1)
				}
			}
		})
	}
	c.Kubectl("delete", "pods", "--all", "-n", kubetest.Namespace, "--grace-period=0", "--force")
	x.Eventually("the replica whose pod was deleted is still counted", x.on("d", "pods", 0))
	x.Eventually("it is not replaced", x.on("d", "pods", 1))
	close(done)
	all.Wait()
	t.Logf("%d answers, %d lost with the pod", answered.Load(), failed.Load())
	if answered.Load() == 0 || failed.Load() > 2 { // one runs in the pod, and one is on its way
		t.Errorf("%d answers, %d failed with one pod", answered.Load(), failed.Load())
	}
	x.Must(x.C.Do(t.Context(), http.MethodDelete, x.Path("deployments/d"), nil, nil))
	x.Eventually("a replica is left", func() (bool, error) {
		return len(c.PodPIDs("replica")) == 0, nil
	})
	t.Log(c.Kubectl("get", "jobs,pods", "-n", kubetest.Namespace, "-o", "wide"))
}

// on reports whether so many replicas answer on a pool.
func (x *site) on(deployment, pool string, n int) func() (bool, error) {
	return func() (bool, error) {
		var d client.Object
		if err := x.C.Do(x.T.Context(), http.MethodGet, x.Path("deployments/"+deployment), nil, &d); err != nil {
			return false, err
		}
		targets, _ := d["targets"].([]any)
		if len(targets) == 0 {
			return false, nil
		}
		target, _ := targets[0].(map[string]any)
		on, _ := target["replicas_on"].(map[string]any)
		answer, _ := strconv.Atoi(fmt.Sprint(on[pool])) // nothing is 0
		return answer == n, fmt.Errorf("it is %v: %v", target["scaling"], on)
	}
}
