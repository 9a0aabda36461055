package dataset

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"hash"
	"io"
	"path"
	"strings"
	"sync/atomic"
	"unicode"

	"github.com/apache/arrow-go/v18/arrow/array"

	"github.com/falaj-ml/falaj/internal/dataset/child"
	"github.com/falaj-ml/falaj/internal/dataset/parser"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/governance/residency"
)

// ImportRequest is the import of a file.
type ImportRequest struct {
	Project  project.Name
	Name     string // of the dataset, which must be declared
	Filename string // for people; directories are cut off
	Body     io.Reader
	Format   parser.Format  // of the body; the dataset's when empty
	Progress func(Progress) // called now and then from other goroutines, one at a time; may be nil
}

// Progress of an import.
type Progress struct {
	Bytes int64 // of the file read
	Rows  int64 // written
}

// Writes takes rows and makes versions of them. Its callers are the HTTP API, Flight, ingestion,
// features and monitoring.
type Writes struct {
	*core
	definitions *Definitions
}

// Import makes a version of a file. The same bytes under the same spec give the version that
// exists, marked Unchanged, even where a newer one came after it. A version that fails its
// expectations is returned with the state Rejected and no error. Of a job's attempt it is as
// confined as all that the attempt could read. Needs dataset.import. Errors: fault.Invalid for a
// file that cannot be read, with row and column, and the value as data; fault.TooLarge over a
// limit; fault.Exhausted when too many run; fault.Timeout.
func (s *Writes) Import(ctx context.Context, r ImportRequest) (Version, error) {
	d, err := s.allowed(ctx, ActionImport, r.Project, r.Name)
	if err != nil {
		return Version{}, err
	}
	w, err := s.derivedFrom(ctx, d, nil)
	if err != nil {
		return Version{}, err
	}
	if r.Body, err = begun(r.Body); err != nil {
		return Version{}, fault.Wrap(err, "reading the upload")
	}
	free, err := s.imports.Take(ctx, identity.Share(ctx, r.Project))
	if err != nil {
		return Version{}, err
	}
	defer free()
	ctx, cancel := context.WithTimeout(ctx, s.limits.ImportTime)
	defer cancel()
	return s.parse(ctx, r, w)
}

// beginning is how many bytes of an upload are here before it takes a slot.
const beginning = 64 << 10

// begun reads the beginning of an upload, so that a slot is held by uploads of which
// something comes. It gives all of the upload.
func begun(body io.Reader) (io.Reader, error) {
	var b bytes.Buffer
	_, err := io.CopyN(&b, body, beginning)
	if errors.Is(err, io.EOF) {
		return &b, nil
	}
	if err != nil {
		return nil, err
	}
	return io.MultiReader(&b, body), nil
}

// settle is the door for data that comes to be here.
func (s *core) settle(ctx context.Context, w draft) error {
	if w.spec.Protection == Open && w.classification.Journalled() {
		return fault.New(fault.Invalid, "%s data cannot be open: reads by other engines would not be journaled", w.classification).
			WithHint("Apply the dataset with protection: sealed.")
	}
	return s.cfg.Guard.Pass(ctx, residency.Transfer{
		Project: string(w.project), What: "dataset " + w.name, Label: w.residency, Where: "this server", Zone: s.cfg.Zone, Action: string(ActionImport),
	})
}

// parse runs the file through the parser process into a version.
func (s *Writes) parse(ctx context.Context, r ImportRequest, w derived) (Version, error) {
	session, err := child.Start(ctx, s.cfg.Launcher, child.ParserMode, child.LaunchOptions{Memory: s.limits.ParserMemory, CPU: s.limits.ImportTime})
	if err != nil {
		return Version{}, err
	}
	defer session.Close()
	req := w.spec.Reading()
	req.Limits = s.limits.Parser
	if r.Format != "" {
		req.Format = r.Format
	}
	up := &upload{body: r.Body, hash: sha256.New(), limit: int64(s.limits.Upload), what: "reading the upload", done: make(chan struct{})}
	report := func(rows int64) {
		if r.Progress != nil {
			r.Progress(Progress{Bytes: up.read(), Rows: rows})
		}
	}
	go up.send(session, req)
	v, err := s.receive(ctx, session, w, up, r.Filename, report)
	if err == nil {
		return v, nil
	}
	// The upload may have failed first, and everything else because of it.
	if uerr := up.failure(); uerr != nil {
		return Version{}, uerr
	}
	return Version{}, inTime(ctx, err)
}

// inTime names the end of ctx's time as what it is.
func inTime(ctx context.Context, err error) error {
	if fault.KindOf(err) == fault.Internal && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return fault.New(fault.Timeout, "the operation exceeded its time limit").WithHint("Split the input, or raise the limit.")
	}
	return err
}

// explained wraps a child's rows, and turns its errors into the reason of its end.
type explained struct {
	array.RecordReader
	session *child.Session
	ctx     context.Context //nolint:containedctx // of one conversation
}

func (e explained) Err() error { return e.session.Explain(e.ctx, e.RecordReader.Err()) }

func (s *Writes) receive(ctx context.Context, session *child.Session, w derived, up *upload, filename string, report func(int64)) (Version, error) {
	rows, err := session.Out.Records()
	if err != nil {
		return Version{}, session.Explain(ctx, err)
	}
	defer rows.Release()
	w.rows, w.progress = explained{rows, session, ctx}, report
	w.lineage = func() (Lineage, error) {
		var sum parser.Summary
		if err := session.Out.Header(&sum); err != nil {
			return Lineage{}, session.Explain(ctx, err)
		}
		select {
		case <-up.done:
		case <-ctx.Done():
			return Lineage{}, ctx.Err()
		}
		if err := up.failure(); err != nil {
			return Lineage{}, err
		}
		lineage := w.producedBy
		lineage.Source = &Source{Filename: filenameOf(filename), Digest: up.digest(), Bytes: up.read(), Format: sum.Format}
		return lineage, nil
	}
	return s.write(ctx, w.draft)
}

// filenameOf is what the uploader called the file, safe to show.
func filenameOf(name string) string {
	name = path.Base(strings.ReplaceAll(name, `\`, "/"))
	name = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '_'
		}
		return r
	}, strings.ToValidUTF8(name, "_"))
	if name == "." || name == "/" || name == ".." {
		return ""
	}
	if r := []rune(name); len(r) > 200 {
		name = string(r[:200])
	}
	return name
}

// upload copies the file to the parser, hashing what passes.
type upload struct {
	body  io.Reader
	hash  hash.Hash
	limit int64
	what  string // that its errors begin with
	n     atomic.Int64
	done  chan struct{} // closed when the copy has ended
	err   error         // of the body or the limit; read after done
}

func (u *upload) send(session *child.Session, req parser.Request) {
	var err error
	if err = session.In.Header(req); err == nil {
		out := session.In.Stream()
		if _, err = io.Copy(out, u); err == nil {
			err = out.Close()
		}
	}
	_ = err // the parser's end: the side that reads from it tells why
	failed := u.err != nil
	close(u.done)
	if failed {
		session.Stop() // the parser would wait for the rest
	}
}

// Read gives the body on; only its own errors are kept.
func (u *upload) Read(p []byte) (int, error) {
	n, err := u.body.Read(p)
	u.hash.Write(p[:n])
	if u.n.Add(int64(n)) > u.limit {
		u.err = fault.New(fault.TooLarge, "the file is over the limit of %d bytes", u.limit).WithHint("Split it, or raise limits.upload.")
		return 0, u.err
	}
	if err != nil && !errors.Is(err, io.EOF) {
		u.err = err
		if u.what != "" {
			u.err = fault.Wrap(err, "%s", u.what)
		}
		return n, u.err
	}
	return n, err
}

func (u *upload) read() int64 { return u.n.Load() }

// digest of the bytes; call it after done.
func (u *upload) digest() string { return "sha256:" + hex.EncodeToString(u.hash.Sum(nil)) }

// failure is the upload's own error, once the copy has ended. A copy that still
// waits for its body has none.
func (u *upload) failure() error {
	select {
	case <-u.done:
		return u.err
	default:
		return nil
	}
}
