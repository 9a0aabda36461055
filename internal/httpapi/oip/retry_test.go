package oip

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
)

// TestRetryAfter: who is refused for now hears when it is worth coming back.
func TestRetryAfter(t *testing.T) {
	busy := fault.New(fault.Unavailable, "busy")
	for want, err := range map[string]error{"": busy, "1": fault.Wrap(busy.WithRetry(time.Millisecond), "infer"), "3": busy.WithRetry(2500 * time.Millisecond)} {
		w := httptest.NewRecorder()
		Refuse(w, http.StatusServiceUnavailable, err)
		if got := w.Header().Get("Retry-After"); got != want || w.Code != http.StatusServiceUnavailable {
			t.Errorf("%v: Retry-After %q, want %q", err, got, want)
		}
	}
}
