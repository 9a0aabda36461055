// Command monitoring measures how the loop is closed: what predictions cost to
// remember, how fast and how rightly drift and rollouts are judged. It writes
// bench/results/monitoring.json and its table in bench/README.md. Run it by
// `make bench-monitoring`, from the root of the repository, with bin/falaj and
// bin/falaj-worker built.
//
// # Map
//
//   - serving.go: a real server on one core: predictions with and without the
//     prediction log, labels over HTTP, bytes of a record.
//   - windows.go: windows evaluated, beside Evidently, scipy and NannyML
//     (windows.py, nannyml.py, in environments locked by peers.txt, nannyml.txt).
//   - drift.go: rows from a change to its event, and false alarms on flights.go,
//     a month of the demo's flights. watch.go: monitors over records in memory.
//   - rollout.go: decisions, and how many labels they take.
//
// Rounds of ours and of the peer alternate and medians are reported.
package main

import "github.com/falaj-ml/falaj/bench/harness"

func main() { harness.Main("monitoring", steps) }

// bench is one run of the program.
type bench struct{ *harness.Run }

func steps(r *harness.Run) []harness.Step {
	b := &bench{r}
	return []harness.Step{
		{Name: "predictions", Do: b.predictions},
		{Name: "windows", Do: b.windows},
		{Name: "delay", Do: b.delay},
		{Name: "false alarms", Do: b.falseAlarms},
		{Name: "rollouts", Do: b.rollouts},
	}
}
