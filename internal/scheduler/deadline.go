package scheduler

import (
	"fmt"
	"time"
)

// urgentLead is how much earlier than the others of its line an urgent work counts as
// submitted: more than any priority is worth, and still a bound on how long those
// others wait for urgent ones.
const urgentLead = 24 * time.Hour

// urgentFrom is when a workload becomes urgent to meet its deadline: its expected run time before the
// deadline, and a margin of a quarter of that time and a minute. Of workloads that were submitted in
// time, the one with least slack becomes urgent first. Without an expected run time it is half of
// the time from the submission to the deadline.
func (w *Workload) urgentFrom() time.Time {
	from := w.Due.Add(-w.Expected - w.Expected/4 - time.Minute)
	if w.Expected == 0 {
		from = w.Submitted.Add(w.Due.Sub(w.Submitted) / 2)
	}
	if from.Before(w.Submitted) {
		return w.Submitted
	}
	return from
}

// hopeless is the time from which it would have to be twice as fast as expected. From then on
// it is no longer urgent, so that it delays no workload that can still meet its deadline.
func (w *Workload) hopeless() time.Time { return w.Due.Add(-w.Expected / 2) }

// urgent reports that it must go first now.
func (w *Workload) urgent(now time.Time) bool {
	return !w.Due.IsZero() && now.Before(w.hopeless()) && !now.Before(w.urgentFrom())
}

// standing is when a workload counts as submitted in its line.
func (s *State) standing(w *waiter) time.Time {
	switch {
	case w.hurries:
		return w.urgentFrom().Add(-urgentLead)
	case s.policy == Fifo || s.policy == Goodput:
		return w.Submitted
	}
	at := w.Submitted.Add(-time.Duration(w.Priority) * aging)
	if s.policy == Tiresias && w.second() {
		at = at.Add(behind)
	}
	return at
}

// hasten finds those that became urgent, or no longer are, and gives them back to
// be lined up again.
func (s *State) hasten() (changed []Workload) {
	if s.turn.After(s.now) {
		return nil
	}
	for id := range s.dated {
		w := s.waiting[id]
		if now := w.urgent(s.now); now != w.hurries {
			s.lineOf(&w.Workload).stale = true
			s.waiting[id] = &waiter{Workload: w.Workload, known: w.known, age: w.age, hurries: now}
			changed = append(changed, w.Workload)
		}
	}
	s.turn = time.Time{}
	return changed
}

// nextTurn is when the next workload becomes urgent or late; zero is never.
func (s *State) nextTurn() time.Time {
	if !s.turn.IsZero() {
		return s.turn
	}
	for id := range s.dated {
		w := s.waiting[id]
		for _, at := range []time.Time{w.urgentFrom(), w.hopeless()} {
			if at.After(s.now) && (s.turn.IsZero() || at.Before(s.turn)) {
				s.turn = at
			}
		}
	}
	return s.turn
}

// late says that a deadline cannot be met any more; false when it can, as far as
// is known.
func (w *Workload) late(now time.Time) (Reason, bool) {
	if w.Due.IsZero() || !now.Add(w.Expected).After(w.Due) {
		return Reason{}, false
	}
	text := "its deadline, " + w.Due.UTC().Format(time.RFC3339)
	if !now.Before(w.Due) {
		return Reason{Step: "admit", Code: Late, Text: text + ", has passed"}, true
	}
	return Reason{Step: "admit", Code: Late, Text: fmt.Sprintf("%s, cannot be met: it is expected to run for %s", text, w.Expected.Round(time.Second))}, true
}
