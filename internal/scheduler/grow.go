package scheduler

// Growth is how many workers more a running work could have in its pool now, of
// those that it may have: none where somebody waits for the pool or for the
// project's quota, and none in a delegated pool, where the room that others left
// is not known.
func (s *State) Growth(id ID) int {
	r, ok := s.running[id]
	if !ok {
		return 0
	}
	p := s.pools[r.Pool]
	more := r.most() - max(r.Placed, 1)
	if p == nil || p.Delegated || p.Closed != "" || more <= 0 || s.head[r.Pool] != nil || s.quotaHead[r.Project] != nil {
		return 0
	}
	n, _ := p.room(r.Work, min(more, s.allowed(r.Work)))
	return n
}
