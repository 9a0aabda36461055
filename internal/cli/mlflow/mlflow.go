// Package mlflow brings what an MLflow server has into a project of Falaj. It runs
// in the process of the command line: the server is given batches, and never
// anything that it would have to open or fetch.
//
// # Map
//
//   - mlflow.go: what an MLflow has, as the batches have it; Source; Open.
//   - database.go: a backend store, SQLite or PostgreSQL, read directly: the fast way.
//   - rest.go: a server, asked page by page.
//   - files.go: artifacts in directories that the user names.
//   - importer.go: the order of things, digests, batches, the report.
//   - registry.go: registered models, their versions and aliases.
//
// # Guarantees
//
// A source is only read. What it says is text and numbers: nothing of it is
// executed, unpickled or followed to a place that the user did not name. Credentials
// go to the address they are for.
package mlflow

import (
	"cmp"
	"context"
	"io"
	"math"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/falaj-ml/falaj/internal/fault"
)

// Pairs are keys and values, in the order of the source.
type Pairs [][2]string

// Experiment as a source has it.
type Experiment struct {
	ID      int64  `json:"experiment_id"`
	Name    string `json:"name"`
	Stage   string `json:"lifecycle_stage"`
	Created int64  `json:"creation_time"`
	Updated int64  `json:"last_update_time"`
	Tags    Pairs  `json:"tags,omitempty"`
}

// Run as a source has it. Experiment is the source's until it is sent.
type Run struct {
	ID         string  `json:"run_id"`
	Experiment int64   `json:"experiment_id"`
	Name       string  `json:"run_name"`
	User       string  `json:"user_id"`
	Status     string  `json:"status"`
	Stage      string  `json:"lifecycle_stage"`
	Start      int64   `json:"start_time"`
	End        int64   `json:"end_time"`
	Params     Pairs   `json:"params,omitempty"`
	Tags       Pairs   `json:"tags,omitempty"`
	Inputs     []Input `json:"dataset_inputs,omitempty"`
	Models     []Link  `json:"models,omitempty"`

	URI     string    `json:"-"` // of its artifacts
	Latest  []*Series `json:"-"` // of each metric its latest point; of a database, with the history
	History []*Series `json:"-"`

	same bool // it came before, and its history was not read again
}

// ended reports whether nobody logs to the run any more.
func (r *Run) ended() bool {
	return r.Status == "FINISHED" || r.Status == "FAILED" || r.Status == "KILLED"
}

// Input is a data set that a run read.
type Input struct {
	Name       string `json:"name"`
	Digest     string `json:"digest"`
	SourceType string `json:"source_type"`
	Source     string `json:"source"`
	Schema     string `json:"schema"`
	Profile    string `json:"profile"`
	Tags       Pairs  `json:"tags,omitempty"`
}

// Link ties a run to a logged model that it read or made.
type Link struct {
	Model  string `json:"model_id"`
	Output bool   `json:"output"`
	Step   int64  `json:"step"`
}

// Series are points of a metric, column by column.
type Series struct {
	Key    string  `json:"key"`
	Times  []int64 `json:"timestamps"`
	Steps  []int64 `json:"steps"`
	Values Values  `json:"values"`
}

func (s *Series) add(at, step int64, value float64) {
	s.Times, s.Steps, s.Values = append(s.Times, at), append(s.Steps, step), append(s.Values, value)
}

// slice is a part of a series.
func (s *Series) slice(from, to int) *Series {
	return &Series{Key: s.Key, Times: s.Times[from:to], Steps: s.Steps[from:to], Values: s.Values[from:to]}
}

// sorted is a copy with its points by time, step and value: sources give them in different
// orders.
func (s *Series) sorted() *Series {
	order := make([]int, len(s.Values))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int {
		return cmp.Or(cmp.Compare(s.Times[a], s.Times[b]), cmp.Compare(s.Steps[a], s.Steps[b]), cmp.Compare(s.Values[a], s.Values[b]))
	})
	out := &Series{Key: s.Key}
	for _, i := range order {
		out.add(s.Times[i], s.Steps[i], s.Values[i]+0) // no minus zero, which not every source tells
	}
	return out
}

// Values are numbers; JSON has those that it has no number for as text.
type Values []float64

// MarshalJSON implements json.Marshaler.
func (v Values) MarshalJSON() ([]byte, error) {
	b := append(make([]byte, 0, 12*len(v)+2), '[')
	for i, x := range v {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendNumber(b, x)
	}
	return append(b, ']'), nil
}

func appendNumber(b []byte, x float64) []byte {
	switch {
	case math.IsNaN(x):
		return append(b, `"NaN"`...)
	case math.IsInf(x, 1):
		return append(b, `"Infinity"`...)
	case math.IsInf(x, -1):
		return append(b, `"-Infinity"`...)
	}
	return strconv.AppendFloat(b, x, 'g', -1, 64)
}

// Model is a logged model.
type Model struct {
	ID         string        `json:"model_id"`
	Experiment int64         `json:"experiment_id"`
	Name       string        `json:"name"`
	Type       string        `json:"model_type"`
	Run        string        `json:"source_run_id"`
	Status     string        `json:"status"`
	Stage      string        `json:"lifecycle_stage"`
	Created    int64         `json:"creation_timestamp_ms"`
	Updated    int64         `json:"last_updated_timestamp_ms"`
	Params     Pairs         `json:"params,omitempty"`
	Tags       Pairs         `json:"tags,omitempty"`
	Metrics    []ModelMetric `json:"metrics,omitempty"`

	URI string `json:"-"`
}

func (m *Model) sortMetrics() {
	slices.SortFunc(m.Metrics, func(a, b ModelMetric) int {
		return cmp.Or(strings.Compare(a.Key, b.Key), cmp.Compare(a.Timestamp, b.Timestamp), cmp.Compare(a.Step, b.Step), strings.Compare(a.Run, b.Run), slices.Compare(a.Value, b.Value),
			strings.Compare(a.DatasetName, b.DatasetName), strings.Compare(a.DatasetDigest, b.DatasetDigest))
	})
}

// ModelMetric is what a run measured of a logged model.
type ModelMetric struct {
	Key           string `json:"key"`
	Value         Values `json:"value"` // one
	Timestamp     int64  `json:"timestamp"`
	Step          int64  `json:"step"`
	Run           string `json:"run_id"`
	DatasetName   string `json:"dataset_name"`
	DatasetDigest string `json:"dataset_digest"`
}

// Registered is a registered model with its versions, by number.
type Registered struct {
	Name        string `json:"name"`
	Description string `json:"description,omitempty"`
	Created     int64  `json:"creation_timestamp"`
	Updated     int64  `json:"last_updated_timestamp"`
	Tags        Pairs  `json:"tags,omitempty"`

	Versions []Version `json:"-"`
}

// Version is a version of a registered model. Source is the source's until it is
// sent.
type Version struct {
	Number      int      `json:"version"`
	Source      string   `json:"source,omitempty"`
	Run         string   `json:"run_id,omitempty"`
	RunLink     string   `json:"run_link,omitempty"`
	Description string   `json:"description,omitempty"`
	Stage       string   `json:"current_stage,omitempty"`
	Created     int64    `json:"creation_timestamp,omitempty"`
	Updated     int64    `json:"last_updated_timestamp,omitempty"`
	Tags        Pairs    `json:"tags,omitempty"`
	Aliases     []string `json:"-"`

	Status  string `json:"-"`
	Storage string `json:"-"` // where its files are, if not at Source
}

// leftOut are the kinds that are not brought, and why.
var leftOut = []struct{ kind, table, why string }{
	{"traces", "trace_info", "traces of language models are not kept here: send OpenTelemetry to a collector"},
	{"evaluation_datasets", "evaluation_datasets", "evaluation datasets are not kept here: import their rows as a Falaj dataset"},
	{"scorers", "scorers", "scorers are not kept here"},
	{"webhooks", "webhooks", "their secrets cannot be read: create them anew"},
}

// Place is what has artifacts: a run or a logged model.
type Place struct {
	Run, Model string // one of them
	URI        string
}

func (p Place) id() string { return p.Run + p.Model }

// File is an artifact.
type File struct {
	Path   string
	Size   int64
	Digest string // "sha256:<hex>", where that costs little; else empty
}

// Source is an MLflow to read. Its methods are called one after the other, but for
// List and Fetch, which are called beside each other.
type Source interface {
	String() string // where it is, without secrets
	// Whole reports whether history costs little, so that digests are of it too.
	Whole() bool
	Experiments(ctx context.Context) ([]Experiment, error)
	// Count is about how many runs there are, for the progress; 0 is unknown.
	Count(ctx context.Context) (int64, error)
	// Models yields logged models of the experiments.
	Models(ctx context.Context, experiments []int64, yield func([]Model) error) error
	// Runs yields runs of the experiments, some at a time, without their history.
	Runs(ctx context.Context, experiments []int64, yield func([]Run) error) error
	// History adds the history of runs. It may be too long for all of them at once:
	// then it does those that it can, at least the first, and says how many.
	History(ctx context.Context, runs []Run) (int, error)
	Registered(ctx context.Context, yield func(Registered) error) error
	// LeftOut counts what the source has of kinds that are not brought, by kind.
	LeftOut(ctx context.Context) (map[string]int64, error)
	// List yields the files of a place. What cannot be reached is fault.Unavailable, and
	// a path that is none is told to refused.
	List(ctx context.Context, p Place, yield func(File) error, refused func(path string, err error)) error
	Fetch(ctx context.Context, p Place, path string) (io.ReadCloser, error)
	Close() error
}

// Access is what a source is read with, beside its address.
type Access struct {
	Token, User, Password string   // of a server
	Artifacts             []string // directories below which files may be read
	Workspace             string   // of MLflow's workspaces; empty is the default one
}

// Open opens what an address names: http(s)://host, a file, sqlite:///file, or
// postgresql://host/database. Close it.
func Open(ctx context.Context, address string, with Access) (Source, error) {
	scheme, rest, _ := strings.Cut(address, "://")
	scheme, _, _ = strings.Cut(strings.ToLower(scheme), "+") // postgresql+psycopg2
	if !strings.Contains(address, "://") {
		scheme = ""
	}
	roots, err := openRoots(with.Artifacts)
	if err != nil {
		return nil, err
	}
	var s Source
	switch scheme {
	case "http", "https":
		s, err = openServer(address, with)
	case "postgresql", "postgres":
		s, err = openPostgres(ctx, "postgres://"+rest, roots, with)
	case "sqlite":
		s, err = openSQLite(ctx, strings.TrimPrefix(rest, "/"), roots, with) // three slashes are relative, four absolute
	case "", "file":
		name := address
		if scheme == "file" {
			name = rest
		}
		if info, statErr := os.Stat(name); statErr == nil && info.IsDir() {
			err = fault.New(fault.Unsupported, "%s is a directory, such as MLflow's file store", name).
				WithHint("Start a server on it, mlflow server --backend-store-uri %s, and import from its address.", name)
			break
		}
		s, err = openSQLite(ctx, name, roots, with)
	default:
		err = fault.New(fault.Unsupported, "databases of %s are not read directly", scheme).
			WithHint("Import from the address of the MLflow server on it, http://….")
	}
	if err != nil {
		roots.close()
		return nil, err
	}
	return s, nil
}

// Plain is an address without the secrets that it may hold.
func Plain(address string) string {
	u, err := url.Parse(address)
	if err != nil { // such as one with a password that has a % in it
		scheme, rest, ok := strings.Cut(address, "://")
		if at := strings.LastIndex(rest, "@"); ok && at >= 0 {
			rest = rest[at+1:]
		}
		if !ok {
			return address
		}
		rest, _, _ = strings.Cut(rest, "?")
		return scheme + "://" + rest
	}
	if u.Scheme == "" {
		return address
	}
	u.RawQuery, u.Fragment = "", ""
	if u.User != nil {
		u.User = url.User(u.User.Username())
	}
	return u.String()
}
