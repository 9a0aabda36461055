package local

import (
	"errors"
	"maps"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/falaj-ml/falaj/internal/compute/engine"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/machine"
	"github.com/falaj-ml/falaj/internal/resource"
	"github.com/falaj-ml/falaj/internal/sandbox"
)

// shared is a simulated inventory: two GPUs for one process at a time, and one
// for all.
type shared struct{ machine.None }

func (shared) List() ([]machine.Accelerator, error) {
	one := machine.Accelerator{Resource: "nvidia.com/gpu", UUID: "GPU-0", Memory: 80 * resource.GiB, Exclusive: true}
	two, open := one, one
	two.UUID, open.UUID, open.Exclusive = "GPU-1", "GPU-2", false
	return []machine.Accelerator{open, one, two}, nil
}

func TestShares(t *testing.T) {
	t.Parallel()
	options := map[string]string{"sharing": "mps", "shares": "4", "mps_pipe": "/run/mps"}
	ask := func(project string, workers int) engine.Spec {
		s := asking(workers, map[string]int64{"nvidia.com/gpu.shared": 1})
		s.Project, s.Options = project, options
		return s
	}
	answer, dead := "25.0", error(nil)
	driver := func(live ...*workload) *Driver {
		d := simulated(live...)
		d.c.Accelerators = shared{}
		d.askMPS = func(pipe, command string) (string, error) {
			if pipe != "/run/mps" || command != "get_default_active_thread_percentage" {
				t.Errorf("asked %s for %s", pipe, command)
			}
			return answer, dead
		}
		return d
	}
	env := map[string]string{}
	if _, _, remember, err := driver().equip(ask("p", 1), sandbox.Process, env); err != nil || cmp.Diff([][]string{{"GPU-0"}}, remember) != "" {
		t.Fatalf("%v %v", remember, err)
	}
	want := map[string]string{
		"CUDA_VISIBLE_DEVICES": "GPU-0", "NVIDIA_VISIBLE_DEVICES": "GPU-0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
		"CUDA_MPS_PIPE_DIRECTORY": "/run/mps", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "25", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=20480M",
	}
	if diff := cmp.Diff(want, env); diff != "" {
		t.Error(diff)
	}

	if diff := cmp.Diff([]sandbox.Mount{{Path: "/run/mps", Writable: true}}, pipes(ask("p", 1))); diff != "" {
		t.Error(diff)
	}
	if whole := (engine.Spec{Options: options}); pipes(whole) != nil {
		t.Error("the pipe is for those who share")
	}

	// Three of four shares of the first are another project's, the second is taken whole.
	other := func() *workload {
		return &workload{handle: "att_0", extras: extras{Project: "q", Shared: true, Devices: [][]string{{"GPU-0"}, {"GPU-0"}, {"GPU-0"}}}}
	}
	whole := &workload{handle: "att_w", extras: extras{Project: "p", Devices: [][]string{{"GPU-1"}}}}
	if _, _, _, err := driver(other(), whole).equip(ask("p", 1), sandbox.Process, env); !fault.Is(err, fault.Unavailable) || !strings.Contains(err.Error(), "another project") {
		t.Errorf("beside another project: %v", err)
	}
	if _, _, remember, err := driver(other()).equip(ask("p", 1), sandbox.Process, env); err != nil || remember[0][0] != "GPU-1" {
		t.Errorf("a GPU of its own: %v %v", remember, err)
	}
	if _, _, _, err := driver(other()).equip(asking(3, map[string]int64{"nvidia.com/gpu": 1}), sandbox.Process, env); !fault.Is(err, fault.Unavailable) {
		t.Errorf("a whole GPU that is shared: %v", err)
	}
	if _, _, remember, err := driver(other()).equip(ask("q", 2), sandbox.Process, env); err != nil || cmp.Diff([][]string{{"GPU-0"}, {"GPU-1"}}, remember) != "" {
		t.Errorf("a gang of the same project: %v %v", remember, err)
	}
	across := maps.Clone(options)
	across["share_across"] = "projects"
	s := ask("p", 1)
	s.Options = across
	if _, _, remember, err := driver(other()).equip(s, sandbox.Process, env); err != nil || remember[0][0] != "GPU-0" {
		t.Errorf("across projects: %v %v", remember, err)
	}

	// Refused, each with its reason.
	refuse := func(name, words string, d *Driver, s engine.Spec, level sandbox.Level) {
		t.Helper()
		_, _, _, err := d.equip(s, level, map[string]string{})
		if err == nil || !strings.Contains(err.Error(), words) || fault.HintOf(err) == "" {
			t.Errorf("%s: %v", name, err)
		}
	}
	refuse("a sandbox", "does not allow shares", driver(), ask("p", 1), sandbox.Sandbox)
	s = ask("p", 1)
	s.Options = nil
	refuse("a pool that shares nothing", "nothing enforces a share", driver(), s, sandbox.Process)
	s = ask("p", 1)
	s.Resources.Accelerators = map[string]int64{"nvidia.com/gpu.shared": 2}
	refuse("two shares", "one share", driver(), s, sandbox.Process)
	d := driver()
	d.c.Accelerators = rack{}
	refuse("a GPU for all", "exclusive process", d, ask("p", 1), sandbox.Process)
	answer = "100.0"
	refuse("a daemon without limits", "is not enforced", driver(), ask("p", 1), sandbox.Process)
	if err := driver().Check(options); !fault.Is(err, fault.Unsupported) {
		t.Errorf("such a pool: %v", err)
	}
	dead = errors.New("no such file")
	refuse("no daemon", "no MPS control daemon", driver(), ask("p", 1), sandbox.Process)
	for _, bad := range []map[string]string{
		{"sharing": "time"},
		{"sharing": "mps"},
		{"sharing": "mps", "shares": "1"},
		{"sharing": "mps", "shares": "49"},
		{"shares": "2"},
		{"sharing": "mps", "shares": "2", "mps_pipe": "a"},
		{"sharing": "mps", "shares": "2", "share_across": "all"},
	} {
		if err := CheckOptions(bad); !fault.Is(err, fault.Invalid) {
			t.Errorf("%v: %v", bad, err)
		}
	}
	if _, err := askMPS(t.TempDir(), "x"); err == nil {
		t.Error("something answers where nobody is")
	}
}
