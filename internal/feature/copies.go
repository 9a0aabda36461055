package feature

import (
	"context"
	"strings"

	"github.com/falaj-ml/falaj/internal/feature/online"
	"github.com/falaj-ml/falaj/internal/feature/value"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/store"
)

// copies keeps copies of rows for clients of another system, where the online store is
// configured so. They are in the clear and are read on no record, so that a view of data
// that is journaled, or for purposes, has none, and what was copied before it became so is
// removed; a feature that not every reader sees is NULL. Of a view the newest version is
// copied; one with aggregations is not, because its rows are not its features.
func (s *Service) copies(ctx context.Context, p project.Name, view string, version int, class project.Classification, table online.Table, rows []online.Row) error {
	if !s.cfg.Online.Copies() {
		return nil
	}
	var v View
	err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		d, err := s.find(ctx, tx, p, ViewKind, view)
		if err != nil {
			return err
		}
		v, err = d.view()
		return err
	})
	switch {
	case err != nil:
		return err
	case class.Journalled() || len(v.Purpose) > 0:
		return s.cfg.Online.DropCopiesOf(ctx, string(p), view)
	case v.Version != version || len(v.Aggregations) > 0:
		return nil
	}
	shape := online.Shape{Project: string(p), View: v.Name, Types: v.featureTypes()}
	for _, k := range v.Keys {
		switch k.Type {
		case value.String, value.Int64, value.Timestamp:
		default: // no key of Feast's, or not one that is written
			return nil
		}
		shape.JoinKeys = append(shape.JoinKeys, k.Name)
	}
	for _, f := range v.Features {
		shape.Features = append(shape.Features, f.Name)
		shape.Hidden = append(shape.Hidden, f.Protect != "")
	}
	return s.cfg.Online.Copy(ctx, table, shape, rows)
}

// foldCopies is copies of what a stream brought, which may be of stricter data than
// what was there.
func (s *Service) foldCopies(ctx context.Context, v View, table online.Table, rows []online.Row) error {
	if !s.cfg.Online.Copies() {
		return nil
	}
	var o Online
	err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		o, err = s.cfg.Store.Online(ctx, tx, v.Project, v.Name, v.Version)
		return err
	})
	if err != nil {
		return err
	}
	return s.copies(ctx, v.Project, v.Name, v.Version, o.Classification, table, rows)
}

// KeyDestroyed removes copies of what a key sealed: of a view, of a project when owner is
// empty. Rows online need no such thing; without the key nobody reads them.
func (s *Service) KeyDestroyed(ctx context.Context, p project.Name, owner string) error {
	view, ours := strings.CutPrefix(owner, objectKind+"/")
	if !ours && owner != "" {
		return nil
	}
	return s.cfg.Online.DropCopiesOf(ctx, string(p), view)
}
