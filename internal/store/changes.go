package store

import (
	"context"
	"sync"
	"time"
)

// pollEvery is how soon a commit of another process is noticed.
const pollEvery = 500 * time.Millisecond

// changes wakes the readers that wait for entries of a stream.
//
// An entry may be committed and still be above the watermark, because an older
// transaction still runs. Therefore the end of every transaction that ran at the time
// wakes the stream's readers once more. Where other processes write, a slow poll
// finds entries without a signal.
type changes struct {
	engine engine
	quit   context.CancelFunc
	done   chan struct{}

	mu      sync.Mutex
	waiting map[string]chan struct{}
	seen    map[string]Position // newest readable entry at the last poll
	n       uint64              // transactions begun in this process
	running map[uint64]struct{}
	recheck map[string]uint64 // stream → the last transaction whose end may make its entries readable
}

func newChanges(e engine) *changes {
	ctx, cancel := context.WithCancel(context.Background())
	c := &changes{
		engine: e, quit: cancel, done: make(chan struct{}),
		waiting: map[string]chan struct{}{}, seen: map[string]Position{},
		running: map[uint64]struct{}{}, recheck: map[string]uint64{},
	}
	if e.others() {
		go c.poll(ctx)
	} else {
		close(c.done)
	}
	return c
}

func (c *changes) stop() {
	c.quit()
	<-c.done
}

func (c *changes) wait(stream string) <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	ch := c.waiting[stream]
	if ch == nil {
		ch = make(chan struct{})
		c.waiting[stream] = ch
	}
	return ch
}

// begin notes a transaction; end must follow with what begin returned.
func (c *changes) begin() uint64 {
	if !c.engine.others() {
		return 0
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n++
	c.running[c.n] = struct{}{}
	return c.n
}

// end wakes the readers of the streams to which transaction n added entries, and of
// streams with entries that may have become readable by its end.
func (c *changes) end(n uint64, streams []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range streams {
		c.wake(s)
	}
	if n == 0 {
		return
	}
	delete(c.running, n)
	oldest := c.n + 1
	for r := range c.running {
		oldest = min(oldest, r)
	}
	for s, last := range c.recheck {
		c.wake(s)
		if last < oldest {
			delete(c.recheck, s)
		}
	}
	if oldest <= c.n {
		for _, s := range streams {
			c.recheck[s] = c.n
		}
	}
}

func (c *changes) wake(stream string) {
	if ch := c.waiting[stream]; ch != nil {
		close(ch)
		delete(c.waiting, stream)
	}
}

func (c *changes) poll(ctx context.Context) {
	defer close(c.done)
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		c.mu.Lock()
		streams := make([]string, 0, len(c.waiting))
		for s := range c.waiting {
			streams = append(streams, s)
		}
		c.mu.Unlock()
		for _, s := range streams {
			c.look(ctx, s)
		}
	}
}

// look wakes the stream's readers if it has another newest entry than last time.
// An error of the database is the readers' own to find.
func (c *changes) look(ctx context.Context, stream string) {
	var newest []Position
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	err := c.engine.reader().NewRaw(`SELECT tx, seq FROM store_stream WHERE stream = ? AND `+c.engine.below()+`
		ORDER BY tx DESC, seq DESC LIMIT 1`, stream).Scan(ctx, &newest)
	if err != nil || len(newest) == 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if seen, ok := c.seen[stream]; !ok || seen != newest[0] {
		c.seen[stream] = newest[0]
		c.wake(stream)
	}
}
