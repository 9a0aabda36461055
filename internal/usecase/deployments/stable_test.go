package deployments

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/feature/naming"
	"github.com/falaj-ml/falaj/internal/serving"
	"github.com/falaj-ml/falaj/internal/training/score"
)

// What is tried beside it answers no dataset, and what another server runs answers none at
// all.
func TestStableOf(t *testing.T) {
	d := serving.Deployment{
		Name: "late", Model: "delay", Version: 3, Trials: []serving.Trial{{Role: serving.Canary, Version: 4, Weight: 90}},
		Spec: serving.Spec{Threads: 2, Features: &serving.FeaturesSpec{Input: "X", Columns: []string{"minute", "weather:temp", "plane@2:seats"}}},
	}
	known := []naming.Column{{Name: "temp", Feature: "weather@3:temp"}, {Name: "minute"}, {Name: "plane__seats", Feature: "plane@2:seats"}, {Name: "sea__temp", Feature: "sea@1:temp"}}
	got, err := stableOf(d, known)
	want := score.Target{Model: "delay", Version: 3, Threads: 2, Columns: map[string][]string{"X": {"minute", "temp", "plane__seats"}}}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	d.Spec.Features.Columns = []string{"origin:temp", "dest:temp"}
	if got, err = stableOf(d, []naming.Column{{Name: "temp"}, {Name: "x"}}); err != nil || strings.Join(got.Columns["X"], " ") != "origin__temp dest__temp" {
		t.Errorf("a name that says two things is no column of either: %+v %v", got, err)
	}
	d.Spec.Runtime = &serving.RuntimeSpec{Remote: serving.RemoteSpec{Name: "triton"}}
	if got, err = stableOf(d, nil); !fault.Is(err, fault.Unsupported) || fault.HintOf(err) == "" {
		t.Errorf("of another server: %+v %v", got, err)
	}
}
