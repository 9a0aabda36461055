package dataset

import (
	"context"
	"crypto/sha256"
	"io"
	"math"

	"github.com/apache/arrow-go/v18/arrow/array"

	"github.com/falaj-ml/falaj/internal/dataset/child"
	"github.com/falaj-ml/falaj/internal/dataset/parser"
)

// Parsed are the rows of bytes that a parser process reads. Not safe for
// concurrent use; Close it.
type Parsed struct {
	array.RecordReader
	ctx     context.Context //nolint:containedctx // of one conversation
	session *child.Session
	up      *upload
}

// Parse turns untrusted bytes into rows in a process of its own, under the limits of imports; a
// stream of messages (req.Only) has none of its length. body is read by another goroutine until
// its end, an error, or Close; whoever gave it has to end a read that waits. Its errors come
// back as they are.
func (s *Writes) Parse(ctx context.Context, body io.Reader, req parser.Request) (*Parsed, error) {
	session, err := child.Start(ctx, s.cfg.Launcher, child.ParserMode, child.LaunchOptions{Memory: s.limits.ParserMemory, CPU: s.limits.ImportTime})
	if err != nil {
		return nil, err
	}
	req.Limits = s.limits.Parser
	limit := int64(s.limits.Upload)
	if req.Only { // messages: how many there are is nobody's doing, and each is bounded
		limit, req.Limits.Rows, req.Limits.Expanded = math.MaxInt64, math.MaxInt64, math.MaxInt64
	}
	p := &Parsed{ctx: ctx, session: session, up: &upload{body: body, hash: sha256.New(), limit: limit, done: make(chan struct{})}}
	go p.up.send(session, req)
	if p.RecordReader, err = session.Out.Records(); err != nil {
		err = p.explain(err)
		session.Close()
		return nil, err
	}
	return p, nil
}

// explain is why there are no more rows: the body may have failed first, and
// everything else because of it.
func (p *Parsed) explain(err error) error {
	if err == nil {
		return nil
	}
	if failed := p.up.failure(); failed != nil {
		return failed
	}
	return p.session.Explain(p.ctx, err)
}

// Err is what ended the rows early.
func (p *Parsed) Err() error { return p.explain(p.RecordReader.Err()) }

// Summary describes the rows read, after the last row.
func (p *Parsed) Summary() (sum parser.Summary, err error) {
	return sum, p.explain(p.session.Out.Header(&sum))
}

// Close ends the process.
func (p *Parsed) Close() error {
	p.Release()
	p.session.Close()
	return nil
}
