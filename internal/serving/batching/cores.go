package batching

import (
	"slices"
	"sync"
	"time"
)

// Cores are what the runs of all models of a process share. Safe for concurrent
// use.
type Cores struct {
	all int

	// mu is also over what the queues hold: it is taken twice for a run, for less
	// than a microsecond.
	mu     sync.Mutex
	free   int
	queues []*Queue      // those in which somebody waits
	clock  time.Duration // used of the queue that ran last
}

// NewCores makes n of them; at least one.
func NewCores(n int) *Cores {
	n = max(1, n)
	return &Cores{all: n, free: n}
}

// All is how many there are.
func (c *Cores) All() int { return c.all }

// next is the queue that may run next: of those that need not wait for company,
// the one that used least of the cores. A queue that was empty begins where the
// others are, so that nobody saves up.
func (c *Cores) next(now time.Time) *Queue {
	var best *Queue
	for _, q := range c.queues {
		if !q.room() || !q.ripe(now) {
			continue
		}
		if best == nil || q.urgent() && !best.urgent() || q.urgent() == best.urgent() && q.used() < best.used() {
			best = q
		}
	}
	return best
}

// start takes a queue's cores for a run; none for one that is elsewhere.
func (c *Cores) start(q *Queue, away bool) {
	if away {
		q.away++
		return
	}
	c.free -= q.weight
	q.catchUp()
	c.clock = q.used()
	q.inside++
}

// leaves is a queue of which something may run elsewhere, now; nil when there is none.
func (c *Cores) leaves(now time.Time) *Queue {
	for _, q := range c.queues {
		if q.elsewhere() && q.urgent() && q.ripe(now) {
			return q
		}
	}
	return nil
}

// finish gives a queue's cores back after a run of so many rows, and lets the next
// ones run. 0 rows: it failed, or was several runs.
func (c *Cores) finish(q *Queue, away bool, rows int, began, ended time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	took := ended.Sub(began)
	if away {
		q.away--
	} else {
		c.free += q.weight
		q.inside--
		q.served += took * time.Duration(q.weight)
	}
	q.measured(rows, took, ended)
	if len(c.queues) > 0 {
		c.dispatch(ended)
	}
}

// dispatch gives the free cores to batches of what waits. It follows each change of
// what waits: who leaves may have kept cores for a wide run, or been why the others
// need not wait for company.
func (c *Cores) dispatch(now time.Time) {
	for q := c.leaves(now); q != nil; q = c.leaves(now) { // what is elsewhere keeps nobody waiting here
		if b := q.take(); b != nil {
			b.away = true
			c.start(q, true)
			b.members[0].wake <- b
		}
	}
	for q := c.next(now); q != nil && q.weight <= c.free; q = c.next(now) {
		if b := q.take(); b != nil {
			c.start(q, false)
			b.members[0].wake <- b
		}
	}
	for _, q := range c.queues {
		q.arm(now)
	}
}

// forget drops a queue in which nobody waits.
func (c *Cores) forget(q *Queue) {
	if i := slices.Index(c.queues, q); i >= 0 {
		c.queues = slices.Delete(c.queues, i, i+1)
	}
}
