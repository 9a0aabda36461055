package checkpoint

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/worker/archive"
	"github.com/falaj-ml/falaj/internal/worker/settled"
)

const (
	// maxTakes is of how many jobs checkpoints are taken at the same time.
	// More than there are cores to hash with: one that reads from a slow disk does
	// not keep others from it.
	maxTakes = 8
	// The pauses after a checkpoint could not be taken.
	firstPause = time.Second
	lastPause  = time.Minute
	// sweepEvery is how often the checkpoints of ended jobs are checked.
	sweepEvery = time.Hour
)

// look is what the loop knows of a checked directory.
type look struct {
	inode    uint64
	modified time.Time
	err      error // why it is not kept; nil when it is
	tries    int
	again    time.Time // not before; zero for what will not be tried again as it is
	state    string    // what lay there, deeply
	walked   time.Time // when that was compared last
	loose    bool      // files that lie directly in the job's directory
}

// rewalk is after how many settle times a checkpoint that is kept is looked into again: a
// program may write into it in place, which changes nothing of the directory itself.
const rewalk = 2

// refused reports an error that the same directory would make again.
func refused(err error) bool { return fault.Is(err, fault.Invalid) || fault.Is(err, fault.TooLarge) }

// Start begins to look at the directories.
func (s *Service) Start(ctx context.Context) error {
	ctx = identity.With(context.WithoutCancel(ctx), identity.Loop("checkpoints"))
	if err := os.MkdirAll(s.cfg.Dir, 0o700); err != nil {
		return fault.Wrap(err, "creating the checkpoint directory")
	}
	err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		damaged, err := s.cfg.Store.Damaged(ctx, tx)
		if err != nil {
			return err
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, r := range damaged {
			if r.Chunk != "" {
				s.bad[string(Chunk{Digest: r.Chunk}.ref(r.Project).Key)] = true
			}
		}
		return nil
	})
	if err != nil {
		return fault.Wrap(err, "reading damaged checkpoints")
	}
	ctx, cancel := context.WithCancel(ctx)
	s.mu.Lock()
	s.cancel = cancel
	s.mu.Unlock()
	s.running.Go(func() { s.loop(ctx) })
	return nil
}

// Stop ends the loop and what it is taking, and waits. What was not recorded is
// taken after the next Start. It may be called twice.
func (s *Service) Stop() {
	s.mu.Lock()
	cancel := s.cancel
	s.mu.Unlock()
	if cancel != nil {
		cancel()
	}
	s.running.Wait()
}

func (s *Service) loop(ctx context.Context) {
	look := time.NewTicker(s.cfg.Every)
	defer look.Stop()
	var swept time.Time
	names := s.all
	for told := ""; ; {
		err := s.look(ctx, names, func(work func()) { s.running.Go(work) })
		if now := s.now(); err == nil && now.Sub(swept) >= sweepEvery {
			swept = now
			err = s.Sweep(ctx)
		}
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			told = ""
		case err.Error() != told: // once, not every second
			told = err.Error()
			s.log.ErrorContext(ctx, "searching for checkpoints failed", slog.Any("error", err))
		}
		select {
		case <-ctx.Done():
			return
		case <-look.C:
			names = s.all
		case <-s.wake:
			names = s.ended
		}
	}
}

// RunOnce takes all finished checkpoints that are there now and not kept yet,
// and removes directories of ended jobs.
func (s *Service) RunOnce(ctx context.Context) error {
	return s.look(identity.With(ctx, identity.Loop("checkpoints")), s.all, func(work func()) { work() })
}

// all names the jobs that have a directory.
func (s *Service) all() (jobs []string, err error) {
	entries, err := os.ReadDir(s.cfg.Dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fault.Wrap(err, "searching for checkpoints")
	}
	for _, e := range entries {
		if e.IsDir() {
			jobs = append(jobs, e.Name())
		}
	}
	return jobs, nil
}

// ended names the jobs that were released: where jobs end by the hundred, each
// end costs no look at all the others.
func (s *Service) ended() ([]string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Keys(s.released)), nil
}

// look checks jobs' directories; start begins, or does, the work on one.
func (s *Service) look(ctx context.Context, names func() ([]string, error), start func(work func())) error {
	jobs, err := names()
	if err != nil {
		return err
	}
	for _, job := range jobs {
		if !s.enqueue(job) {
			continue
		}
		start(func() {
			defer s.dequeue(job)
			select {
			case s.takes <- struct{}{}:
			case <-ctx.Done():
				return
			}
			defer func() { <-s.takes }()
			if err := s.attend(ctx, job); err != nil && ctx.Err() == nil {
				s.log.ErrorContext(ctx, "storing checkpoints failed", slog.String("job", job), slog.Any("error", err))
			}
		})
	}
	return nil
}

// enqueue reports that a job has work that is neither begun nor awaited.
func (s *Service) enqueue(job string) bool {
	due, pending := s.due(job)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.queued[job] || len(due) == 0 && (pending || !s.released[job]) {
		return false
	}
	s.queued[job] = true
	return true
}

func (s *Service) dequeue(job string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.queued, job)
}

// attend takes what is due of a job, and clears the directory of one that has
// ended when all is kept that can be.
func (s *Service) attend(ctx context.Context, job string) error {
	defer s.lock(job)()
	s.mu.Lock()
	released := s.released[job]
	s.mu.Unlock()
	j, _, err := s.both(ctx, job)
	switch {
	case fault.Is(err, fault.NotFound) && released:
		return s.clear(ctx, job)
	case err != nil:
		return err
	}
	s.know(j)
	if !released || j.Ended.IsZero() {
		due, _ := s.due(job)
		return s.takeAll(ctx, j, due, nil)
	}
	err = s.shed(job)
	if err == nil {
		err = s.takeLeft(ctx, j)
	}
	if err != nil {
		return err
	}
	if _, pending := s.due(job); pending {
		return nil
	}
	return errors.Join(s.clear(ctx, job), s.retain(ctx, job))
}

// shed removes what an ended job left beside its finished checkpoints: it may be what filled
// the disk on which these are to be kept.
func (s *Service) shed(job string) error {
	entries, err := os.ReadDir(s.dir(job))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fault.Wrap(err, "searching for checkpoints")
	}
	for _, e := range entries {
		if (e.IsDir() || e.Type().IsRegular()) && !settled.Unfinished(e.Name()) {
			continue
		}
		if err := archive.Remove(filepath.Join(s.dir(job), e.Name())); err != nil {
			return fault.Wrap(err, "removing leftovers beside the checkpoints of an ended job")
		}
	}
	return nil
}

// takeAll takes the named checkpoints, and drops those that the rules no longer
// keep. What could not be taken is noted, and tried again by the loop. incomplete says of
// some why they may be half written.
func (s *Service) takeAll(ctx context.Context, j Job, names []string, incomplete map[string]string) error {
	if len(names) == 0 {
		return nil
	}
	now, err := finished(s.dir(j.ID))
	if err != nil {
		return err
	}
	slices.SortFunc(names, func(a, b string) int { return cmp.Or(now[a].modified.Compare(now[b].modified), natural(a, b)) })
	slices.SortStableFunc(names, func(a, b string) int { return cmp.Compare(len(incomplete[a]), len(incomplete[b])) }) // complete ones first
	for _, name := range names {
		err := s.short(ctx, j, name, now)
		if err == nil {
			err = s.take(ctx, j, name, incomplete[name])
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		s.remember(ctx, j.ID, name, now[name], err)
	}
	s.mu.Lock()
	maps.DeleteFunc(s.looked, func(key string, _ look) bool {
		name, mine := strings.CutPrefix(key, j.ID+"/")
		_, there := now[name]
		return mine && !there
	})
	s.mu.Unlock()
	return s.retain(ctx, j.ID)
}

// natural orders step-9 before step-10, so that numbers tell the order also of
// checkpoints that are found together.
func natural(a, b string) int {
	return cmp.Or(cmp.Compare(len(a), len(b)), strings.Compare(a, b))
}

// remember notes how a take went.
func (s *Service) remember(ctx context.Context, job, name string, seen look, err error) {
	key := job + "/" + name
	if _, gone := os.Lstat(filepath.Join(s.dir(job), name)); errors.Is(gone, fs.ErrNotExist) && !seen.loose {
		return // its program has removed it: nothing to try again
	}
	s.mu.Lock()
	before := s.looked[key]
	seen.err, seen.state, seen.walked = err, s.found[key], s.now()
	delete(s.found, key)
	switch {
	case err != nil && !refused(err):
		seen.tries = before.tries + 1
		seen.again = s.now().Add(min(firstPause<<min(before.tries, 20), lastPause))
	}
	s.looked[key] = seen
	s.mu.Unlock()
	if err != nil && (before.err == nil || before.err.Error() != err.Error()) {
		s.log.WarnContext(ctx, "storing a checkpoint failed", slog.String("job", job), slog.String("name", name), slog.Any("error", err))
	}
}

// due gives the complete checkpoints of a job that are to be taken now; pending
// says that others are to be tried again later.
func (s *Service) due(job string) (names []string, pending bool) {
	all, err := finished(s.dir(job))
	if err != nil {
		return nil, true
	}
	if len(all) == 0 {
		return nil, false
	}
	s.mu.Lock()
	rules, known := s.rules[job]
	_, halted := s.halted[job]
	looked := map[string]look{}
	for name := range all {
		if l, ok := s.looked[job+"/"+name]; ok {
			looked[name] = l
		}
	}
	s.mu.Unlock()
	if !known { // whoever attends to the job learns them
		return slices.Collect(maps.Keys(all)), false
	}
	root, err := s.open(job, "")
	if err != nil {
		return nil, true
	}
	defer root.Close()
	now := s.now()
	for name, l := range all {
		was, before := looked[name]
		same := before && was.inode == l.inode && was.modified.Equal(l.modified)
		switch {
		case same && was.err == nil && !l.loose && now.Sub(was.walked) < rewalk*rules.Settle:
			continue
		case same && was.err != nil && (was.again.IsZero() || now.Before(was.again)):
			pending = pending || !was.again.IsZero()
			continue
		case halted: // how it ended says what is complete
			continue
		}
		state, complete, err := s.complete(root, job, name, l, rules, now)
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil: // the take says why
			names = append(names, name)
		case !complete:
		case before && was.err == nil && was.state == state:
			was.walked, was.inode, was.modified = now, l.inode, l.modified
			s.mu.Lock()
			s.looked[job+"/"+name] = was
			s.mu.Unlock()
		default:
			s.mu.Lock()
			s.found[job+"/"+name] = state
			s.mu.Unlock()
			names = append(names, name)
		}
	}
	return names, pending
}

// complete reports whether what lies at a name is complete while its program runs, and
// identifies it. Of files that lie directly in the directory those that are complete count,
// once they are all of the kinds that there are.
func (s *Service) complete(root *os.Root, job, name string, l look, rules settled.Rules, now time.Time) (state string, complete bool, err error) {
	if !l.loose {
		st, err := settled.Look(root, name)
		if err != nil {
			return "", false, err
		}
		return st.Signature, rules.Complete(st, s.seen.Since(job+"/"+name, st, now), now), nil
	}
	files, rest, state, err := s.split(root, job, rules, now)
	return state, len(files) > 0 && settled.Covers(files, rest), err
}

// finished lists what has a final name: directories, and as one the files beside them.
func finished(dir string) (map[string]look, error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fault.Wrap(err, "searching for checkpoints")
	}
	found := map[string]look{}
	var loose look
	sum := fnv.New64a()
	for _, e := range entries {
		if !e.IsDir() && !e.Type().IsRegular() || settled.Unfinished(e.Name()) {
			continue
		}
		info, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fault.Wrap(err, "searching for checkpoints")
		}
		l := look{modified: info.ModTime()}
		if sys, ok := info.Sys().(*syscall.Stat_t); ok {
			l.inode = sys.Ino
		}
		if e.IsDir() {
			found[e.Name()] = l
			continue
		}
		_, _ = fmt.Fprintf(sum, "%q %d %d %d\n", e.Name(), l.inode, info.Size(), l.modified.UnixNano())
		if loose.loose = true; l.modified.After(loose.modified) {
			loose.modified = l.modified
		}
	}
	if _, taken := found[settled.LooseName]; loose.loose && !taken {
		loose.inode = sum.Sum64()
		found[settled.LooseName] = loose
	}
	return found, nil
}

// Release reports the end of a job: its directory goes once all is kept, which
// is at once where there is nothing.
func (s *Service) Release(ctx context.Context, job string) error {
	if none, err := s.none(ctx, job); none || err != nil {
		return err
	}
	s.mu.Lock()
	s.released[job] = true
	s.mu.Unlock()
	select {
	case s.wake <- struct{}{}:
	default:
	}
	return nil
}

// none removes the directory of a job that has made no checkpoint.
func (s *Service) none(ctx context.Context, job string) (bool, error) {
	defer s.lock(job)()
	_, records, err := s.both(ctx, job)
	if fault.Is(err, fault.NotFound) {
		return false, nil
	}
	if err != nil || len(records) > 0 {
		return false, err
	}
	s.mu.Lock()
	for key := range s.looked {
		if strings.HasPrefix(key, job+"/") {
			s.mu.Unlock()
			return false, nil
		}
	}
	s.mu.Unlock()
	err = os.Remove(s.dir(job)) // only an empty one
	return err == nil || errors.Is(err, fs.ErrNotExist), nil
}

// clear removes a job's directory and what is known of it.
func (s *Service) clear(ctx context.Context, job string) error {
	if err := archive.Remove(s.dir(job)); err != nil {
		return fault.Wrap(err, "removing the checkpoint directory of an ended job")
	}
	err := s.cfg.DB.Update(ctx, "", func(ctx context.Context, tx *store.Tx) error { return s.cfg.Store.Unsee(ctx, tx, job) })
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.released, job)
	delete(s.rules, job)
	delete(s.halted, job)
	s.seen.Forget(job + "/")
	maps.DeleteFunc(s.looked, func(key string, _ look) bool { return strings.HasPrefix(key, job+"/") })
	maps.DeleteFunc(s.found, func(key, _ string) bool { return strings.HasPrefix(key, job+"/") })
	return nil
}

// Notes says in words which checkpoints of a job are not kept, and why.
func (s *Service) Notes(job string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var notes []string
	for key, l := range s.looked {
		name, mine := strings.CutPrefix(key, job+"/")
		switch {
		case !mine || l.err == nil:
		case l.again.IsZero():
			notes = append(notes, strings.TrimSpace(fmt.Sprintf("checkpoint %s is not stored: %v. %s", name, l.err, fault.HintOf(l.err))))
		default:
			notes = append(notes, fmt.Sprintf("checkpoint %s is not stored yet: %v; retried every %s while the job continues", name, l.err, lastPause))
		}
	}
	slices.Sort(notes)
	return notes
}

// Sweep drops what the rules of jobs no longer keep, above all of those that
// ended some time ago.
func (s *Service) Sweep(ctx context.Context) error {
	for after := ""; ; {
		var jobs []string
		err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
			jobs, err = s.cfg.Store.JobsWith(ctx, tx, after, batch)
			return err
		})
		if err != nil || len(jobs) == 0 {
			return err
		}
		for _, job := range jobs {
			if err := s.retain(ctx, job); err != nil {
				return err
			}
		}
		after = jobs[len(jobs)-1]
	}
}
