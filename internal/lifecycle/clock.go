package lifecycle

import (
	"context"
	"sync"
	"time"
)

// Clock notices that the wall clock went back, which makes times in rows and
// expiry unreliable: within a run by comparing it with the monotonic clock,
// across runs by the last time that somebody wrote down.
type Clock struct {
	// Last is a time that has been before Start, for example that of the newest
	// audit entry; zero when none is known.
	Last time.Time
	// Tolerance is how far it may go back without a word: two seconds when zero.
	Tolerance time.Duration
	// Every is how often it looks: ten seconds when zero.
	Every time.Duration
	// Back is told by how much it went back. It must not block.
	Back func(by time.Duration)
	// Now is time.Now, but for tests: the wall clock, and how long the process
	// runs by a clock that only rises.
	Now func() (wall time.Time, elapsed time.Duration)

	mu   sync.Mutex
	wall time.Time // when elapsed was elapsed
	then time.Duration
	loop *Loop
}

// Start looks at once and then at intervals.
func (c *Clock) Start(ctx context.Context) error {
	c.loop = &Loop{Name: "clock", Every: c.Every, Run: func(context.Context) error { c.Look(); return nil }}
	if c.loop.Every == 0 {
		c.loop.Every = 10 * time.Second
	}
	return c.loop.Start(ctx)
}

// Stop ends it.
func (c *Clock) Stop(ctx context.Context) error {
	if c.loop == nil {
		return nil
	}
	return c.loop.Stop(ctx)
}

// Service is the clock as a part of a Group.
func (c *Clock) Service() Service { return Service{Name: "clock", Start: c.Start, Stop: c.Stop} }

// Look compares the clocks now and reports by how much the wall clock went back
// since the last look, zero if it did not. Each jump is reported once.
func (c *Clock) Look() time.Duration {
	c.mu.Lock()
	wall, elapsed := c.now()
	expected := c.wall.Add(elapsed - c.then)
	if c.wall.IsZero() {
		expected = c.Last.Round(0)
	}
	c.wall, c.then = wall, elapsed
	c.mu.Unlock()
	tolerance := c.Tolerance
	if tolerance == 0 {
		tolerance = 2 * time.Second
	}
	by := expected.Sub(wall)
	if by <= tolerance {
		return 0
	}
	if c.Back != nil {
		c.Back(by)
	}
	return by
}

// started gives the monotonic clock a beginning.
var started = time.Now()

func (c *Clock) now() (time.Time, time.Duration) {
	if c.Now != nil {
		return c.Now()
	}
	now := time.Now()
	return now.Round(0), now.Sub(started)
}
