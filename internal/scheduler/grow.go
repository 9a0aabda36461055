package scheduler

// Growth is how many workers more a running workload could have in its pool now, of
// those that it may have: none where somebody waits for the pool or for the same
// limits, none in a delegated pool, where the room that others left is not known,
// and none of a gang that says where its workers are, or has roles.
func (s *State) Growth(id ID) int {
	r := s.running[id]
	if r == nil || s.policy == Goodput { // which decides by itself
		return 0
	}
	return len(s.growth(r))
}

// growth are the rows of the workers more that r could have.
func (s *State) growth(r *run) []int {
	if r.pool == nil || r.Leaving || len(r.Evicted) > 0 || r.together() != "" || r.PerNode > 0 || len(r.Roles) > 0 {
		return nil
	}
	p, more := r.pool, r.most()-r.placed()
	if p.Delegated || p.Closed != "" || more <= 0 || p.reserved != nil || s.awaited(r) {
		return nil
	}
	as := &waiter{Workload: r.Workload, age: s.age, known: &known{shape: &shape{request: r.request, total: r.request, accelerated: true}, queue: r.queue, ceilings: r.ceilings}}
	as.Workers, as.MaxWorkers = 1, more
	if more = s.allowed(as); more == 0 {
		return nil
	}
	return p.rowsFor(as, more, s.now)
}

// awaited reports that a pending work needs a limit that more of r would use.
func (s *State) awaited(r *run) bool {
	for _, c := range r.ceilings {
		if c.first != nil {
			return true
		}
	}
	for _, q := range s.keeping {
		if q.tree() != r.queue.tree() {
			continue
		}
		for i, x := range r.total {
			if x > 0 && q.subtree.part(i) < unlimited/2 {
				return true
			}
		}
	}
	return false
}
