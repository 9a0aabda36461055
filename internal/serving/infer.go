package serving

import (
	"context"
	"errors"
	"log/slog"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/id"
	"github.com/falaj-ml/falaj/internal/serving/batching"
	"github.com/falaj-ml/falaj/internal/serving/chain"
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

// routeKey is what decides the version: the column that the rollout names, in
// the first row, else the request's own key.
func (t *table) routeKey(r *Request) string {
	if t.sticky == "" || t.canary == nil {
		return r.RouteKey
	}
	for i := range r.Inputs {
		if r.Inputs[i].Name == t.sticky {
			if text := firstText(r.Inputs[i].Data); text != "" {
				return text
			}
		}
	}
	return r.RouteKey
}

// firstText is the first element as text; empty when there is none.
func firstText(data any) string {
	switch d := data.(type) {
	case []string:
		if len(d) > 0 {
			return d[0]
		}
	case []int64:
		if len(d) > 0 {
			return strconv.FormatInt(d[0], 10)
		}
	default:
		if n := numbers(data); len(n) > 0 {
			return strconv.FormatFloat(n[0], 'g', -1, 64)
		}
	}
	return ""
}

// Infer answers with one of the deployment's versions. Errors: fault.Invalid
// (wrong shape, datatype, name; *MissingError for features), fault.NotFound,
// fault.PermissionDenied (also a past time without feature.history),
// fault.Exhausted (over the limits), fault.Unavailable (not loaded, or too much
// waits), fault.Timeout.
func (s *Service) Infer(ctx context.Context, r Request) (Answer, error) {
	received := time.Now()
	t, x, random, missing := s.pick(&r)
	asked := object(r.Project, r.Name)
	if x != nil {
		defer x.leave()
		asked.Classification, asked.Residency = x.model.Classification, x.model.Residency
	}
	if err := s.Authz.Allow(ctx, actionInfer, asked); err != nil {
		return Answer{}, err
	}
	coldStarted := missing != nil
	if coldStarted {
		if t, x, random, missing = s.awaitColdStart(ctx, &r, received, missing); missing != nil {
			return Answer{}, missing
		}
		defer x.leave()
		asked.Classification, asked.Residency = x.model.Classification, x.model.Residency
	}
	if err := r.validate(received); err != nil {
		return Answer{}, err
	}
	if !r.AsOf.IsZero() {
		if err := s.Authz.Allow(ctx, actionHistory, asked); err != nil {
			return Answer{}, err
		}
	}
	if !coldStarted { // a request of a cold start was counted before
		if err := s.limits.take(ctx, &t.deployment, x.queue.Rows(r.Inputs), received); err != nil {
			x.tally.refused(err)
			return Answer{}, err
		}
	}
	if r.ID == "" {
		r.ID = id.New("prd")
	}
	c := call{
		s: s, r: &r, table: t, target: x, received: received, began: received, answer: Answer{ID: r.ID, Version: x.model.Version, Deployment: &t.deployment},
	}
	if random && t.canary != nil {
		c.rollout = t.rollout
		if key := t.routeKey(&r); key != "" {
			c.bucket = bucket(t.deployment.ID, key) + 1
		}
	}
	if coldStarted { // its time was for the model's load; the rest begins now
		c.began = time.Now()
	}
	asks := ctx
	in := withLazyTimeout(ctx, c.began, s.Timeout)
	defer in.cancel()
	ctx = in
	err := c.run(ctx)
	latency := time.Since(c.began)
	x.tally.add(latency, err)
	c.gaveUp = c.hurried(asks, err)
	if kept := c.remember(ctx, x, c.outputs, latency, err, false); err == nil {
		err = kept
	}
	if err != nil {
		c.answer.Outputs = nil
		return c.answer, err
	}
	if t.shadow != nil && x != t.shadow {
		s.shadows.cast(ctx, &c)
	}
	return c.answer, nil
}

// call is one request under way.
type call struct {
	s        *Service
	r        *Request
	table    *table
	target   *target
	received time.Time
	began    time.Time // as received, or when the model that it waited for was loaded
	rollout  RolloutID // empty unless the version was chosen at random
	bucket   uint32    // 1 + that of the key that chose it; 0 without one
	filled   filled
	gaveUp   bool             // the request failed by the time that who asked allowed
	outputs  []runtime.Tensor // what the model gave, the monitored output among it
	answer   Answer
}

// hurried reports whether a request failed because who asked went away, or allowed
// less time than the server does.
func (c *call) hurried(asks context.Context, err error) bool {
	if errors.Is(err, batching.ErrHurried) {
		deadline, ok := asks.Deadline()
		return c.r.Timeout > 0 || ok && deadline.Before(c.began.Add(c.s.Timeout))
	}
	return fault.Is(err, fault.Timeout) && asks.Err() != nil
}

// run fills the model's inputs, asks it and journals a classified answer.
func (c *call) run(ctx context.Context) error {
	if err := c.fill(ctx); err != nil {
		return err
	}
	if err := c.target.meta.Check(c.filled.inputs); err != nil {
		return err
	}
	wanted := c.r.Outputs
	if len(wanted) == 0 {
		wanted = c.target.outputs
	}
	out, err := c.target.ask(ctx, batching.Request{Inputs: c.filled.inputs, Outputs: c.also(c.target, wanted), Priority: c.r.Priority, Timeout: c.r.Timeout})
	if err != nil {
		return err
	}
	c.outputs, c.answer.Outputs = out, out[:len(wanted):len(wanted)]
	if class := c.target.model.Classification; class == "confidential" || class == "restricted" {
		if err := c.s.Journal.Record(ctx, audit.Entry{
			Project: c.r.Project, Action: "deployment.infer", Object: "deployment " + c.r.Name,
			Detail: c.target.where(map[string]any{"version": c.target.model.Version, "classification": class}),
		}); err != nil {
			return fault.Wrap(err, "journaling a prediction failed")
		}
	}
	return nil
}

// ask lets a request wait for the model and run, and counts it.
func (t *target) ask(ctx context.Context, r batching.Request) ([]runtime.Tensor, error) {
	a, err := t.queue.Infer(ctx, r)
	if err != nil {
		if chain.Refused(err) {
			return nil, err // the model never saw it
		}
		return nil, modelError{err}
	}
	t.tally.answered(a)
	return a.Outputs, nil
}

// batches says whether requests of a version run together, or why not.
func (t *target) batches() (together bool, why string) {
	v := t.queue.Verdict()
	if v.May == batching.Untried {
		return false, "it is being tested with requests: " + v.Why
	}
	return v.May == batching.Yes, v.Why
}

// modelError is a failure of the model, or of waiting for it, with inputs that are
// what it says it takes.
type modelError struct{ error }

func (e modelError) Unwrap() error { return e.error }

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

// shadows runs requests again on shadow versions, beside and after their
// answers, a few at a time. What finds no place is dropped and counted.
type shadows struct {
	places  chan struct{} // those that wait or run
	bytes   *atomic.Int64 // of theirs
	running chan struct{}
	dropped *sync.Map // key → *atomic.Int64
	all     *sync.WaitGroup
}

// Bounds of the requests that are kept in memory for shadows.
const (
	shadowPlaces = 64
	shadowBytes  = 256 << 20
)

func newShadows(processors int) shadows {
	return shadows{
		places: make(chan struct{}, shadowPlaces), bytes: &atomic.Int64{}, running: make(chan struct{}, max(1, processors/2)), dropped: &sync.Map{}, all: &sync.WaitGroup{},
	}
}

// cast shows an answered request to the shadow.
func (h *shadows) cast(ctx context.Context, c *call) {
	x := c.table.shadow
	k := key{c.r.Project, c.r.Name}
	select {
	case h.places <- struct{}{}:
	default:
		h.drop(k)
		return
	}
	size := c.filled.bytes()
	leave := func() {
		h.bytes.Add(-size)
		<-h.places
	}
	if h.bytes.Add(size) > shadowBytes {
		leave()
		h.drop(k)
		return
	}
	if !x.enter() {
		leave()
		return // it is no shadow any more
	}
	c = c.asked()
	h.all.Go(func() {
		defer leave()
		defer x.leave()
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.s.Timeout)
		defer cancel()
		select {
		case h.running <- struct{}{}:
		case <-ctx.Done():
			h.drop(k)
			return
		}
		defer func() { <-h.running }()
		c.again(ctx, x)
	})
}

func (h *shadows) drop(k key) {
	n, _ := h.dropped.LoadOrStore(k, &atomic.Int64{})
	n.(*atomic.Int64).Add(1)
}

// count is how many requests of a deployment no shadow saw.
func (h *shadows) count(k key) int64 {
	if n, ok := h.dropped.Load(k); ok {
		return n.(*atomic.Int64).Load()
	}
	return 0
}

// asked is the call without what was answered, and without what its features were
// found by.
func (c *call) asked() *call {
	q, r := *c, *c.r
	r.Inputs, q.r, q.outputs, q.answer = nil, &r, nil, Answer{}
	return &q
}

// again asks the shadow what was asked, and remembers what it said.
func (c *call) again(ctx context.Context, x *target) {
	began := time.Now()
	var out []runtime.Tensor
	err := x.meta.Check(c.filled.inputs)
	if err == nil && c.table.features != nil { // it may have replicas where the answering version has none
		err = c.s.fenced(ctx, c.r.Project, x, c.table.deployment.FeatureSet)
	}
	if err == nil {
		wanted := x.score.output
		if wanted == "" && len(x.meta.Outputs) > 0 {
			wanted = x.meta.Outputs[0].Name
		}
		out, err = x.ask(ctx, batching.Request{Inputs: c.filled.inputs, Outputs: c.also(x, []string{wanted}), Background: true})
	}
	latency := time.Since(began)
	x.tally.add(latency, err)
	if err := c.remember(identity.With(ctx, identity.Loop("shadow")), x, out, latency, err, true); err != nil {
		c.s.Log.WarnContext(ctx, "logging a shadow's prediction failed", slog.String("deployment", c.r.Name), slog.String("error", err.Error()))
	}
}

// Close waits until shadows have seen what was shown to them, closes all models, and
// writes down what was used of quotas. No Infer may begin after it.
func (s *Service) Close(ctx context.Context) error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.scaler.close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.scaler.loading.Wait()
		s.shadows.all.Wait()
		s.settling.Lock()
		old := *s.tables.Swap(&map[key]*table{})
		s.settling.Unlock()
		for _, t := range old {
			leave(t.targets())
		}
		s.sessions.Wait()
	}()
	select {
	case <-done:
		return s.RecordUsage(ctx)
	case <-ctx.Done():
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), readUsage)
		defer cancel()
		return errors.Join(fault.New(fault.Timeout, "models are still running"), s.RecordUsage(last))
	}
}
