package main

import (
	"testing"

	"github.com/falaj-ml/falaj/bench/harness/harnesstest"
)

func TestQuick(t *testing.T) {
	rows := harnesstest.Quick(t, "scheduler", steps,
		"tiresias, average JCT, furthest from the published", "goodput, average JCT", "goodput, p99 JCT", "goodput, makespan",
		"average JCT, half the jobs rigid", "plan of goodput, 64 GPUs, 160 jobs")
	for _, r := range rows {
		if r.Ours == nil || *r.Ours < 0 {
			t.Errorf("%s is not measured: %s", r.Name, r.Note)
		}
	}
}
