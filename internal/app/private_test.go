package app

import (
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
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
