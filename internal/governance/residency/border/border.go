// Package border is the service of residency: the zones that there are, the
// widening of labels across them, and the guard of transfers.
//
// # Map
//
//   - border.go: Widening, its states, and what a domain lends for it (Labels).
//   - zones.go: zones are made and changed, never removed.
//   - law.go: changing a zone's jurisdiction, provider or trust by two people with a reason.
//   - relabel.go: narrowing at once, widening by two people with a reason.
//   - guard.go: the check of each transfer (residency.Guard), with refusals on record.
//   - store.go, events.go: what it needs of a database, what it tells others.
//
// # Guarantees
//
// The zone home exists. A zone's jurisdiction and provider, once said, and its trust
// stay as long as fewer than two people change them: labels name the zone, and who gave
// one relied on its law. No label is widened by fewer than two people, nor when it, or the
// law, has changed since the first of them looked.
//
// # What the caller owes
//
// Domains keep the labels of their objects and register how to read and change
// them; they call Pass before they open storage, place work or deploy.
package border

import (
	"context"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/store"
)

// State of a widening: requested → approved | rejected | withdrawn | expired.
type State string

// The states. All but Requested are final.
const (
	Requested State = "requested"
	Approved  State = "approved"
	Rejected  State = "rejected"  // by the second person
	Withdrawn State = "withdrawn" // by the first
	Expired   State = "expired"   // nobody answered within the limit
)

// Widening is the wish that an object may be in more zones, or that a zone, and with it all
// that may be there, comes under another law.
type Widening struct {
	ID      string          `json:"id"`      // "wid_01J…"
	Project project.Name    `json:"project"` // empty of a zone, which is the installation's
	Kind    string          `json:"kind"`    // "dataset", "zone"
	Name    string          `json:"name"`    // "weather@1"
	From    residency.Label `json:"from"`
	To      residency.Label `json:"to"`
	// FromClass and ToClass are set where the classification changes.
	FromClass project.Classification `json:"from_classification,omitempty"`
	ToClass   project.Classification `json:"to_classification,omitempty"`
	// FromLaw and ToLaw are set of a zone.
	FromLaw     *residency.Law `json:"from_law,omitempty"`
	ToLaw       *residency.Law `json:"to_law,omitempty"`
	Reason      string         `json:"reason"`
	State       State          `json:"state"`
	RequestedBy string         `json:"requested_by"` // principal id
	RequestedAt time.Time      `json:"requested_at"`
	ExpiresAt   time.Time      `json:"expires_at"`
	DecidedBy   string         `json:"decided_by,omitempty"`
	DecidedAt   time.Time      `json:"decided_at,omitzero"`
}

// Relabelling asks for another label of an object.
type Relabelling struct {
	Project project.Name    `json:"-"`
	Kind    string          `json:"kind" doc:"Kind of the object, such as dataset"`
	Name    string          `json:"name" doc:"Name of the object, such as weather@1"`
	Label   residency.Label `json:"label,omitempty" doc:"All zones where it is allowed from then on; omit to keep the current zones"`
	// Classification is the class from then on. A stricter one counts at once, a lower
	// one is a widening.
	Classification project.Classification `json:"classification,omitempty" enum:"public,internal,confidential,restricted" doc:"New classification; omit to keep the current one"`
	Reason         string                 `json:"reason" doc:"Reason, at least 10 characters; recorded in the audit log"`
}

// Validate refuses what cannot be a relabelling. Error: fault.Invalid.
func (r Relabelling) Validate() error {
	if err := r.Project.Validate(); err != nil {
		return err
	}
	if r.Kind == "" || r.Name == "" || len(r.Kind)+len(r.Name) > 300 {
		return fault.New(fault.Invalid, "kind and name of the object are missing or too long")
	}
	if err := checkReason(r.Reason); err != nil {
		return err
	}
	if r.Classification != "" {
		if err := r.Classification.Validate(); err != nil {
			return err
		}
		if len(r.Label) == 0 {
			return nil
		}
	}
	if len(r.Label) == 0 {
		return fault.New(fault.Invalid, "the label names no zone, and no classification is given").WithHint("Name every zone where the object is allowed, such as [home].")
	}
	return r.Label.Validate()
}

func checkReason(reason string) error {
	if len(reason) >= 10 && len(reason) <= 2000 {
		return nil
	}
	return fault.New(fault.Invalid, "the reason has %d bytes, and must have 10 to 2000", len(reason)).
		WithHint("Explain the change for the auditors.")
}

// Labels is how a domain lends the labels of one kind of its objects. Both
// methods work in the caller's transaction.
type Labels interface {
	// Label is the object's label now. Error: fault.NotFound.
	Label(ctx context.Context, tx *store.Tx, in project.Name, name string) (residency.Label, error)
	// Relabel gives the object another label. It changes nothing else: what is
	// derived from the object keeps the label it inherited.
	Relabel(ctx context.Context, tx *store.Tx, in project.Name, name string, to residency.Label) error
}

// Classes is how a domain lends the classifications of one kind of its objects, besides
// Labels. Both methods work in the caller's transaction.
type Classes interface {
	// Class is the object's classification now. Error: fault.NotFound.
	Class(ctx context.Context, tx *store.Tx, in project.Name, name string) (project.Classification, error)
	// Reclassify gives the object another classification, and changes nothing else.
	Reclassify(ctx context.Context, tx *store.Tx, in project.Name, name string, to project.Classification) error
}
