package app

import (
	"cmp"
	"context"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/falaj-ml/falaj/internal/compute"
	"github.com/falaj-ml/falaj/internal/compute/engine"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/httpapi"
	"github.com/falaj-ml/falaj/internal/id"
	"github.com/falaj-ml/falaj/internal/lifecycle"
	"github.com/falaj-ml/falaj/internal/resource"
	"github.com/falaj-ml/falaj/internal/scheduler"
	"github.com/falaj-ml/falaj/internal/serving"
	"github.com/falaj-ml/falaj/internal/serving/runtime"
	"github.com/falaj-ml/falaj/internal/serving/runtime/child"
	"github.com/falaj-ml/falaj/internal/store"
)

// replicaReservations reserve what replicas of served models need among all else that runs.
// On this machine each is a workload of compute that this process runs itself: the
// scheduler sees it, gives it room or says why not, and may ask for the room back. On
// other pools (remotereplicas.go) their engine runs it. What an earlier process had is no replica
// any more, and ends.
type replicaReservations struct {
	compute *compute.Workloads
	db      *store.DB
	most    resource.Bytes // that a model's process may have; 0: what it asks for
	log     *slog.Logger
	remote  remoteReplicas

	mu   sync.Mutex
	all  map[string]*replicaReservation // by workload, until it has ended
	none chan struct{}                  // closed when there is none any more; nil while nobody waits for that
}

// replicaReservation is one of them.
type replicaReservation struct {
	placed, lost, ended, over chan struct{}
	start, stop, release, end sync.Once

	outcome string         // set before over is closed
	remote  *remoteReplica // nil: on this machine
}

var (
	_ serving.Capacity    = (*replicaReservations)(nil)
	_ serving.Reservation = (*replicaReservation)(nil)
	_ compute.Owner       = (*replicaReservations)(nil)
	_ compute.Runner      = (*replicaReservations)(nil)
	_ engine.Driver       = (*replicaReservations)(nil)
	_ httpapi.Replicas    = (*replicaReservations)(nil)
)

// How often it is asked why a replica waits, and how long its runs may take to end
// when its place is asked for.
const (
	whyEvery     = 5 * time.Second
	replicaGrace = 40 * time.Second
)

// Reserve implements serving.Capacity.
func (p *replicaReservations) Reserve(ctx context.Context, r serving.ReplicaRequest, waits func(string)) (serving.Reservation, error) {
	wid := compute.WorkloadID(id.New("rep"))
	pl := &replicaReservation{placed: make(chan struct{}), lost: make(chan struct{}), ended: make(chan struct{}), over: make(chan struct{})}
	request := compute.Request{Pools: []string{string(compute.Home)}, InPlace: true, Isolation: scheduler.None}
	if len(r.Pools) > 0 {
		request = compute.Request{Pools: r.Pools, Isolation: scheduler.Process}
		pl.remote = newRemoteReplica()
	}
	p.mu.Lock()
	p.all[string(wid)] = pl
	p.mu.Unlock()
	memory := r.Memory
	if memory == 0 {
		if memory = child.Memory(r.Size); p.most > 0 {
			memory = min(memory, p.most)
		}
	}
	if err := p.db.Update(ctx, r.Project, func(ctx context.Context, tx *store.Tx) error {
		request.ID, request.Project, request.Kind, request.Label = wid, project.Name(r.Project), compute.Replica, "a replica of deployment "+r.Deployment
		request.Amount = resource.Amount{CPU: resource.Cores(int64(r.Threads)), Memory: memory}
		request.Residency, request.Classification = r.Residency, project.Classification(cmp.Or(r.Classification, "internal"))
		request.Preemptible, request.Grace = true, replicaGrace
		return p.compute.Submit(ctx, tx, request)
	}); err != nil {
		p.forget(string(wid), "")
		return nil, fault.Wrap(err, "submit the workload of a replica")
	}
	if pl.remote != nil {
		return p.await(ctx, r, wid, pl, waits)
	}
	look := time.NewTicker(whyEvery)
	defer look.Stop()
	for {
		select {
		case <-pl.placed:
			return pl, nil
		case <-pl.over:
			return nil, fault.New(fault.Conflict, "it was not placed on this machine: %s", pl.outcome)
		case <-look.C:
			if why, err := p.compute.Why(ctx, wid); err == nil {
				waits("another one waits for a place on this machine: " + strings.Join(why, "; "))
			}
		case <-ctx.Done():
			pl.Release() // should it have been placed meanwhile
			p.withdraw(ctx, r.Project, wid)
			return nil, ctx.Err()
		}
	}
}

// withdraw takes a replica that is not wanted any more out of the line.
func (p *replicaReservations) withdraw(ctx context.Context, of string, wid compute.WorkloadID) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), whyEvery)
	defer cancel()
	if err := p.db.Update(ctx, of, func(ctx context.Context, tx *store.Tx) error {
		return p.compute.Cancel(ctx, tx, wid, "the deployment wants no more replicas")
	}); err != nil {
		p.log.WarnContext(ctx, "an unneeded replica is still pending", slog.String("workload", string(wid)), slog.String("error", err.Error()))
	}
}

// lose asks for the place back.
func (p *replicaReservation) lose() { p.stop.Do(func() { close(p.lost) }) }

// Lost implements serving.Place.
func (p *replicaReservation) Lost() <-chan struct{} { return p.lost }

// Release implements serving.Place.
func (p *replicaReservation) Release() { p.release.Do(func() { close(p.ended) }) }

func (p *replicaReservations) of(wid string) *replicaReservation {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.all[wid]
}

// forget drops a place that has ended.
func (p *replicaReservations) forget(wid, outcome string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if pl := p.all[wid]; pl != nil {
		pl.end.Do(func() {
			pl.outcome = outcome
			close(pl.over)
			pl.lose() // of one elsewhere nobody asked for it back
		})
		delete(p.all, wid)
	}
	if len(p.all) == 0 && p.none != nil {
		close(p.none)
		p.none = nil
	}
}

// Close waits until compute knows that all replicas have ended, which serving has seen
// to. Those elsewhere end by themselves, and may not find the server any more to say so.
func (p *replicaReservations) Close(ctx context.Context) error {
	p.mu.Lock()
	if len(p.all) == 0 {
		p.mu.Unlock()
		return nil
	}
	if p.none == nil {
		p.none = make(chan struct{})
	}
	none := p.none
	p.mu.Unlock()
	select {
	case <-none:
		return nil
	case <-time.After(whyEvery):
		if p.remoteOnly() {
			return nil
		}
		return fault.New(fault.Timeout, "compute does not know yet that replicas have ended; it sees that when the server starts again")
	case <-ctx.Done():
		return ctx.Err()
	}
}

// remoteOnly reports whether no replica is on this machine.
func (p *replicaReservations) remoteOnly() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, pl := range p.all {
		if pl.remote == nil {
			return false
		}
	}
	return true
}

// Prepare implements compute.Owner: on this machine there is nothing to prepare.
func (p *replicaReservations) Prepare(ctx context.Context, w compute.Workload, pool compute.Pool) (engine.Spec, error) {
	if w.InPlace {
		return engine.Spec{}, nil
	}
	return p.prepareRemote(ctx, w, pool)
}

// Changed implements compute.Owner.
func (p *replicaReservations) Changed(ctx context.Context, tx *store.Tx, w compute.Workload) error {
	if w.State == compute.Ended {
		if err := p.revoke(ctx, tx, w); err != nil {
			return err
		}
		tx.OnCommit(func() { p.forget(string(w.ID), w.Outcome()) })
	}
	return nil
}

// Finish implements compute.Owner.
func (p *replicaReservations) Finish(_ context.Context, w compute.Workload) error {
	if w.InPlace {
		return nil
	}
	return os.RemoveAll(p.scratch(w.ID))
}

// Driver implements compute.Runner.
func (p *replicaReservations) Driver(w compute.Workload) engine.Driver {
	if w.InPlace {
		return p
	}
	return nil
}

// Start implements engine.Driver.
func (p *replicaReservations) Start(_ context.Context, spec engine.Spec) (engine.Handle, error) {
	pl := p.of(spec.ID)
	if pl == nil {
		return "", fault.New(fault.Gone, "the server that wanted the replica has ended")
	}
	pl.start.Do(func() { close(pl.placed) })
	return engine.Handle(spec.ID), nil
}

func unknownReplica(h engine.Handle) error {
	return fault.New(fault.NotFound, "replica %s is not running on this server", h)
}

// Status implements engine.Driver.
func (p *replicaReservations) Status(_ context.Context, h engine.Handle) (engine.Status, error) {
	pl := p.of(string(h))
	if pl == nil {
		return engine.Status{}, unknownReplica(h)
	}
	select {
	case <-pl.ended:
		return engine.Status{State: engine.Ended, Reason: engine.Stopped}, nil
	default:
		return engine.Status{State: engine.Running}, nil
	}
}

// Wait implements engine.Driver.
func (p *replicaReservations) Wait(ctx context.Context, h engine.Handle) (engine.Status, error) {
	pl := p.of(string(h))
	if pl == nil {
		return engine.Status{}, unknownReplica(h)
	}
	select {
	case <-pl.ended:
		return engine.Status{State: engine.Ended, Reason: engine.Stopped, Message: "the deployment needs it no more"}, nil
	case <-ctx.Done():
		return engine.Status{}, ctx.Err()
	}
}

// Stop implements engine.Driver. A replica takes no more runs and ends when those that it
// has are over; each has a time.
func (p *replicaReservations) Stop(ctx context.Context, h engine.Handle, _ time.Duration) error {
	pl := p.of(string(h))
	if pl == nil {
		return unknownReplica(h)
	}
	pl.lose()
	select {
	case <-pl.ended:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Logs implements engine.Driver: what a model's process prints has seen rows.
func (p *replicaReservations) Logs(context.Context, engine.Handle, int64, bool) (io.ReadCloser, error) {
	return nil, fault.New(fault.NotFound, "replicas have no separate log")
}

// List implements engine.Driver.
func (p *replicaReservations) List(context.Context) ([]engine.Handle, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := make([]engine.Handle, 0, len(p.all))
	for wid := range p.all {
		all = append(all, engine.Handle(wid))
	}
	return all, nil
}

// Forget implements engine.Driver: there are no traces.
func (p *replicaReservations) Forget(context.Context, engine.Handle) error { return nil }

// openReplicas makes the reservations of replicas. Where several servers share a database one of
// them schedules, and places of this machine are not its business: nil.
func (a *App) openReplicas() serving.Capacity {
	if a.db.Shared() {
		return nil
	}
	p := &replicaReservations{compute: a.compute.Workloads, db: a.db, most: resource.Bytes(bytes(a.cfg.Serving.Process)), log: a.log, all: map[string]*replicaReservation{}}
	p.remote = remoteReplicas{
		tokens: a.accounts, library: a.cfg.ortPath(), dir: filepath.Join(a.cfg.Data, "tmp", "replicas"),
		link: func(ctx context.Context, conn net.Conn, model []byte, o runtime.Options, cores int) (*child.Linked, error) {
			return a.apart.Link(ctx, conn, model, o, cores)
		},
	}
	a.compute.Scheduling.RegisterOwner(compute.Replica, p)
	a.replicas = p
	a.group.Add(lifecycle.Service{Name: "workloads of replicas", Start: p.endEarlier, Stop: p.Close})
	return p
}
