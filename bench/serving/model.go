package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/falaj-ml/falaj/bench/harness"
)

// model is a model with one input "x" and one output "y"; models.py writes these.
type model struct {
	Name     string  `json:"name"`
	Title    string  `json:"title"`
	File     string  `json:"file"` // absolute, once made
	Datatype string  `json:"datatype"`
	Shape    []int64 `json:"shape"`   // of a row
	Classes  int     `json:"classes"` // of whole numbers; 0 for FP32
}

// made are the models of that name in a directory, with models.json, which the
// peers read. Quick runs have one that costs nothing, under all names.
func (b *bench) made(ctx context.Context, dir string, names []string) ([]model, error) {
	var all []model
	if b.Quick {
		file := filepath.Join(dir, "logistic.onnx")
		if err := os.WriteFile(file, harness.Logistic(13, "x", "y"), 0o600); err != nil {
			return nil, err
		}
		for _, name := range names {
			all = append(all, model{Name: name, Title: name, File: file, Datatype: "FP32", Shape: []int64{13}})
		}
	} else {
		python, reason := b.Install(ctx, "bench-serving-models", "bench/serving/models.txt", nil)
		if reason != "" {
			return nil, fmt.Errorf("the models cannot be made: %s", reason)
		}
		script := exec.CommandContext(ctx, python, "bench/serving/models.py", dir)
		script.Dir, script.Stderr = b.Root, b.Log
		text, err := script.Output()
		if err != nil {
			return nil, fmt.Errorf("models.py: %w", err)
		}
		if err := json.Unmarshal(text, &all); err != nil {
			return nil, err
		}
		all = slices.DeleteFunc(all, func(m model) bool { return !slices.Contains(names, m.Name) })
		for i := range all {
			all[i].File = filepath.Join(dir, all[i].File)
		}
	}
	text, err := json.Marshal(all)
	if err != nil {
		return nil, err
	}
	return all, os.WriteFile(filepath.Join(dir, "models.json"), text, 0o600)
}

// cells are how many numbers a row has.
func (m *model) cells() int {
	n := 1
	for _, d := range m.Shape {
		n *= int(d)
	}
	return n
}

// shape is that of a number of rows.
func (m *model) shape(rows int) []int64 { return append([]int64{int64(rows)}, m.Shape...) }

// input is the nth input of a number of rows: numbers of two digits below 1, or
// whole ones.
type input struct {
	of   *model
	rows int
	n    int
}

func (x input) each(visit func(int)) {
	of := 101
	if x.of.Classes > 0 {
		of = x.of.Classes
	}
	for i := range x.rows * x.of.cells() {
		visit((x.n*31 + i*17) % of)
	}
}

func (x input) floats() []float32 {
	out := make([]float32, 0, x.rows*x.of.cells())
	x.each(func(v int) { out = append(out, float32(v)/100) })
	return out
}

func (x input) ints() []int64 {
	out := make([]int64, 0, x.rows*x.of.cells())
	x.each(func(v int) { out = append(out, int64(v)) })
	return out
}

// bytes are the numbers as a tensor has them.
func (x input) bytes() []byte {
	var out []byte
	if x.of.Classes > 0 {
		for _, v := range x.ints() {
			out = binary.LittleEndian.AppendUint64(out, uint64(v)) //nolint:gosec // it is not negative
		}
		return out
	}
	for _, v := range x.floats() {
		out = binary.LittleEndian.AppendUint32(out, math.Float32bits(v))
	}
	return out
}

// flat are the numbers as JSON, without brackets.
func (x input) flat() []byte {
	var out []byte
	x.each(func(v int) {
		if len(out) > 0 {
			out = append(out, ',')
		}
		if x.of.Classes > 0 {
			out = strconv.AppendInt(out, int64(v), 10)
		} else {
			out = strconv.AppendFloat(out, float64(float32(v)/100), 'g', -1, 32)
		}
	})
	return out
}

// nested are the numbers as JSON, nested as their shape.
func (x input) nested() []byte {
	shape, out, at := x.of.shape(x.rows), []byte(nil), 0
	var values [][]byte
	for v := range bytes.SplitSeq(x.flat(), []byte(",")) {
		values = append(values, v)
	}
	var write func(depth int)
	write = func(depth int) {
		if depth == len(shape) {
			out, at = append(out, values[at]...), at+1
			return
		}
		out = append(out, '[')
		for i := range shape[depth] {
			if i > 0 {
				out = append(out, ',')
			}
			write(depth + 1)
		}
		out = append(out, ']')
	}
	write(0)
	return out
}
