package lifecycle_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/lifecycle"
)

func TestPassEnds(t *testing.T) {
	now := time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)
	p := lifecycle.NewPass(func() time.Time { return now })
	for _, tt := range []struct {
		after time.Duration
		over  bool
	}{{0, false}, {9*time.Minute + 59*time.Second, false}, {time.Second, true}, {time.Hour, true}} {
		if now = now.Add(tt.after); p.Over() != tt.over {
			t.Errorf("at %s: %v", now, p.Over())
		}
	}
}

func TestPassRepeats(t *testing.T) {
	failed := errors.New("failed")
	for _, tt := range []struct {
		name  string
		more  int           // steps that say that there is more
		takes time.Duration // each
		err   error         // of the third step
		want  int
	}{
		{"all of it", 4, time.Minute, nil, 5},
		{"until it is over", 100, 4 * time.Minute, nil, 3},
		{"one in any case", 100, time.Hour, nil, 1},
		{"until an error", 100, time.Second, failed, 3},
	} {
		t.Run(tt.name, func(t *testing.T) {
			now, steps := time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC), 0
			err := lifecycle.NewPass(func() time.Time { return now }).Repeat(t.Context(), func(context.Context) (bool, error) {
				now = now.Add(tt.takes)
				if steps++; steps == 3 {
					return true, tt.err
				}
				return steps <= tt.more, nil
			})
			if steps != tt.want || !errors.Is(err, tt.err) {
				t.Errorf("%d steps, %v; want %d", steps, err, tt.want)
			}
		})
	}
	ended, end := context.WithCancel(t.Context())
	end()
	if err := lifecycle.NewPass(time.Now).Repeat(ended, func(context.Context) (bool, error) { t.Error("a step"); return false, nil }); err == nil {
		t.Error("no error")
	}
}
