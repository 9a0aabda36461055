package dataset

import (
	"context"
	"crypto/sha256"
	"io"
	"sync"
	"time"

	"github.com/apache/arrow-go/v18/arrow/array"

	"github.com/falaj-ml/falaj/internal/dataset/child"
	"github.com/falaj-ml/falaj/internal/dataset/parser"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/resource"
)

// MaxSent bounds rows that are sent to be worked on and are not kept, in bytes of
// their stream. The child refuses what is longer; the edge reads not much more.
const MaxSent = 256 << 20

const (
	maxSentRows = 50_000_000
	sentTime    = 10 * time.Minute // from the first byte to the last row read
	sentMemory  = 2 * resource.GiB
	sentAtATime = 4
)

// Sent reads a stream of Arrow's IPC that a caller sent, in a process of its own.
// All of the body has been read when it returns. The rows are of the six column
// types and in no version; release them. It asks no permission: the rows are the
// caller's. Errors, also from the rows' Err: fault.Invalid for what cannot be
// read; fault.TooLarge and fault.Exhausted over a limit; fault.Timeout; the body's.
func (s *Writes) Sent(ctx context.Context, body io.Reader) (array.RecordReader, error) {
	body, err := begun(body)
	if err != nil {
		return nil, err
	}
	free, err := s.sent.Take(ctx, identity.Share(ctx, identity.From(ctx).Project))
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, sentTime)
	session, err := child.Start(ctx, s.cfg.Launcher, child.ParserMode, child.LaunchOptions{Memory: min(sentMemory, s.limits.ParserMemory), CPU: sentTime})
	if err != nil {
		cancel()
		free()
		return nil, err
	}
	end := sync.OnceFunc(func() {
		session.Close()
		cancel()
		free()
	})
	up := &upload{body: body, hash: sha256.New(), limit: 2 * MaxSent, done: make(chan struct{})}
	up.send(session, parser.Request{Format: parser.Arrow, Limits: parser.Limits{Rows: maxSentRows, Parquet: MaxSent}})
	if err := up.failure(); err != nil {
		end()
		return nil, err
	}
	rows, err := session.Out.Records()
	if err != nil {
		err = inTime(ctx, session.Explain(ctx, err))
		end()
		return nil, err
	}
	return &sentRows{explained: explained{rows, session, ctx}, end: end}, nil
}

// sentRows are the rows of a stream, whose number is checked at their end.
type sentRows struct {
	explained
	n     int64
	ended bool
	err   error
	end   func()
}

func (r *sentRows) Next() bool {
	if r.ended {
		return false
	}
	if r.explained.Next() {
		r.n += r.RecordBatch().NumRows()
		return true
	}
	r.ended = true
	r.err = inTime(r.ctx, r.finish())
	return false
}

func (r *sentRows) finish() error {
	if err := r.explained.Err(); err != nil {
		return err
	}
	var sum parser.Summary
	if err := r.session.Out.Header(&sum); err != nil {
		return r.session.Explain(r.ctx, err)
	}
	if sum.Rows != r.n {
		return fault.New(fault.Invalid, "the parser process sent %d rows and reported %d", r.n, sum.Rows)
	}
	return nil
}

func (r *sentRows) Err() error { return r.err }

func (r *sentRows) Release() {
	r.explained.Release()
	r.end()
}
