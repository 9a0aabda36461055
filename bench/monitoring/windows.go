package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"time"

	"github.com/falaj-ml/falaj/bench/harness"
	"github.com/falaj-ml/falaj/internal/drift"
	"github.com/falaj-ml/falaj/internal/monitoring"
	"github.com/falaj-ml/falaj/internal/sketch"
)

const (
	windowColumns = 13
	windowRows    = 10_000
	driftedColumn = 3 // by one standard deviation
)

// task is a way to judge a window, ours and a peer's.
type task struct {
	name, says, ask, note string
	peer                  *harness.Peer
	missing               string // why there is no peer
	do                    func() (drifted int, err error)
}

// windows measures the evaluation of a window of 13 numeric columns with 10,000
// rows against a baseline of as many, beside the peers on the same numbers in the
// same rounds.
func (b *bench) windows(ctx context.Context) error {
	ref, cur := drawn(1, 0), drawn(2, 1)
	for name, columns := range map[string][][]float64{"ref": ref, "cur": cur} {
		if err := writeColumns(filepath.Join(b.Dir, name+".f64"), columns); err != nil {
			return err
		}
	}
	var evidently, nannyml *harness.Peer
	noEvidently, noNannyml := "a quick run has no peers", "a quick run has no peers"
	if !b.Quick {
		evidently, noEvidently = b.StartPeer(ctx, "bench-monitoring", "bench/monitoring/peers.txt", nil, "bench/monitoring/windows.py", b.Dir)
		nannyml, noNannyml = b.StartPeer(ctx, "bench-monitoring-nannyml", "bench/monitoring/nannyml.txt",
			[]string{"UV_OVERRIDE=bench/monitoring/nannyml-overrides.txt"}, "bench/monitoring/nannyml.py", b.Dir)
	}
	if evidently != nil {
		defer evidently.Stop()
	}
	if nannyml != nil {
		defer nannyml.Stop()
	}
	baseline := summarised(ref)
	whole := func() (int, error) { return judge(baseline, summarised(cur), drift.Auto) }
	for _, t := range []task{
		{
			"window from rows to verdict", "Evidently, DataDriftPreset on data frames", "preset",
			"ours: 130,000 values into sketches, then the automatic method (normed Wasserstein) and all checks; theirs: the same method on the raw rows, and a report",
			evidently, noEvidently, whole,
		},
		{
			"window from rows to verdict, as NannyML", "NannyML, fitted UnivariateDriftCalculator, Wasserstein on a chunk", "wasserstein",
			"the same of ours; theirs counts columns over its distance of 0.1", nannyml, noNannyml, whole,
		},
		{
			"window verdict, Wasserstein", "scipy.stats.wasserstein_distance on raw rows", "wasserstein",
			"ours compares the sketches that a window keeps anyway; theirs sorts all rows", evidently, noEvidently,
			compare(baseline, summarised(cur), drift.WassersteinNormed),
		},
		{
			"window verdict, Kolmogorov-Smirnov", "scipy.stats.ks_2samp on raw rows", "ks",
			"ours is exact on uniform samples of 1,000 rows, so that it finds less; theirs is on all rows", evidently, noEvidently,
			compare(baseline, summarised(cur), drift.KS),
		},
	} {
		if err := b.race(t); err != nil {
			return fmt.Errorf("%s: %w", t.name, err)
		}
	}
	return b.records(ctx, ref, cur)
}

// race measures ours and the peer's in alternating rounds.
func (b *bench) race(t task) error {
	span := time.Second
	if b.Quick {
		span = time.Millisecond
	}
	var ours, theirs []float64
	for range b.Rounds + 1 { // the first warms up
		n, began := 0, time.Now()
		for n == 0 || time.Since(began) < span {
			drifted, err := t.do()
			if err != nil {
				return err
			}
			if drifted != 1 {
				return fmt.Errorf("%d columns drifted, not 1", drifted)
			}
			n++
		}
		ours = append(ours, float64(n)/time.Since(began).Seconds())
		if t.peer == nil {
			continue
		}
		answer, err := t.peer.Ask(t.ask)
		if err != nil {
			return err
		}
		var seconds float64
		var drifted int
		if _, err := fmt.Sscan(answer, &seconds, &drifted); err != nil {
			return err
		}
		if drifted != 1 {
			return fmt.Errorf("the peer sees drift in %d columns, not in 1", drifted)
		}
		theirs = append(theirs, 1/seconds)
	}
	r := harness.Row{
		Name: t.name, Unit: "windows/s", Better: harness.Higher, Ours: harness.Value(harness.Median(ours[1:])), Peer: t.says, Note: t.note,
	}
	if t.peer != nil {
		r.Theirs, r.Peer = harness.Value(harness.Median(theirs[1:])), t.says+" ("+t.peer.Name+")"
	} else {
		r.Note += "; " + t.missing
	}
	b.Add(r)
	return nil
}

// records measures records on their way into windows: what each costs the service.
func (b *bench) records(ctx context.Context, ref, cur [][]float64) error {
	w, err := b.watch(ctx, "records")
	if err != nil {
		return err
	}
	defer func() { _ = w.db.Close() }()
	r := &replay{names: columnNames(), baseline: ref, model: synthetic}
	const windows = 10
	for i := range windows * windowRows {
		r.records = append(r.records, record(i, r.names, rowOf(cur, i%windowRows), synthetic))
	}
	var rates, bare []float64
	for round := range b.Rounds + 1 {
		out, err := w.run(ctx, "round"+strconv.Itoa(round), r, monitoring.Spec{Window: monitoring.WindowSpec{Rows: windowRows}})
		if err != nil {
			return err
		}
		if len(out.windows) != windows || !out.windows[0].Judged || !out.windows[0].Drifted {
			return fmt.Errorf("%d windows: %+v", len(out.windows), out.windows)
		}
		rates = append(rates, windows*windowRows/out.took.Seconds())
		began := time.Now()
		runtime.KeepAlive(summarised(cur))
		bare = append(bare, windowRows/time.Since(began).Seconds())
	}
	b.Add(harness.Row{
		Name: "records into judged windows", Unit: "records/s", Better: harness.Higher,
		Ours: harness.Value(harness.Median(rates[1:])), Theirs: harness.Value(harness.Median(bare[1:])), Peer: "the same values into 13 sketches, column by column",
		Note: "100,000 records of 13 numbers and a score from memory, through the service: a baseline of 10,000 rows computed once, ten windows judged, sealed, and committed with their events",
	})
	return nil
}

func columnNames() []string {
	names := make([]string, windowColumns)
	for i := range names {
		names[i] = "f" + strconv.Itoa(i)
	}
	return names
}

func rowOf(columns [][]float64, i int) []float64 {
	row := make([]float64, len(columns))
	for c := range columns {
		row[c] = columns[c][i]
	}
	return row
}

// writeColumns writes numbers for the peers.
func writeColumns(path string, columns [][]float64) error {
	var raw bytes.Buffer
	for _, values := range columns {
		if err := binary.Write(&raw, binary.LittleEndian, values); err != nil {
			return err
		}
	}
	return os.WriteFile(path, raw.Bytes(), 0o600)
}

// drawn is normal columns, one of them shifted.
func drawn(seed uint64, shift float64) [][]float64 {
	rng := rand.New(rand.NewPCG(seed, seed)) //nolint:gosec // Repeatable, not secret.
	out := make([][]float64, windowColumns)
	for i := range out {
		out[i] = make([]float64, windowRows)
		for j := range out[i] {
			out[i][j] = rng.NormFloat64()
			if i == driftedColumn {
				out[i][j] += shift
			}
		}
	}
	return out
}

func summarised(columns [][]float64) []*sketch.Column {
	out := make([]*sketch.Column, len(columns))
	for i, values := range columns {
		out[i] = sketch.NewNumeric(uint64(i))
		for _, v := range values {
			out[i].Add(v)
		}
	}
	return out
}

func compare(baseline, window []*sketch.Column, method drift.Method) func() (int, error) {
	return func() (int, error) { return judge(baseline, window, method) }
}

func judge(baseline, window []*sketch.Column, method drift.Method) (drifted int, err error) {
	results := make([]drift.Result, len(window))
	for i, c := range window {
		if results[i], err = drift.Test(method, baseline[i], c, drift.Options{Alpha: 0.01}); err != nil {
			return 0, err
		}
		drift.Checks(baseline[i], c, drift.CheckOptions{})
	}
	if results, err = drift.Correct(results, drift.Holm); err != nil {
		return 0, err
	}
	for _, r := range results {
		if r.Drifted {
			drifted++
		}
	}
	return drifted, nil
}
