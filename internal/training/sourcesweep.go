package training

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/falaj-ml/falaj/internal/blob"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/lifecycle"
	"github.com/falaj-ml/falaj/internal/store"
)

const (
	// sourceUnused is for how long a source archive is kept that no job and no sweep names: a
	// client uploads it before it submits.
	sourceUnused = 7 * 24 * time.Hour
	sourceBatch  = 50
)

// SweepSources removes source archives of a project that no job and no sweep names, and that
// were neither uploaded nor named for a week, until the pass is over. It gives their number.
//
// Several servers on one database may sweep and receive uploads at the same time. The record of
// an archive goes first; only the server that ends it deletes the object, which no later upload
// uses.
func (s *Service) SweepSources(ctx context.Context, p project.Name, pass lifecycle.Pass) (removed int, err error) {
	ctx = identity.With(ctx, identity.Loop("retention of source archives"))
	before, after := s.now().Add(-sourceUnused), ""
	var found []StoredSource
	if err := s.cfg.Sources.List(ctx, p, func(a StoredSource) error {
		if found = append(found, a); len(found) < 10*sourceBatch {
			return nil
		}
		defer func() { found = found[:0] }()
		return s.settleSources(ctx, p, found)
	}); err != nil {
		return 0, fault.Wrap(err, "listing the source archives of project %s", p)
	}
	if err := s.settleSources(ctx, p, found); err != nil {
		return 0, fault.Wrap(err, "listing the source archives of project %s", p)
	}
	err = pass.Repeat(ctx, func(ctx context.Context) (bool, error) {
		var unused []string
		if err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
			unused, err = s.cfg.Store.UnusedSources(ctx, tx, p, before, after, sourceBatch)
			return err
		}); err != nil || len(unused) == 0 {
			return false, err
		}
		after = unused[len(unused)-1]
		n, err := s.removeSources(ctx, p, unused, before)
		removed += n
		return len(unused) == sourceBatch, err
	})
	return removed, fault.Wrap(err, "removing source archives of project %s", p)
}

// settleSources puts archives on record that earlier releases stored, and deletes what a killed
// server, or an upload at the same time, left: objects that the record of their digest does not
// name, and that are too old to be recorded yet.
func (s *Service) settleSources(ctx context.Context, p project.Name, found []StoredSource) error {
	if len(found) == 0 {
		return nil
	}
	digests := make([]string, len(found))
	for i, a := range found {
		digests[i] = a.Digest
	}
	var recorded map[string]StoredSource
	if err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		recorded, err = s.cfg.Store.Sources(ctx, tx, p, digests)
		return err
	}); err != nil {
		return err
	}
	before := s.now().Add(-blob.Unrecorded)
	var fresh []StoredSource
	for _, a := range found {
		of, known := recorded[a.Digest]
		switch {
		case of == a:
		case a.Object == "" && !known:
			fresh = append(fresh, a)
		case a.Object == "" || begun(a).Before(before):
			if err := s.cfg.Sources.Delete(ctx, p, a); err != nil {
				return err
			}
		}
	}
	if len(fresh) == 0 {
		return nil
	}
	return s.cfg.DB.Update(ctx, string(p), func(ctx context.Context, tx *store.Tx) error {
		return s.cfg.Store.FoundSources(ctx, tx, p, fresh, s.now())
	})
}

// begun is when the upload of an archive gave its object a name.
func begun(a StoredSource) time.Time {
	u, err := ulid.ParseStrict(strings.TrimPrefix(a.Object, sourcePart+"_"))
	if err != nil {
		return time.Time{}
	}
	return u.Timestamp()
}

// removeSources removes those of archives that nothing names. What a killed server does not
// delete any more, settleSources does.
func (s *Service) removeSources(ctx context.Context, p project.Name, digests []string, before time.Time) (n int, err error) {
	var going []StoredSource
	err = s.cfg.DB.Update(ctx, string(p), func(ctx context.Context, tx *store.Tx) error {
		going = nil
		var named []string // by sweeps
		if s.cfg.Traces != nil {
			var err error
			if named, err = s.cfg.Traces.Sources(ctx, tx, p, digests); err != nil {
				return err
			}
		}
		for _, d := range digests {
			if slices.Contains(named, d) {
				continue
			}
			a, ok, err := s.cfg.Store.RemoveSource(ctx, tx, p, d, before)
			if err != nil {
				return err
			}
			if ok {
				going = append(going, a)
			}
		}
		if len(going) == 0 {
			return nil
		}
		return audit.Append(ctx, tx, audit.Entry{
			Project: string(p), Action: "retention.forget", Object: "source archives", Detail: map[string]any{"removed": len(going), "kept_for": sourceUnused.String()},
		})
	})
	if err != nil {
		return 0, err
	}
	for _, a := range going {
		if err := s.cfg.Sources.Delete(ctx, p, a); err != nil {
			return n, err
		}
		n++
	}
	return n, nil
}
