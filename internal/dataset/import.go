package dataset

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"hash"
	"io"
	"math"
	"path"
	"slices"
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
	"github.com/falaj-ml/falaj/internal/store"
)

// ImportRequest is the import of a file.
type ImportRequest struct {
	Project  project.Name
	Name     string // of the dataset, which must be declared
	Filename string // for people; directories are cut off
	Body     io.Reader
	Format   parser.Format // of the body; the dataset's when empty
	// SchemaChange permits that the version lacks columns of the newest accepted one, or
	// has them with other types.
	SchemaChange bool
	Progress     func(Progress) // called now and then from other goroutines, one at a time; may be nil
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
// limit; fault.Conflict for a change of the schema that r does not permit;
// fault.Exhausted when too many run; fault.Timeout.
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
	if !r.SchemaChange {
		w.continues = &continues{origin: "file", hint: "If this is intended, import with --allow-schema-change (HTTP: allow_schema_change=true). For another type, you can also declare it in the dataset's spec.columns."}
	}
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

// IngestRequest keeps rows that came from a source.
type IngestRequest struct {
	Project project.Name
	Name    string // of the dataset, which must be declared
	Rows    array.RecordReader
	// Base is the version that the rows continue; 0 for none. The new version may
	// be only where it may be, and is at least as closed.
	Base int64
	// Next makes it the version right after Base: it fails with fault.Conflict when
	// the dataset's name means another one than Base by then.
	Next bool
	// SchemaChange permits that the version lacks columns of the newest accepted one, or
	// has them with other types.
	SchemaChange bool
	// Beside is the source, with where its rows may be.
	Beside   []Labelled
	Producer Producer
	Progress func(rows int64) // may be nil
	// Then runs in the transaction in which the version comes to be, or, when the
	// newest version has the same content, in one of its own: what it records is
	// there exactly if the version is.
	Then func(ctx context.Context, tx *store.Tx, v Version) error
}

// Ingest makes a version of a source's rows. When the newest version has the
// same content, made the same way, that is returned, marked Unchanged; an older
// one with the same content does not count, because the dataset has to mean what
// the source has. Needs dataset.import. Errors: as Create; fault.Unavailable when a
// person was erased from Base meanwhile.
func (s *Writes) Ingest(ctx context.Context, r IngestRequest) (Version, error) {
	if who := identity.From(ctx); who.Kind == identity.Attempt {
		return Version{}, fault.New(fault.PermissionDenied, "%s cannot ingest rows of a source", who).WithHint("From a job, write tables through the catalog, or import a file.")
	}
	d, err := s.allowed(ctx, ActionImport, r.Project, r.Name)
	if err != nil {
		return Version{}, err
	}
	def, err := s.defaults(ctx, r.Project)
	if err != nil {
		return Version{}, err
	}
	beside := r.Beside
	if r.Base > 0 {
		v, err := s.find(ctx, ActionRead, r.Project, Ref{Name: r.Name, Number: r.Base})
		if err != nil {
			return Version{}, err
		}
		beside = append(slices.Clip(beside), Labelled{Name: "dataset " + v.Ref().String(), Residency: v.Residency, Classification: v.Classification})
	}
	beside = append(slices.Clip(beside), Labelled{Name: "dataset " + d.Name + " as declared", Residency: def.residency(d.Spec), Classification: def.classification(d.Spec)})
	label, class, err := inherit(nil, beside...)
	if err != nil {
		return Version{}, err
	}
	w := draft{
		project: r.Project, name: r.Name, spec: d.Spec, residency: label, classification: class,
		rows: r.Rows, progress: r.Progress, then: r.Then, newest: true, base: r.Base,
	}
	if r.Next {
		w.onto = &onto{base: r.Base}
	}
	if !r.SchemaChange {
		w.continues = &continues{origin: "source", hint: "If this is intended, run `falaj dataset ingest` with --anew. For another type, you can also declare it in the dataset's spec.columns."}
	}
	if err := s.settle(ctx, w); err != nil {
		return Version{}, err
	}
	w.lineage = func() (Lineage, error) { return Lineage{Producer: &r.Producer}, nil }
	ctx, cancel := context.WithTimeout(ctx, s.limits.ImportTime)
	defer cancel()
	v, err := s.write(ctx, w)
	return v, inTime(ctx, err)
}
