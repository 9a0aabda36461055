package machine

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/falaj-ml/falaj/internal/resource"
)

func TestAllocatable(t *testing.T) {
	t.Parallel()
	f := Facts{Memory: 24*resource.GiB + 5, Accelerators: []Accelerator{{Resource: "nvidia.com/gpu"}, {Resource: "nvidia.com/gpu"}}}
	for limit, memory := range map[string]resource.Bytes{"": 24 * resource.GiB, "max\n": 24 * resource.GiB, "1073741824\n": resource.GiB, "99999999999999\n": 24 * resource.GiB} {
		got, err := f.allocatable(3, limit)
		want := resource.Amount{CPU: resource.Cores(3), Memory: memory, Accelerators: map[string]int64{"nvidia.com/gpu": 2}}
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("limit %q: %v %s", limit, err, diff)
		}
	}
	if _, err := (&Facts{}).allocatable(1, ""); err == nil {
		t.Error("a machine without memory")
	}
	here := Read("/")
	got, err := here.Allocatable()
	if err != nil || got.CPU <= 0 || got.Memory <= 0 {
		t.Errorf("%+v, %v", got, err)
	}
}
