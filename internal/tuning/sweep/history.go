package sweep

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/tuning"
	"github.com/falaj-ml/falaj/internal/tuning/search"
	"github.com/falaj-ml/falaj/internal/tuning/space"
	"github.com/falaj-ml/falaj/internal/tuning/stop"
	"github.com/falaj-ml/falaj/internal/tuning/trial"
)

// history is what was read of a study. A trial that has ended does not change, so that
// only those that had not, and new ones, are read again: a round costs what happened, not
// what ever did. It is never changed in place.
type history struct {
	rule   stop.Rule              // of the sweep: what of ended trials' reports is kept is what it looks at
	trials []trial.Trial          // by number
	last   tuning.TrialID         // the newest
	open   map[int]tuning.TrialID // of those that had not ended, by number
	bytes  int                    // what it takes, about
	theirs map[int]bool           // of those that clients of Optuna's added, by number
	used   time.Time
}

// study names a study among those of all projects.
type study struct {
	project project.Name
	id      tuning.StudyID
}

// Histories, and what was learnt of them, take this much memory together; what is more is
// read anew each time.
const maxHistories = 128 << 20

// forgotten is after how long a history that nobody looked at is.
const forgotten = time.Minute

// page is how many trials are read at once: a client's may have attributes of a MiB each.
const page = 250

// history reads what is new of a sweep's trials.
func (s *Service) history(ctx context.Context, tx *store.Tx, w Sweep) (history, error) {
	key := study{w.Project, w.Study}
	h, ok := s.histories[key]
	if !ok || h.rule != w.Spec.Stop {
		h = history{rule: w.Spec.Stop}
	}
	before, l := h.open, through(w)
	h.trials, h.open, h.used = slices.Clone(h.trials), map[int]tuning.TrialID{}, s.now()
	var open []tuning.TrialID
	for _, id := range before {
		open = append(open, id)
	}
	for part := range slices.Chunk(open, page) {
		some, err := s.cfg.Studies.Store.Trials(ctx, tx, w.Project, w.Study, math.MaxInt64, part, page)
		if err != nil {
			return h, err
		}
		for _, t := range some {
			if err := h.add(l, t); err != nil {
				return h, err
			}
		}
	}
	for {
		some, err := s.cfg.Studies.Store.Trials(ctx, tx, w.Project, w.Study, h.last, nil, page)
		if err != nil {
			return h, err
		}
		if len(some) > 0 {
			if h.theirs, err = s.theirs(ctx, tx, w, h.theirs, some); err != nil {
				return h, err
			}
		}
		for _, t := range some {
			if err := h.add(l, t); err != nil {
				return h, err
			}
			h.last = t.ID
		}
		if len(some) < page {
			return h, nil
		}
	}
}

// theirs adds those of new trials that have no task: no sweep made them.
func (s *Service) theirs(ctx context.Context, tx *store.Tx, w Sweep, before map[int]bool, some []tuning.Trial) (map[int]bool, error) {
	tasks, err := s.cfg.Store.TasksOf(ctx, tx, w.Project, w.Study, int(some[0].Number), int(some[len(some)-1].Number))
	if err != nil || len(tasks) == len(some) {
		return before, err
	}
	theirs := map[int]bool{}
	maps.Copy(theirs, before)
	for _, t := range some {
		theirs[int(t.Number)] = true
	}
	for _, t := range tasks {
		delete(theirs, t.Number)
	}
	return theirs, nil
}

// add takes a trial: the next one, or one that had not ended.
func (h *history) add(l lens, t tuning.Trial) error {
	as := l.seen(t)
	if as.State == trial.Running {
		h.open[as.Number] = t.ID
	} else {
		as.Reports = h.rule.Kept(as)
		h.bytes += 256 + 64*len(as.Params) + 40*len(as.Reports)
	}
	switch {
	case as.Number < len(h.trials):
		h.trials[as.Number] = as
	case as.Number == len(h.trials): // numbers have no gaps, and follow the order of IDs
		h.trials = append(h.trials, as)
	default:
		return fault.New(fault.Internal, "study %d has a trial %d without its preceding trials", t.Study, as.Number)
	}
	return nil
}

// keep remembers histories for the next round.
func (s *Service) keep(read map[study]history) {
	maps.Copy(s.histories, read)
	total := 0
	for key, h := range s.histories {
		if _, now := read[key]; !now && s.now().Sub(h.used) > forgotten {
			delete(s.histories, key)
			continue
		}
		total += h.bytes
	}
	for key, h := range s.histories { // whichever; those of now last
		if _, now := read[key]; !now && total > maxHistories {
			delete(s.histories, key)
			total -= h.bytes
		}
	}
	for _, l := range s.learnt {
		total += l.bytes
	}
	if total > maxHistories {
		clear(s.histories)
		clear(s.learnt)
	}
}

// learnt is what a sweep knows from earlier ones, and of which of their trials it was made.
type learnt struct {
	of     string
	trials []trial.Trial
	bytes  int // that they take, about
}

// warm reads what the trials of the sweeps that one begins with teach.
func (s *Service) warm(ctx context.Context, tx *store.Tx, w Sweep, read map[study]history) (learnt, error) {
	sources, err := s.sources(identity.With(ctx, w.By), tx, w, nil)
	if err != nil || len(sources) == 0 {
		return learnt{}, err
	}
	var of strings.Builder
	var all []trial.Trial
	for _, from := range sources {
		h, err := s.history(ctx, tx, from)
		if err != nil {
			return learnt{}, err
		}
		read[study{from.Project, from.Study}] = h
		fmt.Fprint(&of, from.Study, ":", len(h.trials)-len(h.open), "/", len(h.trials), " ")
		all = append(all, h.trials...)
	}
	had := s.learnt[study{w.Project, w.Study}]
	if had.of == of.String() {
		return had, nil
	}
	for i := range all { // numbers of several sweeps
		all[i].Number = i
	}
	taught := learnt{of: of.String(), trials: search.Warm(space.Space{Parameters: w.Spec.Parameters}, all)}
	taught.bytes = len(taught.trials) * (256 + 64*len(w.Spec.Parameters))
	return taught, nil
}
