package dataset

import (
	"context"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/store"
)

// Labels lends the labels of versions ("weather@1") to the service of
// residency, which decides who changes them (border.Labels). The label is all of
// a version that ever changes.
type Labels struct{ Store Store }

// Label is the residency of a version.
func (l Labels) Label(ctx context.Context, tx *store.Tx, in project.Name, name string) (residency.Label, error) {
	v, err := l.version(ctx, tx, in, name)
	return v.Residency, err
}

// Relabel changes the residency of a version.
func (l Labels) Relabel(ctx context.Context, tx *store.Tx, in project.Name, name string, to residency.Label) error {
	v, err := l.version(ctx, tx, in, name)
	if err != nil {
		return err
	}
	v.Residency = to
	return l.Store.UpdateVersion(ctx, tx, v)
}

// Class is how sensitive a version is, or, without a number, what is declared of the
// dataset. A deleted version keeps its class.
func (l Labels) Class(ctx context.Context, tx *store.Tx, in project.Name, name string) (Classification, error) {
	ref, err := ParseRef(name)
	if err != nil {
		return "", err
	}
	d, err := l.Store.Dataset(ctx, tx, in, ref.Name)
	if err != nil || ref.Number == 0 {
		return d.Spec.Classification, err
	}
	v, err := l.Store.Version(ctx, tx, d.ID, ref.Number)
	return v.Classification, err
}

// Reclassify changes how sensitive a version is, or, without a number, what is declared of
// the dataset, for versions to come.
func (l Labels) Reclassify(ctx context.Context, tx *store.Tx, in project.Name, name string, to Classification) error {
	ref, err := ParseRef(name)
	if err != nil {
		return err
	}
	if ref.Number == 0 {
		d, err := l.Store.Dataset(ctx, tx, in, ref.Name)
		if err != nil {
			return err
		}
		d.Spec.Classification, d.Lowered = to, d.Latest
		d.Revision++
		return l.Store.PutDataset(ctx, tx, d)
	}
	v, err := l.version(ctx, tx, in, name)
	if err != nil {
		return err
	}
	v.Classification = to
	return l.Store.UpdateVersion(ctx, tx, v)
}

func (l Labels) version(ctx context.Context, tx *store.Tx, in project.Name, name string) (Version, error) {
	ref, err := ParseRef(name)
	if err != nil {
		return Version{}, err
	}
	if ref.Number == 0 {
		return Version{}, fault.New(fault.Invalid, "the version of %s is required", name).WithHint("Each version has its own label. Name the version, such as %s@1.", name)
	}
	d, err := l.Store.Dataset(ctx, tx, in, ref.Name)
	if err != nil {
		return Version{}, err
	}
	v, err := l.Store.Version(ctx, tx, d.ID, ref.Number)
	if err == nil && v.State == Deleted {
		err = fault.New(fault.Gone, "%s was deleted", v.Ref())
	}
	return v, err
}
