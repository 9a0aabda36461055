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

// Reading is what a job could read, whether it did or not: what it makes is made of that.
type Reading struct {
	Versions []Ref
	// Tables are open datasets of which it could read every version, each as its newest
	// one was when the job was submitted; without a number there was none.
	Tables []Ref
	// Zones are where what it makes may be: it reads no version of a table that may be
	// in fewer. nil reads all.
	Zones residency.Label
	// Since is when it began to read tables: nothing is made of one from which a person
	// was erased later. Zero does not look.
	Since time.Time
}

// couldRead is what the scopes of an attempt's token let it read, and what its
// checkpoint brought: what it makes is made of that, however it sends it. Of others it
// is nothing.
func (s *Service) couldRead(ctx context.Context, p project.Name) ([]Reading, error) {
	who := identity.From(ctx)
	if who.Kind != identity.Attempt {
		return nil, nil
	}
	names, every := who.Objects(string(ActionQuery))
	if every {
		return nil, fault.New(fault.Internal, "the token of %s reads every dataset, so what it writes has no lineage", who)
	}
	var own Reading
	for _, n := range names {
		r, err := ParseRef(n)
		if err != nil {
			return nil, err
		}
		if r.Number > 0 {
			own.Versions = append(own.Versions, r)
			continue
		}
		now, err := s.load(ctx, p, r.Name)
		if fault.Is(err, fault.NotFound) {
			continue // nothing to read yet
		}
		if err != nil {
			return nil, err
		}
		own.Tables = append(own.Tables, Ref{Name: r.Name, Number: now.Accepted})
	}
	if s.cfg.Confined != nil {
		l, err := s.cfg.Confined(ctx, who.ID)
		if err != nil {
			return nil, fault.Wrap(err, "where what %s makes may be", who)
		}
		own.Zones = residency.Of(l.Zones()...)
	}
	if s.cfg.Earlier == nil {
		return []Reading{own}, nil
	}
	earlier, err := s.cfg.Earlier(ctx, who.ID)
	return append(earlier, own), fault.Wrap(err, "what %s goes on from", who)
}

// reads are the versions that were read, perhaps. A version that was deleted since
// is one of them. It asks for no permission: who read them had it. Errors: fault.Gone
// for one that a person was erased from; fault.Conflict for a rejected one.
func (s *Service) reads(ctx context.Context, tx *store.Tx, p project.Name, rs []Reading) (vs []Version, err error) {
	for _, r := range rs {
		for _, ref := range r.Versions {
			v, err := s.ever(ctx, tx, p, ref)
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
			of, err := s.tableReads(ctx, tx, p, t, r)
			if err != nil {
				return nil, err
			}
			vs = append(vs, of...)
		}
	}
	slices.SortFunc(vs, func(a, b Version) int { return compareRefs(a.Ref(), b.Ref()) })
	vs = slices.CompactFunc(vs, func(a, b Version) bool { return a.ID == b.ID })
	if len(vs) > maxParents {
		return nil, fault.New(fault.Invalid, "%d versions could be read, over the limit of %d", len(vs), maxParents).
			WithHint("Keep fewer versions of the tables (spec.keep), or read what is needed as data of the job.")
	}
	return vs, nil
}

// ever finds a version, also of a dataset that was deleted.
func (s *Service) ever(ctx context.Context, tx *store.Tx, p project.Name, ref Ref) (Version, error) {
	d, err := s.cfg.Store.Dataset(ctx, tx, p, ref.Name)
	if err != nil {
		return Version{}, err
	}
	return s.cfg.Store.Version(ctx, tx, d.ID, ref.Number)
}

// tableReads are the versions of a table that were read, perhaps, without those that
// others of them were made of: the lineage leads there.
func (s *Service) tableReads(ctx context.Context, tx *store.Tx, p project.Name, table Ref, r Reading) (vs []Version, err error) {
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
			case v.State == Rejected || r.Zones != nil && !r.Zones.Within(v.Residency):
				continue
			case v.State == Deleted && v.RedactedBy > 0:
				by, err := s.cfg.Store.Version(ctx, tx, d.ID, v.RedactedBy)
				if err != nil {
					return nil, err
				}
				if !r.Since.IsZero() && by.Created.After(r.Since) {
					return nil, fault.Wrap(gone(v), "table %s", table.Name)
				}
				continue
			case v.State == Deleted && v.Number < table.Number: // it was, most probably, before the job
				continue
			}
			vs = append(vs, v)
			for _, parent := range v.Lineage.Parents {
				made[parent.ID] = true
			}
		}
	}
	return slices.DeleteFunc(vs, func(v Version) bool { return made[v.ID] }), nil
}

// withRead adds what was read, perhaps, to other parents.
func (s *Service) withRead(ctx context.Context, p project.Name, parents []Version, rs []Reading) ([]Version, error) {
	err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		more, err := s.reads(ctx, tx, p, rs)
		parents = slices.Concat(parents, more)
		return err
	})
	slices.SortFunc(parents, func(a, b Version) int { return compareRefs(a.Ref(), b.Ref()) })
	return slices.CompactFunc(parents, func(a, b Version) bool { return a.ID == b.ID }), err
}
