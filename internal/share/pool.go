package share

import (
	"container/list"
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
)

// Limits describe a Pool. Zero fields mean their defaults.
type Limits struct {
	// Name is the limit's name in errors, metrics and documentation, such as
	// "sql_statements". It is a constant of the code.
	Name string
	What string // what a slot is for, in the plural, such as "SQL statements"

	Slots        int           // at a time, of all; at least 1
	PerProject   int           // of them for one project; three quarters
	PerPrincipal int           // of them for one principal, over all projects; half
	Queue        int           // requests of one project that may wait, half of them of one principal; 64
	Wait         time.Duration // longest wait; 0 is as long as the context lets it
	NoWait       bool          // refuse at once instead of waiting
}

const (
	// maxWaiting bounds the requests that wait for a pool, of all projects.
	maxWaiting = 1 << 16
	// retryAfter is the Retry-After of a refusal.
	retryAfter = 5 * time.Second
)

func (l Limits) withDefaults() Limits {
	l.Slots = max(l.Slots, 1)
	part := func(n *int, most int) {
		if *n <= 0 {
			*n = most
		}
		*n = min(max(*n, 1), l.Slots)
	}
	part(&l.PerProject, l.Slots*3/4)
	part(&l.PerPrincipal, l.Slots/2)
	if l.Queue <= 0 {
		l.Queue = 64
	}
	return l
}

// Pool gives out slots fairly. Safe for concurrent use.
//
// Invariants: no project and no principal holds more than its share; while a slot
// is free no request waits whose project and principal hold none; a project that
// holds none is served before one that holds some; among equals, projects take
// turns, then the principals of the project, then the oldest request comes first.
// Only a project and principal that hold none take the last free slot.
type Pool struct {
	l     Limits
	usage *usage

	mu         sync.Mutex
	free       int
	projects   map[string]int // slots held
	principals map[string]int // slots held
	lanes      map[string]*lane
	ring       list.List // of *lane: projects that wait, in the order of their turns
	waiting    int
}

// lane is a project that waits.
type lane struct {
	at      *list.Element // in Pool.ring
	project string
	lines   map[string]*line
	ring    list.List // of *line: principals that wait, in the order of their turns
	waiting int
}

// line is a principal of a project that waits.
type line struct {
	at        *list.Element // in lane.ring
	principal string
	waiters   list.List // of *waiter, oldest first
}

type waiter struct {
	owner   Owner
	at      *list.Element // in line.waiters; nil once it has a slot or gave up
	granted chan struct{}
}

// New makes a pool.
func New(l Limits) *Pool {
	l = l.withDefaults()
	p := &Pool{l: l, usage: usageOf(l.Name), free: l.Slots, projects: map[string]int{}, principals: map[string]int{}, lanes: map[string]*lane{}}
	p.usage.slots.Store(int64(l.Slots))
	return p
}

// Take waits for a slot; call release, once or more often, when it is not needed
// any more. Errors: fault.Exhausted, and those of ctx.
func (p *Pool) Take(ctx context.Context, o Owner) (release func(), err error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	p.mu.Lock()
	if p.waiting == 0 && p.admissible(o) {
		p.hold(o)
		p.mu.Unlock()
		return p.releaser(o), nil
	}
	w, err := p.enqueue(o)
	if err == nil {
		p.dispatch()
		if p.l.NoWait && w.at != nil {
			p.remove(w)
			err = p.refusal(o)
		}
	}
	p.mu.Unlock()
	if err != nil {
		return nil, err
	}
	if err := p.await(ctx, w); err != nil {
		return nil, err
	}
	return p.releaser(o), nil
}

// Try takes a slot if there is one now for the owner and nobody waits. It is for loops
// that come again, and counts no refusal.
func (p *Pool) Try(o Owner) (release func(), ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.waiting > 0 || !p.admissible(o) {
		return nil, false
	}
	p.hold(o)
	return p.releaser(o), true
}

// Held is how many slots are taken.
func (p *Pool) Held() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.l.Slots - p.free
}

// await waits until the slot is there, the wait is over, or the context ends.
func (p *Pool) await(ctx context.Context, w *waiter) error {
	var over <-chan time.Time
	select {
	case <-w.granted:
		return nil
	default:
	}
	if p.l.Wait > 0 {
		t := time.NewTimer(p.l.Wait)
		defer t.Stop()
		over = t.C
	}
	var err error
	select {
	case <-w.granted:
		return nil
	case <-ctx.Done():
		err = context.Cause(ctx)
	case <-over:
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if w.at == nil { // it came at the same moment
		if err == nil {
			return nil
		}
		p.drop(w.owner)
		return err
	}
	p.remove(w)
	if err == nil {
		err = p.refusal(w.owner)
	}
	return err
}

func (p *Pool) releaser(o Owner) func() {
	return sync.OnceFunc(func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.drop(o)
	})
}

// admissible reports whether the owner may have a slot now.
func (p *Pool) admissible(o Owner) bool {
	held, own := p.projects[o.Project], p.principals[o.Principal]
	switch {
	case p.free == 0 || held >= p.l.PerProject || own >= p.l.PerPrincipal:
		return false
	case held == 0 && own == 0:
		return true
	}
	return p.free > 1 // the last one is for a project that holds none
}

func (p *Pool) hold(o Owner) {
	p.free--
	p.projects[o.Project]++
	if o.Principal != "" {
		p.principals[o.Principal]++
	}
	p.usage.held.Add(1)
	p.usage.granted.Add(1)
}

// drop gives a slot back and passes it on.
func (p *Pool) drop(o Owner) {
	p.free++
	lower(p.projects, o.Project)
	if o.Principal != "" {
		lower(p.principals, o.Principal)
	}
	p.usage.held.Add(-1)
	p.dispatch()
}

func lower(m map[string]int, key string) {
	if m[key]--; m[key] == 0 {
		delete(m, key)
	}
}

// dispatch gives out what is free to those whose turn it is.
func (p *Pool) dispatch() {
	for p.free > 0 && p.waiting > 0 {
		w := p.next()
		if w == nil {
			return
		}
		p.remove(w)
		p.hold(w.owner)
		close(w.granted)
	}
}

// next is the request whose turn it is; nil when none may have a slot. Projects and
// principals that hold slots are skipped and are no more than there are slots.
func (p *Pool) next() *waiter {
	var later *waiter
	for e := p.ring.Front(); e != nil; e = e.Next() {
		l := e.Value.(*lane)
		fresh := p.projects[l.project] == 0
		if !fresh && later != nil {
			continue
		}
		for f := l.ring.Front(); f != nil; f = f.Next() {
			n := f.Value.(*line)
			w := n.waiters.Front().Value.(*waiter)
			if !p.admissible(w.owner) {
				continue
			}
			if fresh && p.principals[n.principal] == 0 {
				return w
			}
			if later == nil {
				later = w
			}
		}
	}
	return later
}

// enqueue lets a request wait, or refuses it when too many wait.
func (p *Pool) enqueue(o Owner) (*waiter, error) {
	l := p.lanes[o.Project]
	if l == nil {
		l = &lane{project: o.Project, lines: map[string]*line{}}
	}
	n := l.lines[o.Principal]
	if n == nil {
		n = &line{principal: o.Principal}
	}
	switch {
	case l.waiting >= p.l.Queue:
		return nil, p.refuse("%s has %d requests waiting, its share", projectNamed(o), l.waiting)
	case o.Principal != "" && n.waiters.Len() >= max(1, p.l.Queue/2):
		return nil, p.refuse("principal %s has %d requests waiting, its share", o.Principal, n.waiters.Len())
	case p.waiting >= maxWaiting:
		return nil, p.refuse("%d requests wait", p.waiting)
	}
	if l.at == nil {
		p.lanes[o.Project], l.at = l, p.ring.PushBack(l)
	}
	if n.at == nil {
		l.lines[o.Principal], n.at = n, l.ring.PushBack(n)
	}
	w := &waiter{owner: o, granted: make(chan struct{})}
	w.at = n.waiters.PushBack(w)
	l.waiting++
	p.waiting++
	p.usage.waiting.Add(1)
	return w, nil
}

// remove takes a request out of its queue; its project's and principal's next turn
// comes after those of the others.
func (p *Pool) remove(w *waiter) {
	l := p.lanes[w.owner.Project]
	n := l.lines[w.owner.Principal]
	n.waiters.Remove(w.at)
	w.at = nil
	l.waiting--
	p.waiting--
	p.usage.waiting.Add(-1)
	l.ring.MoveToBack(n.at)
	p.ring.MoveToBack(l.at)
	if n.waiters.Len() == 0 {
		l.ring.Remove(n.at)
		delete(l.lines, n.principal)
	}
	if l.waiting == 0 {
		p.ring.Remove(l.at)
		delete(p.lanes, l.project)
	}
}

// refusal says which share is used up.
func (p *Pool) refusal(o Owner) error {
	held, own := p.projects[o.Project], p.principals[o.Principal]
	switch {
	case own >= p.l.PerPrincipal:
		return p.refuse("principal %s has %d %s under way, its share of %d", o.Principal, own, p.l.What, p.l.Slots)
	case held >= p.l.PerProject:
		return p.refuse("%s has %d %s under way, its share of %d", projectNamed(o), held, p.l.What, p.l.Slots)
	case p.free > 0:
		return p.refuse("%s has %d %s under way, and the last of %d is kept for other projects", projectNamed(o), held, p.l.What, p.l.Slots)
	}
	return p.refuse("all %d %s are under way, for %d projects", p.l.Slots, p.l.What, len(p.projects))
}

func (p *Pool) refuse(format string, args ...any) error {
	return Refused(p.l.Name, fmt.Sprintf(format, args...), "Wait until one has ended, then ask again.", retryAfter)
}

func projectNamed(o Owner) string {
	if o.Project == "" {
		return "the installation"
	}
	return "project " + o.Project
}

// Refused is the error of a limit that is used up. It counts as a refusal of the limit,
// whose name is a constant of the code.
func Refused(limit, why, hint string, retry time.Duration) *fault.Error {
	usageOf(limit).refused.Add(1)
	return fault.New(fault.Exhausted, "limit %s: %s", limit, why).WithHint("%s", hint).WithRetry(retry)
}
