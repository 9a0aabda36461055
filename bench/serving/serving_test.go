package main

import (
	"bytes"
	"net/http"
	"os"
	"testing"

	"github.com/falaj-ml/falaj/bench/harness/harnesstest"
)

// TestMain lets the test binary be the children that the program starts.
func TestMain(m *testing.M) {
	if child(os.Args[1:]) {
		return
	}
	os.Exit(m.Run())
}

func TestQuick(t *testing.T) {
	rows := harnesstest.Quick(t, "serving", steps,
		"iris, JSON, 8 at a time: requests, the model in a process of its own", "iris, binary: p99, the model in a process of its own",
		"encoder, binary, 8 at a time: requests a second, the model in a process of its own", "memory with three small models, each in a process of its own",
		"iris, binary, 8 at a time: CPU of a request over an echo and a run", "iris, JSON: p50 over an echo and a run",
		"iris, JSON, 8 at a time: requests, answers remembered", "mlp, binary, 256 rows a request",
		"mlp-large, binary, 8 at a time: single rows that share runs", "mlp-large, binary, 8 at a time: in int8")
	for _, r := range rows {
		if r.Ours == nil {
			t.Errorf("%s is not measured: %s", r.Name, r.Note)
		}
	}
}

// TestForms: the same numbers in each form, and answers in each are read alike.
func TestForms(t *testing.T) {
	image := &model{Name: "m", Datatype: "FP32", Shape: []int64{2, 2}}
	words := &model{Name: "w", Datatype: "INT64", Shape: []int64{3}, Classes: 5}
	for _, tt := range []struct {
		x            input
		flat, nested string
		bytes        int
	}{
		{input{image, 2, 1}, "0.31,0.48,0.65,0.82,0.99,0.15,0.32,0.49", "[[[0.31,0.48],[0.65,0.82]],[[0.99,0.15],[0.32,0.49]]]", 32},
		{input{words, 1, 0}, "0,2,4", "[[0,2,4]]", 24},
	} {
		if got := string(tt.x.flat()); got != tt.flat {
			t.Errorf("flat %s", got)
		}
		if got := string(tt.x.nested()); got != tt.nested {
			t.Errorf("nested %s", got)
		}
		if got := len(tt.x.bytes()); got != tt.bytes {
			t.Errorf("%d bytes", got)
		}
	}
	want := []float32{0.5, -2}
	raw := []byte{0, 0, 0, 0x3f, 0, 0, 0, 0xc0}
	octets := http.Header{"Content-Type": {"application/octet-stream"}}
	for _, tt := range []struct {
		header http.Header
		body   []byte
	}{
		{nil, []byte(`{"outputs":[{"name":"y","shape":[1,2],"data":[0.5,-2.0]}]}`)},
		{nil, []byte(`{"y":[[0.5,-2]]}`)},
		{nil, []byte(`[[0.5],[-2]]`)},
		{octets, raw},
		{http.Header{"Content-Type": {"application/json"}, "Inference-Header-Content-Length": {"2"}}, append([]byte("{}"), raw...)},
	} {
		got, err := numbers(tt.header, tt.body)
		if err == nil {
			err = same(got, want)
		}
		if err != nil {
			t.Errorf("%s: %v", bytes.TrimSpace(tt.body), err)
		}
	}
	for _, wrong := range [][]float32{nil, {0.5}, {0.5, -2.001}, {0.5, -2, 0}} {
		if same(wrong, want) == nil {
			t.Errorf("%v passes for %v", wrong, want)
		}
	}
}
