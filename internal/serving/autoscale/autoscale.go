// Package autoscale decides how many replicas of a model there should be. It is
// pure: what was seen goes in, a number and its reason come out; no clock, no I/O,
// no randomness.
//
// # Map
//
//   - autoscale.go: Limits, Sample and Snapshot, what Decide is told; Decision.
//   - decide.go: Decide, in numbered steps.
//
// # What it takes from others
//
// From Knative's autoscaler (KPA, which KServe's serverless mode uses): in-flight
// requests as the measure, averaged over a stable window of 60 s; a panic window of
// a tenth of it that counts alone while it wants twice what runs; at most half of
// the replicas taken away at a time; zero after a time without requests. From
// Kubernetes' HPA: the ratio of a measure to its target, here of the queue time; the
// stabilisation of the way down, which goes no lower than anything that was wanted
// within its window; at most twice as many replicas at a time. Other than those, the
// target is what a replica should have, and not 70 % of it; and replicas that would
// find no core to run on are not wanted.
package autoscale

import "time"

// The windows.
const (
	Stable = time.Minute     // that in-flight requests are averaged over
	Panic  = Stable / 10     // that counts alone when it wants twice what runs
	Down   = 2 * time.Minute // a smaller number is wanted for so long before replicas go
)

// Limits are what the manifest says.
type Limits struct {
	Min, Max    int           // replicas; Max is at least 1
	Concurrency float64       // requests in flight that a replica should have at most; 0: they do not count
	QueueTime   time.Duration // that a request should wait at most, on average; 0: it does not count
	Idle        time.Duration // without requests until there are none; with a Min of 0
}

// Sample is what was seen of a version once.
type Sample struct {
	At       time.Time
	InFlight int           // requests that had come and were not answered
	Answered int64         // since the sample before
	Queued   time.Duration // that those waited for the model, all together
}

// Past is a decision of before.
type Past struct {
	At   time.Time
	Need int
}

// Snapshot is what is known of a version.
type Snapshot struct {
	Limits
	Now     time.Time
	Running int       // replicas in memory
	Loading bool      // another one is being loaded
	Grown   time.Time // when the last one came
	Useful  int       // more replicas than this would find no core; 0: any number finds one
	Samples []Sample  // the newest last; those older than Stable do not count
	Past    []Past    // the newest last; those older than Down do not count
	Asked   time.Time // when the deployment was last asked, or loaded
	Busy    bool      // a request of the deployment is inside, or held
}

// Decision is how many replicas are wanted and why.
type Decision struct {
	Wanted int
	Need   int    // what the load alone asks for, to be told again as Past
	Reason string // in words, with the numbers
}
