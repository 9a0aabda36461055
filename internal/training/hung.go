package training

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/falaj-ml/falaj/internal/compute"
	"github.com/falaj-ml/falaj/internal/compute/engine"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/store"
)

// Progress of a run, as its metrics tell.
type Progress struct {
	First, Last Point
	// NoNumbers are the metrics whose latest value is NaN or infinite, by name.
	NoNumbers []string
}

// Point is the newest step of a run's metrics at some time.
type Point struct {
	Step int64     `json:"step"`
	At   time.Time `json:"at,omitzero"`
}

// signs of life of one attempt, and when each last changed.
type life struct {
	attempt AttemptID
	since   time.Time // of its points in the run that it shares with attempts before it
	read    int64     // bytes of its log
	step    Point
	saved   map[string]stamp
	kept    map[string]stamp // as saved, of those who may grow
	room    time.Time        // since when its pool has had room for more workers
	cpu     time.Duration    // of all workers
	busy    float64          // cores, since the last look
	looked  time.Time
	alive   time.Time // the last change of any
	what    map[string]time.Time
}

// idleCores is how busy an attempt's processes may be that only wait: launchers
// look after their children several times a second.
const idleCores = 0.05

// most that is read of a log at one look.
const maxLook = 64 << 20

// watchEvery is how often attempts are checked for signs of life.
const watchEvery = 2 * time.Second

// watching looks after the attempts with a progress_timeout, and those that may
// grow, until ctx is done.
func (s *Execution) watching(ctx context.Context) {
	lives := map[JobID]*life{}
	tick := time.NewTicker(s.cfg.WatchEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if err := s.look(ctx, lives); err != nil && ctx.Err() == nil {
			s.log.WarnContext(ctx, "watching running attempts failed", slog.Any("error", err))
		}
	}
}

// look asks each running attempt with a progress_timeout for a sign of life, and
// stops those that gave none for so long, or that may have more workers.
func (s *Execution) look(ctx context.Context, lives map[JobID]*life) error {
	if s.watched.Swap(0) == 0 { // before the look: who begins meanwhile counts for the next
		clear(lives)
		s.mu.Lock()
		clear(s.hopeful)
		s.mu.Unlock()
		return nil
	}
	var running []Job
	err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		running, err = s.jobStore.Underway(ctx, tx)
		return err
	})
	if err != nil {
		s.watched.Add(1)
		return err
	}
	running = slices.DeleteFunc(running, func(j Job) bool { return !s.looksAt(j) || j.Attempt == "" })
	s.watched.Add(int64(len(running)))
	for id := range lives {
		if !slices.ContainsFunc(running, func(j Job) bool { return j.ID == id }) {
			delete(lives, id)
			s.hopes(id, "")
		}
	}
	var failed []error
	for _, j := range running {
		l := lives[j.ID]
		if l == nil || l.attempt != j.Attempt {
			l = &life{attempt: j.Attempt, alive: s.now(), looked: s.now(), what: map[string]time.Time{}}
			if j.Attempts > 1 {
				l.since = s.now()
			}
			lives[j.ID] = l
		}
		var err error
		if j.elastic() && s.cfg.GrowAfter > 0 {
			err = s.grow(ctx, j, l)
		}
		if j.Spec.Progress == 0 {
			failed = append(failed, fault.Wrap(err, "job %s", j.ID))
			continue
		}
		if serr := s.sign(ctx, j, l); err == nil {
			err = serr
		}
		if err == nil && s.now().Sub(l.alive) >= time.Duration(j.Spec.Progress) {
			err = fault.Wrap(s.hung(ctx, j, l), "stopping it")
		}
		if err != nil { // the others are looked after all the same
			failed = append(failed, fault.Wrap(err, "job %s", j.ID))
		}
	}
	return errors.Join(failed...)
}

// sign checks one sign of life after the other. A missing response is no
// sign that the attempt hangs.
func (s *Execution) sign(ctx context.Context, j Job, l *life) error {
	now := s.now()
	note := func(what string, changed bool) {
		if changed {
			l.alive, l.what[what] = now, now
		}
	}
	wid := compute.WorkloadID(l.attempt)
	r, err := s.cfg.Compute.Logs(ctx, wid, l.read, false)
	if err == nil {
		n, err := io.Copy(io.Discard, io.LimitReader(r, maxLook))
		_ = r.Close()
		note("line of output", n > 0 || err != nil)
		l.read += n
	} else {
		note("line of output", true)
	}
	found, err := checkpoints(s.dirs(j.ID, l.attempt).checkpoints)
	if err != nil {
		return err
	}
	note("checkpoint", !sameStamps(found, l.saved))
	l.saved = found
	members, err := s.cfg.Compute.Members(ctx, wid)
	if err != nil {
		note("computation", true)
		members = nil
	}
	cpu := cpuOf(members)
	if passed := now.Sub(l.looked); passed > 0 {
		l.busy = float64(cpu-l.cpu) / float64(passed)
		note("computation", l.busy > idleCores*float64(max(len(members), 1)))
	}
	l.cpu, l.looked = cpu, now
	// The run last: reading one may be a matter for the journal.
	if j.Run == "" || now.Sub(l.alive) < time.Duration(j.Spec.Progress)/2 {
		return nil
	}
	p, err := s.cfg.Runs.Progress(asLoop(ctx, j, l.attempt), j.Project, j.Run, l.since)
	if err != nil {
		return err
	}
	if at := p.Last.At; at.After(l.alive) && !at.After(now) {
		l.alive, l.what["metric"] = at, at
	}
	note("metric", l.step != Point{} && p.Last != l.step) // whatever the program's clock says
	l.step = p.Last
	return nil
}

func cpuOf(members []engine.Member) (sum time.Duration) {
	for _, m := range members {
		sum += m.CPU
	}
	return sum
}

func sameStamps(a, b map[string]stamp) bool {
	if len(a) != len(b) {
		return false
	}
	for name, st := range a {
		if b[name] != st {
			return false
		}
	}
	return true
}

// hung stops an attempt that gives no sign of life.
func (s *Execution) hung(ctx context.Context, j Job, l *life) error {
	var last []string
	for _, what := range []string{"line of output", "metric", "checkpoint", "computation"} {
		if at, ok := l.what[what]; ok {
			last = append(last, fmt.Sprintf("last %s at %s", what, at.UTC().Format(time.TimeOnly)))
		} else {
			last = append(last, "no "+what)
		}
	}
	why := fmt.Sprintf("made no progress for %s: %s", time.Duration(j.Spec.Progress), strings.Join(last, ", "))
	return s.cfg.DB.Update(ctx, string(j.Project), func(ctx context.Context, tx *store.Tx) error {
		a, err := s.attemptStore.Attempt(ctx, tx, l.attempt)
		if err != nil {
			return err
		}
		return s.ask(ctx, tx, a, Hung, why)
	})
}
