package monitoring

import "time"

// The events, published in the transaction that records the window. The body is
// Finding, but for the first two, whose body is Changed.
const (
	EventApplied   = "monitor.applied"
	EventDeleted   = "monitor.deleted"
	EventDrifted   = "monitor.drifted"   // the inputs or scores drifted, or still do
	EventDegraded  = "monitor.degraded"  // a metric broke its limit, or still does
	EventRecovered = "monitor.recovered" // they no longer do: a window was judged, and is fine
	// EventUnjudged tells that what is watched could not be judged, or still cannot: a
	// baseline is lost or missing (kind drift), or a metric with a limit could not be
	// computed (kind performance).
	EventUnjudged = "monitor.unjudged"

	// EventClassified tells that a domain classifier began, and how it ended; its
	// body is ClassifiedEvent.
	EventClassified = "monitor.classified"
)

// Changed tells which monitor changed.
type Changed struct {
	Monitor    ID     `json:"monitor"`
	Name       string `json:"name"`
	Deployment string `json:"deployment"`
}

// ClassifiedEvent is the body of EventClassified.
type ClassifiedEvent struct {
	Monitor    string `json:"monitor"`
	Deployment string `json:"deployment"`
	Version    int64  `json:"version"`
	Classification
}

// Kind is what a finding is about.
type Kind string

// The kinds.
const (
	Drift       Kind = "drift"
	Performing  Kind = "performance"
	maxFeatures      = 50 // of a finding; the window has them all
)

// Finding is the body of EventDrifted, EventDegraded, EventUnjudged and EventRecovered: what
// was found about the version that answers, with its evidence.
type Finding struct {
	Monitor    string    `json:"monitor"` // its name
	Deployment string    `json:"deployment"`
	Version    int64     `json:"version"`
	Kind       Kind      `json:"kind"`
	Window     Span      `json:"window"`
	Since      time.Time `json:"since"`             // begin of the first bad window in a row
	Windows    int64     `json:"windows"`           // how many in a row are bad
	Repeated   bool      `json:"repeated"`          // told before, and still so
	Features   []Feature `json:"features"`          // the drifted ones, strongest first; at most 50
	Score      *Feature  `json:"score,omitempty"`   // when it drifted
	Share      float64   `json:"share"`             // of the features that drifted
	Metrics    []Metric  `json:"metrics,omitempty"` // that broke their limits
	Labelled   float64   `json:"labelled,omitempty"`
	Reason     string    `json:"reason"` // in words, with numbers
	Replay     bool      `json:"replay"`
	At         time.Time `json:"at"` // end of the window, on the records' clock
}

// Span is a stretch of time on the records' clock.
type Span struct {
	ID   string    `json:"id"`
	From time.Time `json:"from"`
	To   time.Time `json:"to"`
	Rows int64     `json:"rows"`
}
