package remote_test

import (
	"bytes"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"testing"

	"github.com/falaj-ml/falaj/internal/compute/engine"
	"github.com/falaj-ml/falaj/internal/compute/engine/remote"
)

// FuzzServe: whatever an agent says, nothing panics, and nothing is made beside
// what the mounts are for.
func FuzzServe(f *testing.F) {
	for _, s := range [][3]string{
		{"POST", "beat", `{"phase":"running","wait_ns":0,"none":["a"]}`},
		{"POST", "end", `{"reason":"exited","exit_code":0}`},
		{"POST", "log", "text"},
		{"POST", "join", `{"version":2,"index":0,"start":"0000-start-of-0","address":"::1"}`},
		{"POST", "mounts/1/manifest", `{"files":[{"path":"../x","size":1,"sha256":"00"}]}`},
		{"POST", "mounts/2/manifest", `{"name":"x/../../y","files":[],"dirs":[{"path":"a"}]}`},
		{"PUT", "mounts/2/tree", "tar"},
		{"GET", "mounts/0", ""},
	} {
		f.Add(s[0], s[1], "index=0&start=0000-start-of-0&offset=0&name=x&manifest=y", []byte(s[2]))
	}
	f.Fuzz(func(t *testing.T, method, path, query string, body []byte) {
		root := t.TempDir()
		var mounts []engine.Mount
		for _, m := range []engine.Mount{{Writable: true}, {Writable: true, Role: engine.Output}, {Writable: true, Role: engine.Checkpoints}} {
			m.Path = filepath.Join(root, "mounts", string(rune('a'+len(mounts))))
			if err := os.MkdirAll(m.Path, 0o700); err != nil {
				t.Fatal(err)
			}
			mounts = append(mounts, m)
		}
		d, err := remote.New(remote.Config{Name: "fuzz", Dir: filepath.Join(root, "engine"), Launcher: &idle{ids: map[string]engine.State{}}, URL: "http://x"})
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		h, err := d.Start(t.Context(), engine.Spec{ID: "att_1", Project: "p", Command: []string{"/bin/true"}, Mounts: mounts})
		if err != nil {
			t.Fatal(err)
		}
		serve := func(method, path, query string, body []byte) {
			r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "http://x/", bytes.NewReader(body))
			r.Method, r.URL.RawQuery = method, query
			defer func() {
				p := recover()
				if err, ok := p.(error); p != nil && (!ok || !errors.Is(err, http.ErrAbortHandler)) {
					panic(p)
				}
			}()
			_ = d.ServeAgent(httptest.NewRecorder(), r, string(h), path)
		}
		serve("POST", "join", "", []byte(`{"version":2,"index":0,"start":"0000-start-of-0","address":"10.0.0.1"}`))
		if _, err := url.ParseQuery(query); err == nil && path != "join" { // which waits
			serve(method, path, query, body)
		}
		entries, err := os.ReadDir(root)
		if err != nil || len(entries) != 2 {
			t.Errorf("%v %v", entries, err)
		}
		if entries, err = os.ReadDir(filepath.Join(root, "mounts")); err != nil || len(entries) != 3 {
			t.Errorf("%v %v", entries, err)
		}
	})
}
