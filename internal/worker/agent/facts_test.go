package agent

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/falaj-ml/falaj/internal/machine"
	"github.com/falaj-ml/falaj/internal/worker/protocol"
)

func TestFacts(t *testing.T) {
	t.Parallel()
	f := facts(t.Context())
	for _, name := range []string{machine.LabelArchitecture, machine.LabelKernel, machine.LabelCores} {
		if f[name] == "" {
			t.Errorf("no %s in %v", name, f)
		}
	}
	for text, want := range map[string]map[string]string{
		"550.54.15, 9.0, NVIDIA H100 80GB HBM3, 81559\n550.54.15, 7.0, Tesla V100, 16384\n": {
			machine.LabelDriver: "550.54.15", machine.LabelCompute: "7.0", machine.LabelGPU: "Tesla V100", machine.LabelGPUs: "2",
		},
		"No devices were found\n": {}, "": {}, "a, b, c, d\n": {},
	} {
		got := map[string]string{}
		gpuFacts(got, text)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%q: %s", text, diff)
		}
	}
}

func TestParseSMI(t *testing.T) {
	t.Parallel()
	got := parseSMI("0, NVIDIA H100, 87, 40536, 512.30, 61\n1, GRID A100, [N/A], 1024, [N/A], 50\nNo devices were found\n")
	want := []protocol.Accelerator{
		{Name: "NVIDIA H100", Utilisation: new(0.87), Memory: 40536 << 20, Watts: 512.3, Celsius: 61},
		{Name: "GRID A100", Index: 1, Memory: 1 << 30, Celsius: 50},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
