package serving

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"strconv"
	"time"

	"github.com/falaj-ml/falaj/internal/store"
)

func versionText(v int64) string { return strconv.FormatInt(v, 10) }

// maxPause bounds the growing pause between tries to load a failed model.
const maxPause = 5 * time.Minute

// RunOnce makes what this process holds what the database says: it loads what
// is missing or changed and drops what is gone. A model that cannot be loaded
// keeps its reason and is tried again later; the others load all the same.
func (s *Service) RunOnce(ctx context.Context) error {
	var wanted []Deployment
	if err := s.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		wanted, err = s.Store.All(ctx, tx)
		return err
	}); err != nil {
		return err
	}
	s.mu.Lock()
	for _, d := range wanted { // who asks meanwhile hears that it is loading
		if k := (key{d.Project, d.Name}); s.loaded[k] == nil {
			s.loaded[k] = &loaded{deployment: d}
		}
	}
	s.read = true
	held := make(map[key]*loaded, len(s.loaded))
	maps.Copy(held, s.loaded)
	s.mu.Unlock()

	var failures []error
	for _, d := range wanted {
		k := key{d.Project, d.Name}
		have := held[k]
		delete(held, k)
		current := have.of(d)
		if current && (have.session != nil || time.Now().Before(have.retry)) {
			continue
		}
		if err := s.load(ctx, d, have); err != nil {
			failures = append(failures, err)
		}
	}
	for k := range held {
		if err := s.settle(ctx, k, nil); err != nil {
			failures = append(failures, err)
		}
	}
	if ctx.Err() == nil {
		s.mu.Lock()
		s.looked = true
		s.mu.Unlock()
	}
	return errors.Join(failures...)
}

func (s *Service) load(ctx context.Context, d Deployment, before *loaded) error {
	pinned := d.Spec
	pinned.Version = versionText(d.Version) // the alias may have moved since
	session, got, err := s.open(ctx, d.Project, d.Name, pinned)
	if err == nil && got.Digest != d.Digest {
		_ = session.Close()
		err = errors.New("the model version's digest is not the deployed one")
	}
	if err == nil {
		if err := s.settle(ctx, key{d.Project, d.Name}, &loaded{deployment: d, session: session}); err != nil {
			return err
		}
		s.Log.InfoContext(ctx, "model loaded", slog.String("deployment", d.Name), slog.Int64("version", d.Version))
		return nil
	}
	l := &loaded{deployment: d, reason: err.Error(), tries: 1}
	if before.of(d) {
		l.tries = before.tries + 1
	}
	l.retry = time.Now().Add(min(maxPause, time.Second<<min(l.tries, 9)))
	s.Log.ErrorContext(ctx, "model not loaded", slog.String("deployment", d.Name), slog.String("error", err.Error()))
	return errors.Join(err, s.settle(ctx, key{d.Project, d.Name}, l))
}

// Ready reports whether every model that a project wants answers. Of no project,
// "", it reports whether the server is there for all: it has looked at every
// deployment once, whether or not its model could be loaded.
func (s *Service) Ready(project string) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if project == "" {
		return s.looked
	}
	for k, l := range s.loaded {
		if k.project == project && l.session == nil {
			return false
		}
	}
	return s.read
}
