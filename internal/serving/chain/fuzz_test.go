package chain_test

import (
	"encoding/json"
	"math"
	"testing"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/serving/chain"
	"github.com/falaj-ml/falaj/internal/serving/runtime"
)

// FuzzChain: whatever a manifest says is refused as invalid, or answers what it says
// that it does, or refuses the request in words of its own.
func FuzzChain(f *testing.F) {
	seed := func(s chain.Spec, carrier string, temp float64, hour int32) {
		b, err := json.Marshal(s)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b, carrier, temp, hour, 2)
	}
	seed(full(), "AA", 20, 3)
	seed(full(), "", math.NaN(), -1)
	seed(chain.Spec{
		Inputs: []chain.InputSpec{{Name: "F", Datatype: runtime.FP64, Shape: []int64{-1, 2}, Columns: []string{"a", "b:c"}}},
		Before: []chain.StepSpec{{Compute: map[string]string{"d": "a + b__c + F[0]"}}, {Tensor: &chain.TensorSpec{Name: "X", Datatype: runtime.FP32, From: []string{"F", "d"}}}},
	}, "x", 1, 1)
	seed(chain.Spec{After: []chain.StepSpec{{Compute: map[string]string{"c": "int(p[1] * 1e300)"}}, {Tensor: &chain.TensorSpec{Name: "t", Datatype: runtime.Int32, From: []string{"c"}, Flat: true}}}}, "", 0, 0)
	seed(chain.Spec{
		Inputs: []chain.InputSpec{{Name: "s", Datatype: runtime.Bytes, Shape: []int64{}}, {Name: "z", Datatype: runtime.Bool, Shape: []int64{-1, 0}}},
		After:  []chain.StepSpec{{Compute: map[string]string{"c": "1 / 0"}}}, Outputs: []string{"c", "s", "z"},
	}, "", 0, 0)
	f.Fuzz(func(t *testing.T, manifest []byte, carrier string, temp float64, hour int32, rows int) {
		var s chain.Spec
		if json.Unmarshal(manifest, &s) != nil || s.Validate() != nil {
			return
		}
		steps, _ := s.Steps()
		var models []runtime.Session
		for _, x := range steps {
			if x.Model != "" {
				models = append(models, scaler())
			}
		}
		c, err := chain.New(s, linear(), models)
		if err != nil {
			if !fault.Is(err, fault.Invalid) {
				t.Fatalf("%v", err)
			}
			return
		}
		rows = min(max(0, rows), 3)
		var in []runtime.Tensor
		for _, p := range c.Visible().Inputs {
			shape := make([]int64, len(p.Shape))
			for i, d := range p.Shape {
				if shape[i] = d; d < 0 {
					shape[i] = int64(rows)
				}
			}
			n, err := runtime.Elements(shape)
			if err != nil || n > 1<<16 {
				return
			}
			x := runtime.Tensor{Name: p.Name, Datatype: p.Datatype, Shape: shape, Data: runtime.Zeros(p.Datatype, n)}
			for i := range n {
				switch d := x.Data.(type) {
				case []string:
					d[i] = carrier
				case []float64:
					d[i] = temp
				case []float32:
					d[i] = float32(temp)
				case []int32:
					d[i] = hour
				}
			}
			in = append(in, x)
		}
		if c.Visible().Check(in) != nil {
			return
		}
		var names []string
		for _, o := range c.Metadata().Outputs {
			names = append(names, o.Name)
		}
		out, err := c.Infer(t.Context(), in, names)
		if err != nil {
			if k := fault.KindOf(err); k != fault.Invalid && k != fault.TooLarge {
				t.Fatalf("%v", err)
			}
			return
		}
		for i, o := range c.Metadata().Outputs {
			n, err := runtime.Elements(out[i].Shape)
			if out[i].Name != o.Name || out[i].Datatype != o.Datatype || err != nil || len(out[i].Shape) != len(o.Shape) || runtimeLength(out[i].Data) != n {
				t.Errorf("%q is %+v, and was to be %+v", o.Name, out[i], o)
			}
		}
	})
}

func runtimeLength(data any) int {
	b, err := json.Marshal(data)
	var all []any
	if err != nil || json.Unmarshal(b, &all) != nil {
		switch d := data.(type) { // NaN has no JSON; bytes are a text there
		case []float64:
			return len(d)
		case []float32:
			return len(d)
		case []uint8:
			return len(d)
		}
		return -1
	}
	return len(all)
}
