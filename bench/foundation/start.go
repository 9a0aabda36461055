package main

import (
	"context"
	"math"
	"path/filepath"
	"strconv"
	"time"

	"github.com/falaj-ml/falaj/bench/harness"
)

// starts measures the start on a new and on an existing directory, alternating,
// and the memory of a server at rest.
func (b *bench) starts(ctx context.Context) error {
	var fresh, again, anon, rss []float64
	for round := range b.Rounds {
		data := filepath.Join(b.Dir, "start"+strconv.Itoa(round))
		for _, times := range []*[]float64{&fresh, &again} {
			s, err := b.Up(ctx, data, -1)
			if err != nil {
				return err
			}
			if err := s.MustBeReady(ctx); err != nil {
				_ = s.Stop()
				return err
			}
			*times = append(*times, harness.Millis(s.Ready))
			if times == &again && round < 3 { // memory hardly differs between rounds, and waiting for rest takes long
				a, r, err := b.atRest(ctx, s)
				if err != nil {
					_ = s.Stop()
					return err
				}
				anon, rss = append(anon, a), append(rss, r)
			}
			if err := s.Stop(); err != nil {
				return err
			}
		}
	}
	b.Add(harness.Row{
		Name: "start to ready, new data directory", Unit: "ms", Better: harness.Lower, Ours: harness.Value(harness.Median(fresh)),
		Note: "falaj up until it says that it is ready and /readyz agrees: keys, database and migrations, admin token",
	})
	b.Add(harness.Row{Name: "start to ready, existing data directory", Unit: "ms", Better: harness.Lower, Ours: harness.Value(harness.Median(again))})
	b.Add(harness.Row{
		Name: "RssAnon at rest", Unit: "MiB", Better: harness.Lower, Ours: harness.Value(harness.Median(anon)), Aim: &harness.Aim{Value: harness.Value(80)},
		Note: "after a start, when it has stayed within 0.25 MiB for some seconds",
	})
	b.Add(harness.Row{
		Name: "RSS at rest", Unit: "MiB", Better: harness.Lower, Ours: harness.Value(harness.Median(rss)),
		Note: "with the pages of the binary, which the kernel may drop",
	})
	return nil
}

// atRest waits until the anonymous memory of the server stays the same.
func (b *bench) atRest(ctx context.Context, s *harness.Server) (anon, rss float64, err error) {
	calm, limit := 4*time.Second, 20*time.Second
	if b.Quick {
		calm, limit = 300*time.Millisecond, 2*time.Second
	}
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	began := time.Now()
	since, last := began, -1.0
	for {
		anon, rss = harness.Resident(s.PID())
		now := time.Now()
		if math.Abs(anon-last) > 0.25 {
			since, last = now, anon
		}
		if now.Sub(since) >= calm || now.Sub(began) >= limit {
			return anon, rss, nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return 0, 0, ctx.Err()
		}
	}
}
