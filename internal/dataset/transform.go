package dataset

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/apache/arrow-go/v18/arrow/array"

	"github.com/falaj-ml/falaj/internal/dataset/table"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/id"
	"github.com/falaj-ml/falaj/internal/resource"
	"github.com/falaj-ml/falaj/internal/store"
)

// Engine runs the SQL of a transformation.
type Engine string

// The engines.
const (
	DuckDB Engine = "duckdb" // in a sandboxed process of this machine; the default
	Spark  Engine = "spark"  // in a job
)

// Transform is the derivation of a dataset from others.
type Transform struct {
	SQL         string            `json:"sql" doc:"One SELECT over datasets in DuckDB's dialect; Spark runs the same text"`
	Inputs      map[string]string `json:"inputs,omitempty" doc:"Datasets by the table names used in sql; by default tables are datasets of the same name"`
	TimeZone    string            `json:"time_zone,omitempty" doc:"Time zone of times in the result without one (TIMESTAMP, not TIMESTAMPTZ), such as America/New_York or UTC; required if there are any. Engine spark: UTC"`
	Engine      Engine            `json:"engine,omitempty" doc:"duckdb (the default): at once, in a sandbox; spark: in a job, only open datasets" enum:"duckdb,spark"`
	Environment string            `json:"environment,omitempty" doc:"Engine spark: an environment that has PySpark"`
	Resources   resource.Amount   `json:"resources,omitzero" doc:"Engine spark: resources of the job; default 1 CPU and 2GiB"`
	Pools       []string          `json:"pools,omitempty" doc:"Engine spark: allowed pools; default: all that are permitted"`
}

// maxTransform bounds the SQL of a transformation: all of it is in the lineage.
const maxTransform = maxProducerText

// Validate refuses what cannot be run, naming the field. Error: fault.Invalid.
func (t *Transform) Validate() error {
	if t == nil {
		return nil
	}
	bad := func(field, format string, args ...any) *fault.Error {
		return fault.New(fault.Invalid, "spec.transform.%s: %s", field, fmt.Sprintf(format, args...))
	}
	if t.SQL == "" || len(t.SQL) > maxTransform {
		return bad("sql", "it has %d bytes, and must have 1 to %d", len(t.SQL), maxTransform)
	}
	if len(t.Inputs) > maxTables {
		return bad("inputs", "%d are over the limit of %d", len(t.Inputs), maxTables)
	}
	if _, err := t.refs(); err != nil {
		return fault.Wrap(err, "spec.transform.inputs")
	}
	if t.TimeZone != "" {
		if _, err := table.ParseZone(t.TimeZone); err != nil {
			return fault.Wrap(err, "spec.transform.time_zone")
		}
	}
	switch t.Engine {
	case "", DuckDB:
		if t.Environment != "" || !t.Resources.IsZero() || len(t.Pools) > 0 {
			return bad("engine", "environment, resources and pools are valid only with engine spark; duckdb runs on this server, within limits.sql_*")
		}
	case Spark:
		if t.Environment == "" {
			return bad("environment", "engine spark requires an environment with PySpark").
				WithHint(`Name an Environment with requirements: ["pyspark==4.0.5"], or set engine: duckdb.`)
		}
		if t.TimeZone != "" && t.TimeZone != "UTC" {
			return bad("time_zone", "engine spark supports only UTC, not %s", t.TimeZone).WithHint("Set engine: duckdb, or time_zone: UTC.")
		}
		if err := t.Resources.Validate(); err != nil {
			return fault.Wrap(err, "spec.transform.resources")
		}
		for _, p := range t.Pools {
			if err := id.CheckName("pool", p); err != nil {
				return fault.Wrap(err, "spec.transform.pools")
			}
		}
	default:
		return bad("engine", "there is no engine %q", string(t.Engine)).WithHint("The engines are duckdb and spark.")
	}
	return nil
}

// maxTables is how many tables a transformation names.
const maxTables = 64

// refs are the inputs; nil takes the tables' names for them.
func (t *Transform) refs() (map[string]Ref, error) {
	if t.Inputs == nil {
		return nil, nil //nolint:nilnil // which tables there are the SQL says
	}
	refs := make(map[string]Ref, len(t.Inputs))
	for _, table := range slices.Sorted(maps.Keys(t.Inputs)) {
		r, err := ParseRef(t.Inputs[table])
		if err != nil || table == "" {
			return nil, fault.New(fault.Invalid, "table %q is %q, which is not a dataset such as weather or weather@3", table, t.Inputs[table])
		}
		refs[table] = r
	}
	return refs, nil
}

// Transforms checks and runs the transformations of datasets. Its callers are the HTTP API, which
// derives at once, and jobs, which hand over rows that Spark made.
type Transforms struct {
	*core
	definitions *Definitions
	writes      *Writes
	reads       *Reads
}

// CheckTransform has DuckDB read the SQL of a transformation that is new or another than
// the dataset's, over the columns of its tables and no rows. Where a table has no version
// yet, or may not be read, it says why nothing was checked. Needs dataset.import. Errors:
// fault.Invalid, as Derive.
func (s *Transforms) CheckTransform(ctx context.Context, p project.Name, name string, spec Spec) (unchecked string, err error) {
	was, err := s.allowed(ctx, ActionImport, p, name)
	if err != nil && !fault.Is(err, fault.NotFound) {
		return "", err
	}
	if err := spec.Validate(); err != nil {
		return "", err
	}
	t := spec.Transform
	if t == nil || err == nil && sameJSON(t, was.Spec.Transform) {
		return "", nil
	}
	q := QueryRequest{Project: p, SQL: t.SQL, TimeZone: t.TimeZone, Purpose: "transformation"}
	if q.Inputs, err = t.refs(); err != nil {
		return "", err
	}
	plan, err := s.bind(ctx, q)
	if err == nil {
		err = t.zoned(plan.local)
	}
	switch {
	case err == nil:
		return "", nil
	case fault.Is(err, fault.Invalid), fault.Is(err, fault.TooLarge):
		return "", fault.Wrap(err, "spec.transform.sql")
	case ctx.Err() != nil:
		return "", err
	}
	told, _ := fault.Brief(err)
	return "spec.transform.sql was not checked: " + told, nil
}

// zoned refuses times without a zone where none is named: they say no instant.
func (t *Transform) zoned(local []string) error {
	if len(local) == 0 || t.TimeZone != "" {
		return nil
	}
	return fault.New(fault.Invalid, "the times in %q have no time zone", local).
		WithHint("Set time_zone beside the SQL, such as time_zone: UTC.")
}

// Step is a transformation that runs elsewhere. Which version each table is was decided,
// and which columns the rows have: those that DuckDB gives them.
type Step struct {
	Job         string    // that will run it: named before its inputs were decided, so that it has its turn
	Asked       time.Time // when it was asked for: a dataset that was deleted since stays so
	Project     project.Name
	Dataset     string
	SQL         string
	Tables      map[string]Ref
	Columns     []Column
	Environment string
	Resources   resource.Amount
	Pools       []string
}

// Steps runs transformations elsewhere, as jobs, which end with Keep.
type Steps interface {
	// Begin submits the job for the principal of ctx, who must be allowed to.
	Begin(ctx context.Context, s Step) error
}

// Derived is what Derive made, or began: one of the two.
type Derived struct {
	Version *Version `json:"version,omitempty" doc:"Version created by DuckDB"`
	Job     string   `json:"job,omitempty" doc:"Job that creates the version on Spark"`
}

// Derive runs a dataset's transformation over the newest accepted versions: by DuckDB
// it makes a version; on Spark it begins a job, which makes one when it succeeds. Needs
// dataset.import, dataset.query and dataset.read on the tables, and job.submit for Spark.
// Errors: as Query and Create; fault.Invalid without a transformation, and for times
// without a zone; fault.PermissionDenied for Spark over sealed datasets.
func (s *Transforms) Derive(ctx context.Context, p project.Name, name string) (Derived, error) {
	asked := s.cfg.Now()
	d, err := s.allowed(ctx, ActionImport, p, name)
	if err != nil {
		return Derived{}, err
	}
	t := d.Spec.Transform
	if t == nil {
		return Derived{}, fault.New(fault.Invalid, "dataset %s cannot be derived: its manifest has no spec.transform", name).
			WithHint("Declare it: transform: {sql: SELECT …}. Files are imported: falaj dataset import %s FILE.", name)
	}
	q := QueryRequest{Project: p, SQL: t.SQL, TimeZone: t.TimeZone, Purpose: "transformation"}
	if q.Inputs, err = t.refs(); err != nil {
		return Derived{}, err
	}
	if t.Engine == Spark {
		return s.begin(ctx, d, q, asked)
	}
	made := CreateRequest{Project: p, Name: name, Producer: Producer{Kind: "query", ID: id.New("drv")}, asked: asked}
	rows, err := s.reads.Query(ctx, q)
	if err != nil {
		return Derived{}, err
	}
	defer rows.Release()
	if err := t.zoned(rows.Local()); err != nil {
		return Derived{}, err
	}
	made.Producer.Digest, made.Producer.Text = rows.Producer().Digest, t.SQL
	made.Rows, made.Parents, made.Columns = rows, rows.Refs(), rows.Columns
	v, err := s.writes.Create(ctx, made)
	if err != nil {
		return Derived{}, err
	}
	return Derived{Version: &v}, nil
}

// begin has DuckDB read the SQL first: what it refuses, and what names no table, is told
// at once, and not by a job.
func (s *Transforms) begin(ctx context.Context, d Dataset, q QueryRequest, asked time.Time) (Derived, error) {
	if s.cfg.Steps == nil {
		return Derived{}, fault.New(fault.Unsupported, "no engine of this server supports Spark").WithHint("Set engine: duckdb in spec.transform of dataset %s.", d.Name)
	}
	job := id.New("job")
	plan, err := s.bind(ctx, q)
	if err != nil {
		return Derived{}, err
	}
	t := d.Spec.Transform
	if err := t.zoned(plan.local); err != nil {
		return Derived{}, err
	}
	step := Step{
		Job: job, Asked: asked, Project: d.Project, Dataset: d.Name, SQL: t.SQL, Tables: map[string]Ref{}, Columns: plan.columns, Environment: t.Environment, Resources: t.Resources, Pools: t.Pools,
	}
	for _, in := range plan.tables {
		if err := inTheClear(in.version, d.Name); err != nil {
			return Derived{}, err
		}
		step.Tables[in.name] = in.version.Ref()
	}
	if err := s.cfg.Steps.Begin(ctx, step); err != nil {
		return Derived{}, err
	}
	return Derived{Job: job}, nil
}

// inTheClear refuses a sealed version: Spark has what it sorts on the disk.
func inTheClear(v Version, name string) error {
	if v.Protection == Open {
		return nil
	}
	hint := "Set engine: duckdb in spec.transform of dataset " + name
	if !v.Classification.Journalled() { // what is, is never open
		hint += ", or import the rows into a dataset with protection: open"
	}
	return fault.New(fault.PermissionDenied, "%s is sealed, and Spark would write its rows to the disk unencrypted", v.Ref()).WithHint("%s.", hint)
}

// bound is what DuckDB makes of SQL over tables without rows.
type bound struct {
	tables  []input
	columns []Column
	local   []string // whose times have no zone
	from    Columns  // what the columns are made of
}

// bind has DuckDB read SQL, through the doors that a query goes through.
func (s *Transforms) bind(ctx context.Context, q QueryRequest) (bound, error) {
	q.empty = true
	rows, err := s.reads.Query(ctx, q)
	if err != nil {
		return bound{}, err
	}
	defer rows.Release()
	schema, err := table.FromArrow(rows.Schema())
	if err != nil {
		return bound{}, err
	}
	b := bound{tables: rows.tables, local: rows.Local(), from: rows.Columns()}
	for _, f := range schema {
		b.columns = append(b.columns, Column{Name: f.Name, Type: f.Type})
	}
	return b, nil
}

// Ran is the Step that a job ran, with the versions that it was handed.
type Ran struct {
	SQL    string
	Tables map[string]Ref
}

// Left is the rows that a job left for a dataset.
type Left struct {
	Project project.Name
	Dataset string
	Job     string
	Asked   time.Time // when the job was submitted, or the step asked for
	// Open begins to read the rows, which are released when ctx has ended at the latest.
	Open   func(ctx context.Context) (array.RecordReader, error)
	Bytes  int64                                                    // of the files that they are in
	Read   []JobInputs                                              // what the job could read
	Beside []Labelled                                               // what else it could
	Step   *Ran                                                     // nil for another job
	With   string                                                   // what is no dataset and it had, for the lineage: "with model delay@3"
	Then   func(ctx context.Context, tx *store.Tx, v Version) error // as of IngestRequest
}

// ErrRows is in the chain of errors of rows that cannot be read, or not to their end.
var ErrRows = errors.New("the rows cannot be read")

// Keep makes a version of what a job left, within the limits of one import. Rows of a
// Step become the version that Derive makes of them by DuckDB. Errors: as Create, with
// ErrRows for what reading them failed by; fault.Gone when the dataset was deleted after the
// job was submitted; fault.Exhausted when too many imports run.
func (s *Transforms) Keep(ctx context.Context, l Left) (Version, error) {
	if l.Bytes > int64(s.limits.Upload) {
		return Version{}, fault.New(fault.TooLarge, "the files have %d bytes, over the limit of %d", l.Bytes, s.limits.Upload).WithHint("Write smaller outputs, or raise limits.upload.")
	}
	free, err := s.imports.Take(ctx, identity.Share(ctx, l.Project))
	if err != nil {
		return Version{}, err
	}
	defer free()
	ctx, cancel := context.WithTimeout(ctx, s.limits.ImportTime)
	defer cancel()
	unread := func(err error) (Version, error) {
		return Version{}, fault.New(fault.KindOf(inTime(ctx, err)), "%w", fmt.Errorf("%w: %w", ErrRows, err)).WithHint("%s", fault.HintOf(err))
	}
	in, err := l.Open(ctx)
	if err != nil {
		return unread(err)
	}
	defer in.Release()
	most := s.limits.Parser.WithDefaults()
	rows := &rationed{RecordReader: in, rows: most.Rows, bytes: most.Expanded}
	r := CreateRequest{
		Project: l.Project, Name: l.Dataset, Rows: rows, Beside: l.Beside, Producer: Producer{Kind: "job", ID: l.Job, Digest: l.Job, Text: l.With}, read: l.Read, asked: l.Asked, then: l.Then,
	}
	if l.Step != nil {
		r.Producer = Producer{Kind: "query", ID: l.Job, Digest: digestOf([]byte(l.Step.SQL)), Text: l.Step.SQL}
		r.Columns = func() Columns {
			plan, err := s.bind(ctx, QueryRequest{Project: l.Project, SQL: l.Step.SQL, Inputs: l.Step.Tables, Purpose: "transformation"})
			if err != nil { // it was bound when the job began, and knowing is no condition
				return nil
			}
			return plan.from
		}
	}
	v, err := s.writes.Create(ctx, r)
	if rows.err != nil {
		return unread(rows.err)
	}
	return v, err
}

// rationed ends rows that are more than one import may have.
type rationed struct {
	array.RecordReader
	rows, bytes int64 // still to come
	err         error
}

func (r *rationed) Next() bool {
	if r.err != nil {
		return false
	}
	if !r.RecordReader.Next() {
		r.err = r.RecordReader.Err()
		return false
	}
	rec := r.RecordBatch()
	r.rows -= rec.NumRows()
	for _, c := range rec.Columns() {
		r.bytes -= int64(c.Data().SizeInBytes()) //nolint:gosec // G115: of what is in memory
	}
	if r.rows < 0 || r.bytes < 0 {
		r.err = fault.New(fault.TooLarge, "the rows exceed the limit of one version").WithHint("Write fewer rows, or split them into several datasets.")
	}
	return r.err == nil
}

func (r *rationed) Err() error { return r.err }

// Receives refuses a dataset that the caller may not write, or may not have checked, and
// what nothing can be made of any more. Needs dataset.import, and dataset.query on what
// the expectations read; a dataset that is not there is made.
func (s *Transforms) Receives(ctx context.Context, p project.Name, name string, read []JobInputs) error {
	if _, err := s.allowed(ctx, ActionImport, p, name); err == nil {
		if err := s.definitions.MayRunExpectations(ctx, p, name); err != nil {
			return err
		}
	} else if !fault.Is(err, fault.NotFound) {
		return err
	}
	return s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		if _, err := s.inputVersions(ctx, tx, p, read); err != nil {
			return err
		}
		return s.requireNotErased(ctx, tx, p, read)
	})
}

// inTurn refuses a version that a derivation made when one that began later, of newer
// versions, has made the newest.
func (s *core) inTurn(ctx context.Context, tx *store.Tx, d Dataset, v Version) error {
	mine := v.derivation()
	if mine == "" || v.State != Accepted || d.Accepted == 0 {
		return nil
	}
	newest, err := s.cfg.Store.Version(ctx, tx, d.ID, d.Accepted)
	for err == nil && newest.Redacts > 0 { // made by an erasure, of one that was derived
		newest, err = s.cfg.Store.Version(ctx, tx, d.ID, newest.Redacts)
	}
	if err != nil {
		return err
	}
	if newest.derivation() > mine {
		return fault.New(fault.Conflict, "%s was made by a derivation that started later", Ref{Name: d.Name, Number: d.Accepted}).
			WithHint("The dataset keeps that version. Derive again if the tables have changed since.")
	}
	return nil
}

// derivation tells by which derivation a version was made, so that they sort by when
// they began; empty for others.
func (v Version) derivation() string {
	p := v.Lineage.Producer
	if p == nil || p.Kind != "query" {
		return ""
	}
	_, began, _ := strings.Cut(p.ID, "_")
	return began
}
