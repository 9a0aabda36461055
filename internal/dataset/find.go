package dataset

import (
	"context"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/store"
)

// SearchFields are what a search finds a dataset by, besides its name, description and owner.
func (d Dataset) SearchFields() []store.Field { return store.FieldsOf("column", d.Fields.Names()...) }

// SearchFields are what a search for lineage finds a version by.
func (l Lineage) SearchFields() (out []store.Field) {
	for _, parent := range l.Parents {
		out = append(out, store.Field{Name: "from", Value: parent.Ref})
	}
	if l.Source != nil {
		out = append(out, store.Field{Name: "from", Value: l.Source.Filename})
	}
	return out
}

// Find reads those datasets that the caller may read, by name after a name, of which may says
// that they may be what is looked for: limit of them at most. With from it also knows the
// lineage of their newest versions. Needs dataset.read.
func (s *Definitions) Find(ctx context.Context, p project.Name, from bool, after string, limit int, may func(store.Line) (bool, error)) (found store.Found[Dataset], err error) {
	only, err := s.listable(ctx, p)
	if err != nil {
		return found, err
	}
	found, err = store.Find(ctx, s.cfg.DB, store.Lookup[Dataset]{
		Lines: func(ctx context.Context, tx *store.Tx, after string, limit int) ([]store.Line, error) {
			return s.cfg.Store.Lines(ctx, tx, p, only, from, after, limit)
		},
		Read: func(ctx context.Context, tx *store.Tx, names []string) ([]Dataset, error) {
			return s.cfg.Store.Datasets(ctx, tx, p, names, "", len(names))
		},
		Key: func(d Dataset) string { return d.Name },
	}, after, limit, may)
	if err != nil || only == nil {
		return found, err
	}
	found.Objects, err = s.permitted(ctx, found.Objects)
	return found, err
}

// listable are the names that the caller lists; nil for all of the project. A token that names
// its objects lists what it names.
func (s *Definitions) listable(ctx context.Context, p project.Name) (only []string, err error) {
	who := identity.From(ctx)
	if names, every := who.Objects(string(ActionRead)); who.Narrowed() && !every {
		return append([]string{}, names...), nil
	}
	return nil, s.cfg.Authorizer.Allow(ctx, ActionRead, policy.Object{Project: string(p), Kind: objectKind})
}

// permitted are those of datasets that a token names which its principal may read: the names
// come from the token alone.
func (s *Definitions) permitted(ctx context.Context, ds []Dataset) ([]Dataset, error) {
	kept := ds[:0]
	for _, d := range ds {
		err := s.cfg.Authorizer.Allow(ctx, ActionRead, s.object(d, nil))
		if err == nil {
			kept = append(kept, d)
		} else if !fault.Is(err, fault.PermissionDenied) && !fault.Is(err, fault.NotFound) {
			return nil, err
		}
	}
	return kept, nil
}
