package replica

import (
	"cmp"
	"context"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/falaj-ml/falaj/internal/compute"
	"github.com/falaj-ml/falaj/internal/compute/engine"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/identity/account"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/id"
	"github.com/falaj-ml/falaj/internal/resource"
	"github.com/falaj-ml/falaj/internal/scheduler"
	"github.com/falaj-ml/falaj/internal/serving"
	"github.com/falaj-ml/falaj/internal/serving/runtime"
	"github.com/falaj-ml/falaj/internal/store"
)

// Config is what replicas need.
type Config struct {
	DB      *store.DB
	Compute *compute.Workloads
	Tokens  *account.Service
	Log     *slog.Logger
	// Dir has a scratch directory for each remote replica.
	Dir string
	// Library is the path of ONNX Runtime, and Missing the error of one that is not there.
	Library string
	Missing func(path string) error
	// Memory is what the process of a model of so many bytes may use when nothing else is
	// said, and MaxMemory the maximum of a process; 0: no maximum.
	Memory    func(size int) resource.Bytes
	MaxMemory resource.Bytes
	// Link gives the process at the other end of a connection its model.
	Link func(ctx context.Context, conn net.Conn, model []byte, o runtime.Options, cores int) (Session, error)
	// Unsettled lists the workloads that have not ended.
	Unsettled func(ctx context.Context, tx *store.Tx) ([]compute.Workload, error)
}

// Session is a model that a remote replica runs.
type Session interface {
	runtime.Session
	// Leaving is closed when the replica asks for its end, Gone when it has ended.
	Leaving() <-chan struct{}
	Gone() <-chan struct{}
}

// Reservations are the replicas of this process. Create one with New. Safe for concurrent use.
type Reservations struct {
	Config

	mu   sync.Mutex
	all  map[string]*reservation // by workload, until it has ended
	none chan struct{}           // closed when there is none any more; nil while nobody waits for that

	once    sync.Once
	program []engine.Mount // this binary, and the library
	err     error
}

// New makes the reservations of a server, which has no replica yet. Register them with compute
// as the owner of compute.Replica, and start and stop them with it.
func New(c Config) *Reservations {
	return &Reservations{Config: c, all: map[string]*reservation{}}
}

// reservation is one of them.
type reservation struct {
	placed, lost, ended, over chan struct{}
	start, stop, release, end sync.Once

	outcome string         // set before over is closed
	remote  *remoteReplica // nil: on this machine
}

var (
	_ serving.Capacity    = (*Reservations)(nil)
	_ serving.Reservation = (*reservation)(nil)
	_ compute.Owner       = (*Reservations)(nil)
	_ compute.Runner      = (*Reservations)(nil)
	_ engine.Driver       = (*Reservations)(nil)
)

// How often it is asked why a replica waits, and how long its runs may take to end
// when its place is asked for.
const (
	whyEvery     = 5 * time.Second
	replicaGrace = 40 * time.Second
)

// Reserve implements serving.Capacity.
func (p *Reservations) Reserve(ctx context.Context, r serving.ReplicaRequest, waits func(string)) (serving.Reservation, error) {
	wid := compute.WorkloadID(id.New("rep"))
	pl := &reservation{placed: make(chan struct{}), lost: make(chan struct{}), ended: make(chan struct{}), over: make(chan struct{})}
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
		if memory = p.Memory(r.Size); p.MaxMemory > 0 {
			memory = min(memory, p.MaxMemory)
		}
	}
	if err := p.DB.Update(ctx, r.Project, func(ctx context.Context, tx *store.Tx) error {
		request.ID, request.Project, request.Kind, request.Label = wid, project.Name(r.Project), compute.Replica, "a replica of deployment "+r.Deployment
		request.Amount = resource.Amount{CPU: resource.Cores(int64(r.Threads)), Memory: memory}
		request.Residency, request.Classification = r.Residency, project.Classification(cmp.Or(r.Classification, "internal"))
		request.Preemptible, request.Grace = true, replicaGrace
		return p.Compute.Submit(ctx, tx, request)
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
			if why, err := p.Compute.Why(ctx, wid); err == nil {
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
func (p *Reservations) withdraw(ctx context.Context, of string, wid compute.WorkloadID) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), whyEvery)
	defer cancel()
	if err := p.DB.Update(ctx, of, func(ctx context.Context, tx *store.Tx) error {
		return p.Compute.Cancel(ctx, tx, wid, "the deployment wants no more replicas")
	}); err != nil {
		p.Log.WarnContext(ctx, "an unneeded replica is still pending", slog.String("workload", string(wid)), slog.String("error", err.Error()))
	}
}

// lose asks for the place back.
func (p *reservation) lose() { p.stop.Do(func() { close(p.lost) }) }

// Lost implements serving.Reservation.
func (p *reservation) Lost() <-chan struct{} { return p.lost }

// Release implements serving.Reservation.
func (p *reservation) Release() { p.release.Do(func() { close(p.ended) }) }

func (p *Reservations) of(wid string) *reservation {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.all[wid]
}

// forget drops a place that has ended.
func (p *Reservations) forget(wid, outcome string) {
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
func (p *Reservations) Close(ctx context.Context) error {
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
func (p *Reservations) remoteOnly() bool {
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
func (p *Reservations) Prepare(ctx context.Context, w compute.Workload, pool compute.Pool) (engine.Spec, error) {
	if w.InPlace {
		return engine.Spec{}, nil
	}
	return p.prepareRemote(ctx, w, pool)
}

// Changed implements compute.Owner.
func (p *Reservations) Changed(ctx context.Context, tx *store.Tx, w compute.Workload) error {
	if w.State == compute.Ended {
		if err := p.revoke(ctx, tx, w); err != nil {
			return err
		}
		tx.OnCommit(func() { p.forget(string(w.ID), w.Outcome()) })
	}
	return nil
}

// Finish implements compute.Owner.
func (p *Reservations) Finish(_ context.Context, w compute.Workload) error {
	if w.InPlace {
		return nil
	}
	return os.RemoveAll(p.scratch(w.ID))
}

// Driver implements compute.Runner.
func (p *Reservations) Driver(w compute.Workload) engine.Driver {
	if w.InPlace {
		return p
	}
	return nil
}

// Start implements engine.Driver.
func (p *Reservations) Start(_ context.Context, spec engine.Spec) (engine.Handle, error) {
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
func (p *Reservations) Status(_ context.Context, h engine.Handle) (engine.Status, error) {
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
func (p *Reservations) Wait(ctx context.Context, h engine.Handle) (engine.Status, error) {
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
func (p *Reservations) Stop(ctx context.Context, h engine.Handle, _ time.Duration) error {
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
func (p *Reservations) Logs(context.Context, engine.Handle, int64, bool) (io.ReadCloser, error) {
	return nil, fault.New(fault.NotFound, "replicas have no separate log")
}

// List implements engine.Driver.
func (p *Reservations) List(context.Context) ([]engine.Handle, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := make([]engine.Handle, 0, len(p.all))
	for wid := range p.all {
		all = append(all, engine.Handle(wid))
	}
	return all, nil
}

// Forget implements engine.Driver: there are no traces.
func (p *Reservations) Forget(context.Context, engine.Handle) error { return nil }
