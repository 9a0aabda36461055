package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/falaj-ml/falaj/bench/harness"
)

// cell is a model, a form, and how many ask at a time.
type cell struct {
	m    *model
	raw  bool
	at   int
	span time.Duration
}

func (c cell) String() string {
	return fmt.Sprintf("%s, %s, %d at a time", c.m.Title, form(c.raw), c.at)
}

// tally is what rounds gave for a side.
type tally struct {
	perSecond, perCPU, own []float64
	p50                    []float64
	all                    []float64 // latencies of all rounds, in ms
}

// noServer is said of the peer that there is none of.
var noServer = &side{
	title:  "a C++ server over ONNX Runtime",
	reason: "no server in C++ over ONNX Runtime is in a package registry: kibae/onnxruntime-server and the onnxruntime backend of Triton are built from GitHub, or come in an image of NVIDIA's",
}

func (s *site) quick(span time.Duration) time.Duration {
	if s.Quick {
		return 30 * time.Millisecond
	}
	return span
}

func (s *site) concurrency(all ...int) []int {
	if s.Quick {
		return []int{8}
	}
	return all
}

func (s *site) small(ctx context.Context) error {
	for i := range s.models {
		for _, raw := range []bool{false, true} {
			if err := s.compare(ctx, &s.models[i], raw, s.concurrency(1, 8, 64, 300), s.quick(400*time.Millisecond), time.Second); err != nil {
				return err
			}
		}
	}
	return s.memory(ctx, "three small models")
}

func (s *site) large(ctx context.Context) error {
	for i := range s.models {
		if err := s.compare(ctx, &s.models[i], false, s.concurrency(8), s.quick(600*time.Millisecond), 600*time.Millisecond); err != nil {
			return err
		}
		if err := s.compare(ctx, &s.models[i], true, s.concurrency(1, 8, 64, 300), s.quick(600*time.Millisecond), time.Second); err != nil {
			return err
		}
	}
	return s.memory(ctx, "three large models")
}

func (s *site) ray(ctx context.Context) error {
	s.again = true
	for i := range s.models {
		for _, raw := range []bool{false, true} {
			if err := s.compare(ctx, &s.models[i], raw, s.concurrency(8), s.quick(time.Second), time.Second); err != nil {
				return err
			}
		}
	}
	return s.memory(ctx, "all models")
}

// there are the sides that are measured for a form, ours first.
func (s *site) there(raw bool) []*side {
	sides := []*side{s.ours}
	if !s.again {
		sides = append(sides, s.apart)
	}
	for _, d := range s.peers {
		if d.on != nil && (d.raw || !raw) {
			sides = append(sides, d)
		}
	}
	return sides
}

// compare asks all sides for a model, without pause and at fixed times.
func (s *site) compare(ctx context.Context, m *model, raw bool, concurrency []int, span, open time.Duration) error {
	sides := s.there(raw)
	targets := make([]*target, len(sides))
	for i, d := range sides {
		targets[i] = d.target(m, m.Name, 1, raw)
	}
	rate := 0.0
	for _, at := range concurrency {
		c := cell{m, raw, at, span}
		tallies, err := s.rounds(ctx, c, targets)
		if err != nil && ctx.Err() == nil { // a server that refuses is a result
			s.Add(harness.Row{Name: c.String() + ": requests", Unit: "1/CPU-s", Better: harness.Higher, Note: fmt.Sprintf("not measured: %.300s", err)})
			continue
		}
		if err != nil {
			return err
		}
		if at == 8 {
			rate = slowest(tallies) / 2
		}
		s.rates(c, sides, tallies)
	}
	if rate == 0 {
		return nil
	}
	tallies, err := s.latencies(ctx, targets, rate, s.quick(open))
	if err != nil {
		return fmt.Errorf("%s, %s, %.0f a second: %w", m.Title, form(raw), rate, err)
	}
	s.times(m, raw, rate, sides, tallies)
	return nil
}

func slowest(tallies []*tally) float64 {
	least := harness.Median(tallies[0].perSecond)
	for _, t := range tallies[1:] {
		least = min(least, harness.Median(t.perSecond))
	}
	return least
}

// rounds asks targets without pause, one after the other in each round.
func (s *site) rounds(ctx context.Context, c cell, targets []*target) ([]*tally, error) {
	tallies := make([]*tally, len(targets))
	for range s.Rounds {
		for i, t := range targets {
			f, err := t.closed(ctx, c.at, c.span)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", t.side, err)
			}
			if tallies[i] == nil {
				tallies[i] = &tally{}
			}
			tallies[i].perSecond, tallies[i].perCPU, tallies[i].own = append(tallies[i].perSecond, f.perSecond), append(tallies[i].perCPU, f.perCPU), append(tallies[i].own, f.own)
		}
	}
	return tallies, nil
}

// latencies asks targets at a fixed rate.
func (s *site) latencies(ctx context.Context, targets []*target, rate float64, span time.Duration) ([]*tally, error) {
	tallies := make([]*tally, len(targets))
	for range s.Rounds {
		for i, t := range targets {
			times, err := t.open(ctx, rate, span)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", t.side, err)
			}
			if tallies[i] == nil {
				tallies[i] = &tally{}
			}
			ms := harness.AllMillis(times)
			tallies[i].p50, tallies[i].all = append(tallies[i].p50, harness.Quantile(ms, 0.5)), append(tallies[i].all, ms...)
		}
	}
	return tallies, nil
}

// ratios are how many times better ours is in the single rounds, in words.
func ratios(ours, theirs []float64) string {
	all := make([]float64, len(ours))
	for i := range ours {
		all[i] = ours[i] / theirs[i]
	}
	return fmt.Sprintf("%.3g to %.3g times in single rounds", slices.Min(all), slices.Max(all))
}

// rates adds what ours and each peer can. The sides are those of there.
func (s *site) rates(c cell, sides []*side, tallies []*tally) {
	ours := tallies[0]
	small := slices.Contains([]string{"iris", "boosting", "mlp"}, c.m.Name)
	for i, d := range sides[1:] {
		theirs := tallies[i+1]
		row := harness.Row{
			Name: fmt.Sprintf("%s: requests, beside %s", c, d.title), Unit: "1/CPU-s", Better: harness.Higher, Peer: d.title, Detail: c.at != 8 || !small && !c.raw,
			Note: ratios(ours.perCPU, theirs.perCPU) + fmt.Sprintf("; the load took %.0f %% of its core for ours", 100*slices.Max(ours.own)),
		}
		perSecond := row
		perSecond.Name, perSecond.Unit, perSecond.Detail, perSecond.Note = fmt.Sprintf("%s: requests a second, beside %s", c, d.title), "1/s", true, ratios(ours.perSecond, theirs.perSecond)
		if small && !c.raw && (d.title == mlserver.title || d.title == bentoml.title) {
			row.Aim = &harness.Aim{Ratio: harness.Value(15)}
		}
		mine := ours
		if d == s.apart { // told the other way round: what a process of its own costs
			mine, theirs = theirs, ours
			row.Name, row.Peer = fmt.Sprintf("%s: requests, the model in a process of its own", c), s.ours.title
			perSecond.Name, perSecond.Peer = fmt.Sprintf("%s: requests a second, the model in a process of its own", c), s.ours.title
			row.Note, perSecond.Note = ratios(mine.perCPU, ours.perCPU), ratios(mine.perSecond, ours.perSecond)
		}
		row.Ours, row.Theirs = middle(mine.perCPU), middle(theirs.perCPU)
		perSecond.Ours, perSecond.Theirs = middle(mine.perSecond), middle(theirs.perSecond)
		s.Add(row)
		s.Add(perSecond)
	}
	missing := s.peers
	if c.m.Name == "iris" && c.raw && c.at == 8 && !s.again {
		missing = append(slices.Clip(missing), noServer)
	}
	for _, d := range missing {
		if d.on == nil {
			s.Add(harness.Row{
				Name: fmt.Sprintf("%s: requests, beside %s", c, d.title), Unit: "1/CPU-s", Better: harness.Higher, Ours: middle(ours.perCPU), Peer: d.title,
				Detail: c.m.Name != "iris" || !c.raw || c.at != 8, Note: d.reason,
			})
		}
	}
}

// middle is the median, of a copy.
func middle(values []float64) *float64 {
	return harness.Value(harness.Median(slices.Clone(values)))
}

// times adds latencies.
func (s *site) times(m *model, raw bool, rate float64, sides []*side, tallies []*tally) {
	ours := tallies[0]
	note := fmt.Sprintf("%.0f requests a second at fixed times, half of what the slowest can; %d of each", rate, len(ours.all))
	for i, d := range sides[1:] {
		theirs := tallies[i+1]
		row := harness.Row{Unit: "ms", Better: harness.Lower, Peer: d.title, Note: note, Detail: m.Name != "iris"}
		beside, mine := "beside "+d.title, ours
		if d == s.apart {
			beside, row.Peer, mine, theirs = "the model in a process of its own", s.ours.title, theirs, ours
		}
		row.Name, row.Ours, row.Theirs = fmt.Sprintf("%s, %s: p50, %s", m.Title, form(raw), beside), middle(mine.p50), middle(theirs.p50)
		s.Add(row)
		row.Name = fmt.Sprintf("%s, %s: p99, %s", m.Title, form(raw), beside)
		row.Ours, row.Theirs = quantile(mine.all, 0.99), quantile(theirs.all, 0.99)
		s.Add(row)
	}
}

func quantile(values []float64, q float64) *float64 {
	return harness.Value(harness.Quantile(slices.Clone(values), q))
}

// memory adds what each side has in memory after all that.
func (s *site) memory(_ context.Context, what string) error {
	ours := harness.TreeMemory(s.ours.on.PID())
	for _, d := range s.there(false)[1:] {
		row := harness.Row{
			Name: fmt.Sprintf("memory with %s, beside %s", what, d.title), Unit: "MiB", Better: harness.Lower, Ours: harness.Value(ours),
			Theirs: harness.Value(harness.TreeMemory(d.on.PID())), Peer: d.title, Note: "after the load; of all processes of a side, what they share divided",
		}
		if d == s.apart {
			row.Name, row.Peer = fmt.Sprintf("memory with %s, each in a process of its own", what), s.ours.title
			row.Ours, row.Theirs = row.Theirs, row.Ours
		}
		s.Add(row)
	}
	return nil
}
