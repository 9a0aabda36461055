package main

import (
	"testing"

	"github.com/falaj-ml/falaj/bench/harness/harnesstest"
)

func TestQuick(t *testing.T) {
	rows := harnesstest.Quick(t, "scheduler", steps,
		"tiresias, average JCT, furthest from the published", "goodput, average JCT", "goodput, p99 JCT", "goodput, makespan",
		"average JCT, half the jobs rigid", "plan of goodput, 64 GPUs, 160 jobs",
		"plan from nothing, 1000 nodes, 10000 works", "plan after a change, p99, 1000 nodes, 10000 works", "heap with the state of 1000 nodes, 10000 works",
		"plan from nothing, 1000 nodes, 10000 works, quotas", "plan after a change, p99, 1000 nodes, 10000 works, quotas",
		"GPUs allocated at 1.3 times the load, whole GPUs", "GPUs allocated at 1.3 times the load, GPUs and halves", "GPUs allocated at 1.3 times the load, whole GPUs, works come and go",
		"Kueue's baseline, 30 queues, 15000 works: time until all is over, over the bound")
	for _, r := range rows {
		if r.Ours == nil || *r.Ours < 0 {
			t.Errorf("%s is not measured: %s", r.Name, r.Note)
		}
	}
}
