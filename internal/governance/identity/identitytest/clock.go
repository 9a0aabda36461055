package identitytest

import (
	"sync"
	"time"
)

// Clock is a time that a test moves. The zero Clock is right; safe for concurrent use.
type Clock struct {
	mu  sync.Mutex
	off time.Duration
}

// Now is the clock's time.
func (c *Clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Now().Add(c.off)
}

// Move puts the clock forward, or back.
func (c *Clock) Move(by time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.off += by
}
