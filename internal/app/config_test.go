package app

import (
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/falaj-ml/falaj/internal/fault"
)

// TestPrivate: a data directory is for Falaj's user, however it was made.
func TestPrivate(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	for name, mode := range map[string]fs.FileMode{"absent": 0, "closed": 0o700, "open": 0o755, "for all": 0o777, "group": 0o750, "only passed through": 0o711} {
		dir := filepath.Join(t.TempDir(), "data")
		if mode != 0 {
			if err := os.Mkdir(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.Chmod(dir, mode); err != nil {
				t.Fatal(err)
			}
		}
		if err := private(dir, log); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
			t.Errorf("%s: %v, %v", name, info.Mode(), err)
		}
	}
	everybody := filepath.Join(t.TempDir(), "tmp")
	if err := os.Mkdir(everybody, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(everybody, 0o777|fs.ModeSticky); err != nil {
		t.Fatal(err)
	}
	if err := private(everybody, log); !fault.Is(err, fault.Invalid) {
		t.Errorf("a directory for everybody: %v", err)
	}
	if info, err := os.Stat(everybody); err != nil || info.Mode().Perm() != 0o777 {
		t.Errorf("it was changed: %v, %v", info.Mode(), err)
	}
}

// TestPrivateTakesNothing: a directory of others is not closed to them.
func TestPrivateTakesNothing(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	for name, tt := range map[string]struct {
		holds []string
		ok    bool
	}{
		"another's":         {[]string{"www"}, false},
		"another's disk":    {[]string{"lost+found", "www"}, false},
		"a new disk":        {[]string{"lost+found"}, true},
		"ours":              {[]string{"blobs", "falaj.lock", "master.key"}, true},
		"ours, not begun":   {[]string{"falaj.lock"}, true},
		"a mistake of ours": {[]string{"falaj.lock", "www"}, false},
		"ours, from a copy": {[]string{"falaj.db", "master.key"}, true},
	} {
		dir := t.TempDir()
		for _, held := range tt.holds {
			if err := os.WriteFile(filepath.Join(dir, held), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := private(dir, log); (err == nil) != tt.ok || err != nil && (!fault.Is(err, fault.Invalid) || !strings.Contains(fault.HintOf(err), "chmod 700 "+dir)) {
			t.Errorf("%s: %v", name, err)
		}
		if info, err := os.Stat(dir); err != nil || (info.Mode().Perm() == 0o700) != tt.ok {
			t.Errorf("%s: %v, %v", name, info.Mode(), err)
		}
	}
}

// TestShow: a configuration is shown without the passwords in it.
func TestShow(t *testing.T) {
	for url, want := range map[string]string{
		"":                                    "",
		"sqlite:///srv/falaj.db":              "sqlite:///srv/falaj.db",
		"postgres://falaj@db/falaj":           "postgres://falaj@db/falaj",
		"postgres://falaj:geheim@db/falaj":    "postgres://falaj:xxxxx@db/falaj",
		"postgres://db/falaj?password=geheim": "postgres://db/falaj?password=xxxxx",
		"postgres://falaj:geheim%zz@db/falaj": "(no URL)",
		"/srv/data":                           "/srv/data",
	} {
		var c Config // also one that is refused is shown in errors
		c.Store.URL = url
		if got := (field{value: url}).text(); got != want || strings.Contains(c.Show(), "geheim") {
			t.Errorf("%s is shown as %s", url, got)
		}
	}
}

// TestIsolation: what is no isolation is no setting.
func TestIsolation(t *testing.T) {
	for level, ok := range map[string]bool{"sandbox": true, "process": true, "none": false, "container": false, "dedicated node": false, "": false, "wishful": false} {
		if _, err := LoadConfig("", nil, map[string]any{"isolation": level}); (err == nil) != ok {
			t.Errorf("isolation %q: %v", level, err)
		}
	}
}

// TestLists: the variable of a list has commas between its values.
func TestLists(t *testing.T) {
	for _, f := range fields(Config{}) {
		if _, list := f.value.([]string); !list {
			continue
		}
		want := []string{"10.0.0.1", "10.0.0.2"}
		if f.key == "environments.indexes" {
			want = []string{"a=https://10.0.0.1/simple", "b=https://10.0.0.2/simple"}
		}
		c, err := LoadConfig("", []string{f.variable() + "=" + strings.Join(want, ",")}, nil)
		if err != nil {
			t.Errorf("%s: %v", f.variable(), err)
		}
		for _, got := range fields(c) {
			if got.key == f.key && !slices.Equal(got.value.([]string), want) {
				t.Errorf("%s of %q is %q", f.variable(), want, got.value)
			}
		}
	}
}
