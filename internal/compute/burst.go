package compute

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/falaj-ml/falaj/internal/compute/cost"
	"github.com/falaj-ml/falaj/internal/compute/provisioner"
	"github.com/falaj-ml/falaj/internal/event"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/id"
	"github.com/falaj-ml/falaj/internal/resource"
	"github.com/falaj-ml/falaj/internal/scheduler"
	"github.com/falaj-ml/falaj/internal/scheduler/burst"
	"github.com/falaj-ml/falaj/internal/store"
)

// The waits of elastic pools. A round is made after each cycle of the scheduler, at
// most every burstPace, and at least every burstEvery.
const (
	burstPace   = 500 * time.Millisecond
	burstEvery  = 2 * time.Second
	askTimeout  = 30 * time.Second // for one answer of a provider
	firstPause  = time.Minute      // after a failure, doubled by each that follows
	lastPause   = 30 * time.Minute
	startupTry  = 5 // times the expected start-up, after which a node has failed
	remembering = 24 * time.Hour
)

// bursting rents nodes and gives them back while this process schedules.
func (s *Scheduling) bursting(ctx context.Context) {
	for {
		began := time.Now()
		if !s.bursts.nothing() {
			if err := s.Burst(ctx); err != nil && ctx.Err() == nil {
				s.log.ErrorContext(ctx, "scaling elastic pools failed", slog.Any("error", err))
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(max(burstPace, 5*time.Since(began))):
		}
		s.mu.Lock()
		cycled := s.cycled
		s.mu.Unlock()
		timer := time.NewTimer(burstEvery)
		select {
		case <-ctx.Done():
		case <-cycled:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// Burst is one round over the elastic pools: observe, decide, write down, act. What
// is written down is acted on until it is so, by this process or the one after it:
//
//	stateDiagram-v2
//	    [*] --> asked: it is wished for
//	    asked --> began: the provider has it
//	    asked --> ended: the provider has none
//	    began --> ready: it is up
//	    ready --> opened: all that are wished for with it are ready
//	    opened --> leaving: idle for too long, or taken away
//	    began --> leaving: it does not come up
//	    ready --> leaving: another that is wished for with it does not come
//	    leaving --> ended: the provider has it no more
//	    ended --> [*]
func (s *Scheduling) Burst(ctx context.Context) error {
	// 1. Observe.
	seen, err := s.observe(ctx)
	if err != nil || len(seen) == 0 {
		return err
	}

	// 2. Decide and write down, while nothing is given a place.
	s.cycle.Lock()
	round, err := s.wish(ctx, seen)
	s.cycle.Unlock()
	if err != nil {
		return err
	}
	if round.opened {
		if err := s.refresh(ctx); err != nil {
			return err
		}
	}

	// 3. Act.
	var errs []error
	if len(round.taken) > 0 {
		errs = append(errs, s.preempt(ctx, round.taken))
	}
	for _, at := range seen {
		if at.err == nil {
			errs = append(errs, s.provide(ctx, at, round.rentals))
		}
	}
	for _, wid := range s.bursts.learn(round.verdicts) {
		s.touch(wid)
	}
	return errors.Join(errs...)
}

// observed is an elastic pool with what its provider says of it.
type observed struct {
	pool  Pool
	by    provisioner.Provisioner
	nodes []provisioner.Node
	err   error
}

func (o observed) node(name string) provisioner.Node {
	if i := slices.IndexFunc(o.nodes, func(n provisioner.Node) bool { return n.Name == name }); i >= 0 {
		return o.nodes[i]
	}
	return provisioner.Node{Name: name, State: provisioner.Off}
}

// observe asks the providers for what there is.
func (s *Scheduling) observe(ctx context.Context) (all []observed, err error) {
	pools, err := s.recorded(ctx)
	for _, p := range pools {
		if p.Elastic == nil {
			continue
		}
		o := observed{pool: p, by: s.cfg.Engines[p.Engine].Provisioners[p.Elastic.Provisioner]}
		if o.by == nil {
			o.err = fault.New(fault.Unavailable, "provisioner %s of engine %s is not configured", p.Elastic.Provisioner, p.Engine)
		} else {
			asking, cancel := context.WithTimeout(ctx, askTimeout)
			o.nodes, o.err = o.by.Nodes(asking, p.provider())
			cancel()
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		s.provided(p.Name, o.err)
		all = append(all, o)
	}
	return all, err
}

// provided keeps why a provider does not answer.
func (s *Scheduling) provided(name PoolName, err error) {
	words := ""
	if err != nil {
		words = "its provisioner is unavailable: " + clip(err.Error())
	}
	if s.bursts.troubled(name, words) {
		s.signal()
		if err != nil {
			s.log.Warn("the provisioner of an elastic pool is unavailable", slog.String("pool", string(name)), slog.Any("error", err))
		}
	}
}

// round is what step 2 found and wrote down.
type round struct {
	rentals  []Rental // that have not ended
	taken    []scheduler.Preemption
	opened   bool // nodes take work that did not
	verdicts map[WorkloadID]burst.Verdict
}

// wish brings the rentals up to what the providers say, decides, and writes both
// down in one transaction. The caller holds s.cycle.
func (s *Scheduling) wish(ctx context.Context, seen []observed) (out round, err error) {
	err = s.cfg.DB.Update(ctx, "", func(ctx context.Context, tx *store.Tx) error {
		if err := s.fence(ctx, tx); err != nil {
			return err
		}
		out = round{verdicts: map[WorkloadID]burst.Verdict{}}
		w, err := s.situation(ctx, tx, seen)
		if err != nil {
			return err
		}
		for i := range w.rentals {
			w.follow(&w.rentals[i])
		}
		w.open()
		plan := burst.Decide(w.world())
		for _, v := range plan.Works {
			out.verdicts[WorkloadID(v.Work)] = v
		}
		changes := w.apply(plan)
		for _, r := range w.rentals {
			if w.before[r.ID] != r {
				if err := s.elasticStore.SaveRental(ctx, tx, r); err != nil {
					return err
				}
			}
			if !r.open() {
				s.bursts.works(r) // nothing is to be known of it any more
			}
			out.opened = out.opened || !r.Opened.IsZero() && w.before[r.ID].Opened.IsZero()
		}
		for _, c := range changes {
			if err := s.scaled(ctx, tx, c); err != nil {
				return err
			}
		}
		if w.changed() {
			tx.OnCommit(s.signal)
		}
		out.rentals, out.taken = w.rentals, w.taken()
		return nil
	})
	return out, fault.Wrap(err, "scaling elastic pools")
}

// situation is the input of a round.
type situation struct {
	s       *Scheduling
	now     time.Time
	seen    map[PoolName]observed
	pools   []Pool
	rentals []Rental          // those of the last day, too
	before  map[string]Rental // as they were, by ID
	wishes  map[PoolName]Wish
	queued  []Workload // in the order in which it is their turn
	active  []Workload
	waits   map[WorkloadID]bool
	left    map[string]resource.Amount
	money   map[string]float64
	held    map[project.Name]string // whose budget is used up, and starts nothing
	delay   func(Workload) float64
	startup map[PoolName]time.Duration
}

func (s *Scheduling) situation(ctx context.Context, tx *store.Tx, seen []observed) (w *situation, err error) {
	w = &situation{
		s: s, now: s.now().UTC(), seen: map[PoolName]observed{}, before: map[string]Rental{}, wishes: map[PoolName]Wish{}, waits: map[WorkloadID]bool{},
		left: map[string]resource.Amount{}, money: map[string]float64{}, startup: map[PoolName]time.Duration{},
	}
	for _, o := range seen {
		w.seen[o.pool.Name] = o
	}
	if w.pools, _, err = s.all(ctx, tx); err != nil {
		return nil, err
	}
	if w.rentals, err = s.elasticStore.Rentals(ctx, tx, w.now.Add(-remembering)); err != nil {
		return nil, err
	}
	for _, r := range w.rentals {
		w.before[r.ID] = r
	}
	wishes, err := s.elasticStore.Wishes(ctx, tx)
	if err != nil {
		return nil, err
	}
	for _, wish := range wishes {
		w.wishes[wish.Pool] = wish
	}
	for _, p := range w.pools {
		if p.Elastic != nil {
			w.startup[p.Name] = p.startup(w.rentals)
		}
	}
	all, err := s.workloadStore.Unsettled(ctx, tx)
	if err != nil {
		return nil, err
	}
	for _, x := range all {
		switch x.State {
		case Queued:
			w.queued = append(w.queued, x)
			w.waits[x.ID] = true
		case Placed, Running:
			w.active = append(w.active, x)
		case Ended:
		}
	}
	slices.SortStableFunc(w.queued, func(a, b Workload) int {
		return cmp.Or(cmp.Compare(b.Priority, a.Priority), a.Submitted.Compare(b.Submitted), cmp.Compare(a.ID, b.ID))
	})
	return w, w.limits(ctx, tx)
}

// limits reads what projects and queues may still use and spend.
func (w *situation) limits(ctx context.Context, tx *store.Tx) error {
	s := w.s
	if s.cfg.Quotas != nil {
		quotas, err := s.cfg.Quotas(ctx, tx)
		if err != nil {
			return fault.Wrap(err, "reading quotas")
		}
		for p, most := range quotas {
			left := most.Amount()
			for _, x := range w.active {
				if string(x.Project) == p {
					left = left.Minus(x.Amount())
				}
			}
			w.left["project "+p] = exhausted(left, most)
		}
	}
	queues, err := s.queueStore.Queues(ctx, tx)
	if err != nil {
		return err
	}
	delays, parents, limited := map[string]float64{}, map[string]string{}, map[string]resource.Limit{}
	for _, q := range queues {
		delays[q.Name], parents[q.Name] = q.DelayCost, q.Parent
	}
	root := func(name string) string {
		for range maxQueueDepth {
			if parents[name] == "" {
				break
			}
			name = parents[name]
		}
		return name
	}
	for _, q := range queues {
		limited[root(q.Name)] = limited[root(q.Name)].And(q.Quota)
	}
	s.deciding.Lock()
	if s.state != nil {
		for _, q := range s.state.Queues() {
			w.left["queue "+q.Name] = exhausted(q.Left, limited[root(q.Name)])
		}
	}
	s.deciding.Unlock()
	budgets, err := s.spendingIn(ctx, tx)
	if err != nil {
		return fault.Wrap(err, "reading budgets")
	}
	of := map[project.Name]float64{}
	w.held = map[project.Name]string{}
	for _, b := range budgets {
		w.held[b.Project] = b.UsedUp
		if of[b.Project] = b.DelayCost; b.Stop != StopNone {
			w.money[string(b.Project)] = b.Amount - b.Spent
		}
	}
	w.delay = func(x Workload) float64 { return cmp.Or(x.DelayCost, delays[x.Queue], of[x.Project]) }
	return nil
}

// exhausted is what is left of limits; of what they do not name nothing is said. It is less than 0
// where one is used up.
func exhausted(left resource.Amount, most resource.Limit) resource.Amount {
	out := resource.Amount{Accelerators: map[string]int64{}}
	if most.CPU != nil {
		out.CPU = cmp.Or(max(left.CPU, 0), -1)
	}
	if most.Memory != nil {
		out.Memory = cmp.Or(max(left.Memory, 0), -1)
	}
	if most.MemoryBandwidth != nil {
		out.MemoryBandwidth = cmp.Or(max(left.MemoryBandwidth, 0), -1)
	}
	for name := range most.Accelerators {
		out.Accelerators[name] = left.Accelerators[name]
	}
	return out
}

// startup is how long nodes of a pool take: the median of those of the last day.
func (p Pool) startup(rentals []Rental) time.Duration {
	var took []time.Duration
	for _, r := range rentals {
		if r.Pool == p.Name && !r.Ready.IsZero() && r.Ready.After(r.Began) {
			took = append(took, r.Ready.Sub(r.Began))
		}
	}
	if len(took) == 0 {
		return time.Duration(p.Elastic.Startup)
	}
	slices.Sort(took)
	return took[len(took)/2]
}

// follow brings a rental up to what its provider says.
func (w *situation) follow(r *Rental) {
	o, ok := w.seen[r.Pool]
	if !r.open() || !ok || o.err != nil {
		return
	}
	n := o.node(r.Node)
	since := cmp.Or(n.Since.UTC(), w.now)
	switch n.State {
	case provisioner.Off:
		switch {
		case !r.Leaving.IsZero():
			r.Ended = w.now
		case !r.Began.IsZero() && r.Ready.IsZero():
			r.Leaving, r.Ended, r.Failed, r.Why = w.now, w.now, true, "the node did not start"
		case !r.Began.IsZero():
			r.Leaving, r.Ended, r.Why = w.now, w.now, "the node disappeared without being released"
		}
		return
	case provisioner.Coming, provisioner.Ready:
		if r.Began.IsZero() {
			if r.Began = w.now; n.State == provisioner.Coming && since.After(r.Asked) && since.Before(w.now) {
				r.Began = since
			}
		}
		if n.State == provisioner.Ready && r.Ready.IsZero() {
			if r.Ready = w.now; since.After(r.Began) && since.Before(w.now) {
				r.Ready = since
			}
		}
		if limit := startupTry*w.startup[r.Pool] + firstPause; r.Ready.IsZero() && r.Leaving.IsZero() && w.now.Sub(r.Began) > limit {
			r.Leaving, r.Failed, r.Why = w.now, true, "the node did not start within "+limit.String()
		}
	case provisioner.Leaving:
		if r.Began.IsZero() {
			r.Began = w.now
		}
		if r.Leaving.IsZero() {
			r.Leaving, r.Why = w.now, cmp.Or(n.Why, "the node is shutting down")
		}
	case provisioner.Failed:
		if r.Leaving.IsZero() {
			r.Leaving, r.Failed, r.Why = w.now, true, cmp.Or(n.Why, "it failed")
		}
	}
}

// need tells rentals together that are wished for together.
type need struct {
	pool  PoolName
	of    WorkloadID
	asked time.Time
}

func (r Rental) need() need { return need{r.Pool, r.For, r.Asked} }

// open lets nodes take work when all that are wished for with them are up, and lets
// all of them go when one does not come: a gang has its nodes together or none.
func (w *situation) open() {
	missing, failed := map[need]int{}, map[need]string{}
	for _, r := range w.rentals {
		switch {
		case r.Failed:
			failed[r.need()] = r.Why
		case r.open() && r.Leaving.IsZero() && r.Ready.IsZero():
			missing[r.need()]++
		}
	}
	for i := range w.rentals {
		r := &w.rentals[i]
		if !r.open() || !r.Leaving.IsZero() || !r.Opened.IsZero() {
			continue
		}
		alone := !w.waits[r.For]
		switch why, no := failed[r.need()]; {
		case no && !alone:
			r.Leaving, r.Why = w.now, "other nodes of the same request did not start: "+why
		case !r.Ready.IsZero() && (alone || missing[r.need()] == 0):
			r.Opened = w.now
		}
	}
}

// world is the situation as package burst sees it.
func (w *situation) world() burst.World {
	out := burst.World{Now: w.now, Currency: w.s.cfg.Currency, Left: w.left, Money: w.money}
	n := news{delta: scheduler.Delta{Now: w.now}}
	for _, x := range w.active {
		n.add(x)
	}
	out.Running = n.delta.Started
	for _, p := range w.pools {
		if was := p.Nodes; p.Elastic != nil {
			p.Nodes = p.rented(w.rentals)
			for i := range p.Nodes {
				if k := slices.IndexFunc(was, func(n PoolNode) bool { return n.Name == p.Nodes[i].Name }); k >= 0 {
					p.Nodes[i].Quarantine = was[k].Quarantine
				}
			}
		}
		b := burst.Pool{Pool: w.s.scheduled(p)}
		if p.Elastic != nil {
			b.Elastic = w.elastic(p)
			b.Nodes = slices.DeleteFunc(b.Nodes, func(n scheduler.Node) bool { return n.Closed != "" })
			if o := w.seen[p.Name]; o.err != nil && b.Closed == "" {
				b.Closed = "its provisioner is unavailable"
			}
		}
		out.Pools = append(out.Pools, b)
	}
	for _, x := range w.queued {
		b := burst.Work{Workload: x.work(), Duration: x.Timeout, DelayCost: w.delay(x), GiB: float64(x.Data) / float64(resource.GiB)}
		if x.Expected > 0 {
			b.Duration = x.Expected
		}
		b.Barred = w.barred(x)
		b.Limits = []string{"project " + string(x.Project)}
		if x.Queue != "" {
			b.Limits = append(b.Limits, "queue "+x.Queue)
		}
		out.Waiting = append(out.Waiting, b)
	}
	return out
}

// room are the reasons to wait that more nodes may help.
var room = []scheduler.Code{
	scheduler.Residency, scheduler.Isolated, scheduler.NoRoomEver, scheduler.Closed, scheduler.NoSuch, scheduler.Refused, scheduler.Full, scheduler.Kept,
}

// barred says why more nodes would not help a work; empty when they would.
func (w *situation) barred(x Workload) string {
	if held := w.held[x.Project]; held != "" && x.Kind == JobAttempt {
		return held
	}
	if x.NotBefore.After(w.now) {
		return "it is retried after " + x.NotBefore.UTC().Format(time.RFC3339)
	}
	// The scheduler does not want them for it, whatever this package thinks.
	if i := slices.IndexFunc(w.rentals, func(r Rental) bool { return r.For == x.ID && !r.Opened.IsZero() && r.Why == unused }); i >= 0 {
		return fmt.Sprintf("node %s of %s was rented for this workload, which did not start there", w.rentals[i].Node, w.rentals[i].Pool)
	}
	wait, ok, _ := w.s.wait(x.ID)
	if !ok {
		return "about to be scheduled"
	}
	for _, r := range wait.Reasons {
		if !slices.Contains(room, r.Code) {
			return r.Text
		}
	}
	return ""
}

// elastic is a pool's nodes to come and to go.
func (w *situation) elastic(p Pool) *burst.Elastic {
	o := w.seen[p.Name]
	e := &burst.Elastic{
		Min: p.Elastic.Min, Max: min(p.Elastic.Max, len(o.nodes)), Startup: w.startup[p.Name], Idle: p.Elastic.idle(), Node: p.nodeToCome().Room(),
		GiBPerHour: p.Elastic.TransferRate,
	}
	if p.Elastic.Spot != nil {
		e.Interruptions = p.Elastic.Spot.Interruptions
	}
	if p.Cost != nil && p.Cost.Rented != nil {
		e.Egress = p.Cost.Rented.Egress
	}
	for _, r := range w.rentals {
		if r.Pool != p.Name || !r.open() {
			continue
		}
		n := burst.Node{Name: r.Node, Coming: r.Opened.IsZero(), Leaving: !r.Leaving.IsZero(), For: scheduler.ID(r.For), Ready: r.Opened}
		if !w.waits[r.For] {
			n.For = ""
		}
		if n.Coming {
			if n.Ready = cmp.Or(r.Began, w.now).Add(e.Startup); n.Ready.Before(w.now) {
				n.Ready = w.now.Add(time.Second)
			}
		}
		if n.Busy = w.busy(p, r.Node); !n.Busy && !n.Coming {
			n.Idle = w.s.bursts.idle(r, w.now)
		} else {
			w.s.bursts.works(r)
		}
		e.Rented = append(e.Rented, n)
	}
	e.NotBefore, e.Because = w.pause(p.Name)
	return e
}

// busy reports that a node has work, or a place is kept there.
func (w *situation) busy(p Pool, node string) bool {
	if p.Mode == Delegated {
		// The engine picks the node: what has its place and does not run may be on its
		// way to any of them.
		return w.seen[p.Name].node(node).Busy ||
			slices.ContainsFunc(w.active, func(x Workload) bool { return x.Pool == p.Name && x.State == Placed })
	}
	return slices.ContainsFunc(w.active, func(x Workload) bool { return x.Pool == p.Name && slices.Contains(x.Nodes, node) })
}

// pause is until when nothing is asked for after failures, and why.
func (w *situation) pause(name PoolName) (time.Time, string) {
	var last Rental
	pause := firstPause
	for _, r := range w.rentals { // the oldest first
		switch {
		case r.Pool != name:
		case r.Failed && last.ID != "" && r.need() != last.need():
			last, pause = r, min(2*pause, lastPause)
		case r.Failed:
			last = r
		case !r.Opened.IsZero():
			last, pause = Rental{}, firstPause
		}
	}
	if last.ID == "" {
		return time.Time{}, ""
	}
	return cmp.Or(last.Leaving, last.Ended).Add(pause), last.Why
}

// unused is the reason of releasing an idle node.
const unused = "it had no work"

// change is another wish than before.
type change struct {
	pool          PoolName
	was, is       int
	rent, release []string
	why           []string
	said          bool // the words are others, too
}

// apply makes rentals of a plan: new ones, and those that leave.
func (w *situation) apply(plan burst.Plan) []change {
	var all []change
	for _, wish := range plan.Pools {
		name := PoolName(wish.Pool)
		o := w.seen[name]
		if o.err != nil || o.by == nil {
			continue
		}
		c := change{pool: name, was: w.wishes[name].Nodes, is: wish.Nodes, why: wish.Why, release: wish.Release}
		for i := range w.rentals {
			if r := &w.rentals[i]; r.Pool == name && r.open() && slices.Contains(wish.Release, r.Node) {
				r.Leaving, r.Why = w.now, unused
			}
		}
		for _, n := range wish.Rent {
			places := w.free(o, n.Nodes)
			if len(places) < n.Nodes {
				c.is -= n.Nodes
				c.why = append(c.why, fmt.Sprintf("%d nodes are wanted, but the provisioner has capacity for %d", n.Nodes, len(places)))
				continue
			}
			for _, place := range places {
				w.rentals = append(w.rentals, Rental{ID: id.New("rnt"), Pool: name, Node: place, For: WorkloadID(n.For), Asked: w.now})
				c.rent = append(c.rent, place)
			}
		}
		c.said = !slices.Equal(w.wishes[name].Why, c.why)
		if c.was != c.is || c.said || len(c.rent)+len(c.release) > 0 {
			all = append(all, c)
		}
	}
	return all
}

// free are places for n nodes, fewer if there are not so many.
func (w *situation) free(o observed, n int) (places []string) {
	quarantined := func(name string) int {
		if i := slices.IndexFunc(w.pools, func(p Pool) bool { return p.Name == o.pool.Name }); i >= 0 {
			if k := slices.IndexFunc(w.pools[i].Nodes, func(n PoolNode) bool { return n.Name == name && n.Quarantine != nil }); k >= 0 {
				return 1
			}
		}
		return 0
	}
	for _, at := range o.nodes {
		taken := slices.ContainsFunc(w.rentals, func(r Rental) bool { return r.Pool == o.pool.Name && r.Node == at.Name && r.open() })
		if at.State == provisioner.Off && !taken {
			places = append(places, at.Name)
		}
	}
	slices.SortStableFunc(places, func(a, b string) int { return quarantined(a) - quarantined(b) })
	return places[:min(n, len(places))]
}

// changed reports that the nodes of a pool are others than before, or take work that
// did not.
func (w *situation) changed() bool {
	return slices.ContainsFunc(w.rentals, func(r Rental) bool { return w.before[r.ID] != r })
}

// taken are the works on nodes that leave without having been given back: they are
// to save and to go on elsewhere.
func (w *situation) taken() (out []scheduler.Preemption) {
	for _, x := range w.active {
		if x.Stop != "" {
			continue
		}
		for _, r := range w.rentals {
			if r.Pool == x.Pool && !r.Leaving.IsZero() && slices.Contains(x.Nodes, r.Node) && !x.PlacedAt.Before(r.Opened) && x.PlacedAt.Before(r.Leaving) {
				out = append(out, scheduler.Preemption{Workload: scheduler.ID(x.ID), Why: fmt.Sprintf("node %s of pool %s is being released: %s", r.Node, r.Pool, r.Why)})
				break
			}
		}
	}
	return out
}

// scaled writes down a wish, and that it is another one.
func (s *Scheduling) scaled(ctx context.Context, tx *store.Tx, c change) error {
	err := s.elasticStore.SaveWish(ctx, tx, Wish{Pool: c.pool, Nodes: c.is, Why: c.why, Decided: s.now().UTC()})
	if err != nil || c.was == c.is && len(c.rent)+len(c.release) == 0 {
		return err
	}
	err = audit.Append(ctx, tx, audit.Entry{
		Actor: identity.Loop("compute"), Action: "pool.scale", Object: "pool " + string(c.pool),
		Detail: map[string]any{"from": c.was, "to": c.is, "rent": c.rent, "release": c.release, "why": clip(strings.Join(c.why, "; "))},
	})
	if err != nil {
		return err
	}
	return event.Publish(ctx, tx, "", EventPoolScaled, PoolScaledEvent{
		Pool: c.pool, From: c.was, To: c.is, Rent: c.rent, Release: c.release, Reason: clip(strings.Join(c.why, "; ")),
	})
}

// provide makes a provider have what is written down, and nothing else.
func (s *Scheduling) provide(ctx context.Context, o observed, rentals []Rental) error {
	var errs []error
	wanted := map[string]Rental{}
	for _, r := range rentals {
		if r.Pool == o.pool.Name && r.open() {
			wanted[r.Node] = r
		}
	}
	ask := func(f func(context.Context, provisioner.Pool, string) error, name string) error {
		ctx, cancel := context.WithTimeout(ctx, askTimeout)
		defer cancel()
		return f(ctx, o.pool.provider(), name)
	}
	for _, n := range o.nodes {
		r, ok := wanted[n.Name]
		delete(wanted, n.Name)
		switch {
		case !ok && n.State != provisioner.Off && n.State != provisioner.Leaving:
			s.log.WarnContext(ctx, "releasing a node that was not requested", slog.String("pool", string(o.pool.Name)), slog.String("node", n.Name))
			errs = append(errs, ask(o.by.Release, n.Name))
		case ok && !r.Leaving.IsZero() && n.State != provisioner.Off && (n.Until.IsZero() || !s.now().Before(n.Until)):
			errs = append(errs, ask(o.by.Release, n.Name))
		case ok && r.Leaving.IsZero() && r.Began.IsZero() && n.State == provisioner.Off:
			errs = append(errs, s.rent(ctx, r, func() error { return ask(o.by.Rent, n.Name) }))
		}
	}
	for _, r := range wanted { // its place is gone
		if r.Began.IsZero() {
			errs = append(errs, s.rent(ctx, r, func() error {
				return fault.New(fault.Exhausted, "node %s is not offered by the provisioner any more", r.Node)
			}))
		}
	}
	return fault.Wrap(errors.Join(errs...), "pool %s", o.pool.Name)
}

// rent asks for a node, and writes down that there is none.
func (s *Scheduling) rent(ctx context.Context, r Rental, ask func() error) error {
	err := ask()
	if err == nil || fault.Is(err, fault.Unavailable) || ctx.Err() != nil {
		return err
	}
	s.log.WarnContext(ctx, "the provisioner rents no node", slog.String("pool", string(r.Pool)), slog.String("node", r.Node), slog.Any("error", err))
	return s.cfg.DB.Update(ctx, "", func(ctx context.Context, tx *store.Tx) error {
		if err := s.fence(ctx, tx); err != nil {
			return err
		}
		r.Leaving, r.Ended, r.Failed, r.Why = s.now().UTC(), s.now().UTC(), true, clip(err.Error())
		if err := s.elasticStore.SaveRental(ctx, tx, r); err != nil {
			return err
		}
		tx.OnCommit(s.signal)
		return audit.Append(ctx, tx, audit.Entry{
			Actor: identity.Loop("compute"), Action: "pool.scale", Object: "pool " + string(r.Pool), Detail: map[string]any{"failed": r.Node, "why": r.Why},
		})
	})
}

// rented are the nodes of an elastic pool: those that are there, will be, or go.
func (p Pool) rented(rentals []Rental) []PoolNode {
	found := merged(nil, p.Seen)
	var out []PoolNode
	for _, r := range rentals {
		if r.Pool != p.Name || !r.open() {
			continue
		}
		n := PoolNode{Node: p.nodeToCome()}
		if i := slices.IndexFunc(found, func(f PoolNode) bool { return f.Name == r.Node }); i >= 0 {
			n = found[i]
		}
		n.Name = r.Node
		switch {
		case !r.Leaving.IsZero():
			n.Down = "it leaves: " + r.Why
		case r.Began.IsZero():
			n.Down = "it was requested at " + r.Asked.Format(time.RFC3339)
		case r.Ready.IsZero():
			n.Down = "it is starting since " + r.Began.Format(time.RFC3339)
		case r.Opened.IsZero():
			n.Down = "it waits for other nodes of the same request"
		}
		out = append(out, n)
	}
	slices.SortFunc(out, func(a, b PoolNode) int {
		return cmp.Or(cmp.Compare(len(a.Name), len(b.Name)), cmp.Compare(a.Name, b.Name))
	})
	return out
}

// nodeToCome is what a node of an elastic pool will be: as the manifest says, or
// like those that its engine tells of.
func (p Pool) nodeToCome() Node {
	is := p.Elastic.Node
	n := Node{CPU: is.CPU, Memory: is.Memory, MemoryBandwidth: is.MemoryBandwidth, Accelerators: is.Accelerators, Labels: map[string]string{}}
	if n.CPU == 0 && len(p.Seen) > 0 {
		n = p.Seen[0].Node
		n.Name = ""
	}
	if p.Elastic.Provisioner == simulatedCloud {
		n.Labels = map[string]string{"simulated": "true"}
	}
	maps.Copy(n.Labels, p.Elastic.Node.Labels)
	return n
}

// provided refuses an elastic pool whose engine has no such provisioner.
func (e Elastic) provided(name string, on Engine) error {
	if on.Provisioners[e.Provisioner] != nil {
		return nil
	}
	var have []string
	for p := range on.Provisioners {
		have = append(have, p)
	}
	slices.Sort(have)
	err := fault.New(fault.Invalid, "elastic.provisioner: engine %s has no provisioner %.40q", name, e.Provisioner)
	if len(have) == 0 {
		return err.WithHint("Use slurm with an engine of kind slurm, or simulated with the local engine.")
	}
	return err.WithHint("Use one of %s.", strings.Join(have, ", "))
}

// mayStay refuses a change that would never release rented nodes.
func (s *Pools) mayStay(ctx context.Context, tx *store.Tx, old Pool, spec PoolSpec) error {
	if old.Elastic == nil || spec.Elastic != nil && spec.Elastic.Provisioner == old.Elastic.Provisioner && spec.Engine == old.Engine {
		return nil
	}
	rentals, err := s.elasticStore.Rentals(ctx, tx, s.now())
	if err != nil {
		return err
	}
	if i := slices.IndexFunc(rentals, func(r Rental) bool { return r.Pool == old.Name && r.open() }); i >= 0 {
		return fault.New(fault.Conflict, "pool %s has rented node %s, which this change would never release", old.Name, rentals[i].Node).
			WithHint("Apply the pool with max: 0, wait until it has no nodes, then change it.")
	}
	return nil
}

// renting is how an elastic pool stands.
func (s *Pools) renting(ctx context.Context, tx *store.Tx, pools []Pool) error {
	if !slices.ContainsFunc(pools, func(p Pool) bool { return p.Elastic != nil }) {
		return nil
	}
	now := s.now().UTC()
	rentals, err := s.elasticStore.Rentals(ctx, tx, now.Add(-remembering))
	if err != nil {
		return err
	}
	wishes, err := s.elasticStore.Wishes(ctx, tx)
	if err != nil {
		return err
	}
	l, err := s.ledger(ctx, tx, "")
	if err != nil {
		return err
	}
	for i := range pools {
		p := &pools[i]
		if p.Elastic == nil {
			continue
		}
		p.Renting = &Renting{Startup: Duration(p.startup(rentals).Round(time.Millisecond))}
		if k := slices.IndexFunc(wishes, func(w Wish) bool { return w.Pool == p.Name }); k >= 0 {
			p.Renting.Wished, p.Renting.Why, p.Renting.Decided = wishes[k].Nodes, wishes[k].Why, wishes[k].Decided
		}
		if words := s.bursts.trouble(p.Name); words != "" {
			p.Renting.Why = append([]string{words}, p.Renting.Why...)
		}
		for _, r := range rentals {
			if r.Pool != p.Name {
				continue
			}
			switch {
			case !r.open():
			case !r.Leaving.IsZero():
				p.Renting.Leaving++
			case r.takes():
				p.Renting.Ready++
			default:
				p.Renting.Coming++
			}
			from, until := r.cost(now.Truncate(day), now)
			p.Renting.Cost += cost.Over(l.rates[p.Name], from, until)
		}
		p.Renting.Cost = math.Round(p.Renting.Cost*1e6) / 1e6
	}
	return nil
}

// bursts is what this process knows of bursting between rounds. Safe for concurrent
// use; the zero value knows nothing.
type bursts struct {
	mu       sync.Mutex
	names    []string // of all pools
	elastic  map[string]zones
	verdicts map[WorkloadID]burst.Verdict
	since    map[string]time.Time // that a rental has no work
	troubles map[PoolName]string
}

// zones are that of a pool and that of its machines.
type zones struct{ pool, machine residency.Zone }

// forbids reports that data which may be in these zones may not be in the pool.
func (z zones) forbids(label []string) bool {
	p := scheduler.Pool{Zone: string(z.pool), MachineZone: string(z.machine)}
	return p.Forbids(label) != ""
}

// know takes in which pools there are, and reports that works have to be told: when
// elastic ones are among them, or were.
func (b *bursts) know(pools []Pool) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	had := len(b.elastic) > 0
	names, elastic := make([]string, len(pools)), map[string]zones{}
	for i, p := range pools {
		if names[i] = string(p.Name); p.Elastic != nil {
			elastic[names[i]] = zones{p.Zone, p.MachineZone}
		}
	}
	other := !slices.Equal(names, b.names) || !maps.Equal(elastic, b.elastic)
	b.names, b.elastic = names, elastic
	return other && (had || len(elastic) > 0)
}

// nothing reports that it is known that no pool is elastic.
func (b *bursts) nothing() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.elastic != nil && len(b.elastic) == 0
}

// narrow gives what leaves a work those elastic pools that it may use now: nodes
// that others rent are not for who would not rent them. A work that can go nowhere
// else keeps all that it names. One where its data may not be stays, for the scheduler to
// refuse it and say so.
func (b *bursts) narrow() func(*scheduler.Workload) {
	return func(w *scheduler.Workload) {
		b.mu.Lock()
		defer b.mu.Unlock()
		if len(b.elastic) == 0 {
			return
		}
		named := w.Pools
		if len(named) == 0 {
			named = b.names
		}
		may := b.verdicts[WorkloadID(w.ID)].Pools
		keep := slices.DeleteFunc(slices.Clone(named), func(p string) bool {
			z, elastic := b.elastic[p]
			return elastic && !slices.Contains(may, p) && !z.forbids(w.Residency)
		})
		if len(keep) > 0 {
			w.Pools = keep
		}
	}
}

// apart is narrow for a workload that was not submitted, and lists the skipped pools.
func (b *bursts) apart(w *scheduler.Workload) (out []Reason) {
	named := w.Pools
	if b.narrow()(w); len(named) == 0 {
		b.mu.Lock()
		named = b.names
		b.mu.Unlock()
	}
	for _, p := range named {
		if len(w.Pools) > 0 && !slices.Contains(w.Pools, p) {
			out = append(out, Reason{Step: "admit", Code: scheduler.Closed, Pool: p, Text: "pool " + p + " is elastic: it rents nodes when waiting costs more than renting, see delay_cost"})
		}
	}
	return out
}

// learn takes in verdicts, and names those whose pools are others than before.
func (b *bursts) learn(all map[WorkloadID]burst.Verdict) (changed []WorkloadID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for wid, v := range all {
		if !slices.Equal(v.Pools, b.verdicts[wid].Pools) {
			changed = append(changed, wid)
		}
	}
	b.verdicts = all
	return changed
}

// ever reports that nodes could be rented for a work that waits.
func (b *bursts) ever(wid WorkloadID) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.verdicts[wid].Ever
}

// words adds what is known of bursting to why a work waits.
func (b *bursts) words(wid WorkloadID, reasons []string) []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch v, ok := b.verdicts[wid]; {
	case !ok || len(b.elastic) == 0:
		return reasons
	case len(v.Pools) > 0:
		return append([]string{v.Why}, reasons...)
	default:
		return append(slices.Clone(reasons), v.Why)
	}
}

// idle is since when a rental has no work, by what this process saw.
func (b *bursts) idle(r Rental, now time.Time) time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.since == nil {
		b.since = map[string]time.Time{}
	}
	if b.since[r.ID].IsZero() {
		b.since[r.ID] = now
	}
	return b.since[r.ID]
}

// works notes that a rental has work, is not up, or is over.
func (b *bursts) works(r Rental) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.since, r.ID)
}

// troubled keeps why a provider does not answer, and reports that it is news.
func (b *bursts) troubled(name PoolName, words string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.troubles == nil {
		b.troubles = map[PoolName]string{}
	}
	was := b.troubles[name]
	b.troubles[name] = words
	return (was == "") != (words == "")
}

func (b *bursts) trouble(name PoolName) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.troubles[name]
}
