package main

import (
	"maps"
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

func TestMetrics(t *testing.T) {
	for _, c := range []struct {
		text, reason string
		want         map[string]float64
	}{
		{"cpu: x\nBenchmarkNoop\nBenchmarkNoop-2   \t       3\t      3616 bare-ms\t      2482.5 ours-ms\nPASS\n", "", map[string]float64{"bare-ms": 3616, "ours-ms": 2482.5}},
		{"BenchmarkNoop\n    x_test.go:3: there is no cluster here\n--- SKIP: BenchmarkNoop\nPASS\n", "x_test.go:3: there is no cluster here", nil},
		{"PASS\nok  \tx\t0.008s\n", "go test ran no BenchmarkNoop", nil},
		{"BenchmarkNoop-2 3 many ours-ms\n", `strconv.ParseFloat: parsing "many": invalid syntax`, nil},
	} {
		if got, reason := metricsOf(c.text, "BenchmarkNoop"); !maps.Equal(got, c.want) || reason != c.reason {
			t.Errorf("%q: %v, %q", c.text, got, reason)
		}
	}
}
