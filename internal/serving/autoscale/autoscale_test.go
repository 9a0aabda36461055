package autoscale_test

import (
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/falaj-ml/falaj/internal/serving/autoscale"
)

var noon = time.Date(2013, 7, 1, 12, 0, 0, 0, time.UTC)

// steady is so many seconds of the same, the last one at noon.
func steady(seconds, inFlight int, answered int64, queued time.Duration) []autoscale.Sample {
	out := make([]autoscale.Sample, seconds)
	for i := range out {
		out[i] = autoscale.Sample{At: noon.Add(time.Duration(i-seconds+1) * time.Second), InFlight: inFlight, Answered: answered, Queued: queued}
	}
	return out
}

func TestDecide(t *testing.T) {
	perReplica := func(low, high int) autoscale.Limits {
		return autoscale.Limits{Min: low, Max: high, Concurrency: 4, Idle: 10 * time.Minute}
	}
	waits := autoscale.Limits{Min: 1, Max: 8, QueueTime: 50 * time.Millisecond}
	long := noon.Add(-time.Hour)
	for name, c := range map[string]struct {
		s      autoscale.Snapshot
		wanted int
		says   string
	}{
		"nothing is known": {autoscale.Snapshot{Limits: perReplica(1, 8), Running: 1}, 1, "one replica suffices"},
		"no traffic":       {autoscale.Snapshot{Limits: perReplica(1, 8), Running: 1, Samples: steady(60, 0, 0, 0)}, 1, "one replica suffices"},
		"at least":         {autoscale.Snapshot{Limits: perReplica(3, 8), Running: 3, Samples: steady(60, 0, 0, 0)}, 3, "the minimum is 3"},
		"as it should be":  {autoscale.Snapshot{Limits: perReplica(1, 8), Running: 2, Samples: steady(60, 8, 1, 0)}, 2, "8 in flight"},
		"a little more":    {autoscale.Snapshot{Limits: perReplica(1, 8), Running: 2, Samples: steady(60, 9, 1, 0)}, 3, "9 in flight"},
		"twice at a time":  {autoscale.Snapshot{Limits: perReplica(1, 8), Running: 1, Samples: steady(60, 100, 1, 0)}, 2, "twice 1 at a time"},
		"at most":          {autoscale.Snapshot{Limits: perReplica(1, 8), Running: 8, Samples: steady(60, 100, 1, 0)}, 8, "the maximum is 8"},
		"no core":          {autoscale.Snapshot{Limits: perReplica(1, 8), Running: 2, Useful: 2, Samples: steady(60, 100, 1, 0)}, 2, "exceed the cores"},
		"asked for anyway": {autoscale.Snapshot{Limits: perReplica(3, 8), Running: 3, Useful: 2, Samples: steady(60, 100, 1, 0)}, 3, "exceed the cores"},
		"a burst": {autoscale.Snapshot{
			Limits: perReplica(1, 8), Running: 2, Samples: slices.Concat(steady(60, 0, 0, 0)[:54], steady(6, 16, 1, 0)),
		}, 4, "16 in flight, averaged over 6s"},
		"a small burst": {autoscale.Snapshot{
			Limits: perReplica(1, 8), Running: 2, Samples: slices.Concat(steady(60, 1, 0, 0)[:54], steady(6, 12, 1, 0)), Past: []autoscale.Past{{At: noon, Need: 2}},
		}, 2, "were needed"},
		"down to half": {autoscale.Snapshot{Limits: perReplica(1, 8), Running: 8, Samples: steady(60, 1, 1, 0)}, 4, "one replica suffices; scaling down by half"},
		"down later": {autoscale.Snapshot{
			Limits: perReplica(1, 8), Running: 4, Samples: steady(60, 1, 1, 0),
			Past: []autoscale.Past{{At: noon.Add(-autoscale.Down), Need: 8}, {At: noon.Add(-autoscale.Down + time.Second), Need: 3}, {At: noon, Need: 1}},
		}, 3, "3 were needed within the last 2m0s"},
		"waits as it may":         {autoscale.Snapshot{Limits: waits, Running: 3, Samples: steady(60, 9, 10, 400*time.Millisecond)}, 3, "40ms"},
		"waits too long":          {autoscale.Snapshot{Limits: waits, Running: 3, Samples: steady(60, 9, 10, 600*time.Millisecond)}, 4, "requests wait 60ms"},
		"waits far too long":      {autoscale.Snapshot{Limits: waits, Running: 3, Samples: steady(60, 9, 10, 60*time.Second)}, 6, "requests wait 6s"},
		"another is being loaded": {autoscale.Snapshot{Limits: waits, Running: 3, Loading: true, Samples: steady(60, 9, 10, 60*time.Second)}, 3, "requests wait 6s"},
		"another has just come":   {autoscale.Snapshot{Limits: waits, Running: 3, Grown: noon, Samples: steady(60, 9, 10, 60*time.Second), Past: []autoscale.Past{{At: noon, Need: 3}}}, 3, "3 were needed"},
		"waits for nothing":       {autoscale.Snapshot{Limits: waits, Running: 3, Samples: steady(60, 9, 10, 100*time.Millisecond)}, 1, "one replica suffices"},
		"long ago":                {autoscale.Snapshot{Limits: perReplica(1, 8), Running: 1, Samples: []autoscale.Sample{{At: long, InFlight: 100}}}, 1, "one replica suffices"},

		"asked a while ago":    {autoscale.Snapshot{Limits: perReplica(0, 1), Running: 1, Asked: noon.Add(-10*time.Minute + 1)}, 1, "one replica suffices"},
		"not asked any more":   {autoscale.Snapshot{Limits: perReplica(0, 1), Running: 1, Asked: noon.Add(-10 * time.Minute)}, 0, "no request for 10m0s"},
		"all at once":          {autoscale.Snapshot{Limits: perReplica(0, 8), Running: 8, Asked: long, Past: []autoscale.Past{{At: noon, Need: 8}}}, 0, "no request for 1h0m0s"},
		"a request is running": {autoscale.Snapshot{Limits: perReplica(0, 1), Running: 1, Asked: long, Busy: true}, 1, "one replica suffices"},
		"no requests":          {autoscale.Snapshot{Limits: perReplica(0, 8), Asked: noon}, 0, "no request"},
		"never less than 1":    {autoscale.Snapshot{Limits: perReplica(1, 8), Running: 1, Asked: long}, 1, "one replica suffices"},
	} {
		t.Run(name, func(t *testing.T) {
			c.s.Now = noon
			d := autoscale.Decide(c.s)
			if d.Wanted != c.wanted || !strings.Contains(d.Reason, c.says) {
				t.Errorf("%d wanted: %s; and not %d: %s", d.Wanted, d.Reason, c.wanted, c.says)
			}
		})
	}
}

// snapshots draws what may be seen.
func snapshots(t *rapid.T) autoscale.Snapshot {
	low := rapid.IntRange(0, 5).Draw(t, "min")
	s := autoscale.Snapshot{
		Now: noon,
		Limits: autoscale.Limits{
			Min: low, Max: max(1, low) + rapid.IntRange(0, 20).Draw(t, "beyond"), Idle: time.Duration(rapid.IntRange(1, 600).Draw(t, "idle")) * time.Second,
			Concurrency: rapid.SampledFrom([]float64{0, 0.5, 1, 4, 100}).Draw(t, "concurrency"),
			QueueTime:   time.Duration(rapid.SampledFrom([]int{0, 1, 50, 1000}).Draw(t, "queue_time")) * time.Millisecond,
		},
		Running: rapid.IntRange(0, 30).Draw(t, "running"), Loading: rapid.Bool().Draw(t, "loading"), Useful: rapid.IntRange(0, 16).Draw(t, "useful"),
		Busy: rapid.Bool().Draw(t, "busy"), Asked: noon.Add(-time.Duration(rapid.IntRange(0, 900).Draw(t, "quiet")) * time.Second),
		Grown: noon.Add(-time.Duration(rapid.IntRange(0, 100).Draw(t, "grown")) * time.Second),
	}
	for range rapid.IntRange(0, 70).Draw(t, "samples") {
		s.Samples = append(s.Samples, autoscale.Sample{
			At: noon.Add(-time.Duration(rapid.IntRange(0, 70).Draw(t, "at")) * time.Second), InFlight: rapid.IntRange(0, 200).Draw(t, "in flight"),
			Answered: rapid.Int64Range(0, 100).Draw(t, "answered"), Queued: time.Duration(rapid.Int64Range(0, 1e11).Draw(t, "queued")),
		})
	}
	for range rapid.IntRange(0, 5).Draw(t, "past") {
		s.Past = append(s.Past, autoscale.Past{At: noon.Add(-time.Duration(rapid.IntRange(0, 150).Draw(t, "then")) * time.Second), Need: rapid.IntRange(0, 30).Draw(t, "need")})
	}
	return s
}

// TestDecideProperties: whatever was seen, the manifest's bounds hold, there is a
// reason, nobody who asks finds nothing, and the way is no longer than it may be.
func TestDecideProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := snapshots(t)
		d := autoscale.Decide(s)
		if d.Reason == "" {
			t.Error("no reason")
		}
		if again := autoscale.Decide(s); !reflect.DeepEqual(again, d) {
			t.Errorf("%+v, and then %+v", d, again)
		}
		quiet := s.Now.Sub(s.Asked) >= s.Idle || s.Running == 0
		switch {
		case d.Wanted == 0 && (s.Min > 0 || s.Busy || !quiet):
			t.Errorf("none is wanted: %s", d.Reason)
		case d.Wanted == 0:
			return
		case s.Min == 0 && !s.Busy && quiet:
			t.Errorf("%d are wanted that nobody asks for", d.Wanted)
		case d.Wanted < s.Min || d.Wanted > s.Max:
			t.Errorf("%d are wanted, of %d to %d: %s", d.Wanted, s.Min, s.Max, d.Reason)
		case d.Wanted > max(2*s.Running, 2, s.Min):
			t.Errorf("from %d to %d at once", s.Running, d.Wanted)
		case s.Useful > 0 && d.Wanted > max(s.Useful, s.Min, 1):
			t.Errorf("%d are wanted, and %d find a core", d.Wanted, s.Useful)
		}
		for _, p := range s.Past {
			most := min(p.Need, s.Running, s.Max)
			if s.Useful > 0 {
				most = min(most, max(s.Useful, s.Min, 1))
			}
			if s.Now.Sub(p.At) < autoscale.Down && d.Wanted < most {
				t.Errorf("%d are wanted, and %d were needed %s ago", d.Wanted, p.Need, s.Now.Sub(p.At))
			}
		}
	})
}

// TestMoreLoadMoreReplicas: more of the same load never wants fewer.
func TestMoreLoadMoreReplicas(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := snapshots(t)
		more := s
		more.Samples = slices.Clone(s.Samples)
		for i := range more.Samples {
			more.Samples[i].InFlight += rapid.IntRange(0, 10).Draw(t, "more")
			more.Samples[i].Queued += time.Duration(rapid.Int64Range(0, 1e10).Draw(t, "longer"))
		}
		if a, b := autoscale.Decide(s), autoscale.Decide(more); b.Wanted < a.Wanted {
			t.Errorf("%d are wanted, and %d of more load: %s; %s", a.Wanted, b.Wanted, a.Reason, b.Reason)
		}
	})
}

// simulate plays a load against the decisions, a second a step: replicas take a while
// to come, and go at once.
func simulate(l autoscale.Limits, seconds int, load func(second int) int, each func(second, running int)) {
	s := autoscale.Snapshot{Limits: l, Running: 1, Asked: noon}
	coming, since := 0, 0
	for i := range seconds {
		now := noon.Add(time.Duration(i) * time.Second)
		n := load(i)
		if n > 0 {
			s.Asked = now
			s.Running = max(1, s.Running) // it is loaded for who asks
		}
		s.Busy = n > 0
		s.Now, s.Samples = now, append(s.Samples, autoscale.Sample{At: now, InFlight: n})
		d := autoscale.Decide(s)
		s.Past = append(s.Past, autoscale.Past{At: now, Need: d.Need})
		s.Samples, s.Past = s.Samples[max(0, len(s.Samples)-60):], s.Past[max(0, len(s.Past)-120):] // the rest does not count
		if d.Wanted < s.Running {
			s.Running, coming = d.Wanted, 0
		} else if d.Wanted > s.Running && coming == 0 {
			coming, since = d.Wanted, i
		}
		if coming > 0 && i-since >= 3 {
			s.Running, s.Grown, coming = coming, now, 0
		}
		s.Loading = coming > 0
		each(i, s.Running)
	}
}

// TestSettles: a load that stays has its replicas within a while, and they do not come
// and go; when it is over they go one after the other, and all of them in the end.
func TestSettles(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 60).Draw(t, "load")
		l := autoscale.Limits{Min: 0, Max: 16, Concurrency: 4, Idle: 5 * time.Minute}
		want := min(16, int(math.Ceil(float64(n)/4)))
		const ends, all = 400, 1200
		before := 1
		simulate(l, all, func(i int) int {
			if i < ends {
				return n
			}
			return 0
		}, func(i, running int) {
			switch {
			case i >= 100 && i < ends && running != want:
				t.Errorf("at %d there are %d replicas for %d requests", i, running, n)
			case i < ends && running < before:
				t.Errorf("at %d they go: %d, and %d before", i, running, before)
			case i > ends && running > before:
				t.Errorf("at %d they come: %d, and %d before", i, running, before)
			case i > ends+60 && i < ends+119 && running < before-1 && before > 2 && running < before/2:
				t.Errorf("at %d too many go: %d, and %d before", i, running, before)
			case i > ends+301 && running != 0:
				t.Errorf("at %d there are %d", i, running)
			}
			before = running
		})
	})
}

// TestNoise: a load that swings around a replica's target does not make them come and
// go with it.
func TestNoise(t *testing.T) {
	changes, before := 0, 1
	simulate(autoscale.Limits{Min: 1, Max: 16, Concurrency: 4}, 3600, func(i int) int { return 8 + (i%7 - 3) }, func(i, running int) {
		if i > 120 && running != before {
			changes++
		}
		before = running
	})
	if changes > 2 {
		t.Errorf("%d changes in an hour", changes)
	}
}
