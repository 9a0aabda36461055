package mlflow

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/falaj-ml/falaj/client"
	"github.com/falaj-ml/falaj/internal/fault"
)

func TestMatches(t *testing.T) {
	for _, c := range []struct {
		pattern, name string
		want          bool
	}{
		{"delay", "delay", true},
		{"delay", "delays", false},
		{"delay*", "delays/2", true},
		{"/Users/*/x", "/Users/a@b.org/x", true},
		{"d?y", "day", true},
		{"d?y", "dy", false},
		{"a.b", "axb", false},
		{"[a]", "[a]", true},
		{"[a]", "a", false},
		{"*", "", true},
		{"a*", "a\nb", true},
	} {
		if got := matches(c.pattern, c.name); got != c.want {
			t.Errorf("matches(%q, %q) is %t", c.pattern, c.name, got)
		}
	}
}

func TestValues(t *testing.T) {
	b, err := json.Marshal(Series{Key: "k", Times: []int64{1}, Steps: []int64{math.MinInt64}, Values: Values{0.1, math.NaN(), math.Inf(1), math.Inf(-1), math.MaxFloat64, 5e-324}})
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"key":"k","timestamps":[1],"steps":[-9223372036854775808],"values":[0.1,"NaN","Infinity","-Infinity",1.7976931348623157e+308,5e-324]}`
	if string(b) != want {
		t.Errorf("got  %s\nwant %s", b, want)
	}
}

func TestPlain(t *testing.T) {
	for in, want := range map[string]string{
		"https://u:secret@host/x?token=s": "https://u@host/x", "postgres://u:secret@host/db?sslmode=off": "postgres://u@host/db", "mlflow.db": "mlflow.db",
		"postgres://u:secret@/db?host=/run/pg": "postgres://u@/db", "https://u:sec%ret@host/x?token=secret": "https://host/x", "https://u:se@c ret@host:x/y": "https://host:x/y",
	} {
		if got := Plain(in); got != want {
			t.Errorf("Plain(%q) is %q", in, got)
		}
	}
}

// TestRoots: a source's word leads to no file that the user did not name.
func TestRoots(t *testing.T) {
	dir, secret := t.TempDir(), t.TempDir()
	write := func(name string) {
		if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(filepath.Join(secret, "key"))
	write(filepath.Join(dir, "1/r/artifacts/model/a.txt"))
	if err := os.Symlink(secret, filepath.Join(dir, "1/r/artifacts/link")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(secret, "key"), filepath.Join(dir, "1/r/artifacts/key")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(secret, filepath.Join(dir, "out")); err != nil {
		t.Fatal(err)
	}
	r, err := openRoots([]string{dir})
	if err != nil {
		t.Fatal(err)
	}
	defer r.close()
	list := func(uri string) (files, refused []string, err error) {
		err = r.list(t.Context(), Place{Run: "r", URI: uri}, func(f File) error {
			files = append(files, f.Path)
			return nil
		}, func(name string, _ error) { refused = append(refused, name) })
		return files, refused, err
	}
	for _, uri := range []string{"mlflow-artifacts:/1/r/artifacts", "file://" + dir + "/1/r/artifacts", dir + "/1/r/artifacts", dir + "/1/../1/r/artifacts", "mlflow-artifacts:/../../1/r/artifacts"} {
		files, refused, err := list(uri)
		if err != nil || !cmp.Equal(files, []string{"model/a.txt"}) || !cmp.Equal(refused, []string{"key", "link"}) {
			t.Errorf("%s: %v, %v, %v", uri, files, refused, err)
		}
	}
	for _, uri := range []string{secret, "file://" + secret, dir + "/../", "s3://bucket/x", "file://host" + dir, "relative/x", "http://[::1", dir + "x"} {
		if files, _, err := list(uri); !fault.Is(err, fault.Unavailable) || len(files) > 0 {
			t.Errorf("%s: %v, %v", uri, files, err)
		}
	}
	if files, _, _ := list(dir + "/out"); len(files) > 0 { // a link to elsewhere
		t.Errorf("read %v", files)
	}
	if f, err := r.fetch(Place{URI: dir + "/1/r/artifacts"}, "key"); err == nil {
		b, _ := io.ReadAll(f)
		t.Errorf("a link was followed: %s", b)
	}
	if f, err := r.fetch(Place{URI: dir + "/1/r/artifacts"}, "../../../../../../etc/passwd"); err == nil {
		_ = f.Close()
		t.Error("read /etc/passwd")
	}
}

// TestHostileServer: a server that lists what is not below it, or sends elsewhere with
// the credentials.
func TestHostileServer(t *testing.T) {
	elsewhere := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		t.Errorf("another host was asked for %s with %q", r.URL, r.Header.Get("Authorization"))
	}))
	defer elsewhere.Close()
	listed := 0
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/api/2.0/mlflow/artifacts/list":
			listed++
			switch dir := r.URL.Query().Get("path"); dir {
			case "":
				_, _ = io.WriteString(w, `{"files":[{"path":"../../etc","is_dir":true},{"path":"/etc/passwd","file_size":1},{"path":"a/../b","file_size":"2"},{"path":"d","is_dir":true},{"path":"ok","file_size":3}]}`)
			default: // a directory in itself, for ever
				_, _ = io.WriteString(w, `{"files":[{"path":"`+dir+`/d","is_dir":true},{"path":"ok"}]}`)
			}
		case "/get-artifact":
			http.Redirect(w, r, elsewhere.URL, http.StatusFound)
		default:
			w.WriteHeader(http.StatusBadRequest)
			_, _ = io.WriteString(w, "<html>")
		}
	}))
	defer s.Close()
	source, err := Open(t.Context(), s.URL, Access{Token: "secret"})
	if err != nil {
		t.Fatal(err)
	}
	defer source.Close()
	var files, refused []string
	err = source.List(t.Context(), Place{Run: "r"}, func(f File) error {
		files = append(files, f.Path)
		return nil
	}, func(name string, _ error) { refused = append(refused, name) })
	if err != nil || !cmp.Equal(files, []string{"ok"}) || listed != maxDepth || len(refused) != 3+maxDepth {
		t.Errorf("files %v, refused %d, %d listings, %v", files, len(refused), listed, err)
	}
	if f, err := source.(*server).send(t.Context(), http.MethodGet, "/get-artifact", nil, nil); err == nil {
		_ = f.Body.Close()
		t.Error("a redirect to another host was followed")
	}
	if _, err := source.Experiments(t.Context()); !fault.Is(err, fault.Unavailable) {
		t.Errorf("an answer that is none: %v", err)
	}
}

func TestOpen(t *testing.T) {
	dir := t.TempDir()
	text := filepath.Join(dir, "text")
	if err := os.WriteFile(text, []byte(strings.Repeat("not a database ", 1000)), 0o600); err != nil {
		t.Fatal(err)
	}
	empty := filepath.Join(dir, "empty.db")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for address, kind := range map[string]fault.Kind{
		dir: fault.Unsupported, "mysql+pymysql://u@h/db": fault.Unsupported, filepath.Join(dir, "absent"): fault.NotFound,
		text: fault.Invalid, "sqlite:///" + empty: fault.Invalid, "http://": fault.Invalid, "postgresql://u:p@127.0.0.1:1/db": fault.Unavailable,
	} {
		s, err := Open(t.Context(), address, Access{})
		if !fault.Is(err, kind) || fault.HintOf(err) == "" && kind != fault.Invalid {
			t.Errorf("%s: %v (%v), want %v", address, err, fault.HintOf(err), kind)
		}
		if err != nil && strings.Contains(err.Error(), "u:p@") {
			t.Errorf("%s: the password is in %v", address, err)
		}
		if s != nil {
			_ = s.Close()
		}
	}
}

func TestSourceOf(t *testing.T) {
	run, model := strings.Repeat("a", 32), "m-"+strings.Repeat("b", 32)
	i := &importer{runs: map[string]Place{run: {Run: run, URI: "s3://bucket/1/" + run + "/artifacts/"}}}
	models := map[string]Place{"s3://bucket/1/models/" + model: {Model: model}}
	for _, c := range []struct {
		v    Version
		want string
	}{
		{Version{Source: "runs:/" + run + "/model"}, "runs:/" + run + "/model"},
		{Version{Source: "models:/" + model}, "models:/" + model},
		{Version{Source: "models:/other/3"}, "models:/other/3"},
		{Version{Source: "mlflow-artifacts:/1/" + run + "/artifacts/model"}, "mlflow-artifacts:/1/" + run + "/artifacts/model"},
		{Version{Source: "s3://bucket/1/" + run + "/artifacts/model", Run: run}, "runs:/" + run + "/model"},
		{Version{Source: "s3://bucket/1/models/" + model}, "models:/" + model},
		{Version{Source: "dbfs:/x", Storage: "s3://bucket/1/models/" + model + "/"}, "models:/" + model},
		{Version{Source: "s3://bucket/1/" + run + "/artifactsX/model", Run: run}, ""},
		{Version{Source: "runs:/" + run + "/model", Status: "FAILED_REGISTRATION"}, ""},
		{Version{Source: "/etc/passwd"}, ""},
		{Version{}, ""},
	} {
		got, err := i.sourceOf(c.v, models)
		if got != c.want || (err == nil) != (c.want != "") {
			t.Errorf("%+v: %q, %v", c.v, got, err)
		}
	}
}

func TestBeside(t *testing.T) {
	broken := errors.New("broken")
	seen := make([]bool, 100)
	if err := beside(t.Context(), len(seen), func(_ context.Context, i int) error { seen[i] = true; return nil }); err != nil || slices.Contains(seen, false) {
		t.Error(err, seen)
	}
	if err := beside(t.Context(), 100, func(_ context.Context, i int) error {
		if i == 3 {
			return broken
		}
		return nil
	}); !errors.Is(err, broken) {
		t.Error(err)
	}
}

func TestTooOld(t *testing.T) {
	since := time.UnixMilli(1000)
	i := &importer{opts: Options{Since: since}}
	for _, c := range []struct {
		run  Run
		want bool
	}{
		{Run{Start: 1000, End: 1, Status: "FINISHED"}, false},
		{Run{Start: 1, End: 1000, Status: "FINISHED"}, false},
		{Run{Start: 1, End: 999, Status: "FINISHED"}, true},
		{Run{Start: 1, Status: "RUNNING"}, false},
	} {
		if got := i.tooOld(c.run); got != c.want {
			t.Errorf("%+v: %t", c.run, got)
		}
	}
}

// copies is a source whose registry has copies of versions, some of which are gone there.
type copies struct {
	heavy
	models []Registered
}

func (c *copies) Registered(_ context.Context, yield func(Registered) error) error {
	for _, m := range c.models {
		if err := yield(m); err != nil {
			return err
		}
	}
	return nil
}

// TestCopiesOfDeleted: a version that was copied from another comes as such where the other
// came, by number or alias, and with its own files where the other was deleted.
func TestCopiesOfDeleted(t *testing.T) {
	run := strings.Repeat("a", 32)
	var sent []string
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var in struct {
			Model  struct{ Name string }
			Source string
		}
		if r.Method == http.MethodGet {
			_, _ = io.WriteString(w, `{"items":[]}`)
			return
		}
		if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
			t.Error(err)
		}
		if in.Source != "" {
			sent = append(sent, in.Model.Name+" of "+in.Source)
		}
		_, _ = io.WriteString(w, `{"result":"created"}`)
	}))
	defer s.Close()
	c, err := client.New(s.URL, "t")
	if err != nil {
		t.Fatal(err)
	}
	kept := "mlflow-artifacts:/1/" + run + "/artifacts/model"
	source := &copies{models: []Registered{
		{Name: "a", Versions: []Version{
			{Number: 1, Source: "models:/team@x/2", Storage: kept},
			{Number: 2, Source: "models:/gone/1", Storage: kept},
			{Number: 3, Source: "models:/team@x@best", Storage: kept},
			{Number: 4, Source: "models:/a/2", Storage: kept}, // a copy of a copy
		}},
		{Name: "team@x", Versions: []Version{{Number: 2, Source: kept, Aliases: []string{"best"}}}},
	}}
	i := &importer{source: source, opts: Options{Progress: func(string, int64, int64) {}}, target: Target{Client: c, Project: "p"}, results: map[string]string{}, runs: map[string]Place{run: {Run: run, URI: "mlflow-artifacts:/1/" + run + "/artifacts"}}}
	if err := i.bringRegistry(t.Context()); err != nil {
		t.Fatal(err)
	}
	want := []string{"team@x of " + kept, "a of models:/team@x/2", "a of " + kept, "a of models:/team@x@best", "a of models:/a/2"}
	if !slices.Equal(sent, want) || i.report.SkippedCount != 0 || i.report.DifferencesCount != 1 {
		t.Errorf("sent %q, want %q; skipped %v, not as it was %v", sent, want, i.report.Skipped, i.report.Differences)
	}
}
