package remote

import "sync"

// State is whether a model's server is asked.
//
//	closed → open: failures in a row; or looks in a row that found it not ready
//	open → half-open: a look found it ready
//	half-open → closed: a request was answered
//	half-open → open: a request, or a look, failed
type State int8

// The states.
const (
	Closed   State = iota // requests go there
	HalfOpen              // one at a time does
	Open                  // none does
)

// How many failures in a row open a breaker.
const (
	maxFailed = 5 // requests
	maxMissed = 2 // looks
)

// breaker is the state of one model's server. Safe for concurrent use.
type breaker struct {
	opened chan struct{} // has one element when it was opened since somebody looked

	mu     sync.Mutex
	state  State
	turn   uint64 // rises with each change: who entered before says nothing about what is now
	trial  bool   // half-open: a request is there
	failed int    // requests in a row
	missed int    // looks in a row
	opens  int    // since it was closed last
	why    Reason
}

func newBreaker() *breaker { return &breaker{opened: make(chan struct{}, 1)} }

// enter lets a request go there, or not. It tells leave the turn.
func (b *breaker) enter() (turn uint64, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.state == Open || b.state == HalfOpen && b.trial {
		return 0, false
	}
	b.trial = b.state == HalfOpen
	return b.turn, true
}

// outcome is what a request says about its server.
type outcome int8

const (
	unknown outcome = iota // it was given up, say
	good
	bad
)

// leave takes a request's outcome into account. changed says that the state is
// another than before.
func (b *breaker) leave(turn uint64, o outcome, why Reason) (changed bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if turn != b.turn {
		return false
	}
	b.trial = false
	switch o {
	case good:
		b.failed = 0
		if b.state == HalfOpen {
			b.move(Closed, "")
			return true
		}
	case bad:
		b.failed++
		if b.state == HalfOpen || b.failed >= maxFailed {
			b.move(Open, why)
			return true
		}
	case unknown:
	}
	return false
}

// looked takes a look at the server into account: why it is not ready, or "".
func (b *breaker) looked(why Reason) (changed bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if why == "" {
		b.missed = 0
		if b.state == Open {
			b.move(HalfOpen, b.why)
			return true
		}
		return false
	}
	b.missed++
	switch {
	case b.state == Open:
		b.why = why
	case b.state == HalfOpen || b.missed >= maxMissed:
		b.move(Open, why)
		return true
	}
	return false
}

// move changes the state; the lock is held.
func (b *breaker) move(to State, why Reason) {
	b.state, b.why, b.trial, b.failed = to, why, false, 0
	b.turn++
	switch to {
	case Open:
		b.opens++
		select {
		case b.opened <- struct{}{}:
		default:
		}
	case Closed:
		b.opens, b.missed = 0, 0
	case HalfOpen:
	}
}

// now is the state.
func (b *breaker) now() State {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.state
}

// reason is why the breaker is open, and how often it was opened since it was
// closed last.
func (b *breaker) reason() (state State, why Reason, opens int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.state, b.why, b.opens
}
