// Package policy decides who may do what: Cedar policies over roles, projects
// and attributes.
//
// # Map
//
//   - policy.go: the question that every domain asks (Authorizer).
//   - actions.go: the one list of all actions with the roles that have each.
//   - table.go: that list as docs/reference/permissions.md.
//   - authorizer/ answers the question with Cedar; policysql/ stores the
//     policies that projects add.
//
// # Guarantees
//
// Default deny: an action that is not in the list, a principal without a role
// and the zero Principal are refused. A forbid wins over every permit. A refusal
// is in the synced journal before it is answered.
package policy

import (
	"context"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/residency"
)

// Action is what a principal wants to do, "noun.verb": "dataset.import",
// "job.submit", "model.read". actions.go lists all of them with the roles
// that have each.
type Action string

// Object is what it is done to. With neither Kind nor Name it is the gate at
// the edge: "may the caller do this to some object of the project?", asked
// before a body is decoded; a domain names at least the Kind and asks again.
type Object struct {
	Project string // empty: the installation
	Kind    string // "dataset"
	Name    string // "weather@1"; empty for the collection
	Owner   string // principal id of the creator; may be empty
	// Classification is public, internal, confidential or restricted. Where
	// data is read, an object without one is treated as confidential.
	Classification string
	Residency      residency.Label
	// Contents says that bytes or values of the object are read, not only that it
	// exists, its name and its state: then its class decides, as it always does for
	// actions that read data. The action's definition must say Contents or Data.
	Contents bool
	// Sources are the objects that this one was made of, as kind/name,
	// "dataset/cards@1". Contents of a restricted object are open to a principal
	// with a grant that names the object, or one for each of its restricted sources.
	Sources []string
}

// Authorizer is the question every domain service asks before it acts or
// answers. A nil error means yes. A refusal is a fault.PermissionDenied (or
// fault.NotFound where the caller may not know that the object exists), and is
// already in the audit journal when Allow returns. The principal is the
// context's.
type Authorizer interface {
	Allow(ctx context.Context, action Action, object Object) error
}

// Permitter is an Authorizer that also answers without a record.
type Permitter interface {
	Permits(ctx context.Context, action Action, object Object) (bool, error)
}

// Permits asks without a record where the authorizer can, for what is answered in part
// to who may not have the whole: lists, and objects without their contents.
func Permits(ctx context.Context, a Authorizer, action Action, object Object) (bool, error) {
	if p, ok := a.(Permitter); ok {
		return p.Permits(ctx, action, object)
	}
	switch err := a.Allow(ctx, action, object); {
	case err == nil:
		return true, nil
	case fault.Is(err, fault.PermissionDenied) || fault.Is(err, fault.NotFound):
		return false, nil
	default:
		return false, err
	}
}

// String is "dataset weather@1", as messages and audit entries show it.
func (o Object) String() string {
	switch {
	case o.Kind == "" && o.Project == "":
		return "the installation"
	case o.Kind == "":
		return "project " + clip(o.Project)
	case o.Name == "":
		return clip(o.Kind)
	}
	return clip(o.Kind) + " " + clip(o.Name)
}

// DatasetSources lists dataset versions ("cards@1") as Sources.
func DatasetSources(refs []string) []string {
	var sources []string
	for _, r := range refs {
		sources = append(sources, "dataset/"+r)
	}
	return sources
}

// Gate reports whether the object is only the gate at the edge.
func (o Object) Gate() bool { return o.Kind == "" && o.Name == "" }

// clip bounds what a caller's names can put into messages and the journal.
func clip(s string) string { return fault.Clip(s, 200) }
