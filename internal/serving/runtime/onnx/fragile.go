package onnx

import "github.com/falaj-ml/falaj/internal/onnxfile"

// Fragile reports whether a request could end the process that runs the model, by values that
// its structure does not show: see onnxfile.DividesIntegers. It is no list of all that can
// crash.
func Fragile(model []byte) bool {
	m, err := onnxfile.Parse(model)
	return err != nil || m.DividesIntegers()
}
