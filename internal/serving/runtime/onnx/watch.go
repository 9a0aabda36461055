package onnx

import (
	"context"
	"sync"
	"time"
)

// watchEvery is how late a run is broken off whose context is over, at most.
const watchEvery = 10 * time.Millisecond

// watch looks at the runs that are under way, and breaks those off whose context is over.
// Most runs take less time than it takes to wait for a context, so nobody waits for each:
// one timer is for all, and there is one only while there are runs. The zero watch is ready;
// safe for concurrent use.
type watch struct {
	mu    sync.Mutex
	runs  []*call
	armed bool // the timer will look
}

// watched is what a watch knows of a call; under its mu.
type watched struct {
	ctx    context.Context // of the run that is under way; nil: none is
	at     int             // in runs
	broken bool            // told to end
}

// begin watches a run until end.
func (w *watch) begin(ctx context.Context, c *call) {
	w.mu.Lock()
	defer w.mu.Unlock()
	c.watched = watched{ctx: ctx, at: len(w.runs)}
	w.runs = append(w.runs, c)
	if !w.armed {
		w.armed = true
		time.AfterFunc(watchEvery, w.look)
	}
}

// end lets the call go, ready for another run.
func (w *watch) end(c *call) {
	w.mu.Lock()
	defer w.mu.Unlock()
	last := len(w.runs) - 1
	w.runs[c.watched.at] = w.runs[last]
	w.runs[c.watched.at].watched.at = c.watched.at
	w.runs[last] = nil
	w.runs = w.runs[:last]
	if c.watched.broken {
		c.resume()
	}
	c.watched = watched{}
}

// look breaks off what is over. It looks again as long as there are runs.
func (w *watch) look() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.runs {
		if !c.watched.broken && c.watched.ctx.Err() != nil {
			c.watched.broken = true
			c.terminate()
		}
	}
	if w.armed = len(w.runs) > 0; w.armed {
		time.AfterFunc(watchEvery, w.look)
	}
}
