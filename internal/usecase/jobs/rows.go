package jobs

import (
	"context"
	"errors"
	"io"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"

	"github.com/falaj-ml/falaj/internal/dataset"
	"github.com/falaj-ml/falaj/internal/dataset/ingestion"
	"github.com/falaj-ml/falaj/internal/dataset/source"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/training"
)

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

// Rows makes versions of datasets of what jobs left.
type Rows struct {
	Datasets dataset.Services
	Files    source.Driver // reads the job's files, in the parser's process
}

var _ training.Rows = Rows{}

// Check implements training.Rows.
func (t Rows) Check(ctx context.Context, s training.RowsSpec) error {
	read, err := inputsOf(s.Job, s.Earlier)
	if err != nil {
		return err
	}
	err = t.Datasets.Transforms.Receives(ctx, s.Job.Project, s.Job.Spec.Into, read)
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
func (t Rows) Save(ctx context.Context, s training.RowsSpec) (ref string, err error) {
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

func (t Rows) save(ctx context.Context, s training.RowsSpec) (string, error) {
	bytes, err := partsOnly(s.Dir)
	if err != nil {
		return "", err
	}
	j := s.Job
	l := dataset.Left{Project: j.Project, Dataset: j.Spec.Into, Job: string(j.ID), Asked: j.SubmittedAt, Bytes: bytes}
	if l.Read, err = inputsOf(j, s.Earlier); err != nil {
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
		in, err := t.Files.Open(ctx, source.Request{
			From: source.From{Files: &source.Files{Directory: s.Dir, Match: "*.parquet", Format: "parquet"}}, Mode: source.Full,
			BatchRows: 64 << 10, Parser: ingestion.ParserOf(t.Datasets.Writes), Access: source.Access{Files: []string{s.Dir}},
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
	v, err := t.Datasets.Transforms.Keep(ctx, l)
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
