package audit

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/store"
)

// catchUpTime is how long a reader waits for the entry of an erasure.
const catchUpTime = 10 * time.Second

// erasures is which entries were erased, as entries of the log say that were proven.
type erasures struct {
	mu    sync.Mutex
	known map[int64]Erased
	upto  int64 // entries before this one were inspected
}

// Problem is an entry that is not what was signed.
type Problem struct {
	Index   int64
	What    string
	columns bool // only what repeats the record for filters
}

// inspect proves leaves as they were read in the transaction: content, columns and
// place in the signed tree. Blanks that no known erasure names come back in blank: the
// erasure's entry may not be in the log yet.
func (s *Sequencer) inspect(ctx context.Context, tx *store.Tx, leaves []Leaf) (problems []Problem, blank []Leaf, err error) {
	forged, err := s.proveLeaves(ctx, tx, leaves)
	if err != nil {
		return nil, nil, err
	}
	erased := s.erased.of(leaves)
	for _, l := range leaves {
		if forged[l.Index] {
			problems = append(problems, Problem{Index: l.Index, What: "its leaf is not in the signed tree"})
			continue
		}
		if _, ok := erased[l.Index]; l.Record == nil && !ok {
			blank = append(blank, l)
			continue
		}
		if d := l.check(erased); d != nil {
			problems = append(problems, Problem{Index: l.Index, What: d.what, columns: d.columns})
		}
	}
	return problems, blank, nil
}

// of gives what is known of the blank ones among leaves.
func (e *erasures) of(leaves []Leaf) map[int64]Erased {
	var some map[int64]Erased
	for _, l := range leaves {
		if l.Record != nil {
			continue
		}
		e.mu.Lock()
		one, ok := e.known[l.Index]
		e.mu.Unlock()
		if ok {
			if some == nil {
				some = map[int64]Erased{}
			}
			some[l.Index] = one
		}
	}
	return some
}

// resolve looks for the entries that say that the blank leaves were erased, and gives
// those leaves that none names, or another. Not in a transaction.
func (s *Sequencer) resolve(ctx context.Context, blank []Leaf) ([]Problem, error) {
	if len(blank) == 0 {
		return nil, nil
	}
	if err := s.learnErasures(ctx); err != nil {
		return nil, err
	}
	known := s.erased.of(blank)
	if len(known) < len(blank) {
		// The transaction that blanked it left the erasure's entry to be folded.
		if err := s.catchUp(ctx); err != nil {
			return nil, err
		}
		if err := s.learnErasures(ctx); err != nil {
			return nil, err
		}
		known = s.erased.of(blank)
	}
	var problems []Problem
	for _, l := range blank {
		if d := l.check(known); d != nil {
			problems = append(problems, Problem{Index: l.Index, What: d.what, columns: d.columns})
		}
	}
	return problems, nil
}

// catchUp folds all rows that are committed. Those of the newest transactions are withheld
// while an older one runs. Error: fault.Unavailable when it runs on.
func (s *Sequencer) catchUp(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, catchUpTime)
	defer cancel()
	newest, err := s.cfg.DB.Newest(ctx, stream)
	for err == nil {
		changed := s.cfg.DB.Changed(stream)
		if _, err = s.RunOnce(ctx); err != nil {
			break
		}
		var at store.Position
		if err = s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
			at, err = tx.Cursor(ctx, rowsCursor)
			return err
		}); err != nil || at.Compare(newest) >= 0 {
			break
		}
		select {
		case <-changed:
		case <-ctx.Done():
			err = ctx.Err()
		}
	}
	if err != nil && ctx.Err() != nil {
		return fault.New(fault.Unavailable, "the newest audit entries are not in the log yet: an older transaction of the database is still running").
			WithHint("Try again. In PostgreSQL, pg_stat_activity lists the transaction, also one of another database of the server.")
	}
	return err
}

// learnErasures reads the entries of erasures that came into the log since the last
// time. An entry that was hidden from the search names nothing, so its blanks are found.
func (s *Sequencer) learnErasures(ctx context.Context) error {
	e := &s.erased
	e.mu.Lock()
	upto := e.upto
	e.mu.Unlock()
	fresh := map[int64]Erased{}
	size := upto
	err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		size, err = s.cfg.Store.Size(ctx, tx)
		return err
	})
	for _, action := range []string{ActionErase, actionAccept} {
		for before := size; before > upto && err == nil; {
			before, err = s.learnFrom(ctx, Filter{Action: action, Outcome: Done}, before, upto, fresh)
		}
	}
	if err != nil {
		return fault.Wrap(err, "read the erasures of the audit log")
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.known == nil {
		e.known = map[int64]Erased{}
	}
	maps.Copy(e.known, fresh)
	e.upto = max(e.upto, size)
	return nil
}

// learnFrom adds what a page of entries of erasures names, and gives where the next begins.
func (s *Sequencer) learnFrom(ctx context.Context, f Filter, before, upto int64, fresh map[int64]Erased) (next int64, err error) {
	var leaves []Leaf
	bad := map[int64]bool{} // these say nothing that can be believed
	err = s.view(ctx, func(ctx context.Context, tx *store.Tx) error {
		clear(bad)
		if leaves, next, err = s.cfg.Store.Find(ctx, tx, f, before, exportPage); err != nil {
			return err
		}
		leaves = slices.DeleteFunc(leaves, func(l Leaf) bool { return l.Index < upto || l.Record == nil })
		problems, _, err := s.inspect(ctx, tx, leaves)
		for _, p := range problems {
			bad[p.Index] = true
		}
		return err
	})
	for _, l := range leaves {
		if bad[l.Index] {
			continue
		}
		for _, one := range erasedIn(l.Index, l.Record) {
			fresh[one.Index] = one
		}
	}
	return next, err
}

// prove inspects leaves that a reader is about to get, outside of the transaction that
// read them, and gives what is wrong with which. What is wrong is a finding: see found.
func (s *Sequencer) prove(ctx context.Context, leaves []Leaf) (map[int64]string, error) {
	var problems []Problem
	var blank []Leaf
	err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		problems, blank, err = s.inspect(ctx, tx, leaves)
		return err
	})
	if err == nil {
		var more []Problem
		more, err = s.resolve(ctx, blank)
		problems = append(problems, more...)
	}
	if Contradicted(err) {
		s.found(err)
		bad := make(map[int64]string, len(leaves))
		for _, l := range leaves {
			bad[l.Index] = "the log differs from the signed one"
		}
		return bad, nil
	}
	if err != nil {
		return nil, err
	}
	if len(problems) == 0 {
		return nil, nil
	}
	s.found(finding(problems))
	bad := make(map[int64]string, len(problems))
	for _, p := range problems {
		bad[p.Index] = p.What
	}
	return bad, nil
}

// finding is the error that says what is wrong with entries.
func finding(problems []Problem) error {
	p := problems[0]
	more := ""
	if n := len(problems) - 1; n > 0 {
		more = fmt.Sprintf(" (and %d more)", n)
	}
	return changedLog(fmt.Sprintf("entry %d: %s%s", p.Index, p.What, more))
}

// found raises a finding: from now on nothing may be changed. Other errors are not its
// concern.
func (s *Sequencer) found(err error) {
	if !Contradicted(err) {
		return
	}
	s.round.Lock()
	defer s.round.Unlock()
	if s.broken == nil && !s.accepting {
		_ = s.settle(err)
	}
}
