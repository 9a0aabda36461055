package remote

import (
	"slices"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/compute/engine"
	"github.com/falaj-ml/falaj/internal/worker/protocol"
)

// TestUnjoinedIsAReason: a launch that its engine has started and whose agents have not
// reported says so.
func TestUnjoinedIsAReason(t *testing.T) {
	started := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	c := Config{Name: "hpc", URL: "https://falaj.example:7070"}
	const reach = "A node must reach https://falaj.example:7070 (engines.hpc.url) and trust its certificate (engines.hpc.ca)"
	for name, tt := range map[string]struct {
		workers, joined int
		state           engine.State
		after           time.Duration
		want            []string
	}{
		"it waits":        {1, 0, engine.Pending, time.Minute, nil},
		"it just started": {1, 0, engine.Running, time.Second, []string{"hpc runs it since 2026-05-01T12:00:00Z, and the worker has not joined"}},
		"it does not come": {1, 0, engine.Running, time.Minute, []string{
			"hpc runs it since 2026-05-01T12:00:00Z, and the worker has not joined", reach,
		}},
		"half of a gang": {4, 2, engine.Running, time.Minute, []string{
			"hpc runs it since 2026-05-01T12:00:00Z, and 2 of 4 workers have not joined", reach,
		}},
		"all are there": {2, 2, engine.Running, time.Minute, nil},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWork(&c, engine.Spec{ID: "att_1", Workers: tt.workers})
			for i := range tt.joined {
				w.members[i].Join, w.members[i].Joined = protocol.Join{Start: "start-0001"}, started
			}
			w.observed = Observed{State: tt.state, Started: started}
			if got := w.unjoined(started.Add(tt.after)); !slices.Equal(got, tt.want) {
				t.Errorf("%q, want %q", got, tt.want)
			}
		})
	}
}
