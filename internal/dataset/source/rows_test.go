package source_test

import (
	"testing"

	"github.com/falaj-ml/falaj/internal/dataset/source"
	"github.com/falaj-ml/falaj/internal/dataset/table"
	"github.com/falaj-ml/falaj/internal/fault"
)

// A float32 of text is the nearest one, as it is of an event: not that of the nearest
// float64.
func TestConvertFloat32(t *testing.T) {
	const between = "1.000000059604644775390626"
	for _, x := range []any{between, []byte(between)} {
		v, err := source.Convert(table.Float32, x)
		if f, ok := v.(float64); err != nil || !ok || float32(f) != 1.0000001 {
			t.Errorf("%v: %v %v", x, v, err)
		}
	}
	for _, x := range []any{"3.5e38", "much", 3.5e38} {
		if v, err := source.Convert(table.Float32, x); !fault.Is(err, fault.Invalid) {
			t.Errorf("%v: %v %v", x, v, err)
		}
	}
}
