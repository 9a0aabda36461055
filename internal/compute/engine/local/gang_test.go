package local

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/falaj-ml/falaj/internal/compute/engine"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/resource"
	"github.com/falaj-ml/falaj/internal/worker/launch"
	"github.com/falaj-ml/falaj/internal/worker/protocol"
)

func TestGangOf(t *testing.T) {
	t.Parallel()
	s := engine.Spec{
		ID: "att_1", Command: []string{"/x/python", "train.py"}, Dir: "/work", Workers: 2, Grace: time.Second,
		Env:       map[string]string{"HOME": "/scratch", "TMPDIR": "/scratch/tmp", "OTHER": "/scratches"},
		Mounts:    []engine.Mount{{Path: "/work", Writable: true}, {Path: "/scratch", Writable: true, Role: engine.Scratch}},
		Resources: resource.Amount{CPU: resource.Cores(1), Memory: resource.GiB, Accelerators: map[string]int64{"nvidia.com/gpu": 2}},
	}
	want := protocol.Gang{
		Launch: launch.Spec{Command: s.Command, Run: "att_1"}, Dir: "/work", Grace: time.Second, Report: "/g/members.json",
		Members: []protocol.GangMember{
			{Env: map[string]string{"HOME": "/scratch/worker-0", "TMPDIR": "/scratch/worker-0/tmp", "CUDA_VISIBLE_DEVICES": "GPU-a"}, CPUs: []int{3}},
			{Env: map[string]string{"HOME": "/scratch/worker-1", "TMPDIR": "/scratch/worker-1/tmp"}, CPUs: []int{5}},
		},
	}
	if diff := cmp.Diff(want, gangOf(s, "/g", [][]int{{3}, {5}}, []map[string]string{{"CUDA_VISIBLE_DEVICES": "GPU-a"}})); diff != "" {
		t.Error(diff)
	}
	all := resource.Amount{CPU: resource.Cores(2), Memory: 2 * resource.GiB, Accelerators: map[string]int64{"nvidia.com/gpu": 4}}
	if diff := cmp.Diff(all, s.Total()); diff != "" || s.Resources.Accelerators["nvidia.com/gpu"] != 2 {
		t.Error(diff)
	}
}

func TestSupervised(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		spec engine.Spec
		want bool
	}{
		{engine.Spec{}, false},
		{engine.Spec{Workers: 1, Launch: launch.Spec{Framework: launch.Plain}}, false},
		{engine.Spec{Workers: 2}, true},
		{engine.Spec{Secrets: true}, true},
		{engine.Spec{Launch: launch.Spec{Framework: launch.Torchrun}}, true},
		{engine.Spec{Launch: launch.Spec{Processes: 2}}, true},
		{engine.Spec{Launch: launch.Spec{Roles: []launch.Role{{Name: "chief", Workers: 1}}}}, true},
	} {
		if got := supervised(tt.spec); got != tt.want {
			t.Errorf("%+v: %v", tt.spec, got)
		}
	}
}

func TestCheckGang(t *testing.T) {
	t.Parallel()
	command := []string{"/bin/true"}
	for name, s := range map[string]engine.Spec{
		"negative":      {Command: command, Workers: -1},
		"too many":      {Command: command, Workers: maxMembers + 1},
		"two nodes":     {Command: command, Workers: 2, Nodes: []string{"a", "b"}},
		"no framework":  {Command: command, Launch: launch.Spec{Framework: "magic"}},
		"no python":     {Command: command, Launch: launch.Spec{Framework: launch.Torchrun}},
		"two processes": {Command: command, Launch: launch.Spec{Processes: 2}},
	} {
		if err := checkGang(s); !fault.Is(err, fault.Invalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := checkGang(engine.Spec{Command: command, Workers: 3, Nodes: []string{"local", "local", "local"}}); err != nil {
		t.Error(err)
	}
}

// TestReport has the supervisor's type read as the driver's.
func TestReport(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	b, err := json.Marshal([]protocol.Member{
		{State: "running", Started: at, CPU: time.Second, PeakRSS: 5, Usage: protocol.Usage{CPU: 1.5, Memory: 4}},
		{Index: 1, State: "ended", Reason: "exited", ExitCode: 3, Ended: at},
	})
	if err != nil {
		t.Fatal(err)
	}
	got, err := parseReport(b)
	want := []engine.Member{
		{State: engine.Running, Started: at, CPU: time.Second, PeakRSS: 5, Usage: engine.Usage{CPU: 1.5, Memory: 4}},
		{Index: 1, State: engine.Ended, Reason: engine.Exited, ExitCode: 3, Ended: at},
	}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("%v\n%s", err, diff)
	}
}

func FuzzReport(f *testing.F) {
	f.Add([]byte(`[{"index":0,"state":"running"}]`))
	f.Add([]byte(`[{"index":1,"state":"running"}]`))
	f.Add([]byte(`[{"index":0,"state":"running","cpu_ns":-1}]`))
	f.Add([]byte(`{}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		all, err := parseReport(b)
		for i, m := range all {
			if err == nil && (m.Index != i || m.State == "") {
				t.Errorf("%s: %+v", b, m)
			}
		}
	})
}
