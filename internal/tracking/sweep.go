package tracking

import (
	"context"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/falaj-ml/falaj/internal/blob"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/store"
)

// Sweep forgets uploads that were begun a day ago, and deletes the objects of a
// project that no artifact or upload has and that are older than age: what a crash between storing and recording leaves behind. It
// gives their number. Run it from a background loop with an age of blob.Unrecorded.
func (s *Maintenance) Sweep(ctx context.Context, p project.Name, age time.Duration) (int, error) {
	if err := s.uploads.sweepUploads(ctx, p); err != nil {
		return 0, fault.Wrap(err, "sweeping uploads of project %s", p)
	}
	before := ulid.Timestamp(s.now().Add(-age))
	var batch []string
	swept := 0
	flush := func() error {
		var held []string
		err := s.db.View(ctx, func(ctx context.Context, tx *store.Tx) error {
			var err error
			held, err = s.store.Holds(ctx, tx, p, batch)
			return err
		})
		if err != nil {
			return err
		}
		for _, key := range batch {
			if slices.Contains(held, key) {
				continue
			}
			err := s.objects.Delete(ctx, blob.Ref{Project: string(p), Owner: artifactKeys, Key: blob.Key(key)})
			if err != nil {
				return err
			}
			swept++
		}
		batch = batch[:0]
		return nil
	}
	err := s.objects.List(ctx, artifactPrefix(p), func(key blob.Key) error {
		u, err := ulid.ParseStrict(strings.TrimPrefix(path.Base(string(key)), "art_"))
		if err != nil || u.Time() >= before {
			return nil //nolint:nilerr // not one of ours, or too young to judge
		}
		batch = append(batch, string(key))
		if len(batch) < 500 {
			return nil
		}
		return flush()
	})
	if err == nil && len(batch) > 0 {
		err = flush()
	}
	return swept, fault.Wrap(err, "sweeping artifacts of project %s", p)
}
