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
	clock  time.Duration // used of the project, or of the queue of none, that ran last

	projects map[string]*project
}

// project is what the queues of one project used of the cores together. Under Cores.mu.
type project struct {
	served  time.Duration // of runs that have ended
	running time.Duration // what those that have not will typically take
	clock   time.Duration // used of its queue that ran last
	waiting int           // queues in which somebody waits
}

func (p *project) used() time.Duration { return p.served + p.running }

// catchUp lets a project that wanted nothing for a while begin where the others are.
func (p *project) catchUp(clock time.Duration) { p.served += max(0, clock-p.used()) }

// NewCores makes n of them; at least one.
func NewCores(n int) *Cores {
	n = max(1, n)
	return &Cores{all: n, free: n, projects: map[string]*project{}}
}

// project is that of a name; nil is a queue's of none.
func (c *Cores) project(name string) *project {
	if name == "" {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.projects[name]
	if p == nil {
		p = &project{}
		c.projects[name] = p
	}
	return p
}

// All is how many there are.
func (c *Cores) All() int { return c.all }

// next is the queue that may run next: of those that need not wait for company,
// the one whose project used least of the cores, and of its queues the one that did. What
// wanted nothing begins where the others are, so that nobody saves up.
func (c *Cores) next(now time.Time) *Queue {
	var best *Queue
	for _, q := range c.queues {
		if !q.room() || !q.ripe(now) {
			continue
		}
		if best == nil || q.urgent() && !best.urgent() || q.urgent() == best.urgent() && q.before(best) {
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
	if p := q.project; p != nil {
		p.catchUp(c.clock)
		c.clock = p.used()
		q.catchUp()
		p.clock = q.used()
		takes := time.Duration(q.weight) * q.typical
		q.expected += takes
		p.running += takes
	} else {
		q.catchUp()
		c.clock = q.used()
	}
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
		if p := q.project; p != nil {
			takes := q.expected / time.Duration(q.inside) // of one of its runs; of the last one, the rest
			q.expected -= takes
			p.running -= takes
			p.served += took * time.Duration(q.weight)
		}
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

// want adds a queue in which somebody waits.
func (c *Cores) want(q *Queue) {
	c.queues = append(c.queues, q)
	if p := q.project; p != nil {
		if p.waiting == 0 {
			p.catchUp(c.clock)
		}
		p.waiting++
	}
	q.catchUp()
}

// forget drops a queue in which nobody waits.
func (c *Cores) forget(q *Queue) {
	if i := slices.Index(c.queues, q); i >= 0 {
		c.queues = slices.Delete(c.queues, i, i+1)
		if q.project != nil {
			q.project.waiting--
		}
	}
}
