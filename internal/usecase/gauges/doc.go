// Package gauges gives the state of the installation as Prometheus series, each collector from
// the service that it is about: jobs, queues, pools, budgets and sources (state.go), models
// (serving.go, scaling.go, prediction.go), features and streams, the audit log, stored bytes,
// shared resources and the memory of requests. reference.go describes all series in a table.
package gauges
