package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"math/rand/v2"
	"strconv"
	"sync"

	"github.com/falaj-ml/falaj/bench/harness"
	"github.com/falaj-ml/falaj/internal/drift"
	"github.com/falaj-ml/falaj/internal/monitoring"
	"github.com/falaj-ml/falaj/internal/serving/prediction"
)

const (
	trained = 10_000 // rows of a baseline
	after   = 20_000 // rows of a stream after the change
)

// synthetic is a model that looks at three of the inputs, of which one drifts: a
// shift of 1 moves the logit by 0.58 of its standard deviation.
func synthetic(row []float64) float64 {
	return logistic((row[driftedColumn] + row[0] + row[1]) / math.Sqrt(3))
}

func logistic(x float64) float64 { return 1 / (1 + math.Exp(-x)) }

// sensitive tells of a drift in any input; the default needs 30 % of them, or the
// score.
const sensitive = 0.01

// delay measures how many rows pass from a change in the data to the event that
// tells of it.
func (b *bench) delay(ctx context.Context) error {
	streams := 20
	if b.Quick {
		streams = 2
	}
	w, err := b.watch(ctx, "delay")
	if err != nil {
		return err
	}
	defer func() { _ = w.db.Close() }()
	for _, c := range []struct {
		name   string
		window int64
		share  float64
	}{
		{"windows of 1,000 rows, any input", 1000, sensitive},
		{"windows of 5,000 rows, any input", 5000, sensitive},
		{"windows of 1,000 rows, default share", 1000, 0},
	} {
		for _, shift := range []float64{0.25, 0.5, 1} {
			var rows []float64
			early := 0
			for i := range streams {
				got, before, err := b.delayOfMonitor(ctx, w, c.window, c.share, shift, uint64(i))
				if err != nil {
					return err
				}
				rows = append(rows, got)
				early += before
			}
			note := "one of 13 normal inputs shifts, at a random place of a window; Wasserstein against 10,000 rows"
			if c.share == 0 {
				note += "; a lone input is under the default share of 30 %, so that this waits for the score, whose logit moves by 0.58 of the shift"
			}
			b.addDelay(fmt.Sprintf("drift of %v SD to its event, %s", shift, c.name), note, rows, early)
		}
	}
	for _, d := range []struct {
		name string
		make func() interface{ Update(float64) bool }
	}{
		{"ADWIN", func() interface{ Update(float64) bool } { return drift.NewADWIN(0) }},
		{"Page-Hinkley", func() interface{ Update(float64) bool } { return drift.NewPageHinkley(0, 0) }},
	} {
		for _, shift := range []float64{0.25, 0.5, 1} {
			var rows []float64
			early := 0
			for i := range streams {
				r := rand.New(rand.NewPCG(uint64(i), 7)) //nolint:gosec // Repeatable, not secret.
				detector, got := d.make(), math.Inf(1)
				for n := range trained + after {
					s := 0.0
					if n >= trained {
						s = shift
					}
					switch changed := detector.Update(synthetic(stream(r, s))); {
					case changed && n < trained:
						early++
					case changed:
						got = float64(n - trained + 1)
					}
					if !math.IsInf(got, 1) {
						break
					}
				}
				rows = append(rows, got)
			}
			b.addDelay(fmt.Sprintf("drift of %v SD to its detection in the scores, %s", shift, d.name),
				"after 10,000 rows without a change, defaults; the logit of the score moves by 0.58 of the shift", rows, early)
		}
	}
	return nil
}

// stream is one row; the drifted column is shifted.
func stream(r *rand.Rand, shift float64) []float64 {
	row := make([]float64, windowColumns)
	for i := range row {
		row[i] = r.NormFloat64()
	}
	row[driftedColumn] += shift
	return row
}

// delayOfMonitor is the rows from the change to the last row of the window that is
// told of, and how many windows before it were told of.
func (b *bench) delayOfMonitor(ctx context.Context, w *watch, window int64, share, shift float64, seed uint64) (rows float64, early int, err error) {
	r := rand.New(rand.NewPCG(seed, uint64(window))) //nolint:gosec // Repeatable, not secret.
	one := &replay{names: columnNames(), model: synthetic, baseline: make([][]float64, windowColumns)}
	for range trained {
		for c, v := range stream(r, 0) {
			one.baseline[c] = append(one.baseline[c], v)
		}
	}
	change := int(window + r.Int64N(window))
	for n := range change + min(after, 4*int(window)) {
		s := 0.0
		if n >= change {
			s = shift
		}
		one.records = append(one.records, record(n, one.names, stream(r, s), synthetic))
	}
	spec := monitoring.Spec{Window: monitoring.WindowSpec{Rows: window}, Drift: monitoring.DriftSpec{Share: share}, Repeat: -1}
	out, err := w.run(ctx, "stream", one, spec)
	if err != nil {
		return 0, 0, err
	}
	changed := one.records[change].At
	for _, e := range out.events {
		if e.Window.To.Before(changed) {
			early++
			continue
		}
		return e.Window.To.Sub(changed).Seconds() + 1, early, nil // a record each second
	}
	return math.Inf(1), early, nil
}

// addDelay adds the median of delays; one that was not found is infinite.
func (b *bench) addDelay(name, note string, rows []float64, early int) {
	missed := 0
	for _, n := range rows {
		if math.IsInf(n, 1) {
			missed++
		}
	}
	row := harness.Row{Name: name, Unit: "rows", Better: harness.Lower}
	note += fmt.Sprintf("; %d seeded streams, median; found in %d of them", len(rows), len(rows)-missed)
	if m := harness.Median(rows); !math.IsInf(m, 1) {
		row.Ours = harness.Value(m)
		if p := harness.Quantile(rows, 0.9); !math.IsInf(p, 1) {
			note += fmt.Sprintf(", p90 %.0f", p)
		}
	}
	row.Note = note + fmt.Sprintf("; %d false alarms before the change", early)
	b.Add(row)
}

// falseAlarms measures how often a monitor tells of drift where there is none:
// one month of flights, shuffled by a seed, half as the baseline and half as
// traffic.
func (b *bench) falseAlarms(ctx context.Context) error {
	month, err := readMonth(b.Root)
	if errors.Is(err, fs.ErrNotExist) {
		b.Add(harness.Row{Name: "false alarms", Unit: "%", Better: harness.Lower, Note: "the demo's data is not there; scripts/demo-data.sh fetches it"})
		return nil
	}
	if err != nil {
		return err
	}
	replays := 200
	if b.Quick {
		replays, month = 2, month[:4000]
	}
	records := make([]*prediction.Record, len(month))
	for i, row := range month {
		records[i] = record(i, flightColumns, row, late)
	}
	configs := []struct {
		name, note string
		spec       monitoring.DriftSpec
	}{
		{"default monitor", "automatic method (Wasserstein and Jensen-Shannon from 0.1 on), told of from 30 % of the inputs on, or by the score", monitoring.DriftSpec{}},
		{"Kolmogorov-Smirnov, any input", "alpha 0.01 for all 13 inputs and the score together (Holm), told of from one input on", monitoring.DriftSpec{Method: "ks", Share: sensitive}},
	}
	alarms, failed := make([]alarmed, len(configs)), make([]error, len(configs))
	var wg sync.WaitGroup
	for i, c := range configs { // beside each other: no time is measured
		wg.Go(func() { alarms[i], failed[i] = b.alarms(ctx, strconv.Itoa(i), c.spec, month, records, replays) })
	}
	wg.Wait()
	if err := errors.Join(failed...); err != nil {
		return err
	}
	for i, c := range configs {
		a := alarms[i]
		what := fmt.Sprintf("%s; %d replays of January 2013 in a random order, half of the flights as baseline, %d windows of 1,000 rows", c.note, replays, a.windows)
		b.Add(harness.Row{
			Name: "false alarms, share of windows, " + c.name, Unit: "%", Better: harness.Lower,
			Ours: harness.Value(100 * float64(a.drifted) / float64(a.windows)), Aim: &harness.Aim{Value: harness.Value(1)}, Note: what,
		})
		b.Add(harness.Row{
			Name: "false alarms, share of replays, " + c.name, Unit: "%", Better: harness.Lower,
			Ours: harness.Value(100 * float64(a.replays) / float64(replays)),
			Note: fmt.Sprintf("replays with an event in any of their %d windows", a.windows/replays),
		})
	}
	return nil
}

// alarmed counts what a monitor told of.
type alarmed struct{ windows, drifted, replays int }

// alarms lets monitors of one manifest read replays of rows in a random order.
func (b *bench) alarms(ctx context.Context, name string, spec monitoring.DriftSpec, rows [][]float64, records []*prediction.Record, replays int) (all alarmed, err error) {
	w, err := b.watch(ctx, "alarms"+name)
	if err != nil {
		return all, err
	}
	defer func() { err = errors.Join(err, w.db.Close()) }()
	for i := range replays {
		r := rand.New(rand.NewPCG(uint64(i), 2013)) //nolint:gosec // Repeatable, not secret.
		order := r.Perm(len(rows))
		half := len(order) / 2
		one := &replay{names: flightColumns, model: late, baseline: make([][]float64, len(flightColumns))}
		for _, at := range order[:half] {
			for c, v := range rows[at] {
				one.baseline[c] = append(one.baseline[c], v)
			}
		}
		for _, at := range order[half:] {
			one.records = append(one.records, records[at])
		}
		out, err := w.run(ctx, "replay"+strconv.Itoa(i), one, monitoring.Spec{Window: monitoring.WindowSpec{Rows: 1000}, Drift: spec, Repeat: 1})
		if err != nil {
			return all, err
		}
		drifted := 0
		for _, win := range out.windows {
			if !win.Judged {
				return all, fmt.Errorf("a window was not judged: %s", win.Note)
			}
			if win.Drifted {
				drifted++
			}
		}
		if (drifted > 0) != (len(out.events) > 0) {
			return all, fmt.Errorf("%d windows drifted, %d events", drifted, len(out.events))
		}
		all.windows += len(out.windows)
		all.drifted += drifted
		if drifted > 0 {
			all.replays++
		}
	}
	return all, nil
}
