package prediction

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
)

// Trim removes the segments whose records were all received before a time.
func (l *Log) Trim(ctx context.Context, before time.Time) error {
	places, err := l.Places()
	if err != nil {
		return err
	}
	var errs []error
	for _, p := range places {
		j, err := l.of(p)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if _, err := j.load(ctx); err != nil {
			if fault.Is(err, fault.Gone) { // noise, whose key nobody has
				err = l.Drop(p.Project, p.Deployment)
			}
			errs = append(errs, err)
			continue
		}
		_, err = j.remove(func(sg *segment) bool { return sg.span.received < micros(before) })
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// Retain removes what the configuration does not keep: what is too old, and the
// oldest segments of any deployment while the log is too large. What is being
// written stays.
func (l *Log) Retain(ctx context.Context) error {
	var before time.Time // nothing is
	if l.cfg.Retention > 0 {
		before = l.cfg.Now().Add(-l.cfg.Retention)
	}
	if err := l.Trim(ctx, before); err != nil {
		return err
	}
	type old struct {
		j  *journal
		sg *segment
	}
	var all []old
	total := int64(0)
	for _, j := range l.open() {
		j.mu.Lock()
		for _, sg := range j.segments {
			total += sg.size
			all = append(all, old{j, sg})
		}
		j.mu.Unlock()
	}
	if total <= l.cfg.MaxBytes {
		return nil
	}
	slices.SortFunc(all, func(a, b old) int {
		if a.sg.number < b.sg.number { // numbers follow the clock
			return -1
		}
		return 1
	})
	var errs []error
	for _, o := range all {
		if total <= l.cfg.MaxBytes {
			break
		}
		freed, err := o.j.remove(func(sg *segment) bool { return sg == o.sg })
		total -= freed
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// leave takes a journal without records out of the log: a server would keep one for each
// deployment that was ever deleted. Called with its writing held. Who has it already
// appends to the one that follows it.
func (l *Log) leave(j *journal) {
	j.dropped = true
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.journal[j.place] == j {
		delete(l.journal, j.place)
		l.lost += j.lost.Load()
		l.appended += j.appended.Load()
	}
}

// leaveEmpty takes out what has no records, such as of a deployment that was read after
// it was deleted.
func (l *Log) leaveEmpty() {
	for _, j := range l.open() {
		j.writing.Lock()
		j.mu.Lock()
		empty := j.loaded && len(j.segments) == 0 && j.active == nil && len(j.retired) == 0
		j.mu.Unlock()
		if _, err := os.Stat(j.dir); empty && errors.Is(err, fs.ErrNotExist) {
			l.leave(j)
		}
		j.writing.Unlock()
	}
}

// Drop removes every record of a deployment that was deleted.
func (l *Log) Drop(project, deployment string) error {
	j, err := l.of(Place{project, deployment})
	if err != nil {
		return err
	}
	j.writing.Lock()
	defer j.writing.Unlock()
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, a := range j.retired {
		_ = a.f.Close()
	}
	if j.active != nil {
		_ = j.active.f.Close()
	}
	j.active, j.retired, j.segments = nil, nil, nil
	err = os.RemoveAll(j.dir)
	l.leave(j) // after its files: the journal that follows it writes to the same directory
	// The project's directory goes with its last deployment.
	l.dirs.Lock()
	defer l.dirs.Unlock()
	if e := os.Remove(filepath.Dir(j.dir)); e != nil && !errors.Is(e, fs.ErrNotExist) && !errors.Is(e, fs.ErrExist) { // or it is not empty
		err = errors.Join(err, e)
	}
	return fault.Wrap(err, "deleting the predictions of %s", deployment)
}
