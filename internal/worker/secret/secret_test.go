package secret

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/iotest"

	"pgregory.net/rapid"
)

func TestMask(t *testing.T) {
	for name, tt := range map[string]struct {
		values    []string
		log, want string
	}{
		"nothing":       {nil, "password", "password"},
		"a value":       {[]string{"hunter22"}, "it is hunter22, twice hunter22hunter22\n", "it is (secret), twice (secret)(secret)\n"},
		"short":         {[]string{"abc"}, "abc", "abc"},
		"longest first": {[]string{"secret-key", "secret-key-long"}, "secret-key-long secret-key", "(secret) (secret)"},
		"lines":         {[]string{"-----BEGIN-----\nAAAABBBB\n-----END-----\n"}, "> AAAABBBB <", "> (secret) <"},
		"spaces":        {[]string{"  token-1234\n"}, "token-1234", "(secret)"},
		"at the end":    {[]string{"token-1234"}, "token-12", "token-12"},
		"one in another": {
			[]string{"abcdefgh", "efghijkl"}, "abcdefghijkl abcdefg efghijk!", "(secret)ijkl abcdefg efghijk!",
		},
	} {
		t.Run(name, func(t *testing.T) {
			for _, r := range []io.Reader{strings.NewReader(tt.log), iotest.OneByteReader(strings.NewReader(tt.log)), iotest.DataErrReader(strings.NewReader(tt.log))} {
				b, err := io.ReadAll(NewMask(tt.values).Reader(r))
				if err != nil || string(b) != tt.want {
					t.Errorf("%q %v, want %q", b, err, tt.want)
				}
			}
		})
	}
}

// However a log is cut into reads, what comes out is the same, and has no value.
func TestMaskProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		values := rapid.SliceOfN(rapid.StringMatching(`[ab]{6,9}`), 0, 4).Draw(t, "values")
		parts := rapid.SliceOfN(rapid.StringMatching(`[abc\n]{0,12}`), 0, 12).Draw(t, "log")
		m := NewMask(values)
		whole, err := io.ReadAll(m.Reader(strings.NewReader(strings.Join(parts, ""))))
		if err != nil {
			t.Fatal(err)
		}
		readers := make([]io.Reader, len(parts))
		for i, p := range parts {
			readers[i] = strings.NewReader(p)
		}
		cut, err := io.ReadAll(m.Reader(io.MultiReader(readers...)))
		if err != nil || !bytes.Equal(whole, cut) {
			t.Fatalf("%q and %q (%v)", whole, cut, err)
		}
		for _, v := range values {
			if strings.Contains(strings.ReplaceAll(string(whole), Masked, "\x00"), v) {
				t.Fatalf("%q has %q", whole, v)
			}
		}
	})
}

// What cannot be the beginning of a value is passed on before more comes.
func TestMaskAtOnce(t *testing.T) {
	r, w := io.Pipe()
	defer w.Close()
	go func() { _, _ = w.Write([]byte("epoch 1\ntok")) }()
	b := make([]byte, 100)
	n, err := NewMask([]string{"token-1234"}).Reader(r).Read(b)
	if err != nil || string(b[:n]) != "epoch 1\n" {
		t.Errorf("%q %v", b[:n], err)
	}
}

func TestPlace(t *testing.T) {
	dir := t.TempDir()
	env := map[string]string{"PATH": "/bin"}
	s := Set{Variables: map[string]string{"PASSWORD": "hunter22"}, Files: map[string]string{"KEY": "one\ntwo\n"}}
	remove, err := s.place(env, dir)
	if err != nil {
		t.Fatal(err)
	}
	if env["PASSWORD"] != "hunter22" || filepath.Dir(filepath.Dir(env["KEY"])) != dir {
		t.Errorf("%v", env)
	}
	b, err := os.ReadFile(env["KEY"])
	info, serr := os.Stat(env["KEY"])
	if err != nil || serr != nil || string(b) != "one\ntwo\n" || info.Mode().Perm() != 0o400 {
		t.Errorf("%q %v %v %v", b, info.Mode(), err, serr)
	}
	remove()
	if left, _ := os.ReadDir(dir); len(left) > 0 {
		t.Errorf("%v is left", left)
	}
}

func TestFetch(t *testing.T) {
	var asked atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path != "/api/v1/projects/p/workloads/att_1/worker/secrets" || r.Header.Get("Authorization") != "Bearer tok":
			w.WriteHeader(http.StatusForbidden)
			_, _ = io.WriteString(w, `{"detail": "only the workers of this attempt may do this"}`)
		case asked.Add(1) == 1:
			w.WriteHeader(http.StatusServiceUnavailable)
		default:
			_ = json.NewEncoder(w).Encode(Set{Variables: map[string]string{"A": "1"}})
		}
	}))
	defer server.Close()
	env := map[string]string{"FALAJ_URL": server.URL, "FALAJ_TOKEN": "tok", "FALAJ_PROJECT": "p", "FALAJ_ATTEMPT": "att_1"}
	s, err := Fetch(t.Context(), env)
	if err != nil || s.Variables["A"] != "1" || asked.Load() != 2 {
		t.Errorf("%v %v after %d", s, err, asked.Load())
	}
	env["FALAJ_TOKEN"] = "other"
	if _, err := Fetch(t.Context(), env); err == nil || !strings.Contains(err.Error(), "only the workers of this attempt") {
		t.Errorf("%v", err)
	}
	done, cancel := context.WithCancel(t.Context())
	cancel()
	delete(env, "FALAJ_URL")
	if _, err := Fetch(done, env); err == nil || !strings.Contains(err.Error(), "FALAJ_URL is not set") {
		t.Errorf("%v", err)
	}
}
