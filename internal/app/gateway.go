package app

import (
	"context"
	"time"

	"github.com/falaj-ml/falaj/internal/config"
	"github.com/falaj-ml/falaj/internal/event"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/governance/project/tenancy"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/governance/residency/border"
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

// openFollower opens what a gateway has: serving, with the deployments of another
// server, and the log that goes back to it.
func (a *App) openFollower(ctx context.Context) error {
	level, err := sandbox.ParseLevel(a.cfg.Isolation)
	if err != nil {
		return err
	}
	if err := sandbox.Check(ctx, a.cfg.WorkerPath(), level); err != nil {
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
	server, err := a.cfg.Upstream()
	if err != nil {
		return err
	}
	alone, _ := resource.ParseDuration(a.cfg.Gateway.Alone) // validated
	m := mirror.New(mirror.Config{
		DB: a.db, Store: gatewaysql.Mirror{}, Deployments: servingsql.Store{}, Blobs: a.blobs, Log: a.predictions, Upstream: server,
		Zone: string(a.cfg.Zone()), Version: a.world.Version, Alone: alone, Project: a.mirrorProject, Loader: a.serving.Loader, States: a.serving.Deployments, Logger: a.log,
	})
	a.onClose(m.Close)
	every, _ := time.ParseDuration(a.cfg.Gateway.Every) // validated
	following := &lifecycle.Loop{Name: "gateway", Every: every, Timeout: time.Hour, Run: m.RunOnce, Logger: a.log}
	handing := &lifecycle.Loop{Name: "gateway predictions", Every: every, Timeout: time.Hour, Run: m.HandOver, Logger: a.log}
	a.group.Add(following.Service())
	a.group.Add(handing.Service())
	trimming := &lifecycle.Loop{Name: "housekeeping", Every: 24 * time.Hour, Timeout: time.Hour, Logger: a.log, Run: func(ctx context.Context) error {
		return event.Trim(identity.With(ctx, identity.Loop("housekeeping")), a.db, time.Now().Add(-config.Kept(a.cfg.Retention.Events)))
	}}
	a.group.Add(trimming.Service())
	return a.watchClock(ctx)
}

// mirrorProject makes the project of the other server here, with the zones of its label
// and that in which this gateway stands.
func (a *App) mirrorProject(ctx context.Context, w gateway.Wanted) error {
	for _, z := range append(w.Residency.Zones(), a.cfg.Zone()) {
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
		DB: a.db, Authorizer: a.authorizer, Training: a.training.Records, Monitoring: a.monitoring, Serving: a.serving.Deployments, Gateways: a.gateways,
	}
	return nil
}
