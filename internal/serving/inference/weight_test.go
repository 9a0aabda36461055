package inference

import (
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"
)

// TestWeigh: what takes much more memory than bytes on the wire weighs as much, and what
// does not weighs little more than its bytes.
func TestWeigh(t *testing.T) {
	const n = 10_000
	type tensor = ModelInferResponse_InferOutputTensor
	contents := func(c *InferTensorContents) *ModelInferResponse {
		return &ModelInferResponse{Outputs: []*tensor{{Contents: c}}}
	}
	for name, c := range map[string]struct {
		m    *ModelInferResponse
		each int // at least, of n
	}{
		"tensors":     {&ModelInferResponse{Outputs: slices.Repeat([]*tensor{{}}, n)}, 112},
		"contents":    {&ModelInferResponse{Outputs: slices.Repeat([]*tensor{{Contents: &InferTensorContents{}}}, n)}, 112 + 240},
		"shape":       {&ModelInferResponse{Outputs: []*tensor{{Shape: make([]int64, n)}}}, 8},
		"int64":       {contents(&InferTensorContents{Int64Contents: make([]int64, n)}), 8},
		"uint64":      {contents(&InferTensorContents{Uint64Contents: make([]uint64, n)}), 8},
		"int":         {contents(&InferTensorContents{IntContents: make([]int32, n)}), 4},
		"bytes":       {contents(&InferTensorContents{BytesContents: make([][]byte, n)}), 24},
		"raw of many": {&ModelInferResponse{RawOutputContents: make([][]byte, n)}, 24},
	} {
		b, err := proto.Marshal(c.m)
		if err != nil {
			t.Fatal(err)
		}
		if got := Weigh(b, c.m.ProtoReflect().Descriptor()); got < c.each*n {
			t.Errorf("%s: %d bytes weigh %d, not %d", name, len(b), got, c.each*n)
		}
	}
	for name, m := range map[string]*ModelInferResponse{
		"raw":     {Outputs: []*tensor{{Name: "y", Datatype: "FP32", Shape: []int64{n}}}, RawOutputContents: [][]byte{make([]byte, 4*n)}},
		"numbers": contents(&InferTensorContents{Fp32Contents: make([]float32, n)}),
		"bools":   contents(&InferTensorContents{BoolContents: make([]bool, 4*n)}),
	} {
		b, err := proto.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		if got := Weigh(b, m.ProtoReflect().Descriptor()); got > 2*len(b)+1024 {
			t.Errorf("%s: %d bytes weigh %d", name, len(b), got)
		}
	}
	for _, b := range [][]byte{{0xff}, {0x2a, 0x7f}, {0x2a, 0x02, 0x0a, 0x7f}, {0x28, 0x01}} {
		if got := Weigh(b, (&ModelInferResponse{}).ProtoReflect().Descriptor()); got > 1024 {
			t.Errorf("%x weighs %d", b, got)
		}
	}
}
