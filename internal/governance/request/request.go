// Package request is the rule of two people: acts that loosen what protects others, or that
// cannot be undone, are requested by one person and approved by another.
//
// # Map
//
//   - request.go: Request and its states.
//   - service.go: Ask, by which domains put an act on request; Approve, Reject, List.
//   - second.go: who counts as the second person.
//   - store.go, events.go: what it needs of a database, what it tells others. requestsql/
//     stores requests.
//
// # Guarantees
//
// An act of this kind happens once it was approved by another person than who requested
// it: one who had the right for a while before the request, and has neither account, nor
// role, nor token from who requested it. Where no other person has the right, the act
// happens at once. An approved act is carried out with the rights of who requested it, also
// after a kill -9 between the two. Each step is in the audit log.
//
// # What the caller owes
//
// Carrying out an act again does no harm. A payload holds no secrets.
package request

import (
	"time"

	"github.com/falaj-ml/falaj/internal/governance/policy"
)

// State of a request: requested → approved → done | failed, or rejected | withdrawn | expired.
type State string

// The states. Approved is on its way to Done or Failed; the others but Requested are final.
const (
	Requested State = "requested"
	Approved  State = "approved"
	Done      State = "done"
	Failed    State = "failed"    // approved, and could not be carried out
	Rejected  State = "rejected"  // by another person
	Withdrawn State = "withdrawn" // by who requested it
	Expired   State = "expired"   // nobody answered in time
)

// Request is an act that waits for a second person, or did.
type Request struct {
	ID              string          `json:"id"`                // "req_01J…"
	Project         string          `json:"project,omitempty"` // empty: of the installation
	Kind            string          `json:"kind"`
	Object          string          `json:"object"`
	Summary         string          `json:"summary" doc:"Requested change"`
	Change          string          `json:"change,omitempty" doc:"The current and the requested state, as text"`
	Reason          string          `json:"reason,omitempty"`
	State           State           `json:"state" enum:"requested,approved,done,failed,rejected,withdrawn,expired"`
	Message         string          `json:"message,omitempty" doc:"Why it could not be carried out"`
	RequestedBy     string          `json:"requested_by"`
	RequestedByName string          `json:"requested_by_name,omitempty"`
	RequestedAt     time.Time       `json:"requested_at"`
	ExpiresAt       time.Time       `json:"expires_at" doc:"After this time it has to be requested again"`
	DecidedBy       string          `json:"decided_by,omitempty"`
	DecidedByName   string          `json:"decided_by_name,omitempty"`
	DecidedAt       time.Time       `json:"decided_at,omitzero"`
	Approvers       []policy.Action `json:"approvers" doc:"Rights of which the second person needs one"`

	Act Stored `json:"-"`
}

// Stored is what is kept of an act beside what is shown.
type Stored struct {
	Action     policy.Action `json:"action"`
	ObjectKind string        `json:"object_kind"`
	ObjectName string        `json:"object_name"`
	ByKind     string        `json:"by_kind"` // of principal
	Payload    []byte        `json:"payload"`
	Same       string        `json:"same,omitempty"`
}

func (r Request) object() policy.Object {
	return policy.Object{Project: r.Project, Kind: r.Act.ObjectKind, Name: r.Act.ObjectName}
}
