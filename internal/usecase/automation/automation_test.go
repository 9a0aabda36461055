package automation

import (
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/monitoring"
)

// TestNowOfAFinding: a version is tried now, not when the window ended for which it was
// trained: a cool-down of what ended in between would be counted from the wrong side.
func TestNowOfAFinding(t *testing.T) {
	found := time.Date(2013, 6, 24, 0, 0, 0, 0, time.UTC)
	wall := time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
	replayed, before := found.Add(14*time.Hour), found.Add(-time.Hour)
	for _, test := range []struct {
		name     string
		replay   bool
		replayed *time.Time
		found    time.Time
		want     time.Time
	}{
		{"live", false, nil, wall.Add(-12 * time.Hour), wall},
		{"live, beside a replay", false, &replayed, wall.Add(-12 * time.Hour), wall},
		{"live, a clock that is behind", false, nil, wall.Add(time.Minute), wall.Add(time.Minute)},
		{"replay", true, &replayed, found, replayed},
		{"replay, nothing known", true, nil, found, found},
		{"replay, of an earlier time again", true, &before, found, found},
	} {
		if got := nowOf(monitoring.Finding{Replay: test.replay}, monitoring.Status{Replayed: test.replayed}, test.found, wall); !got.Equal(test.want) {
			t.Errorf("%s: %s, want %s", test.name, got, test.want)
		}
	}
}
