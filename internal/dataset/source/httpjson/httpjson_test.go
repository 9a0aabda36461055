package httpjson_test

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/dataset/source"
	"github.com/falaj-ml/falaj/internal/dataset/source/httpjson"
	"github.com/falaj-ml/falaj/internal/dataset/source/sourcetest"
	"github.com/falaj-ml/falaj/internal/dataset/table"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/secrets"
)

const token = "canary-http-token"

type record struct {
	ID   int     `json:"id"`
	Name *string `json:"name"`
}

// service gives records, three a page, in each of the ways that services have.
type service struct {
	*httptest.Server
	mu      sync.Mutex
	records []record
	asked   []*http.Request
}

func newService(t *testing.T, n int) *service {
	t.Helper()
	s := &service{}
	for i := range n {
		r := record{ID: i}
		if i%3 > 0 {
			r.Name = new("n" + strconv.Itoa(i))
		}
		s.records = append(s.records, r)
	}
	s.Server = httptest.NewServer(s)
	t.Cleanup(s.Close)
	return s
}

func (s *service) want(from int) (rows []sourcetest.Row) {
	for _, r := range s.records[from:] {
		name := "null"
		if r.Name != nil {
			name = *r.Name
		}
		rows = append(rows, fmt.Sprintf("%d|%s", r.ID, name))
	}
	return rows
}

func (s *service) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	s.mu.Lock()
	s.asked = append(s.asked, q)
	s.mu.Unlock()
	query := q.URL.Query()
	at, _ := strconv.Atoi(query.Get("after"))
	if p := query.Get("page"); p != "" {
		n, _ := strconv.Atoi(p)
		first := 1
		if q.URL.Path == "/counted-from-0" {
			first = 0
		}
		at = 3 * (n - first)
	}
	if q.URL.Path == "/counted-or-404" && at >= len(s.records) {
		http.NotFound(w, q)
		return
	}
	to := min(at+3, len(s.records))
	if q.URL.Path == "/whole" {
		to = len(s.records)
	}
	some := s.records[min(at, to):to]
	next := func(path string) string { return path + "?size=3&after=" + strconv.Itoa(to) }
	more := to < len(s.records)
	var doc any = some
	switch q.URL.Path {
	case "/token":
		meta := map[string]any{"next": nil}
		if more {
			meta["next"] = to // a number
		}
		doc = map[string]any{"data": map[string]any{"items": some}, "meta": meta}
	case "/address", "/relative":
		d := map[string]any{"items": some}
		if more {
			d["next"] = next("")
			if q.URL.Path == "/address" {
				d["next"] = next("http://" + q.Host + "/address")
			}
		}
		doc = d
	case "/link":
		if more {
			w.Header().Add("Link", fmt.Sprintf(`<http://%s/link?after=0>; rel="first", <%s>; rel="next"`, q.Host, next("/link")))
		}
	}
	if err := json.NewEncoder(w).Encode(doc); err != nil {
		panic(err)
	}
}

func request(at string, change func(o *source.HTTP)) source.Request {
	u, err := url.Parse(at)
	if err != nil {
		panic(err)
	}
	o := &source.HTTP{URL: at, TLS: source.TLSOff}
	if change != nil {
		change(o)
	}
	return source.Request{
		From: source.From{HTTP: o}, Mode: source.Full, BatchRows: 2, Parser: sourcetest.Parser{}, Access: source.Access{Hosts: []string{u.Host}},
		Secret: map[string]secrets.Text{"token": secrets.NewText(token)},
	}
}

// A page that is not found is the end only where nothing says otherwise.
func TestCountedPagesNotFound(t *testing.T) {
	s := newService(t, 9)
	asked := map[int]int{} // by page, from 1
	var gone func(page, asked int) bool
	flaky := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		page, _ := strconv.Atoi(q.URL.Query().Get("page"))
		s.mu.Lock()
		asked[page]++
		found := page <= 3 && !gone(page, asked[page])
		s.mu.Unlock()
		if !found {
			http.NotFound(w, q)
			return
		}
		s.ServeHTTP(w, q)
	}))
	defer flaky.Close()
	for name, c := range map[string]struct {
		gone func(page, asked int) bool
		rows int
		want string
	}{
		"never":       {func(int, int) bool { return false }, 9, ""},
		"for once":    {func(page, asked int) bool { return page == 2 && asked == 1 }, 9, ""},
		"for a while": {func(page, asked int) bool { return page == 2 || page == 1 && asked > 1 }, 0, "returned 404 for page 2, and page 1 does not exist either"},
		"one only":    {func(page, _ int) bool { return page == 2 }, 0, "returned 404 for page 2, and page 3 exists"},
	} {
		clear(asked)
		gone = c.gone
		r := request(flaky.URL+"/counted", func(o *source.HTTP) { o.Parameter = "page" })
		rows, err := count(t.Context(), r)
		switch {
		case c.want != "":
			if !fault.Is(err, fault.Unavailable) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s: %d rows, %v", name, rows, err)
			}
		case err != nil || rows != c.rows:
			t.Errorf("%s: %d rows, %v", name, rows, err)
		}
	}
}

// count reads to the end.
func count(ctx context.Context, r source.Request) (rows int, err error) {
	reader, err := httpjson.Driver{}.Open(ctx, r)
	if err != nil {
		return 0, err
	}
	defer func() { _ = reader.Close() }()
	for {
		rec, _, err := reader.Next(ctx)
		if errors.Is(err, io.EOF) {
			return rows, nil
		}
		if err != nil {
			return rows, err
		}
		rows += int(rec.NumRows())
		rec.Release()
	}
}

func TestPages(t *testing.T) {
	s := newService(t, 10)
	for path, change := range map[string]func(o *source.HTTP){
		"/token":                  func(o *source.HTTP) { o.Records, o.Next, o.Parameter = "data.items", "meta.next", "after" },
		"/address":                func(o *source.HTTP) { o.Records, o.Next = "items", "next" },
		"/relative":               func(o *source.HTTP) { o.Records, o.Next = "items", "next" },
		"/link":                   nil,
		"/counted":                func(o *source.HTTP) { o.Parameter = "page" },
		"/counted-or-404":         func(o *source.HTTP) { o.Parameter = "page" },
		"/counted-from-0?page=0":  func(o *source.HTTP) { o.Parameter = "page" },
		"/whole?with=a+parameter": nil,
	} {
		t.Run(path, func(t *testing.T) {
			want := s.want(0)
			r := request(s.URL+path, change)
			rows, _, _, schema := sourcetest.ReadAll(t, httpjson.Driver{}, r)
			if !slices.Equal(rows, want) || schema[0].Type != table.Int64 || schema[1].Type != table.String {
				t.Fatalf("read %v (%v), want %v", rows, schema, want)
			}
			r.BatchRows = 1
			_, until, after, _ := sourcetest.ReadAll(t, httpjson.Driver{}, r)
			for i, at := range after {
				again := r
				again.Resume, again.Until, again.Begun = at, until, true
				rest, ends, _, _ := sourcetest.ReadAll(t, httpjson.Driver{}, again)
				if !slices.Equal(rest, want[i+1:]) || string(ends) != string(until) {
					t.Errorf("after row %d: %v, to %s", i, rest, ends)
				}
			}
		})
	}
	for _, q := range s.asked {
		if q.Header.Get("Authorization") != "Bearer "+token {
			t.Fatalf("%s was asked for without the token", q.URL)
		}
	}
	t.Run("a page that became shorter", func(t *testing.T) {
		r := request(s.URL+"/link", nil)
		_, until, after, _ := sourcetest.ReadAll(t, httpjson.Driver{}, r)
		s.records = s.records[:1]
		r.Resume, r.Until, r.Begun = after[1], until, true
		sourcetest.Refused(t, httpjson.Driver{}, r, fault.Conflict, "fewer rows")
	})
}

func TestSince(t *testing.T) {
	s := newService(t, 3)
	r := request(s.URL+"/whole", func(o *source.HTTP) { o.Since = "changed_since" })
	r.Mode, r.Key = source.Incremental, []string{"id"}
	since := func() time.Time {
		t.Helper()
		text := s.asked[len(s.asked)-1].URL.Query().Get("changed_since")
		if text == "" {
			return time.Time{}
		}
		at, err := time.Parse(time.RFC3339, text)
		if err != nil {
			t.Fatal(err)
		}
		return at
	}
	_, until, _, _ := sourcetest.ReadAll(t, httpjson.Driver{}, r)
	if !since().IsZero() {
		t.Errorf("the first run asks for rows since %s", since())
	}
	r.After = until
	_, _, _, _ = sourcetest.ReadAll(t, httpjson.Driver{}, r)
	usual := since()
	r.Overlap = "1h"
	_, _, _, _ = sourcetest.ReadAll(t, httpjson.Driver{}, r)
	if usual.IsZero() || usual.Sub(since()) != time.Hour-httpjson.Overlap {
		t.Errorf("since %s, and with an overlap of an hour since %s", usual, since())
	}
}

// pages is a service that gives these documents at /1, /2 and so on, and says so.
func pages(t *testing.T, docs ...string) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		n, _ := strconv.Atoi(q.URL.Path[1:])
		if n < len(docs) {
			w.Header().Set("Link", fmt.Sprintf("</%d>; rel=next", n+1))
		}
		_, _ = w.Write([]byte(docs[n-1]))
	}))
	t.Cleanup(s.Close)
	return s
}

// last reads until the reading fails.
func last(ctx context.Context, r source.Request) error {
	in, err := httpjson.Driver{}.Open(ctx, r)
	for err == nil {
		rec, _, nerr := in.Next(ctx)
		if rec != nil {
			rec.Release()
		}
		err = nerr
	}
	if in != nil {
		_ = in.Close()
	}
	return err
}

func TestPagesHaveTheColumnsOfTheFirst(t *testing.T) {
	s := pages(t, `[{"id": 1, "name": "x"}]`, `[]`, `[{"name": null, "id": 2}]`, `[{"id": 3}]`)
	rows, _, _, _ := sourcetest.ReadAll(t, httpjson.Driver{}, request(s.URL+"/1", nil))
	if !slices.Equal(rows, []string{"1|x", "2|null", "3|null"}) {
		t.Errorf("read %v", rows)
	}
	for doc, words := range map[string]string{
		`[{"id": 2, "more": 1}]`: `"more"`, `[{"id": "canary"}]`: `column "id"`, `{}`: "no list", `[1]`: "object", `{`: "not valid JSON", `<html>`: "not valid JSON",
	} {
		s := pages(t, `[{"id": 1, "name": "x"}]`, doc)
		if err := last(t.Context(), request(s.URL+"/1", nil)); !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), "page 2") || !strings.Contains(err.Error(), words) || strings.Contains(err.Error(), "canary") {
			t.Errorf("%s: %v (%v)", doc, err, fault.KindOf(err))
		}
	}
	s = pages(t, `[{"id": 1}]`, `[{"id": 2, "more": 1}]`)
	r := request(s.URL+"/1", nil)
	r.Declared = []source.Column{{Name: "more", Type: table.Int64}}
	if rows, _, _, _ := sourcetest.ReadAll(t, httpjson.Driver{}, r); !slices.Equal(rows, []string{"null|1", "1|2"}) {
		t.Errorf("read %v", rows)
	}
}

func TestOtherHosts(t *testing.T) {
	other := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, q *http.Request) { t.Errorf("another host was asked for %s", q.URL) }))
	t.Cleanup(other.Close)
	at, _ := url.Parse(other.URL)
	var s *httptest.Server
	s = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		next := other.URL
		switch q.URL.Path {
		case "/redirect":
			http.Redirect(w, q, other.URL, http.StatusFound)
			return
		case "/here":
			http.Redirect(w, q, "/there", http.StatusFound)
			return
		case "/loop":
			http.Redirect(w, q, "/loop", http.StatusFound)
			return
		case "/there":
			if q.Header.Get("X-Api-Key") != token {
				w.WriteHeader(http.StatusForbidden)
				return
			}
			next = ""
		case "/itself":
			next = s.URL + "/itself"
		case "/user":
			next = strings.Replace(s.URL, "//", "//user:word@", 1)
		case "/file":
			next = "file:///etc/passwd"
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"items": []any{map[string]any{"id": 1}}, "next": next})
	}))
	t.Cleanup(s.Close)
	ask := func(path string) error {
		r := request(s.URL+path, func(o *source.HTTP) { o.Records, o.Next, o.Header = "items", "next", "X-API-Key" })
		r.Access.Hosts = append(r.Access.Hosts, at.Host) // that it is allowed is no reason to go
		return last(t.Context(), r)
	}
	for _, path := range []string{"/redirect", "/next", "/file", "/user", "/itself", "/loop"} {
		if err := ask(path); !fault.Is(err, fault.Invalid) || strings.Contains(err.Error(), token) {
			t.Errorf("%s: %v (%v)", path, err, fault.KindOf(err))
		}
	}
	if err := ask("/here"); !errors.Is(err, io.EOF) {
		t.Errorf("a redirect at home: %v", err)
	}
}

func TestAnswersInWords(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		code, _ := strconv.Atoi(q.URL.Path[1:])
		w.WriteHeader(code)
		_, _ = w.Write([]byte(q.Header.Get("Authorization")))
	}))
	t.Cleanup(s.Close)
	for code, kind := range map[int]fault.Kind{
		401: fault.Invalid, 403: fault.Invalid, 404: fault.NotFound, 410: fault.NotFound, 400: fault.Invalid, 204: fault.Invalid, 304: fault.Invalid,
		408: fault.Unavailable, 429: fault.Unavailable, 500: fault.Unavailable, 503: fault.Unavailable,
	} {
		err := last(t.Context(), request(s.URL+"/"+strconv.Itoa(code), nil))
		if !fault.Is(err, kind) || !strings.Contains(err.Error(), strconv.Itoa(code)) || strings.Contains(err.Error(), token) {
			t.Errorf("%d: %v (%v)", code, err, fault.KindOf(err))
		}
	}
	for name, c := range map[string]struct {
		kind   fault.Kind
		change func(r *source.Request)
	}{
		"no address":                {fault.Invalid, func(r *source.Request) { r.From.HTTP.URL = "orders" }},
		"another protocol":          {fault.Invalid, func(r *source.Request) { r.From.HTTP.URL = "file:///etc/passwd" }},
		"credentials":               {fault.Invalid, func(r *source.Request) { r.From.HTTP.URL = strings.Replace(s.URL, "//", "//me:word@", 1) }},
		"in the clear":              {fault.Invalid, func(r *source.Request) { r.From.HTTP.TLS = "" }},
		"encrypted, and not":        {fault.Invalid, func(r *source.Request) { r.From.HTTP.URL = strings.Replace(s.URL, "http:", "https:", 1) }},
		"a header that is none":     {fault.Invalid, func(r *source.Request) { r.From.HTTP.Header = "X: Y" }},
		"incremental without since": {fault.Invalid, func(r *source.Request) { r.Mode, r.Key = source.Incremental, []string{"id"} }},
		"since without a key":       {fault.Invalid, func(r *source.Request) { r.Mode, r.From.HTTP.Since = source.Incremental, "since" }},
		"since, and full":           {fault.Invalid, func(r *source.Request) { r.From.HTTP.Since = "since" }},
		"an overlap that is none": {fault.Invalid, func(r *source.Request) {
			r.Mode, r.Key, r.From.HTTP.Since, r.Overlap = source.Incremental, []string{"id"}, "since", "5"
		}},
		"a cursor":                   {fault.Invalid, func(r *source.Request) { r.Cursor = "id" }},
		"changes without a key":      {fault.Invalid, func(r *source.Request) { r.Mode = source.Changes }},
		"a host that is not allowed": {fault.PermissionDenied, func(r *source.Request) { r.Access.Hosts = []string{"elsewhere"} }},
		"nobody listens": {fault.Unavailable, func(r *source.Request) {
			r.From.HTTP.URL, r.Access.Hosts = "http://127.0.0.1:1/", []string{"127.0.0.1"}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			r := request(s.URL+"/404", nil)
			c.change(&r)
			sourcetest.Refused(t, httpjson.Driver{}, r, c.kind)
		})
	}
}

func TestTLS(t *testing.T) {
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		if user, word, _ := q.BasicAuth(); user != "reader" || word != "canary-word" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		_, _ = w.Write([]byte(`[{"id": 1}]`))
	}))
	t.Cleanup(s.Close)
	r := request(s.URL, func(o *source.HTTP) { o.TLS = "" })
	r.Secret = map[string]secrets.Text{"username": secrets.NewText("reader"), "password": secrets.NewText("canary-word")}
	if err := last(t.Context(), r); !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), "not trusted") {
		t.Errorf("an authority that is unknown: %v", err)
	}
	r.Secret["ca"] = secrets.NewText(string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})))
	if rows, _, _, _ := sourcetest.ReadAll(t, httpjson.Driver{}, r); !slices.Equal(rows, []string{"1"}) {
		t.Errorf("read %v", rows)
	}
}

func TestWhoeverDoesNotAnswerIsLeft(t *testing.T) {
	for _, begins := range []string{"", `[{"id"`} {
		t.Run("after "+strconv.Quote(begins), func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
				if begins != "" {
					_, _ = w.Write([]byte(begins))
					_ = http.NewResponseController(w).Flush()
				}
				cancel() // the caller's
				<-q.Context().Done()
			}))
			t.Cleanup(s.Close)
			if err := last(ctx, request(s.URL, nil)); !errors.Is(err, context.Canceled) {
				t.Errorf("%v", err)
			}
		})
	}
}
