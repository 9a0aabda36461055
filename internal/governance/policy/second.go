package policy

import (
	"context"
	"time"

	"github.com/falaj-ml/falaj/internal/store"
)

// Act is an act that takes two people: it loosens what protects others, or cannot be
// undone.
type Act struct {
	Kind    string   // who carries it out, as TwoPeople.Register was told
	Action  Action   // what its requester needs
	Approve []Action // what its approver needs one of; empty is Action
	Object  Object
	Summary string // what changes, in words: kept in the audit log
	Change  string // what it is now and would be, as text, for who approves it; may be empty
	Reason  string // why; may be empty
	Payload any    // what Carry gets, as JSON; no secrets
	Same    string // what makes two acts the same request; empty is the payload
}

// Requested is what a second person is asked to approve.
type Requested struct {
	By      []string // who wants it, or made what is approved
	At      time.Time
	Actions []Action // what the approver needs one of
	Object  Object
}

// Carry carries out an act that was approved. The context's principal is who requested it.
type Carry func(ctx context.Context, payload []byte) error

// SecondPerson refuses the caller as the second person, in the transaction of the approval.
// Error: fault.PermissionDenied.
type SecondPerson func(ctx context.Context, tx *store.Tx, r Requested) error

// TwoPeople decides when an act takes two people; request.Service does.
type TwoPeople interface {
	// Register says who carries out acts of a kind. Call it before requests are served.
	Register(kind string, carry Carry)
	// Ask is nil when the act may happen now: it was approved, or nobody else could
	// approve it. Otherwise the act is requested, and the error says so. Error:
	// fault.PermissionDenied.
	Ask(ctx context.Context, a Act) error
}

// Ask asks t about an act; without a t, one person may do everything.
func Ask(ctx context.Context, t TwoPeople, a Act) error {
	if t == nil {
		return nil
	}
	return t.Ask(ctx, a)
}
