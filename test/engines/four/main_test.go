// Package four runs one manifest, examples/digits-ddp, on all four engines of one
// Falaj: this machine, a Slurm of four virtual nodes, a Kubernetes with a kubelet
// and a Ray, with real PyTorch. What the job learns is the same on each, and the
// same when workers are killed, nodes are lost, the gang is resized and the job
// goes on with another engine.
//
//   - world_test.go: the engines and the server.
//   - four_test.go: what is done to the jobs.
//
// The engines stand in the namespaces of kubetest, and end with the test.
package four

import (
	"flag"
	"os"
	"testing"

	"github.com/falaj-ml/falaj/internal/compute/engine/kube/kubetest"
)

func TestMain(m *testing.M) {
	_ = flag.Set("test.parallel", "4") // they wait more than they compute
	os.Exit(kubetest.Main(m))
}
