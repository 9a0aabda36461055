package feature

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/feature/online"
	"github.com/falaj-ml/falaj/internal/feature/value"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/store"
)

// Copies of rows for clients of another system, where the online store is configured so, are
// in the clear and read on no record. So a view of data that is journaled, or for purposes,
// has none, and a feature that not every reader sees is NULL. Of a view the version latest
// is copied; one with aggregations is not, because its rows are not its features.
//
// What may no longer be there goes with the next write, and by RemoveStaleCopies: when a version
// takes the place of another, a view becomes of stricter data, or the store is configured
// to keep no copies any more.

// copyShape is how the version latest of a view is copied; ok is false when it is not.
func (s *OnlineRows) copyShape(ctx context.Context, p project.Name, view string) (shape online.Shape, ok bool, err error) {
	var v View
	err = s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		d, err := s.find(ctx, tx, p, ViewKind, view)
		if err != nil {
			return err
		}
		v, err = d.view()
		return err
	})
	if fault.Is(err, fault.NotFound) {
		return shape, false, nil
	}
	shape = online.Shape{Project: string(p), View: v.Name, Version: v.Version, Types: v.featureTypes()}
	if err != nil || len(v.Purpose) > 0 || len(v.Aggregations) > 0 {
		return shape, false, err
	}
	for _, k := range v.Keys {
		if k.Type == value.Bool { // no key of Feast's
			return shape, false, nil
		}
		shape.JoinKeys = append(shape.JoinKeys, k.Name)
	}
	for _, f := range v.Features {
		shape.Features = append(shape.Features, f.Name)
		shape.Hidden = append(shape.Hidden, f.Protect != "")
	}
	return shape, true, nil
}

// copies is for rows that are written.
func (s *OnlineRows) copies(ctx context.Context, p project.Name, view string, version int, class project.Classification, table online.Table, rows []online.Row) error {
	if !s.cfg.Online.Copies() {
		return nil
	}
	shape, ok, err := s.copyShape(ctx, p, view)
	switch {
	case err != nil:
		return err
	case !ok, shape.Version == version && class.Journalled():
		return s.cfg.Online.DropCopiesOf(ctx, string(p), view)
	case shape.Version != version:
		return nil
	}
	return s.cfg.Online.Copy(ctx, table, shape, rows)
}

// copyApplied copies what a stream brought, which may be of stricter data than
// what was there.
func (s *OnlineRows) copyApplied(ctx context.Context, v View, table online.Table, rows []online.Row) error {
	if !s.cfg.Online.Copies() {
		return nil
	}
	o, err := s.online(ctx, v)
	if err != nil {
		return err
	}
	return s.copies(ctx, v.Project, v.Name, v.Version, o.Classification, table, rows)
}

// recopy puts rows that answer in the places of what a generation that is about to be
// removed was copied to: it may have had later ones, which were withdrawn.
func (s *OnlineRows) recopy(ctx context.Context, g Stale) error {
	if !s.cfg.Online.Copies() {
		return nil
	}
	o, err := s.online(ctx, View{Header: Header{Project: g.Project, Name: g.View, Version: g.Version}})
	if err != nil || o.View == "" {
		return err
	}
	shape, ok, err := s.copyShape(ctx, g.Project, g.View)
	if err != nil || !ok || shape.Version != g.Version || o.Classification.Journalled() {
		return err
	}
	return s.cfg.Online.Recopy(ctx, g.table(), o.tables(), shape)
}

const copiesPause = time.Minute

// RemoveStaleCopies removes the copies that may not be there any more, and sees to it that no
// file has what was removed; the background loop calls it, and tests do. A view whose
// copies cannot be removed holds up no other.
func (s *OnlineRows) RemoveStaleCopies(ctx context.Context) error {
	views, err := s.cfg.Online.CopiedViews(ctx)
	if err != nil {
		return err
	}
	var failed []error
	for _, c := range views {
		stays, err := s.staysCopied(ctx, c)
		if err == nil && !stays {
			err = s.cfg.Online.DropCopiesOf(ctx, c.Project, c.View)
		}
		failed = append(failed, fault.Wrap(err, "the copies of feature view %s in project %s", c.View, c.Project))
	}
	_, err = s.cfg.Online.Settle(ctx, 0)
	return errors.Join(append(failed, err)...)
}

func (s *OnlineRows) staysCopied(ctx context.Context, c online.CopiedView) (bool, error) {
	if !s.cfg.Online.Copies() {
		return false, nil
	}
	p := project.Name(c.Project)
	shape, ok, err := s.copyShape(ctx, p, c.View)
	if err != nil || !ok || shape.Version != c.Version {
		return false, err
	}
	o, err := s.online(ctx, View{Header: Header{Project: p, Name: c.View, Version: c.Version}})
	// Without a record it is being materialised for the first time.
	return err == nil && (o.View == "" || !o.Classification.Journalled()), err
}

// settleTime is how long a caller waits for the online store's files.
const settleTime = 10 * time.Second

// cleanFiles returns when no file of the online store has copies that were removed. Error:
// fault.Unavailable when that takes longer.
func (s *OnlineRows) cleanFiles(ctx context.Context) error {
	settled, err := s.cfg.Online.Settle(ctx, settleTime)
	if err != nil || settled {
		return err
	}
	return fault.New(fault.Unavailable, "Redis has not yet rewritten its append-only file, which still contains the removed copies").WithHint("The operation is retried automatically.")
}

// KeyDestroyed removes copies of what a key sealed: of a view, of a project when owner is
// empty. Rows online need no such thing; without the key nobody reads them.
func (s *OnlineRows) KeyDestroyed(ctx context.Context, p project.Name, owner string) error {
	view, ours := strings.CutPrefix(owner, objectKind+"/")
	if !ours && owner != "" {
		return nil
	}
	return s.cfg.Online.DropCopiesOf(ctx, string(p), view)
}
