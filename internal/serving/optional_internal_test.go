package serving

import (
	"strings"
	"testing"

	models "github.com/falaj-ml/falaj/internal/serving/runtime"
)

// TestOfRows: an optional input that is one for all rows is no column of the prediction log,
// and leaves the columns of the others there.
func TestOfRows(t *testing.T) {
	m := models.Metadata{
		Inputs:   []models.Spec{{Name: "x", Datatype: models.FP32, Shape: []int64{-1}}},
		Optional: []models.Spec{{Name: "scale", Datatype: models.FP32}, {Name: "shift", Datatype: models.FP32, Shape: []int64{-1}}},
	}
	tensor := func(name string, shape ...int64) models.Tensor {
		return models.Tensor{Name: name, Datatype: models.FP32, Shape: shape}
	}
	for _, c := range []struct {
		in   []models.Tensor
		want string
	}{
		{[]models.Tensor{tensor("x", 2)}, "x"},
		{[]models.Tensor{tensor("x", 2), tensor("scale")}, "x"},
		{[]models.Tensor{tensor("x", 2), tensor("scale"), tensor("shift", 2)}, "x shift"},
		{[]models.Tensor{tensor("shift", 1), tensor("x", 2)}, "x"},
	} {
		var names []string
		for _, t := range ofRows(m, c.in, 2) {
			names = append(names, t.Name)
		}
		if got := strings.Join(names, " "); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}
