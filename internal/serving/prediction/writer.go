package prediction

import (
	"context"
	"encoding/binary"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/fsync"
)

// maxBatch is about how many bytes of records one write takes.
const maxBatch = 1 << 20

// restTime is how long nothing is tried after a write failed.
const restTime = time.Second

// journal is the log of one deployment.
//
// Who appends joins the batch that waits. The first to join writes it, once the
// batch before it is written: so one write takes what came while the disk was
// busy, and nobody waits for more than one write of others.
//
// Locks, in this order: syncing, writing, mu. joining is held with no other.
type journal struct {
	log   *Log
	place Place
	dir   string

	lost, appended atomic.Int64
	trouble        atomic.Pointer[string]
	erased         atomic.Pointer[[]Person] // nil until it was asked for

	syncing sync.Mutex // held by sync, before writing: whoever waits for it is told when all of it is there

	joining sync.Mutex
	pending *batch

	writing sync.Mutex // held while the file is written or replaced
	key     []byte
	checked time.Time // when key was asked for last
	out     []byte    // scratch
	pause   time.Time // until then nothing is tried, because of failed
	failed  error
	dropped bool // it is in the log no more: another one is, or will be

	mu       sync.Mutex // guards what readers look at
	loaded   bool
	newest   uint64     // number of a segment of this process, whether or not it is there still
	segments []*segment // in order; that of active is the last
	active   *active
	retired  []*active // full, not sealed yet
}

// active is a segment that is being written.
type active struct {
	f       *os.File
	s       *sealer
	sg      *segment
	frame   uint64
	created time.Time
	dirty   bool // written since it was synced
}

// batch is what one write takes to disk.
type batch struct {
	records []byte
	span    span
	done    chan struct{}
	err     error // once done is closed
}

// errDropped is for appends to a journal that left the log meanwhile.
var errDropped = errors.New("the journal left the log")

var buffers = sync.Pool{New: func() any { return new([]byte) }}

func (j *journal) bound() string { return j.place.Project + "/" + j.place.Deployment }

func (j *journal) append(ctx context.Context, r *Record) error {
	buf := buffers.Get().(*[]byte)
	defer buffers.Put(buf)
	b, err := appendRecord((*buf)[:0], r)
	*buf = b
	if err == nil {
		err = j.blankErased(ctx, b, r)
	}
	if err != nil {
		return j.miss(err)
	}
	sp := spanOf(r)

	j.joining.Lock()
	mine := j.pending
	leader := mine == nil || len(mine.records)+len(b) > maxBatch
	if leader {
		mine = &batch{done: make(chan struct{})}
		j.pending = mine
	}
	mine.records = append(binary.AppendUvarint(mine.records, uint64(len(b))), b...)
	mine.span.add(sp)
	j.joining.Unlock()

	if !leader {
		<-mine.done // the leader never fails to come
		if mine.err != nil {
			return j.miss(mine.err)
		}
		j.appended.Add(1)
		return nil
	}
	// Requests that are ready to go on may join first: one write for several. Where
	// none is, this costs nothing; where there are more than can be served, the
	// scheduler comes back after at most some dozens of them.
	runtime.Gosched()
	j.writing.Lock()
	j.joining.Lock()
	if j.pending == mine {
		j.pending = nil
	}
	j.joining.Unlock()
	mine.err = j.write(ctx, mine)
	j.writing.Unlock()
	close(mine.done)
	if mine.err != nil {
		return j.miss(mine.err)
	}
	j.appended.Add(1)
	return nil
}

// blankErased takes what rows of erased persons say out of an encoded record.
func (j *journal) blankErased(ctx context.Context, b []byte, r *Record) error {
	if j.erased.Load() == nil {
		if err := j.knowErased(ctx); err != nil {
			return err
		}
	}
	for _, p := range *j.erased.Load() {
		if err := blank(b, p.rows(r)); err != nil {
			return err
		}
	}
	return nil
}

// knowErased asks who was erased.
func (j *journal) knowErased(ctx context.Context) error {
	var all []Person
	if erased := j.log.cfg.Erased; erased != nil {
		var err error
		if all, err = erased(ctx, j.place.Project); err != nil {
			return fault.Wrap(err, "reading the erased persons")
		}
	}
	j.erased.Store(&all)
	return nil
}

// miss counts a record that is not in the log.
func (j *journal) miss(err error) error {
	if errors.Is(err, errDropped) {
		return err // it goes to the journal that follows
	}
	text := err.Error()
	j.trouble.Store(&text)
	j.lost.Add(1)
	return fault.Wrap(err, "logging a prediction of %s", j.place.Deployment)
}

// write takes a batch to the file. Called with writing held.
func (j *journal) write(ctx context.Context, b *batch) error {
	if j.dropped {
		return errDropped
	}
	now := j.log.cfg.Now()
	if j.failed != nil && now.Before(j.pause) {
		return j.failed
	}
	j.failed = nil
	if err := j.ready(ctx, now); err != nil {
		return j.rest(now, err)
	}
	a := j.active
	j.out = a.s.frame(j.out[:0], kindRecords, a.frame, b.records)
	if _, err := a.f.WriteAt(j.out, a.sg.end); err != nil {
		// What is half there must not stay: a frame's number is its nonce, and the
		// next batch would have the same. So this segment ends here.
		_ = a.f.Truncate(a.sg.end)
		j.retire()
		return j.rest(now, err)
	}
	if cap(j.out) > 4*maxBatch {
		j.out = nil
	}
	a.frame++
	j.mu.Lock()
	a.dirty = true
	a.sg.end += int64(frameHead + len(b.records) + overhead)
	a.sg.size = a.sg.end
	a.sg.span.add(b.span)
	j.mu.Unlock()
	return nil
}

// rest notes a failure and lets the disk, or whoever has the keys, rest for a
// moment: until then appending fails without another try.
func (j *journal) rest(now time.Time, err error) error {
	switch {
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		err = fault.New(fault.Exhausted, "the disk is full: %w", err).WithHint("Free space, or lower predictions.max_bytes.")
	case fault.Is(err, fault.Internal):
		err = fault.New(fault.Unavailable, "writing the prediction log: %w", err)
	}
	j.failed, j.pause = err, now.Add(restTime)
	return err
}

// ready makes sure that there is a key and a segment to write to. Called with
// writing held.
func (j *journal) ready(ctx context.Context, now time.Time) error {
	if j.key == nil || now.Sub(j.checked) > keyAge || now.Before(j.checked) {
		if _, err := j.loadLocked(ctx); err != nil {
			return err
		}
	}
	if a := j.active; a != nil && (a.sg.end >= rollSize || now.Sub(a.created) >= rollAge) {
		j.retire()
	}
	if j.active != nil {
		return nil
	}
	j.log.dirs.Lock()
	err := os.MkdirAll(j.dir, 0o700)
	j.log.dirs.Unlock()
	if err != nil {
		return err
	}
	// Numbers follow the clock, so that a deployment of the same name, made after
	// this one was dropped, has others, and an old cursor finds nothing in it.
	number := max(uint64(now.UnixMicro()), j.newest+1)
	if n := len(j.segments); n > 0 {
		number = max(number, j.segments[n-1].number+1)
	}
	j.newest = number
	f, s, err := create(j.dir, number, j.key, j.bound())
	if err != nil {
		return err
	}
	a := &active{f: f, s: s, created: now, sg: &segment{number: number, path: f.Name(), size: headerSize, end: headerSize}}
	j.mu.Lock()
	j.active = a
	j.segments = append(j.segments, a.sg)
	j.mu.Unlock()
	return nil
}

// retire ends the active segment; the loop seals it. Called with writing held.
func (j *journal) retire() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.retired = append(j.retired, j.active)
	j.active = nil
	j.log.loop.Wake()
}

// load makes sure that the journal knows its segments, and returns its key.
func (j *journal) load(ctx context.Context) ([]byte, error) {
	j.writing.Lock()
	defer j.writing.Unlock()
	return j.loadLocked(ctx)
}

// loadLocked is load with writing held. A key that has gone ends what is being
// written under it.
func (j *journal) loadLocked(ctx context.Context) ([]byte, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), keyTimeout) // others of the batch wait for it, too
	defer cancel()
	key, err := j.log.cfg.Keys.DataKey(ctx, j.place.Project, "predictions/"+j.place.Deployment, "log")
	if err != nil {
		j.key = nil
		return nil, fault.Wrap(err, "opening the key of the prediction log")
	}
	if j.key != nil && string(key) != string(j.key) && j.active != nil {
		j.retire()
	}
	if !j.loaded {
		if err := j.sweepErased(); err != nil {
			return nil, err
		}
		segments, err := j.list(key)
		if err != nil {
			return nil, err
		}
		j.mu.Lock()
		j.segments, j.loaded = segments, true
		j.mu.Unlock()
	}
	j.key, j.checked = key, j.log.cfg.Now()
	return key, nil
}

// sync brings to disk what was written, and seals what has ended; with all also
// what has not.
func (j *journal) sync(all bool) error {
	j.syncing.Lock()
	defer j.syncing.Unlock()
	j.writing.Lock()
	if a := j.active; a != nil && (all || j.log.cfg.Now().Sub(a.created) >= rollAge) {
		j.retire()
	}
	j.mu.Lock()
	retired := j.retired
	j.retired = nil
	a := j.active
	dirty := a != nil && a.dirty
	if dirty {
		a.dirty = false
	}
	j.mu.Unlock()
	j.writing.Unlock()

	var errs []error
	if dirty {
		if err := a.f.Sync(); err != nil && !errors.Is(err, fs.ErrClosed) {
			errs = append(errs, err)
			j.mu.Lock()
			a.dirty = true
			j.mu.Unlock()
		}
	}
	for i, r := range retired {
		if err := j.seal(r); err != nil {
			errs = append(errs, err)
			j.mu.Lock()
			j.retired = append(j.retired, retired[i])
			j.mu.Unlock()
		}
	}
	return fault.Wrap(errors.Join(errs...), "prediction log of %s", j.place.Deployment)
}

// seal makes a segment that has ended immutable.
func (j *journal) seal(a *active) error {
	if a.sg.span.records == 0 {
		_ = a.f.Close()
		_, err := j.remove(func(sg *segment) bool { return sg == a.sg })
		return err
	}
	tail := appendFooter(nil, a.s, a.sg.span, a.sg.end) // nobody changes them any more
	if _, err := a.f.WriteAt(tail, a.sg.end); err != nil && !errors.Is(err, fs.ErrClosed) {
		return err
	}
	if err := a.f.Sync(); err != nil && !errors.Is(err, fs.ErrClosed) {
		return err
	}
	_ = a.f.Close()
	j.mu.Lock()
	a.sg.size = a.sg.end + int64(len(tail))
	j.mu.Unlock()
	return syncDir(j.dir)
}

// syncDir makes the names of new files durable; a directory that was dropped
// meanwhile has none.
func syncDir(dir string) error {
	if err := fsync.Dir(filepath.Clean(dir)); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func (j *journal) stats() Stats {
	j.mu.Lock()
	defer j.mu.Unlock()
	s := Stats{Segments: len(j.segments), Lost: j.lost.Load()}
	if t := j.trouble.Load(); t != nil {
		s.Trouble = *t
	}
	var all span
	for _, sg := range j.segments {
		all.add(sg.span)
		s.Bytes += sg.size
		if sg.broken {
			s.Damaged++
		}
	}
	s.Records = all.records
	if all.records > 0 {
		s.From, s.To = instant(all.from), instant(all.to)
	}
	return s
}

// remove forgets segments and deletes their files.
func (j *journal) remove(gone func(*segment) bool) (freed int64, err error) {
	j.mu.Lock()
	var paths []string
	j.segments = slices.DeleteFunc(j.segments, func(sg *segment) bool {
		if (j.active != nil && sg == j.active.sg) || slices.ContainsFunc(j.retired, func(a *active) bool { return a.sg == sg }) || !gone(sg) {
			return false
		}
		paths = append(paths, sg.path)
		freed += sg.size
		return true
	})
	j.mu.Unlock()
	var errs []error
	for _, p := range paths {
		if e := os.Remove(p); e != nil && !errors.Is(e, fs.ErrNotExist) {
			errs = append(errs, e)
		}
	}
	return freed, errors.Join(errs...)
}
