// Command safety measures what safety costs, and what an attack costs others. It writes
// bench/results/safety.json and its table in bench/README.md. Run it by `make
// bench-safety`, from the root of the repository, with bin/falaj and bin/falaj-worker
// built.
//
// # Map
//
//   - main.go: the order of the measurements; each is in a file of its own.
//   - child.go: models in a process of their own beside the same models in the server's.
//   - attack.go: what a quiet tenant gets while another attacks.
//   - audit.go: what a recorded read costs, how long the whole log takes to verify.
//   - load.go: requests without pause on a number of connections.
package main

import "github.com/falaj-ml/falaj/bench/harness"

func main() { harness.Main("safety", steps) }

// bench is one run of the program.
type bench struct{ *harness.Run }

func steps(r *harness.Run) []harness.Step {
	b := &bench{r}
	return []harness.Step{
		{Name: "models in processes of their own", Do: b.child},
		{Name: "a quiet tenant beside an attack", Do: b.attacks},
		{Name: "the audit log", Do: b.audit},
	}
}
