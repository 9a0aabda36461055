package diskspace

import (
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
)

// TestBallast: it is taken where there is room for it beside the reserve, and
// not where there is none.
func TestBallast(t *testing.T) {
	b := &Reserve{path: filepath.Join(t.TempDir(), "ballast"), size: Space{Bytes: 1 << 20, Files: 20}, log: slog.New(slog.DiscardHandler)}
	for range 2 { // a second look changes nothing
		if err := b.Look(t.Context()); err != nil {
			t.Fatal(err)
		}
		if info, err := os.Stat(b.path); err != nil || info.Size() != b.size.Bytes && info.Size() != 0 {
			t.Fatalf("%v %v", info, err)
		}
	}
	if err := os.Remove(b.path); err != nil {
		t.Fatal(err)
	}
	b.least = Space{Bytes: 1 << 61, Files: 1 << 61}
	if err := b.Look(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(b.path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("it is taken out of the reserve: %v", err)
	}
}
