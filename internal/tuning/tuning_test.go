package tuning_test

import (
	"testing"

	"github.com/falaj-ml/falaj/internal/tuning"
)

// TestFeasible reads constraints as Optuna writes them: a list, or one attribute each.
func TestFeasible(t *testing.T) {
	for _, tt := range []struct {
		of   tuning.Attributes
		want bool
	}{
		{nil, true},
		{tuning.Attributes{"other": "5", "constraintsX": "5"}, true},
		{tuning.Attributes{"constraints": "null"}, true},
		{tuning.Attributes{"constraints": "[]"}, true},
		{tuning.Attributes{"constraints": "[-1.0, 0.0, -Infinity]"}, true},
		{tuning.Attributes{"constraints": "[-1.0, 0.1]"}, false},
		{tuning.Attributes{"constraints": "[NaN]"}, false},
		{tuning.Attributes{"constraints": "[Infinity]"}, false},
		{tuning.Attributes{"constraints": "[-1"}, false},
		{tuning.Attributes{"constraints": `"x"`}, false},
		{tuning.Attributes{"constraints:size": "0", "constraints:time": "-3"}, true},
		{tuning.Attributes{"constraints:size": "0", "constraints:time": "1e-9"}, false},
		{tuning.Attributes{"constraints:size": "NaN"}, false},
	} {
		if got := tt.of.Feasible(); got != tt.want {
			t.Errorf("%v: %t", tt.of, got)
		}
	}
}
