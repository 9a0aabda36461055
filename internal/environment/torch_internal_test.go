package environment

import (
	"testing"

	"github.com/falaj-ml/falaj/internal/compute"
)

// TestWithoutGPU: only where all nodes are known, and none has an accelerator.
func TestWithoutGPU(t *testing.T) {
	t.Parallel()
	node := func(accelerators map[string]int64) compute.PoolNode {
		return compute.PoolNode{Node: compute.Node{Name: "n", Accelerators: accelerators}}
	}
	plain := compute.Pool{Name: "plain", Nodes: []compute.PoolNode{node(nil), node(map[string]int64{"nvidia.com/gpu": 0})}}
	for name, c := range map[string]struct {
		pools []compute.Pool
		want  bool
	}{
		"no pool":         {want: false},
		"CPUs":            {[]compute.Pool{plain, plain}, true},
		"a GPU":           {[]compute.Pool{plain, {Nodes: []compute.PoolNode{node(nil), node(map[string]int64{"nvidia.com/gpu": 2})}}}, false},
		"one of AMD":      {[]compute.Pool{{Nodes: []compute.PoolNode{node(map[string]int64{"amd.com/gpu": 1})}}}, false},
		"not known":       {[]compute.Pool{plain, {Name: "slurm"}}, false},
		"rented when due": {[]compute.Pool{plain, {Nodes: []compute.PoolNode{node(nil)}, Elastic: &compute.Elastic{}}}, false},
	} {
		if got := withoutGPU(c.pools); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
