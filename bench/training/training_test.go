package main

import (
	"testing"

	"github.com/falaj-ml/falaj/bench/harness/harnesstest"
)

func TestQuick(t *testing.T) {
	rows := harnesstest.Quick(t, "training", steps,
		"no-op job on local, submitted to finished", "no-op job on local, against Ray's", "no-op job on Slurm, submitted to finished", "latency added on Slurm",
		"no-op job on Kubernetes, submitted to finished", "latency added on Kubernetes",
		"jobs durably queued", "jobs dispatched on local", "server RssAnon, 10,000 queued and 200 running", "recovery after node loss, on Slurm",
		"checkpoint kept, all of it new", "checkpoint kept, all of it known", "checkpoint restored")
	for _, r := range rows {
		if r.Ours != nil && *r.Ours <= 0 && r.Name != "latency added on Slurm" {
			t.Errorf("%s is %v", r.Name, *r.Ours)
		}
	}
}
