package app

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/falaj-ml/falaj/internal/backup"
	"github.com/falaj-ml/falaj/internal/event"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/feature"
	"github.com/falaj-ml/falaj/internal/feature/featuresql"
	"github.com/falaj-ml/falaj/internal/feature/online"
	"github.com/falaj-ml/falaj/internal/feature/online/pebble"
	"github.com/falaj-ml/falaj/internal/feature/online/redis"
	"github.com/falaj-ml/falaj/internal/fsync"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/keys"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/id"
	"github.com/falaj-ml/falaj/internal/lifecycle"
)

// embedded is the ID of the store in the data directory.
const embedded = "embedded"

// restored is what the file of onlineHome says of a data directory that was.
const restored = "restored"

// openOnline opens the store of online features, and gives who says which it is.
func (a *App) openOnline(ctx context.Context) (online.Driver, func(context.Context) (string, error), error) {
	owner, err := a.onlineOwner(ctx)
	if err != nil {
		return nil, nil, err
	}
	if a.cfg.Online.URL == "" {
		db, err := pebble.Open(pebble.Config{Dir: filepath.Join(a.cfg.Data, "online"), Logger: a.log})
		if err != nil {
			return nil, nil, err
		}
		a.onClose(db.Close)
		a.pebble = db
		return db, func(context.Context) (string, error) { return embedded, nil }, nil
	}
	cfg := a.cfg.Redis()
	cfg.Owner = owner
	if cfg.Password, err = a.secret("online.password_file", a.cfg.Online.PasswordFile); err != nil {
		return nil, nil, err
	}
	if cfg.Roots, err = a.authorities("online.ca", a.cfg.Online.CA); err != nil {
		return nil, nil, err
	}
	db, err := redis.Open(ctx, cfg)
	if err != nil {
		return nil, nil, err
	}
	a.onClose(db.Close)
	watch := &lifecycle.Loop{Name: "online store", Every: sameStorePause, Logger: a.log, Run: func(ctx context.Context) error {
		id, err := a.sameOnline(ctx, db.ID)
		if fault.Is(err, fault.Unavailable) {
			return nil // who reads or writes is told
		}
		if err == nil || fault.Is(err, fault.Conflict) {
			db.Expect(id) // of another installation's, none
		}
		return err
	}}
	a.group.Add(watch.Service())
	a.watchStore(onlineStore, time.Second, onlineTime, db.Ask)
	return db, db.ID, nil
}

// onlineTime bounds a question whether Redis is there.
const onlineTime = 2 * time.Second

// sameStorePause is for how long a Redis that came back empty is neither read nor written.
const sameStorePause = 2 * time.Second

func (a *App) onlineHome() string { return filepath.Join(a.cfg.Data, backup.OnlineHome) }

// onlineOwner is the name by which this installation claims a Redis: of each database its
// own, and of one that was restored another one.
func (a *App) onlineOwner(ctx context.Context) (string, error) {
	what, name, err := readHome(a.onlineHome())
	if err != nil {
		return "", err
	}
	return feature.ClaimOnlineStore(ctx, a.db, featuresql.Store{}, cmp.Or(name, id.New("onl")), what == restored)
}

// sameOnline compares the store of online features with the one it was before. What
// views had in another one is forgotten: else they would answer that nothing is
// known of anybody. So it is in one that has gone on since a backup of the database.
func (a *App) sameOnline(ctx context.Context, which func(context.Context) (string, error)) (id string, err error) {
	if id, err = which(ctx); err != nil {
		return "", err
	}
	what, _, err := readHome(a.onlineHome())
	if err != nil {
		return "", err
	}
	former, forget := cmp.Or(what, embedded), false // as older releases have it
	if what == restored {
		former, forget = embedded, id != embedded
	}
	views, err := a.features.OnlineRows.SetOnlineStore(identity.With(ctx, identity.Loop("online-store")), id, former, forget)
	if err != nil {
		return "", fault.Wrap(err, "comparing the online store with the former one")
	}
	for p, refs := range views {
		a.log.WarnContext(ctx, "the online store was replaced or emptied; materialise these views again",
			slog.String("project", string(p)), slog.Any("views", refs))
	}
	if what != "" {
		err = errors.Join(os.Remove(a.onlineHome()), fsync.Dir(a.cfg.Data))
	}
	return id, err
}

// dropCopies removes what is in the clear of what a destroyed key sealed.
func (a *App) dropCopies(ctx context.Context, e event.Event) error {
	var k keys.KeyEvent
	if err := e.Decode(&k); err != nil {
		return err
	}
	return a.features.OnlineRows.KeyDestroyed(ctx, project.Name(k.Project), k.Owner)
}
