// Command tracking measures what MLflow's clients ask, of Falaj and of `mlflow
// server`, and writes bench/results/tracking.json and its table in bench/README.md.
// Run it by `make bench-tracking`, from the root of the repository.
//
// # Map
//
//   - main.go: the order of the measurements; imports.
//   - sides.go: the two servers, each on SQLite and PostgreSQL, with equal contents.
//   - replay.go: recorded.jsonl, what the client of record.py sent, sent again.
//   - artifact.go: a large file up and down. client.py is the unmodified client.
//   - generate.py writes the database that both begin with.
//
// Both servers have the core of the server to themselves, MLflow with its default
// workers; requests come from the other core, one after the other for latency, eight
// at a time for CPU. Both sync each write: MLflow's SQLite by its default
// journal, Falaj's by a write-ahead log with synchronous=FULL.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/falaj-ml/falaj/bench/harness"
	"github.com/falaj-ml/falaj/client"
)

func main() { harness.Main("tracking", steps) }

// bench is one run of the program.
type bench struct {
	*harness.Run
	python string // of an environment with MLflow's server
	absent string // why there is none
	serve  int    // core of the server
	cases  []request
}

// Sizes of what both servers hold.
type size struct{ runs, metrics, points int }

func (b *bench) contents() size {
	if b.Quick {
		return size{200, 4, 10}
	}
	return size{20_000, 4, 100}
}

func steps(r *harness.Run) []harness.Step {
	b := &bench{Run: r, serve: -1}
	if cores := harness.Allowed(); len(cores) > 1 {
		b.serve = cores[0]
	}
	little := size{20, 2, 5}
	all := []harness.Step{
		{Name: "requests-sqlite", Do: b.requests("SQLite", b.measure)},
		{Name: "requests-postgresql", Do: b.requests("PostgreSQL", b.measure)},
		{Name: "artifact", Do: b.on(little, b.artifact)},
		{Name: "client", Do: b.on(little, b.client)},
		{Name: "import", Do: b.imports},
	}
	if r.Quick { // starting servers takes most of the time: the steps on SQLite have the same ones, once the contents are imported
		all = append([]harness.Step{all[4], {Name: "sqlite", Do: b.requests("SQLite", b.measure, b.artifact, b.client)}}, all[1])
	}
	return all
}

// measurement is one of servers with the same contents.
type measurement func(ctx context.Context, database string, contents size, ours, theirs *side) error

// on makes a step on SQLite of a measurement.
func (b *bench) on(contents size, do measurement) func(context.Context) error {
	return func(ctx context.Context) error {
		return b.both(ctx, "SQLite", contents, func(ours, theirs *side) error { return do(ctx, "SQLite", contents, ours, theirs) })
	}
}

// ready prepares what the steps have in common. Only one of MLflow's environments has
// a driver of PostgreSQL.
func (b *bench) ready(ctx context.Context, database string) (err error) {
	environment, requirements := "mlflow-full", "test/mlflow/testdata/requirements.txt"
	if database == "PostgreSQL" {
		environment, requirements = "bench-tracking", "bench/tracking/peers.txt"
	}
	b.python, b.absent = b.Install(ctx, environment, requirements, nil)
	if b.cases == nil {
		b.cases, err = recorded(filepath.Join(b.Root, "bench", "tracking", "recorded.jsonl"))
	}
	return err
}

// generate writes an MLflow database once.
func (b *bench) generate(ctx context.Context, s size) (string, error) {
	file := filepath.Join(b.Dir, fmt.Sprintf("mlflow-%d-%d-%d.db", s.runs, s.metrics, s.points))
	if _, err := os.Stat(file); err == nil {
		return file, nil
	}
	b.Say("a database of %d runs × %d metrics × %d points", s.runs, s.metrics, s.points)
	_, err := b.script(ctx, "generate.py", file, strconv.Itoa(s.runs), strconv.Itoa(s.metrics), strconv.Itoa(s.points))
	return file, err
}

// imports measures how long `falaj import mlflow` takes for a database.
func (b *bench) imports(ctx context.Context) error {
	s := size{30_000, 4, 25}
	if b.Quick {
		s = b.contents()
	}
	row := harness.Row{
		Name: fmt.Sprintf("falaj import mlflow: %d runs × %d metrics × %d points", s.runs, s.metrics, s.points), Unit: "s", Better: harness.Lower,
		Aim: &harness.Aim{Value: harness.Value(60)}, Note: "from SQLite, importer and server on all cores",
	}
	if err := b.ready(ctx, "SQLite"); err != nil {
		return err
	}
	if b.absent != "" {
		row.Note = b.absent
		b.Add(row)
		return nil
	}
	file, err := b.generate(ctx, s)
	if err != nil {
		return err
	}
	var took []float64
	memory := 0.0
	for n := range b.Rounds {
		o, err := b.falaj(ctx, "import-"+strconv.Itoa(n), "", -1)
		if err != nil {
			return err
		}
		began := time.Now()
		err = o.bring(ctx, file)
		took = append(took, time.Since(began).Seconds())
		anon, _ := harness.Resident(o.server.PID())
		memory = max(memory, anon)
		if stopped := o.stop(); err == nil {
			err = stopped
		}
		if err != nil {
			return err
		}
	}
	row.Ours = harness.Value(harness.Median(took))
	b.Add(row)
	b.Add(harness.Row{Name: "falaj import mlflow: RssAnon of the server after it", Unit: "MiB", Better: harness.Lower, Ours: harness.Value(memory), Aim: &harness.Aim{Value: harness.Value(100)}})
	return nil
}

// client measures the unmodified Python client, whose own time is most of it.
func (b *bench) client(ctx context.Context, _ string, _ size, ours, theirs *side) error {
	rounds := 200
	if b.Quick {
		rounds = 5
	}
	times := map[string]map[*side][]float64{}
	for range b.Rounds {
		for _, s := range []*side{ours, theirs} {
			if s == nil {
				continue
			}
			out, err := b.script(ctx, "client.py", s.url, s.token, strconv.Itoa(rounds))
			if err != nil {
				return err
			}
			for line := range strings.Lines(out) {
				name, value, ok := strings.Cut(strings.TrimSpace(line), "\t")
				v, err := strconv.ParseFloat(value, 64)
				if !ok || err != nil {
					continue
				}
				if times[name] == nil {
					times[name] = map[*side][]float64{}
				}
				times[name][s] = append(times[name][s], v)
			}
		}
	}
	for _, name := range []string{"start_run, log_metric × 10, end_run", "log_batch 1000", "search_runs"} {
		row := harness.Row{Name: "Python client: " + name, Unit: "ms", Better: harness.Lower, Ours: harness.Value(harness.Median(times[name][ours])), Peer: b.peer(theirs, "the same client and `mlflow server`"), Note: b.absent, Detail: true}
		if theirs != nil {
			row.Theirs = harness.Value(harness.Median(times[name][theirs]))
		}
		b.Add(row)
	}
	return nil
}

func (b *bench) peer(theirs *side, what string) string {
	if theirs == nil {
		return ""
	}
	return what
}

// projectOf makes a project and a token for it.
func projectOf(ctx context.Context, c *client.Client, name string) (token string, err error) {
	if _, err := c.Apply(ctx, "", []byte("{api_version: falaj/v1, kind: Project, name: "+name+"}"), false); err != nil {
		return "", err
	}
	var made client.Object
	err = c.Do(ctx, "POST", "/api/v1/tokens", map[string]any{"project": name, "name": "bench", "role": "admin", "expires_in": "24h"}, &made)
	return made.Text("secret"), err
}
