// Package goodput predicts the goodput of training jobs by their number of replicas, and
// divides accelerators among jobs by it. It is pure: the same jobs and nodes give
// the same plan.
//
// # Map
//
//   - goodput.go: batch sizes, gradients, statistical efficiency.
//   - model.go: the time of a step, fitted to what was observed.
//   - plan.go: the number of accelerators of each job. place.go: their placement.
//
// Goodput is throughput times statistical efficiency (Pollux, Qiao et al., OSDI
// 2021). The plan differs from Pollux's, which searches by a genetic algorithm for
// the best harmonic mean of speedups: here accelerators have a price, as in a
// market, and a job is worth what its waiting would cost.
package goodput
