package mlflow

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"math"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib" // "pgx"
	_ "github.com/mattn/go-sqlite3"    // "sqlite3"

	"github.com/falaj-ml/falaj/internal/fault"
)

// Bounds of what is read at once.
const (
	maxRunsRead   = 250
	maxPointsRead = 500_000
)

// database is a backend store of MLflow. Each question is a transaction of its own:
// a server that writes to the same SQLite file is not held up, and what it writes
// meanwhile comes with the next import.
type database struct {
	db        *sql.DB
	name      string
	postgres  bool
	roots     roots
	workspace string
	columns   map[string]map[string]bool // of each table
}

func openSQLite(ctx context.Context, file string, roots roots, with Access) (*database, error) {
	info, err := os.Stat(file)
	if err != nil {
		return nil, fault.New(fault.NotFound, "there is no file %s", file).
			WithHint("Name an MLflow server's address, or the database that its --backend-store-uri names.")
	}
	if !info.Mode().IsRegular() {
		return nil, fault.New(fault.Invalid, "%s is no plain file", file)
	}
	db, err := sql.Open("sqlite3", "file:"+url.PathEscape(file)+"?mode=ro&_query_only=1&_busy_timeout=10000")
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(1)
	// What the file has as views, triggers or functions is not run.
	for _, pragma := range []string{"PRAGMA trusted_schema = OFF", "PRAGMA cell_size_check = ON", "PRAGMA mmap_size = 0"} {
		if _, err := db.ExecContext(ctx, pragma); err != nil {
			_ = db.Close()
			return nil, fault.New(fault.Invalid, "%s is no SQLite database: %w", file, err)
		}
	}
	return newDatabase(ctx, &database{db: db, name: "sqlite:///" + file, roots: roots, workspace: with.Workspace})
}

func openPostgres(ctx context.Context, address string, roots roots, with Access) (*database, error) {
	u, err := url.Parse(address)
	if err != nil {
		return nil, fault.New(fault.Invalid, "the address of the database is no URL such as postgresql://user@host/mlflow")
	}
	q := u.Query()
	q.Set("default_transaction_read_only", "on")
	if q.Get("connect_timeout") == "" {
		q.Set("connect_timeout", "15")
	}
	u.RawQuery = q.Encode()
	db, err := sql.Open("pgx", u.String())
	if err != nil {
		return nil, fault.New(fault.Invalid, "the address of the database cannot be read: %w", err)
	}
	db.SetMaxOpenConns(1)
	return newDatabase(ctx, &database{db: db, name: Plain(address), postgres: true, roots: roots, workspace: with.Workspace})
}

// needed are the columns without which a database is none of MLflow's, since 1.0.
var needed = map[string][]string{
	"experiments": {"experiment_id", "name", "lifecycle_stage"},
	"runs":        {"run_uuid", "experiment_id", "status", "start_time", "lifecycle_stage", "artifact_uri"},
	"params":      {"run_uuid", "key", "value"},
	"tags":        {"run_uuid", "key", "value"},
	"metrics":     {"run_uuid", "key", "value", "timestamp", "step", "is_nan"},
}

func newDatabase(ctx context.Context, d *database) (*database, error) {
	err := d.describe(ctx)
	if err == nil {
		for _, table := range []string{"experiments", "runs", "params", "tags", "metrics"} {
			for _, column := range needed[table] {
				if !d.columns[table][column] {
					err = fault.New(fault.Invalid, "%s is no backend store of MLflow: it has no %s.%s", d.name, table, column).
						WithHint("Name the database of mlflow server's --backend-store-uri; an older one is brought up to date by mlflow db upgrade.")
					break
				}
			}
			if err != nil {
				break
			}
		}
	}
	if err != nil {
		_ = d.db.Close()
		return nil, err
	}
	return d, nil
}

// describe reads which tables and columns there are: they differ between versions.
func (d *database) describe(ctx context.Context) error {
	query := "SELECT m.name, c.name FROM sqlite_master m JOIN pragma_table_info(m.name) c WHERE m.type = 'table'"
	if d.postgres {
		query = `SELECT c.table_name, c.column_name FROM information_schema.columns c
			JOIN information_schema.tables t ON t.table_schema = c.table_schema AND t.table_name = c.table_name
			WHERE t.table_type = 'BASE TABLE' AND c.table_schema = ANY (current_schemas(false))`
	}
	d.columns = map[string]map[string]bool{}
	err := d.each(ctx, query, nil, func(row []any) error {
		table, column := text(row[0]), text(row[1])
		if d.columns[table] == nil {
			d.columns[table] = map[string]bool{}
		}
		d.columns[table][column] = true
		return nil
	})
	if err != nil {
		return fault.New(fault.Unavailable, "%s cannot be read: %w", d.name, err).
			WithHint("Check the address and its password (PGPASSWORD), or import from the server's address.")
	}
	return nil
}

func (d *database) String() string { return d.name }

// Whole implements Source.
func (d *database) Whole() bool { return true }

// Close implements Source.
func (d *database) Close() error {
	d.roots.close()
	return d.db.Close()
}

// questionTime bounds a question, whose answer is at most some hundred runs.
const questionTime = 10 * time.Minute

// each runs a query and gives its rows, which are valid until it returns. "?" are
// its arguments; a list of strings becomes as many.
func (d *database) each(ctx context.Context, query string, args []any, yield func(row []any) error) error {
	ctx, cancel := context.WithTimeout(ctx, questionTime)
	defer cancel()
	query, args = d.expand(query, args)
	rows, err := d.db.QueryContext(ctx, query, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	columns, err := rows.Columns()
	if err != nil {
		return err
	}
	row, into := make([]any, len(columns)), make([]any, len(columns))
	for i := range row {
		into[i] = &row[i]
	}
	for rows.Next() {
		if err := rows.Scan(into...); err != nil {
			return err
		}
		if err := yield(row); err != nil {
			return err
		}
	}
	return rows.Err()
}

func (d *database) expand(query string, args []any) (string, []any) {
	var b strings.Builder
	var out []any
	place := func(v any) {
		out = append(out, v)
		if d.postgres {
			b.WriteString("$" + strconv.Itoa(len(out)))
			return
		}
		b.WriteByte('?')
	}
	next := 0
	for {
		before, after, more := strings.Cut(query, "?")
		b.WriteString(before)
		if !more {
			return b.String(), out
		}
		if list, ok := args[next].([]string); ok {
			for i, v := range list {
				if i > 0 {
					b.WriteString(", ")
				}
				place(v)
			}
		} else {
			place(args[next])
		}
		next++
		query = after
	}
}

// column is a column, or what stands for it in databases that have none.
func (d *database) column(table, name, otherwise string) string {
	if d.columns[table][name] {
		return name
	}
	return otherwise
}

// has reports whether all the tables are there.
func (d *database) has(tables ...string) bool {
	return !slices.ContainsFunc(tables, func(t string) bool { return d.columns[t] == nil })
}

// logged orders rows of a table as they were inserted, as far as the database knows: MLflow
// keeps no other order of a run's inputs.
func (d *database) logged(table string) string {
	if d.postgres {
		return table + ".ctid"
	}
	return table + ".rowid"
}

// inWorkspace is a condition on a table that may have workspaces.
func (d *database) inWorkspace(table string) (string, []any) {
	if !d.columns[table]["workspace"] {
		return "1 = 1", nil
	}
	workspace := d.workspace
	if workspace == "" {
		workspace = "default"
	}
	return "workspace = ?", []any{workspace}
}

// Experiments implements Source.
func (d *database) Experiments(ctx context.Context) ([]Experiment, error) {
	var out []Experiment
	where, args := d.inWorkspace("experiments")
	created, updated := d.column("experiments", "creation_time", "0"), d.column("experiments", "last_update_time", "0")
	err := d.each(ctx, "SELECT experiment_id, name, lifecycle_stage, "+created+", "+updated+" FROM experiments WHERE "+where+" ORDER BY experiment_id", args, func(r []any) error {
		id, err := integer(r[0])
		if err != nil {
			return fault.New(fault.Invalid, "an experiment has the number %v", r[0])
		}
		out = append(out, Experiment{ID: id, Name: text(r[1]), Stage: stage(r[2]), Created: instant(r[3]), Updated: instant(r[4])})
		return nil
	})
	if err != nil || !d.has("experiment_tags") {
		return out, err
	}
	at := map[int64]*Experiment{}
	for i := range out {
		at[out[i].ID] = &out[i]
	}
	return out, d.each(ctx, "SELECT experiment_id, key, value FROM experiment_tags ORDER BY experiment_id, key", nil, func(r []any) error {
		id, err := integer(r[0])
		if e := at[id]; err == nil && e != nil {
			e.Tags = append(e.Tags, [2]string{text(r[1]), text(r[2])})
		}
		return nil
	})
}

// Count implements Source.
func (d *database) Count(ctx context.Context) (n int64, err error) {
	err = d.each(ctx, "SELECT COUNT(*) FROM runs", nil, func(r []any) error {
		n, err = integer(r[0])
		return err
	})
	return n, err
}

// Runs implements Source.
func (d *database) Runs(ctx context.Context, experiments []int64, yield func([]Run) error) error {
	wanted := map[int64]bool{}
	for _, e := range experiments {
		wanted[e] = true
	}
	name, user, end := d.column("runs", "name", "''"), d.column("runs", "user_id", "''"), d.column("runs", "end_time", "0")
	after := ""
	came := map[string]bool{} // of the page before
	for {
		var runs []Run
		seen, page := 0, map[string]bool{}
		err := d.each(ctx, "SELECT run_uuid, "+name+", "+user+", status, start_time, "+end+", lifecycle_stage, artifact_uri, experiment_id FROM runs WHERE run_uuid > ? ORDER BY run_uuid LIMIT "+strconv.Itoa(maxRunsRead),
			[]any{after}, func(r []any) error {
				seen++
				if after = text(r[0]); came[after] {
					return errNoEnd
				}
				page[after] = true
				experiment, err := integer(r[8])
				if err != nil || !wanted[experiment] {
					return nil //nolint:nilerr // of an experiment that is none, or was not asked for
				}
				runs = append(runs, Run{
					ID: text(r[0]), Name: text(r[1]), User: text(r[2]), Status: text(r[3]), Start: instant(r[4]), End: instant(r[5]), Stage: stage(r[6]),
					URI: text(r[7]), Experiment: experiment,
				})
				return nil
			})
		if err != nil {
			return err
		}
		if len(runs) > 0 {
			if err := d.fill(ctx, runs); err != nil {
				return err
			}
			if err := yield(runs); err != nil {
				return err
			}
		}
		came = page
		if seen < maxRunsRead {
			return nil
		}
	}
}

// errFold is of a database to which identifiers that differ are the same.
var errFold = fault.New(fault.Invalid, "the database takes identifiers for the same that are not, such as by a collation without case").
	WithHint("Import from the address of the MLflow server on it, http://….")

// errNoEnd is of a database whose pages do not go on, such as one with identifiers that are bytes.
var errNoEnd = fault.New(fault.Invalid, "the database has identifiers that are no text: they come again and again").
	WithHint("Import from the address of the MLflow server on it, http://….")

// fill adds what runs have beside their history.
func (d *database) fill(ctx context.Context, runs []Run) error {
	ids, at := make([]string, len(runs)), make(map[string]*Run, len(runs))
	for i := range runs {
		ids[i] = runs[i].ID
		at[runs[i].ID] = &runs[i]
	}
	err := d.each(ctx, "SELECT run_uuid, key, value FROM params WHERE run_uuid IN (?) ORDER BY run_uuid, key", []any{ids}, func(r []any) error {
		run := at[text(r[0])]
		if run == nil {
			return errFold
		}
		run.Params = append(run.Params, [2]string{text(r[1]), text(r[2])})
		return nil
	})
	if err != nil {
		return err
	}
	err = d.each(ctx, "SELECT run_uuid, key, value FROM tags WHERE run_uuid IN (?) ORDER BY run_uuid, key", []any{ids}, func(r []any) error {
		run := at[text(r[0])]
		if run == nil {
			return errFold
		}
		run.Tags = append(run.Tags, [2]string{text(r[1]), text(r[2])})
		if run.Name == "" && text(r[1]) == "mlflow.runName" { // where it was before MLflow 2
			run.Name = text(r[2])
		}
		return nil
	})
	if err != nil || !d.has("inputs") {
		return err
	}
	step := d.column("inputs", "step", "0")
	err = d.each(ctx, "SELECT source_id, destination_id, source_type, "+step+` FROM inputs WHERE source_type IN ('RUN_INPUT', 'RUN_OUTPUT') AND source_id IN (?)
		AND destination_type IN ('MODEL_INPUT', 'MODEL_OUTPUT') ORDER BY source_id, `+d.logged("inputs")+", destination_id, source_type", []any{ids}, func(r []any) error {
		run := at[text(r[0])]
		if run == nil {
			return errFold
		}
		n, err := integer(r[3])
		if err != nil {
			n = 0
		}
		run.Models = append(run.Models, Link{Model: text(r[1]), Output: text(r[2]) == "RUN_OUTPUT", Step: n})
		return nil
	})
	if err != nil || !d.has("datasets", "input_tags") {
		return err
	}
	type place struct {
		run *Run
		at  int
	}
	tagged := map[string]place{}
	var inputs []string
	err = d.each(ctx, `SELECT i.destination_id, i.input_uuid, d.name, d.digest, d.dataset_source_type, d.dataset_source, d.dataset_schema, d.dataset_profile
		FROM inputs i JOIN datasets d ON d.dataset_uuid = i.source_id WHERE i.source_type = 'DATASET' AND i.destination_type = 'RUN' AND i.destination_id IN (?)
		ORDER BY i.destination_id, `+d.logged("i")+", d.name, d.digest", []any{ids}, func(r []any) error {
		run := at[text(r[0])]
		if run == nil {
			return errFold
		}
		tagged[text(r[1])] = place{run, len(run.Inputs)}
		inputs = append(inputs, text(r[1]))
		run.Inputs = append(run.Inputs, Input{Name: text(r[2]), Digest: text(r[3]), SourceType: text(r[4]), Source: text(r[5]), Schema: text(r[6]), Profile: text(r[7])})
		return nil
	})
	for part := range slices.Chunk(inputs, 1000) {
		if err != nil {
			break
		}
		err = d.each(ctx, "SELECT input_uuid, name, value FROM input_tags WHERE input_uuid IN (?) ORDER BY input_uuid, name", []any{part}, func(r []any) error {
			p, ok := tagged[text(r[0])]
			if !ok {
				return errFold
			}
			in := &p.run.Inputs[p.at]
			in.Tags = append(in.Tags, [2]string{text(r[1]), text(r[2])})
			return nil
		})
	}
	return err
}

// History implements Source.
func (d *database) History(ctx context.Context, runs []Run) (int, error) {
	ids := make([]string, len(runs))
	for i := range runs {
		ids[i] = runs[i].ID
	}
	points := map[string]int64{}
	err := d.each(ctx, "SELECT run_uuid, COUNT(*) FROM metrics WHERE run_uuid IN (?) GROUP BY run_uuid", []any{ids}, func(r []any) error {
		n, err := integer(r[1])
		points[text(r[0])] = n
		return err
	})
	if err != nil {
		return 0, err
	}
	n, total := 0, int64(0)
	for n < len(runs) && (n == 0 || total+points[ids[n]] <= maxPointsRead) {
		total += points[ids[n]]
		n++
	}
	runs, ids = runs[:n], ids[:n]
	series := make(map[string]map[string]*Series, n)
	at := make(map[string]*Run, n)
	for i := range runs {
		series[ids[i]] = map[string]*Series{}
		at[ids[i]] = &runs[i]
		runs[i].History = nil
	}
	var last *Series
	lastRun, lastKey := "", ""
	point := func(r []any) error {
		run, key := text(r[0]), text(r[1])
		if at[run] == nil {
			return errFold
		}
		if run != lastRun || key != lastKey || last == nil {
			lastRun, lastKey = run, key
			if last = series[run][key]; last == nil {
				last = &Series{Key: key}
				series[run][key] = last
				at[run].History = append(at[run].History, last)
			}
		}
		when, err1 := integer(r[2])
		step, err2 := integer(r[3])
		value, err3 := number(r[4])
		if err := errors.Join(err1, err2, err3); err != nil { // SQLite lets a column hold anything
			when, step, value = -1, 0, math.NaN() // the server refuses it, and says which
		}
		last.add(when, step, value)
		return nil
	}
	const columns = "SELECT run_uuid, key, timestamp, step, CASE WHEN is_nan THEN NULL ELSE value END FROM "
	if err := d.each(ctx, columns+"metrics WHERE run_uuid IN (?)", []any{ids}, point); err != nil {
		return 0, err
	}
	if d.has("latest_metrics") {
		history := series
		series, last = make(map[string]map[string]*Series, n), nil
		for i := range runs {
			series[ids[i]] = map[string]*Series{}
			runs[i].Latest, runs[i].History = runs[i].History, nil
		}
		err = d.each(ctx, columns+"latest_metrics WHERE run_uuid IN (?)", []any{ids}, point)
		for i := range runs {
			runs[i].Latest, runs[i].History = runs[i].History, runs[i].Latest
			for _, s := range runs[i].Latest { // what no history has, a server shows all the same
				if history[ids[i]][s.Key] == nil {
					runs[i].History = append(runs[i].History, s)
				}
			}
		}
	}
	for i := range runs {
		slices.SortFunc(runs[i].History, func(a, b *Series) int { return strings.Compare(a.Key, b.Key) })
	}
	return n, err
}

// statuses are MLflow's numbers of the states of logged models.
var statuses = map[int64]string{1: "LOGGED_MODEL_PENDING", 2: "LOGGED_MODEL_READY", 3: "LOGGED_MODEL_UPLOAD_FAILED"}

// Models implements Source.
func (d *database) Models(ctx context.Context, experiments []int64, yield func([]Model) error) error {
	if !d.has("logged_models", "logged_model_params", "logged_model_tags", "logged_model_metrics") {
		return nil
	}
	wanted := map[int64]bool{}
	for _, e := range experiments {
		wanted[e] = true
	}
	after := ""
	came := map[string]bool{} // of the page before
	for {
		var models []Model
		seen, page := 0, map[string]bool{}
		err := d.each(ctx, `SELECT model_id, experiment_id, name, artifact_location, creation_timestamp_ms, last_updated_timestamp_ms, status, lifecycle_stage, model_type, source_run_id
			FROM logged_models WHERE model_id > ? ORDER BY model_id LIMIT `+strconv.Itoa(maxRunsRead), []any{after}, func(r []any) error {
			seen++
			if after = text(r[0]); came[after] {
				return errNoEnd
			}
			page[after] = true
			experiment, err := integer(r[1])
			if err != nil || !wanted[experiment] {
				return nil //nolint:nilerr // as in Runs
			}
			status, _ := integer(r[6])
			models = append(models, Model{
				ID: text(r[0]), Experiment: experiment, Name: text(r[2]), URI: text(r[3]), Created: instant(r[4]), Updated: instant(r[5]),
				Status: statuses[status], Stage: stage(r[7]), Type: text(r[8]), Run: text(r[9]),
			})
			return nil
		})
		if err != nil {
			return err
		}
		if len(models) > 0 {
			if err := d.fillModels(ctx, models); err != nil {
				return err
			}
			if err := yield(models); err != nil {
				return err
			}
		}
		came = page
		if seen < maxRunsRead {
			return nil
		}
	}
}

func (d *database) fillModels(ctx context.Context, models []Model) error {
	ids, at := make([]string, len(models)), make(map[string]*Model, len(models))
	for i := range models {
		ids[i] = models[i].ID
		at[models[i].ID] = &models[i]
	}
	for _, pairs := range []struct {
		query string
		of    func(*Model) *Pairs
	}{
		{"SELECT model_id, param_key, param_value FROM logged_model_params WHERE model_id IN (?) ORDER BY model_id, param_key", func(m *Model) *Pairs { return &m.Params }},
		{"SELECT model_id, tag_key, tag_value FROM logged_model_tags WHERE model_id IN (?) ORDER BY model_id, tag_key", func(m *Model) *Pairs { return &m.Tags }},
	} {
		err := d.each(ctx, pairs.query, []any{ids}, func(r []any) error {
			m := at[text(r[0])]
			if m == nil {
				return errFold
			}
			list := pairs.of(m)
			*list = append(*list, [2]string{text(r[1]), text(r[2])})
			return nil
		})
		if err != nil {
			return err
		}
	}
	return d.each(ctx, `SELECT model_id, metric_name, metric_value, metric_timestamp_ms, metric_step, run_id, dataset_name, dataset_digest FROM logged_model_metrics
		WHERE model_id IN (?) ORDER BY model_id, metric_name, metric_timestamp_ms, metric_step, run_id`, []any{ids}, func(r []any) error {
		value, err1 := number(r[2])
		when, err2 := integer(r[3])
		step, err3 := integer(r[4])
		if errors.Join(err1, err2, err3) != nil {
			when = -1 // as in History
		}
		m := at[text(r[0])]
		if m == nil {
			return errFold
		}
		m.Metrics = append(m.Metrics, ModelMetric{
			Key: text(r[1]), Value: Values{value}, Timestamp: when, Step: step, Run: text(r[5]), DatasetName: text(r[6]), DatasetDigest: text(r[7]),
		})
		return nil
	})
}

// LeftOut implements Source.
func (d *database) LeftOut(ctx context.Context) (map[string]int64, error) {
	out := map[string]int64{}
	for _, k := range leftOut {
		if !d.has(k.table) {
			continue
		}
		where, args := d.inWorkspace(k.table)
		if d.columns[k.table]["deleted_timestamp"] {
			where += " AND deleted_timestamp IS NULL"
		}
		err := d.each(ctx, "SELECT COUNT(*) FROM "+k.table+" WHERE "+where, args, func(r []any) (err error) {
			out[k.kind], err = integer(r[0])
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}

// Registered implements Source.
func (d *database) Registered(ctx context.Context, yield func(Registered) error) error {
	if !d.has("registered_models", "model_versions") {
		return nil
	}
	where, args := d.inWorkspace("registered_models")
	var all []*Registered
	at := map[string]*Registered{}
	err := d.each(ctx, "SELECT name, description, creation_time, last_updated_time FROM registered_models WHERE "+where+" ORDER BY name", args, func(r []any) error {
		m := &Registered{Name: text(r[0]), Description: text(r[1]), Created: instant(r[2]), Updated: instant(r[3])}
		all, at[m.Name] = append(all, m), m
		return nil
	})
	if err != nil {
		return err
	}
	if d.has("registered_model_tags") {
		err = d.each(ctx, "SELECT name, key, value FROM registered_model_tags WHERE "+where+" ORDER BY name, key", args, func(r []any) error {
			if m := at[text(r[0])]; m != nil {
				m.Tags = append(m.Tags, [2]string{text(r[1]), text(r[2])})
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	type key struct {
		name   string
		number int64
	}
	versions := map[key]*Version{}
	storage, link := d.column("model_versions", "storage_location", "''"), d.column("model_versions", "run_link", "''")
	err = d.each(ctx, "SELECT name, version, source, run_id, "+link+", description, current_stage, creation_time, last_updated_time, status, "+storage+
		" FROM model_versions WHERE "+where+" ORDER BY name, version", args, func(r []any) error {
		n, err := integer(r[1])
		m := at[text(r[0])]
		if err != nil || m == nil || n < 1 || n > math.MaxInt32 || text(r[6]) == "Deleted_Internal" {
			return nil //nolint:nilerr // none, or what a server that deletes leaves behind
		}
		m.Versions = append(m.Versions, Version{
			Number: int(n), Source: text(r[2]), Run: text(r[3]), RunLink: text(r[4]), Description: text(r[5]), Stage: text(r[6]),
			Created: instant(r[7]), Updated: instant(r[8]), Status: text(r[9]), Storage: text(r[10]),
		})
		return nil
	})
	if err != nil {
		return err
	}
	for _, m := range all {
		for i := range m.Versions {
			versions[key{m.Name, int64(m.Versions[i].Number)}] = &m.Versions[i]
		}
	}
	of := func(r []any) *Version {
		n, _ := integer(r[1])
		return versions[key{text(r[0]), n}]
	}
	if d.has("model_version_tags") {
		err = d.each(ctx, "SELECT name, version, key, value FROM model_version_tags WHERE "+where+" ORDER BY name, version, key", args, func(r []any) error {
			if v := of(r); v != nil {
				v.Tags = append(v.Tags, [2]string{text(r[2]), text(r[3])})
			}
			return nil
		})
	}
	if err == nil && d.has("registered_model_aliases") {
		err = d.each(ctx, "SELECT name, version, alias FROM registered_model_aliases WHERE "+where+" ORDER BY name, alias", args, func(r []any) error {
			if v := of(r); v != nil {
				v.Aliases = append(v.Aliases, text(r[2]))
			}
			return nil
		})
	}
	if err != nil {
		return err
	}
	for _, m := range all {
		if err := yield(*m); err != nil {
			return err
		}
	}
	return nil
}

// List implements Source.
func (d *database) List(ctx context.Context, p Place, yield func(File) error, refused func(string, error)) error {
	return d.roots.list(ctx, p, yield, refused)
}

// Fetch implements Source.
func (d *database) Fetch(_ context.Context, p Place, path string) (io.ReadCloser, error) {
	return d.roots.fetch(p, path)
}

// text is a value as text; NULL is empty.
func text(v any) string {
	switch v := v.(type) {
	case nil:
		return ""
	case string:
		return v
	case []byte:
		return string(v)
	}
	return fmt.Sprint(v)
}

func integer(v any) (int64, error) {
	switch v := v.(type) {
	case nil:
		return 0, nil
	case int64:
		return v, nil
	case int32:
		return int64(v), nil
	case float64:
		if v == math.Trunc(v) && math.Abs(v) < 1<<53 {
			return int64(v), nil
		}
	}
	return 0, fmt.Errorf("%v is no whole number", v)
}

// number is a value; NULL is what MLflow keeps for NaN.
func number(v any) (float64, error) {
	switch v := v.(type) {
	case nil:
		return math.NaN(), nil
	case float64:
		return v, nil
	case int64:
		return float64(v), nil
	}
	return 0, fmt.Errorf("%v is no number", v)
}

// instant is a time in milliseconds; what is none is one that the server refuses.
func instant(v any) int64 {
	n, err := integer(v)
	if err != nil {
		return -1
	}
	return n
}

// stage is a lifecycle stage; old rows have none and are active.
func stage(v any) string {
	if s := text(v); s != "" {
		return s
	}
	return "active"
}
