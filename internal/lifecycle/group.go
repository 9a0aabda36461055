// Package lifecycle starts and stops what runs in the background.
//
// # Map
//
//   - A Group starts services in order and stops them in reverse, each within a
//     time of its own.
//   - A Loop is the shape of level-triggered background work: it compares wanted
//     with actual state at an interval, sooner when woken, and never faster than
//     its back-off while it fails.
//   - LockDir makes one server the owner of a data directory.
//   - Clock notices that the wall clock went back.
//
// A service here never ends the process and never logs an error that it returns.
package lifecycle

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
)

// Times that a service has when it names none.
const (
	startTimeout = 30 * time.Second
	stopTimeout  = 15 * time.Second
)

// Service is something that runs between Start and Stop.
type Service struct {
	Name string
	// Start returns when the service is ready. Its context bounds the start only.
	// A nil Start is ready at once.
	Start func(ctx context.Context) error
	// Stop returns when nothing of the service runs any more. It is called once,
	// only after a Start that succeeded. A nil Stop has nothing to do.
	Stop func(ctx context.Context) error
	// StartTimeout is 30 s and StopTimeout 15 s when they are zero.
	StartTimeout, StopTimeout time.Duration
}

// Group is a list of services. The zero Group is ready to use; it is safe for
// concurrent use.
type Group struct {
	mu       sync.Mutex
	services []Service
	running  int // the first n of services run
	stopped  bool
}

// Add appends a service, which may use those added before it for as long as it
// runs. It must not be called after Start.
func (g *Group) Add(s Service) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.services = append(g.services, s)
}

// Start starts the services in the order of Add. When one fails or is not ready
// in time, those that run are stopped and its error is returned. A context that
// ends does the same.
func (g *Group) Start(ctx context.Context) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.stopped || g.running > 0 {
		return fault.New(fault.Internal, "lifecycle: a group starts once")
	}
	for _, s := range g.services {
		err := within(ctx, s.StartTimeout, startTimeout, s.Start)
		if err != nil {
			err = fault.Wrap(err, "start %s", s.Name)
			return errors.Join(err, g.stop(context.WithoutCancel(ctx)))
		}
		g.running++
	}
	return nil
}

// Stop stops the services in reverse. One that fails or is not done in time does
// not keep the others from being stopped; all errors are returned. It may be
// called twice.
func (g *Group) Stop(ctx context.Context) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.stop(ctx)
}

func (g *Group) stop(ctx context.Context) error {
	g.stopped = true
	var all []error
	for ; g.running > 0; g.running-- {
		s := g.services[g.running-1]
		all = append(all, fault.Wrap(within(ctx, s.StopTimeout, stopTimeout, s.Stop), "stop %s", s.Name))
	}
	return errors.Join(all...)
}

// within runs f until it returns or its time is over, whatever f does about it.
func within(ctx context.Context, timeout, otherwise time.Duration, f func(ctx context.Context) error) error {
	if f == nil {
		return nil
	}
	if timeout == 0 {
		timeout = otherwise
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- f(ctx) }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	select { // both may have happened
	case err := <-done:
		return err
	default:
	}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return fault.New(fault.Timeout, "not done within %s: %w", timeout, ctx.Err())
	}
	return ctx.Err()
}
