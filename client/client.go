// Package client speaks to a Falaj server. The CLI uses nothing else, so what
// the CLI can do, everybody can.
//
//	c, err := client.New("http://127.0.0.1:7070", token)
//	applied, err := c.Apply(ctx, "nyc", manifest, false)
//
// Objects come back as Object, the server's JSON. A Client is safe for
// concurrent use.
package client

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"
)

// Client is a connection to one server with one token.
type Client struct {
	base  *url.URL
	token string
	http  *http.Client
}

// Option changes how a Client is made.
type Option func(*Client) error

// WithCA trusts the certificates of a PEM file beside the system's.
func WithCA(path string) Option {
	return func(c *Client) error {
		pem, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		pool, err := x509.SystemCertPool()
		if err != nil {
			pool = x509.NewCertPool()
		}
		if !pool.AppendCertsFromPEM(pem) {
			return fmt.Errorf("%s holds no PEM certificate", path)
		}
		c.http.Transport.(*http.Transport).TLSClientConfig = &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: pool}
		return nil
	}
}

// New makes a client; nothing is sent yet.
func New(server, token string, options ...Option) (*Client, error) {
	base, err := url.Parse(server)
	if err != nil || base.Host == "" || (base.Scheme != "http" && base.Scheme != "https") {
		return nil, fmt.Errorf("server %q is not a URL such as http://127.0.0.1:7070", server)
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.ResponseHeaderTimeout = 2 * time.Hour // an import answers when it is done
	c := &Client{base: base, token: token, http: &http.Client{Transport: transport}}
	for _, o := range options {
		if err := o(c); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// Object is an object of the API as the server sent it.
type Object map[string]any

// Text is the value at a dotted path ("status.state") as text, "" if absent.
func (o Object) Text(path string) string {
	var v any = map[string]any(o)
	for part := range strings.SplitSeq(path, ".") {
		m, ok := v.(map[string]any)
		if !ok {
			return ""
		}
		v = m[part]
	}
	switch v := v.(type) {
	case nil:
		return ""
	case string:
		return v
	case json.Number:
		return v.String()
	case []any:
		words := make([]string, len(v))
		for i, e := range v {
			words[i] = fmt.Sprint(e)
		}
		return strings.Join(words, ",")
	}
	b, _ := json.Marshal(v) //nolint:errchkjson // it came from JSON
	return string(b)
}

// Error is the server's refusal.
type Error struct {
	Status int    `json:"status"`
	Kind   string `json:"kind"` // invalid, unauthenticated, permission_denied, not_found, conflict …
	Detail string `json:"detail"`
	Hint   string `json:"hint"`
	// Version is the server's, where it said so.
	Version string `json:"-"`
}

func (e *Error) Error() string { return e.Detail }

// NoAnswerError is the error of a request that nobody answered, or not to the end:
// the server is away or the connection broke. What was asked may have been done.
type NoAnswerError struct{ Err error }

func (e *NoAnswerError) Error() string { return e.Err.Error() }

// Unwrap is what the connection said.
func (e *NoAnswerError) Unwrap() error { return e.Err }

// lost tells a server that is away from one that cannot be spoken to: a wrong
// name, a certificate that nobody trusts.
func lost(err error) bool {
	if dns, ok := errors.AsType[*net.DNSError](err); ok {
		return !dns.IsNotFound
	}
	if op, ok := errors.AsType[*net.OpError](err); ok {
		return op.Op == "dial" || op.Op == "read" || op.Op == "write"
	}
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, context.DeadlineExceeded)
}

// answer is the body of a response: an end before its end is NoAnswerError.
type answer struct {
	io.ReadCloser
	ctx context.Context
}

func (a answer) Read(b []byte) (int, error) {
	n, err := a.ReadCloser.Read(b)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(a.ctx.Err(), context.Canceled) {
		err = &NoAnswerError{err}
	}
	return n, err
}

// Do sends a request below the base URL and decodes the answer into out, which
// may be nil. body may be nil, an io.Reader (sent as it is) or a value (sent as
// JSON). Errors are *Error when the server refused, *NoAnswerError when it is away.
func (c *Client) Do(ctx context.Context, method, path string, body, out any) error {
	resp, err := c.Send(ctx, method, path, body, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if out == nil {
		_, err := io.Copy(io.Discard, resp.Body)
		return err
	}
	d := json.NewDecoder(resp.Body)
	d.UseNumber()
	if err := d.Decode(out); err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("answer of %s %s: %w", method, path, err)
	}
	return nil
}

// replaced reports whether encoding/json put U+FFFD in the place of bytes that are not UTF-8:
// it escapes that one, and writes one that was there as it is.
func replaced(text []byte) bool {
	for at := 0; ; at++ {
		i := bytes.Index(text[at:], []byte(`\ufffd`))
		if i < 0 {
			return false
		}
		at += i
		before := text[:at]
		if slashes := len(before) - len(bytes.TrimRight(before, `\`)); slashes%2 == 0 {
			return true
		}
	}
}

// Send is Do for answers that are not JSON: the caller reads and closes the body.
func (c *Client) Send(ctx context.Context, method, path string, body any, header http.Header) (*http.Response, error) {
	var r io.Reader
	contentType := ""
	switch b := body.(type) {
	case nil:
	case io.Reader:
		r, contentType = b, "application/octet-stream"
	default:
		j, err := json.Marshal(b)
		if err != nil {
			return nil, err
		}
		if replaced(j) {
			return nil, errors.New("a text of the request is not UTF-8: save it as UTF-8")
		}
		r, contentType = bytes.NewReader(j), "application/json"
	}
	req, err := http.NewRequestWithContext(ctx, method, strings.TrimSuffix(c.base.String(), "/")+path, r)
	if err != nil {
		return nil, err
	}
	maps.Copy(req.Header, header)
	if contentType != "" && req.Header.Get("Content-Type") == "" {
		req.Header.Set("Content-Type", contentType)
	}
	if c.token != "" {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		err = fmt.Errorf("no answer from %s (is `falaj up` running there?): %w", c.base, err)
		if lost(err) {
			err = &NoAnswerError{err}
		}
		return nil, err
	}
	resp.Body = answer{resp.Body, ctx}
	if resp.StatusCode < http.StatusBadRequest {
		return resp, nil
	}
	defer resp.Body.Close()
	return nil, refusal(resp)
}

func refusal(resp *http.Response) error {
	b, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	e := &Error{Status: resp.StatusCode, Version: resp.Header.Get("Falaj-Version")}
	var oip struct {
		Error   string `json:"error"`   // Open Inference Protocol
		Message string `json:"message"` // MLflow
	}
	if json.Unmarshal(b, e) != nil || e.Detail == "" {
		_ = json.Unmarshal(b, &oip)
		e.Detail = oip.Error + oip.Message
	}
	if e.Detail == "" {
		e.Detail = fmt.Sprintf("%s: %.200s", resp.Status, b)
	}
	if e.Kind == "" { // only Falaj's own form names it
		e.Kind = kinds[resp.StatusCode]
	}
	return e
}

// kinds are the words for statuses, as the server's problems have them.
var kinds = map[int]string{
	http.StatusBadRequest: "invalid", http.StatusUnauthorized: "unauthenticated", http.StatusForbidden: "permission_denied",
	http.StatusNotFound: "not_found", http.StatusConflict: "conflict", http.StatusGone: "gone",
	http.StatusRequestEntityTooLarge: "too_large", http.StatusTooManyRequests: "exhausted", http.StatusInsufficientStorage: "exhausted", http.StatusInternalServerError: "internal",
	http.StatusUnprocessableEntity: "invalid", http.StatusNotImplemented: "unsupported", http.StatusBadGateway: "unavailable", http.StatusServiceUnavailable: "unavailable", http.StatusGatewayTimeout: "timeout",
}

// List follows the pages of a collection, calling yield for each object.
func (c *Client) List(ctx context.Context, path string, query url.Values, yield func(Object) error) error {
	if query == nil {
		query = url.Values{}
	}
	for {
		var page struct {
			Items []Object `json:"items"`
			Next  string   `json:"next_page_token"`
		}
		full := path
		if len(query) > 0 {
			full += "?" + query.Encode()
		}
		if err := c.Do(ctx, http.MethodGet, full, nil, &page); err != nil {
			return err
		}
		for _, o := range page.Items {
			if err := yield(o); err != nil {
				return err
			}
		}
		if page.Next == "" {
			return nil
		}
		query.Set("page_token", page.Next)
	}
}

// Applied is what became of one document of a manifest.
type Applied struct {
	Kind    string `json:"kind"`
	Name    string `json:"name"`
	Project string `json:"project"`
	Result  string `json:"result"` // created, updated, unchanged; of a dry run, what it would be
	ID      string `json:"id,omitempty"`
	Version int64  `json:"version,omitempty"`

	Warnings []string `json:"warnings,omitempty"` // what may not be meant so
}

// Apply sends a manifest (YAML or JSON, any number of documents).
func (c *Client) Apply(ctx context.Context, project string, manifest []byte, dryRun bool) ([]Applied, error) {
	q := url.Values{}
	if project != "" {
		q.Set("project", project)
	}
	if dryRun {
		q.Set("dry_run", "true")
	}
	var out struct {
		Items []Applied `json:"items"`
	}
	err := c.Do(ctx, http.MethodPost, "/api/v1/apply?"+q.Encode(), bytes.NewReader(manifest), &out)
	return out.Items, err
}

// Import uploads a file as a new version of a dataset and returns the version,
// accepted or rejected.
func (c *Client) Import(ctx context.Context, project, dataset, filename string, body io.Reader, options ...ImportOption) (Object, error) {
	query := url.Values{"filename": {filename}}
	for _, set := range options {
		set(query)
	}
	path := "/api/v1/projects/" + url.PathEscape(project) + "/datasets/" + url.PathEscape(dataset) + "/versions?" + query.Encode()
	var v Object
	return v, c.Do(ctx, http.MethodPost, path, body, &v)
}

// ImportOption changes how a file is imported.
type ImportOption func(url.Values)

// AllowSchemaChange permits that the file lacks columns of the newest accepted version, or
// has them with other types. Without it such a file is refused.
func AllowSchemaChange(query url.Values) { query.Set("allow_schema_change", "true") }

// Logs copies a job's output from a byte offset to w; with follow it goes on
// until the job ends.
func (c *Client) Logs(ctx context.Context, project, job string, offset int64, follow bool, w io.Writer) error {
	path := fmt.Sprintf("/api/v1/projects/%s/jobs/%s/logs?offset=%d&follow=%t", url.PathEscape(project), url.PathEscape(job), offset, follow)
	resp, err := c.Send(ctx, http.MethodGet, path, nil, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, err = io.Copy(w, resp.Body)
	return err
}

// Watch yields server-sent events from path until yield returns false or ctx
// ends. lastID resumes after an event already seen.
func (c *Client) Watch(ctx context.Context, path, lastID string, yield func(id string, event Object) bool) error {
	header := http.Header{"Accept": {"text/event-stream"}}
	if lastID != "" {
		header.Set("Last-Event-ID", lastID)
	}
	resp, err := c.Send(ctx, http.MethodGet, path, nil, header)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, 1<<20)
	id := ""
	for lines.Scan() {
		field, value, _ := strings.Cut(lines.Text(), ":")
		value = strings.TrimPrefix(value, " ")
		switch field {
		case "id":
			id = value
		case "data":
			var o Object
			if err := json.Unmarshal([]byte(value), &o); err != nil {
				return fmt.Errorf("event: %w", err)
			}
			if !yield(id, o) {
				return nil
			}
		}
	}
	return lines.Err()
}

// Decode reads one JSON value, keeping numbers exact.
func Decode(r io.Reader, out any) error {
	d := json.NewDecoder(r)
	d.UseNumber()
	return d.Decode(out)
}
