package feature

// The events, published in the transaction of the change.
const (
	EventApplied      = "feature.applied"      // Applied: a new version, or latest moved back to an old one
	EventPromoted     = "feature.promoted"     // Promoted
	EventMaterialised = "feature.materialised" // RunEnded
	EventFailed       = "feature.failed"       // RunEnded: a materialisation gave up
	EventCleared      = "feature.cleared"      // Applied: the online rows of a view version are gone
	EventTrainingSet  = "feature.training_set" // TrainingSetMade
	EventSkewed       = "feature.skewed"       // Compared: online rows differ from their source
	EventAgreed       = "feature.agreed"       // Compared: they did, and no longer do
)

// Applied is the body of EventApplied and EventCleared.
type Applied struct {
	Kind   Kind   `json:"kind"`
	Ref    string `json:"ref"`
	Digest string `json:"digest,omitempty"`
}

// Promoted is the body of EventPromoted.
type Promoted struct {
	Kind  Kind   `json:"kind"`
	Ref   string `json:"ref"`
	Alias string `json:"alias"`
}

// RunEnded is the body of EventMaterialised and EventFailed.
type RunEnded struct {
	ID    RunID  `json:"id"`
	View  string `json:"view"`
	State State  `json:"state"`
	Rows  int64  `json:"rows"`
	Error string `json:"error,omitempty"`
}

// Compared is the body of EventSkewed and EventAgreed.
type Compared struct {
	View       string   `json:"view"`
	Values     int      `json:"values"`
	Mismatches int      `json:"mismatches"`
	Features   []string `json:"features,omitempty"` // that differ
}

// TrainingSetMade is the body of EventTrainingSet.
type TrainingSetMade struct {
	Dataset string   `json:"dataset"`
	Views   []string `json:"views"`
}
