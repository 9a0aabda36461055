package feature

import (
	"context"
	"time"

	"github.com/falaj-ml/falaj/internal/event"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/store"
)

// StoreChanged forgets what a project's views had online, because another store took
// the place of the one that held it: they answer as views that were never
// materialised, and materialisations under way begin again. It returns the views, as
// "weather@3". A materialisation that is under way at that moment begins again.
func (s *Service) StoreChanged(ctx context.Context, p project.Name) ([]string, error) {
	var views []string
	err := s.cfg.DB.Update(ctx, string(p), func(ctx context.Context, tx *store.Tx) error {
		views = nil
		had, err := s.cfg.Store.Onlines(ctx, tx, p)
		if err != nil {
			return err
		}
		for _, o := range had {
			ref := Header{Name: o.View, Version: o.Version}.Ref()
			views = append(views, ref)
			if err := s.cfg.Store.DeleteOnline(ctx, tx, p, o.View, o.Version); err != nil {
				return err
			}
			if err := audit.Append(ctx, tx, audit.Entry{
				Project: string(p), Action: string(ActionMaterialise), Object: objectKind + " view " + ref,
				Detail: map[string]any{"cleared": true, "because": "the online store is another one"},
			}); err != nil {
				return err
			}
			if err := event.Publish(ctx, tx, string(p), EventCleared, Applied{Kind: ViewKind, Ref: ref}); err != nil {
				return err
			}
		}
		runs, err := s.cfg.Store.OpenRuns(ctx, tx, openRuns)
		if err != nil {
			return err
		}
		for _, r := range runs {
			if r.Project != p {
				continue
			}
			before := r.Attempt
			r.Rows, r.Chain, r.Newest, r.Attempt = 0, "", time.Time{}, before+1 // an attempt under way is not that of the new store
			if err := s.cfg.Store.UpdateRun(ctx, tx, r, before); err != nil {
				return err
			}
		}
		tx.OnCommit(s.plans.forget)
		return nil
	})
	return views, err
}
