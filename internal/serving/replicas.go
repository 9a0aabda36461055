package serving

import (
	"context"
	"errors"
	"log/slog"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/resource"
	"github.com/falaj-ml/falaj/internal/serving/runtime"
	"github.com/falaj-ml/falaj/internal/share"
)

// replicas is a session of several of the same version. A run goes to the one that
// answers and has the fewest; losing one costs no other's answers. The first one is
// there before the session is, and at least one until it is closed.
//
// How many there should be is said by resize; more are loaded beside what runs, one
// after the other, and fewer take no more runs and are closed when theirs have ended.
// One of them, the first as long as it is there, needs no place: others may take all
// places away, and one is left. Where the others are on other machines (remotereplica.go), it
// stays as long as the session.
type replicas struct {
	meta runtime.Metadata
	open opener
	told func(error) // why another one did not come

	spread bool // those beyond the first are on other machines

	life  context.Context // of what is loaded
	end   context.CancelFunc
	works sync.WaitGroup // what is loaded, and replicas that are not closed; added to under mu while not closed

	all  atomic.Pointer[[]*replica] // replaced as a whole, under mu
	next atomic.Uint32              // equals take turns

	mu     sync.Mutex
	wanted int
	loads  context.CancelFunc // of the one that is being loaded; nil when none is
	closed bool
	grown  time.Time
	label  residency.Label // where the features may be that runs bring; nil: nobody said
	losses int             // in a row, of replicas that were away soon after they came
	tries  int             // that failed in a row
	retry  time.Time
	reason string // of the last failure, or what is waited for; empty when the last one came
}

// opener loads one more replica, in a place of its own; nil: it needs none. waits hears
// what it waits for.
type opener func(ctx context.Context, waits func(why string)) (runtime.Session, Reservation, error)

// replica is one of them. It is used by the pool, and by each run.
type replica struct {
	session runtime.Session
	place   Reservation   // nil: it needs none; under the pool's mu until the last use has ended
	remote  RemoteReplica // the place, when it is on another machine; nil
	since   time.Time
	uses    atomic.Int64
	gone    chan struct{} // closed when the session is
	closed  func()
}

var (
	_ runtime.Restarting = (*replicas)(nil)
	_ runtime.Narrow     = (*replicas)(nil)
	_ runtime.Spread     = (*replicas)(nil)
)

func newReplicas(first runtime.Session, open opener, told func(error)) *replicas {
	p := &replicas{meta: first.Metadata(), open: open, told: told, wanted: 1, grown: time.Now()}
	p.life, p.end = context.WithCancel(context.Background())
	p.all.Store(&[]*replica{p.replica(first, nil)})
	return p
}

// replica makes one of a session. Under mu, or before anybody knows of p.
func (p *replicas) replica(s runtime.Session, place Reservation) *replica {
	p.works.Add(1)
	r := &replica{session: s, place: place, since: time.Now(), gone: make(chan struct{}), closed: p.works.Done}
	r.remote, _ = place.(RemoteReplica)
	r.uses.Store(1)
	return r
}

func (r *replica) enter() bool {
	for {
		n := r.uses.Load()
		if n == 0 {
			return false
		}
		if r.uses.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// leave ends a use. The last one closes the session, beside the caller.
func (r *replica) leave() {
	if r.uses.Add(-1) == 0 {
		go func() {
			_ = r.session.Close()
			if r.place != nil {
				r.place.Release()
			}
			close(r.gone)
			r.closed()
		}()
	}
}

// Runs implements runtime.Narrow: those of all that are here; 0 when they take as many as come.
func (p *replicas) Runs() (n int) {
	for _, r := range *p.all.Load() {
		if r.remote != nil {
			continue
		}
		if one, ok := r.session.(runtime.Narrow); ok {
			n += one.Runs()
		}
	}
	return n
}

// Metadata implements runtime.Session.
func (p *replicas) Metadata() runtime.Metadata { return p.meta }

// Infer implements runtime.Session.
func (p *replicas) Infer(ctx context.Context, inputs []runtime.Tensor, outputs []string) ([]runtime.Tensor, error) {
	return p.infer(ctx, false, inputs, outputs)
}

// infer runs on a replica here, or elsewhere, if there is one that answers; else on any.
func (p *replicas) infer(ctx context.Context, away bool, inputs []runtime.Tensor, outputs []string) (_ []runtime.Tensor, err error) {
	r := p.enter(away)
	if r == nil {
		return nil, errStopping
	}
	defer func() { // the session may have panicked
		over := runtime.Over(err)
		if over == nil {
			r.leave()
			return
		}
		go func() { // it goes on, and counts
			<-over
			r.leave()
		}()
	}()
	return r.session.Infer(ctx, inputs, outputs)
}

// enter is the replica with the fewest runs of those that answer and are where it is to
// be, or of those elsewhere, or of all when none answers; nil when there is none.
func (p *replicas) enter(away bool) *replica {
	for {
		all := *p.all.Load()
		if len(all) == 0 {
			return nil
		}
		var equal [maxReplicas]*replica // the best
		count, least, fewest := 0, 0, int64(0)
		for _, r := range all {
			bad := 0
			if runtime.Unavailable(r.session) != nil {
				bad = 2
			}
			if (r.remote != nil) != away {
				bad++
			}
			n := r.uses.Load()
			if count == 0 || bad < least || bad == least && n < fewest {
				count, least, fewest = 0, bad, n
			}
			if bad == least && n == fewest && count < len(equal) {
				equal[count] = r
				count++
			}
		}
		turn := 0
		if count > 1 { // no write to what all cores share where there is no choice
			turn = int(p.next.Add(1) % uint32(count))
		}
		if best := equal[turn]; best.enter() {
			return best
		}
	}
}

// Away implements runtime.Restarting.
func (p *replicas) Unavailable() (err error) {
	for _, r := range *p.all.Load() {
		if err = runtime.Unavailable(r.session); err == nil {
			return nil
		}
	}
	return err
}

// Close implements runtime.Session.
func (p *replicas) Close() error {
	p.mu.Lock()
	p.closed = true
	all := *p.all.Swap(&[]*replica{})
	p.mu.Unlock()
	p.end()
	for _, r := range all {
		r.leave()
	}
	p.works.Wait()
	return nil
}

// size is how many replicas there are, whether another is being loaded, and when the
// last one came.
func (p *replicas) size() (running int, loads bool, grown time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(*p.all.Load()), p.loads != nil, p.grown
}

// ready is how many answer.
func (p *replicas) ready() (n int) {
	for _, r := range *p.all.Load() {
		if runtime.Unavailable(r.session) == nil {
			n++
		}
	}
	return n
}

// trouble is why there are fewer than wanted; empty when there is no reason but time.
func (p *replicas) trouble() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(*p.all.Load()) >= p.wanted {
		return ""
	}
	return p.reason
}

// resize says how many replicas there should be. It does not wait.
func (p *replicas) resize(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return
	}
	p.wanted = max(1, n)
	p.shrink()
	if p.loads != nil && len(*p.all.Load()) >= p.wanted {
		p.loads()
	}
	p.grow(time.Now())
}

// shrink lets go of what is too many: those that do not answer, then those with the
// fewest runs, then the newest. Under mu.
func (p *replicas) shrink() {
	all := *p.all.Load()
	for len(all) > p.wanted {
		worst := -1
		var fewest int64
		var away bool
		for i, r := range all {
			gone, n := runtime.Unavailable(r.session) != nil, r.uses.Load()
			if p.spread && r.remote == nil {
				continue // the one that is here stays
			}
			if worst < 0 || gone && !away || gone == away && n <= fewest {
				worst, fewest, away = i, n, gone
			}
		}
		if worst < 0 {
			return
		}
		all = p.without(all[worst])
	}
}

// without lets go of a replica. Under mu.
func (p *replicas) without(r *replica) []*replica {
	all := *p.all.Load()
	rest := make([]*replica, 0, len(all))
	for _, x := range all {
		if x != r {
			rest = append(rest, x)
		}
	}
	if len(rest) == len(all) {
		return rest
	}
	p.all.Store(&rest)
	r.leave()
	for _, x := range rest {
		if x.place == nil {
			return rest
		}
	}
	if len(rest) > 0 { // the one that needed none has gone
		rest[0].place.Release()
		rest[0].place = nil
	}
	return rest
}

// grow begins to load another replica, if one is lacking, none is being loaded, and
// the last failure is long enough ago. Under mu.
func (p *replicas) grow(now time.Time) {
	if p.closed || p.loads != nil || len(*p.all.Load()) >= p.wanted || now.Before(p.retry) {
		return
	}
	ctx, cancel := context.WithCancel(p.life)
	p.loads = cancel
	p.works.Go(func() {
		defer cancel()
		s, place, err := p.open(ctx, p.waits)
		p.came(ctx, s, place, err)
	})
}

// waits keeps what the next replica waits for.
func (p *replicas) waits(why string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.reason = why
}

// came takes a replica that was loaded, or keeps why not.
func (p *replicas) came(ctx context.Context, s runtime.Session, place Reservation, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.loads = nil
	if err == nil && !reflect.DeepEqual(s.Metadata(), p.meta) {
		p.replica(s, place).leave()
		err = fault.New(fault.Conflict, "it differs from the model of the first replica")
	}
	if a, ok := place.(RemoteReplica); ok && err == nil && p.label != nil && !p.label.Allows(a.Zone()) {
		p.replica(s, place).leave()
		err = fault.New(fault.PermissionDenied, "the residency of the features does not allow zone %s any more", a.Zone())
	}
	switch all := *p.all.Load(); {
	case err != nil:
		if ctx.Err() != nil {
			return // it was not wanted any more
		}
		p.tries++
		p.retry = time.Now().Add(min(maxPause, time.Second<<min(p.tries, 9)))
		p.reason = "starting another replica failed: " + reasonOf(err).Error()
		p.told(err)
	case p.closed || len(all) >= p.wanted: // it is not wanted any more
		p.replica(s, place).leave()
	default:
		r := p.replica(s, place)
		more := make([]*replica, 0, len(all)+1)
		more = append(append(more, all...), r)
		p.all.Store(&more)
		p.grown, p.tries, p.retry, p.reason = time.Now(), 0, time.Time{}, ""
		if place != nil {
			p.works.Go(func() { p.heed(r, place.Lost()) })
		}
		p.grow(p.grown)
	}
}

// heed lets go of a replica whose place is taken away.
func (p *replicas) heed(r *replica, lost <-chan struct{}) {
	select {
	case <-lost:
		p.mu.Lock()
		defer p.mu.Unlock()
		if r.place != nil && slices.Contains(*p.all.Load(), r) { // else it needs none any more, or was let go
			p.without(r)
			p.remoteLost(r, time.Now())
		}
	case <-r.gone:
	}
}

// ReplicaRequest is a replica for which capacity is asked, beyond the first one of its
// version.
type ReplicaRequest struct {
	Project, Deployment string
	Version             int64
	Threads             int            // of a run
	Memory              resource.Bytes // that its process may have; 0: by the size of the model
	Size                int            // of the model's file
	Residency           residency.Label
	Classification      string
	Pools               []string // one of these; none: on this machine
}

// Capacity reserves what replicas need among all else that runs, on this machine or on
// those of pools: then it is a RemoteReplica.
type Capacity interface {
	// Reserve waits until there is room, and keeps it until Release; waits hears why
	// there is none yet. Error: why there will be none.
	Reserve(ctx context.Context, p ReplicaRequest, waits func(why string)) (Reservation, error)
}

// Reservation is capacity reserved for a replica.
type Reservation interface {
	Lost() <-chan struct{} // closed when others need the room: the replica is to end
	Release()              // it has ended; may be called twice
}

// replicate makes a session one of several, where the manifest wants that. The others
// are of the same bytes, verified anew, and loaded in the same way.
func (s *core) replicate(project, name string, spec Spec, m Model, o runtime.Options, first runtime.Session) runtime.Session {
	if !spec.replicated() {
		return first
	}
	processes := processesOf(spec)
	want := ReplicaRequest{
		Project: project, Deployment: name, Version: m.Version, Threads: processes * max(1, o.Threads), Memory: resource.Bytes(processes) * o.Memory, Size: processes * bytesOf(m, o),
		Residency: m.Residency, Classification: m.Classification,
	}
	open := func(ctx context.Context, waits func(string)) (runtime.Session, Reservation, error) {
		if len(spec.pools()) > 0 {
			return s.addRemote(ctx, spec, want, o, waits)
		}
		if s.cfg.Capacity == nil {
			session, err := s.another(ctx, project, o)
			return session, nil, err
		}
		place, err := s.cfg.Capacity.Reserve(ctx, want, waits)
		if err != nil {
			return nil, nil, err
		}
		session, err := keeping(ctx, place, func(ctx context.Context) (runtime.Session, error) { return s.another(ctx, project, o) })
		if err != nil {
			place.Release()
			return nil, nil, err
		}
		return session, place, nil
	}
	p := newReplicas(first, open, func(err error) {
		s.log.Error("loading a replica failed", slog.String("deployment", name), slog.Int64("version", m.Version), slog.String("error", err.Error()))
	})
	p.spread = len(spec.pools()) > 0
	return p
}

// keeping loads a replica unless its place is taken meanwhile.
func keeping(ctx context.Context, place Reservation, load func(context.Context) (runtime.Session, error)) (runtime.Session, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	taken := fault.New(fault.Conflict, "preempted before it was loaded")
	go func() {
		select {
		case <-place.Lost():
			cancel(taken)
		case <-ctx.Done():
		}
	}()
	session, err := load(ctx)
	if err != nil && errors.Is(context.Cause(ctx), taken) {
		return nil, taken
	}
	return session, err
}

// processesOf is how many a replica has.
func processesOf(s Spec) int {
	if s.Runtime == nil {
		return 1
	}
	return max(1, s.Runtime.Python.Processes)
}

// bytesOf is how large a version's files are.
func bytesOf(m Model, o runtime.Options) int {
	if o.Python != nil {
		return int(o.Python.Size)
	}
	return len(m.File)
}

// another loads a version once more. It takes a place of the loader.
func (s *core) another(ctx context.Context, project string, o runtime.Options) (runtime.Session, error) {
	free, err := s.loads.Take(ctx, share.Owner{Project: project})
	if err != nil {
		return nil, err
	}
	defer free()
	file, err := o.Again(ctx)
	if err != nil {
		return nil, err
	}
	return s.cfg.Runtime.Load(ctx, file, o)
}
