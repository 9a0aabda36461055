package dataset

import (
	"context"
	"slices"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/store"
)

// JobInputs is everything that a job could read, whether it did or not. It is the upstream
// lineage of the job's outputs.
type JobInputs struct {
	Versions []Ref
	// Beside are inputs other than datasets, such as models. Their labels count as those of
	// versions.
	Beside []Labelled
	// Tables are open datasets of which it could read every version, each as its newest
	// one was when the job was submitted; without a number there was none.
	Tables []Ref
	// Zones is the residency of its outputs: it cannot read table versions with a narrower
	// residency. nil reads all.
	Zones residency.Label
	// Since is when it began to read tables: a version that was deleted before was not read,
	// and nothing is made of a table from which a person was erased later.
	Since time.Time
}

// jobInputs is what the job of an attempt could read: what it makes is made of that, however
// it sends it. Of others it is nothing.
func (s *core) jobInputs(ctx context.Context) ([]JobInputs, error) {
	who := identity.From(ctx)
	if who.Kind != identity.Attempt {
		return nil, nil
	}
	if s.cfg.JobInputs == nil {
		return nil, fault.New(fault.Internal, "the inputs of %s are unknown, so its outputs would have no lineage", who)
	}
	rs, err := s.cfg.JobInputs(ctx, who.ID)
	return rs, fault.Wrap(err, "inputs of %s", who)
}

// inputVersions are the versions that were read, perhaps. A version that was deleted since
// is one of them. It asks for no permission: who read them had it. Errors: fault.Gone
// for one that a person was erased from; fault.Conflict for a rejected one.
func (s *core) inputVersions(ctx context.Context, tx *store.Tx, p project.Name, rs []JobInputs) (vs []Version, err error) {
	for _, r := range rs {
		for _, ref := range r.Versions {
			v, err := s.versionEvenDeleted(ctx, tx, p, ref)
			switch {
			case err != nil:
			case v.State == Rejected:
				err = rejected(v)
			case v.State == Deleted && v.RedactedBy > 0:
				err = gone(v)
			}
			if err != nil {
				return nil, fault.Wrap(err, "parent %s", ref)
			}
			vs = append(vs, v)
		}
		for _, t := range r.Tables {
			of, err := s.tableVersions(ctx, tx, p, t, r)
			if err != nil {
				return nil, err
			}
			vs = append(vs, of...)
		}
	}
	slices.SortFunc(vs, func(a, b Version) int { return compareRefs(a.Ref(), b.Ref()) })
	vs = slices.CompactFunc(vs, func(a, b Version) bool { return a.ID == b.ID })
	if len(vs) > maxParents {
		return nil, tooManyInputs()
	}
	return vs, nil
}

// versionEvenDeleted finds a version, also of a dataset that was deleted.
func (s *core) versionEvenDeleted(ctx context.Context, tx *store.Tx, p project.Name, ref Ref) (Version, error) {
	d, err := s.cfg.Store.Dataset(ctx, tx, p, ref.Name)
	if err != nil {
		return Version{}, err
	}
	return s.cfg.Store.Version(ctx, tx, d.ID, ref.Number)
}

// tableVersions are the versions of a table that were read, perhaps, without those that
// others of them were made of: the lineage leads there.
func (s *core) tableVersions(ctx context.Context, tx *store.Tx, p project.Name, table Ref, r JobInputs) (vs []Version, err error) {
	d, err := s.cfg.Store.Dataset(ctx, tx, p, table.Name)
	if fault.Is(err, fault.NotFound) {
		return nil, nil // it never was
	}
	if err != nil {
		return nil, err
	}
	made := map[VersionID]bool{} // what others were made of
	for below, more := int64(0), true; more; {
		page, err := s.cfg.Store.Versions(ctx, tx, d.ID, "", below, 500)
		if err != nil {
			return nil, err
		}
		more = len(page) == 500
		for _, v := range page {
			below = v.Number
			switch {
			case v.State == Rejected || !r.includes(v):
				continue
			case v.State == Deleted && v.RedactedBy > 0: // see unerased
				continue
			case v.State == Deleted && !v.DeletedAt.After(r.Since): // before it could be read
				continue
			}
			vs = append(vs, v)
			for _, parent := range v.Lineage.Parents {
				made[parent.ID] = true
			}
		}
		// What a version was made of has a lower number, but for redactions: most of a page goes at once.
		if vs = slices.DeleteFunc(vs, func(v Version) bool { return made[v.ID] }); len(vs) > maxParents {
			return nil, tooManyInputs()
		}
	}
	return vs, nil
}

func tooManyInputs() error {
	return fault.New(fault.Invalid, "the job could read more than %d versions, the limit of parents of a version", maxParents).
		WithHint("Keep fewer versions of the tables (spec.keep), or list only the needed versions as data of the job.")
}

// includes reports whether a version of a table may be where it could be read.
func (r JobInputs) includes(v Version) bool { return r.Zones == nil || r.Zones.Within(v.Residency) }

// requireNotErased refuses what was read, perhaps, of a table from which a person was erased
// meanwhile, whatever became of the version that had the person. Like unredacted, it is
// asked in the transaction in which rows become a version. Error: fault.Gone.
func (s *core) requireNotErased(ctx context.Context, tx *store.Tx, p project.Name, rs []JobInputs) error {
	for _, r := range rs {
		for _, table := range r.Tables {
			d, err := s.cfg.Store.Dataset(ctx, tx, p, table.Name)
			if fault.Is(err, fault.NotFound) {
				continue // it never was
			}
			if err != nil {
				return err
			}
			// What stands for another version since then has a number of since then.
			for below, more := int64(0), true; more; {
				page, err := s.cfg.Store.Versions(ctx, tx, d.ID, "", below, 100)
				if err != nil {
					return err
				}
				more = len(page) == 100
				for _, v := range page {
					if below = v.Number; below <= table.Number {
						more = false
						break
					}
					if v.Redacts == 0 || !v.Created.After(r.Since) || !r.includes(v) {
						continue
					}
					was, err := s.cfg.Store.Version(ctx, tx, d.ID, v.Redacts)
					if err != nil {
						return err
					}
					return fault.Wrap(gone(was), "table %s", table.Name)
				}
			}
		}
	}
	return nil
}

// withJobInputs adds what was read, perhaps, to other parents, and what of it is no dataset to
// what is beside them.
func (s *core) withJobInputs(ctx context.Context, p project.Name, parents []Version, beside []Labelled, rs []JobInputs) ([]Version, []Labelled, error) {
	err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		more, err := s.inputVersions(ctx, tx, p, rs)
		parents = slices.Concat(parents, more)
		return err
	})
	for _, r := range rs {
		beside = slices.Concat(beside, r.Beside)
	}
	slices.SortFunc(parents, func(a, b Version) int { return compareRefs(a.Ref(), b.Ref()) })
	return slices.CompactFunc(parents, func(a, b Version) bool { return a.ID == b.ID }), beside, err
}
