package app

import (
	"context"
	"crypto/x509"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/filewatch"
)

// The stores that can be away, as they are named in metrics, in the log and by /readyz.
const (
	databaseStore = "database"
	onlineStore   = "online store"
	objectStore   = "object store"
)

// stores knows which stores answer. Safe for concurrent use.
type stores struct {
	log      *slog.Logger
	database func() error // its outage

	mu   sync.Mutex
	away map[string]error // by store that is looked at; nil where it answers
}

// set notes what the last look at a store came to. A change is logged, with its cause.
func (s *stores) set(ctx context.Context, name string, err error) {
	s.mu.Lock()
	former := s.away[name]
	s.away[name] = err
	s.mu.Unlock()
	switch {
	case err != nil && former == nil:
		s.log.WarnContext(ctx, "a store is unavailable", slog.String("store", name), slog.Any("error", err), slog.Any("cause", errors.Unwrap(err)))
	case err == nil && former != nil:
		s.log.InfoContext(ctx, "a store is available again", slog.String("store", name))
	}
}

// state is the outage of each store; nil of one that answers.
func (s *stores) state() map[string]error {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := maps.Clone(s.away)
	out[databaseStore] = s.database()
	return out
}

// ready names the stores that do not answer. Its text is for everybody.
func (s *stores) ready() error {
	var names []string
	for name, err := range s.state() {
		if err != nil {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return nil
	}
	slices.Sort(names)
	return fault.New(fault.Unavailable, "away: %s", strings.Join(names, ", "))
}

var storeUp = prometheus.NewDesc("falaj_store_up", "1 if a store is reachable, 0 otherwise: database, online store (Redis) and object store (a bucket).", []string{"store"}, nil)

// Describe implements prometheus.Collector.
func (s *stores) Describe(out chan<- *prometheus.Desc) { out <- storeUp }

// Collect implements prometheus.Collector. It asks no store.
func (s *stores) Collect(out chan<- prometheus.Metric) {
	for name, err := range s.state() {
		up := 1.0
		if err != nil {
			up = 0
		}
		out <- prometheus.MustNewConstMetric(storeUp, prometheus.GaugeValue, up, name)
	}
}

// watchStore asks a store again and again whether it is there.
func (a *App) watchStore(name string, every, limit time.Duration, ask func(context.Context) error) {
	a.stores.set(context.Background(), name, nil) // it was opened
	a.every(every, name, func(ctx context.Context) error {
		asking, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		if err := ask(asking); ctx.Err() == nil {
			a.stores.set(ctx, name, err)
		}
		return nil // stores.set has told of it
	})
}

// followed is a file of a certificate or a credential that is read again.
type followed struct {
	name string // the setting
	file interface {
		Refresh(force bool) (again bool, err error)
	}
}

// follow reads a file again from now on; what cannot be used of it is logged.
func (a *App) follow(name string, f interface {
	Refresh(force bool) (bool, error)
},
) {
	a.followed = append(a.followed, followed{name, f})
}

// refresh reads the followed files again, those that changed or all.
func (a *App) refresh(ctx context.Context, all bool) error {
	var failed []error
	for _, f := range a.followed {
		again, err := f.file.Refresh(all)
		switch {
		case err != nil:
			failed = append(failed, fault.Wrap(err, "%s: the new file cannot be used, and the previous one stays in use", f.name))
		case again:
			a.log.InfoContext(ctx, "a file was read again", slog.String("setting", f.name))
		}
	}
	return errors.Join(failed...)
}

// secret follows the file of a password; nil where there is none.
func (a *App) secret(name, path string) (func() string, error) {
	if path == "" {
		return nil, nil //nolint:nilnil // no password is not an error
	}
	f, err := filewatch.Secret(path)
	if err != nil {
		return nil, fault.Wrap(err, "%s", name)
	}
	a.follow(name, f)
	return f.Value, nil
}

// authorities follows a file of trusted authorities; nil where there is none.
func (a *App) authorities(name, path string) (func() *x509.CertPool, error) {
	if path == "" {
		return nil, nil //nolint:nilnil // the system's are not an error
	}
	f, err := filewatch.Authorities(path)
	if err != nil {
		return nil, fault.Wrap(err, "%s", name)
	}
	a.follow(name, f)
	return f.Value, nil
}
