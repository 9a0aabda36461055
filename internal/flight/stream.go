package flight

import (
	"context"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/flight"
	"github.com/apache/arrow-go/v18/arrow/ipc"

	"github.com/falaj-ml/falaj/internal/dataset"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/membudget"
)

// DoGet streams the rows of a ticket. Needs dataset.query. Reads of classified
// data are journaled, and synced, before the first row.
func (s *Server) DoGet(t *flight.Ticket, to flight.FlightService_DoGetServer) error {
	ctx := to.Context()
	a, err := ticket(t)
	if err != nil {
		return err
	}
	r, err := a.request(identity.From(ctx).Project)
	if err != nil {
		return err
	}
	end, err := s.begin(ctx)
	if err != nil {
		return err
	}
	defer end()
	rows, err := s.datasets.Reads.Open(ctx, r)
	if err != nil {
		return err
	}
	defer rows.Release()
	out := flight.NewRecordWriter(to, ipc.WithSchema(rows.Schema()))
	for due := time.Now().Add(s.cfg.Recheck); rows.Next(); {
		if err := ctx.Err(); err != nil {
			return err
		}
		if !time.Now().Before(due) {
			if err := s.reauthorize(ctx, r); err != nil {
				return err
			}
			due = time.Now().Add(s.cfg.Recheck)
		}
		if err := s.send(ctx, out, rows.RecordBatch()); err != nil {
			return err
		}
	}
	if err := rows.Err(); err != nil {
		return err
	}
	return out.Close() // sends the schema of a stream without rows
}

// reauthorize asks whether the stream's token, its role and the data's label allow it
// to go on.
func (s *Server) reauthorize(ctx context.Context, r dataset.OpenRequest) error {
	who, err := again(ctx)
	if err != nil {
		return err
	}
	return s.datasets.Reads.Reauthorize(identity.With(ctx, who), r)
}

// send writes a batch in messages that every client takes: those of gRPC refuse
// more than 4 MiB unless they were told otherwise. Until it is sent, it is held of the
// request's memory.
func (s *Server) send(ctx context.Context, out *flight.Writer, rec arrow.RecordBatch) error {
	size := sizeOf(rec)
	if share := membudget.From(ctx); size >= s.cfg.Message/8 {
		if err := share.Take(ctx, size); err != nil {
			return err
		}
		defer share.Give(size)
	}
	pieces := min(size/s.cfg.Message+1, max(rec.NumRows(), 1))
	for i := range pieces {
		part := rec.NewSlice(rec.NumRows()*i/pieces, rec.NumRows()*(i+1)/pieces)
		err := out.Write(part)
		part.Release()
		if err != nil {
			return err
		}
	}
	return nil
}

// sizeOf is about how many bytes a batch takes: those of its buffers.
func sizeOf(rec arrow.RecordBatch) (n int64) {
	for _, c := range rec.Columns() {
		for _, b := range c.Data().Buffers() {
			if b != nil {
				n += int64(b.Len())
			}
		}
	}
	return n
}

type againKey struct{}

// WithAgain puts into the context of a request how its principal is looked up
// anew, while a stream goes on.
func WithAgain(ctx context.Context, again func() (identity.Principal, error)) context.Context {
	return context.WithValue(ctx, againKey{}, again)
}

func again(ctx context.Context) (identity.Principal, error) {
	if f, ok := ctx.Value(againKey{}).(func() (identity.Principal, error)); ok {
		return f()
	}
	return identity.From(ctx), nil
}
