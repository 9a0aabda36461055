// Package source is where rows come from: databases, files, streams. A Driver
// opens one kind of source; everything else about ingestion (runs, chunks,
// versions) is package ingestion's and the same for all.
//
// # Map
//
//   - source.go: Driver, Reader and what they owe each other.
//   - options.go: what a Source manifest says of each kind, under `from`.
//   - access.go: which hosts and directories sources may reach, TLS.
//   - rows.go: record batches out of values that drivers hand over; part.go: out of
//     bytes that the parser reads.
//   - sqltable reads tables of databases for the drivers postgres, mariadb and, in a
//     child of its own, sqlite; objects reads files for files, s3 and hdfs, messages logs for kafka and nats; httpjson reads
//     pages of a service by itself; sourcetest is the suite that every driver passes.
//
// # Guarantees
//
// A reading ends where the source stood when it began, so it ends. A reader that
// is opened again at a position it gave gives the rows after it, each once, and
// ends at the same place. Memory is bounded by a batch. Whoever reaches a host
// that the configuration does not name gets an error and no connection.
//
// Drivers speak their protocols in the server's process: they are given to us by
// the makers of those systems, and talk to hosts that an operator has named.
// Files and messages of strangers are another matter: they are parsed by the
// parser child, also when a driver fetches them.
package source

import (
	"context"
	"encoding/json"
	"io"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"

	"github.com/falaj-ml/falaj/internal/dataset/parser"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/secrets"
)

// Mode selects the rows of a run and of the version.
type Mode string

// The modes.
const (
	Full        Mode = "full"        // the version is what the source has
	Incremental Mode = "incremental" // the previous version, with the new rows
	Changes     Mode = "changes"     // the previous version, with rows inserted, updated and deleted
)

// Position is a place in a source. Its driver alone reads it. nil is the
// beginning.
type Position = json.RawMessage

// PositionOf is what a driver knows of a place, for ReadPosition.
func PositionOf(v any) Position {
	b, err := json.Marshal(v)
	if err != nil {
		panic("source: a position does not marshal: " + err.Error())
	}
	return b
}

// ReadPosition gives it back; into stays as it is for the beginning.
func ReadPosition(p Position, into any) error {
	if len(p) == 0 {
		return nil
	}
	if err := json.Unmarshal(p, into); err != nil {
		return fault.New(fault.Internal, "the position belongs to another kind of source").WithData("%.200s", p)
	}
	return nil
}

// Request is what to read.
type Request struct {
	From   From
	Secret map[string]secrets.Text
	Mode   Mode
	Cursor string
	Key    []string
	Op     string // the operation column, in the mode changes
	// Overlap is how far before After a reading begins: rows that were committed
	// late. Empty is the driver's default.
	Overlap string
	// Declared are columns whose types the dataset's manifest says.
	Declared []Column
	Parsing  Parsing

	Begun  bool     // a reader said where it ends, even if that is nil
	After  Position // up to where versions have the rows; nil: nothing yet
	Resume Position // after the last row that this reading gave; nil: at its beginning
	Until  Position // where it ends; nil: the reader says

	BatchRows int
	Access    Access
	Parser    Parser
}

// Column is a column whose type is declared.
type Column = parser.Column

// Parsing is how the dataset reads files.
type Parsing = parser.Request

// Parser turns untrusted bytes into rows, in a process of its own. Close what it returns.
type Parser interface {
	Parse(ctx context.Context, body io.Reader, req parser.Request) (Rows, error)
}

// Rows are rows with an end of their own.
type Rows interface {
	array.RecordReader
	io.Closer
	// Summary describes the rows read, after the last row.
	Summary() (parser.Summary, error)
}

// Driver reads one kind of source. Safe for concurrent use.
type Driver interface {
	// Check refuses what cannot be read, without connecting. Error: fault.Invalid.
	Check(r Request) error
	// Open connects. Errors in words: fault.Unavailable for what may pass (a host
	// that does not answer), fault.Invalid and fault.NotFound for what the manifest
	// or the secret has wrong.
	Open(ctx context.Context, r Request) (Reader, error)
}

// Reader is a reading under way. Not safe for concurrent use.
type Reader interface {
	// Schema has columns of the types that tables keep; nil when nothing is there
	// to read, and what its columns are is not known.
	Schema() *arrow.Schema
	// Until is where the reading ends: kept, so that a later reader of the same run
	// ends there, and what the next run starts After.
	Until() Position
	// Next gives rows, which the caller releases, and where the reading stands
	// after them; a nil position means that this reading cannot be taken up there.
	// io.EOF at the end.
	Next(ctx context.Context) (arrow.RecordBatch, Position, error)
	Close() error
}

// Emptied is a Reader of messages that counts those without a value, such as the tombstones
// of a compacted topic, which are no rows.
type Emptied interface {
	Empty() int64 // of what Next has passed so far
}

// Time-outs of drivers.
const (
	ConnectTime = 15 * time.Second
	// StallTime is how long a source may give nothing.
	StallTime = 5 * time.Minute
)

// BatchBytes is about how much a batch holds.
const BatchBytes = 8 << 20
