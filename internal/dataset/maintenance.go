package dataset

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"os"
	"slices"
	"time"

	"github.com/falaj-ml/falaj/internal/blob/quota"
	"github.com/falaj-ml/falaj/internal/dataset/datafile"
	"github.com/falaj-ml/falaj/internal/event"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/resource"
	"github.com/falaj-ml/falaj/internal/store"
)

// Maintenance recovers after a crash, expires versions, moves files and reports stale datasets.
// Its callers are the start of a server and its periodic work.
type Maintenance struct{ *core }

// Recover removes the files of writes and deletions that this instance's former
// life, or any other instance long ago, did not finish, and what its queries left.
// Call it at the start, before the first import or query.
func (s *Maintenance) Recover(ctx context.Context) error {
	ctx = identity.With(ctx, identity.Loop("dataset-recovery"))
	if s.cfg.Scratch != "" {
		if err := os.RemoveAll(s.cfg.Scratch); err != nil {
			return fault.Wrap(err, "removing spill directories of queries")
		}
	}
	var left []Staging
	err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		left, err = s.cfg.Store.Stagings(ctx, tx, s.cfg.Instance, s.cfg.Now())
		return err
	})
	if err != nil {
		return err
	}
	for _, g := range left {
		if err := s.clean(ctx, g); err != nil {
			return fault.Wrap(err, "removing the files of the unfinished %s version %s", g.Dataset, g.ID)
		}
		s.cfg.Log.InfoContext(ctx, "removed the files of an unfinished dataset version",
			slog.String("project", string(g.Project)), slog.String("dataset", g.Dataset), slog.String("version_id", string(g.ID)))
	}
	return nil
}

// Relocate writes the Iceberg files of open datasets anew whose directory is not where it
// was, as after a restore into another one: they name files by absolute paths, and other
// engines follow these. Rows, digests and lineage stay as they are. Call it before the
// catalog answers. It may be called again after a crash.
func (s *Maintenance) Relocate(ctx context.Context, p project.Name) error {
	// A server whose project is at its quota starts all the same: only then is room made.
	ctx = identity.With(quota.Exempt(ctx), identity.Loop("dataset-recovery"))
	return s.eachDataset(ctx, p, func(d Dataset) error {
		moved, err := s.elsewhere(ctx, d)
		if err == nil && moved {
			err = s.relocate(ctx, d)
		}
		return fault.Wrap(err, "updating the location of table %s", d.Name)
	})
}

// elsewhere reports whether a table's metadata says that it is at another place.
func (s *Maintenance) elsewhere(ctx context.Context, d Dataset) (bool, error) {
	if d.Metadata == "" || d.Spec.Protection != Open {
		return false, nil
	}
	f, err := s.cfg.Files.Open(ctx, datafile.File{Project: d.Project, Dataset: d.Name, Key: d.Metadata, Form: datafile.Plain})
	if fault.Is(err, fault.NotFound) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	defer func() { _ = f.Close() }()
	var said struct {
		Location string `json:"location"`
	}
	err = json.NewDecoder(io.NewSectionReader(f, 0, f.Size())).Decode(&said)
	return err != nil || said.Location != s.cfg.Files.URI(location(d)), nil
}

func (s *Maintenance) relocate(ctx context.Context, d Dataset) error {
	var all []Version
	if err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		all, err = s.present(ctx, tx, d.ID)
		return err
	}); err != nil {
		return err
	}
	all = slices.DeleteFunc(all, func(v Version) bool { return v.Protection != Open })
	at := slices.IndexFunc(all, func(v Version) bool { return v.Number == d.Accepted })
	if at < 0 {
		return nil // its newest version is sealed: no engine is let in
	}
	oldest := inOrder(all)
	slices.Reverse(oldest)
	for i := range oldest {
		before := slices.Clone(oldest[:i])
		slices.Reverse(before)
		if err := s.manifests(ctx, before, &oldest[i]); err != nil {
			return err
		}
	}
	metadata, err := s.describeTable(ctx, d, all, all[at])
	if err != nil {
		return err
	}
	if err := s.cfg.DB.Update(ctx, string(d.Project), func(ctx context.Context, tx *store.Tx) error {
		now, err := s.live(ctx, tx, d.Project, d.Name)
		if err != nil || now.ID != d.ID || now.Metadata != d.Metadata {
			return err // somebody has written to it, and told where it is
		}
		now.Metadata = metadata
		if err := s.cfg.Store.PutDataset(ctx, tx, now); err != nil {
			return err
		}
		return audit.Append(ctx, tx, audit.Entry{
			Project: string(d.Project), Action: string(ActionImport), Object: "dataset " + d.Name, Detail: map[string]any{"phase": "relocated", "versions": len(all)},
		})
	}); err != nil {
		return err
	}
	s.cfg.Log.InfoContext(ctx, "the location of an open table was updated", slog.String("project", string(d.Project)), slog.String("dataset", d.Name), slog.Int("versions", len(all)))
	return nil
}

// PublishStale tells, by an event, of each dataset of a project that had no new version
// for longer than it says. It is a loop's to call, and asks no permission. It gives
// how many it told of.
func (s *Maintenance) PublishStale(ctx context.Context, p project.Name) (told int, err error) {
	err = s.eachDataset(ctx, p, func(d Dataset) error {
		late := false
		if err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
			_, late, err = s.overdue(ctx, tx, d)
			return err
		}); err != nil || !late {
			return err
		}
		return s.cfg.DB.Update(ctx, string(p), func(ctx context.Context, tx *store.Tx) error {
			now, err := s.live(ctx, tx, p, d.Name)
			if fault.Is(err, fault.NotFound) {
				return nil // deleted meanwhile
			}
			if err != nil {
				return err
			}
			since, late, err := s.overdue(ctx, tx, now)
			if err != nil || !late {
				return err
			}
			now.Stale = true
			if err := s.cfg.Store.PutDataset(ctx, tx, now); err != nil {
				return err
			}
			if err := audit.Append(ctx, tx, audit.Entry{
				Project: string(p), Action: string(ActionImport), Object: "dataset " + d.Name, Reason: "no new version for " + now.Spec.Fresh, Detail: map[string]any{"change": "stale", "since": since},
			}); err != nil {
				return err
			}
			tx.OnCommit(func() { told++ })
			return event.Publish(ctx, tx, string(p), EventStale, Event{Dataset: now.ID, Name: now.Name, Number: now.Accepted})
		})
	})
	return told, err
}

// overdue reports whether a dataset had no new version for longer than it says, and was
// not told of; since is when the newest came.
func (s *Maintenance) overdue(ctx context.Context, tx *store.Tx, d Dataset) (since time.Time, late bool, err error) {
	if d.Spec.Fresh == "" || d.Stale {
		return since, false, nil
	}
	most, _ := resource.ParseDuration(d.Spec.Fresh) // validated
	since, err = s.lastArrival(ctx, tx, d)
	return since, err == nil && s.cfg.Now().Sub(since) > most, err
}

// lastArrival is when the newest accepted version came, and not when it was redacted;
// without one, when the dataset was declared.
func (s *Maintenance) lastArrival(ctx context.Context, tx *store.Tx, d Dataset) (time.Time, error) {
	at := d.Created
	for n := d.Accepted; n > 0; {
		v, err := s.cfg.Store.Version(ctx, tx, d.ID, n)
		if err != nil {
			return at, err
		}
		at, n = v.Created, v.Redacts
	}
	return at, nil
}
