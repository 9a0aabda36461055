package dataset

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/falaj-ml/falaj/internal/event"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/deletion"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/store"
)

// Delete removes a version's rows; number 0 removes the dataset with all its
// versions. Digests and lineage stay, and numbers are not given again; of a version
// that something cites, a tombstone too (see Tombstone). Needs dataset.delete. Errors:
// as deletion.Request.Allow, while something cites it. The rows cannot be read from the moment it returns; files that
// could not be removed at once are removed at the next start.
func (s *Definitions) Delete(ctx context.Context, p project.Name, ref Ref, request deletion.Request) error {
	d, err := s.allowed(ctx, ActionDelete, p, ref.Name)
	if err != nil {
		return err
	}
	if err := request.Allow("dataset "+ref.String(), nil); err != nil {
		return err // of itself, before anything is read
	}
	g := grave{request: request, tombs: map[VersionID]Tombstone{}}
	for range maxCommits {
		var out []Staging
		var done bool
		if err := s.entomb(ctx, d, ref, &g); err != nil {
			return err
		}
		if ref.Number == 0 {
			out, done, err = s.deleteAll(ctx, d, g)
		} else {
			out, done, err = s.deleteOne(ctx, d, ref.Number, g)
		}
		if err != nil {
			return err
		}
		if done {
			for _, g := range out {
				s.discard(ctx, g)
			}
			if ref.Number == 0 {
				s.discardForeign(ctx, d)
			}
			return nil
		}
	}
	return fault.New(fault.Unavailable, "dataset %s has too many concurrent writers", ref.Name).WithHint("Try again.")
}

// discardForeign removes what clients of a table wrote and did not commit.
func (s *Definitions) discardForeign(ctx context.Context, d Dataset) {
	_, err := s.cfg.Files.Sweep(ctx, location(d)+"/", s.cfg.Now().Add(time.Hour), func(key string) bool { return !(&foreign{d: d}).ours(key) })
	if err != nil {
		s.cfg.Log.WarnContext(ctx, "files that clients wrote to a deleted table remain", slog.String("dataset", d.Name), slog.Any("error", err))
	}
}

// deleteOne removes a version; done is false when the dataset changed meanwhile.
func (s *Definitions) deleteOne(ctx context.Context, was Dataset, number int64, g grave) (out []Staging, done bool, err error) {
	return s.deleteSome(ctx, was, g, func(ctx context.Context, tx *store.Tx, d Dataset) ([]Version, error) {
		v, err := s.resolve(ctx, tx, d, number)
		if err != nil || v.State == Deleted {
			return nil, err
		}
		return []Version{v}, nil
	})
}

// deleteSome removes the versions that pick gives, which is asked again in the
// transaction that removes them; done is false when the dataset or the answer
// changed meanwhile.
func (s *core) deleteSome(ctx context.Context, was Dataset, how grave, pick func(ctx context.Context, tx *store.Tx, d Dataset) ([]Version, error)) (out []Staging, done bool, err error) {
	var d Dataset
	var gone, accepted []Version
	if err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		if d, err = s.live(ctx, tx, was.Project, was.Name); err != nil {
			return err
		}
		if gone, err = pick(ctx, tx, d); err != nil {
			return err
		}
		accepted, err = s.present(ctx, tx, d.ID)
		return err
	}); err != nil {
		return nil, false, err
	}
	if len(gone) == 0 {
		return nil, true, nil
	}
	goes := func(a Version) bool { return slices.ContainsFunc(gone, func(v Version) bool { return v.ID == a.ID }) }
	newest, metadata := d.Accepted, d.Metadata
	if slices.ContainsFunc(gone, func(v Version) bool { return v.State == Accepted }) {
		rest := slices.DeleteFunc(accepted, goes)
		newest, metadata = 0, ""
		if len(rest) > 0 {
			rest = inOrder(rest)
			newest = rest[0].Number
			if metadata, err = s.describeTable(ctx, d, rest, rest[0]); err != nil {
				return nil, false, err
			}
		}
	}
	err = s.cfg.DB.Update(ctx, string(d.Project), func(ctx context.Context, tx *store.Tx) error {
		out, done = nil, false
		now, err := s.live(ctx, tx, d.Project, d.Name)
		if err != nil {
			return err
		}
		if now.ID != d.ID || now.Latest != d.Latest || now.Metadata != d.Metadata {
			return nil
		}
		again, err := pick(ctx, tx, now)
		if err != nil {
			return err
		}
		if !slices.EqualFunc(gone, again, func(a, b Version) bool { return a.ID == b.ID && a.State == b.State }) {
			return nil
		}
		if ok, err := s.entombed(ctx, tx, now, gone, how); err != nil || !ok {
			return err
		}
		now.Accepted, now.Metadata = newest, metadata
		if err := s.cfg.Store.PutDataset(ctx, tx, now); err != nil {
			return err
		}
		for _, v := range gone {
			g, err := s.bury(ctx, tx, v, how)
			if err != nil {
				return err
			}
			out = append(out, g)
		}
		done = true
		return nil
	})
	return out, done, err
}

// deleteAll removes a dataset with its versions.
func (s *core) deleteAll(ctx context.Context, was Dataset, how grave) (out []Staging, done bool, err error) {
	err = s.cfg.DB.Update(ctx, string(was.Project), func(ctx context.Context, tx *store.Tx) error {
		out, done = nil, false
		d, err := s.live(ctx, tx, was.Project, was.Name)
		if err != nil {
			return err
		}
		vs, err := s.standing(ctx, tx, d, 0)
		if err != nil {
			return err
		}
		if ok, err := s.entombed(ctx, tx, d, vs, how); err != nil || !ok {
			return err
		}
		done = true
		for _, v := range vs {
			g, err := s.bury(ctx, tx, v, how)
			if err != nil {
				return err
			}
			out = append(out, g)
		}
		d.Deleted, d.Accepted, d.Metadata, d.Updated = true, 0, "", s.cfg.Now().UTC()
		d.Next, d.Properties = nil, nil
		if err := s.cfg.Store.PutDataset(ctx, tx, d); err != nil {
			return err
		}
		if s.cfg.Deleted != nil {
			if err := s.cfg.Deleted(ctx, tx, d.Project, d.Name); err != nil {
				return err
			}
		}
		if err := audit.Append(ctx, tx, audit.Entry{
			Project: string(d.Project), Action: string(ActionDelete), Object: "dataset " + d.Name, Reason: how.request.Reason,
			Detail: how.request.Detail(map[string]any{"versions": len(vs)}, how.of(nil)),
		}); err != nil {
			return err
		}
		return event.Publish(ctx, tx, string(d.Project), EventDeleted, Event{Dataset: d.ID, Name: d.Name})
	})
	return out, done, err
}

// bury makes a version a gravestone and puts its files on their way out.
func (s *core) bury(ctx context.Context, tx *store.Tx, v Version, how grave) (Staging, error) {
	v.State, v.Reason, v.Files, v.Quarantine, v.SealedStatistics, v.Statistics, v.Expectations, v.ManifestList, v.Bytes = Deleted, "", nil, nil, nil, nil, nil, "", 0
	v.DeletedAt, v.DeletedBy = s.cfg.Now().UTC(), createdBy(identity.From(ctx))
	if t, ok := how.tombs[v.ID]; ok {
		v.Tombstone = &t
	}
	g := Staging{ID: v.ID, Project: v.Project, Dataset: v.Dataset, Room: v.Room, Instance: s.cfg.Instance, Deadline: s.cfg.Now()}
	if err := s.cfg.Store.UpdateVersion(ctx, tx, v); err != nil {
		return g, err
	}
	if err := s.cfg.Store.InsertStaging(ctx, tx, g); err != nil {
		return g, err
	}
	if err := audit.Append(ctx, tx, audit.Entry{
		Project: string(v.Project), Action: string(ActionDelete), Object: "dataset " + v.Ref().String(), Reason: how.request.Reason,
		Detail: how.request.Detail(map[string]any{"digest": v.ContentDigest}, how.of(&v)),
	}); err != nil {
		return g, err
	}
	return g, event.Publish(ctx, tx, string(v.Project), EventVersionDeleted, Event{
		Dataset: v.DatasetID, Name: v.Dataset, Version: v.ID, Number: v.Number, State: v.State, Digest: v.ContentDigest,
	})
}
