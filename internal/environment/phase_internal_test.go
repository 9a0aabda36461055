package environment

import (
	"testing"

	"github.com/falaj-ml/falaj/internal/compute"
)

// TestPhase: every state and step of a build has words, and a wait has its reason.
func TestPhase(t *testing.T) {
	t.Parallel()
	waits := []compute.Reason{{Text: "pool home is full"}, {Text: "another reason"}}
	for name, c := range map[string]struct {
		e     Environment
		waits []compute.Reason
		want  string
	}{
		"locking":    {e: Environment{State: Locking, Step: stepLock}, want: "locking its requirements: choosing versions, with hashes"},
		"creating":   {e: Environment{State: Building, Step: stepCreate}, want: "building: creating the Python environment"},
		"installing": {e: Environment{State: Building, Step: stepInstall, Packages: 50}, want: "building: downloading and installing 50 packages"},
		"on the interpreter's": {
			e: Environment{
				State: Building, Step: stepInstall, Packages: 4, Spec: Spec{SitePackages: true},
				Interpreter: Interpreter{Site: map[string]string{"numpy": "2.0", "pip": "24.0", "torch": "2.9", "wheel": "0.4"}, Replaced: []string{"wheel"}},
			},
			want: "building: downloading and installing 1 package",
		},
		"compiling": {e: Environment{State: Building, Step: stepCompile, Packages: 50}, want: "building: compiling its packages to bytecode"},
		"waiting": {
			e: Environment{State: Building, Step: stepInstall, Packages: 2}, waits: waits,
			want: "building: downloading and installing 2 packages; it waits for a node: pool home is full",
		},
		"again": {
			e:    Environment{State: Locking, Step: stepLock, Reason: "it is tried again (1 of 3): no index answered"},
			want: "locking its requirements: choosing versions, with hashes; it is tried again (1 of 3): no index answered",
		},
		"ready":  {e: Environment{State: Ready, Step: stepInstall}, want: "ready"},
		"failed": {e: Environment{State: Failed, Step: stepInstall, Reason: "no"}, waits: waits, want: "failed"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := c.e.phase(c.waits); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}
