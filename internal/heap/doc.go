// Package heap sets how often Go collects garbage: by what is in use (tune.go), and near the
// memory that the server may use (limit.go).
package heap
