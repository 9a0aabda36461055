package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// desk is a user's command line, with a configuration directory of its own.
type desk struct {
	t    *testing.T
	env  []string
	home string
}

func newDesk(t *testing.T) *desk {
	t.Helper()
	home := t.TempDir()
	return &desk{t: t, home: home, env: []string{"HOME=" + home}}
}

// run gives the exit code and what was printed.
func (d *desk) run(in string, up func(keep func(server, token, ca string) error) error, args ...string) (int, string) {
	d.t.Helper()
	var out bytes.Buffer
	w := World{Args: args, Env: d.env, Stdin: strings.NewReader(in), Stdout: &out, Stderr: &out, Version: "test"}
	w.Up = func(_ context.Context, _ string, _ map[string]any, keep func(server, token, ca string) error) error {
		return up(keep)
	}
	return Run(d.t.Context(), w), out.String()
}

// current is the context in use, as the file has it.
func (d *desk) current() (server, token string) {
	d.t.Helper()
	b, err := os.ReadFile(filepath.Join(d.home, ".config", "falaj", "credentials.json"))
	if err != nil {
		d.t.Fatal(err)
	}
	var c struct{ Server, Token string }
	if err := json.Unmarshal(b, &c); err != nil {
		d.t.Fatal(err)
	}
	return c.Server, c.Token
}

// whoever answers every request with the token that it came with.
func whoever(t *testing.T) (url string, asked *[]string) {
	t.Helper()
	asked = &[]string{}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		*asked = append(*asked, strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "))
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"id":"user/alice","items":[]}`))
	}))
	t.Cleanup(s.Close)
	return s.URL, asked
}

// TestUpKeepsOtherLogins: a server that is tried on a scratch directory does not take the
// login of another one away.
func TestUpKeepsOtherLogins(t *testing.T) {
	d := newDesk(t)
	first := func(keep func(server, token, ca string) error) error {
		return keep("http://127.0.0.1:7070", "one", "")
	}
	if code, out := d.run("", first, "up"); code != 0 || strings.Contains(out, "context") {
		t.Fatalf("exit %d: %s", code, out)
	}
	scratch := func(keep func(server, token, ca string) error) error {
		return keep("http://127.0.0.1:7171", "two", "")
	}
	code, out := d.run("", scratch, "up")
	if code != 0 || !strings.Contains(out, "falaj context use 127.0.0.1:7171") {
		t.Errorf("exit %d: %s", code, out)
	}
	if server, token := d.current(); server != "http://127.0.0.1:7070" || token != "one" {
		t.Errorf("the current login is %s as %s", server, token)
	}
	again := func(keep func(server, token, ca string) error) error {
		return keep("http://127.0.0.1:7070", "three", "")
	}
	if code, out := d.run("", again, "up"); code != 0 {
		t.Fatal(out)
	}
	if _, token := d.current(); token != "three" {
		t.Errorf("the server at the current address has the token %s", token)
	}
	if code, out := d.run("", nil, "context", "use", "127.0.0.1:7171"); code != 0 {
		t.Fatal(out)
	}
	if server, token := d.current(); server != "http://127.0.0.1:7171" || token != "two" {
		t.Errorf("after context use: %s as %s", server, token)
	}
	code, out = d.run("", nil, "context", "list", "-o", "json")
	if code != 0 || strings.Count(out, `"name"`) != 2 || strings.Contains(out, "token") {
		t.Errorf("exit %d: %s", code, out)
	}
}

// TestContexts: logins stay beside each other, and each token goes to its own server.
func TestContexts(t *testing.T) {
	d := newDesk(t)
	prod, askedProd := whoever(t)
	test, askedTest := whoever(t)
	for _, c := range []struct{ name, server, token string }{{"prod", prod, "tok_prod"}, {"test", test, "tok_test"}} {
		if code, out := d.run(c.token+"\n", nil, "login", "--server", c.server, "--context", c.name, "--project", "p-"+c.name); code != 0 {
			t.Fatal(out)
		}
	}
	*askedProd, *askedTest = nil, nil
	for _, tt := range []struct {
		args []string
		env  string
		prod bool
	}{
		{nil, "", false}, // the last login is current
		{[]string{"--context", "prod"}, "", true},
		{nil, "FALAJ_CONTEXT=prod", true},
		{[]string{"--context", "test"}, "FALAJ_CONTEXT=prod", false},
		{[]string{"--server", prod}, "", true},
		{nil, "FALAJ_URL=" + prod, true},
		{[]string{"--context", "test"}, "FALAJ_URL=" + prod, false},
	} {
		*askedProd, *askedTest = nil, nil
		with := *d
		if tt.env != "" {
			with.env = append(slices.Clone(d.env), tt.env)
		}
		if code, out := with.run("", nil, append([]string{"get", "projects"}, tt.args...)...); code != 0 {
			t.Fatalf("%v: %s", tt.args, out)
		}
		wantProd, wantTest := []string(nil), []string{"tok_test"}
		if tt.prod {
			wantProd, wantTest = []string{"tok_prod"}, nil
		}
		if !slices.Equal(*askedProd, wantProd) || !slices.Equal(*askedTest, wantTest) {
			t.Errorf("%v %s: prod was asked as %q, test as %q", tt.args, tt.env, *askedProd, *askedTest)
		}
	}
	for _, args := range [][]string{{"get", "projects", "--context", "nowhere"}, {"context", "use", "nowhere"}, {"context", "delete", "nowhere"}} {
		if code, out := d.run("", nil, args...); code != 4 || !strings.Contains(out, "There are test, prod") {
			t.Errorf("%v: exit %d: %s", args, code, out)
		}
	}
	if code, out := d.run("", nil, "context", "delete", "test"); code != 0 {
		t.Fatal(out)
	}
	if code, out := d.run("", nil, "get", "projects", "--context", "prod"); code != 0 {
		t.Error(out)
	}
	if code, out := d.run("", nil, "context", "use", "prod"); code != 0 {
		t.Error(out)
	}
	if server, token := d.current(); server != prod || token != "tok_prod" {
		t.Errorf("%s as %s", server, token)
	}
}

// TestLoginSetsTheProject: a token that is bound to a project sets that of the context.
func TestLoginSetsTheProject(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		bound := ""
		if strings.HasSuffix(r.Header.Get("Authorization"), "bound") {
			bound = `,"project":"nyc"`
		}
		_, _ = w.Write([]byte(`{"id":"user/alice"` + bound + `}`))
	}))
	t.Cleanup(s.Close)
	for _, c := range []struct {
		token, flag, project string
		code                 int
	}{
		{"bound", "", "nyc", 0},
		{"bound", "nyc", "nyc", 0},
		{"bound", "other", "", 2},
		{"free", "", "", 0},
		{"free", "other", "other", 0},
	} {
		d := newDesk(t)
		args := []string{"login", "--server", s.URL}
		if c.flag != "" {
			args = append(args, "--project", c.flag)
		}
		code, out := d.run(c.token+"\n", nil, args...)
		if code != c.code || code == 0 && strings.Contains(out, "Project: ") != (c.project != "") || code != 0 && !strings.Contains(out, "bound to project nyc") {
			t.Fatalf("%+v: exit %d: %s", c, code, out)
		}
		if code != 0 {
			continue
		}
		b, err := os.ReadFile(filepath.Join(d.home, ".config", "falaj", "credentials.json"))
		if err != nil {
			t.Fatal(err)
		}
		var kept credentials
		if err := json.Unmarshal(b, &kept); err != nil || kept.Project != c.project {
			t.Errorf("%+v: the context has project %q, %v", c, kept.Project, err)
		}
	}
}

// TestPrivateContexts: the file with the tokens is for its user alone, is written past a link that
// somebody made, and what is no plain file is neither waited for nor used.
func TestPrivateContexts(t *testing.T) {
	path := func(d *desk) string { return filepath.Join(d.home, ".config", "falaj", "credentials.json") }
	url, asked := whoever(t)
	login := func(t *testing.T) *desk {
		t.Helper()
		d := newDesk(t)
		if err := os.MkdirAll(filepath.Dir(path(d)), 0o700); err != nil {
			t.Fatal(err)
		}
		b, err := json.Marshal(credentials{Name: "it", Server: url, Token: "flj_1"})
		if err == nil {
			err = os.WriteFile(path(d), b, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		return d
	}

	t.Run("readable by others", func(t *testing.T) {
		d := login(t)
		if err := os.Chmod(path(d), 0o664); err != nil {
			t.Fatal(err)
		}
		code, said := d.run("", nil, "get", "projects")
		if info, err := os.Stat(path(d)); err != nil || info.Mode().Perm() != 0o600 || code != 0 || strings.Count(said, "it is private now") != 1 {
			t.Errorf("exit code %d, mode %v, %v: %s", code, info.Mode(), err, said)
		}
	})
	t.Run("a link in the way", func(t *testing.T) {
		d := login(t)
		planted := filepath.Join(t.TempDir(), "planted")
		if err := os.Symlink(planted, path(d)+".tmp"); err != nil {
			t.Fatal(err)
		}
		if code, said := d.run("", nil, "context", "use", "it"); code != 0 {
			t.Fatal(code, said)
		}
		info, err := os.Lstat(path(d))
		if err != nil || info.Mode() != 0o600 {
			t.Errorf("%v, %v", info, err)
		}
		if _, err := os.Lstat(planted); !os.IsNotExist(err) {
			t.Errorf("it was followed: %v", err)
		}
		if left, err := os.ReadDir(filepath.Dir(path(d))); err != nil || len(left) != 2 {
			t.Errorf("%v, %v", left, err)
		}
	})
	for name, replace := range map[string]func(path string) error{
		"a pipe":      func(path string) error { return syscall.Mkfifo(path, 0o600) },
		"a directory": func(path string) error { return os.Mkdir(path, 0o700) },
		"a huge file": func(path string) error {
			return errors.Join(os.WriteFile(path, nil, 0o600), os.Truncate(path, 1<<40))
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := login(t)
			before := len(*asked)
			if err := errors.Join(os.Remove(path(d)), replace(path(d))); err != nil {
				t.Fatal(err)
			}
			code, said := d.run("", nil, "get", "projects")
			if code == 0 || strings.Count(said, "is not a valid contexts file") != 1 || len(*asked) != before {
				t.Errorf("exit code %d: %s", code, said)
			}
		})
	}
}
