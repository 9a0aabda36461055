package compute

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/falaj-ml/falaj/internal/machine"
	"github.com/falaj-ml/falaj/internal/resource"
)

func TestOffered(t *testing.T) {
	t.Parallel()
	f := machine.Facts{Memory: 24*resource.GiB + 5, Accelerators: []machine.Accelerator{{Resource: "nvidia.com/gpu"}, {Resource: "nvidia.com/gpu"}}}
	for limit, memory := range map[string]resource.Bytes{"": 24 * resource.GiB, "max\n": 24 * resource.GiB, "1073741824\n": resource.GiB, "99999999999999\n": 24 * resource.GiB} {
		got, err := offered(f, 3, limit)
		want := resource.Amount{CPU: resource.Cores(3), Memory: memory, Accelerators: map[string]int64{"nvidia.com/gpu": 2}}
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("limit %q: %v %s", limit, err, diff)
		}
	}
	if _, err := offered(machine.Facts{}, 1, ""); err == nil {
		t.Error("a machine without memory")
	}
	here, err := Machine(machine.Read("/"))
	if err != nil || here.CPU <= 0 || here.Memory <= 0 {
		t.Errorf("%+v, %v", here, err)
	}
}
