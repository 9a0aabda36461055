package registry

import (
	"context"
	"strconv"
	"strings"

	"github.com/falaj-ml/falaj/internal/blob"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/store"
)

// Maintenance ends what a crash interrupted, and removes files that no version needs. Its callers
// are the start of a server and its periodic work.
type Maintenance struct{ *core }

// Recover marks what a crash left pending as failed. Call it once at start,
// before requests are served, in the one process that registers.
func (s *Maintenance) Recover(ctx context.Context) error {
	ctx = identity.With(ctx, identity.Loop("registry"))
	var pending []Version
	err := s.db.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		var err error
		pending, err = s.store.PendingVersions(ctx, tx)
		return err
	})
	if err != nil {
		return fault.Wrap(err, "finding interrupted registrations")
	}
	for _, v := range pending {
		s.fail(ctx, v, "registration was interrupted by a restart; register the model again")
	}
	return nil
}

// Sweep deletes the objects of a project's failed and deleted versions that are
// still there, and gives their number.
func (s *Maintenance) Sweep(ctx context.Context, p project.Name) (int, error) {
	s.anew.Lock()
	defer s.anew.Unlock()
	swept := 0
	states := map[string]State{}
	err := s.objects.List(ctx, modelPrefix(p), func(key blob.Key) error {
		parts := strings.Split(strings.TrimPrefix(string(key), string(modelPrefix(p))), "/")
		if len(parts) != 3 {
			return nil
		}
		number, err := strconv.Atoi(strings.TrimPrefix(parts[1], "v"))
		if err != nil {
			return nil //nolint:nilerr // not one of ours
		}
		which := parts[0] + "/" + parts[1]
		state, ok := states[which]
		if !ok {
			err := s.db.View(ctx, func(ctx context.Context, tx *store.Tx) error {
				var err error
				state, err = s.store.State(ctx, tx, p, ModelID(parts[0]), number)
				return err
			})
			if err != nil && !fault.Is(err, fault.NotFound) {
				return err
			}
			if state != Failed && state != Deleted { // those are read again for each object: an import makes a failed version anew
				states[which] = state
			}
		}
		if state != Failed && state != Deleted {
			return nil
		}
		swept++
		return s.objects.Delete(ctx, blob.Ref{Project: string(p), Owner: modelKeys(ModelID(parts[0])), Key: key})
	})
	return swept, fault.Wrap(err, "sweeping models of project %s", p)
}
