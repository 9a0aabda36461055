package border

import (
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/governance/residency"
)

// The events.
const (
	ZoneApplied     = "zone.applied"           // body: residency.Place
	WideningChanged = "label.widening_changed" // body: Widening
	LabelChanged    = "label.changed"          // body: LabelEvent
)

// LabelEvent tells that an object may be elsewhere from now on.
type LabelEvent struct {
	Project project.Name    `json:"project"`
	Kind    string          `json:"kind"`
	Name    string          `json:"name"`
	From    residency.Label `json:"from"`
	To      residency.Label `json:"to"`
	// FromClass and ToClass are set where the classification changed.
	FromClass project.Classification `json:"from_classification,omitempty"`
	ToClass   project.Classification `json:"to_classification,omitempty"`
}
