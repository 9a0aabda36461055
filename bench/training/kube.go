package main

import (
	"context"
	"fmt"
	"os/exec"
	"strconv"
	"strings"

	"github.com/falaj-ml/falaj/bench/harness"
)

const kubernetes = "a real API server, controllers, kubelet and containerd on this machine, idle"

// onKube measures a job that does nothing on Kubernetes, through Falaj and by kubectl.
// The suite of that engine has the benchmark, since a cluster needs namespaces of its own.
func (b *bench) onKube(ctx context.Context) error {
	row := harness.Row{
		Name: "no-op job on Kubernetes, submitted to finished", Unit: "ms", Better: harness.Lower,
		Peer: "kubectl apply of a Job of /bin/true, and kubectl wait (" + kubernetes + ")",
	}
	n := 3 * b.Rounds
	if b.Quick {
		row.Note = notNow
	} else if found, reason := b.benchmark(ctx, "./test/engines/kube", "BenchmarkNoop", n); reason != "" {
		row.Note = reason
	} else {
		row.Ours, row.Theirs = harness.Value(found["ours-ms"]), harness.Value(found["bare-ms"])
		row.Note = fmt.Sprintf("median of %d, in turn; an init container brings the agent, then as on Slurm; both delegated to the cluster's scheduler", n)
	}
	b.Add(row)
	b.Add(added("Kubernetes", "the Job's", row))
	return nil
}

// added is by how much a job takes longer through Falaj than a bare one.
func added(engine, bare string, row harness.Row) harness.Row {
	out := harness.Row{
		Name: "latency added on " + engine, Unit: "ms", Better: harness.Lower, Aim: &harness.Aim{Value: harness.Value(250)},
		Note: "the difference of the medians of ours and of " + bare + "; the aim is 10 % or 250 ms, whichever is more",
	}
	if row.Ours == nil || row.Theirs == nil {
		out.Note = row.Note
		return out
	}
	out.Ours, out.Aim = harness.Value(*row.Ours-*row.Theirs), &harness.Aim{Value: harness.Value(max(250, *row.Theirs/10))}
	return out
}

// benchmark runs one of Go n times and gives its metrics by unit, or why it has none.
func (b *bench) benchmark(ctx context.Context, pkg, name string, n int) (metrics map[string]float64, reason string) {
	cmd := exec.CommandContext(ctx, "go", "test", pkg, "-v", "-run=^$", "-bench=^"+name+"$", "-benchtime="+strconv.Itoa(n)+"x", "-timeout=20m")
	cmd.Dir = b.Root
	text, err := cmd.CombinedOutput()
	if err != nil {
		return nil, b.line(string(text))
	}
	return metricsOf(string(text), name)
}

// metricsOf reads what go test -v prints of a benchmark: its name, how often it ran and
// values with their units, or before "--- SKIP" why it did not.
func metricsOf(text, name string) (metrics map[string]float64, reason string) {
	before := ""
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if strings.HasPrefix(line, "--- SKIP") {
			return nil, before
		}
		before = strings.TrimSpace(line)
		if !strings.HasPrefix(line, name) || len(f) < 4 {
			continue
		}
		metrics = map[string]float64{}
		for i := 2; i+1 < len(f); i += 2 {
			v, err := strconv.ParseFloat(f[i], 64)
			if err != nil {
				return nil, err.Error()
			}
			metrics[f[i+1]] = v
		}
		return metrics, ""
	}
	return nil, "go test ran no " + name
}
