package mirror

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/serving/gateway"
)

// Server is where a gateway's deployments come from.
type Server struct {
	URL       string      // https://host:port
	TLS       *tls.Config // nil: the system's roots
	TokenFile string      // read for each request, so that it can be replaced
	Project   string
	Name      string // of the gateway
}

// times of a request. A file may take as long as it comes on.
const (
	answerTime = 30 * time.Second
	idleTime   = time.Minute
	maxAnswer  = 64 << 20
	maxToken   = 4 << 10
)

// upstream asks a Server. Safe for concurrent use.
type upstream struct {
	s    Server
	http *http.Client
}

func newUpstream(s Server) *upstream {
	t := &http.Transport{
		TLSClientConfig: s.TLS, ForceAttemptHTTP2: true, MaxIdleConns: 4, IdleConnTimeout: 2 * time.Minute,
		TLSHandshakeTimeout: 10 * time.Second, ResponseHeaderTimeout: answerTime,
	}
	return &upstream{s: s, http: &http.Client{
		Transport:     t,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }, // the token goes nowhere else
	}}
}

func (u *upstream) close() { u.http.CloseIdleConnections() }

func (u *upstream) do(ctx context.Context, method, path string, query url.Values, contentType string, body io.Reader) (*http.Response, error) {
	return u.doFrom(ctx, 0, method, path, query, contentType, body)
}

// doFrom asks for what comes after so many bytes of the answer; it may be given all.
func (u *upstream) doFrom(ctx context.Context, from int64, method, path string, query url.Values, contentType string, body io.Reader) (*http.Response, error) {
	token, err := os.ReadFile(u.s.TokenFile)
	if err != nil {
		return nil, fault.New(fault.Unavailable, "gateway.token_file: %w", err)
	}
	at := strings.TrimSuffix(u.s.URL, "/") + "/api/v1/projects/" + url.PathEscape(u.s.Project) + "/gateways/" + url.PathEscape(u.s.Name) + path
	if len(query) > 0 {
		at += "?" + query.Encode()
	}
	r, err := http.NewRequestWithContext(ctx, method, at, body)
	if err != nil {
		return nil, err
	}
	r.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token[:min(len(token), maxToken)])))
	if contentType != "" {
		r.Header.Set("Content-Type", contentType)
	}
	if from > 0 {
		r.Header.Set("Range", "bytes="+strconv.FormatInt(from, 10)+"-")
	}
	a, err := u.http.Do(r)
	if err != nil {
		return nil, fault.New(fault.Unavailable, "the upstream server is unavailable: %w", err)
	}
	if a.StatusCode == http.StatusOK || from > 0 && a.StatusCode == http.StatusPartialContent && strings.HasPrefix(a.Header.Get("Content-Range"), "bytes "+strconv.FormatInt(from, 10)+"-") {
		return a, nil
	}
	defer func() { _ = a.Body.Close() }()
	b, _ := io.ReadAll(io.LimitReader(a.Body, 64<<10))
	return nil, refusal(a.StatusCode, b)
}

// kinds are what the statuses of refusals mean here; all others are to be tried again.
var kinds = map[int]fault.Kind{
	http.StatusBadRequest: fault.Invalid, http.StatusUnauthorized: fault.Unauthenticated, http.StatusForbidden: fault.PermissionDenied,
	http.StatusNotFound: fault.NotFound, http.StatusConflict: fault.Conflict, http.StatusGone: fault.Gone, http.StatusRequestEntityTooLarge: fault.TooLarge,
}

// refusal is an answer that is not 200. Only one of ours, a problem with a kind, says
// anything of the gateway: what a proxy answers does not.
func refusal(status int, body []byte) error {
	var p struct {
		Kind   string `json:"kind"`
		Detail string `json:"detail"`
		Hint   string `json:"hint"`
	}
	kind, known := kinds[status]
	if json.Unmarshal(body, &p) != nil || p.Kind == "" || !known {
		return fault.New(fault.Unavailable, "the upstream server returned status %d", status)
	}
	return fault.New(kind, "%s", p.Detail).WithHint("%s", p.Hint)
}

// Sync says what this gateway holds, and hears what it should.
func (u *upstream) sync(ctx context.Context, r gateway.Report) (w gateway.Wanted, err error) {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	body, err := json.Marshal(r)
	if err != nil {
		return w, err
	}
	a, err := u.do(ctx, http.MethodPost, "/sync", nil, "application/json", bytes.NewReader(body))
	if err != nil {
		return w, err
	}
	defer func() { _ = a.Body.Close() }()
	b, err := io.ReadAll(io.LimitReader(a.Body, maxAnswer+1))
	if err != nil {
		return w, fault.New(fault.Unavailable, "the response was interrupted: %w", err)
	}
	if len(b) > maxAnswer {
		return w, fault.New(fault.TooLarge, "the response exceeds %d bytes", maxAnswer)
	}
	if err := json.Unmarshal(b, &w); err != nil {
		return w, fault.New(fault.Unavailable, "the response cannot be parsed: %w", err)
	}
	return w, nil
}

// file gives a file of a version to read. Where a connection breaks off, or nothing comes
// any more, another one goes on from there: what came is not fetched again.
func (u *upstream) file(ctx context.Context, model string, version int64, name string, read func(io.Reader) error) error {
	path := "/models/" + url.PathEscape(model) + "/versions/" + strconv.FormatInt(version, 10) + "/files/" + url.PathEscape(name)
	f := &pieces{ctx: ctx, open: func(ctx context.Context, from int64) (io.ReadCloser, error) {
		a, err := u.doFrom(ctx, from, http.MethodGet, path, nil, "", nil)
		if err != nil {
			return nil, err
		}
		if a.StatusCode == http.StatusOK && from > 0 { // a server that gives all or nothing
			if _, err := io.CopyN(io.Discard, a.Body, from); err != nil {
				_ = a.Body.Close()
				return nil, fault.New(fault.Unavailable, "the response was interrupted: %w", err)
			}
		}
		return a.Body, nil
	}}
	defer f.drop()
	if err := f.next(); err != nil {
		return err
	}
	return read(f)
}

// How long a file may not come on before who fetches it gives up: pauses between
// connections that brought nothing, which double.
const (
	firstPause = 100 * time.Millisecond
	maxBroken  = 12 // some seven minutes
)

// pieces is a file that comes over one connection after the other.
type pieces struct {
	ctx  context.Context // of the fetch
	open func(ctx context.Context, from int64) (io.ReadCloser, error)

	at     int64 // bytes that came
	broken int   // connections in a row that brought nothing
	body   io.ReadCloser
	late   *time.Timer
	end    context.CancelCauseFunc
}

// next opens a connection.
func (f *pieces) next() error {
	ctx, cancel := context.WithCancelCause(f.ctx)
	late := time.AfterFunc(idleTime, func() { cancel(fault.New(fault.Timeout, "no data received for %s", idleTime)) })
	body, err := f.open(ctx, f.at)
	if err != nil {
		late.Stop()
		cancel(nil)
		return err
	}
	f.body, f.late, f.end = body, late, cancel
	return nil
}

// drop closes the connection that there is.
func (f *pieces) drop() {
	if f.body == nil {
		return
	}
	f.late.Stop()
	f.end(nil)
	_ = f.body.Close()
	f.body = nil
}

// Read implements io.Reader.
func (f *pieces) Read(p []byte) (int, error) {
	for {
		err := error(nil)
		if f.body == nil {
			err = f.next()
		}
		if err == nil {
			var n int
			n, err = f.body.Read(p)
			f.at += int64(n)
			if n > 0 {
				f.broken = 0
				f.late.Reset(idleTime)
			}
			if err != nil && !errors.Is(err, io.EOF) {
				f.drop()
			}
			if n > 0 && !errors.Is(err, io.EOF) {
				return n, nil // and the next connection goes on
			}
			if err == nil || errors.Is(err, io.EOF) {
				return n, err
			}
			err = fault.New(fault.Unavailable, "the transfer was interrupted after %d bytes: %w", f.at, err)
		}
		if f.broken++; f.broken > maxBroken || !fault.Is(err, fault.Unavailable) || f.ctx.Err() != nil {
			return 0, err
		}
		pause := time.NewTimer(firstPause << (f.broken - 1))
		select {
		case <-pause.C:
		case <-f.ctx.Done():
			pause.Stop()
			return 0, err
		}
	}
}

// alive puts off a time-out whenever something comes.
type alive struct {
	io.Reader
	late *time.Timer
}

func (a alive) Read(p []byte) (int, error) {
	n, err := a.Reader.Read(p)
	if n > 0 {
		a.late.Reset(idleTime)
	}
	return n, err
}

// accept hands a batch over, and hears how far the log was taken over. It may take as
// long as the line lets something through.
func (u *upstream) accept(ctx context.Context, b gateway.Batch) (position string, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	late := time.AfterFunc(idleTime, func() { cancel(fault.New(fault.Timeout, "no data sent for %s", idleTime)) })
	defer late.Stop()
	a, err := u.do(ctx, http.MethodPost, "/hand-over", url.Values{
		"deployment": {b.Deployment}, "id": {string(b.DeploymentID)}, "instance": {b.Instance}, "from": {b.From}, "to": {b.To}, "clock": {b.Clock.UTC().Format(time.RFC3339Nano)},
	}, "application/octet-stream", alive{bytes.NewReader(b.Records), late})
	if err != nil {
		return "", err
	}
	defer func() { _ = a.Body.Close() }()
	var got struct {
		Position string `json:"position"`
	}
	if err := json.NewDecoder(io.LimitReader(a.Body, 64<<10)).Decode(&got); err != nil {
		return "", fault.New(fault.Unavailable, "the response cannot be parsed: %w", err)
	}
	return got.Position, nil
}
