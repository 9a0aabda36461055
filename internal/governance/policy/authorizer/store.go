package authorizer

import (
	"context"
	"time"

	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/store"
)

// Policy is a project's own policy text.
type Policy struct {
	Project   project.Name `json:"project"`
	Name      string       `json:"name"`
	Spec                   // what the manifest says
	UpdatedAt time.Time    `json:"updated_at"`
	UpdatedBy string       `json:"updated_by"`
	Revision  int64        `json:"revision"`
}

// Spec is the manifest of a project's policy.
type Spec struct {
	Description string `json:"description,omitempty" yaml:"description" doc:"For people, at most 2000 characters"`
	Cedar       string `json:"cedar" yaml:"cedar" doc:"Cedar policies; each names its actions"`
}

// Store keeps the policies of projects. Every method works in the caller's
// transaction. What is not there is fault.NotFound.
type Store interface {
	Put(ctx context.Context, tx *store.Tx, p Policy) error
	One(ctx context.Context, tx *store.Tx, in project.Name, name string) (Policy, error)
	List(ctx context.Context, tx *store.Tx, in project.Name) ([]Policy, error) // by name
	Delete(ctx context.Context, tx *store.Tx, in project.Name, name string) error
}
