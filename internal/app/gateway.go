package app

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net/url"
	"os"
	"time"

	"github.com/falaj-ml/falaj/internal/event"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/governance/project/tenancy"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/governance/residency/border"
	"github.com/falaj-ml/falaj/internal/id"
	"github.com/falaj-ml/falaj/internal/lifecycle"
	"github.com/falaj-ml/falaj/internal/resource"
	"github.com/falaj-ml/falaj/internal/sandbox"
	"github.com/falaj-ml/falaj/internal/serving"
	"github.com/falaj-ml/falaj/internal/serving/gateway"
	"github.com/falaj-ml/falaj/internal/serving/gateway/gatewaysql"
	"github.com/falaj-ml/falaj/internal/serving/gateway/mirror"
	"github.com/falaj-ml/falaj/internal/serving/servingsql"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/usecase/deletions"
	"github.com/falaj-ml/falaj/internal/usecase/deployments"
)

// follows reports whether this server is the gateway of another one.
func (c Config) follows() bool { return c.Gateway.Upstream != "" }

// validateGateway says what is wrong with the values.
func (c Config) validateGateway() error {
	g := c.Gateway
	if !c.follows() {
		if g.Name != "" || g.Project != "" || g.TokenFile != "" {
			return fault.New(fault.Invalid, "gateway.upstream is missing").WithHint("Set gateway.upstream, or remove the other gateway settings.")
		}
		return nil
	}
	u, err := url.Parse(g.Upstream)
	if err != nil || u.Hostname() == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" || u.Scheme != "https" && (u.Scheme != "http" || !isLoopback(u.Hostname())) {
		return fault.New(fault.Invalid, "gateway.upstream: %.100q is not https://host:port", withoutPassword(g.Upstream)).WithHint("Plain http is for this machine, at a loopback address.")
	}
	if err := id.CheckName("gateway.name", g.Name); err != nil {
		return err
	}
	if err := project.Name(g.Project).Validate(); err != nil {
		return fault.Wrap(err, "gateway.project")
	}
	if err := residency.Zone(g.Zone).Validate(); err != nil {
		return fault.Wrap(err, "gateway.zone")
	}
	if g.TokenFile == "" {
		return fault.New(fault.Invalid, "gateway.token_file is missing").
			WithHint("At the other server: falaj token create --project %s --name %s --role deployer --scope %s:%s > FILE.", g.Project, g.Name, gateway.ActionPull, g.Name)
	}
	if d, err := resource.ParseDuration(g.Alone); err != nil || d != 0 && d < time.Minute {
		return fault.New(fault.Invalid, "gateway.alone: %.40q is neither 0 nor a duration of at least 1m, such as 30d", g.Alone)
	}
	if d, err := time.ParseDuration(g.Every); err != nil || d < 100*time.Millisecond || d > time.Hour {
		return fault.New(fault.Invalid, "gateway.every: %.40q is not a duration of 100ms to 1h", g.Every)
	}
	for name, set := range map[string]bool{"store.url": c.Store.URL != "", "blob.s3": c.Blob.S3.Endpoint != "", "online.url": c.Online.URL != ""} {
		if set {
			return fault.New(fault.Invalid, "%s is not supported on a gateway, which stores all data in its data directory to work offline", name)
		}
	}
	return nil
}

// upstream is the server that this one follows.
func (c Config) upstream() (mirror.Server, error) {
	g := c.Gateway
	s := mirror.Server{URL: g.Upstream, TokenFile: g.TokenFile, Project: g.Project, Name: g.Name}
	if g.CA == "" {
		return s, nil
	}
	pem, err := os.ReadFile(g.CA)
	if err != nil {
		return s, fault.New(fault.Invalid, "gateway.ca: %w", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return s, fault.New(fault.Invalid, "gateway.ca: %s contains no PEM certificate", g.CA)
	}
	s.TLS = &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: roots}
	return s, nil
}

// openFollower opens what a gateway has: serving, with the deployments of another
// server, and the log that goes back to it.
func (a *App) openFollower(ctx context.Context) error {
	level, err := sandbox.ParseLevel(a.cfg.Isolation)
	if err != nil {
		return err
	}
	if err := sandbox.Check(ctx, a.cfg.workerPath(), level); err != nil {
		return fault.Wrap(err, "isolation")
	}
	if err := mirror.Own(ctx, a.db, gatewaysql.Mirror{}, servingsql.Store{}); err != nil {
		return err
	}
	if err := a.openPredictions(ctx); err != nil {
		return err
	}
	models := mirror.Models{DB: a.db, Store: gatewaysql.Mirror{}, Blobs: a.blobs}
	if err := a.startServing(serving.Config{Models: models, Follows: true}); err != nil {
		return err
	}
	server, err := a.cfg.upstream()
	if err != nil {
		return err
	}
	alone, _ := resource.ParseDuration(a.cfg.Gateway.Alone) // validated
	m := mirror.New(mirror.Config{
		DB: a.db, Store: gatewaysql.Mirror{}, Deployments: servingsql.Store{}, Blobs: a.blobs, Log: a.predictions, Upstream: server,
		Zone: string(a.cfg.zone()), Version: a.world.Version, Alone: alone, Project: a.mirrorProject, Serving: a.serving, Logger: a.log,
	})
	a.onClose(m.Close)
	every, _ := time.ParseDuration(a.cfg.Gateway.Every) // validated
	following := &lifecycle.Loop{Name: "gateway", Every: every, Timeout: time.Hour, Run: m.RunOnce, Logger: a.log}
	handing := &lifecycle.Loop{Name: "gateway predictions", Every: every, Timeout: time.Hour, Run: m.HandOver, Logger: a.log}
	a.group.Add(following.Service())
	a.group.Add(handing.Service())
	trimming := &lifecycle.Loop{Name: "housekeeping", Every: 24 * time.Hour, Timeout: time.Hour, Logger: a.log, Run: func(ctx context.Context) error {
		return event.Trim(identity.With(ctx, identity.Loop("housekeeping")), a.db, time.Now().Add(-kept(a.cfg.Retention.Events)))
	}}
	a.group.Add(trimming.Service())
	return a.watchClock(ctx)
}

// mirrorProject makes the project of the other server here, with the zones of its label
// and that in which this gateway stands.
func (a *App) mirrorProject(ctx context.Context, w gateway.Wanted) error {
	for _, z := range append(w.Residency.Zones(), a.cfg.zone()) {
		err := a.db.View(ctx, func(ctx context.Context, tx *store.Tx) error { return a.zones.Known(ctx, tx, residency.Of(z)) })
		if fault.Is(err, fault.Invalid) {
			_, _, err = a.zones.Apply(ctx, border.ZoneRequest{Zone: z})
		}
		if err != nil {
			return err
		}
	}
	spec := project.Spec{Description: "followed by this gateway", Residency: w.Residency, Classification: project.Classification(w.Classification)}
	have, err := a.projects.One(ctx, project.Name(w.Project))
	if err == nil && have.Residency.Same(spec.Residency) && have.Classification == spec.Classification {
		return nil
	}
	if err != nil && !fault.Is(err, fault.NotFound) {
		return err
	}
	_, _, err = a.projects.Apply(ctx, tenancy.Request{Name: project.Name(w.Project), Spec: spec})
	return err
}

// openGateways opens the other side: what gateways elsewhere may have.
func (a *App) openGateways(context.Context) error {
	a.gateways = gateway.New(gateway.Config{
		DB: a.db, Store: gatewaysql.Store{}, Deployments: servingsql.Store{}, Authz: a.authorizer, Guard: a.guard, Zones: a.zones,
		Models: deployments.GatewayModels{Registry: a.registry}, Log: a.predictions, Logger: a.log,
		Project: func(ctx context.Context, name string) (residency.Label, string, error) {
			p, err := a.projects.One(identity.With(ctx, identity.Loop("gateways")), project.Name(name))
			return p.Residency, string(p.Classification), err
		},
		Erased: a.erasure.ErasedUntil,
	})
	a.deletions = deletions.Service{
		DB: a.db, Authorizer: a.authorizer, Training: a.training.Records, Monitoring: a.monitoring, Serving: a.serving, Gateways: a.gateways,
	}
	return nil
}
