package lifecycle

import (
	"slices"
	"strings"
	"sync"
	"time"
)

// Named is the status of background work by its name. Names are constants of the code.
type Named struct {
	Name string
	Status
}

// Measured lists the loops of this process that run and what Note was told of, by name.
// Loops of one name are added up: the one that fails is seen.
func Measured() []Named { return watched.list() }

// Note tells of a run of background work that is no Loop.
func Note(name string, err error) { watched.note(name, err) }

var watched = watchlist{loops: map[*Loop]bool{}, notes: map[string]Status{}}

type watchlist struct {
	mu    sync.Mutex
	loops map[*Loop]bool
	notes map[string]Status
}

func (w *watchlist) add(l *Loop) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.loops[l] = true
}

func (w *watchlist) remove(l *Loop) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.loops, l)
}

func (w *watchlist) note(name string, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.notes[name] = w.notes[name].after(err, time.Now())
}

func (w *watchlist) list() []Named {
	w.mu.Lock()
	var all []Named
	for name, s := range w.notes {
		all = append(all, Named{name, s})
	}
	loops := make([]*Loop, 0, len(w.loops))
	for l := range w.loops {
		loops = append(loops, l)
	}
	w.mu.Unlock()
	for _, l := range loops {
		all = append(all, Named{l.Name, l.Status()})
	}
	slices.SortStableFunc(all, func(a, b Named) int { return strings.Compare(a.Name, b.Name) })
	out := all[:0]
	for _, n := range all {
		if len(out) > 0 && out[len(out)-1].Name == n.Name {
			out[len(out)-1].Status = out[len(out)-1].plus(n.Status)
			continue
		}
		out = append(out, n)
	}
	return out
}

// plus is the status of two loops of one name.
func (s Status) plus(o Status) Status {
	s.Runs += o.Runs
	s.Failed += o.Failed
	if o.Failures > s.Failures {
		s.Failures, s.Err = o.Failures, o.Err
	}
	if o.Ended.After(s.Ended) {
		s.Ended = o.Ended
	}
	if o.Worked.Before(s.Worked) {
		s.Worked = o.Worked
	}
	return s
}
