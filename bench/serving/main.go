// Command serving measures inference beside other servers and beside what it cannot
// be faster than, and writes bench/results/serving.json and its table in
// bench/README.md. Run it by `make bench-serving`, from the root of the repository.
//
// # Map
//
//   - main.go: the order of the measurements.
//   - model.go: the models, which models.py makes in a locked environment (models.txt).
//   - ask.go: how each kind of server is asked, and what it answers.
//   - load.go: requests without pause, and at fixed times.
//   - site.go: the servers; those of others are in peers/NAME, each in a locked
//     environment. falaj.go: ours, with models in the server's process and in
//     processes of their own.
//   - raw.go: the models in a loop, and an HTTP echo, each in a process of its own.
//   - compare.go: each model beside the peers. limits.go: beside the echo and the loop.
//
// The server has a core for itself and the load another. Rounds of all servers
// alternate and medians are reported.
package main

import (
	"context"
	"os"
	"slices"

	"github.com/falaj-ml/falaj/bench/harness"
)

func main() {
	if child(os.Args[1:]) {
		return
	}
	harness.Main("serving", steps)
}

// bench is one run of the program.
type bench struct{ *harness.Run }

func steps(r *harness.Run) []harness.Step {
	b := &bench{r}
	on := func(do func(*site, context.Context) error, peers []peer, models ...string) func(context.Context) error {
		return func(ctx context.Context) error { return b.on(ctx, do, peers, models) }
	}
	few := []string{"iris", "boosting", "mlp"}
	large := []string{"mlp-large", "mobilenet", "encoder"}
	return []harness.Step{
		{Name: "small models", Do: on((*site).small, peers, few...)},
		{Name: "large models", Do: on((*site).large, peers, large...)},
		{Name: "shared runs", Do: on((*site).shared, batching, "mlp-large", "mlp-int8")},
		{Name: "limits", Do: on((*site).limits, nil, few...)},
		{Name: "Ray Serve", Do: on((*site).ray, []peer{rayServe}, slices.Concat(few, large)...)},
	}
}
