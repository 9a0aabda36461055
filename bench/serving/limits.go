package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/falaj-ml/falaj/bench/harness"
)

// limits measures what a request costs beyond an HTTP echo of its bytes and the run
// of the model alone, and how many rows of large requests come through.
func (s *site) limits(ctx context.Context) error {
	for i := range s.models {
		for _, raw := range []bool{true, false} {
			for _, at := range s.concurrency(1, 8, 64) {
				if err := s.beyond(ctx, cell{&s.models[i], raw, at, s.quick(500 * time.Millisecond)}); err != nil {
					return err
				}
			}
			if err := s.added(ctx, &s.models[i], raw); err != nil {
				return err
			}
		}
	}
	if err := s.logged(ctx); err != nil {
		return err
	}
	for i := range s.models {
		for _, rows := range []int{32, 256} {
			if err := s.wide(ctx, &s.models[i], rows); err != nil {
				return err
			}
		}
	}
	return nil
}

// echoed is the same requests to the echo.
func (s *site) echoed(t *target) *target {
	return &target{on: s.echo.on, side: s.echo.title, address: s.echo.on.URL[len("http://"):], requests: t.requests}
}

// beyond adds the CPU time of a request over that of an echo and a run.
func (s *site) beyond(ctx context.Context, c cell) error {
	ours, apart := s.ours.target(c.m, c.m.Name, 1, c.raw), s.apart.target(c.m, c.m.Name, 1, c.raw)
	targets := []*target{ours, apart, s.echoed(ours)}
	var more, moreApart, echo, runs []float64
	for range s.Rounds {
		var micros []float64
		for _, t := range targets {
			f, err := t.closed(ctx, c.at, c.span)
			if err != nil {
				return fmt.Errorf("%s: %w", c, err)
			}
			micros = append(micros, 1e6/f.perCPU)
		}
		run, err := s.loop.run(c.m, 1, c.span/2)
		if err != nil {
			return err
		}
		least := micros[2] + 1e6*run.CPU
		more, moreApart = append(more, micros[0]-least), append(moreApart, micros[1]-least)
		echo, runs = append(echo, micros[2]), append(runs, 1e6*run.CPU)
	}
	row := harness.Row{
		Name: c.String() + ": CPU of a request over an echo and a run", Unit: "µs", Better: harness.Lower, Ours: middle(more), Detail: c.at == 64,
		Note: fmt.Sprintf("the echo takes %.3g µs, the run alone %.3g µs; median of the rounds' differences", *middle(echo), *middle(runs)),
	}
	switch {
	case c.raw:
		row.Aim = &harness.Aim{Value: harness.Value(15)}
	case c.m.Name == "iris":
		row.Aim = &harness.Aim{Value: harness.Value(40)}
	}
	s.Add(row)
	row.Name, row.Ours, row.Aim = c.String()+": CPU of a request over an echo and a run, the model in a process of its own", middle(moreApart), nil
	s.Add(row)
	return nil
}

// added adds the time of a request over that of an echo and a run.
func (s *site) added(ctx context.Context, m *model, raw bool) error {
	const rate = 1000
	ours, apart := s.ours.target(m, m.Name, 1, raw), s.apart.target(m, m.Name, 1, raw)
	targets := []*target{ours, apart, s.echoed(ours)}
	var more, moreApart []float64
	for range s.Rounds {
		var p50 []float64
		for _, t := range targets {
			times, err := t.open(ctx, rate, s.quick(800*time.Millisecond))
			if err != nil {
				return err
			}
			p50 = append(p50, 1e3*harness.Quantile(harness.AllMillis(times), 0.5))
		}
		run, err := s.loop.run(m, 1, s.quick(200*time.Millisecond))
		if err != nil {
			return err
		}
		least := p50[2] + 1e6*run.Wall
		more, moreApart = append(more, p50[0]-least), append(moreApart, p50[1]-least)
	}
	row := harness.Row{
		Name: fmt.Sprintf("%s, %s: p50 over an echo and a run", m.Title, form(raw)), Unit: "µs", Better: harness.Lower, Ours: middle(more),
		Aim: &harness.Aim{Value: harness.Value(60)}, Note: fmt.Sprintf("%d requests a second at fixed times; median of the rounds' differences", rate),
	}
	s.Add(row)
	row.Name, row.Ours, row.Aim = fmt.Sprintf("%s, %s: p50 over an echo and a run, the model in a process of its own", m.Title, form(raw)), middle(moreApart), nil
	s.Add(row)
	return nil
}

// logged adds what remembering answers costs.
func (s *site) logged(ctx context.Context) error {
	i := slices.IndexFunc(s.models, func(m model) bool { return m.Name == "iris" })
	m := &s.models[i]
	for _, raw := range []bool{true, false} {
		c := cell{m, raw, 8, s.quick(500 * time.Millisecond)}
		tallies, err := s.rounds(ctx, c, []*target{s.ours.target(m, "iris-logged", 1, raw), s.ours.target(m, m.Name, 1, raw)})
		if err != nil {
			return err
		}
		s.Add(harness.Row{
			Name: c.String() + ": requests, answers remembered", Unit: "1/CPU-s", Better: harness.Higher, Ours: middle(tallies[0].perCPU), Theirs: middle(tallies[1].perCPU),
			Peer: "the same with prediction.log: false", Note: ratios(tallies[0].perCPU, tallies[1].perCPU),
		})
	}
	return nil
}

// wide adds rows of large requests, beside those of the model in a loop.
func (s *site) wide(ctx context.Context, m *model, rows int) error {
	span := s.quick(500 * time.Millisecond)
	targets := []*target{s.ours.target(m, m.Name, rows, true), s.apart.target(m, m.Name, rows, true)}
	var ours, apart, alone []float64
	for range s.Rounds {
		for i, t := range targets {
			f, err := t.closed(ctx, 8, span)
			if err != nil {
				return err
			}
			if i == 0 {
				ours = append(ours, f.perSecond*float64(rows))
			} else {
				apart = append(apart, f.perSecond*float64(rows))
			}
		}
		run, err := s.loop.run(m, rows, span)
		if err != nil {
			return err
		}
		alone = append(alone, float64(rows)/run.Wall)
	}
	for _, side := range []struct {
		name string
		got  []float64
		aim  *harness.Aim
	}{{"", ours, &harness.Aim{Ratio: harness.Value(0.85)}}, {", the model in a process of its own", apart, nil}} {
		s.Add(harness.Row{
			Name: fmt.Sprintf("%s, binary, %d rows a request%s", m.Title, rows, side.name), Unit: "rows/s", Better: harness.Higher, Ours: middle(side.got), Theirs: middle(alone),
			Peer: "the model in a loop", Aim: side.aim, Note: ratios(side.got, alone) + "; 8 at a time",
		})
	}
	return nil
}

// shared measures what requests gain that share runs of a large model, and what its
// weights in int8 add to that.
func (s *site) shared(ctx context.Context) error {
	float, eighth := &s.models[0], &s.models[1]
	c := cell{float, true, s.concurrency(64)[0], s.quick(time.Second)}
	targets := []*target{
		s.ours.target(float, float.Name, 1, true), s.ours.target(float, "mlp-large-alone", 1, true), s.ours.target(eighth, eighth.Name, 1, true),
		s.apart.target(float, float.Name, 1, true),
	}
	tallies, err := s.rounds(ctx, c, targets)
	if err != nil {
		return err
	}
	add := func(name string, ours, theirs *tally, peer string, aim *harness.Aim) {
		s.Add(harness.Row{
			Name: name, Unit: "1/s", Better: harness.Higher, Ours: middle(ours.perSecond), Theirs: middle(theirs.perSecond), Peer: peer, Aim: aim,
			Note: ratios(ours.perSecond, theirs.perSecond),
		})
	}
	goal := &harness.Aim{Ratio: harness.Value(2.5)}
	add(c.String()+": single rows that share runs", tallies[0], tallies[1], "the same with batching.max_rows: 1", goal)
	add(c.String()+": in int8", tallies[2], tallies[0], "in float32, batched, too", goal)
	add(c.String()+": single rows that share runs, the model in a process of its own", tallies[3], tallies[0], s.ours.title, nil)
	for _, d := range s.peers {
		if d.on == nil {
			s.Add(harness.Row{Name: c.String() + ": single rows that share runs, beside " + d.title, Unit: "1/s", Better: harness.Higher, Ours: middle(tallies[0].perSecond), Peer: d.title, Note: d.reason})
			continue
		}
		name, peer := float.Name+"-batched", d.title+" with its batching"
		if d.title == pytriton.title { // it always batches
			name = float.Name
		}
		c.raw = d.raw
		both, err := s.rounds(ctx, c, []*target{s.ours.target(float, float.Name, 1, c.raw), d.target(float, name, 1, c.raw)})
		if err != nil {
			return err
		}
		add(c.String()+": single rows that share runs, beside "+d.title, both[0], both[1], peer, nil)
	}
	return nil
}
