package serving

import (
	"strings"
	"testing"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/resource"
)

// TestIsolation: a model runs in the server's process only where the administrator's
// policy names it and the manifest does not forbid it.
func TestIsolation(t *testing.T) {
	signer := strings.Repeat("ab", 32)
	m := Model{Name: "delay", Version: 2, Signer: signer}
	two := &ScaleSpec{Max: 2}
	for name, c := range map[string]struct {
		policy    InProcessPolicy
		isolation Isolation
		scale     *ScaleSpec
		in        bool
		refused   bool
	}{
		"default":                        {},
		"default, auto":                  {isolation: Auto},
		"default, child":                 {isolation: Child},
		"default, in-process":            {isolation: InProcess, refused: true},
		"empty rule":                     {policy: InProcessPolicy{{}}},
		"empty rule, in-process":         {policy: InProcessPolicy{{}}, isolation: InProcess, refused: true},
		"project":                        {policy: InProcessPolicy{{Project: "nyc"}}, in: true},
		"project, in-process":            {policy: InProcessPolicy{{Project: "nyc"}}, isolation: InProcess, in: true},
		"project, child":                 {policy: InProcessPolicy{{Project: "nyc"}}, isolation: Child},
		"project, replicas":              {policy: InProcessPolicy{{Project: "nyc"}}, scale: two},
		"another project":                {policy: InProcessPolicy{{Project: "ny"}}},
		"another project, in-process":    {policy: InProcessPolicy{{Project: "ny"}}, isolation: InProcess, refused: true},
		"model":                          {policy: InProcessPolicy{{Model: "delay"}}, in: true},
		"another model":                  {policy: InProcessPolicy{{Model: "Delay"}}},
		"signer":                         {policy: InProcessPolicy{{Signer: signer}}, in: true},
		"another signer":                 {policy: InProcessPolicy{{Signer: strings.Repeat("cd", 32)}}},
		"all of a rule":                  {policy: InProcessPolicy{{Project: "nyc", Model: "delay", Signer: signer}}, in: true},
		"a part of a rule":               {policy: InProcessPolicy{{Project: "nyc", Model: "other", Signer: signer}}},
		"two rules are not one":          {policy: InProcessPolicy{{Project: "nyc", Model: "other"}, {Project: "other", Model: "delay"}}},
		"the second rule":                {policy: InProcessPolicy{{Project: "other"}, {Model: "delay"}}, in: true},
		"project of a model of its name": {policy: InProcessPolicy{{Project: "delay"}, {Model: "nyc"}}},
	} {
		t.Run(name, func(t *testing.T) {
			s := Spec{Model: "delay", Threads: 3, Scale: c.scale, Runtime: &RuntimeSpec{Isolation: c.isolation, Memory: resource.GiB}}
			o, err := s.options("nyc", m, c.policy)
			if c.refused {
				if !fault.Is(err, fault.PermissionDenied) || !strings.Contains(err.Error(), "serving.in_process") || fault.HintOf(err) == "" {
					t.Errorf("got %v", err)
				}
				return
			}
			if err != nil || o.InProcess != c.in || o.Threads != 3 || o.Memory != resource.GiB {
				t.Errorf("got %+v, %v", o, err)
			}
		})
	}
	unsigned := Model{Name: "delay"} // whatever is not known does not match
	if o, err := (Spec{Model: "delay"}).options("nyc", unsigned, InProcessPolicy{{Signer: signer}}); err != nil || o.InProcess {
		t.Errorf("no signer: %+v, %v", o, err)
	}
	for says, r := range map[string]RuntimeSpec{"isolation": {Isolation: "none"}, "memory": {Memory: resource.MiB}} {
		if err := (Spec{Model: "m", Runtime: &r}).Validate(); !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), "spec.runtime."+says) {
			t.Errorf("%+v: %v", r, err)
		}
	}
}
