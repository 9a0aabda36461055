package main

import (
	"context"
	"math"
	"path/filepath"
	"strconv"
	"time"
)

// starts measures the start on a new and on an existing directory, alternating,
// and the memory of a server at rest.
func (b *bench) starts(ctx context.Context) error {
	var fresh, again, anon, rss []float64
	for round := range b.rounds {
		data := filepath.Join(b.dir, "start"+strconv.Itoa(round))
		for _, times := range []*[]float64{&fresh, &again} {
			s, err := b.up(ctx, data, -1)
			if err != nil {
				return err
			}
			if err := s.mustBeReady(ctx); err != nil {
				_ = s.stop()
				return err
			}
			*times = append(*times, millis(s.ready))
			if times == &again && round < 3 { // memory hardly differs between rounds, and waiting for rest takes long
				a, r, err := b.atRest(ctx, s)
				if err != nil {
					_ = s.stop()
					return err
				}
				anon, rss = append(anon, a), append(rss, r)
			}
			if err := s.stop(); err != nil {
				return err
			}
		}
	}
	b.add(row{
		Name: "start to ready, new data directory", Unit: "ms", Better: lower, Ours: value(median(fresh)),
		Note: "falaj up until it says that it is ready and /readyz agrees: keys, database and migrations, admin token",
	})
	b.add(row{Name: "start to ready, existing data directory", Unit: "ms", Better: lower, Ours: value(median(again))})
	b.add(row{
		Name: "RssAnon at rest", Unit: "MiB", Better: lower, Ours: value(median(anon)), Aim: &aim{Value: value(80)},
		Note: "after a start, when it has stayed within 0.25 MiB for some seconds",
	})
	b.add(row{
		Name: "RSS at rest", Unit: "MiB", Better: lower, Ours: value(median(rss)),
		Note: "with the pages of the binary, which the kernel may drop",
	})
	return nil
}

// atRest waits until the anonymous memory of the server stays the same.
func (b *bench) atRest(ctx context.Context, s *server) (anon, rss float64, err error) {
	calm, limit := 4*time.Second, 20*time.Second
	if b.quick {
		calm, limit = 300*time.Millisecond, 2*time.Second
	}
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	began := time.Now()
	since, last := began, -1.0
	for {
		anon, rss = resident(s.pid())
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
