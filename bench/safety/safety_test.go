package main

import (
	"testing"

	"github.com/falaj-ml/falaj/bench/harness/harnesstest"
)

func TestQuick(t *testing.T) {
	rows := harnesstest.Quick(t, "safety", steps,
		"linear model, JSON, 8 at a time: CPU of a request, the model in a process of its own",
		"64 KiB in and out, binary, 8 at a time: p50 that a process of its own adds",
		"p99 of a model's answer while another tenant sends: deep YAML", "CPU of an online read that is recorded, 8 at a time",
		"verification of 10⁶ entries of the audit log, by falaj audit verify")
	for _, r := range rows {
		if r.Ours == nil {
			t.Errorf("%s is not measured: %s", r.Name, r.Note)
		}
	}
}
