package httpapi

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/share"
)

// sender gives so many bytes at once and then a piece after each pause, until a
// deadline that has passed ends it.
type sender struct {
	http.ResponseWriter
	early       int
	piece, left int
	pause       time.Duration
	cut         chan struct{}
	cleared     bool
}

func (s *sender) Read(p []byte) (int, error) {
	n := min(s.piece, s.left, len(p))
	if s.early > 0 {
		n = min(s.early, s.left, len(p))
		s.early -= n
	} else {
		select {
		case <-s.cut:
			return 0, os.ErrDeadlineExceeded
		case <-time.After(s.pause):
		}
	}
	if s.left -= n; s.left == 0 {
		return n, io.EOF
	}
	return n, nil
}

func (s *sender) Close() error { return nil }

func (s *sender) SetReadDeadline(at time.Time) error {
	switch {
	case at.IsZero():
		s.cleared = true
	case !at.After(time.Now()):
		close(s.cut)
	}
	return nil
}

// TestSlowBodies: who sends less than the least rate is cut with 408 once the grace is
// used up; who sends enough, with pauses or in front of a slow handler, is not.
func TestSlowBodies(t *testing.T) {
	for _, c := range []struct {
		name                string
		early, piece, total int
		pause, think        time.Duration // before each piece; of the handler after it
		cut                 bool
	}{
		{"a byte a second", 0, 1, 1000, time.Second, 0, true},
		{"nothing", 0, 1, 2, time.Hour, 0, true},
		{"half the rate", 0, 2 << 10, 1 << 20, time.Second, 0, true},
		{"twice the rate", 0, 8 << 10, 1 << 20, time.Second, 0, false},
		{"at once", 0, 1 << 20, 1 << 20, 0, 0, false},
		{"pauses shorter than the grace", 0, 64 << 10, 1 << 20, slowGrace / 2, 0, false},
		{"a handler that thinks", 0, 8 << 10, 1 << 18, time.Second, time.Minute, false},
		{"small and late", 0, 10, 10, slowGrace / 2, 0, false},
		// What came early buys no more than the grace.
		{"fast, then nothing", 1 << 20, 1, 2 << 20, slowGrace + time.Second, 0, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				from := &sender{ResponseWriter: httptest.NewRecorder(), early: c.early, piece: c.piece, left: c.total, pause: c.pause, cut: make(chan struct{})}
				b := &intake{ReadCloser: from, control: *http.NewResponseController(from), ctx: t.Context(), rate: leastRate, grace: slowGrace, credit: slowGrace}
				var got int
				var err error
				for buf := make([]byte, 64<<10); err == nil; <-time.After(c.think) {
					var n int
					n, err = b.Read(buf)
					got += n
				}
				if c.cut {
					if !errors.Is(err, errSlow) || StatusOf(err) != http.StatusRequestTimeout || fault.HintOf(err) == "" {
						t.Errorf("after %d bytes: %v", got, err)
					}
				} else if !errors.Is(err, io.EOF) || got != c.total || !from.cleared {
					t.Errorf("%d of %d bytes, %v, deadline taken away: %v", got, c.total, err, from.cleared)
				}
				b.finish()
			})
		})
	}
}

// TestUploadsTakeSlots: with the first byte, and until the end of the body or of the
// request.
func TestUploadsTakeSlots(t *testing.T) {
	uploads := share.New(share.Limits{Name: "test_uploads", What: "uploads", Slots: 2, Wait: time.Nanosecond})
	upload := func(ctx context.Context, project string) *intake {
		return &intake{ReadCloser: io.NopCloser(bytes.NewReader(make([]byte, 100))), ctx: ctx, upload: uploads, owner: share.Owner{Project: project}, control: *http.NewResponseController(httptest.NewRecorder())}
	}
	one, other := upload(t.Context(), "a"), upload(t.Context(), "a")
	if uploads.Held() != 0 {
		t.Error("a slot was taken before a byte was read")
	}
	if _, err := one.Read(make([]byte, 10)); err != nil || uploads.Held() != 1 {
		t.Fatalf("%v; %d slots", err, uploads.Held())
	}
	if _, err := other.Read(make([]byte, 10)); StatusOf(err) != http.StatusTooManyRequests {
		t.Errorf("beyond the share of its project: %v", err)
	}
	if _, err := io.ReadAll(upload(t.Context(), "b")); err != nil {
		t.Errorf("another project: %v", err)
	}
	one.finish()
	one.finish()
	if _, err := io.ReadAll(other); err != nil || uploads.Held() != 0 {
		t.Errorf("when a slot was given back: %v; %d are held", err, uploads.Held())
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := upload(ctx, "c").Read(make([]byte, 1)); !errors.Is(err, context.Canceled) || uploads.Held() != 0 {
		t.Errorf("a client that has gone: %v; %d are held", err, uploads.Held())
	}
}
