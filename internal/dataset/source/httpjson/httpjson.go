// Package httpjson reads lists of JSON objects that a service gives by HTTP, page
// by page; the parser child makes rows of each page.
//
// How to go on is said by the document (the next page's address, or a token that
// a parameter takes), by the answer's Link header, or by counting. A reading can
// be taken up after any row: its page is asked for again, and the rows before are
// passed over. A service whose pages move while rows come gives such rows twice
// or not at all, to whoever asks: a key mends the first, nothing the second.
//
// Requests go to the manifest's host alone, whatever pages and redirects say, and
// take the secret nowhere else.
package httpjson

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"time"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/falaj-ml/falaj/internal/dataset/parser"
	"github.com/falaj-ml/falaj/internal/dataset/source"
	"github.com/falaj-ml/falaj/internal/dataset/table"
	"github.com/falaj-ml/falaj/internal/fault"
)

// Limits of a reading.
const (
	MaxPages     = 1_000_000
	maxAddress   = 16 << 10
	maxRedirects = 5
)

// Overlap is how long before the last run began the next asks for rows, when the
// manifest does not say.
const Overlap = 10 * time.Minute

// Driver implements source.Driver.
type Driver struct{}

var _ source.Driver = Driver{}

var headerName = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9-]*$`)

// Check implements source.Driver.
func (Driver) Check(r source.Request) error {
	o := *r.From.HTTP
	bad := func(field, format string, args ...any) *fault.Error {
		return fault.New(fault.Invalid, "spec.from.http.%s: %s", field, fmt.Sprintf(format, args...))
	}
	u, err := url.Parse(o.URL)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" || len(o.URL) > maxAddress:
		return bad("url", "it is not a URL such as https://api.example.com/v1/orders")
	case u.User != nil:
		return bad("url", "it contains credentials").WithHint("Put the credentials into the secret, as username and password or as token.")
	case u.Scheme == "http" && o.TLS != source.TLSOff:
		return bad("url", "http is not encrypted").WithHint("Use https, or set tls: off in a trusted network.")
	case u.Scheme == "https" && o.TLS == source.TLSOff:
		return bad("tls", "off is valid only with an http URL")
	case o.Header != "" && !headerName.MatchString(o.Header):
		return bad("header", "%q is not a valid header name", o.Header)
	case r.Mode == source.Incremental && o.Since == "":
		return bad("since", "mode incremental requires the query parameter that selects rows changed since a time").WithHint("Without such a parameter, use mode: full.")
	case r.Mode != source.Incremental && (o.Since != "" || r.Overlap != ""):
		return bad("since", "it and spec.overlap are valid only with mode incremental")
	case r.Mode == source.Incremental && len(r.Key) == 0:
		return fault.New(fault.Invalid, "spec.key: mode incremental requires the columns that identify a row").
			WithHint("Rows near the last run are read again, and the key distinguishes them from new rows.")
	case r.Mode == source.Changes && (len(r.Key) == 0 || r.Op == ""):
		return fault.New(fault.Invalid, "spec.key and spec.op: mode changes requires both")
	case r.Cursor != "":
		return fault.New(fault.Invalid, "spec.cursor is valid only for tables; for http, set since")
	}
	if _, err := overlap(r); err != nil {
		return err
	}
	if err := source.CheckTLS("spec.from.http.tls", o.TLS); err != nil {
		return err
	}
	return r.Access.Allowed(address(u))
}

func overlap(r source.Request) (time.Duration, error) {
	if r.Overlap == "" {
		return Overlap, nil
	}
	d, err := time.ParseDuration(r.Overlap)
	if err != nil || d < 0 {
		return 0, fault.New(fault.Invalid, "spec.overlap: %q is not a duration such as 10m", r.Overlap)
	}
	return d, nil
}

// address is host:port.
func address(u *url.URL) string {
	switch {
	case u.Port() != "":
		return u.Host
	case u.Scheme == "http":
		return u.Host + ":80"
	}
	return u.Host + ":443"
}

// place is where a reading stands.
type place struct {
	Page    string          `json:"page"` // address of the page
	Number  int64           `json:"number"`
	Rows    int64           `json:"rows"`    // of the page that were given
	Columns []source.Column `json:"columns"` // of the first page, which the others have to have
}

// end is where a reading ends: when it began, by the service's clock.
type end struct {
	Began time.Time `json:"began"`
}

// Open implements source.Driver.
func (Driver) Open(ctx context.Context, r source.Request) (_ source.Reader, err error) {
	o := *r.From.HTTP
	base, err := url.Parse(o.URL)
	if err != nil {
		return nil, fault.New(fault.Invalid, "spec.from.http.url: it is not a URL")
	}
	secure, err := source.TLS(o.TLS, base.Hostname(), r.Secret)
	if err != nil {
		return nil, err
	}
	var after end
	if err := source.ReadPosition(r.After, &after); err != nil {
		return nil, err
	}
	if !after.Began.IsZero() && o.Since != "" {
		d, err := overlap(r)
		if err != nil {
			return nil, err
		}
		base = with(base, o.Since, after.Began.Add(-d).UTC().Format(time.RFC3339))
	}
	s := &reader{o: o, req: r, base: base, transport: r.Access.Transport(secure), at: place{Page: base.String(), Number: 1}}
	s.client = &http.Client{Transport: s.transport, CheckRedirect: s.redirected}
	own, cancel := context.WithCancel(context.WithoutCancel(ctx))
	s.ctx, s.cancel = own, cancel
	stop := context.AfterFunc(ctx, cancel)
	defer stop()
	defer func() {
		if err != nil {
			_ = s.Close()
		}
	}()
	if err := errors.Join(source.ReadPosition(r.Resume, &s.at), source.ReadPosition(r.Until, &s.until)); err != nil {
		return nil, err
	}
	if s.numbered() && len(r.Resume) == 0 { // the address may say where counting begins
		if n, err := strconv.ParseInt(base.Query().Get(o.Parameter), 10, 64); err == nil {
			s.at.Number = n
		}
		s.at.Page = with(base, o.Parameter, strconv.FormatInt(s.at.Number, 10)).String()
	}
	return s, s.open()
}

// with is an address whose query has that parameter.
func with(u *url.URL, parameter, value string) *url.URL {
	out := *u
	q := out.Query()
	q.Set(parameter, value)
	out.RawQuery = q.Encode()
	return &out
}

type reader struct {
	o         source.HTTP
	req       source.Request
	base      *url.URL // of the first page
	client    *http.Client
	transport *http.Transport
	ctx       context.Context //nolint:containedctx // of one reading
	cancel    context.CancelFunc

	until  end
	at     place
	pages  int
	link   string // how the open page's Link header goes on
	schema table.Schema
	part   *source.Part // the open page
}

// numbered reports whether pages are counted.
func (s *reader) numbered() bool { return s.o.Next == "" && s.o.Parameter != "" }

// redirected lets redirects lead to other addresses of the same host only.
func (s *reader) redirected(next *http.Request, via []*http.Request) error {
	if !s.same(next.URL) {
		return fault.New(fault.Invalid, "%s redirects to %s, which the source does not allow", s.base.Host, next.URL.Host).
			WithHint("Set spec.from.http.url to the URL of the rows.")
	}
	if len(via) > maxRedirects {
		return fault.New(fault.Invalid, "%s redirects more than %d times", s.base.Host, maxRedirects)
	}
	return nil
}

func (s *reader) same(u *url.URL) bool {
	return u.Scheme == s.base.Scheme && address(u) == address(s.base) && u.User == nil
}

// ask asks for a page. Close the answer's Body.
func (s *reader) ask(p place) (*http.Response, error) {
	q, err := http.NewRequestWithContext(s.ctx, http.MethodGet, p.Page, http.NoBody)
	if err != nil {
		return nil, fault.New(fault.Invalid, "page %d: its URL is invalid", p.Number)
	}
	q.Header.Set("Accept", "application/json")
	q.Header.Set("User-Agent", "falaj")
	token, user := s.req.Secret["token"].Reveal(), s.req.Secret["username"].Reveal()
	switch {
	case token != "" && s.o.Header != "":
		q.Header.Set(s.o.Header, token)
	case token != "":
		q.Header.Set("Authorization", "Bearer "+token)
	case user != "":
		q.SetBasicAuth(user, s.req.Secret["password"].Reveal())
	}
	res, err := s.client.Do(q)
	if err != nil {
		return nil, s.explain(err)
	}
	if err := s.refused(res.StatusCode, p.Number); err != nil {
		_ = res.Body.Close()
		return nil, err
	}
	return res, nil
}

// open opens the page that the reading is at.
func (s *reader) open() error {
	if s.pages++; s.pages > MaxPages {
		return fault.New(fault.TooLarge, "there are more than %d pages", MaxPages).WithHint("Request larger pages in spec.from.http.url.")
	}
	asked := time.Now()
	res, err := s.ask(s.at) //nolint:bodyclose // the part closes it
	if err != nil {
		return err
	}
	if s.until.Began.IsZero() {
		s.until.Began = asked
		if at, err := http.ParseTime(res.Header.Get("Date")); err == nil { // of the answer, which came later than the rows were looked up
			s.until.Began = at.Add(-time.Since(asked))
		}
	}
	s.link = linked(res.Header)
	req := parser.Request{Format: parser.JSON, Records: s.o.Records, Next: s.o.Next, Columns: s.at.Columns, Batch: s.req.BatchRows}
	if req.Columns == nil {
		req.Columns = s.req.Declared
	}
	if s.part, err = source.OpenPart(s.ctx, s.req.Parser, res.Body, req, s.at.Rows); err != nil {
		return fault.Wrap(s.explain(err), "page %d", s.at.Number)
	}
	schema, err := s.part.Schema()
	if err != nil {
		return fault.Wrap(err, "page %d", s.at.Number)
	}
	if s.schema = schema; s.at.Columns == nil {
		for _, f := range schema {
			s.at.Columns = append(s.at.Columns, source.Column{Name: f.Name, Type: f.Type})
		}
	}
	if len(schema) > len(s.at.Columns) {
		return fault.New(fault.Invalid, "page %d has a field %q that the first page lacks", s.at.Number, schema[len(s.at.Columns)].Name).
			WithHint("Declare the column in the dataset's spec.")
	}
	return nil
}

// refused puts an answer other than rows into words. What its body says stays
// unsaid: it is a stranger's.
func (s *reader) refused(code int, page int64) error {
	host := s.base.Host
	switch {
	case code == http.StatusOK:
		return nil
	case code == http.StatusUnauthorized, code == http.StatusForbidden:
		return fault.New(fault.Invalid, "%s rejected the request: status %d", host, code).WithHint("Check the secret (token, or username and password), its read permissions, and spec.from.http.header.")
	case code == http.StatusNotFound, code == http.StatusGone:
		return fault.New(fault.NotFound, "%s has no page %d: status %d", host, page, code).WithHint("Check spec.from.http.url.")
	case code >= 500, code == http.StatusTooManyRequests, code == http.StatusRequestTimeout, code == http.StatusTooEarly:
		return fault.New(fault.Unavailable, "%s: status %d", host, code)
	}
	return fault.New(fault.Invalid, "%s: page %d returned status %d instead of rows", host, page, code).WithHint("Check spec.from.http.url and its parameters.")
}

func (s *reader) explain(err error) error {
	if errors.Is(err, context.Canceled) {
		return err
	}
	if at, ok := errors.AsType[*url.Error](err); ok { // its address may have what rows have: where the page before ended
		err = at.Err
	}
	if said := source.Unreachable(s.base.Host, err); said != nil {
		return said
	}
	return fault.New(fault.Unavailable, "%s: %w", s.base.Host, err)
}

var linkNext = regexp.MustCompile(`<([^<>]*)>[^<]*;\s*rel="?next\b`)

// linked is where the Link header says that the next page is.
func linked(h http.Header) string {
	for _, v := range h.Values("Link") {
		if m := linkNext.FindStringSubmatch(v); m != nil {
			return m[1]
		}
	}
	return ""
}

// next is the page after the open one, whose rows were all read; false when that
// was the last.
func (s *reader) next() (place, bool, error) {
	sum, err := s.part.Summary()
	if err != nil {
		return place{}, false, err
	}
	to := place{Number: s.at.Number + 1, Columns: s.at.Columns}
	said := s.link
	if s.o.Next != "" {
		said = sum.Next
	}
	switch {
	case s.numbered():
		to.Page = with(s.base, s.o.Parameter, strconv.FormatInt(to.Number, 10)).String()
		return to, sum.Rows > 0, nil
	case said == "":
		return place{}, false, nil
	case s.o.Parameter != "":
		to.Page = with(s.base, s.o.Parameter, said).String()
	default:
		here, err := url.Parse(s.at.Page)
		if err != nil {
			return place{}, false, fault.New(fault.Internal, "page %d has no URL", s.at.Number)
		}
		u, err := here.Parse(said)
		if err != nil || !s.same(u) {
			return place{}, false, fault.New(fault.Invalid, "the next page of page %d is not on host %s, or its URL is invalid", s.at.Number, s.base.Host).
				WithHint("If the field at next is a token, set spec.from.http.parameter to the parameter that takes it.")
		}
		to.Page = u.String()
	}
	if to.Page == s.at.Page || len(to.Page) > maxAddress {
		return place{}, false, fault.New(fault.Invalid, "the next page of page %d is the same page, or its URL exceeds %d bytes", s.at.Number, maxAddress).
			WithHint("Check spec.from.http.next and parameter.")
	}
	return to, true, nil
}

// reopen is open once more for a counted page that was not found. So some services
// say that the page before was the last, and so a proxy may answer for a moment
// whatever the page: then rows would be missing and nobody would know. It is the end
// if the page before is there still, and neither this one is nor the one behind it.
// Errors: fault.NotFound at the end; fault.Unavailable.
func (s *reader) reopen(before place) error {
	found := func(p place) (bool, error) {
		res, err := s.ask(p)
		if err == nil {
			_ = res.Body.Close()
		}
		if fault.Is(err, fault.NotFound) {
			return false, nil
		}
		return err == nil, err
	}
	gap := func(why string, page int64) error {
		return fault.New(fault.Unavailable, "%s returned 404 for page %d, and page %d "+why+", so this is not the end of the rows", s.base.Host, s.at.Number, page).
			WithHint("The run is retried automatically. If the error persists, pages cannot be counted: use spec.from.http.next, or the service's Link header.")
	}
	switch there, err := found(before); {
	case err != nil:
		return err
	case !there:
		return gap("does not exist either", before.Number)
	}
	end := s.open()
	if !fault.Is(end, fault.NotFound) {
		return end
	}
	behind := place{Number: s.at.Number + 1}
	behind.Page = with(s.base, s.o.Parameter, strconv.FormatInt(behind.Number, 10)).String()
	switch there, err := found(behind); {
	case err != nil:
		return err
	case there:
		return gap("exists", behind.Number)
	}
	return end
}

// Schema implements source.Reader.
func (s *reader) Schema() *arrow.Schema { return s.schema.Arrow() }

// Until implements source.Reader.
func (s *reader) Until() source.Position { return source.PositionOf(s.until) }

// Next implements source.Reader.
func (s *reader) Next(ctx context.Context) (arrow.RecordBatch, source.Position, error) {
	stop := context.AfterFunc(ctx, s.cancel)
	defer stop()
	for s.part != nil {
		rec, err := s.part.Next(s.req.BatchRows)
		if err == nil {
			s.at.Rows = s.part.Given
			return rec, source.PositionOf(s.at), nil
		}
		if !errors.Is(err, io.EOF) {
			if ctx.Err() != nil {
				err = ctx.Err()
			}
			return nil, nil, fault.Wrap(s.explain(err), "page %d", s.at.Number)
		}
		to, more, err := s.next()
		s.part.Close()
		s.part = nil
		if err != nil {
			return nil, nil, err
		}
		if !more {
			break
		}
		before := s.at
		s.at = to
		err = s.open()
		if s.numbered() && fault.Is(err, fault.NotFound) {
			if err = s.reopen(before); fault.Is(err, fault.NotFound) {
				break
			}
		}
		if err != nil {
			return nil, nil, err
		}
	}
	return nil, nil, io.EOF
}

// Close implements source.Reader.
func (s *reader) Close() error {
	s.cancel()
	if s.part != nil {
		s.part.Close()
	}
	s.transport.CloseIdleConnections()
	return nil
}
