package serving

import (
	"strings"
	"testing"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/resource"
)

// TestIsolation: what no job made runs apart, whatever the manifest says.
func TestIsolation(t *testing.T) {
	for _, c := range []struct {
		runtime *RuntimeSpec
		ofJob   bool
		apart   bool
		refused bool
	}{
		{nil, true, false, false},
		{nil, false, true, false},
		{&RuntimeSpec{}, true, false, false},
		{&RuntimeSpec{Isolation: Auto}, false, true, false},
		{&RuntimeSpec{Isolation: Child}, true, true, false},
		{&RuntimeSpec{Isolation: Child}, false, true, false},
		{&RuntimeSpec{Isolation: InProcess}, true, false, false},
		{&RuntimeSpec{Isolation: InProcess}, false, false, true},
	} {
		o, err := Spec{Model: "m", Threads: 3, Runtime: c.runtime}.options(Model{Name: "m", Version: 2, OfJob: c.ofJob})
		if c.refused {
			if !fault.Is(err, fault.Invalid) || fault.HintOf(err) == "" {
				t.Errorf("%+v: %v", c, err)
			}
			continue
		}
		if err != nil || o.Apart != c.apart || o.Threads != 3 {
			t.Errorf("%+v: %+v, %v", c, o, err)
		}
	}
	o, err := Spec{Model: "m", Runtime: &RuntimeSpec{Memory: resource.GiB}}.options(Model{})
	if err != nil || o.Memory != resource.GiB {
		t.Errorf("%+v, %v", o, err)
	}
	for says, r := range map[string]RuntimeSpec{"isolation": {Isolation: "none"}, "memory": {Memory: resource.MiB}} {
		if err := (Spec{Model: "m", Runtime: &r}).Validate(); !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), "spec.runtime."+says) {
			t.Errorf("%+v: %v", r, err)
		}
	}
}
