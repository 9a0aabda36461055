package mlflow

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"flag"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	_ "github.com/mattn/go-sqlite3" // driver, to copy

	"github.com/falaj-ml/falaj/client"
	"github.com/falaj-ml/falaj/internal/store/storetest"
	"github.com/falaj-ml/falaj/test/live"
)

var (
	kills = flag.Int("kills", 6, "how often an import is cut off")
	many  = flag.Int("runs", 51, "how many runs are imported; at least 51")
	seed  = flag.Uint64("seed", 0, "of when it is cut off; 0 is another each time")
)

// report is what falaj import -o json says, as far as tests ask.
type report struct {
	Experiments, Runs, Files counts
	LoggedModels             counts `json:"logged_models"`
	Models                   counts `json:"registered_models"`
	Versions                 counts `json:"model_versions"`
	Points                   int64  `json:"metric_points"`
	Skipped, Differences     []struct{ Kind, ID, What string }
}

type counts struct{ Created, Updated, Unchanged, Skipped int }

func (c counts) all() int { return c.Created + c.Updated + c.Unchanged + c.Skipped }

// TestImport fills a real MLflow server and brings it over by its database, by its
// address, and by its database while the importer and the server are killed: each time
// the unmodified client sees the same at both addresses.
func TestImport(t *testing.T) {
	t.Parallel()
	python := live.Installed(t, "mlflow-full")
	theirs := startMLflow(t, python)
	runs := strings.TrimSpace(script(t, python, "make.py", nil, theirs.url, strconv.Itoa(*many)))
	runs = runs[strings.LastIndexByte(runs, '\n')+1:]
	made, err := strconv.Atoi(runs)
	if err != nil {
		t.Fatal(err)
	}
	want := see(t, python, theirs.url, "")
	if len(want) < made {
		t.Fatalf("the client sees %d things of %d runs", len(want), made)
	}
	database := []string{"import", "mlflow", filepath.Join(theirs.dir, "mlflow.db"), "--artifacts", filepath.Join(theirs.dir, "artifacts"), "-o", "json"}
	address := []string{"import", "mlflow", theirs.url, "-o", "json"}

	postgres := slices.Clone(database)
	postgres[2] = onPostgres(t, database[2])
	for name, args := range map[string][]string{"SQLite": database, "PostgreSQL": postgres, "address": address} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := live.New(t, "")
			s.Up(t)
			p := s.Project(t, "nyc")
			dry := imported(t, p, append(args, "--dry-run"))
			if dry.Runs.Created != made || dry.Files.Created == 0 || len(dry.Skipped)+len(dry.Differences) > 0 {
				t.Errorf("a dry run would bring %+v of %d runs, skip %v, change %v", dry.Runs, made, dry.Skipped, dry.Differences)
			}
			if out := p.Run(0, "get", "models"); strings.Contains(out, "delay") {
				t.Errorf("a dry run brought models:\n%s", out)
			}
			first := imported(t, p, args)
			if first.Runs.Created != made || first.Files.Created == 0 || first.LoggedModels.Created != 4 || first.Versions.Created != 5 || first.Points < 26_000 {
				t.Errorf("the first import: %+v", first)
			}
			if len(first.Skipped)+len(first.Differences) > 0 {
				t.Errorf("skipped %v, different %v", first.Skipped, first.Differences)
			}
			second := imported(t, p, args)
			unchanged := func(c counts) bool { return c.Unchanged == c.all() }
			if !unchanged(second.Runs) || !unchanged(second.Files) || !unchanged(second.LoggedModels) || !unchanged(second.Versions) || !unchanged(second.Experiments) || second.Runs.all() != made {
				t.Errorf("the second import: %+v", second)
			}
			if again := imported(t, p, append(args, "--dry-run")); !unchanged(again.Models) || !unchanged(again.Versions) || !unchanged(again.Files) || !unchanged(again.Runs) || len(again.Skipped) > 0 {
				t.Errorf("a dry run after it: %+v", again)
			}
			same(t, want, see(t, python, s.URL, tokenOf(p)))
		})
	}

	t.Run("part of it", func(t *testing.T) {
		t.Parallel()
		s := live.New(t, "")
		s.Up(t)
		p := s.Project(t, "nyc")
		some := imported(t, p, append(database, "--experiment", "wea*", "--since", "2023-11-14", "--skip-unsupported"))
		if some.Runs.Created == 0 || some.Runs.Created >= made || some.Experiments.all() != 1 {
			t.Errorf("of one experiment came %+v", some)
		}
		late := imported(t, p, append(database, "--experiment", "weather/é", "--since", "2030-01-01T00:00:00Z", "--skip-unsupported"))
		if late.Runs.all() == 0 || late.Runs.all() >= some.Runs.all() { // those that still run
			t.Errorf("of the future came %+v", late.Runs)
		}
		p.Run(4, append(database, "--experiment", "nothing")...)
		p.Run(2, append(database, "--since", "yesterday")...)
		p.Run(4, "import", "mlflow", filepath.Join(theirs.dir, "nowhere.db"))
		p.Run(2, "import", "mlflow", filepath.Join("testdata", "cases.jsonl"))
		p.Run(1, "import", "mlflow", "mysql://root@127.0.0.1/mlflow")
		p.Run(6, "import", "mlflow", "http://127.0.0.1:1")
		p.Run(2, "import", "mlflow", "a.db", "--artifacts", "/nowhere")
		var made client.Object
		p.Must(p.C.Do(t.Context(), http.MethodPost, "/api/v1/tokens", map[string]any{"project": p.Name, "name": "eng", "role": "engineer", "expires_in": "1h"}, &made))
		if out, code := s.Command(t.Context(), append(database, "-p", p.Name, "--token", made.Text("secret"))...); code != 3 {
			t.Errorf("an engineer's import exits with %d:\n%s", code, out)
		}
	})

	t.Run("cut off", func(t *testing.T) {
		t.Parallel()
		s := live.New(t, "")
		s.Up(t)
		p := s.Project(t, "nyc")
		if *seed == 0 {
			*seed = rand.Uint64()
		}
		t.Logf("-seed %d", *seed)
		r := rand.New(rand.NewPCG(*seed, 1))
		for n := range *kills {
			ctx, kill := context.WithCancel(t.Context())
			end := s.Begin(ctx, append(database, "-p", p.Name)...)
			<-time.After(time.Duration(50+r.IntN(900)) * time.Millisecond)
			if n%2 == 0 {
				kill() // SIGKILL to the importer
				end()
				continue
			}
			p.Must(s.Kill())
			if out, code := end(); code != 0 && code != 6 {
				t.Errorf("with the server killed, the import exits with %d:\n%s", code, out)
			}
			kill()
			p.Again()
		}
		last := imported(t, p, database)
		if last.Runs.all() != made || len(last.Skipped) > 0 {
			t.Errorf("in the end: %+v", last)
		}
		same(t, want, see(t, python, s.URL, tokenOf(p)))
	})
}

// TestImportHostile: rows that no server writes neither stop an import nor come
// through it, and nothing is read that was not named.
func TestImportHostile(t *testing.T) {
	t.Parallel()
	python := live.Installed(t, "mlflow-full")
	file := filepath.Join(t.TempDir(), "hostile.db")
	script(t, python, "hostile.py", nil, file)
	s := live.New(t, "")
	s.Up(t)
	p := s.Project(t, "nyc")
	p.Run(1, "import", "mlflow", file, "--no-artifacts", "--dry-run") // what is left out, the exit code says
	r := imported(t, p, []string{"import", "mlflow", file, "--artifacts", t.TempDir(), "--skip-unsupported", "-o", "json"})
	if r.Runs.Created != 5 || r.Runs.Skipped != 4 || r.Files.all() > 0 || r.Versions.Created > 0 || r.Versions.Skipped != 4 || r.Models.Created != 1 {
		t.Errorf("%+v", r)
	}
	for _, want := range []string{
		"run " + strings.Repeat("c", 32) + `: its lifecycle stage "undead"`,
		"run " + strings.Repeat("d", 32) + `: its status "EXPLODED"`,
		"run ../../../../etc/passwd: ",
		"run " + strings.Repeat("e", 32) + ": Invalid value -1 for parameter 'start_time'",
		"part of run " + strings.Repeat("a", 32) + ": param long: ",
		"part of run " + strings.Repeat("a", 32) + ": param ../up: ",
		"part of run " + strings.Repeat("a", 32) + ": param '; DROP TABLE",
		"run " + strings.Repeat("a", 32) + ": bytes is not valid UTF-8",
		"part of run " + strings.Repeat("a", 32) + ": tag " + strings.Repeat("k", 120),
		"metric 'text'", "metric 'when'", "metric 'step'",
		"artifacts of run " + strings.Repeat("a", 32) + ": its artifacts are in a directory that --artifacts does not name",
		"artifacts of run " + strings.Repeat("f", 32) + ": its artifacts are at s3://",
		"experiment " + strings.Repeat("n", 200), `experiment lost: its lifecycle stage "limbo"`,
		"registered_model ../model: ", "model_version m@1: Invalid model version source: 'runs:/" + strings.Repeat("a", 32) + "/passwd'. It has no files", "model_version m@2: ", "model_version m@3: ", "model_version m@4: it is not ready",
	} {
		if !slices.ContainsFunc(r.Skipped, func(n struct{ Kind, ID, What string }) bool {
			return strings.Contains(n.Kind+" "+n.ID+": "+n.What, want)
		}) {
			t.Errorf("nothing was said of %q", want)
		}
	}
	if t.Failed() {
		for _, n := range r.Skipped {
			t.Log(n)
		}
	}
	token := tokenOf(p)
	cmd := exec.CommandContext(t.Context(), python, "-c", `
import math, mlflow, sys
c = mlflow.MlflowClient(sys.argv[1])
r = c.get_run("a" * 32)
assert list(r.data.params) == ["long", "ok"] and r.data.params["long"].endswith("x…[cut from 7000]"), r.data.params
assert math.isnan(r.data.metrics["nan"]) and r.data.metrics["max"] == 1.7976931348623157e308 and len(r.data.metrics) == 2, r.data.metrics
assert c.get_metric_history("a" * 32, "max")[0].step == 2**63 - 1
assert list(r.data.tags) == ["long", "null"] and r.data.tags["long"].endswith("y…[cut from 2000000]") and r.data.tags["null"] == "", list(r.data.tags)
`, s.URL)
	cmd.Env = append(os.Environ(), "MLFLOW_TRACKING_TOKEN="+token, "MLFLOW_DISABLE_TELEMETRY=true")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// onPostgres copies what an import reads of a database of MLflow's to PostgreSQL, as
// MLflow has it there, and gives its address.
func onPostgres(t *testing.T, file string) string {
	t.Helper()
	from, err := sql.Open("sqlite3", "file:"+file+"?mode=ro")
	if err != nil {
		t.Fatal(err)
	}
	defer from.Close()
	address := storetest.Postgres(t)
	to, err := sql.Open("pgx", address)
	if err != nil {
		t.Fatal(err)
	}
	defer to.Close()
	for _, table := range []string{
		"experiments", "experiment_tags", "runs", "params", "tags", "metrics", "latest_metrics", "datasets", "inputs", "input_tags", "logged_models", "logged_model_params",
		"logged_model_tags", "logged_model_metrics", "registered_models", "registered_model_tags", "registered_model_aliases", "model_versions", "model_version_tags",
	} {
		copyTable(t, from, to, table)
	}
	return strings.Replace(address, "postgres://", "postgresql+psycopg2://", 1)
}

func copyTable(t *testing.T, from, to *sql.DB, table string) {
	t.Helper()
	must := func(_ any, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	rows, err := from.QueryContext(t.Context(), "SELECT * FROM "+table)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	columns, err := rows.ColumnTypes()
	if err != nil {
		t.Fatal(err)
	}
	definitions, places := make([]string, len(columns)), make([]string, len(columns))
	values := make([]any, len(columns))
	for i, c := range columns {
		kind := "TEXT"
		switch declared := strings.ToUpper(c.DatabaseTypeName()); {
		case strings.Contains(declared, "INT"):
			kind = "BIGINT"
		case declared == "FLOAT":
			kind = "DOUBLE PRECISION"
		case declared == "BOOLEAN":
			kind = "BOOLEAN"
		}
		definitions[i], places[i], values[i] = strconv.Quote(c.Name())+" "+kind, "$"+strconv.Itoa(i+1), new(any)
	}
	must(to.ExecContext(t.Context(), "CREATE TABLE "+table+" ("+strings.Join(definitions, ", ")+")"))
	tx, err := to.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	for rows.Next() {
		must(nil, rows.Scan(values...))
		row := make([]any, len(values))
		for i, v := range values {
			row[i] = *v.(*any)
		}
		must(tx.ExecContext(t.Context(), "INSERT INTO "+table+" VALUES ("+strings.Join(places, ", ")+")", row...))
	}
	must(nil, rows.Err())
	must(nil, tx.Commit())
}

func tokenOf(p *live.Project) string {
	p.T.Helper()
	var made client.Object
	p.Must(p.C.Do(p.T.Context(), http.MethodPost, "/api/v1/tokens", map[string]any{"project": p.Name, "name": "look", "role": "admin", "expires_in": "1h"}, &made))
	return made.Text("secret")
}

func imported(t *testing.T, p *live.Project, args []string) (r report) {
	t.Helper()
	out := p.Run(0, slices.Clone(args)...)
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return r
}

// see is all that the client sees of a server.
func see(t *testing.T, python, url, token string) (all map[string]any) {
	t.Helper()
	out := script(t, python, "see.py", []string{"MLFLOW_TRACKING_TOKEN=" + token}, url)
	if err := json.Unmarshal([]byte(out), &all); err != nil {
		t.Fatalf("%v\n%.2000s", err, out)
	}
	return all
}

func same(t *testing.T, want, got map[string]any) {
	t.Helper()
	for name := range want {
		if diff := cmp.Diff(want[name], got[name]); diff != "" {
			t.Errorf("%s (-MLflow +Falaj)\n%.3000s", name, diff)
		}
	}
	for name := range got {
		if _, ok := want[name]; !ok {
			t.Errorf("%s is only at Falaj", name)
		}
	}
}

// script runs a Python script of testdata and gives what it writes.
func script(t *testing.T, python, name string, env []string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), live.WaitProgram)
	defer cancel()
	cmd := exec.CommandContext(ctx, python, append([]string{filepath.Join("testdata", name)}, args...)...)
	cmd.Env = append(os.Environ(), append(env, "HOME="+t.TempDir(), "MLFLOW_DISABLE_TELEMETRY=true", "DO_NOT_TRACK=true", "GIT_PYTHON_REFRESH=quiet")...)
	var out, complaints bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &complaints
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s: %v\n%s", name, err, complaints.String()[max(0, complaints.Len()-3000):])
	}
	return out.String()
}
