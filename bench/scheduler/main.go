// Command scheduler measures what the scheduler decides, and how fast, and writes
// bench/results/scheduler.json and its table in bench/README.md. Run it by
// `make bench-scheduler`, from the root of the repository.
//
// # Map
//
//   - main.go: the order of the measurements.
//   - simulate.go: the workloads of Pollux in virtual time.
//   - plan.go: how long a plan of goodput takes.
//   - cycle.go: how long a step of the scheduler takes, and its memory.
//   - allocated.go: how many GPUs are in use when no more fits, by where works go.
//   - kueue.go: the inputs of Kueue's performance test, in virtual time.
//
// Figures of simulated time do not depend on the machine.
package main

import "github.com/falaj-ml/falaj/bench/harness"

func main() { harness.Main("scheduler", steps) }

// bench is one run of the program.
type bench struct{ *harness.Run }

func steps(r *harness.Run) []harness.Step {
	b := &bench{r}
	return []harness.Step{
		{Name: "simulation", Do: b.simulation},
		{Name: "plan", Do: b.plan},
		{Name: "cycle", Do: b.cycle},
		{Name: "allocated", Do: b.allocated},
		{Name: "kueue", Do: b.kueue},
	}
}
