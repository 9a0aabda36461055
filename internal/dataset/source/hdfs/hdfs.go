// Package hdfs reads files of HDFS by WebHDFS, from name nodes and the data nodes that
// these redirect to, or from a gateway that speaks it (HttpFS).
//
// Of several name nodes the one that is active answers. A file whose connection breaks
// is read on from where it broke, from whichever data node has it. Requests go to hosts
// that the configuration names, wherever a name node redirects to, and never from TLS
// to none. Source: "WebHDFS REST API" of Hadoop 3.4.
package hdfs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"path"
	"strconv"
	"strings"

	"github.com/falaj-ml/falaj/internal/dataset/source"
	"github.com/falaj-ml/falaj/internal/dataset/source/objects"
	"github.com/falaj-ml/falaj/internal/fault"
)

// Limits of a reading.
const (
	maxNameNodes = 8
	maxListing   = 64 << 20 // bytes of an answer about one directory
	maxSaid      = 64 << 10 // bytes of an answer that refuses
	maxRedirects = 3
	maxBroken    = 3 // connections of one file that break with nothing read in between
)

// Driver implements source.Driver.
type Driver struct{}

var _ source.Driver = Driver{}

// Check implements source.Driver.
func (Driver) Check(r source.Request) error {
	o := *r.From.HDFS
	bad := func(field, format string, args ...any) *fault.Error {
		return fault.New(fault.Invalid, "spec.from.hdfs.%s: %s", field, fmt.Sprintf(format, args...))
	}
	if n := len(o.NameNodes); n == 0 || n > maxNameNodes {
		return bad("namenodes", "1 to %d are required, and %d are given", maxNameNodes, n).WithHint("Write [namenode.example.com:9871].")
	}
	for _, n := range o.NameNodes {
		if n == "" || strings.ContainsAny(n, "/ @?#") {
			return bad("namenodes", "%q is not host or host:port", n)
		}
	}
	if !path.IsAbs(o.Directory) || path.Clean(o.Directory) != o.Directory {
		return bad("directory", "%q is not an absolute path such as /data/orders", o.Directory)
	}
	if err := source.CheckTLS("spec.from.hdfs.tls", o.TLS); err != nil {
		return err
	}
	if err := objects.Check("hdfs", o.Match, o.Format, r); err != nil {
		return err
	}
	for _, n := range o.NameNodes {
		if err := r.Access.Allowed(address(o, n)); err != nil {
			return err
		}
	}
	return nil
}

// address is a name node's, by the port that Hadoop has when none is written.
func address(o source.HDFS, node string) string {
	if _, _, err := net.SplitHostPort(node); err == nil {
		return node
	}
	if o.TLS == source.TLSOff {
		return node + ":9870"
	}
	return node + ":9871"
}

// Open implements source.Driver.
func (Driver) Open(ctx context.Context, r source.Request) (source.Reader, error) {
	o := *r.From.HDFS
	secure, err := source.TLS(o.TLS, "", r.Secret) // the name of each host that answers
	if err != nil {
		return nil, err
	}
	b := &bucket{o: o, transport: r.Access.Transport(secure), who: url.Values{}, scheme: "https"}
	if secure == nil {
		b.scheme = "http"
	}
	switch token, user := r.Secret["token"].Reveal(), r.Secret["username"].Reveal(); {
	case token != "":
		b.who.Set("delegation", token)
	case user != "":
		b.who.Set("user.name", user)
	}
	return objects.Open(ctx, b, o.Format, r)
}

type bucket struct {
	o         source.HDFS
	scheme    string
	who       url.Values // who asks, in each query
	transport *http.Transport
	active    int // the name node that answered last
}

// status is what WebHDFS says of a file: a FileStatus.
type status struct {
	Name     string `json:"pathSuffix"`
	Type     string `json:"type"`
	Length   int64  `json:"length"`
	Modified int64  `json:"modificationTime"`
	ID       int64  `json:"fileId"`
}

// tag tells one state from another: a file that takes the place of another has an ID of
// its own.
func (s status) tag() string { return fmt.Sprintf("%d-%d-%d", s.ID, s.Length, s.Modified) }

// List implements objects.Bucket.
func (b *bucket) List(ctx context.Context) (objects.Listing, error) {
	match := b.o.Match
	if match == "" {
		match = "*"
	}
	levels := strings.Split(match, "/")
	out := objects.Listing{}
	for dirs, asked := []string{""}, 0; len(dirs) > 0; asked++ {
		dir := dirs[0]
		dirs = dirs[1:]
		if asked > objects.MaxFiles {
			return nil, fault.New(fault.TooLarge, "there are more than %d directories", objects.MaxFiles).WithHint("Narrow spec.from.hdfs.directory or match.")
		}
		if err := b.list(ctx, dir, func(s status) error {
			name := path.Join(dir, s.Name)
			if s.Name == "" {
				return fault.New(fault.Invalid, "%s is a file", b.o.Directory).WithHint("Set spec.from.hdfs.directory to its directory, and match to its name.")
			}
			if hidden(s.Name) {
				return nil
			}
			depth := strings.Count(name, "/") + 1
			switch s.Type {
			case "DIRECTORY":
				if ok, _ := path.Match(strings.Join(levels[:min(depth, len(levels))], "/"), name); ok && depth < len(levels) {
					dirs = append(dirs, name)
				}
			case "FILE":
				if objects.Match(b.o.Match, name) {
					out[name] = s.tag()
				}
			}
			if max(len(out), len(dirs)) > objects.MaxFiles {
				return fault.New(fault.TooLarge, "there are more than %d files or directories", objects.MaxFiles).WithHint("Narrow spec.from.hdfs.directory or match.")
			}
			return nil
		}); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// hidden reports whether a name is no one's rows: Hadoop's programs pass over those
// that begin with a dot or an underline (_SUCCESS, _temporary), and its shell copies
// under a name that ends so. One with a slash is no name.
func hidden(name string) bool {
	return strings.HasPrefix(name, ".") || strings.HasPrefix(name, "_") || strings.HasSuffix(name, "._COPYING_") || strings.Contains(name, "/")
}

// list gives what is in a directory as it comes: who answers decides how much that is.
func (b *bucket) list(ctx context.Context, dir string, each func(status) error) error {
	return b.ask(ctx, "LISTSTATUS", dir, func(d *json.Decoder) error {
		return within(d, "FileStatuses", func() error {
			return within(d, "FileStatus", func() error {
				if err := expect(d, '['); err != nil {
					return err
				}
				for d.More() {
					var s status
					if err := d.Decode(&s); err != nil {
						return err
					}
					if err := each(s); err != nil {
						return err
					}
				}
				return expect(d, ']')
			})
		})
	})
}

// within reads a member of the object that comes next, and passes over the others.
func within(d *json.Decoder, name string, read func() error) error {
	if err := expect(d, '{'); err != nil {
		return err
	}
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return err
		}
		if key == name {
			err = read()
		} else {
			err = d.Decode(new(json.RawMessage))
		}
		if err != nil {
			return err
		}
	}
	return expect(d, '}')
}

func expect(d *json.Decoder, want json.Delim) error {
	got, err := d.Token()
	if err == nil && got != want {
		err = errOther
	}
	return err
}

// errOther is an answer in JSON that is not WebHDFS's.
var errOther = errors.New("another answer")

func (b *bucket) status(ctx context.Context, name string) (status, error) {
	var said struct {
		FileStatus status `json:"FileStatus"`
	}
	err := b.ask(ctx, "GETFILESTATUS", name, func(d *json.Decoder) error { return d.Decode(&said) })
	return said.FileStatus, err
}

// ask reads what a name node says of a path below the directory.
func (b *bucket) ask(ctx context.Context, op, name string, read func(*json.Decoder) error) error {
	res, err := b.call(ctx, op, name, nil)
	if err != nil {
		return err
	}
	defer func() { _ = res.Body.Close() }()
	limited := &io.LimitedReader{R: res.Body, N: maxListing}
	err = read(json.NewDecoder(limited))
	_, syntax := errors.AsType[*json.SyntaxError](err)
	_, typ := errors.AsType[*json.UnmarshalTypeError](err)
	host := res.Request.URL.Host
	switch {
	case err == nil, fault.KindOf(err) != fault.Internal:
		return err
	case limited.N <= 0:
		return fault.New(fault.TooLarge, "%s has too many files to list", path.Join(b.o.Directory, name)).WithHint("Narrow spec.from.hdfs.directory.")
	case syntax || typ || errors.Is(err, errOther):
		return fault.New(fault.Invalid, "the response of %s is not a WebHDFS response", host).
			WithHint("Check spec.from.hdfs.namenodes: use the port of the web server, usually 9871, or 9870 without TLS.")
	}
	return b.explain(host, err)
}

// call asks the name nodes, the one that answered last first, and follows where it
// redirects to. Close the answer's body.
func (b *bucket) call(ctx context.Context, op, name string, args url.Values) (res *http.Response, err error) {
	for range b.o.NameNodes {
		q := url.Values{"op": {op}}
		for _, more := range []url.Values{b.who, args} {
			maps.Copy(q, more)
		}
		u := &url.URL{Scheme: b.scheme, Host: address(b.o, b.o.NameNodes[b.active]), Path: path.Join("/webhdfs/v1", b.o.Directory, name), RawQuery: q.Encode()}
		res, err = b.get(ctx, u, path.Join(b.o.Directory, name))
		if err == nil || !fault.Is(err, fault.Unavailable) {
			return res, err
		}
		b.active = (b.active + 1) % len(b.o.NameNodes)
	}
	return nil, err
}

func (b *bucket) get(ctx context.Context, u *url.URL, name string) (*http.Response, error) {
	for range 1 + maxRedirects {
		q, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), http.NoBody)
		if err != nil {
			return nil, fault.New(fault.Invalid, "%s: the redirect has no address", name)
		}
		q.Header.Set("User-Agent", "falaj")
		res, err := b.transport.RoundTrip(q) // an http.Client says addresses that it cannot parse
		if err != nil {
			return nil, b.explain(u.Host, err)
		}
		if res.StatusCode == http.StatusOK {
			return res, nil
		}
		to, moved := res.Location()
		refused := b.refused(res, name)
		_ = res.Body.Close()
		switch {
		case res.StatusCode != http.StatusTemporaryRedirect || moved != nil:
			return nil, refused
		case to.Scheme != b.scheme || to.User != nil:
			return nil, fault.New(fault.Invalid, "%s redirects to %s over %s, which the source does not allow", u.Host, to.Host, to.Scheme).
				WithHint("Configure data nodes as name nodes: with TLS (dfs.http.policy), or with spec.from.hdfs.tls: off in a trusted network.")
		}
		u = to
	}
	return nil, fault.New(fault.Invalid, "%s redirects more than %d times", u.Host, maxRedirects)
}

// refused puts an answer other than 200 into words.
func (b *bucket) refused(res *http.Response, name string) error {
	host := res.Request.URL.Host
	var said struct {
		RemoteException struct {
			Exception string `json:"exception"`
			Message   string `json:"message"`
		} `json:"RemoteException"`
	}
	_ = json.NewDecoder(io.LimitReader(res.Body, maxSaid)).Decode(&said) // gateways answer in HTML
	what := said.RemoteException.Exception
	if what == "" {
		what = "status " + strconv.Itoa(res.StatusCode)
	}
	if text, _, _ := strings.Cut(said.RemoteException.Message, "\n"); text != "" {
		what += fmt.Sprintf(": %.300s", text)
	}
	switch code := res.StatusCode; {
	case said.RemoteException.Exception == "FileNotFoundException", code == http.StatusNotFound && said.RemoteException.Exception == "":
		return fault.New(fault.NotFound, "there is no %s at %s", name, host)
	case code >= 500, code == http.StatusTooManyRequests, code == http.StatusRequestTimeout:
		return fault.New(fault.Unavailable, "%s: %s", host, what)
	}
	switch said.RemoteException.Exception {
	case "StandbyException", "RetriableException", "SafeModeException", "IOException", "ConnectException", "BlockMissingException":
		return fault.New(fault.Unavailable, "%s: %s", host, what)
	}
	hint := "Check `username` or `token` (a delegation token) in the secret, and its read permissions."
	if strings.HasPrefix(res.Header.Get("WWW-Authenticate"), "Negotiate") {
		hint = "It requires Kerberos: put a delegation token into the secret as `token` (hdfs fetchdt --webservice …)."
	}
	return fault.New(fault.Invalid, "%s rejected the request: %s", host, what).WithHint("%s", hint)
}

// explain says what a network did.
func (b *bucket) explain(host string, err error) error {
	if errors.Is(err, context.Canceled) {
		return err
	}
	if said := source.Unreachable(host, err); said != nil {
		return said
	}
	return fault.New(fault.Unavailable, "%s: %w", host, err)
}

// Open implements objects.Bucket.
func (b *bucket) Open(ctx context.Context, name string) (io.ReadCloser, string, error) {
	s, err := b.status(ctx, name)
	if err != nil {
		return nil, "", err
	}
	if s.Type != "FILE" {
		return nil, "", fault.New(fault.Invalid, "%s is not a regular file", name)
	}
	f := &file{b: b, name: name, was: s}
	f.ctx, f.cancel = context.WithCancel(ctx)
	if err := f.open(); err != nil {
		f.cancel()
		return nil, "", err
	}
	return f, s.tag(), nil
}

// file is read up to the length that it had, and has not been read when it was changed
// meanwhile.
type file struct {
	b      *bucket
	ctx    context.Context //nolint:containedctx // of one file
	cancel context.CancelFunc
	name   string
	was    status

	at     int64
	body   io.ReadCloser
	host   string
	broken int
}

// open asks for what was not read yet.
func (f *file) open() error {
	if f.at >= f.was.Length { // an empty file has no offset to ask for
		return nil
	}
	res, err := f.b.call(f.ctx, "OPEN", f.name, url.Values{"offset": {strconv.FormatInt(f.at, 10)}, "length": {strconv.FormatInt(f.was.Length-f.at, 10)}}) //nolint:bodyclose // Read closes it
	if err != nil {
		return err
	}
	f.body, f.host = res.Body, res.Request.URL.Host
	return nil
}

func (f *file) Read(p []byte) (int, error) {
	for {
		left := f.was.Length - f.at
		if left <= 0 {
			if err := f.same(); err != nil {
				return 0, err
			}
			return 0, io.EOF
		}
		n, err := f.body.Read(p[:min(int64(len(p)), left)])
		if n > 0 {
			f.at, f.broken = f.at+int64(n), 0
			return n, nil // an error comes again
		}
		if err == nil {
			return 0, nil
		}
		if f.ctx.Err() != nil {
			return 0, f.ctx.Err()
		}
		_ = f.body.Close()
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		if f.broken++; f.broken > maxBroken {
			return 0, f.b.explain(f.host, err)
		}
		if err := f.same(); err != nil {
			return 0, err
		}
		if err := f.open(); err != nil {
			return 0, err
		}
	}
}

// same refuses a file that is not as it was.
func (f *file) same() error {
	now, err := f.b.status(f.ctx, f.name)
	if fault.Is(err, fault.NotFound) || err == nil && now.tag() != f.was.tag() {
		return objects.Changed(f.name)
	}
	return err
}

// Close ends what is being asked, also while another goroutine reads.
func (f *file) Close() error {
	f.cancel()
	return nil
}

// Close implements objects.Bucket.
func (b *bucket) Close() error {
	b.transport.CloseIdleConnections()
	return nil
}
