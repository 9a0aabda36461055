// Package anomaly finds what is out of the ordinary in how work uses hardware: a job
// that stopped using its accelerators (idle.go), and a node that is slower than its
// peers (slow.go). Detectors are pure and deterministic: samples in, a change out.
// What begins is told once, and told again only after it ended.
package anomaly

// Change is what a detector found.
type Change string

// The changes.
const (
	None  Change = ""
	Began Change = "began"
	Ended Change = "ended"
)
