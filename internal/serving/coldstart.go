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
	// errScaledToZero is returned by pick for a version that is loaded on the first request.
	errScaledToZero = fault.New(fault.Unavailable, "the model is scaled to zero and still loading")
	// errLoadFailed is in the chain of the error that requests get for a version that did not load.
	errLoadFailed = errors.New("loading failed")

	errStopping = fault.New(fault.Unavailable, "the server is stopping")
)

// coldStart holds a deployment's requests while its models load. Guarded by scaler.mu,
// except done.
type coldStart struct {
	done     chan struct{} // closed when the requests should pick again
	err      error         // why nothing was loaded, as far as that is not in the state; set before
	requests int
	rows     int
	bytes    int64
}

// The limits of a cold start: as much as the queue that its requests would wait in. One
// request may always wait.
const (
	defaultQueue      = 4096 // rows
	maxColdStartBytes = 256 << 20
)

// coldStartRetry is the Retry-After of requests rejected because the cold-start queue is full.
const coldStartRetry = time.Second

// pickLoaded is pick that waits while a version that is scaled to zero loads: as long as
// the request may wait for its model, and as a model may take to load.
func (s *core) pickLoaded(ctx context.Context, r *Request, rows int, bytes int64) (*table, *target, bool, error) {
	k := key{r.Project, r.Name}
	var late <-chan time.Time
	for failed := error(nil); ; {
		t, x, random, err := s.pick(r)
		if !errors.Is(err, errScaledToZero) {
			return t, x, random, err
		}
		if failed != nil {
			return nil, nil, false, failed
		}
		h, limit, err := s.joinColdStart(k, r, rows, bytes)
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
			err := fault.New(fault.Unavailable, "model %q was scaled to zero, and is still loading after %s", r.Name, limit).
				WithHint("Try again in a moment, or raise the time-out.").WithRetry(coldStartRetry)
			if r.Timeout > 0 {
				err.Err = batching.ErrHurried
			}
			failed = err
		case <-ctx.Done():
			failed = fault.New(fault.Timeout, "model %q was scaled to zero, and the request timed out while it was loading", r.Name)
		}
		s.leaveColdStart(h, rows, bytes)
		if failed != nil || errors.Is(h.err, errStopping) {
			return nil, nil, false, cmp.Or(failed, h.err)
		}
		failed = h.err
	}
}

// joinColdStart adds a request to the cold start of its deployment, and begins one if there
// is none. limit is how long the request may wait.
func (s *core) joinColdStart(k key, r *Request, rows int, bytes int64) (_ *coldStart, limit time.Duration, _ error) {
	t := s.table(k)
	if t == nil {
		return nil, 0, unknown(r.Name, r.Version)
	}
	o := t.deployment.Spec.Batching.options(0)
	limit = s.cfg.LoadTime
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
	h := c.coldStart
	if h == nil {
		h = &coldStart{done: make(chan struct{})}
		c.coldStart = h
		z.loading.Go(func() { s.loadForColdStart(k, h) })
	}
	if h.requests > 0 && (h.rows+rows > cmp.Or(o.MaxWaiting, defaultQueue) || h.bytes+bytes > maxColdStartBytes) {
		return nil, 0, fault.New(fault.Unavailable, "model %q is loading, and its cold-start queue is full: %d requests with %d rows are pending", k.name, h.requests, h.rows).
			WithHint("Try again in a moment, or ask for a larger batching.queue.").WithRetry(coldStartRetry)
	}
	h.requests++
	h.rows += rows
	h.bytes += bytes
	return h, limit, nil
}

// leaveColdStart ends a request's wait.
func (s *core) leaveColdStart(h *coldStart, rows int, bytes int64) {
	s.scaler.mu.Lock()
	defer s.scaler.mu.Unlock()
	h.requests--
	h.rows -= rows
	h.bytes -= bytes
}

// loadForColdStart loads what a deployment wants, for the requests that wait.
func (s *core) loadForColdStart(k key, h *coldStart) {
	ctx, began := identity.With(s.scaler.life, identity.Loop("model loader")), time.Now()
	d, err := s.stored(ctx, k.project, k.name)
	if err == nil {
		err = s.bring(ctx, k, d, demanded)
	}
	if err == nil {
		s.scaler.countColdStart(k, d.ID, time.Since(began))
	} else {
		s.log.WarnContext(ctx, "loading a model on demand failed", slog.String("deployment", k.name), slog.String("error", err.Error()))
		err = fault.New(fault.Unavailable, "model %q is not ready: loading it failed temporarily", k.name).
			WithHint("Try again in a moment. The deployment's state and the server's log have details.").WithRetry(coldStartRetry)
	}
	s.scaler.endColdStart(k, h, err)
}

// countColdStart counts a load that requests waited for.
func (z *scaler) countColdStart(k key, id ID, took time.Duration) {
	z.mu.Lock()
	defer z.mu.Unlock()
	c := z.of(k, id)
	c.coldStarts.Count++
	c.coldStarts.Time += took
}

// endColdStart lets the requests that wait pick again. h is nil for whatever cold start there is.
func (z *scaler) endColdStart(k key, h *coldStart, err error) {
	z.mu.Lock()
	defer z.mu.Unlock()
	c := z.all[k]
	if c == nil || c.coldStart == nil || h != nil && c.coldStart != h {
		return // they were told
	}
	if err != nil && z.closed { // which is why it could not be loaded
		err = errStopping
	}
	c.coldStart.err = err
	close(c.coldStart.done)
	c.coldStart = nil
}

// forget drops what is known of a deployment that is gone. Requests that wait for it
// pick again, and find nothing.
func (z *scaler) forget(k key) {
	z.mu.Lock()
	defer z.mu.Unlock()
	if c := z.all[k]; c != nil && c.coldStart != nil {
		close(c.coldStart.done)
	}
	delete(z.all, k)
}

// close ends all loads and rejects the requests that wait. The caller waits
// for loading. It may be called twice.
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
		z.endColdStart(k, nil, errStopping)
	}
}

// wantedVersion is the version that a request means: that which it names, or the stable one.
func (t *table) wantedVersion(version string) wanting {
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

// explained adds to the error of a request why the version did not load, where it would be
// loaded on demand and the caller may read the deployment's state.
func (s *Inference) explained(ctx context.Context, r *Request, err error) error {
	k := key{r.Project, r.Name}
	t := s.table(k)
	if t == nil || !t.deployment.Spec.scalesToZero() || !errors.Is(err, errLoadFailed) {
		return err
	}
	w := t.wantedVersion(r.Version)
	f, failed := s.failure(k, w)
	if !failed || s.cfg.Authz.Allow(ctx, actionRead, object(r.Project, r.Name)) != nil {
		return err
	}
	return fault.New(fault.Unavailable, "model %q is not ready: version %d could not be loaded: %s", r.Name, w.version, f.reason).WithRetry(fault.RetryOf(err))
}

// scaledToZeroTarget is a version that was loaded and then scaled to zero: its
// metadata is known. nil when it is not.
func (t *table) scaledToZeroTarget(version string) *target {
	if !t.scaledToZero() {
		return nil
	}
	w := t.wantedVersion(version)
	if version != "" && versionText(w.version) != version {
		return nil
	}
	for _, x := range t.unloaded {
		if x.is(w) {
			return x
		}
	}
	return nil
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

// enterStable enters the stable version of a deployment, for what is compared with it; one
// that is scaled to zero is loaded, and stays until the caller leaves it. nil of one that does not
// load, or did not load before.
func (s *Rollouts) enterStable(ctx context.Context, d Deployment) *target {
	_, x, _, err := s.pickLoaded(ctx, &Request{Project: d.Project, Name: d.Name, Version: versionText(d.Version)}, 1, 0)
	if err != nil {
		return nil
	}
	return x
}
