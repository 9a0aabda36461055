package serving

import (
	"cmp"
	"context"
	"errors"
	"time"
	"unicode/utf8"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/id"
	"github.com/falaj-ml/falaj/internal/serving/batching"
	"github.com/falaj-ml/falaj/internal/serving/runtime"
)

// Request asks a deployment. The inputs belong to the service once Infer is
// called, and the caller changes nothing of them.
type Request struct {
	Project, Name string
	Version       string // one of the versions in memory; empty: routed by share
	ID            string // the client's; empty: one is made
	Inputs        []runtime.Tensor
	Outputs       []string      // those wanted; none means all
	AsOf          time.Time     // replays what was known at a past time; zero: now
	RouteKey      string        // requests with the same key meet the same version
	Priority      int64         // 1 is served first; 0: what the deployment says
	Timeout       time.Duration // of the wait for the model; 0: what the deployment says
}

// Answer is what a version answered. Outputs and Deployment are not changed by
// anybody.
type Answer struct {
	ID         string
	Version    int64
	Deployment *Deployment // as it was when the request was routed
	Outputs    []runtime.Tensor
}

// Limits of a request.
const (
	maxRequestID = 256
	maxRouteKey  = 1024
	maxAhead     = time.Minute // as_of before the caller's clock
)

func (r *Request) validate(now time.Time) error {
	switch {
	case len(r.ID) > maxRequestID || !utf8.ValidString(r.ID):
		return fault.New(fault.Invalid, "id has %d bytes; the limit is %d, in UTF-8", len(r.ID), maxRequestID)
	case len(r.RouteKey) > maxRouteKey:
		return fault.New(fault.Invalid, "the route key has %d bytes; the limit is %d", len(r.RouteKey), maxRouteKey)
	case r.AsOf.Sub(now) > maxAhead:
		return fault.New(fault.Invalid, "as_of %s is in the future", r.AsOf.UTC().Format(time.RFC3339))
	}
	return nil
}

// Inference answers requests with models, and tells what a deployment takes and whether it
// is ready.
type Inference struct{ *core }

// Infer answers with one of the deployment's versions. A request passes five stages, each
// once: it is routed to a version, admitted, waits until the version is in memory, runs, and
// is recorded. Errors: fault.Invalid (wrong shape, datatype, name; *MissingError for
// features), fault.NotFound, fault.PermissionDenied (also a past time without
// feature.history), fault.Exhausted (over the limits), fault.Unavailable (not loaded, or too
// much waits), fault.Timeout.
func (s *Inference) Infer(ctx context.Context, r Request) (Answer, error) {
	now := time.Now()
	c := call{s: s, r: &r, received: now, began: now}
	defer c.leave()
	if err := c.route(ctx); err != nil {
		return Answer{}, err
	}
	if err := c.admit(ctx); err != nil {
		return Answer{}, err
	}
	if err := c.await(ctx); err != nil {
		return Answer{}, err
	}
	err := c.record(ctx, c.run(ctx))
	return c.answer, err
}

// call is one request under way.
type call struct {
	s        *Inference
	r        *Request
	table    *table  // the routing table that the request was routed by
	target   *target // the version that answers; nil while it is not in memory
	received time.Time
	began    time.Time // as received, or when the model that it waited for was loaded
	rollout  RolloutID // empty unless the version was chosen at random
	bucket   uint32    // 1 + that of the key that chose it; 0 without one
	filled   filled
	gaveUp   bool             // the client went away, or its own time-out passed
	outputs  []runtime.Tensor // what the model gave, the monitored output among it
	answer   Answer
}

// route finds the version that the request means, and authorises the request for it. It
// leaves target nil when the version is scaled to zero.
func (c *call) route(ctx context.Context) error {
	t, x, random, err := c.s.pick(c.r)
	scaledToZero := errors.Is(err, errScaledToZero)
	switch {
	case err == nil:
		c.enter(t, x, random)
	case scaledToZero:
		c.table = t
	}
	if err := c.s.cfg.Authz.Allow(ctx, actionInfer, c.object()); err != nil {
		return err
	}
	if err != nil && !scaledToZero {
		return c.s.explained(ctx, c.r, err)
	}
	return nil
}

// enter takes over the use of the version that was chosen for the request.
func (c *call) enter(t *table, x *target, random bool) {
	c.table, c.target = t, x
	if random && t.canary != nil {
		c.rollout = t.rollout
		if key := t.routeKey(c.r); key != "" {
			c.bucket = bucket(t.deployment.ID, key) + 1
		}
	}
}

// leave ends the use of the version, where the request has one.
func (c *call) leave() { c.target.leave() }

// object is what the request asks for, with the labels of its version where that is known.
func (c *call) object() policy.Object {
	if c.target == nil && c.table != nil {
		return c.table.object(c.table.wantedVersion(c.r.Version))
	}
	o := object(c.r.Project, c.r.Name)
	if c.target != nil {
		o.Classification, o.Residency = c.target.model.Classification, c.target.model.Residency
	}
	return o
}

// admit validates the request and counts it against the limits of its deployment, whether
// or not the version is in memory.
func (c *call) admit(ctx context.Context) error {
	if err := c.r.validate(c.received); err != nil {
		return err
	}
	if err := c.mayReplay(ctx); err != nil {
		return err
	}
	if err := c.s.limits.take(ctx, &c.table.deployment, c.rows(), c.received); err != nil {
		c.tally().refused(err)
		return err
	}
	return nil
}

// mayReplay asks for the permission to replay a past time, where the request names one.
func (c *call) mayReplay(ctx context.Context) error {
	if c.r.AsOf.IsZero() {
		return nil
	}
	return c.s.cfg.Authz.Allow(ctx, actionHistory, c.object())
}

// rows is how many rows the request has, as far as that can be known while the version is
// not in memory.
func (c *call) rows() int {
	x := c.target
	if x == nil {
		x = c.table.scaledToZeroTarget(c.r.Version)
	}
	if x == nil {
		return mostRows(c.r.Inputs)
	}
	return x.queue.Rows(c.r.Inputs)
}

// tally counts what becomes of the request.
func (c *call) tally() *tally {
	if c.target != nil {
		return c.target.tally
	}
	return c.s.tallyOf(key{c.r.Project, c.r.Name}, c.table.wantedVersion(c.r.Version).version)
}

// await waits while a version that is scaled to zero loads. The request is authorised again
// after the wait, because grants may have changed.
func (c *call) await(ctx context.Context) error {
	if c.target != nil {
		return nil
	}
	t, x, random, err := c.s.pickLoaded(ctx, c.r, c.rows(), batching.Bytes(c.r.Inputs))
	if err != nil {
		err = c.s.explained(ctx, c.r, err)
		c.tally().refused(err)
		return err
	}
	c.enter(t, x, random)
	if err := c.s.cfg.Authz.Allow(ctx, actionInfer, c.object()); err != nil {
		return err
	}
	if err := c.mayReplay(ctx); err != nil {
		return err
	}
	if c.r.Timeout > 0 { // the wait was for the model
		c.r.Timeout = max(time.Microsecond, c.r.Timeout-time.Since(c.received))
	}
	c.began = time.Now() // its time was for the model's load; the rest begins now
	return nil
}

// run fills the model's inputs, asks it and journals a classified answer.
func (c *call) run(ctx context.Context) error {
	in := withLazyTimeout(ctx, c.began, c.s.cfg.Timeout)
	defer in.cancel()
	ctx = in
	if c.r.ID == "" {
		c.r.ID = id.New("prd")
	}
	c.answer = Answer{ID: c.r.ID, Version: c.target.model.Version, Deployment: &c.table.deployment}
	if err := c.fill(ctx); err != nil {
		return err
	}
	if err := c.target.meta.Check(c.filled.inputs); err != nil {
		return err
	}
	inputs, err := c.target.meta.Arrange(c.filled.inputs)
	if err != nil {
		return err
	}
	wanted := c.r.Outputs
	if len(wanted) == 0 {
		wanted = c.target.outputs
	}
	out, err := c.target.ask(ctx, batching.Request{Inputs: inputs, Outputs: c.also(c.target, wanted), Priority: c.r.Priority, Timeout: c.r.Timeout})
	if err != nil {
		return err
	}
	c.outputs, c.answer.Outputs = out, out[:len(wanted):len(wanted)]
	if class := c.target.model.Classification; class == "confidential" || class == "restricted" {
		if err := c.s.cfg.Journal.Record(ctx, audit.Entry{
			Project: c.r.Project, Action: "deployment.infer", Object: "deployment " + c.r.Name,
			Detail: c.target.where(map[string]any{"version": c.target.model.Version, "classification": class}),
		}); err != nil {
			return fault.Wrap(err, "journaling a prediction failed")
		}
	}
	return nil
}

// record counts and remembers what came of the run, and shows an answered request to the
// shadow. The error is the client's: failed, or why the answer may not be given.
func (c *call) record(ctx context.Context, failed error) error {
	latency := time.Since(c.began)
	c.target.tally.add(latency, failed)
	c.gaveUp = c.hurried(ctx, failed)
	kept := c.remember(ctx, c.target, c.outputs, latency, failed, false)
	if err := cmp.Or(failed, kept); err != nil {
		c.answer.Outputs = nil
		return err
	}
	if shadow := c.table.shadow; shadow != nil && c.target != shadow {
		c.s.shadows.cast(ctx, c)
	}
	return nil
}

// hurried reports whether a request failed because its client went away, or allowed
// less time than the server does.
func (c *call) hurried(ctx context.Context, err error) bool {
	if errors.Is(err, batching.ErrHurried) {
		deadline, ok := ctx.Deadline()
		return c.r.Timeout > 0 || ok && deadline.Before(c.began.Add(c.s.cfg.Timeout))
	}
	return fault.Is(err, fault.Timeout) && ctx.Err() != nil
}

// fill looks features up, for a deployment that has some and a request that does
// not bring the model's own input.
func (c *call) fill(ctx context.Context) (err error) {
	f := c.table.features
	if f != nil && !f.given(c.r.Inputs) {
		if err := c.s.featuresCross(ctx, c.r.Project, c.table.deployment.Spec, actionInfer, c.table.deployment.FeatureSet); err != nil {
			return err
		}
		if err := c.s.fenced(ctx, c.r.Project, c.target, c.table.deployment.FeatureSet); err != nil {
			return err
		}
		c.filled, err = c.s.fill(ctx, c.r, f, c.target.meta)
		return err
	}
	c.filled.inputs, c.filled.rows = c.r.Inputs, c.target.queue.Rows(c.r.Inputs)
	return nil
}
