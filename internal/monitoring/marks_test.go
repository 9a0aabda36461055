package monitoring_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/monitoring"
	"github.com/falaj-ml/falaj/internal/serving/prediction"
)

// TestWatermarks: each clock has its own. Who awaits a replay would otherwise go on at
// once, because one live request was answered before.
func TestWatermarks(t *testing.T) {
	live := func(rec *prediction.Record) { rec.Replay = false }
	for _, test := range []struct {
		name                string
		live, replay        bool
		watermark, replayed time.Time
	}{
		{name: "nothing"},
		{name: "live", live: true, watermark: begin.Add(12 * time.Hour)},
		{name: "replay", replay: true, watermark: date(-30), replayed: date(-30)},
		{name: "both", live: true, replay: true, watermark: begin.Add(12 * time.Hour), replayed: date(-30)},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := newWorld(t)
			w.now = begin.Add(24 * time.Hour)
			s := w.service(nil)
			w.apply(s, monitoring.Spec{})
			r := rand.New(rand.NewPCG(3, 4))
			if test.live {
				w.predict(r, begin.Add(12*time.Hour), 0, live)
			}
			if test.replay {
				w.predict(r, date(-31), 0, nil)
				w.predict(r, date(-30), 0, nil)
				w.predict(r, date(-31), 0, nil)
			}
			w.run(s)
			w.now = w.now.Add(time.Hour) // what was read is written
			w.run(s)
			m, err := s.One(t.Context(), "nyc", "delay")
			if err != nil {
				t.Fatal(err)
			}
			for _, mark := range []struct {
				name string
				got  *time.Time
				want time.Time
			}{{"watermark", m.Watermark, test.watermark}, {"replayed", m.Replayed, test.replayed}} {
				switch {
				case mark.got == nil && !mark.want.IsZero(), mark.got != nil && !mark.got.Equal(mark.want):
					t.Errorf("%s is %v, want %v", mark.name, mark.got, mark.want)
				}
			}
		})
	}
}
