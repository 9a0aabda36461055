package dataset

import (
	"context"
	"log/slog"
	"regexp"
	"slices"
	"strconv"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/resource"
	"github.com/falaj-ml/falaj/internal/store"
)

// Keep is the retention of a dataset's versions. The zero Keep keeps all.
type Keep struct {
	Versions int    `json:"versions,omitempty" doc:"Number of newest accepted versions to keep; default: all"`
	For      string `json:"for,omitempty" doc:"Time after which a version beyond that number, or a rejected one, is removed, such as 30d; default 7d"`
}

// Bounds of Keep.
const (
	maxKept    = 100_000
	defaultFor = 7 * 24 * time.Hour
	leastFor   = time.Hour // who reads by the catalog may be reading what was the newest
)

// Validate refuses what cannot be meant. Error: fault.Invalid.
func (k Keep) Validate() error {
	stay, err := resource.ParseDuration(k.For)
	switch {
	case err != nil:
		return fault.Wrap(err, "for")
	case k.Versions < 0 || k.Versions > maxKept:
		return fault.New(fault.Invalid, "versions is %d, and must be between 1 and %d", k.Versions, maxKept)
	case k.Versions == 0 && k.For != "":
		return fault.New(fault.Invalid, "for is set without versions").
			WithHint("Set also how many of the newest versions are always kept, such as versions: 10.")
	case k.For != "" && stay < leastFor:
		return fault.New(fault.Invalid, "for is %s, and must be at least %s", stay, leastFor)
	}
	return nil
}

func (k Keep) stay() time.Duration {
	if k.For == "" {
		return defaultFor
	}
	stay, _ := resource.ParseDuration(k.For) // validated
	return stay
}

// Citations finds where a project's versions are named.
type Citations interface {
	// Mentions gives each every text of the project that has the word in it, and who
	// says it, such as "job job_01J…".
	Mentions(ctx context.Context, tx *store.Tx, p project.Name, word string, each func(by, text string)) error
}

// atOnce bounds the versions that one transaction removes.
const atOnce = 100

// Expire removes the versions that a project's datasets need not keep (see Keep) and that
// nothing cites: no version of another dataset that was made of it, and nothing that
// Config.Citations finds. It returns their number. Housekeeping calls it; it requires no
// permission.
func (s *Service) Expire(ctx context.Context, p project.Name) (removed int, err error) {
	for after := ""; ; {
		var ds []Dataset
		if err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
			ds, err = s.cfg.Store.Datasets(ctx, tx, p, nil, after, 500)
			return err
		}); err != nil {
			return removed, err
		}
		for _, d := range ds {
			after = d.Name
			if d.Spec.Keep.Versions == 0 {
				continue
			}
			n, err := s.expire(ctx, d)
			removed += n
			if err != nil {
				return removed, fault.Wrap(err, "expiring versions of dataset %s", d.Name)
			}
			if n > 0 {
				s.cfg.Log.InfoContext(ctx, "removed expired dataset versions", slog.String("project", string(p)), slog.String("dataset", d.Name), slog.Int("versions", n))
			}
		}
		if len(ds) < 500 {
			return removed, nil
		}
	}
}

func (s *Service) expire(ctx context.Context, d Dataset) (removed int, err error) {
	for tries := 0; tries < maxCommits; tries++ { // then it is written to by many, and the next round comes
		out, done, err := s.deleteSome(ctx, d, grave{}, s.expired)
		if err != nil || done && len(out) == 0 {
			return removed, err
		}
		for _, g := range out {
			s.discard(ctx, g)
			removed++
			tries = 0
		}
	}
	return removed, nil
}

// expired are the oldest versions of a dataset that need not stay and that
// nothing cites. What was made of a version in the same dataset has its rows, and
// is no citation.
func (s *Service) expired(ctx context.Context, tx *store.Tx, d Dataset) ([]Version, error) {
	keep := d.Spec.Keep
	if keep.Versions == 0 {
		return nil, nil
	}
	before := s.cfg.Now().Add(-keep.stay())
	var accepted, old []Version
	order := map[int64]int64{}     // by number, of deleted ones, too: see Version.order
	ids := map[int64][]VersionID{} // of all that have an order: a version and what stood for it
	for below, more := int64(0), true; more; {
		vs, err := s.cfg.Store.Versions(ctx, tx, d.ID, "", below, 500)
		if err != nil {
			return nil, err
		}
		more = len(vs) == 500
		for _, v := range vs {
			below, order[v.Number] = v.Number, v.order()
			ids[v.order()] = append(ids[v.order()], v.ID)
			switch v.State {
			case Accepted:
				accepted = append(accepted, v)
			case Rejected:
				if v.Number != d.Latest && v.Created.Before(before) {
					old = append(old, v)
				}
			case Deleted:
			}
		}
	}
	accepted = inOrder(accepted)
	for i := keep.Versions; i < len(accepted); i++ {
		if accepted[i-keep.Versions].Created.Before(before) && accepted[i].Number != d.Accepted {
			old = append(old, accepted[i])
		}
	}
	if len(old) == 0 {
		return nil, nil
	}
	// Who names a version that was redacted means the one that stands for it now.
	meant := map[int64]bool{}
	if err := s.mentioned(ctx, tx, d, func(_ string, n int64) {
		if o, ok := order[n]; ok {
			meant[o] = true
		}
	}); err != nil {
		return nil, err
	}
	var gone []Version
	for _, v := range slices.Backward(inOrder(old)) {
		if len(gone) == atOnce {
			break
		}
		if meant[v.order()] {
			continue
		}
		used, err := s.used(ctx, tx, d.ID, ids[v.order()])
		if err != nil {
			return nil, err
		}
		if !used {
			gone = append(gone, v)
		}
	}
	return gone, nil
}

// mentioned gives each the versions of a dataset that others name, and who does.
func (s *Service) mentioned(ctx context.Context, tx *store.Tx, d Dataset, each func(by string, number int64)) error {
	ref := regexp.MustCompile(`(?:^|[^a-z0-9_-])` + regexp.QuoteMeta(d.Name) + `@([0-9]+)`)
	for _, c := range s.cfg.Citations {
		if err := c.Mentions(ctx, tx, d.Project, d.Name+"@", func(by, text string) {
			for _, m := range ref.FindAllStringSubmatch(text, -1) {
				if n, err := strconv.ParseInt(m[1], 10, 64); err == nil {
					each(by, n)
				}
			}
		}); err != nil {
			return err
		}
	}
	return nil
}

// used reports whether a version of another dataset was made of one of these, and
// it or what stands for it is there.
func (s *Service) used(ctx context.Context, tx *store.Tx, dataset ID, versions []VersionID) (bool, error) {
	const limit = 1000
	for _, id := range versions {
		made, err := s.cfg.Store.Children(ctx, tx, id, limit)
		if err != nil || len(made) == limit {
			return true, err
		}
		for _, c := range made {
			if c.DatasetID == dataset {
				continue
			}
			for c.State == Deleted && c.RedactedBy > 0 {
				if c, err = s.cfg.Store.Version(ctx, tx, c.DatasetID, c.RedactedBy); err != nil {
					return true, err
				}
			}
			if c.State != Deleted {
				return true, nil
			}
		}
	}
	return false, nil
}
