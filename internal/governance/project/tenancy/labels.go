package tenancy

import (
	"context"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/store"
)

// Labels lends the classification of projects, which is the least that their datasets have
// where it is confidential or restricted, to the service that lets two people lower it.
type Labels struct{ Store Store }

// Label implements border.Labels. A project's residency is changed by its manifest: it is
// the default of what names none.
func (Labels) Label(context.Context, *store.Tx, project.Name, string) (residency.Label, error) {
	return nil, fault.New(fault.Invalid, "a project's residency is changed by its manifest")
}

// Relabel implements border.Labels.
func (Labels) Relabel(context.Context, *store.Tx, project.Name, string, residency.Label) error {
	return fault.New(fault.Invalid, "a project's residency is changed by its manifest")
}

// Class implements border.Classes.
func (l Labels) Class(ctx context.Context, tx *store.Tx, in project.Name, name string) (project.Classification, error) {
	if name != string(in) {
		return "", project.Unknown(name)
	}
	p, err := l.Store.One(ctx, tx, in)
	return p.Classification, err
}

// Reclassify implements border.Classes.
func (l Labels) Reclassify(ctx context.Context, tx *store.Tx, in project.Name, _ string, to project.Classification) error {
	p, err := l.Store.One(ctx, tx, in)
	if err != nil {
		return err
	}
	p.Classification = to
	p.Revision++
	return l.Store.Update(ctx, tx, p)
}
