package feature

import (
	"context"
	"time"

	"github.com/falaj-ml/falaj/internal/event"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/store"
)

// ClaimOnlineStore gives the name by which this installation claims its online store, and makes
// the given one that name where there is none, or renew says so.
func ClaimOnlineStore(ctx context.Context, db *store.DB, in Store, name string, renew bool) (owner string, err error) {
	err = db.Update(ctx, "", func(ctx context.Context, tx *store.Tx) error {
		o, err := in.OnlineStore(ctx, tx)
		if err != nil && !fault.Is(err, fault.NotFound) {
			return err
		}
		if owner = o.Owner; owner != "" && (owner == name || !renew) {
			return nil
		}
		owner, o.Owner = name, name
		return in.PutOnlineStore(ctx, tx, o)
	})
	return owner, err
}

// SetOnlineStore says which online store there is, by its ID. Where another one was on record
// (former, when none is), or forget says that the records are of another time than the
// store, all views are forgotten: they answer as views that were never materialised, and
// materialisations under way begin again. It returns the views by project, as "weather@3".
func (s *OnlineRows) SetOnlineStore(ctx context.Context, id, former string, forget bool) (views map[project.Name][]string, err error) {
	var o OnlineStore
	read := func(ctx context.Context, tx *store.Tx) error {
		if o, err = s.onlineStore.OnlineStore(ctx, tx); err != nil && !fault.Is(err, fault.NotFound) {
			return err
		}
		return nil
	}
	if err := s.cfg.DB.View(ctx, read); err != nil || o.ID == id && !forget {
		return nil, err
	}
	err = s.cfg.DB.Update(ctx, "", func(ctx context.Context, tx *store.Tx) error {
		views = nil
		if err := read(ctx, tx); err != nil {
			return err
		}
		if o.ID == "" {
			o.ID = former
		}
		if o.ID != id || forget {
			if views, err = s.forgetOnline(ctx, tx); err != nil {
				return err
			}
		}
		o.ID = id
		return s.onlineStore.PutOnlineStore(ctx, tx, o)
	})
	return views, err
}

// forgetOnline removes all records of what is online.
func (s *OnlineRows) forgetOnline(ctx context.Context, tx *store.Tx) (map[project.Name][]string, error) {
	views := map[project.Name][]string{}
	had, err := s.onlineStore.Onlines(ctx, tx, "")
	if err != nil {
		return nil, err
	}
	for _, o := range had {
		views[o.Project] = append(views[o.Project], o.ref())
		if err := s.onlineStore.DeleteOnline(ctx, tx, o.Project, o.View, o.Version); err != nil {
			return nil, err
		}
		if err := audit.Append(ctx, tx, audit.Entry{
			Project: string(o.Project), Action: string(ActionMaterialise), Object: objectKind + " view " + o.ref(),
			Detail: map[string]any{"cleared": true, "because": "the online store is another one"},
		}); err != nil {
			return nil, err
		}
		if err := event.Publish(ctx, tx, string(o.Project), EventCleared, Applied{Kind: ViewKind, Ref: o.ref()}); err != nil {
			return nil, err
		}
	}
	runs, err := s.runStore.OpenRuns(ctx, tx, openRuns)
	if err != nil {
		return nil, err
	}
	for _, r := range runs {
		before := r.Attempt
		r.Rows, r.Chain, r.Newest, r.Attempt = 0, "", time.Time{}, before+1 // an attempt under way is not that of the new store
		if err := s.runStore.UpdateRun(ctx, tx, r, before); err != nil {
			return nil, err
		}
	}
	tx.OnCommit(s.plans.forget)
	return views, nil
}
