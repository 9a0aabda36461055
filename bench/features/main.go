// Command features measures training sets, and what holds features, and writes
// bench/results/features.json and its table in bench/README.md. Run it by
// `make bench-features`, from the root of the repository.
//
// # Map
//
//   - main.go: the order of the measurements.
//   - taxi.go: rides and windows in the shape of New York's taxis.
//   - training.go: training sets of them; training.py is what the peers do.
//   - online.go: reads over HTTP from both stores, what comes before them, and how
//     soon a pushed row answers; online.py is Feast's own server on the same.
//   - bare.go: the embedded store in process, beside the least that a read can be.
//   - delivery.go: a training set to pandas; delivery.py is the client.
//   - process.go: a measurement in a process of its own, with its CPU time and
//     its peak of memory.
package main

import (
	"fmt"
	"os"

	"github.com/falaj-ml/falaj/bench/harness"
)

func main() {
	if err := asked(); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
	harness.Main("features", steps)
}

// bench is one run of the program.
type bench struct{ *harness.Run }

func steps(r *harness.Run) []harness.Step {
	b := &bench{r}
	return append(b.trainingSets(),
		harness.Step{Name: "delivery", Do: b.delivery},
		harness.Step{Name: "online", Do: b.online("embedded")},
		harness.Step{Name: "online-redis", Do: b.online("redis")},
		harness.Step{Name: "bare", Do: b.againstBare},
	)
}
