package event

import "time"

// SetLease shortens the time until another process takes over.
func (s *Subscription) SetLease(d time.Duration) { s.lease = d }
