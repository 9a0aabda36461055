package serving

import (
	"context"
	"fmt"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/serving/runtime"
	"github.com/falaj-ml/falaj/internal/share"
)

// RemoteReplica is a Reservation on another machine, where a process waits for its model.
type RemoteReplica interface {
	Reservation
	Pool() string
	Zone() residency.Zone
	// Load gives the process the model, which was verified. Its session is away for
	// ever when the process has ended; then, or when it is to end, Lost is closed.
	Load(ctx context.Context, model []byte, o runtime.Options) (runtime.Session, error)
}

// steadyAfter is how long a replica elsewhere has answered that was no failure when it went.
const steadyAfter = time.Minute

// addRemote loads one more replica on another machine. It goes where its model may be,
// and the features that are looked up for it.
func (s *core) addRemote(ctx context.Context, spec Spec, want ReplicaRequest, o runtime.Options, waits func(string)) (runtime.Session, Reservation, error) {
	switch {
	case s.cfg.Capacity == nil:
		return nil, nil, fault.New(fault.Unsupported, "remote replicas are not enabled on this server").
			WithHint("Remove spec.scale.pools: gateways, and servers that share a database, run all replicas themselves.")
	case o.Python != nil:
		return nil, nil, fault.New(fault.Unsupported, "spec.scale.pools: Python models do not support remote replicas").WithHint("Remove spec.scale.pools.")
	}
	want.Pools = spec.pools()
	if f := spec.Features; f != nil {
		label, err := s.cfg.Features.Label(ctx, want.Project, f.Service)
		if err != nil {
			return nil, nil, fault.Wrap(err, "reading the residency of features %s", f.Service)
		}
		if want.Residency, err = residency.Derive(residency.Parent{Name: "the model", Label: want.Residency}, residency.Parent{Name: "feature service " + f.Service, Label: label}); err != nil {
			return nil, nil, err
		}
	}
	place, err := s.cfg.Capacity.Reserve(ctx, want, waits)
	if err != nil {
		return nil, nil, err
	}
	there, ok := place.(RemoteReplica)
	if !ok {
		place.Release()
		return nil, nil, fault.New(fault.Internal, "a replica for pools %v was placed on this server", want.Pools)
	}
	waits("another replica is loading on pool " + there.Pool())
	session, err := keeping(ctx, there, func(ctx context.Context) (runtime.Session, error) { return s.loadRemote(ctx, want.Project, there, o) })
	if err != nil {
		place.Release()
		return nil, nil, err
	}
	return session, place, nil
}

// loadRemote reads a version once more, verified, and hands it over. It takes a place of
// the loader.
func (s *core) loadRemote(ctx context.Context, project string, there RemoteReplica, o runtime.Options) (runtime.Session, error) {
	free, err := s.loads.Take(ctx, share.Owner{Project: project})
	if err != nil {
		return nil, err
	}
	defer free()
	file, err := o.Again(ctx)
	if err != nil {
		return nil, err
	}
	return there.Load(ctx, file, o)
}

// RemoteRuns implements runtime.Spread.
func (p *replicas) RemoteRuns() (n int) {
	if !p.spread {
		return 0
	}
	for _, r := range *p.all.Load() {
		if r.remote == nil || runtime.Unavailable(r.session) != nil {
			continue
		}
		if one, ok := r.session.(runtime.Narrow); ok {
			n += one.Runs()
		} else {
			n++
		}
	}
	return n
}

// InferRemote implements runtime.Spread.
func (p *replicas) InferRemote(ctx context.Context, inputs []runtime.Tensor, outputs []string) ([]runtime.Tensor, error) {
	return p.infer(ctx, true, inputs, outputs)
}

// pools says how many replicas answer on which pool; nil when all are here.
func (p *replicas) pools() map[string]int {
	if !p.spread {
		return nil
	}
	on := map[string]int{}
	for _, r := range *p.all.Load() {
		if r.remote != nil && runtime.Unavailable(r.session) == nil {
			on[r.remote.Pool()]++
		}
	}
	return on
}

// remoteLost takes into account that a replica elsewhere went away by itself: one that goes
// soon after it came is not replaced at once. Under mu.
func (p *replicas) remoteLost(r *replica, now time.Time) {
	if r.remote == nil || p.closed {
		return
	}
	p.losses++
	if now.Sub(r.since) > steadyAfter {
		p.losses = 0
	}
	if p.losses > 0 {
		p.retry = now.Add(min(maxPause, time.Second<<min(p.losses, 9)))
	}
	p.reason = fmt.Sprintf("a replica on pool %s has ended and is replaced", r.remote.Pool())
	p.grow(now)
}

// fence keeps runs from where their features may not be.
func (p *replicas) fence(label residency.Label) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.label = residency.Of(label.Zones()...)
	for _, r := range *p.all.Load() {
		if r.remote != nil && !p.label.Allows(r.remote.Zone()) {
			p.without(r)
		}
	}
}

// fenced lets the features of a request go where its version has replicas: from those
// where they may not be, by the label that they have now, it is kept away.
func (s *Inference) fenced(ctx context.Context, project string, x *target, set *FeatureSet) error {
	if x.replicas == nil || !x.replicas.spread || set == nil {
		return nil
	}
	label, err := s.cfg.Features.Label(ctx, project, set.Ref)
	if err != nil {
		return fault.Wrap(err, "reading the residency of features %s", set.Ref)
	}
	x.replicas.fence(label)
	return nil
}
