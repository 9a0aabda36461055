package serving

import (
	"strings"
	"testing"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/serving/runtime"
)

// TestColumnsInTheOrderOfTraining: features fill an input in the order of the manifest, which a
// model that knows the names of its columns holds against that of its training.
func TestColumnsInTheOrderOfTraining(t *testing.T) {
	for _, c := range []struct {
		features, trained []string
		fits              bool
	}{
		{[]string{"weather:temp", "distance"}, nil, true},
		{[]string{"weather:temp", "distance"}, []string{"temp", "distance"}, true},
		{[]string{"weather:temp", "distance"}, []string{"distance", "temp"}, false},
		{[]string{"weather:temp", "distance"}, []string{"distance", "weather__temp"}, false},
		{[]string{"weather:temp", "distance"}, []string{"distance", "weather:temp"}, false},
		{[]string{"weather:temp", "distance"}, []string{"miles", "celsius"}, true}, // of other names nothing is known
	} {
		f := &FeaturesSpec{Input: "X", Columns: c.features}
		err := f.fits(runtime.Metadata{Inputs: []runtime.Spec{{Name: "X", Datatype: runtime.FP32, Shape: []int64{-1, 2}, Columns: c.trained}}})
		if (err == nil) != c.fits || err != nil && (!fault.Is(err, fault.Invalid) || !strings.Contains(fault.HintOf(err), strings.Join(c.trained, ", "))) {
			t.Errorf("%v of a model trained on %v: %v, %s", c.features, c.trained, err, fault.HintOf(err))
		}
	}
}
