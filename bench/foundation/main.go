// Command foundation measures the foundation of Falaj and writes
// bench/results/foundation.json and its table in bench/README.md. Run it by
// `make bench-foundation`, from the root of the repository, with bin/falaj and
// bin/falaj-worker built.
//
// # Map
//
//   - main.go: the order of the measurements. What they have in common with other
//     areas is in bench/harness.
//   - start.go, job.go, commit.go, infer.go, asof.go: the measurements, each
//     with its baseline in the same rounds. flights.go reads the demo's data.
//   - asof.py: the peer of the as-of join, DuckDB in a uv environment (peers.txt).
//
// Rounds of ours and of the baseline alternate and medians are reported, so that
// a busy minute of the machine meets both.
package main

import (
	"fmt"
	"os"

	"github.com/falaj-ml/falaj/bench/harness"
)

func main() {
	if len(os.Args) == 2 && os.Args[1] == "echo" { // as a child of this program
		fmt.Fprintln(os.Stderr, "bench:", serveEcho(os.Stdout))
		os.Exit(1)
	}
	harness.Main("foundation", steps)
}

// bench is one run of the program.
type bench struct{ *harness.Run }

func steps(r *harness.Run) []harness.Step {
	b := &bench{r}
	return []harness.Step{
		{Name: "start and memory", Do: b.starts},
		{Name: "commits", Do: b.commits},
		{Name: "inference", Do: b.inference},
		{Name: "jobs and as-of join", Do: b.jobsAndJoin},
	}
}
