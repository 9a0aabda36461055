package hdfs_test

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/falaj-ml/falaj/internal/dataset/source"
	"github.com/falaj-ml/falaj/internal/dataset/source/hdfs"
	"github.com/falaj-ml/falaj/internal/dataset/source/sourcetest"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/secrets"
)

// cluster answers as Hadoop's documentation of WebHDFS says.
type cluster struct {
	mu    sync.Mutex
	files map[string]stored
	ids   int64
	asked []string // queries of the name node
	cut   int      // bytes after which an answer of the data node breaks; 0 is never
	cuts  int      // how often it does

	name, data *httptest.Server
	redirect   string // instead of the data node
}

type stored struct {
	id      int64
	content []byte
}

func start(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{files: map[string]stored{}}
	c.name, c.data = httptest.NewServer(http.HandlerFunc(c.node)), httptest.NewServer(http.HandlerFunc(c.blocks))
	t.Cleanup(c.name.Close)
	t.Cleanup(c.data.Close)
	return c
}

func said(w http.ResponseWriter, code int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(v)
}

func refuse(w http.ResponseWriter, code int, exception string) {
	said(w, code, map[string]any{"RemoteException": map[string]string{"exception": exception, "javaClassName": "org.apache.hadoop." + exception, "message": "canary of " + exception}})
}

func (s stored) status(name string) map[string]any {
	return map[string]any{"pathSuffix": name, "type": "FILE", "length": len(s.content), "modificationTime": 1700000000000, "fileId": s.id}
}

func (c *cluster) node(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	q := r.URL.Query()
	c.asked = append(c.asked, r.URL.RawQuery)
	at, ok := strings.CutPrefix(r.URL.Path, "/webhdfs/v1")
	if !ok || r.Method != http.MethodGet {
		http.Error(w, "<html>not here</html>", http.StatusBadRequest)
		return
	}
	if q.Get("user.name") == "stranger" {
		refuse(w, http.StatusForbidden, "AccessControlException")
		return
	}
	file, there := c.files[at]
	switch op := q.Get("op"); {
	case op == "LISTSTATUS":
		list := []map[string]any{}
		dirs := map[string]bool{}
		for name, s := range c.files {
			rest, below := strings.CutPrefix(name, at+"/")
			first, _, deeper := strings.Cut(rest, "/")
			switch {
			case name == at:
				list = append(list, s.status(""))
			case below && deeper:
				dirs[first] = true
			case below:
				list = append(list, s.status(first))
			}
		}
		for _, d := range slices.Sorted(maps.Keys(dirs)) {
			list = append(list, map[string]any{"pathSuffix": d, "type": "DIRECTORY"})
		}
		if len(list) == 0 && at != "/data/in" {
			refuse(w, http.StatusNotFound, "FileNotFoundException")
			return
		}
		said(w, http.StatusOK, map[string]any{"FileStatuses": map[string]any{"FileStatus": list}})
	case !there:
		refuse(w, http.StatusNotFound, "FileNotFoundException")
	case op == "GETFILESTATUS":
		said(w, http.StatusOK, map[string]any{"FileStatus": file.status("")})
	case op == "OPEN":
		to := c.data.URL + r.URL.EscapedPath() + "?" + r.URL.RawQuery
		if c.redirect != "" {
			to = c.redirect
		}
		http.Redirect(w, r, to, http.StatusTemporaryRedirect)
	default:
		refuse(w, http.StatusBadRequest, "IllegalArgumentException")
	}
}

func (c *cluster) blocks(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	q := r.URL.Query()
	content := c.files[strings.TrimPrefix(r.URL.Path, "/webhdfs/v1")].content
	offset, err := strconv.Atoi(q.Get("offset"))
	length, failed := strconv.Atoi(q.Get("length"))
	if err != nil || failed != nil || offset < 0 || offset+length > len(content) || r.Header.Get("Referer") != "" {
		refuse(w, http.StatusForbidden, "IOException")
		return
	}
	body := content[offset : offset+length]
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.Header().Set("Connection", "close")
	if c.cut > 0 && c.cuts > 0 && len(body) > c.cut {
		c.cuts--
		_, _ = w.Write(body[:c.cut])
		panic(http.ErrAbortHandler)
	}
	_, _ = w.Write(body)
}

func (c *cluster) put(name string, content []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ids++
	c.files[name] = stored{id: c.ids, content: content}
}

func host(s *httptest.Server) string { return s.Listener.Addr().String() }

func (c *cluster) request(match string, f source.Format) source.Request {
	return source.Request{
		From:   source.From{HDFS: &source.HDFS{NameNodes: []string{host(c.name)}, Directory: "/data/in", Match: match, Format: f, TLS: source.TLSOff}},
		Access: source.Access{Hosts: []string{host(c.name), host(c.data)}},
	}
}

func TestObjects(t *testing.T) {
	sourcetest.Objects(t, func(t *testing.T) sourcetest.Bucket {
		t.Helper()
		c := start(t)
		c.put("/data/elsewhere.csv", []byte("id,name\n95,no\n"))
		c.put("/data/in/_SUCCESS", nil)
		c.put("/data/in/_temporary/0/part.csv", []byte("id,name\n94,no\n"))
		c.put("/data/in/a.csv._COPYING_", []byte("id,name\n93,no\n"))
		return sourcetest.Bucket{
			Driver: hdfs.Driver{}, Request: c.request,
			Put: func(_ *testing.T, name string, content []byte) { c.put(path.Join("/data/in", name), content) },
			Remove: func(_ *testing.T, name string) {
				c.mu.Lock()
				defer c.mu.Unlock()
				delete(c.files, path.Join("/data/in", name))
			},
		}
	})
}

func full(c *cluster) source.Request {
	r := c.request("", "")
	r.Mode, r.BatchRows, r.Parser = source.Full, 1000, sourcetest.Parser{}
	return r
}

func TestRefused(t *testing.T) {
	c := start(t)
	c.put("/data/in/a.csv", []byte("id\n1\n"))
	html := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "<html>") }))
	defer html.Close()
	kerberos := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("WWW-Authenticate", "Negotiate")
		w.WriteHeader(http.StatusUnauthorized)
	}))
	defer kerberos.Close()
	away := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) }))
	defer away.Close()
	at := func(s *httptest.Server) func(r *source.Request) {
		return func(r *source.Request) {
			r.From.HDFS.NameNodes, r.Access.Hosts = []string{host(s)}, []string{"127.0.0.1"}
		}
	}
	for name, w := range map[string]struct {
		kind   fault.Kind
		words  string
		change func(r *source.Request)
	}{
		"no name node":               {fault.Invalid, "namenodes", func(r *source.Request) { r.From.HDFS.NameNodes = nil }},
		"an address":                 {fault.Invalid, "namenodes", func(r *source.Request) { r.From.HDFS.NameNodes = []string{"http://x"} }},
		"a path that is not whole":   {fault.Invalid, "directory", func(r *source.Request) { r.From.HDFS.Directory = "data" }},
		"a path that leads up":       {fault.Invalid, "directory", func(r *source.Request) { r.From.HDFS.Directory = "/data/../x" }},
		"an unknown way of TLS":      {fault.Invalid, "tls", func(r *source.Request) { r.From.HDFS.TLS = "maybe" }},
		"a host that is not allowed": {fault.PermissionDenied, "sources.hosts", func(r *source.Request) { r.Access.Hosts = []string{host(c.data)} }},
		"a data node that is not":    {fault.PermissionDenied, host(c.data), func(r *source.Request) { r.Access.Hosts = []string{host(c.name)} }},
		"a directory that is not":    {fault.NotFound, "/data/nix", func(r *source.Request) { r.From.HDFS.Directory = "/data/nix" }},
		"a file":                     {fault.Invalid, "is a file", func(r *source.Request) { r.From.HDFS.Directory = "/data/in/a.csv" }},
		"who may not":                {fault.Invalid, "username", func(r *source.Request) { r.Secret = map[string]secrets.Text{"username": secrets.NewText("stranger")} }},
		"another server":             {fault.Invalid, "WebHDFS", at(html)},
		"Kerberos":                   {fault.Invalid, "delegation token", at(kerberos)},
		"away for now":               {fault.Unavailable, "503", at(away)},
		"nobody listens": {fault.Unavailable, "127.0.0.1:1", func(r *source.Request) {
			r.From.HDFS.NameNodes, r.Access.Hosts = []string{"127.0.0.1:1"}, []string{"127.0.0.1"}
		}},
		"no TLS there": {fault.Unavailable, "", func(r *source.Request) { r.From.HDFS.TLS = source.TLSVerify }},
	} {
		t.Run(name, func(t *testing.T) {
			r := full(c)
			w.change(&r)
			sourcetest.Refused(t, hdfs.Driver{}, r, w.kind, w.words)
		})
	}
	c.redirect = "https://" + host(c.data) + "/webhdfs/v1/data/in/a.csv"
	sourcetest.Refused(t, hdfs.Driver{}, full(c), fault.Invalid, "redirects", "dfs.http.policy")
}

// The secret alone says who asks, and a token is in no error.
func TestWhoAsks(t *testing.T) {
	for secret, want := range map[string]string{"": "", "username": "user.name=canary", "token": "delegation=canary"} {
		c := start(t)
		c.put("/data/in/a.csv", []byte("id\n1\n"))
		r := full(c)
		r.Secret = map[string]secrets.Text{secret: secrets.NewText("canary")}
		if rows, _, _, _ := sourcetest.ReadAll(t, hdfs.Driver{}, r); len(rows) != 1 {
			t.Errorf("%q: read %v", secret, rows)
		}
		for _, q := range c.asked {
			v, _ := url.ParseQuery(q)
			if got := v.Get("user.name") + v.Get("delegation"); (got != "") != (want != "") || !strings.Contains(q, want) {
				t.Errorf("%q: asked by %s, want %s", secret, q, want)
			}
		}
		silent := func(kind fault.Kind) {
			t.Helper()
			_, err := hdfs.Driver{}.Open(t.Context(), r)
			if !fault.Is(err, kind) || strings.Contains(err.Error()+fault.HintOf(err), "canary") {
				t.Errorf("%q: %v", secret, err)
			}
		}
		c.redirect = c.data.URL + "/100%.csv?" + want // no address, and with the token
		silent(fault.Invalid)
		c.redirect = ""
		c.data.Close()
		silent(fault.Unavailable)
	}
}

// Who answers does not decide how much is held: what cannot be used is refused when it
// comes, with the rest unread.
func TestEndlessListing(t *testing.T) {
	for _, list := range []struct {
		kind  fault.Kind
		entry func(n int) string
	}{
		{fault.Invalid, func(int) string { return `{}` }},
		{fault.TooLarge, func(n int) string { return fmt.Sprintf(`{"pathSuffix":"d%d","type":"DIRECTORY"}`, n) }},
		{fault.TooLarge, func(n int) string { return fmt.Sprintf(`{"pathSuffix":"f%d.csv","type":"FILE"}`, n) }},
	} {
		var asked atomic.Int64
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			asked.Add(1)
			_, _ = io.WriteString(w, `{"FileStatuses":{"other":[],"FileStatus":[`+list.entry(0))
			for n := range 10_001 {
				_, _ = io.WriteString(w, ","+list.entry(n+1))
			}
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done() // its end never comes
		}))
		r := source.Request{
			From:   source.From{HDFS: &source.HDFS{NameNodes: []string{host(s)}, Directory: "/data/in", TLS: source.TLSOff}},
			Access: source.Access{Hosts: []string{"127.0.0.1"}},
		}
		r.From.HDFS.Match = "*.csv"
		if strings.Contains(list.entry(0), "DIRECTORY") {
			r.From.HDFS.Match = "*/x.csv"
		}
		r.Mode, r.BatchRows, r.Parser = source.Full, 1000, sourcetest.Parser{}
		sourcetest.Refused(t, hdfs.Driver{}, r, list.kind, "")
		s.Close()
		if n := asked.Load(); n != 1 {
			t.Errorf("%s: asked %d times", list.entry(0), n)
		}
	}
}

// Of two name nodes the one that is active answers, whichever is named first.
func TestStandby(t *testing.T) {
	c := start(t)
	c.put("/data/in/a.csv", []byte("id\n1\n"))
	standby := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { refuse(w, http.StatusForbidden, "StandbyException") }))
	defer standby.Close()
	for _, nodes := range [][]string{{host(standby), host(c.name)}, {host(c.name), host(standby)}, {"127.0.0.1:1", host(c.name)}} {
		r := full(c)
		r.From.HDFS.NameNodes, r.Access.Hosts = nodes, []string{"127.0.0.1"}
		if rows, _, _, _ := sourcetest.ReadAll(t, hdfs.Driver{}, r); !slices.Equal(rows, []string{"1"}) {
			t.Errorf("%v: read %v", nodes, rows)
		}
	}
	r := full(c)
	r.From.HDFS.NameNodes, r.Access.Hosts = []string{host(standby)}, []string{"127.0.0.1"}
	sourcetest.Refused(t, hdfs.Driver{}, r, fault.Unavailable, "StandbyException")
}

// A file whose connection breaks is read on from there, as long as something comes and
// it is the same file.
func TestConnectionsThatBreak(t *testing.T) {
	var content strings.Builder
	content.WriteString("id\n")
	for n := range 60_000 {
		fmt.Fprintln(&content, n)
	}
	c := start(t)
	c.put("/data/in/a.csv", []byte(content.String()))
	c.cut, c.cuts = content.Len()/5, 100
	rows, _, _, _ := sourcetest.ReadAll(t, hdfs.Driver{}, full(c))
	if len(rows) != 60_000 || c.cuts > 97 {
		t.Fatalf("read %d rows over %d breaks", len(rows), 100-c.cuts)
	}
	for n, row := range rows {
		if row != strconv.Itoa(n) {
			t.Fatalf("row %d is %s", n, row)
		}
	}

	ends := func(meanwhile func()) error {
		in, err := hdfs.Driver{}.Open(t.Context(), full(c))
		if err != nil {
			return err
		}
		defer in.Close()
		meanwhile()
		for err == nil {
			var rec arrow.RecordBatch
			if rec, _, err = in.Next(t.Context()); rec != nil {
				rec.Release()
			}
		}
		return err
	}
	c.put("/data/in/a.csv", []byte(strings.Repeat(content.String(), 20)))
	c.cut, c.cuts = content.Len(), 1
	if err := ends(func() { c.put("/data/in/a.csv", []byte("id\n1\n")) }); !fault.Is(err, fault.Conflict) {
		t.Errorf("a file that changed: %v", err)
	}
	c.put("/data/in/a.csv", []byte(strings.Repeat(content.String(), 20)))
	c.cut, c.cuts = content.Len(), 1
	if err := ends(c.data.Close); !fault.Is(err, fault.Unavailable) {
		t.Errorf("no data node: %v", err)
	}
}
