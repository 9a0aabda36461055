// Package messages reads logs of messages that hold a JSON object each: what the
// drivers kafka and nats share. A Log gives the messages in order; the parser
// child makes rows of them.
package messages

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/falaj-ml/falaj/internal/dataset/parser"
	"github.com/falaj-ml/falaj/internal/dataset/source"
	"github.com/falaj-ml/falaj/internal/fault"
)

// Places are the next offset to read of each partition.
type Places map[int32]int64

// Position is the places as they are kept.
func (p Places) Position() source.Position { return source.PositionOf(p) }

// Parse reads a position; nil is none.
func Parse(p source.Position) (Places, error) {
	var out Places
	if err := source.ReadPosition(p, &out); err != nil {
		return nil, err
	}
	return out, nil
}

// Message is one message. One without a value, such as a tombstone, is counted and no row.
type Message struct {
	Partition int32
	Offset    int64
	Value     []byte
}

// Log gives messages in the order of each partition. Not safe for concurrent use.
type Log interface {
	// Next gives some messages; io.EOF when all up to the end of the reading were
	// given.
	Next(ctx context.Context) ([]Message, error)
	Close() error
}

// Check validates a request to a log.
func Check(kind string, r source.Request) error {
	if r.Mode == source.Full {
		return fault.New(fault.Invalid, "spec.mode: %s supports only the modes incremental and changes", kind)
	}
	if r.Cursor != "" || r.Overlap != "" {
		return fault.New(fault.Invalid, "spec.cursor and spec.overlap are valid only for tables; %s uses offsets", kind)
	}
	if r.Mode == source.Changes && (len(r.Key) == 0 || r.Op == "") {
		return fault.New(fault.Invalid, "spec.key and spec.op: mode changes requires both")
	}
	if len(r.Declared) == 0 {
		return fault.New(fault.Invalid, "the dataset declares no columns").WithHint("Declare the message fields to store, and their types, in the Dataset's spec.columns.")
	}
	return nil
}

// Open reads a log from one place to another. It owns log. Where both are the
// same there is nothing to read, and the schema is nil.
func Open(ctx context.Context, log Log, r source.Request, from, until Places) (source.Reader, error) {
	own, cancel := context.WithCancel(context.WithoutCancel(ctx))
	s := &reader{log: log, until: until, at: maps.Clone(from), most: r.BatchRows, cancel: cancel, done: make(chan struct{})}
	if maps.Equal(from, until) {
		close(s.done)
		return s, nil
	}
	body, in := io.Pipe()
	s.body = body
	go s.pump(own, in)
	stop := context.AfterFunc(ctx, func() { _ = in.CloseWithError(ctx.Err()) })
	defer stop()
	rows, err := r.Parser.Parse(own, body, parser.Request{Format: parser.JSONLines, Columns: r.Declared, Only: true, Batch: r.BatchRows})
	if err != nil {
		err = s.explain(err)
		_ = s.Close()
		return nil, err
	}
	s.rows = rows
	return s, nil
}

type reader struct {
	log    Log
	until  Places
	at     Places
	most   int
	cancel context.CancelFunc
	done   chan struct{} // closed when pump has ended
	body   *io.PipeReader
	rows   source.Rows
	rec    arrow.RecordBatch // what is left of the parser's batch
	read   int64             // rows handed on
	empty  atomic.Int64      // messages without a value

	mu    sync.Mutex
	given []Message // without values: those whose rows were not handed on yet
	err   error     // of the log
}

// pump writes the messages, a line each, to the parser.
func (s *reader) pump(ctx context.Context, in *io.PipeWriter) {
	defer close(s.done)
	end := func(err error) {
		s.mu.Lock()
		s.err = err
		s.mu.Unlock()
		_ = in.CloseWithError(err) // nil is the end
	}
	for {
		some, err := s.log.Next(ctx)
		if errors.Is(err, io.EOF) {
			end(nil)
			return
		}
		if err != nil {
			end(err)
			return
		}
		for _, m := range some {
			line := bytes.TrimSpace(m.Value)
			if len(line) == 0 {
				s.empty.Add(1)
				continue
			}
			s.mu.Lock()
			s.given = append(s.given, Message{Partition: m.Partition, Offset: m.Offset})
			s.mu.Unlock()
			// A line break between the parts of an object is as good as a space.
			line = bytes.ReplaceAll(bytes.ReplaceAll(line, []byte("\n"), []byte(" ")), []byte("\r"), []byte(" "))
			if _, err := in.Write(append(line, '\n')); err != nil {
				end(err)
				return
			}
		}
	}
}

// Schema implements source.Reader.
func (s *reader) Schema() *arrow.Schema {
	if s.rows == nil {
		return nil
	}
	return s.rows.Schema()
}

// Empty implements source.Emptied.
func (s *reader) Empty() int64 { return s.empty.Load() }

// Until implements source.Reader.
func (s *reader) Until() source.Position { return s.until.Position() }

// Next implements source.Reader.
func (s *reader) Next(ctx context.Context) (arrow.RecordBatch, source.Position, error) {
	if s.rows == nil {
		return nil, nil, io.EOF
	}
	stop := context.AfterFunc(ctx, s.cancel)
	defer stop()
	if s.rec == nil {
		if !s.rows.Next() {
			if err := s.rows.Err(); err != nil {
				if ctx.Err() != nil {
					err = ctx.Err()
				}
				return nil, nil, s.explain(err)
			}
			return nil, nil, io.EOF
		}
		s.rec = s.rows.RecordBatch()
		s.rec.Retain()
	}
	n := min(s.rec.NumRows(), int64(max(s.most, 1)))
	out := s.rec.NewSlice(0, n)
	rest := s.rec
	s.rec = nil
	if n < rest.NumRows() {
		s.rec = rest.NewSlice(n, rest.NumRows())
	}
	rest.Release()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range s.given[:n] {
		s.at[m.Partition] = m.Offset + 1
	}
	s.given = s.given[n:]
	s.read += n
	return out, s.at.Position(), nil
}

var rowIn = regexp.MustCompile(`row (\d+) \(line \d+\)`)

// explain names the message where the parser names the row.
func (s *reader) explain(err error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return s.err
	}
	var f *fault.Error
	if !errors.As(err, &f) {
		return err
	}
	m := rowIn.FindStringSubmatch(f.Message)
	if m == nil {
		return err
	}
	row, _ := strconv.ParseInt(m[1], 10, 64)
	if i := row - s.read - 1; i >= 0 && i < int64(len(s.given)) {
		g := s.given[i]
		said := *f
		said.Message = rowIn.ReplaceAllString(f.Message, fmt.Sprintf("the message at partition %d, offset %d", g.Partition, g.Offset))
		return &said
	}
	return err
}

// Close implements source.Reader.
func (s *reader) Close() error {
	s.cancel()
	if s.body != nil {
		_ = s.body.CloseWithError(context.Canceled)
	}
	<-s.done
	if s.rec != nil {
		s.rec.Release()
	}
	if s.rows != nil {
		_ = s.rows.Close()
	}
	return s.log.Close()
}

// Bounds are where a reading of a log begins and ends: first and next are the
// oldest offset that the log has and the one after its newest, by partition.
// Error: fault.Gone when messages were deleted before they were read.
func Bounds(r source.Request, first, next Places) (from, until Places, err error) {
	after, err := Parse(r.After)
	if err != nil {
		return nil, nil, err
	}
	resume, err := Parse(r.Resume)
	if err != nil {
		return nil, nil, err
	}
	if until, err = Parse(r.Until); err != nil {
		return nil, nil, err
	}
	if until == nil {
		until = maps.Clone(next)
	}
	from = Places{}
	for p := range until {
		start, known := after[p]
		if at, ok := resume[p]; ok {
			start, known = max(at, start), true
		}
		oldest := first[p]
		switch {
		case !known:
			start = oldest
		case start < oldest && start < until[p]:
			return nil, nil, fault.New(fault.Gone, "the messages %d to %d of partition %d were deleted before they were read", start, oldest-1, p).
				WithHint("Keep messages longer than the time between runs. To start from the oldest message, ingest with --anew.")
		}
		if start > next[p] {
			return nil, nil, fault.New(fault.Conflict, "partition %d ends before offset %d, which was already read: the log was replaced", p, start).
				WithHint("To read the log from the beginning, ingest with --anew.")
		}
		from[p] = min(start, until[p])
	}
	return from, until, nil
}
