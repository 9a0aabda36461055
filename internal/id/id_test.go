package id_test

import (
	"testing"

	"github.com/falaj-ml/falaj/internal/id"
)

// TestCutVersion: a grant or a scope of "team" covers its versions, and not the model "team@delay".
func TestCutVersion(t *testing.T) {
	for name, want := range map[string]string{
		"weather@3": "weather", "weather": "weather", "team@delay": "team@delay", "team@delay@12": "team@delay", "@": "@", "a@": "a@", "a@3x": "a@3x", "a@٣": "a@٣", "@1": "", "": "",
	} {
		base, versioned := id.CutVersion(name)
		if base != want || versioned != (base != name) {
			t.Errorf("%q: %q %t, want %q", name, base, versioned, want)
		}
	}
}
