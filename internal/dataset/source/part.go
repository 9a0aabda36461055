package source

import (
	"context"
	"io"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/falaj-ml/falaj/internal/dataset/parser"
	"github.com/falaj-ml/falaj/internal/dataset/table"
	"github.com/falaj-ml/falaj/internal/fault"
)

// Part is a file or page of a reading, whose rows the parser makes. Not safe for
// concurrent use.
type Part struct {
	Given int64 // of its rows, those before it was opened included

	body io.Closer
	rows Rows
	rec  arrow.RecordBatch // what is left of the parser's batch
	skip int64             // rows to pass over
}

// OpenPart parses body, which it owns. The first rows were given before.
func OpenPart(ctx context.Context, p Parser, body io.ReadCloser, req parser.Request, given int64) (*Part, error) {
	rows, err := p.Parse(ctx, body, req)
	if err != nil {
		_ = body.Close()
		return nil, err
	}
	return &Part{Given: given, body: body, rows: rows, skip: given}, nil
}

// Schema is what the rows are.
func (p *Part) Schema() (table.Schema, error) { return table.FromArrow(p.rows.Schema()) }

// Next gives one row at least and the most that is asked for, which the caller
// releases; io.EOF at the end.
func (p *Part) Next(most int) (arrow.RecordBatch, error) {
	for {
		if p.rec == nil {
			if !p.rows.Next() {
				if err := p.rows.Err(); err != nil {
					return nil, err
				}
				if p.skip > 0 {
					return nil, fault.New(fault.Conflict, "it has fewer rows than were already read").WithHint("Ingest again when the file is no longer changing.")
				}
				return nil, io.EOF
			}
			p.rec = p.rows.RecordBatch()
			p.rec.Retain()
		}
		all := p.rec.NumRows()
		pass := min(p.skip, all)
		to := min(pass+int64(max(most, 1)), all)
		out, rest := p.rec.NewSlice(pass, to), p.rec.NewSlice(to, all)
		p.rec.Release()
		if p.rec = rest; to == all {
			p.rec = nil
			rest.Release()
		}
		p.skip -= pass
		p.Given += to - pass
		if to > pass {
			return out, nil
		}
		out.Release()
	}
}

// Summary describes the rows read, after the last row.
func (p *Part) Summary() (parser.Summary, error) { return p.rows.Summary() }

// Close discards unread rows.
func (p *Part) Close() {
	if p.rec != nil {
		p.rec.Release()
	}
	_ = p.body.Close()
	_ = p.rows.Close()
}
