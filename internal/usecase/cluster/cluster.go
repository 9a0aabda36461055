// Package cluster tells servers that share a database of each other, and refuses
// arrangements in which one would miss what another stores.
//
// A server whose objects or online features are in its own data directory must be the
// only one on its database: another server would find no objects, and would answer that
// an entity has no features. Servers that share the bucket and Redis as well may run
// beside each other.
package cluster

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/lifecycle"
	"github.com/falaj-ml/falaj/internal/store"
)

// leaseTime is for how long a killed server counts as running.
const leaseTime = 15 * time.Second

// A server holds the lease members + alone or shared + its name.
const (
	members = "server/"
	alone   = "alone/"
	shared  = "shared/"
)

// Config is what a member is made of.
type Config struct {
	DB *store.DB
	// Name of the server for people, different for each data directory of each machine:
	// a server takes over the membership that its killed predecessor of this name left.
	Name string
	// LocalObjects and LocalFeatures say that objects, or online features, are in the
	// server's own data directory.
	LocalObjects, LocalFeatures bool
	Log                         *slog.Logger
}

// local names the stores in the server's own data directory; empty for none.
func (c Config) local() string {
	switch {
	case c.LocalObjects && c.LocalFeatures:
		return "objects and online features"
	case c.LocalObjects:
		return "objects"
	case c.LocalFeatures:
		return "online features"
	}
	return ""
}

// Member is one server among those that share a database. Safe for concurrent use.
type Member struct {
	cfg   Config
	lease *store.Lease
}

// Join makes the server a member: nil on a database that only one process can open.
// Error: fault.Conflict while another server runs that would miss data of this one, or
// whose data this one would miss.
func Join(ctx context.Context, cfg Config) (*Member, error) {
	if !cfg.DB.Shared() {
		return nil, nil
	}
	kind := shared
	if cfg.local() != "" {
		kind = alone
	}
	// First the lease, then the comparison: of two that start together one sees the other.
	lease, err := cfg.DB.Retake(ctx, members+kind+cfg.Name, cfg.Name, leaseTime)
	if err != nil {
		return nil, err
	}
	m := &Member{cfg: cfg, lease: lease}
	others, err := m.compare(ctx)
	if err != nil {
		_ = lease.Release(ctx) // it expires otherwise
		return nil, err
	}
	if len(others) > 0 {
		cfg.Log.WarnContext(ctx, "other servers use this database; monitors, rollouts and erasures read only the prediction log of the server that runs them",
			slog.Any("servers", others))
	}
	return m, nil
}

// Loop renews the membership, and reports a server that should not run beside this one.
func (m *Member) Loop() *lifecycle.Loop {
	return &lifecycle.Loop{Name: "servers of the database", Every: leaseTime / 3, Timeout: leaseTime, Logger: m.cfg.Log, Run: func(ctx context.Context) error {
		if err := m.lease.Renew(ctx); err != nil {
			return err
		}
		_, err := m.compare(ctx)
		return err
	}}
}

// Leave ends the membership, so that another server need not wait for its lease to expire.
func (m *Member) Leave(ctx context.Context) error { return m.lease.Release(ctx) }

// compare gives the other members.
func (m *Member) compare(ctx context.Context) (others []string, err error) {
	held, err := m.cfg.DB.Holders(ctx, members)
	if err != nil {
		return nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(held)) {
		other := held[name]
		if other == m.cfg.Name { // also of an earlier start with other settings
			continue
		}
		who, where := "this server", m.cfg.local()
		if where == "" && strings.HasPrefix(name, alone) {
			who, where = "that server", "objects or online features"
		}
		if where != "" {
			return nil, fault.New(fault.Conflict, "%s uses this database, and %s keeps %s in its own data directory", other, who, where).
				WithHint("Stop one of the two servers, or set the same blob.s3 and online.url for both. A killed server counts as running for %s.", leaseTime)
		}
		others = append(others, other)
	}
	return others, nil
}
