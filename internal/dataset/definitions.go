package dataset

import (
	"context"
	"encoding/base64"
	"fmt"
	"slices"
	"strconv"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/store"
)

// Definitions applies, deletes, finds and lists datasets and their versions. Its callers are the
// HTTP API, and everything that names a version: jobs, features, lineage, ingestion.
type Definitions struct{ *core }

// One gives a dataset. Needs dataset.read.
func (s *Definitions) One(ctx context.Context, p project.Name, name string) (Dataset, error) {
	return s.allowed(ctx, ActionRead, p, name)
}

// Version gives a version, whatever its state. Needs dataset.read.
func (s *Definitions) Version(ctx context.Context, p project.Name, ref Ref) (Version, error) {
	return s.find(ctx, ActionRead, p, ref)
}

// Elsewhere warns of a dataset that this server may not hold; empty for others.
func (s *Definitions) Elsewhere(ctx context.Context, p project.Name, spec Spec) ([]string, error) {
	def, err := s.defaults(ctx, p)
	if err != nil {
		return nil, err
	}
	label := def.residency(spec)
	if label.Allows(s.cfg.Zone) {
		return nil, nil
	}
	return []string{fmt.Sprintf("its residency is %s, and this server is in %s: importing here fails until the residency includes %s", label, s.cfg.Zone, s.cfg.Zone)}, nil
}

// Page asks for a part of a list.
type Page struct {
	Size  int    // 0 is 100, at most 1,000
	Token string // from the page before
}

func (p Page) size() int {
	if p.Size <= 0 {
		return 100
	}
	return min(p.Size, 1000)
}

// List lists the datasets that the caller may read, by name; next is the token
// of the following page. Needs dataset.read.
func (s *Definitions) List(ctx context.Context, p project.Name, page Page) (ds []Dataset, next string, err error) {
	only, err := s.listable(ctx, p)
	if err != nil {
		return nil, "", err
	}
	after, err := base64.RawURLEncoding.DecodeString(page.Token)
	if err != nil {
		return nil, "", fault.New(fault.Invalid, "the page token is invalid")
	}
	err = s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		ds, err = s.cfg.Store.Datasets(ctx, tx, p, only, string(after), page.size()+1)
		return err
	})
	if err != nil {
		return nil, "", err
	}
	if len(ds) > page.size() {
		ds = ds[:page.size()]
		next = base64.RawURLEncoding.EncodeToString([]byte(ds[len(ds)-1].Name))
	}
	if only == nil {
		return ds, next, nil
	}
	ds, err = s.permitted(ctx, ds)
	return ds, next, err
}

// Versions lists a dataset's versions, newest first. Needs dataset.read.
func (s *Definitions) Versions(ctx context.Context, p project.Name, name string, page Page) (vs []Version, next string, err error) {
	d, err := s.allowed(ctx, ActionRead, p, name)
	if err != nil {
		return nil, "", err
	}
	below := int64(0)
	if page.Token != "" {
		if below, err = strconv.ParseInt(page.Token, 10, 64); err != nil || below < 1 {
			return nil, "", fault.New(fault.Invalid, "the page token is invalid")
		}
	}
	err = s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		vs, err = s.cfg.Store.Versions(ctx, tx, d.ID, "", below, page.size()+1)
		return err
	})
	if err != nil {
		return nil, "", err
	}
	if len(vs) > page.size() {
		vs = vs[:page.size()]
		next = strconv.FormatInt(vs[len(vs)-1].Number, 10)
	}
	return vs, next, s.openStatistics(ctx, pointers(vs)...)
}

// SearchFields are what a search finds a dataset by, besides its name, description and owner.
// Its columns are those of accepted versions and of an open table that has none yet.
func (d Dataset) SearchFields() []store.Field {
	names := d.columns()
	for _, f := range d.Next {
		names = append(slices.Clip(names), f.Name)
	}
	slices.Sort(names)
	return store.FieldsOf("column", slices.Compact(names)...)
}

// columns are the columns that any accepted version had.
func (d Dataset) columns() []string {
	if d.Columns == nil && d.Accepted > 0 {
		return d.Fields.Names()
	}
	return slices.Clone(d.Columns)
}

// addColumns adds the columns of a version that is about to become the dataset's newest.
func addColumns(d *Dataset, v Version) {
	names := d.columns()
	if v.State == Accepted {
		for _, f := range v.Schema {
			names = append(names, f.Name)
		}
	}
	slices.Sort(names)
	d.Columns = append([]string{}, slices.Compact(names)...)
}

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
