package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"
)

// output is what the worker says: it waits in a file until the server has it,
// and is kept to the end, for a server that lost some. After the limit it is
// taken and dropped, so that the worker is not held up.
type output struct {
	limit int64

	mu      sync.Mutex
	f       *os.File
	size    int64
	full    bool
	ended   bool          // nothing more comes
	changed chan struct{} // closed and replaced at each change
	sent    chan struct{} // closed when the server has all of it, or will not
}

const (
	defaultLogLimit = 64 << 20
	pieceSize       = 1 << 20
	// gather is how long small pieces are collected before they are sent.
	gather = 100 * time.Millisecond
)

func newOutput(path string, limit int64) (*output, error) {
	if limit <= 0 {
		limit = defaultLogLimit
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	return &output{limit: limit, f: f, changed: make(chan struct{}), sent: make(chan struct{})}, nil
}

// take reads to the end of the worker's output.
func (o *output) take(r io.Reader) {
	b := make([]byte, 64<<10)
	for {
		n, err := r.Read(b)
		o.write(b[:n])
		if err != nil {
			return
		}
	}
}

func (o *output) write(b []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.full || len(b) == 0 {
		return
	}
	rest := o.limit - o.size
	over := int64(len(b)) > rest
	if over {
		b = b[:rest]
	}
	n, err := o.f.WriteAt(b, o.size)
	o.size += int64(n)
	if over || err != nil {
		o.full = true
		why := fmt.Sprintf("at its limit of %d bytes", o.limit)
		if err != nil {
			why = "because the node's disk is full"
		}
		n, _ := o.f.WriteAt(fmt.Appendf(nil, "\n[falaj: the log ends here, %s]\n", why), o.size)
		o.size += int64(n)
	}
	o.tell()
}

func (o *output) tell() {
	close(o.changed)
	o.changed = make(chan struct{})
}

// end says that nothing more comes.
func (o *output) end() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.ended = true
	o.tell()
}

func (o *output) length() int64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.size
}

// send sends all of it, as it comes.
func (o *output) send(ctx context.Context, c *client) {
	defer close(o.sent)
	b := make([]byte, pieceSize)
	for offset := int64(0); ; {
		o.mu.Lock()
		size, ended, changed := o.size, o.ended, o.changed
		o.mu.Unlock()
		n, err := o.f.ReadAt(b[:min(int64(len(b)), max(size-offset, 0))], offset)
		if err != nil && !errors.Is(err, io.EOF) {
			return
		}
		if n == 0 && ended {
			return
		}
		reached := offset
		if n > 0 {
			last := ended && offset+int64(n) == size
			err = c.retry(ctx, func(ctx context.Context) error {
				r, err := c.log(ctx, offset, b[:n], last)
				reached = r.Offset
				return err
			})
			if err != nil {
				return // it is over for the server, or we are
			}
			if last && reached == size {
				return
			}
		}
		moved := reached != offset
		offset = min(max(reached, 0), size)
		var more <-chan time.Time
		if moved && offset < size { // there is more, at once
			continue
		}
		if moved {
			t := time.NewTimer(gather)
			select {
			case <-t.C:
			case <-ctx.Done():
				return
			}
		}
		o.mu.Lock()
		grown := o.size > size || o.ended != ended
		o.mu.Unlock()
		if grown {
			continue
		}
		if ended { // the server does not move on: not at once again
			more = time.After(time.Second)
		}
		select {
		case <-changed:
		case <-more:
		case <-ctx.Done():
			return
		}
	}
}
