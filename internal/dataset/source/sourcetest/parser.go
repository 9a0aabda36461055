package sourcetest

import (
	"context"
	"io"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/falaj-ml/falaj/internal/dataset/parser"
	"github.com/falaj-ml/falaj/internal/dataset/source"
)

// Parser parses in this process, as the child does in its own.
type Parser struct{}

// Parse implements source.Parser.
func (Parser) Parse(ctx context.Context, body io.Reader, req parser.Request) (source.Rows, error) {
	ctx, cancel := context.WithCancel(ctx)
	r := &rows{ctx: ctx, cancel: cancel, begun: make(chan struct{}), batches: make(chan arrow.RecordBatch), done: make(chan struct{})}
	go func() {
		defer close(r.done)
		r.sum, r.err = parser.Parse(body, req, r)
	}()
	select {
	case <-r.begun:
		return r, nil
	case <-r.done:
		select {
		case <-r.begun: // and it has ended already, without a row
			return r, nil
		default:
		}
		cancel()
		return nil, r.err
	}
}

// rows are what Parse gives.
type rows struct {
	ctx     context.Context //nolint:containedctx // of one file
	cancel  context.CancelFunc
	schema  *arrow.Schema
	begun   chan struct{}
	batches chan arrow.RecordBatch
	done    chan struct{}
	cur     arrow.RecordBatch
	sum     parser.Summary
	err     error
}

// Begin implements parser.Sink.
func (r *rows) Begin(s *arrow.Schema) error {
	r.schema = s
	close(r.begun)
	return nil
}

// Write implements parser.Sink.
func (r *rows) Write(rec arrow.RecordBatch) error {
	rec.Retain()
	select {
	case r.batches <- rec:
		return nil
	case <-r.ctx.Done():
		rec.Release()
		return r.ctx.Err()
	}
}

func (r *rows) drop() {
	if r.cur != nil {
		r.cur.Release()
		r.cur = nil
	}
}

// Next implements array.RecordReader.
func (r *rows) Next() bool {
	r.drop()
	select {
	case r.cur = <-r.batches:
		return true
	case <-r.done:
		return false
	}
}

func (r *rows) Schema() *arrow.Schema            { return r.schema }
func (r *rows) RecordBatch() arrow.RecordBatch   { return r.cur }
func (r *rows) Record() arrow.RecordBatch        { return r.cur }
func (r *rows) Summary() (parser.Summary, error) { return r.sum, r.Err() }
func (r *rows) Retain()                          {}
func (r *rows) Release()                         {}

// Err implements array.RecordReader.
func (r *rows) Err() error {
	select {
	case <-r.done:
		return r.err
	default:
		return r.ctx.Err()
	}
}

// Close implements io.Closer.
func (r *rows) Close() error {
	r.drop()
	r.cancel()
	return nil
}
