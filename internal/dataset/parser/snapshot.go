package parser

import (
	"errors"
	"fmt"
	"io"
	"strconv"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/iceberg-go"

	"github.com/falaj-ml/falaj/internal/dataset/child"
	"github.com/falaj-ml/falaj/internal/dataset/table"
	"github.com/falaj-ml/falaj/internal/fault"
)

// SnapshotRequest begins a conversation about a snapshot that another engine
// wrote. The child has no files: it is sent each one that it needs.
type SnapshotRequest struct {
	Schema table.Schema `json:"schema"` // field IDs as that engine gave them
	Limits Limits       `json:"limits"`
}

// Ask heads a file that the child is sent: the snapshot's list of manifests,
// then each manifest, then each data file, whose answer is batches.
type Ask struct {
	Kind     AskKind `json:"kind"`
	Manifest int     `json:"manifest,omitempty"` // which of the list
	Rows     int64   `json:"rows,omitempty"`     // of the snapshot before this data file, for messages
}

// AskKind is the kind of a file.
type AskKind string

// The kinds of files.
const (
	AskList     AskKind = "list"
	AskManifest AskKind = "manifest"
	AskData     AskKind = "data"
)

// Cited is what a list of manifests, or a manifest, says of a file.
type Cited struct {
	Path  string `json:"path"`
	Bytes int64  `json:"bytes"`
	Rows  int64  `json:"rows"`
}

// Bounds on a snapshot.
const (
	MaxManifests = 10_000
	MaxDataFiles = 100_000
	MaxAvro      = 64 << 20 // bytes of a manifest or a list of them
)

// SnapshotMain runs the child for a snapshot; see Main. It ends when stdin does.
func SnapshotMain(stdin io.Reader, stdout io.Writer) error {
	in, out := child.NewReader(stdin), child.NewWriter(stdout)
	var req SnapshotRequest
	if err := in.Header(&req); err != nil {
		return out.Fault(err)
	}
	req.Limits = req.Limits.WithDefaults()
	s := &snapshot{req: req, out: out}
	for {
		var ask Ask
		if err := in.Header(&ask); errors.Is(err, io.ErrUnexpectedEOF) {
			return nil
		} else if err != nil {
			return out.Fault(err)
		}
		sink := &pipeSink{out: out}
		answer, err := s.answer(ask, in.Stream(), sink)
		switch {
		case sink.err != nil:
			return sink.err // nobody is listening
		case err != nil:
			return out.Fault(err)
		case sink.rec != nil:
			err = sink.close()
		}
		if err == nil {
			err = out.Header(answer)
		}
		if err != nil {
			return err
		}
	}
}

// snapshot is a conversation.
type snapshot struct {
	req       SnapshotRequest
	out       *child.Writer
	manifests []iceberg.ManifestFile
}

func (s *snapshot) answer(ask Ask, body io.Reader, sink Sink) (answer any, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fault.New(fault.Invalid, "the file cannot be read: %v", p)
		}
	}()
	limit := int64(MaxAvro)
	if ask.Kind == AskData {
		limit = s.req.Limits.Parquet
	}
	data, whole, err := hold(body, limit)
	if err != nil {
		return nil, err
	}
	if !whole {
		return nil, fault.New(fault.TooLarge, "a file of the snapshot is over the limit of %d bytes", limit).WithHint("Write smaller files.")
	}
	switch ask.Kind {
	case AskList:
		return s.list(data)
	case AskManifest:
		return s.manifest(ask.Manifest, data)
	case AskData:
		rows, err := s.data(data, ask.Rows, sink)
		return Summary{Format: Parquet, Rows: rows}, err
	}
	return nil, fmt.Errorf("a file of kind %q", ask.Kind)
}

func (s *snapshot) list(data *held) ([]Cited, error) {
	ms, err := iceberg.ReadManifestList(data.file())
	if err != nil {
		return nil, fault.New(fault.Invalid, "the list of manifests cannot be read: %v", err)
	}
	if len(ms) > MaxManifests {
		return nil, fault.New(fault.TooLarge, "%d manifests are over the limit of %d", len(ms), MaxManifests)
	}
	cited := []Cited{}
	for _, m := range ms {
		if m.ManifestContent() != iceberg.ManifestContentData {
			if m.HasAddedFiles() || m.HasExistingFiles() {
				return nil, deletes()
			}
			continue
		}
		s.manifests = append(s.manifests, m)
		cited = append(cited, Cited{Path: m.FilePath(), Bytes: m.Length()})
	}
	return cited, nil
}

func deletes() error {
	return fault.New(fault.Unsupported, "the snapshot has delete files (merge-on-read), which Falaj does not support").
		WithHint("Set write.delete.mode, write.update.mode and write.merge.mode to copy-on-write.")
}

func (s *snapshot) manifest(i int, data *held) ([]Cited, error) {
	if i < 0 || i >= len(s.manifests) {
		return nil, fmt.Errorf("there is no manifest %d", i)
	}
	entries, err := iceberg.ReadManifest(s.manifests[i], data.file(), true)
	if err != nil {
		return nil, fault.New(fault.Invalid, "a manifest cannot be read: %v", err)
	}
	if len(entries) > MaxDataFiles {
		return nil, fault.New(fault.TooLarge, "%d data files are over the limit of %d", len(entries), MaxDataFiles).WithHint("Write fewer and larger files.")
	}
	cited := make([]Cited, len(entries))
	for j, e := range entries {
		f := e.DataFile()
		switch {
		case f.ContentType() != iceberg.EntryContentData:
			return nil, deletes()
		case f.FileFormat() != iceberg.ParquetFile:
			return nil, fault.New(fault.Unsupported, "the snapshot has a data file of format %.20s", f.FileFormat()).WithHint("Write Parquet.")
		case len(f.Partition()) > 0:
			return nil, fault.New(fault.Unsupported, "the snapshot is partitioned, and Falaj does not support partitioned tables")
		}
		cited[j] = Cited{Path: f.FilePath(), Bytes: f.FileSizeBytes(), Rows: f.Count()}
	}
	return cited, nil
}

// data reads a data file as rows of the snapshot's schema: columns are found by
// field ID, or by name in a file that has no IDs; those that a file lacks are
// null, and those that the schema lacks are left out.
func (s *snapshot) data(data *held, before int64, sink Sink) (int64, error) {
	pf, err := openParquet(data)
	if err != nil {
		return 0, fault.New(fault.Invalid, "a data file cannot be read: %v", err)
	}
	defer func() { _ = pf.Close() }()
	if pf.NumRows() > s.req.Limits.Rows-before {
		return 0, fault.New(fault.TooLarge, "the snapshot has more than %d rows", s.req.Limits.Rows)
	}
	raw, err := arrowSchema(pf)
	if err != nil {
		return 0, fault.New(fault.Invalid, "a data file cannot be read: %v", err)
	}
	place, err := places(s.req.Schema, raw)
	if err != nil {
		return 0, err
	}
	if err := sink.Begin(s.req.Schema.Arrow()); err != nil {
		return 0, err
	}
	rows, err := eachBatch(pf, func(rec arrow.RecordBatch, read int64) error { return s.pass(rec, place, before+read, sink) })
	if _, known := errors.AsType[*fault.Error](err); err != nil && !known {
		return 0, fault.New(fault.Invalid, "a data file cannot be read: %v", err)
	}
	return rows, err
}

// places is where in a file each column of the schema is; -1 for one that is not
// there.
func places(s table.Schema, raw *arrow.Schema) ([]int, error) {
	byID := map[int]int{}
	for i, f := range raw.Fields() {
		if text, ok := f.Metadata.GetValue("PARQUET:field_id"); ok {
			if id, err := strconv.Atoi(text); err == nil && id > 0 {
				byID[id] = i
			}
		}
	}
	place := make([]int, len(s))
	for i, f := range s {
		at, ok := byID[f.ID]
		if len(byID) == 0 {
			found := raw.FieldIndices(f.Name)
			if ok = len(found) == 1; ok {
				at = found[0]
			}
		}
		if !ok {
			place[i] = -1
			continue
		}
		have, err := table.Normal(f.Name, raw.Field(at).Type)
		if err != nil {
			return nil, err
		}
		if wide, ok := table.Wider(have, f.Type); !ok || wide != f.Type { // a file from before the column was widened
			return nil, fault.New(fault.Invalid, "column %q is %s in a data file, and the table's is %s", f.Name, have, f.Type)
		}
		place[i] = at
	}
	return place, nil
}

func (s *snapshot) pass(rec arrow.RecordBatch, place []int, before int64, sink Sink) error {
	cols := make([]arrow.Array, len(place))
	fields := make([]arrow.Field, len(place))
	for i, at := range place {
		f := s.req.Schema[i]
		if at < 0 {
			cols[i] = array.MakeArrayOfNull(memory.DefaultAllocator, f.Type.Arrow(), int(rec.NumRows()))
			defer cols[i].Release()
		} else {
			cols[i] = rec.Column(at)
		}
		fields[i] = arrow.Field{Name: f.Name, Type: cols[i].DataType(), Nullable: true}
	}
	mapped := array.NewRecordBatch(arrow.NewSchema(fields, nil), cols, rec.NumRows())
	defer mapped.Release()
	return pass(mapped, s.req.Schema, before, sink)
}
