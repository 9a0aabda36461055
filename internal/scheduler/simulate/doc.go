// Package simulate plays workloads of training jobs on a cluster under a policy,
// in virtual time, with measured step times and gradients.
//
// # Map
//
//   - workload.go, profile.go, table.go: the files, and what is wrong with them.
//   - delaunay.go: step times between the measured ones.
//   - policy.go: Policy and what it may know. policies.go: the list of them. fifo.go, tiresias.go, goodput.go: each.
//   - run.go: the engine. result.go: figures, and two policies compared.
//   - html.go: one workload as a page.
//
// # Guarantees
//
// The model is that of Pollux's simulator (Qiao et al., OSDI 2021), down to the
// digit; docs/design/simulation.md tells it. The same input, policy and seed give
// the same figures, except for how long plans took. A policy is given [Job], which
// has nothing of the truth; a plan that places more than there is, is an error.
package simulate
