package app

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/falaj-ml/falaj/internal/event"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/feature/online"
	"github.com/falaj-ml/falaj/internal/feature/online/pebble"
	"github.com/falaj-ml/falaj/internal/feature/online/redis"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/keys"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/lifecycle"
)

// What an acknowledged write of an online feature means.
const (
	synced   = "synced"
	inMemory = "in-memory"
)

// How Redis is laid out.
const (
	falajLayout = "falaj"
	feastLayout = "feast"
)

// embedded is the ID of the store in the data directory.
const embedded = "embedded"

// openOnline opens the store of online features, and gives who says which it is.
func (a *App) openOnline(ctx context.Context) (online.Driver, func(context.Context) (string, error), error) {
	if a.cfg.Online.URL == "" {
		db, err := pebble.Open(pebble.Config{Dir: filepath.Join(a.cfg.Data, "online"), Logger: a.log})
		if err != nil {
			return nil, nil, err
		}
		a.onClose(db.Close)
		a.pebble = db
		return db, func(context.Context) (string, error) { return embedded, nil }, nil
	}
	db, err := redis.Open(ctx, redis.Config{URL: a.cfg.Online.URL, Prefix: a.cfg.Online.Prefix, Loses: a.cfg.Online.Acknowledged == inMemory, Feast: a.cfg.Online.Layout == feastLayout})
	if err != nil {
		return nil, nil, err
	}
	a.onClose(db.Close)
	watch := &lifecycle.Loop{Name: "online store", Every: sameStorePause, Logger: a.log, Run: func(ctx context.Context) error {
		err := a.sameOnline(ctx, db.ID)
		if fault.Is(err, fault.Unavailable) {
			return nil // who reads or writes is told
		}
		return err
	}}
	a.group.Add(watch.Service())
	return db, db.ID, nil
}

// sameStorePause is for how long a Redis that came back empty may answer that nothing is
// known of anybody.
const sameStorePause = 2 * time.Second

// sameOnline compares the store of online features with the one it was before. What
// views had in another one is forgotten: else they would answer that nothing is
// known of anybody.
func (a *App) sameOnline(ctx context.Context, which func(context.Context) (string, error)) error {
	id, err := which(ctx)
	if err != nil {
		return err
	}
	path := filepath.Join(a.cfg.Data, "online.id")
	before, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		before, err = []byte(embedded), nil
	}
	if err != nil || strings.TrimSpace(string(before)) == id {
		return err
	}
	ctx = identity.With(ctx, identity.Loop("online-store"))
	err = eachProject(ctx, a.projects.List, func(ctx context.Context, p project.Name) error {
		views, err := a.features.StoreChanged(ctx, p)
		if len(views) > 0 {
			a.log.WarnContext(ctx, "the online store is another one, or was emptied; materialise these views again",
				slog.String("project", string(p)), slog.Any("views", views))
		}
		return err
	})
	if err != nil {
		return fault.Wrap(err, "forgetting what the former online store had")
	}
	// Last: whoever is interrupted before does it again.
	if err := os.WriteFile(path+".new", []byte(id+"\n"), 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// dropCopies removes what is in the clear of what a destroyed key sealed.
func (a *App) dropCopies(ctx context.Context, e event.Event) error {
	var k keys.KeyEvent
	if err := e.Decode(&k); err != nil {
		return err
	}
	return a.features.KeyDestroyed(ctx, project.Name(k.Project), k.Owner)
}
