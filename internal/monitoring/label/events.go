package label

import (
	"encoding/json"
	"time"

	"github.com/falaj-ml/falaj/internal/serving/rollout"
)

// Names of this package's events.
const (
	EventReceived  = "label.received"    // body Received
	EventConcluded = "rollout.concluded" // body Concluded
)

// Received tells that labels were joined to predictions of a deployment.
type Received struct {
	Deployment string `json:"deployment"`
	Joined     int    `json:"joined"`
}

// Concluded tells, once for each rollout, that it is decided.
type Concluded struct {
	Deployment string          `json:"deployment"`
	Rollout    string          `json:"rollout"`
	Outcome    rollout.Outcome `json:"outcome"` // never rollout.Continue
	Reason     string          `json:"reason"`
	Evidence   json.RawMessage `json:"evidence"` // Evidence
	At         time.Time       `json:"at"`       // on the clock of the records
}

// Evidence is on what a decision rests.
type Evidence struct {
	rollout.Observations
	Decision rollout.Decision `json:"decision"`
	Labels   int64            `json:"labels"`
}
