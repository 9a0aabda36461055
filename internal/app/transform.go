package app

import (
	"cmp"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"

	"github.com/falaj-ml/falaj/internal/dataset"
	"github.com/falaj-ml/falaj/internal/dataset/ingestion"
	"github.com/falaj-ml/falaj/internal/dataset/source"
	"github.com/falaj-ml/falaj/internal/dataset/source/files"
	"github.com/falaj-ml/falaj/internal/environment"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/resource"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/training"
)

// sparkScript runs the SQL of a transformation, which a line before it has.
//
//go:embed spark.py
var sparkScript string

// sparkSteps runs transformations as jobs.
type sparkSteps struct{ *App }

var _ dataset.Steps = sparkSteps{}

// sparkStep is what the script is told.
type sparkStep struct {
	SQL     string            `json:"sql"`
	Tables  map[string]string `json:"tables"` // names of the job's data by those that the SQL has
	Columns []dataset.Column  `json:"columns"`
	Memory  int64             `json:"memory"` // MiB of Java's heap
	Cores   int64             `json:"cores"`
}

// Begin implements dataset.Steps. The job has the permissions and zones of its caller and
// its inputs, and is repeated and cancelled as others are.
func (s sparkSteps) Begin(ctx context.Context, step dataset.Step) error {
	if err := s.hasSpark(ctx, step); err != nil {
		return err
	}
	amount := step.Resources
	amount.CPU, amount.Memory = cmp.Or(amount.CPU, resource.Cores(1)), cmp.Or(amount.Memory, 2*resource.GiB)
	told := sparkStep{
		SQL: step.SQL, Tables: map[string]string{}, Columns: step.Columns, Cores: max(int64(amount.CPU)/1000, 1),
		Memory: max(int64(amount.Memory/resource.MiB)*6/10, 512), // beside it are Python and what Java needs around its heap
	}
	data := map[string]string{}
	for i, table := range slices.Sorted(maps.Keys(step.Tables)) {
		name := fmt.Sprintf("t%d", i+1)
		data[name], told.Tables[table] = step.Tables[table].String(), name
	}
	script, err := told.script()
	if err != nil {
		return err
	}
	_, err = s.training.SubmitStep(ctx, step.Project, step.Dataset, training.Spec{
		Environment: step.Environment, Script: script, Data: data, Into: step.Dataset,
		Resources: amount, Pools: step.Pools, Env: map[string]string{"HADOOP_USER_NAME": "job", "SPARK_LOCAL_IP": "127.0.0.1"},
	}, training.Step{SQL: step.SQL, Tables: told.Tables}, training.JobID(step.Job), step.Asked)
	return err
}

// script is the whole program: what it is told is in it, since the arguments of a program
// are too short for thousands of columns. A string of JSON is one of Python.
func (s sparkStep) script() (string, error) {
	told, err := json.Marshal(s)
	if err != nil {
		return "", err
	}
	text, err := json.Marshal(string(told))
	return "STEP = " + string(text) + "\n" + sparkScript, err
}

// hasSpark refuses an environment that says itself that it has none. What is in an image,
// or comes with a site's Python, the job finds.
func (s sparkSteps) hasSpark(ctx context.Context, step dataset.Step) error {
	name, _, _ := strings.Cut(step.Environment, "@")
	e, err := s.environments.One(ctx, step.Project, name)
	if fault.Is(err, fault.NotFound) {
		return fault.New(fault.NotFound, "environment %s not found, which dataset %s needs for Spark", name, step.Dataset).
			WithHint(`Declare it: {kind: Environment, name: %s, spec: {requirements: ["pyspark==4.0.5"]}}, or write engine: duckdb.`, name)
	}
	if err != nil || e.Spec.Kind() != environment.PythonKind || e.Spec.SitePackages {
		return err
	}
	if said := strings.Join(e.Spec.Requirements, "\n") + "\n" + e.Spec.RequirementsText + "\n" + e.Lock; !strings.Contains(strings.ToLower(said), "pyspark") {
		return fault.New(fault.Invalid, "environment %s has no PySpark", name).
			WithHint("Add pyspark==4.0.5 to its requirements, name another one in spec.transform.environment of dataset %s, or write engine: duckdb.", step.Dataset)
	}
	return nil
}

// ranBy is the step that a job ran, by the versions that it was handed; nil of another job.
func ranBy(j training.Job) (*dataset.Ran, error) {
	if j.Step == nil {
		return nil, nil //nolint:nilnil // most jobs run none
	}
	ran := &dataset.Ran{SQL: j.Step.SQL, Tables: make(map[string]dataset.Ref, len(j.Step.Tables))}
	for table, name := range j.Step.Tables {
		i := slices.IndexFunc(j.Inputs, func(in training.Input) bool { return in.Name == name })
		if i < 0 {
			return nil, fault.New(fault.Internal, "job %s did not get the table %s of its step", j.ID, table)
		}
		ref, err := dataset.ParseRef(j.Inputs[i].Dataset())
		if err != nil {
			return nil, err
		}
		ran.Tables[table] = ref
	}
	return ran, nil
}

// jobInputsOf are what a job could read, and the jobs from whose checkpoints it goes on.
func jobInputsOf(j training.Job, earlier []training.Job) ([]dataset.JobInputs, error) {
	var rs []dataset.JobInputs
	for _, of := range append([]training.Job{j}, earlier...) {
		r := dataset.JobInputs{Zones: residency.Of(of.Residency.Zones()...), Since: cmp.Or(of.StartedAt, of.SubmittedAt)}
		for _, in := range of.Inputs {
			if in.Model() != "" { // what is made with it is made of what it was trained on, too
				r.Beside = append(r.Beside, dataset.Labelled{Name: in.Ref, Residency: in.Residency, Classification: in.Classification})
				r.Versions = append(r.Versions, learned(in)...)
				continue
			}
			ref, err := dataset.ParseRef(in.Dataset())
			if err != nil {
				return nil, err
			}
			r.Versions = append(r.Versions, ref)
		}
		for _, name := range of.Spec.Tables {
			table := dataset.Ref{Name: name}
			for _, in := range of.Tables {
				if in.Name != name {
					continue
				}
				var err error
				if table, err = dataset.ParseRef(in.Dataset()); err != nil {
					return nil, err
				}
			}
			r.Tables = append(r.Tables, table)
		}
		rs = append(rs, r)
	}
	return rs, nil
}

// learned are the versions of datasets that a model was trained on.
func learned(in training.Input) (refs []dataset.Ref) {
	for _, text := range in.Datasets {
		if ref, err := dataset.ParseRef(text); err == nil && ref.Number > 0 { // else it is no version of a dataset
			refs = append(refs, ref)
		}
	}
	return refs
}

// withModels names the models that a job had: they are no parents of a version of a dataset.
func withModels(j training.Job) string {
	var models []string
	for _, in := range j.Inputs {
		if m := in.Model(); m != "" {
			models = append(models, "model "+m)
		}
	}
	if len(models) == 0 {
		return ""
	}
	return "with " + strings.Join(models, ", ")
}

// trainingRows makes versions of datasets of what jobs left.
type trainingRows struct{ datasets *dataset.Service }

func (t trainingRows) Check(ctx context.Context, s training.RowsSpec) error {
	read, err := jobInputsOf(s.Job, s.Earlier)
	if err != nil {
		return err
	}
	err = t.datasets.Receives(ctx, s.Job.Project, s.Job.Spec.Into, read)
	if with := withModels(s.Job); with != "" && fault.Is(err, fault.Gone) { // its data are there: they were looked up before
		return fault.New(fault.Gone, "rows can no longer be created %s: %w", with, err).
			WithHint("Retrain the model on the replacing version, and deploy the new version.")
	}
	return err
}

// readTries is how often files are read that bring the parser down, before they are to
// blame.
const readTries = 3

// Save has the files parsed by the parser's process: a job wrote them. The parts of a
// result are in the order of their names.
func (t trainingRows) Save(ctx context.Context, s training.RowsSpec) (ref string, err error) {
	for range readTries {
		ref, err = t.save(ctx, s)
		if ctx.Err() == nil && fault.Is(err, fault.Timeout) { // it would not be faster the next time
			return "", fault.New(fault.TooLarge, "%w", err).WithHint("%s", fault.HintOf(err))
		}
		again := fault.Is(err, fault.Internal) || fault.Is(err, fault.Exhausted) || fault.Is(err, fault.Unavailable)
		if !errors.Is(err, dataset.ErrRows) || !again || ctx.Err() != nil {
			return ref, err
		}
	}
	return "", fault.New(fault.Invalid, "%w, %d times", err, readTries).WithHint("%s", fault.HintOf(err))
}

func (t trainingRows) save(ctx context.Context, s training.RowsSpec) (string, error) {
	bytes, err := partsOnly(s.Dir)
	if err != nil {
		return "", err
	}
	j := s.Job
	l := dataset.Left{Project: j.Project, Dataset: j.Spec.Into, Job: string(j.ID), Asked: j.SubmittedAt, Bytes: bytes}
	if l.Read, err = jobInputsOf(j, s.Earlier); err != nil {
		return "", err
	}
	if l.Step, err = ranBy(j); err != nil {
		return "", err
	}
	l.With = withModels(j)
	if l.Step == nil { // a version of a table has a label of its own, and the job the one that all had
		l.Beside = []dataset.Labelled{{Name: "job " + string(j.ID), Residency: j.Residency, Classification: j.Classification}}
	}
	l.Open = func(ctx context.Context) (array.RecordReader, error) {
		in, err := files.Driver{}.Open(ctx, source.Request{
			From: source.From{Files: &source.Files{Directory: s.Dir, Match: "*.parquet", Format: "parquet"}}, Mode: source.Full,
			BatchRows: 64 << 10, Parser: ingestion.ParserOf(t.datasets), Access: source.Access{Files: []string{s.Dir}},
		})
		if err != nil {
			return nil, err
		}
		return &sourceRows{in: in, ctx: ctx}, nil
	}
	l.Then = func(ctx context.Context, tx *store.Tx, v dataset.Version) error {
		if v.State != dataset.Accepted {
			return nil
		}
		return s.Made(ctx, tx, v.Ref().String())
	}
	v, err := t.datasets.Keep(ctx, l)
	if err != nil {
		return "", err
	}
	if v.State == dataset.Rejected {
		return "", fault.New(fault.Invalid, "%s is rejected: %s", v.Ref(), v.Reason).
			WithHint("The rejected rows are kept: falaj dataset preview %s", v.Ref())
	}
	return v.Ref().String(), nil
}

// notes are what engines write beside their rows.
var notes = []string{"_SUCCESS", "_metadata", "_common_metadata"}

// partsOnly gives how large the files of rows are, and refuses what would be left out:
// nothing that a job says are rows is lost without a word. What is hidden, or begins with
// _, is none for Spark, and may be one for another engine.
func partsOnly(dir string) (bytes int64, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return 0, err
	}
	parts := 0
	for _, e := range entries {
		name := e.Name()
		switch {
		case e.Type().IsRegular() && (slices.Contains(notes, name) || strings.HasPrefix(name, ".") && strings.HasSuffix(name, ".crc")):
			continue
		case !e.Type().IsRegular() || path.Ext(name) != ".parquet" || strings.HasPrefix(name, ".") || strings.HasPrefix(name, "_"):
			return 0, fault.New(fault.Invalid, "rows/%.200s is neither a Parquet file nor a known metadata file", name).
				WithHint("Write files *.parquet directly to rows/, whose names begin with neither . nor _; partition directories and temporary files are not supported.")
		}
		info, err := e.Info()
		if err != nil {
			return 0, err
		}
		bytes += info.Size()
		parts++
	}
	if parts == 0 {
		return 0, fault.New(fault.Invalid, "the job left no *.parquet in rows/").WithHint("Write Parquet files into rows/ below FALAJ_OUTPUT_DIR.")
	}
	return bytes, nil
}

// sourceRows reads a source to its end.
type sourceRows struct {
	in  source.Reader
	ctx context.Context //nolint:containedctx // of one job's rows
	rec arrow.RecordBatch
	err error
}

var _ array.RecordReader = (*sourceRows)(nil)

func (r *sourceRows) Schema() *arrow.Schema { return r.in.Schema() }

func (r *sourceRows) Next() bool {
	if r.drop(); r.err != nil {
		return false
	}
	if r.rec, _, r.err = r.in.Next(r.ctx); r.err == nil {
		return true
	}
	r.rec = nil
	return false
}

func (r *sourceRows) drop() {
	if r.rec != nil {
		r.rec.Release()
		r.rec = nil
	}
}

func (r *sourceRows) RecordBatch() arrow.RecordBatch { return r.rec }

// Record is RecordBatch.
//
// Deprecated: Use RecordBatch.
func (r *sourceRows) Record() arrow.RecordBatch { return r.rec }

func (r *sourceRows) Err() error {
	if errors.Is(r.err, io.EOF) {
		return nil
	}
	return r.err
}

func (*sourceRows) Retain() {}

func (r *sourceRows) Release() {
	r.drop()
	_ = r.in.Close() // it was read only
}
