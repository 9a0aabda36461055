package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/worker/archive"
	"github.com/falaj-ml/falaj/internal/worker/settled"
)

// asidePrefix begins the name of what may be half written, once its program has ended: it
// begins with a dot, so it is not taken for a checkpoint, and the next attempt removes it.
const asidePrefix = ".incomplete-"

// trusted is after how many settle times a checkpoint counts as complete although it has
// less than the one before it.
const trusted = 60

// know notes by which rules the checkpoints of a job are complete.
func (s *Service) know(j Job) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rules[j.ID] = j.Rules.Settled(s.cfg.Settle)
}

// Halting says that no program of a job runs any more: nothing comes to rest by itself from
// now on. Halted follows, with how it ended.
func (s *Service) Halting(job string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, known := s.halted[job]; !known {
		s.halted[job] = settled.End{At: s.now()}
	}
}

// begun says that a program of the job will run, and gives what was set aside before.
func (s *Service) begun(job string) (notes []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	notes = s.aside[job]
	delete(s.aside, job)
	delete(s.halted, job)
	s.seen.Forget(job + "/")
	return notes
}

// Halted takes what an ended program of a job has left. When the job runs again, what may be
// half written is set aside: programs resume from the newest name that they find. The error
// says what could not be kept; the loop tries it again.
func (s *Service) Halted(ctx context.Context, job string, end settled.End, again bool) error {
	defer s.lock(job)()
	s.mu.Lock()
	s.halted[job] = end
	s.mu.Unlock()
	names, err := finished(s.dir(job))
	if err != nil || len(names) == 0 {
		return err
	}
	j, _, err := s.both(ctx, job)
	if err != nil {
		return err
	}
	s.know(j)
	if err := s.takeLeft(ctx, j); err != nil {
		return err
	}
	if again {
		if err := s.setAside(ctx, j); err != nil {
			return err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for name := range names {
		if l := s.looked[job+"/"+name]; l.err != nil {
			return fault.Wrap(l.err, "checkpoint %s", name)
		}
	}
	return nil
}

// takeLeft takes all that an ended program left: what is complete, and apart from it what
// may be half written.
func (s *Service) takeLeft(ctx context.Context, j Job) error {
	s.mu.Lock()
	if _, known := s.halted[j.ID]; !known { // an earlier process knew
		s.halted[j.ID] = settled.End{At: j.Ended}
	}
	s.mu.Unlock()
	names, err := finished(s.dir(j.ID))
	if err != nil || len(names) == 0 {
		return err
	}
	part, err := s.halfWritten(ctx, j)
	if err != nil {
		return err
	}
	return s.takeAll(ctx, j, slices.Collect(maps.Keys(names)), part)
}

// halfWritten says why what an ended program left may be half written, by name.
func (s *Service) halfWritten(ctx context.Context, j Job) (map[string]string, error) {
	s.mu.Lock()
	rules, end := s.rules[j.ID], s.halted[j.ID]
	s.mu.Unlock()
	all, err := finished(s.dir(j.ID))
	if err != nil {
		return nil, err
	}
	root, err := s.open(j.ID, "")
	if err != nil {
		return nil, err
	}
	defer root.Close()
	part := map[string]string{}
	for name, l := range all {
		if l.loose {
			files, rest, _, err := s.split(root, j.ID, rules, s.now())
			if err != nil {
				return nil, err
			}
			if !settled.Covers(files, rest) {
				part[name] = fmt.Sprintf("it may be incomplete: %s changed shortly before the program was stopped", rest[0])
			}
			continue
		}
		st, err := settled.Look(root, name)
		if err != nil { // the take says why
			continue
		}
		switch {
		case st.Temporary != "":
			part[name] = fmt.Sprintf("it may be incomplete: it contains the temporary file %.200q", st.Temporary)
		case !rules.Left(st, end):
			// A small one of a new name may have been renamed within a tick of the clock: it counts when it
			// has all that the one before it has.
			if st.Quick && rules.Ready == "" {
				less, before, err := s.less(ctx, j.ID, name, st.Files, 1)
				if err != nil {
					return nil, err
				}
				if before && less == "" {
					continue
				}
			}
			part[name] = "it may be incomplete: it changed shortly before the program was stopped"
			if rules.Ready != "" {
				part[name] = fmt.Sprintf("it may be incomplete: the program was stopped before %.200q was written and stable", rules.Ready)
			}
		case !end.InOrder && !st.Renamed && rules.Ready == "" && rules.Settle >= 0:
			less, _, err := s.less(ctx, j.ID, name, st.Files, 2)
			if err != nil {
				return nil, err
			}
			if less != "" {
				part[name] = "it may be incomplete: " + less
			}
		}
	}
	return part, nil
}

// setAside hides from the next program what may be half written. Where that is a file beside
// others, these go back to what they were together when they were last complete: Restore
// brings what is missing.
func (s *Service) setAside(ctx context.Context, j Job) error {
	part, err := s.halfWritten(ctx, j)
	if err != nil {
		return err
	}
	s.mu.Lock()
	rules := s.rules[j.ID]
	s.mu.Unlock()
	root, err := s.open(j.ID, "")
	if err != nil {
		return err
	}
	defer root.Close()
	hide := func(name string) error {
		to := asidePrefix + name
		if err := archive.Remove(filepath.Join(s.dir(j.ID), to)); err != nil {
			return fault.Wrap(err, "removing an older checkpoint that may be incomplete")
		}
		return fault.Wrap(root.Rename(name, to), "setting aside checkpoint %s", name)
	}
	var notes []string
	if s.isLoose(j.ID, settled.LooseName) {
		files, rest, _, err := s.split(root, j.ID, rules, s.now())
		if err != nil {
			return err
		}
		if !settled.Covers(files, rest) {
			stale, err := s.stale(ctx, root, j.ID, files)
			if err != nil {
				return err
			}
			rest = append(rest, stale...)
		}
		for _, name := range rest {
			notes = append(notes, fmt.Sprintf("file %s was set aside: it does not belong to a complete checkpoint", name))
			if err := hide(name); err != nil {
				return err
			}
		}
		delete(part, settled.LooseName)
	}
	for _, name := range slices.Sorted(maps.Keys(part)) {
		notes = append(notes, fmt.Sprintf("checkpoint %s was set aside: %s", name, part[name]))
		if err := hide(name); err != nil {
			return err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(notes) > 0 {
		s.aside[j.ID] = notes
	}
	return nil
}

// stale are those of the files that are not what the newest complete checkpoint has of them:
// with an older file of another name they make no checkpoint. Where there is none, all are.
func (s *Service) stale(ctx context.Context, root *os.Root, job string, files []string) ([]string, error) {
	_, all, err := s.both(ctx, job)
	if err != nil {
		return nil, err
	}
	var kept map[string]File
	for _, r := range good(all) {
		m, release, err := s.manifest(ctx, r)
		release()
		if err != nil || !m.Loose { // a damaged one brings nothing back
			continue
		}
		kept = map[string]File{}
		for _, f := range m.Files {
			kept[f.Path] = f
		}
		break
	}
	var out []string
	for _, name := range files {
		info, err := root.Lstat(name)
		if err != nil {
			return nil, gone(err)
		}
		f, known := kept[name]
		if kept == nil || known && (f.Size != info.Size() || !f.Modified.Equal(info.ModTime())) {
			out = append(out, name)
		}
	}
	return out, nil
}

// isLoose reports that a name stands for the files that lie directly in a job's directory.
func (s *Service) isLoose(job, name string) bool {
	if name != settled.LooseName {
		return false
	}
	info, err := os.Lstat(filepath.Join(s.dir(job), name))
	return err != nil || !info.IsDir()
}

// looseComplete are the files that make up a checkpoint now, or all.
func (s *Service) looseComplete(root *os.Root, job string, all bool) ([]string, error) {
	s.mu.Lock()
	rules := s.rules[job]
	s.mu.Unlock()
	files, rest, _, err := s.split(root, job, rules, s.now())
	if all {
		files = append(files, rest...)
		slices.Sort(files)
	}
	return files, err
}

// split tells the complete files that lie directly in a job's directory from the rest, and
// identifies the complete ones.
func (s *Service) split(root *os.Root, job string, rules settled.Rules, now time.Time) (files, rest []string, state string, err error) {
	s.mu.Lock()
	end, halted := s.halted[job]
	s.mu.Unlock()
	entries, err := fs.ReadDir(root.FS(), ".")
	if err != nil {
		return nil, nil, "", gone(err)
	}
	rules.Ready = "" // of a directory
	var all strings.Builder
	for _, name := range settled.Loose(entries) {
		st, err := settled.Look(root, name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, nil, "", err
		}
		whole := rules.Left(st, end)
		if !halted {
			whole = rules.Complete(st, s.seen.Since(job+"/"+settled.LooseName+"/"+name, st, now), now)
		}
		if !whole {
			rest = append(rest, name)
			continue
		}
		files = append(files, name)
		fmt.Fprintln(&all, name, st.Signature)
	}
	return files, rest, all.String(), nil
}

// less says what a checkpoint lacks of the newest complete one of its kind, by the names of
// its files and their sizes together, of which a part may be missing; empty when nothing.
// known is false where there is none before it, or one of the same name, which it replaces.
func (s *Service) less(ctx context.Context, job, name string, files map[string]int64, part int64) (words string, known bool, err error) {
	var m Manifest
	var before Record
	err = s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		all, err := s.cfg.Store.Checkpoints(ctx, tx, job)
		if err != nil {
			return err
		}
		all = good(all)
		i := slices.IndexFunc(all, func(r Record) bool { return settled.Kind(r.Name) == settled.Kind(name) })
		if i < 0 {
			return nil
		}
		before = all[i]
		m, err = s.cfg.Store.Manifest(ctx, tx, before.ID)
		return err
	})
	if err != nil {
		return "", false, err
	}
	known = before.ID != "" && before.Name != name
	have, size := map[string]bool{}, int64(0)
	for p, n := range files {
		have[settled.Kind(p)] = true
		size += n
	}
	for _, f := range m.Files {
		if f.Size > 0 && !have[settled.Kind(f.Path)] {
			return fmt.Sprintf("it lacks %.200s, which checkpoint %s has", f.Path, before.Name), known, nil
		}
	}
	if size < before.Bytes/part {
		return fmt.Sprintf("it has %d bytes, checkpoint %s has %d", size, before.Name, before.Bytes), known, nil
	}
	return "", known, nil
}

// short refuses for a while a checkpoint that only seems to be complete while its program
// runs, because the program pauses: it has less than the one before it. It counts when the
// program has begun the next one, or after a long time.
func (s *Service) short(ctx context.Context, j Job, name string, all map[string]look) error {
	s.mu.Lock()
	rules := s.rules[j.ID]
	_, halted := s.halted[j.ID]
	s.mu.Unlock()
	if halted || rules.Settle < 0 || rules.Ready != "" {
		return nil
	}
	for other, l := range all {
		if other != name && settled.Kind(other) == settled.Kind(name) && l.modified.After(all[name].modified) {
			return nil
		}
	}
	root, err := s.open(j.ID, "")
	if err != nil {
		return err
	}
	defer root.Close()
	names := []string{name}
	if all[name].loose {
		if names, err = s.looseComplete(root, j.ID, false); err != nil {
			return err
		}
	}
	files, now := map[string]int64{}, s.now()
	var since time.Time // when the last of it came to rest
	for _, n := range names {
		st, err := settled.Look(root, n)
		if err != nil {
			return gone(err)
		}
		key := j.ID + "/" + n
		if all[name].loose {
			key = j.ID + "/" + settled.LooseName + "/" + n
			files[n] = st.Files[""]
		} else if files = st.Files; st.Renamed {
			return nil
		}
		if at := s.seen.Since(key, st, now); at.After(since) {
			since = at
		}
	}
	if now.Sub(since) >= trusted*rules.Settle {
		return nil
	}
	less, _, err := s.less(ctx, j.ID, name, files, 2)
	if err == nil && less != "" {
		err = fault.New(fault.Conflict, "it is possibly still being written: %s", less).
			WithHint("Rename a checkpoint to its final name once it is complete, or set checkpoints.ready to the file that is written last.")
	}
	return err
}
