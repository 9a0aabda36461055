// Package policy decides who may do what: Cedar policies over roles, projects
// and attributes.
package policy

import (
	"context"

	"github.com/falaj-ml/falaj/internal/governance/residency"
)

// Action is what a principal wants to do, "noun.verb": "dataset.import",
// "job.submit", "model.read". actions.go lists all of them with the roles
// that have each.
type Action string

// Object is what it is done to.
type Object struct {
	Project        string
	Kind           string // "dataset"
	Name           string // "weather@1"; empty for the collection
	Owner          string // principal id of the creator; may be empty
	Classification string // public internal confidential restricted; may be empty
	Residency      residency.Label
}

// Authorizer is the question every domain service asks before it acts or
// answers. A nil error means yes. A refusal is a fault.PermissionDenied (or
// fault.NotFound where the caller may not know that the object exists), and is
// already in the audit journal when Allow returns. The principal is the
// context's.
type Authorizer interface {
	Allow(ctx context.Context, action Action, object Object) error
}
