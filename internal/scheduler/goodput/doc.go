// Package goodput knows how fast a training job learns with some replicas, and
// divides GPUs among jobs by it.
package goodput
