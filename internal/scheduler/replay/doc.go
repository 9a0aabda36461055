// Package replay plays workloads on the live scheduler in virtual time: scheduler.State itself
// makes all decisions, and only the run times of workloads are given.
//
// # Map
//
//   - replay.go: World, Play, and the Fate of each workload.
//   - whatif.go: nodes that are added and removed, and proposed workloads.
//   - result.go: figures of one play, or of two side by side. html.go: the same as a page.
//
// # Guarantees
//
// Pure, as the scheduler is: no clock, no randomness, no I/O. All events of one instant
// are one step. Every workload of the world has an answer: when it starts and
// ends, or why it never does.
package replay
