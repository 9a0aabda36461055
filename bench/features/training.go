package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/apache/arrow-go/v18/arrow/array"

	"github.com/falaj-ml/falaj/bench/harness"
	"github.com/falaj-ml/falaj/internal/dataset/table"
	"github.com/falaj-ml/falaj/internal/feature/offline"
	"github.com/falaj-ml/falaj/internal/feature/value"
)

// ttl is how long a window's statistics hold: those of the quiet hours run out.
const ttl = 2 * time.Hour

// join makes a training set: sealed files in, a sealed file out.
func (t task) join(ctx context.Context) (cost, error) {
	file := func(name string, s table.Schema) offline.Open {
		return func(ctx context.Context) (array.RecordReader, error) {
			return open(ctx, filepath.Join(t.Dir, name+"-"+t.Order+".sealed"), s)
		}
	}
	var views []offline.View
	for _, w := range t.Views {
		v := offline.View{
			Name: w, Open: file(w, windowSchema(w)), Keys: []offline.Column{{Name: "zone", Type: value.Int64}},
			Event: "until", TTL: ttl, SpineKeys: []string{"zone"},
		}
		for _, f := range featuresOf(w) {
			v.Features = append(v.Features, offline.Feature{Column: offline.Column{Name: f, Type: value.Float64}, Select: f})
		}
		views = append(views, v)
	}
	rows, err := offline.Join(ctx, offline.Spine{Open: file("rides", rideSchema), Timestamp: "pickup"}, views, offline.Options{Dir: t.Dir})
	if err != nil {
		return cost{}, err
	}
	defer rows.Release()
	return t.keep(rows, "set-"+t.Order+".sealed")
}

// copy decodes the training set that join made and encodes it again.
func (t task) copy(ctx context.Context) (cost, error) {
	rows, err := open(ctx, filepath.Join(t.Dir, "set-"+t.Order+".sealed"), t.setSchema())
	if err != nil {
		return cost{}, err
	}
	defer rows.Release()
	return t.keep(rows, "copy-"+t.Order+".sealed")
}

// setSchema is that of the training set.
func (t task) setSchema() table.Schema {
	s := append(table.Schema{}, rideSchema...)
	for _, w := range t.Views {
		for _, f := range featuresOf(w) {
			s = append(s, table.Field{ID: len(s) + 1, Name: f, Type: table.Float64})
		}
	}
	return s
}

func (t task) keep(rows array.RecordReader, name string) (cost, error) {
	c := cost{Found: make([]int64, len(t.Views))}
	out, err := create(filepath.Join(t.Dir, name), t.setSchema())
	if err != nil {
		return c, err
	}
	for rows.Next() {
		b := rows.RecordBatch()
		c.Rows += b.NumRows()
		for i := range t.Views {
			c.Found[i] += b.NumRows() - int64(b.Column(len(rideSchema)+i*perWindow).NullN())
		}
		if err := out.Write(b); err != nil {
			return c, err
		}
	}
	if err := rows.Err(); err != nil {
		return c, err
	}
	return c, out.finish()
}

// peers of the training sets, by what training.py calls them.
var peers = []string{"duckdb", "polars"}

// trainingSets measures growing sets, in both orders, beside the peers; and the
// largest of them over five views.
func (b *bench) trainingSets() (steps []harness.Step) {
	sizes := []int{1_000_000, 2_000_000, 5_000_000, 10_000_000}
	if b.Quick {
		sizes = []int{50_000}
	}
	for i, rides := range sizes {
		last := i == len(sizes)-1
		steps = append(steps, harness.Step{Name: "training sets, " + many(rides), Do: func(ctx context.Context) error {
			return b.trainingSet(ctx, rides, last)
		}})
	}
	return steps
}

// trainingSet measures sets of so many rides; and the peak of memory over five
// views, where that is asked for.
func (b *bench) trainingSet(ctx context.Context, rides int, five bool) error {
	python, reason := b.peerPython(ctx)
	two := []string{windows[0].name, windows[1].name}
	names := two
	if five {
		names = nil
		for _, w := range windows {
			names = append(names, w.name)
		}
	}
	dir := filepath.Join(b.Dir, "taxi"+strconv.Itoa(rides))
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return err
	}
	if err := makeTaxi(dir, rides, names); err != nil {
		return err
	}
	for _, order := range []string{clustered, shuffled} {
		b.Say("%d rides, %s", rides, order)
		if err := b.compare(ctx, task{Dir: dir, Order: order, Views: two}, rides, python, reason); err != nil {
			return err
		}
		if !five {
			continue
		}
		c, err := inProcess(ctx, task{Do: "join", Dir: dir, Order: order, Views: names})
		if err != nil {
			return err
		}
		b.Add(harness.Row{
			Name: fmt.Sprintf("training set, %s rides × 5 views, %s: peak memory", many(rides), order), Unit: "MiB", Better: harness.Lower,
			Ours: harness.Value(c.Peak), Aim: &harness.Aim{Value: harness.Value(1024)},
			Note: fmt.Sprintf("%.0f s, %.0f s of CPU; resident memory of the whole process; what does not fit the join's share goes to sealed temporary files", c.Seconds, c.CPU),
		})
	}
	return os.RemoveAll(dir)
}

func many(rides int) string {
	if rides%1_000_000 == 0 {
		return strconv.Itoa(rides/1_000_000) + " M"
	}
	return strconv.Itoa(rides)
}

// compare makes one training set in alternating rounds: ours, its limit, peers.
func (b *bench) compare(ctx context.Context, t task, rides int, python, reason string) error {
	rounds := min(b.Rounds, 3)
	var rates, times, copies, peaks []float64
	theirs := map[string][]cost{}
	failed := map[string]string{}
	var found []int64
	for range rounds {
		t.Do = "join"
		ours, err := inProcess(ctx, t)
		if err != nil {
			return err
		}
		t.Do = "copy"
		limit, err := inProcess(ctx, t)
		if err != nil {
			return err
		}
		if ours.Rows != int64(rides) || limit.Rows != ours.Rows {
			return fmt.Errorf("the training set has %d rows, its copy %d, of %d rides", ours.Rows, limit.Rows, rides)
		}
		found = ours.Found
		rates, peaks = append(rates, float64(rides)/ours.CPU), append(peaks, ours.Peak)
		times, copies = append(times, ours.CPU), append(copies, limit.CPU)
		for _, peer := range peers {
			if python == "" || failed[peer] != "" {
				continue
			}
			c, err := outcome(exec.CommandContext(ctx, python, "bench/features/training.py", peer, t.Dir, t.Order, strings.Join(t.Views, ",")))
			if err != nil {
				failed[peer] = "it failed: " + err.Error()
				continue
			}
			if fmt.Sprint(c.Found) != fmt.Sprint(found) || c.Rows != ours.Rows {
				return fmt.Errorf("ours found %v in %d rows, %s %v in %d", found, ours.Rows, peer, c.Found, c.Rows)
			}
			theirs[peer] = append(theirs[peer], c)
		}
	}
	name := fmt.Sprintf("training set, %s rides, %s", many(rides), t.Order)
	for _, peer := range peers {
		r := harness.Row{
			Name: name + ", beside " + peer, Unit: "rows/CPU-s", Better: harness.Higher, Ours: harness.Value(harness.Median(rates)),
			Note: fmt.Sprintf("two views, 8 features, Parquet in and out, ours sealed by AES-256-GCM and theirs plain; peak %.0f MiB", harness.Median(peaks)),
		}
		if got := theirs[peer]; len(got) > 0 {
			var rate, mem []float64
			for _, c := range got {
				rate, mem = append(rate, float64(rides)/c.CPU), append(mem, c.Peak)
			}
			r.Theirs, r.Peer = harness.Value(harness.Median(rate)), peerNames[peer]
			r.Note += fmt.Sprintf(", theirs %.0f MiB; both found the same", harness.Median(mem))
		} else if failed[peer] != "" {
			r.Note += "; " + failed[peer]
		} else {
			r.Note += "; " + reason
		}
		b.Add(r)
	}
	limit := harness.Row{
		Name: name + ": CPU time over that of decoding and encoding it alone", Unit: "×", Better: harness.Lower,
		Ours: harness.Value(harness.Median(times) / harness.Median(copies)),
		Note: "alone: the finished training set read and written again, no views, no join",
	}
	if t.Order == clustered {
		limit.Aim = &harness.Aim{Value: harness.Value(1.5)}
	}
	b.Add(limit)
	return nil
}

var peerNames = map[string]string{
	"duckdb": "DuckDB, two ASOF joins in one query over Parquet files, to Parquet",
	"polars": "Polars, two join_asof over lazily read Parquet files, to Parquet",
}

// peerPython makes the environment of the peers and gives its Python, or says why
// it cannot.
func (b *bench) peerPython(ctx context.Context) (python, reason string) {
	peer, reason := b.StartPeer(ctx, "bench-features", "bench/features/peers.txt", nil, "-c", "print('ready')")
	if peer == nil {
		return "", reason
	}
	peer.Stop()
	return filepath.Join(b.Root, ".tmp", "venv", "bench-features", "bin", "python"), ""
}
