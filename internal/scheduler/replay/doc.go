// Package replay plays workloads on the live scheduler in virtual time: what is decided
// is decided by scheduler.State itself, and only how long workloads run is told from
// outside.
//
// # Map
//
//   - replay.go: World, Play, and what became of each workload.
//   - whatif.go: nodes that come and go.
//   - result.go: figures of a play, and of two beside each other. html.go: as a page.
//
// # Guarantees
//
// Pure, as the scheduler is: no clock, no randomness, no I/O. Whatever happens at
// one instant is one step. Every workload of the world has an answer: when it begins and
// ends, or why it never does.
package replay
