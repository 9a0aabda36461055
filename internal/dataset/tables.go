package dataset

import (
	"bytes"
	"context"
	"encoding/json"
	"slices"
	"strings"

	"github.com/falaj-ml/falaj/internal/dataset/table"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/store"
)

// OpenTable is an open dataset as other engines see it: an Iceberg table whose
// snapshots are the accepted versions.
type OpenTable struct {
	Metadata json.RawMessage // of format version 2
	Location string          // URI of a file with the metadata; empty before the first version
}

// Tables shows open datasets to other engines as Iceberg tables, and takes what they commit. Its
// callers are the Iceberg catalog, and jobs that read and write files themselves.
type Tables struct {
	*core
	definitions *Definitions
}

// Table is an open dataset for engines that read its files themselves. The
// current snapshot is the newest accepted version; of those before it the table
// has the ones that the caller may read, and that may be where the newest may.
// Needs dataset.query. Errors: fault.PermissionDenied for a sealed dataset, and
// where the data may not be; fault.NotFound for one that has no columns yet.
func (s *Tables) Table(ctx context.Context, p project.Name, name string) (OpenTable, error) {
	d, t, kept, err := s.state(ctx, p, name)
	if err != nil {
		return OpenTable{}, err
	}
	at := ""
	if len(kept) > 0 {
		at = s.cfg.Files.URI(d.Metadata)
	}
	return asTable(t, at)
}

// state is a table as the caller may see it, with the versions in it, newest
// first.
func (s *Tables) state(ctx context.Context, p project.Name, name string) (d Dataset, t table.Table, kept []Version, err error) {
	no := func(err error) (Dataset, table.Table, []Version, error) { return Dataset{}, table.Table{}, nil, err }
	for range maxCommits {
		v, err := s.find(ctx, ActionQuery, p, Ref{Name: name})
		if fault.Is(err, fault.NotFound) || fault.Is(err, fault.Conflict) {
			d, err := s.bare(ctx, p, name)
			if err != nil {
				return no(err)
			}
			return d, s.emptied(d), nil, nil
		}
		if err != nil {
			return no(err)
		}
		if v.Protection != Open {
			return no(closed(v.Ref().String()))
		}
		if err := s.pass(ctx, v, OpenRequest{Project: p, Ref: v.Ref(), Purpose: "table"}, false); err != nil {
			return no(err)
		}
		var before []Version
		if err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
			if d, err = s.live(ctx, tx, p, name); err != nil {
				return err
			}
			before, err = s.cfg.Store.Versions(ctx, tx, d.ID, Accepted, v.Number, s.limits.MetadataDepth)
			return err
		}); err != nil {
			return no(err)
		}
		if d.Spec.Protection != Open {
			return no(closed("dataset " + name))
		}
		if d.Accepted != v.Number { // another came meanwhile, and d.Metadata is of that
			continue
		}
		if kept, err = s.readable(ctx, d, v, before); err != nil {
			return no(err)
		}
		return d, s.table(d, kept, v), kept, nil
	}
	return no(fault.New(fault.Unavailable, "dataset %s has too many concurrent writers", name).WithHint("Try again."))
}

// readable is v and those of the versions before it that the caller may read,
// newest first, under the label with which v passed the door.
func (s *Tables) readable(ctx context.Context, d Dataset, v Version, before []Version) ([]Version, error) {
	asker, asks := s.cfg.Authorizer.(interface {
		Permits(ctx context.Context, action policy.Action, object policy.Object) (bool, error)
	})
	who := identity.From(ctx)
	kept := []Version{v}
	for _, b := range before {
		if b.Classification != v.Classification || residency.Of(b.Residency.Zones()...).String() != residency.Of(v.Residency.Zones()...).String() {
			continue
		}
		if ok, _ := who.Admits(string(ActionQuery), b.Ref().String()); who.Narrowed() && !ok {
			continue
		}
		if asks {
			ok, err := asker.Permits(ctx, ActionQuery, s.object(d, &b))
			if err != nil {
				return nil, err
			}
			if !ok {
				continue
			}
		}
		kept = append(kept, b)
	}
	return kept, nil
}

// Writable is an open dataset that the caller may read and write, for those who
// will write it by the catalog; one that is not there is the zero Dataset. Needs
// dataset.import and dataset.query.
func (s *Tables) Writable(ctx context.Context, p project.Name, name string) (Dataset, error) {
	d, err := s.allowed(ctx, ActionImport, p, name)
	if fault.Is(err, fault.NotFound) {
		return Dataset{}, nil
	}
	if err != nil {
		return Dataset{}, err
	}
	if d.Spec.Protection != Open {
		return Dataset{}, closed("dataset " + name)
	}
	return s.allowed(ctx, ActionQuery, p, name)
}

// TableKey is what the keys of a table's files begin with.
func TableKey(p project.Name, name string) string { return location(Dataset{Project: p, Name: name}) }

// ForeignParts are where below that other engines write.
var ForeignParts = []string{"data", "metadata"}

// HeldFile keeps a directory that a job writes to from being removed when it is
// empty.
const HeldFile = ".held"

// maxApart bounds the versions of a table that are reported individually.
const maxApart = 10

// Directories are those below a table's location whose files the principal of ctx
// may read: rooms, of which all versions may be read, also those that come with the
// same label, with the one that it would write to; and, of other rooms and of before
// there were any, the newest single versions. Needs dataset.query.
func (s *Tables) Directories(ctx context.Context, p project.Name, name string) (rooms, versions []string, err error) {
	d, err := s.allowed(ctx, ActionQuery, p, name)
	missing := fault.Is(err, fault.NotFound)
	if missing {
		d, err = s.declare(ctx, p, name, table.Change{}, true)
	}
	if err != nil {
		return nil, nil, err
	}
	switch w, err := s.derivedFrom(ctx, d, nil); {
	case err == nil && d.Spec.Protection == Open:
		rooms = append(rooms, room(w.draft))
	case err == nil:
	case fault.Is(err, fault.Internal) || fault.Is(err, fault.Unavailable):
		return nil, nil, err
	} // else it writes nothing there
	if missing {
		return rooms, nil, nil
	}
	may := map[string]bool{"": false} // by room; false: not all of it
	var apart []Version
	ask := s.asker(ctx, d)
	for below, more := int64(0), true; more; {
		var vs []Version
		if err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
			vs, err = s.cfg.Store.Versions(ctx, tx, d.ID, "", below, 500)
			return err
		}); err != nil {
			return nil, nil, err
		}
		more = len(vs) == 500
		for _, v := range vs {
			below = v.Number
			if v.Protection != Open || v.State == Deleted {
				continue
			}
			ok, err := ask(v)
			if err != nil {
				return nil, nil, err
			}
			all, seen := may[v.Room]
			if may[v.Room] = ok && (all || !seen); ok {
				apart = append(apart, v)
			}
		}
	}
	// What it would write to is not open to it where something in it is not.
	rooms = slices.DeleteFunc(rooms, func(r string) bool { all, seen := may[r]; return seen && !all })
	for r, all := range may {
		if all && !slices.Contains(rooms, r) {
			rooms = append(rooms, r)
		}
	}
	slices.Sort(rooms)
	for _, v := range apart {
		if !slices.Contains(rooms, v.Room) && len(versions) < maxApart {
			versions = append(versions, strings.TrimPrefix(strings.TrimSuffix(v.prefix(), "/"), location(d)+"/"))
		}
	}
	return rooms, versions, nil
}

// asker asks whether the principal of ctx may read versions of a dataset; of those
// with the same label the doors are asked once.
func (s *Tables) asker(ctx context.Context, d Dataset) func(v Version) (bool, error) {
	asker, asks := s.cfg.Authorizer.(interface {
		Permits(ctx context.Context, action policy.Action, object policy.Object) (bool, error)
	})
	who := identity.From(ctx)
	type label struct {
		zones string
		own   bool
	}
	doors := map[label]error{}
	return func(v Version) (bool, error) {
		if ok, _ := who.Admits(string(ActionQuery), v.Ref().String()); who.Narrowed() && !ok {
			return false, nil
		}
		if asks {
			if ok, err := asker.Permits(ctx, ActionQuery, s.object(d, &v)); err != nil || !ok {
				return false, err
			}
		}
		l := label{residency.Of(v.Residency.Zones()...).String(), v.CreatedBy == who.ID}
		if _, asked := doors[l]; !asked {
			doors[l] = s.fits(ctx, v, OpenRequest{Project: v.Project, Ref: v.Ref()}, true)
		}
		if err := doors[l]; err != nil && !fault.Is(err, fault.PermissionDenied) {
			return false, err
		}
		return doors[l] == nil, nil
	}
}

// bare is an open dataset that has no accepted version, and columns all the same.
func (s *Tables) bare(ctx context.Context, p project.Name, name string) (Dataset, error) {
	d, err := s.allowed(ctx, ActionQuery, p, name)
	if err != nil {
		return Dataset{}, err
	}
	if d.Spec.Protection != Open {
		return Dataset{}, closed("dataset " + name)
	}
	if d.Next == nil && len(d.Spec.Columns) == 0 {
		return Dataset{}, fault.New(fault.NotFound, "dataset %s is not a table yet: it has no accepted version and declares no columns", name).
			WithHint("Import a file, or declare spec.columns.")
	}
	return d, nil
}

// emptied is the table of a dataset without versions.
func (s *Tables) emptied(d Dataset) table.Table {
	if d.Next == nil {
		for _, c := range d.Spec.Columns {
			d.Next = append(d.Next, Field{Name: c.Name, Type: c.Type})
		}
		d.Next, _ = d.Fields.assign(d.Next, d.Spec.Columns) // the first version has them, too
	}
	return s.table(d, nil, Version{Protection: Open, Created: d.Updated})
}

func asTable(t table.Table, location string) (OpenTable, error) {
	var b bytes.Buffer
	if err := table.WriteMetadata(&b, t); err != nil {
		return OpenTable{}, err
	}
	return OpenTable{Metadata: b.Bytes(), Location: location}, nil
}

func closed(what string) error {
	return fault.New(fault.PermissionDenied, "%s is sealed: its files are encrypted, and other engines cannot read them", what).
		WithHint("Read it through Falaj: with falaj dataset query, the Python package, or as data of a job. To let other engines read a dataset, declare it with protection: open.")
}

// ListTables lists the names of the open datasets that the caller may read; next is
// the token of the following page. Needs dataset.read.
func (s *Tables) ListTables(ctx context.Context, p project.Name, page Page) (names []string, next string, err error) {
	ds, next, err := s.definitions.List(ctx, p, page)
	if err != nil {
		return nil, "", err
	}
	for _, d := range ds {
		if d.Spec.Protection == Open && (d.Accepted > 0 || d.Next != nil || len(d.Spec.Columns) > 0) {
			names = append(names, d.Name)
		}
	}
	return names, next, nil
}
