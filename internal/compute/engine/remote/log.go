package remote

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/worker/protocol"
)

// joined is the one log of all members. Of a gang, each line has "[i] " before
// it, and only whole lines go in.
//
// Beside it is an index: after each piece, a record of its member, the member's next
// offset, and the length of the log. After a crash the log is cut to the last record;
// agents keep what they sent, and send again from the offset that the server answers.
// So nothing is in it twice, and nothing needs a sync until a member ends.
type joined struct {
	gang  bool
	limit int64

	mu      sync.Mutex
	log     *os.File
	index   *os.File
	size    int64
	reached []int64
	full    bool
	changed chan struct{} // closed and replaced when it has grown
}

// A record of the index.
const recordSize = 24

func openLog(dir string, members int, limit int64) (*joined, error) {
	l := &joined{gang: members > 1, limit: limit * int64(min(members, 16)), reached: make([]int64, members), changed: make(chan struct{})}
	var err error
	if l.log, err = os.OpenFile(filepath.Join(dir, logFile), os.O_CREATE|os.O_RDWR, 0o600); err != nil {
		return nil, err
	}
	if l.index, err = os.OpenFile(filepath.Join(dir, indexFile), os.O_CREATE|os.O_RDWR, 0o600); err != nil {
		return nil, errors.Join(err, l.log.Close())
	}
	if err := l.recover(); err != nil {
		return nil, errors.Join(err, l.close())
	}
	return l, nil
}

// recover reads the index up to the last record that the log has the bytes of.
func (l *joined) recover() error {
	info, err := l.log.Stat()
	if err != nil {
		return err
	}
	b, err := io.ReadAll(l.index)
	if err != nil {
		return err
	}
	good := int64(0)
	for ; len(b) >= recordSize; b = b[recordSize:] {
		member := binary.LittleEndian.Uint64(b)
		reached, size := int64(binary.LittleEndian.Uint64(b[8:])), int64(binary.LittleEndian.Uint64(b[16:])) //nolint:gosec // What we wrote.
		if member >= uint64(len(l.reached)) || size > info.Size() || size < l.size {
			break
		}
		l.reached[member], l.size = reached, size
		good += recordSize
	}
	if err := errors.Join(l.index.Truncate(good), l.log.Truncate(l.size)); err != nil {
		return err
	}
	_, err = l.index.Seek(good, io.SeekStart)
	return err
}

// append appends bytes of a member from an offset of its output, and returns the member's next
// offset. last ends an incomplete line.
func (l *joined) append(member int, offset int64, b []byte, last bool) (int64, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	at := l.reached[member]
	if offset > at || offset+int64(len(b)) < at {
		return at, nil // a gap, or all of it is known: the member continues here
	}
	b = b[at-offset:]
	text, taken := b, len(b)
	if l.gang {
		text, taken = protocol.Numbered(nil, member, b, last)
	}
	if taken == 0 {
		return at, nil
	}
	if l.size+int64(len(text)) > l.limit+protocol.MaxLine && !l.full {
		l.full = true
		text = []byte("\n[falaj: the log ends here, at its limit]\n")
	} else if l.full { // it is dropped; nor does the index grow for it
		l.reached[member] += int64(taken)
		return l.reached[member], nil
	}
	if _, err := l.log.WriteAt(text, l.size); err != nil {
		return at, fault.New(fault.Exhausted, "writing the log: %w", err)
	}
	record := make([]byte, 0, recordSize)
	record = binary.LittleEndian.AppendUint64(record, uint64(member))                  //nolint:gosec // An index.
	record = binary.LittleEndian.AppendUint64(record, uint64(at+int64(taken)))         //nolint:gosec // Never negative.
	record = binary.LittleEndian.AppendUint64(record, uint64(l.size+int64(len(text)))) //nolint:gosec // Never negative.
	if _, err := l.index.Write(record); err != nil {
		return at, fault.New(fault.Exhausted, "writing the log's index: %w", err)
	}
	l.size += int64(len(text))
	l.reached[member] += int64(taken)
	close(l.changed)
	l.changed = make(chan struct{})
	return l.reached[member], nil
}

func (l *joined) offset(member int) int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.reached[member]
}

// sync makes what is there survive a power loss.
func (l *joined) sync() error {
	return errors.Join(l.log.Sync(), l.index.Sync())
}

func (l *joined) close() error { return errors.Join(l.log.Close(), l.index.Close()) }

// growth is a channel that is closed when there is more than size.
func (l *joined) growth(size int64) <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.size > size {
		now := make(chan struct{})
		close(now)
		return now
	}
	return l.changed
}

// reader reads a workload's log. Read and Close may be called by two goroutines.
type reader struct {
	ctx    context.Context //nolint:containedctx // The life of the stream, given by its opener.
	w      *work
	down   <-chan struct{}
	offset int64
	follow bool
	once   sync.Once
	closed chan struct{}
	file   *os.File
}

func (w *work) read(ctx context.Context, offset int64, follow bool, down <-chan struct{}) (io.ReadCloser, error) {
	f, err := os.Open(filepath.Join(w.dir, logFile))
	if err != nil {
		return nil, fault.Wrap(err, "opening the log of %s", w.id)
	}
	return &reader{ctx: ctx, w: w, down: down, offset: offset, follow: follow, closed: make(chan struct{}), file: f}, nil
}

// Read returns io.EOF when the workload has ended and all was read, or at once
// without follow.
func (r *reader) Read(b []byte) (int, error) {
	for {
		over := !r.follow || r.w.over() // before reading: nothing is written after that
		var more <-chan struct{}
		if !over {
			more = r.w.log.growth(r.offset)
		}
		n, err := r.file.ReadAt(b, r.offset)
		if n > 0 {
			r.offset += int64(n)
			return n, nil
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return 0, fmt.Errorf("reading the log of %s: %w", r.w.id, err)
		}
		if over {
			return 0, io.EOF
		}
		select {
		case <-more:
		case <-r.w.done:
		case <-r.down:
			return 0, fault.New(fault.Unavailable, "the engine is shutting down")
		case <-r.ctx.Done():
			return 0, r.ctx.Err()
		case <-r.closed:
			return 0, fs.ErrClosed
		}
	}
}

// Close ends a waiting Read.
func (r *reader) Close() error {
	r.once.Do(func() {
		close(r.closed)
		_ = r.file.Close()
	})
	return nil
}
