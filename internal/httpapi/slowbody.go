package httpapi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/share"
)

// Defaults of the least rate of bodies.
const (
	leastRate = 4 << 10 // bytes a second
	// slowGrace is how long a body may bring nothing, or be behind the least rate.
	slowGrace = 20 * time.Second
	// agentGrace and rowsGrace are that for checkpoints, which agents read while they
	// send them, and for rows that a program makes while it sends them.
	agentGrace = 2 * time.Minute
	rowsGrace  = time.Minute
	// refusedGrace is how long net/http may wait for the rest of a body that nobody
	// will read: its request was refused, or is over.
	refusedGrace = 2 * time.Second
)

// uploadReaders is how many uploaded files are read at a time.
const uploadReaders = 256

func newUploads() *share.Pool {
	return share.New(share.Limits{Name: "uploads", What: "uploads", Slots: uploadReaders, Queue: 1024, Wait: time.Minute})
}

// errSlow is in the chain of errors of bodies that came too slowly.
var errSlow = errors.New("slow body")

// intake is the body of a request. It is cut when it comes slower than a least rate;
// only the time counts in which a reader waits for it. The body of an upload takes a
// slot before its first byte is read, which is after the permission was asked.
//
// When it was read to its end, the time for reading it is no longer limited: net/http
// would end the request's context at that deadline, under a handler that is still at
// work.
type intake struct {
	io.ReadCloser
	control http.ResponseController
	ctx     context.Context //nolint:containedctx // of the one request
	upload  *share.Pool     // nil: it needs no slot
	owner   share.Owner
	release func()
	rate    float64 // bytes a second; 0: any

	mu     sync.Mutex
	grace  time.Duration
	credit time.Duration // for which a reader may still wait
	since  time.Time     // when the reader began to wait; zero: none waits
	timer  *time.Timer
	armed  bool
	slow   bool // it was cut
	over   bool // it is at its end, or the request is
}

// bounded makes the body of a request: of at most limit bytes, no slower than the
// least rate. Call finish at the end of the request.
func (s *Server) bounded(w http.ResponseWriter, r *http.Request, limit int64, control http.ResponseController) *intake {
	b := &intake{ReadCloser: r.Body, control: control, ctx: r.Context(), rate: float64(s.cfg.LeastRate)}
	if r.ContentLength < 0 || r.ContentLength > limit { // else net/http gives no more than that
		b.ReadCloser = http.MaxBytesReader(w, r.Body, limit)
	}
	if r.Body == nil || r.Body == http.NoBody {
		b.over = true
		_ = control.SetReadDeadline(time.Time{})
	}
	return b
}

// takes lets the body wait for a slot of an upload.
func (b *intake) takes(uploads *share.Pool, r *http.Request) {
	b.upload, b.owner = uploads, shareOf(r)
}

func (b *intake) Read(p []byte) (int, error) {
	if b.upload != nil {
		if err := b.enter(); err != nil {
			return 0, err
		}
	}
	if b.rate <= 0 {
		n, err := b.ReadCloser.Read(p)
		return n, b.noted(n, err)
	}
	if err := b.wait(); err != nil {
		return 0, err
	}
	n, err := b.ReadCloser.Read(p)
	return n, b.noted(n, err)
}

// enter takes the slot of an upload, once.
func (b *intake) enter() error {
	b.mu.Lock()
	has := b.release != nil || b.over
	b.mu.Unlock()
	if has {
		return nil
	}
	release, err := b.upload.Take(b.ctx, b.owner)
	if err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.release = release; b.over { // the request has ended meanwhile
		release()
	}
	return nil
}

// wait notes that a reader begins to wait.
func (b *intake) wait() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.over {
		return nil
	}
	if b.slow || b.credit <= 0 {
		b.slow = true
		return b.tooSlow()
	}
	b.since = time.Now()
	if !b.armed {
		b.arm(b.credit)
	}
	return nil
}

func (b *intake) arm(after time.Duration) {
	b.armed = true
	if b.timer == nil {
		b.timer = time.AfterFunc(after, b.check)
		return
	}
	b.timer.Reset(after)
}

// check cuts the body when a reader has waited for all that it may.
func (b *intake) check() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.armed = false
	if b.over || b.slow || b.since.IsZero() {
		return
	}
	if left := b.credit - time.Since(b.since); left > 0 {
		b.arm(left)
		return
	}
	b.slow = true
	_ = b.control.SetReadDeadline(time.Unix(1, 0)) // ends the read that waits
}

// noted counts what came and how long it took.
func (b *intake) noted(n int, err error) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.since.IsZero() {
		b.credit = min(b.grace, b.credit-time.Since(b.since)+time.Duration(float64(n)/b.rate*float64(time.Second)))
		b.since = time.Time{}
	}
	switch {
	case errors.Is(err, io.EOF):
		if !b.over {
			_ = b.control.SetReadDeadline(time.Time{})
		}
		b.end()
	case err == nil:
	case b.slow:
		return b.tooSlow()
	case errors.Is(err, os.ErrDeadlineExceeded):
		return &fault.Error{Kind: fault.Timeout, Message: "the body exceeded the time limit", Err: errors.Join(errSlow, err)}
	default:
		if _, ok := errors.AsType[*http.MaxBytesError](err); !ok {
			return fault.New(fault.Invalid, "the body ended before it was complete: %w", err)
		}
	}
	return err
}

func (b *intake) tooSlow() error {
	e := share.Refused("body_rate", fmt.Sprintf("the body was slower than %.0f bytes a second for %s", b.rate, b.grace), "Send it faster, or split it into smaller requests.", 0)
	return &fault.Error{Kind: fault.Timeout, Message: e.Message, Hint: e.Hint, Err: errSlow}
}

// finish ends the watch and gives the slot back.
func (b *intake) finish() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.end()
}

// leave bounds how long net/http may wait for what nobody has read.
func (b *intake) leave() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.over {
		_ = b.control.SetReadDeadline(time.Now().Add(refusedGrace))
	}
}

func (b *intake) end() {
	b.over = true
	if b.timer != nil {
		b.timer.Stop()
	}
	if b.release != nil {
		b.release()
	}
}
