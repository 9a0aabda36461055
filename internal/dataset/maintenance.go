package dataset

import (
	"context"
	"log/slog"
	"os"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/identity"
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
