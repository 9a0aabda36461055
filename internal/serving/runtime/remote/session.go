package remote

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/serving/runtime"
)

// session is a model on a server.
type session struct {
	runtime *Runtime
	server  *server
	model   model
	meta    runtime.Metadata // the registered model's
	maxRows int
	id      string // begins the ids of its requests
	asked   atomic.Uint64
	breaker *breaker

	end     context.CancelFunc
	watcher sync.WaitGroup
	runs    sync.WaitGroup
	closing sync.Once
}

var _ runtime.Distant = (*session)(nil)

func (s *session) Metadata() runtime.Metadata { return s.meta }

// MaxRows implements runtime.Distant.
func (s *session) MaxRows() int { return s.maxRows }

func (s *session) Close() error {
	s.closing.Do(func() {
		s.runs.Wait()
		s.end()
		s.watcher.Wait()
		s.runtime.forget(s)
	})
	return nil
}

// Unavailable implements runtime.Distant.
func (s *session) Unavailable() error {
	state, why, _ := s.breaker.reason()
	if state != Open {
		return nil
	}
	return s.unavailable(why)
}

func (s *session) unavailable(why Reason) error {
	return fault.New(fault.Unavailable, "the remote %s is unavailable for the model: %s", s.server.name, why.words()).
		WithHint("Falaj checks the remote every few seconds, and resumes using it when it is ready.").WithRetry(time.Second)
}

func (s *session) Infer(ctx context.Context, inputs []runtime.Tensor, outputs []string) ([]runtime.Tensor, error) {
	for _, o := range outputs {
		if !slices.ContainsFunc(s.meta.Outputs, func(s runtime.Spec) bool { return s.Name == o }) {
			return nil, fault.New(fault.Invalid, "the model has no output %q", o)
		}
	}
	if ctx.Err() != nil {
		return nil, errOver
	}
	s.runs.Add(1)
	defer s.runs.Done()
	turn, ok := s.breaker.enter()
	if !ok {
		_, why, _ := s.breaker.reason()
		return nil, s.unavailable(why)
	}
	o, why := unknown, Reason("")
	defer func() {
		if s.breaker.leave(turn, o, why) {
			s.changed(context.WithoutCancel(ctx))
		}
	}()
	began := time.Now()
	limit, cancel := context.WithTimeout(ctx, s.server.timeout)
	defer cancel()
	id := s.id + "-" + strconv.FormatUint(s.asked.Add(1), 10)
	a, err := s.server.wire.infer(limit, s.model, id, inputs, outputs)
	var out []runtime.Tensor
	if err == nil {
		out, err = s.believe(a, id, outputs)
	}
	if err == nil {
		o = good
		return out, nil
	}
	why = reasonOf(err)
	if d, ok := ctx.Deadline(); ctx.Err() != nil || why == Slow && ok && d.Before(began.Add(s.server.timeout)) {
		return nil, errOver // which says nothing about the server
	}
	s.server.failed(why)
	if o = good; why.counts() {
		o = bad
	}
	return nil, s.refused(why, inputs)
}

var errOver = fault.New(fault.Timeout, "the request timed out before the remote responded")

// refused is a failure as who asked hears it.
func (s *session) refused(why Reason, inputs []runtime.Tensor) error {
	switch why {
	case Rejected:
		err := fault.New(fault.Invalid, "the remote %s rejected the inputs", s.server.name)
		if s.maxRows > 0 && len(inputs) > 0 && len(inputs[0].Shape) > 0 && inputs[0].Shape[0] > int64(s.maxRows) {
			return err.WithHint("Send at most %d rows in a request.", s.maxRows)
		}
		return err
	case Busy:
		return fault.New(fault.Exhausted, "the remote %s is overloaded, or its response is too large", s.server.name).
			WithHint("Retry later. If the request has many rows, send fewer.").WithRetry(time.Second)
	case Broken:
		return fault.New(fault.Internal, "the model failed at the remote %s", s.server.name)
	default:
		return s.unavailable(why)
	}
}

// told is why a model was not loaded.
func (s *session) told(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return fault.New(fault.Timeout, "the remote %s did not respond in time", s.server.name)
	}
	if f, ok := errors.AsType[*failure](err); ok {
		s.server.failed(f.why)
		what := s.model.name
		if s.model.version != "" {
			what += " version " + s.model.version
		}
		return fault.New(fault.Unavailable, "the remote %s is unavailable for its model %.100q: %s", s.server.name, what, f.why.words())
	}
	return err
}

// compare refuses a model that is not ready, or that is not what was registered. It
// gives the server's name for what runs it.
func (s *session) compare(ctx context.Context) (platform string, err error) {
	w := s.server.wire
	if err := w.ready(ctx, s.model); err != nil {
		return "", err
	}
	meta, versions, err := w.metadata(ctx, s.model)
	if err != nil {
		return "", err
	}
	if s.model.version != "" && !slices.Contains(versions, s.model.version) {
		if len(versions) == 0 {
			return "", fault.New(fault.Invalid, "the remote %s has no versions of its model %.100q", s.server.name, s.model.name).
				WithHint("Set spec.runtime.remote.version to none, and add {version} to spec.runtime.remote.model.")
		}
		return "", fault.New(fault.Invalid, "the remote %s has versions %.10q of its model %.100q, not %s", s.server.name, versions[:min(len(versions), 10)], s.model.name, s.model.version)
	}
	if len(meta.Inputs) == 0 && len(meta.Outputs) == 0 {
		return meta.Platform, nil // it does not say: then each answer is looked at, and no more
	}
	if err := meta.StandsIn(s.meta); err != nil {
		return "", fault.Wrap(err, "the model at the remote %s differs from the registered one", s.server.name)
	}
	return meta.Platform, nil
}

// believe takes the outputs that were wanted out of an answer, in order, if it is
// one to what was asked.
func (s *session) believe(a answer, id string, outputs []string) ([]runtime.Tensor, error) {
	if a.id != "" && a.id != id || a.model != "" && a.model != s.model.name || a.version != "" && s.model.version != "" && a.version != s.model.version {
		return nil, &failure{Garbled}
	}
	out := make([]runtime.Tensor, len(outputs))
	for i, name := range outputs {
		found := -1
		for j := range a.outputs {
			switch {
			case a.outputs[j].Name != name:
			case found >= 0:
				return nil, &failure{Garbled}
			default:
				found = j
			}
		}
		if found < 0 {
			return nil, &failure{Garbled}
		}
		spec := s.meta.Outputs[slices.IndexFunc(s.meta.Outputs, func(s runtime.Spec) bool { return s.Name == name })]
		if spec.Accepts(a.outputs[found]) != nil {
			return nil, &failure{Garbled}
		}
		out[i] = a.outputs[found]
	}
	return out, nil
}
