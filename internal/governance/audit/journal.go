package audit

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/fsync"
	"github.com/falaj-ml/falaj/internal/id"
)

const (
	segmentSuffix = ".journal"
	reserveSuffix = ".reserve"
	damagedSuffix = ".damaged"

	defaultSegment = 8 << 20
	minSegment     = 2 * maxBatch
	maxSegment     = 64 << 20
	maxQueue       = 64 // batches that wait to be written: 64 MiB
	reserveRetry   = 5 * time.Second
)

// JournalConfig says where a journal is.
type JournalConfig struct {
	Dir          string // made with mode 0700
	SegmentBytes int64  // per file, 2 to 64 MiB; default 8 MiB. As much again is held in reserve
}

// FileJournal is a Journal in files. Each process that answers has its own, in a
// directory that a sequencer on the same host reads. Safe for concurrent use;
// Close it.
//
// Concurrent callers share a sync: while one batch is being synced, the next one
// gathers. A second file of the same size is allocated in advance, so that on a
// full disk at least SegmentBytes of refusals can still be recorded.
type FileJournal struct {
	cfg JournalConfig

	mu       sync.Mutex
	queue    []*batch
	flushing bool
	idle     *sync.Cond // on mu: flushing became false
	closed   bool

	// Of the flusher alone, of which there is at most one.
	segment, reserve *segment
	reserveTried     time.Time
}

// batch is entries that are written and synced together.
type batch struct {
	payload []byte
	count   int
	turn    bool         // no entries: go on in another file
	look    func() error // or look at the files as they are
	done    chan struct{}
	err     error // set before done is closed
}

// segment is a file that this process writes, locked.
type segment struct {
	file   *os.File
	name   string
	offset int64
}

var _ Journal = (*FileJournal)(nil)

// OpenJournal opens a journal of this process. What earlier processes left in
// the directory stays for the sequencer. Error: fault.Exhausted on a full disk.
func OpenJournal(cfg JournalConfig) (*FileJournal, error) {
	if cfg.SegmentBytes == 0 {
		cfg.SegmentBytes = defaultSegment
	}
	if cfg.SegmentBytes < minSegment || cfg.SegmentBytes > maxSegment {
		return nil, fault.New(fault.Invalid, "the journal segment has %d bytes", cfg.SegmentBytes).
			WithHint("Use %d to %d bytes.", minSegment, maxSegment)
	}
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, journalFault(err, "make the audit journal's directory")
	}
	j := &FileJournal{cfg: cfg}
	j.idle = sync.NewCond(&j.mu)
	if err := j.removeReserves(); err != nil {
		return nil, journalFault(err, "clean the audit journal's directory")
	}
	var err error
	if j.segment, err = j.newSegment(); err == nil {
		err = j.segment.activate()
	}
	if err != nil {
		return nil, journalFault(err, "start the audit journal")
	}
	if j.reserve, err = j.newSegment(); err != nil {
		j.segment.discard()
		return nil, journalFault(err, "reserve disk space for the audit journal")
	}
	return j, nil
}

// Record returns nil when the entry is synced. Otherwise the act must not
// happen. Errors: fault.TooLarge over 64 KiB, fault.Exhausted when the disk and
// the reserve are full or too much waits, fault.Unavailable when the journal is
// closed or ctx ended first (the entry may be recorded all the same).
func (j *FileJournal) Record(ctx context.Context, e Entry) error {
	encoded, err := e.encode(ctx)
	if err != nil {
		return err
	}
	b, err := j.enqueue(encoded)
	if err != nil {
		return err
	}
	select {
	case <-b.done:
		return b.err
	case <-ctx.Done():
		return fault.New(fault.Unavailable, "the audit journal was not synced in time: %w", context.Cause(ctx))
	}
}

// Turn goes on in another file, so that the sequencer folds what was recorded so
// far and removes it. Errors: fault.Exhausted on a full disk, fault.Unavailable
// when the journal is closed or ctx ended first.
func (j *FileJournal) Turn(ctx context.Context) error {
	b := &batch{turn: true, done: make(chan struct{})}
	j.mu.Lock()
	if j.closed {
		j.mu.Unlock()
		return errJournalClosed()
	}
	j.queue = append(j.queue, b)
	j.wake()
	j.mu.Unlock()
	select {
	case <-b.done:
		return b.err
	case <-ctx.Done():
		return fault.New(fault.Unavailable, "the audit journal did not start a new file in time: %w", context.Cause(ctx))
	}
}

// Still runs a function while nothing is written, so that what it reads of the files is
// whole. Errors: the function's; fault.Unavailable when the journal is closed or ctx
// ended before it began.
func (j *FileJournal) Still(ctx context.Context, look func() error) error {
	b := &batch{turn: true, look: func() error {
		if ctx.Err() != nil { // nobody waits for it
			return fault.New(fault.Unavailable, "the audit journal did not pause in time: %w", context.Cause(ctx))
		}
		return look()
	}, done: make(chan struct{})}
	j.mu.Lock()
	if j.closed {
		j.mu.Unlock()
		return errJournalClosed()
	}
	j.queue = append(j.queue, b)
	j.wake()
	j.mu.Unlock()
	<-b.done
	return b.err
}

func errJournalClosed() error {
	return fault.New(fault.Unavailable, "the audit journal is closed").WithHint("The server is stopping; try again after its restart.")
}

func (j *FileJournal) enqueue(encoded []byte) (*batch, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.closed {
		return nil, errJournalClosed()
	}
	var b *batch
	if n := len(j.queue); n > 0 && !j.queue[n-1].turn && len(j.queue[n-1].payload)+entryHeader+len(encoded) <= maxBatch {
		b = j.queue[n-1]
	} else {
		if n >= maxQueue {
			return nil, fault.New(fault.Exhausted, "too many audit entries wait to be synced").WithHint("Try again. If this persists, the disk is too slow.")
		}
		b = &batch{done: make(chan struct{})}
		j.queue = append(j.queue, b)
	}
	b.payload = appendEntry(b.payload, time.Now().UnixMicro(), encoded)
	b.count++
	j.wake()
	return b, nil
}

// wake makes sure that a flush follows. Guarded by mu.
func (j *FileJournal) wake() {
	if !j.flushing {
		j.flushing = true
		go j.flush()
	}
}

// flush writes batch after batch until none waits.
func (j *FileJournal) flush() {
	for {
		j.mu.Lock()
		if len(j.queue) == 0 {
			j.flushing = false
			j.idle.Broadcast()
			j.mu.Unlock()
			return
		}
		b := j.queue[0]
		j.queue = j.queue[1:]
		j.mu.Unlock()

		if b.look != nil {
			b.err = b.look()
		} else if err := j.write(b); err != nil {
			b.err = journalFault(err, "write the audit journal")
		}
		close(b.done)
	}
}

func (j *FileJournal) write(b *batch) error {
	if b.turn {
		if j.segment == nil || j.segment.offset == headerBytes {
			return nil // nothing is in it
		}
		if err := j.rotate(); err != nil {
			return err
		}
		return j.makeRoom(0) // for the reserve
	}
	if err := j.makeRoom(headerBytes + int64(len(b.payload))); err != nil {
		return err
	}
	s := j.segment
	bytes := encodeBatch(s.offset, b.payload, b.count)
	_, err := s.file.WriteAt(bytes, s.offset)
	if err == nil {
		err = unix.Fdatasync(int(s.file.Fd()))
	}
	if err != nil {
		// It is unknown what a failed sync left on the disk, and a second sync
		// may succeed without writing it. Go on in another file; the sequencer
		// takes this one's end for torn.
		_ = s.file.Close()
		j.segment = nil
		return err
	}
	s.offset = align(s.offset + int64(len(bytes)))
	return nil
}

// makeRoom sees to a segment with n free bytes, and to the reserve.
func (j *FileJournal) makeRoom(n int64) error {
	if j.segment == nil || j.segment.offset+n > j.cfg.SegmentBytes {
		if err := j.rotate(); err != nil {
			return err
		}
	}
	if j.reserve == nil && time.Since(j.reserveTried) > reserveRetry {
		j.reserveTried = time.Now()
		j.reserve, _ = j.newSegment() // nil on a full disk; tried again
	}
	return nil
}

func (j *FileJournal) rotate() error {
	next := j.reserve
	if next == nil {
		var err error
		if next, err = j.newSegment(); err != nil {
			return err
		}
	}
	j.reserve = next // until it has its name
	if err := next.activate(); err != nil {
		return err
	}
	j.reserve = nil
	j.reserveTried = time.Time{}
	if j.segment != nil {
		_ = j.segment.file.Close() // synced batch by batch; closing lets the sequencer have it
	}
	j.segment = next
	return nil
}

// newSegment makes a locked, allocated, synced file in reserve. It gets the name
// of a segment only after it is locked: the sequencer takes a segment that
// nobody holds for a dead process's.
func (j *FileJournal) newSegment() (*segment, error) {
	s := &segment{name: filepath.Join(j.cfg.Dir, id.New("jrn")+reserveSuffix), offset: headerBytes}
	var err error
	if s.file, err = os.OpenFile(s.name, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600); err != nil {
		return nil, err
	}
	err = s.prepare(j.cfg.SegmentBytes)
	if err == nil {
		err = fsync.Dir(j.cfg.Dir)
	}
	if err != nil {
		s.discard()
		return nil, err
	}
	return s, nil
}

func (s *segment) prepare(size int64) error {
	// A process that starts beside us and clears abandoned reserves may have
	// seen the file before it was locked.
	if !lockSegment(s.file) {
		return errors.New("another process created the new file")
	}
	if _, err := os.Lstat(s.name); err != nil {
		return err
	}
	if err := allocate(s.file, size); err != nil {
		return err
	}
	header := make([]byte, headerBytes)
	copy(header, segmentMagic)
	if _, err := s.file.WriteAt(header, 0); err != nil {
		return err
	}
	return s.file.Sync()
}

// activate makes the reserve a segment.
func (s *segment) activate() error {
	name := strings.TrimSuffix(s.name, reserveSuffix) + segmentSuffix
	if err := os.Rename(s.name, name); err != nil {
		return err
	}
	s.name = name
	return fsync.Dir(filepath.Dir(name))
}

func (s *segment) discard() {
	_ = os.Remove(s.name)
	_ = s.file.Close()
}

// removeReserves removes what processes that are gone held in reserve.
func (j *FileJournal) removeReserves() error {
	names, err := filepath.Glob(filepath.Join(j.cfg.Dir, "*"+reserveSuffix))
	if err != nil {
		return err
	}
	for _, name := range names {
		f, err := os.Open(name)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		if lockSegment(f) {
			err = os.Remove(name)
		}
		_ = f.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

// Close writes what waits and ends the journal; later Records fail. It may be
// called twice.
func (j *FileJournal) Close() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.closed {
		return nil
	}
	j.closed = true
	for j.flushing {
		j.idle.Wait()
	}
	if j.reserve != nil {
		j.reserve.discard()
	}
	if j.segment == nil {
		return nil
	}
	if j.segment.offset == headerBytes {
		j.segment.discard()
		return nil
	}
	return j.segment.file.Close()
}

func journalFault(err error, doing string) error {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return fault.New(fault.Exhausted, "%s: the disk is full: %w", doing, err).
			WithHint("Free space on the disk of the data directory. Until then the server refuses every request that must be audited.")
	}
	return fault.Wrap(err, "%s", doing)
}
