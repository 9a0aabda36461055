package serving

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/serving/batching"
	models "github.com/falaj-ml/falaj/internal/serving/runtime"
)

var (
	// errAsleep is what pick says of a version that is loaded when it is asked for.
	errAsleep = fault.New(fault.Unavailable, "the model is not in memory: nobody had asked for it")
	// errFailed is in the chain of what requests hear for a version that did not load.
	errFailed = errors.New("it did not load")

	errStopping = fault.New(fault.Unavailable, "the server stops")
)

// hold is the requests of a deployment that wait while its models are loaded. Under
// scaler.mu, but for done.
type hold struct {
	done     chan struct{} // closed when they should look again
	err      error         // why nothing was loaded, as far as that is not in the state; set before
	requests int
	rows     int
	bytes    int64
}

// What a hold has room for: as much as the queue that its requests would wait in. One
// request may always wait.
const (
	defaultQueue = 4096 // rows
	maxHeldBytes = 256 << 20
)

// holdRetry is after how long somebody who found no room may ask again.
const holdRetry = time.Second

// held lets an inference wait until its version is in memory, and lets it enter. A
// request is held after it was looked at and counted against its limits, and may
// nothing afterwards that was forbidden meanwhile. Errors: missing, if that is not
// that the model is asleep; those of Infer.
func (s *Service) held(ctx context.Context, r *Request, received time.Time, missing error) (*table, *target, bool, error) {
	t := (*s.tables.Load())[key{r.Project, r.Name}]
	switch {
	case t == nil || !t.deployment.Spec.sleeps():
		return nil, nil, false, missing
	case !errors.Is(missing, errAsleep):
		return nil, nil, false, s.explained(ctx, r, missing)
	}
	w := t.asked(r.Version)
	if err := s.Authz.Allow(ctx, actionInfer, t.object(w)); err != nil {
		return nil, nil, false, err
	}
	if err := r.validate(received); err != nil {
		return nil, nil, false, err
	}
	rows := mostRows(r.Inputs)
	if x := t.sleeper(r.Version); x != nil { // what its rows are is known
		rows = x.queue.Rows(r.Inputs)
	}
	err := s.limits.take(ctx, &t.deployment, rows, received)
	if err == nil {
		var x *target
		var random bool
		if t, x, random, err = s.wake(ctx, r, rows, batching.Bytes(r.Inputs)); err == nil {
			asked := object(r.Project, r.Name)
			asked.Classification, asked.Residency = x.model.Classification, x.model.Residency
			if err := s.Authz.Allow(ctx, actionInfer, asked); err != nil {
				x.leave()
				return nil, nil, false, err
			}
			if r.Timeout > 0 { // the wait was for the model
				r.Timeout = max(time.Microsecond, r.Timeout-time.Since(received))
			}
			return t, x, random, nil
		}
		err = s.explained(ctx, r, err)
	}
	s.tallyOf(key{r.Project, r.Name}, w.version).refused(err)
	return nil, nil, false, err
}

// wake is pick that waits for a version that is asleep, while it is loaded: as long as
// the request may wait for its model, and as a model may take to load.
func (s *Service) wake(ctx context.Context, r *Request, rows int, bytes int64) (*table, *target, bool, error) {
	k := key{r.Project, r.Name}
	var late <-chan time.Time
	for failed := error(nil); ; {
		t, x, random, err := s.pick(r)
		if !errors.Is(err, errAsleep) {
			return t, x, random, err
		}
		if failed != nil {
			return nil, nil, false, failed
		}
		h, limit, err := s.join(k, r, rows, bytes)
		if err != nil {
			return nil, nil, false, err
		}
		if late == nil {
			timer := time.NewTimer(limit)
			defer timer.Stop()
			late = timer.C
		}
		select {
		case <-h.done:
		case <-late:
			err := fault.New(fault.Unavailable, "model %q was not in memory, and is still loading after %s", r.Name, limit).
				WithHint("Try again in a moment, or allow a longer time-out.").WithRetry(holdRetry)
			if r.Timeout > 0 {
				err.Err = batching.ErrHurried
			}
			failed = err
		case <-ctx.Done():
			failed = fault.New(fault.Timeout, "model %q was not in memory, and loaded until the request's time was up", r.Name)
		}
		s.part(h, rows, bytes)
		if failed != nil || errors.Is(h.err, errStopping) {
			return nil, nil, false, cmp.Or(failed, h.err)
		}
		failed = h.err
	}
}

// join makes a request wait, and sees to it that its model is loaded. limit is how
// long it may wait.
func (s *Service) join(k key, r *Request, rows int, bytes int64) (_ *hold, limit time.Duration, _ error) {
	t := (*s.tables.Load())[k]
	if t == nil {
		return nil, 0, unknown(r.Name, r.Version)
	}
	o := t.deployment.Spec.Batching.options(0)
	limit = s.LoadTime
	if own := cmp.Or(r.Timeout, o.Timeout); own > 0 {
		limit = min(limit, own)
	}
	z := &s.scaler
	z.mu.Lock()
	defer z.mu.Unlock()
	if z.closed {
		return nil, 0, errStopping
	}
	c := z.of(k, t.deployment.ID)
	h := c.hold
	if h == nil {
		h = &hold{done: make(chan struct{})}
		c.hold = h
		z.waking.Go(func() { s.rouse(k, h) })
	}
	if h.requests > 0 && (h.rows+rows > cmp.Or(o.MaxWaiting, defaultQueue) || h.bytes+bytes > maxHeldBytes) {
		return nil, 0, fault.New(fault.Unavailable, "model %q is loading, and has no place for another request: %d wait, with %d rows", k.name, h.requests, h.rows).
			WithHint("Try again in a moment, or ask for batching.queue to be raised.").WithRetry(holdRetry)
	}
	h.requests++
	h.rows += rows
	h.bytes += bytes
	return h, limit, nil
}

// part ends a request's wait.
func (s *Service) part(h *hold, rows int, bytes int64) {
	s.scaler.mu.Lock()
	defer s.scaler.mu.Unlock()
	h.requests--
	h.rows -= rows
	h.bytes -= bytes
}

// rouse loads what a deployment wants, for those who are held.
func (s *Service) rouse(k key, h *hold) {
	ctx, began := identity.With(s.scaler.life, identity.Loop("model loader")), time.Now()
	d, err := s.look(ctx, k.project, k.name)
	if err == nil {
		err = s.bring(ctx, k, d, demanded)
	}
	if err == nil {
		s.scaler.cold(k, d.ID, time.Since(began))
	} else {
		s.Log.WarnContext(ctx, "model not loaded for who asks", slog.String("deployment", k.name), slog.String("error", err.Error()))
		err = fault.New(fault.Unavailable, "model %q is not ready: it could not be loaded at the moment", k.name).
			WithHint("Try again in a moment. The deployment's state, or the server's log, says why.").WithRetry(holdRetry)
	}
	s.scaler.release(k, h, err)
}

// cold counts a load that requests were held for.
func (z *scaler) cold(k key, id ID, took time.Duration) {
	z.mu.Lock()
	defer z.mu.Unlock()
	c := z.of(k, id)
	c.colds.Count++
	c.colds.Time += took
}

// release has those who are held look again. h is nil for whatever hold there is.
func (z *scaler) release(k key, h *hold, err error) {
	z.mu.Lock()
	defer z.mu.Unlock()
	c := z.all[k]
	if c == nil || c.hold == nil || h != nil && c.hold != h {
		return // they were told
	}
	if err != nil && z.closed { // which is why it could not be loaded
		err = errStopping
	}
	c.hold.err = err
	close(c.hold.done)
	c.hold = nil
}

// forget drops what is known of a deployment that is gone. Who is held for it looks
// again, and finds nothing.
func (z *scaler) forget(k key) {
	z.mu.Lock()
	defer z.mu.Unlock()
	if c := z.all[k]; c != nil && c.hold != nil {
		close(c.hold.done)
	}
	delete(z.all, k)
}

// Stopping tells those who are held that the server stops; nobody is held any more.
// Versions that are in memory answer until Close.
func (s *Service) Stopping() { s.scaler.close() }

// close ends all loads for who asks, and tells those who are held. The caller waits
// for waking. It may be called twice.
func (z *scaler) close() {
	z.mu.Lock()
	z.closed = true
	held := make([]key, 0, len(z.all))
	for k := range z.all {
		held = append(held, k)
	}
	z.mu.Unlock()
	z.end()
	for _, k := range held {
		z.release(k, nil, errStopping)
	}
}

// asked is the version that a request means: that which it names, or the stable one.
func (t *table) asked(version string) wanting {
	for _, w := range t.wanted {
		if version != "" && versionText(w.version) == version {
			return w
		}
	}
	return t.wanted[0]
}

// object is what a request for a version that is not in memory asks for.
func (t *table) object(w wanting) policy.Object {
	d := &t.deployment
	o := object(d.Project, d.Name)
	o.Classification, o.Residency = d.Classification, d.Residency
	for _, trial := range d.Trials {
		if trial.Role == w.role {
			o.Classification, o.Residency = trial.Classification, trial.Residency
		}
	}
	return o
}

// explained adds why a version did not load to the error of a request that was held
// for it, for who may read the deployment's state.
func (s *Service) explained(ctx context.Context, r *Request, err error) error {
	k := key{r.Project, r.Name}
	t := (*s.tables.Load())[k]
	if t == nil || !errors.Is(err, errFailed) {
		return err
	}
	w := t.asked(r.Version)
	f, failed := s.failure(k, w)
	if !failed || s.Authz.Allow(ctx, actionRead, object(r.Project, r.Name)) != nil {
		return err
	}
	return fault.New(fault.Unavailable, "model %q is not ready: version %d could not be loaded: %s", r.Name, w.version, f.reason).WithRetry(fault.RetryOf(err))
}

// sleeper is a version that was in memory and left because nobody asked for it: what
// it said about itself is known. nil when it is not.
func (t *table) sleeper(version string) *target {
	if !t.asleep() {
		return nil
	}
	w := t.asked(version)
	if version != "" && versionText(w.version) != version {
		return nil
	}
	for _, x := range t.slept {
		if x.is(w) {
			return x
		}
	}
	return nil
}

// Answers says why a version would not answer at the moment, without loading it; nil
// of one that would, and of one that is loaded when it is asked for. Errors:
// fault.NotFound, fault.Unavailable (not loaded), fault.PermissionDenied.
func (s *Service) Answers(ctx context.Context, project, name, version string) (away, err error) {
	if err := s.Authz.Allow(ctx, actionRead, object(project, name)); err != nil {
		return nil, err
	}
	_, x, _, err := s.pick(&Request{Project: project, Name: name, Version: version})
	if errors.Is(err, errAsleep) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer x.leave()
	return x.away(), nil
}

// mostRows is how many rows inputs have of which nothing else is known: the largest
// first dimension, and at least one.
func mostRows(inputs []models.Tensor) int {
	rows := int64(1)
	for i := range inputs {
		if shape := inputs[i].Shape; len(shape) > 0 {
			rows = max(rows, shape[0])
		}
	}
	return int(min(rows, models.MaxElements))
}

// sleeping describes a version that is asleep, by what it said when it was awake;
// false when nothing is known.
func (s *Service) sleeping(r *Request) (Description, bool) {
	t := (*s.tables.Load())[key{r.Project, r.Name}]
	x := t.sleeper(r.Version)
	if x == nil {
		return Description{}, false
	}
	d := Description{Metadata: x.meta, Name: r.Name, Queue: x.queue.Options()}
	d.Batched, _ = x.batches()
	if r.Version != "" {
		d.Versions = []int64{x.model.Version}
		return d, true
	}
	for _, w := range t.wanted {
		if w.role != Shadow {
			d.Versions = append(d.Versions, w.version)
		}
	}
	return d, true
}

// sleepingTakes is Takes of a version that is asleep. What
// nothing is known of is loaded.
func (s *Service) sleepingTakes(ctx context.Context, r *Request) (Takes, error) {
	t := (*s.tables.Load())[key{r.Project, r.Name}]
	if t == nil {
		return Takes{}, unknown(r.Name, r.Version)
	}
	if err := s.Authz.Allow(ctx, actionInfer, t.object(t.asked(r.Version))); err != nil {
		return Takes{}, err
	}
	if x := t.sleeper(r.Version); x != nil {
		return t.takes(x), nil
	}
	t, x, _, err := s.wake(ctx, r, 1, 0)
	if err != nil {
		return Takes{}, err
	}
	defer x.leave()
	return t.takes(x), nil
}

// rousedFor enters the stable version of a deployment, for what is compared with it; one
// that is asleep is loaded, and stays until the caller leaves it. nil of one that does not
// load, or did not load before.
func (s *Service) rousedFor(ctx context.Context, d Deployment) *target {
	_, x, _, err := s.wake(ctx, &Request{Project: d.Project, Name: d.Name, Version: versionText(d.Version)}, 1, 0)
	if err != nil {
		return nil
	}
	return x
}
