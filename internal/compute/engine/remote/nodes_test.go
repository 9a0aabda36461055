package remote

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/falaj-ml/falaj/internal/compute/engine"
)

func TestBook(t *testing.T) {
	t.Parallel()
	dir, log := t.TempDir(), slog.New(slog.DiscardHandler)
	b := openBook(dir, log)
	b.learn("n1", map[string]string{"glibc": "2.36", "arch": "x86_64"}, log)
	b.learn("", map[string]string{"glibc": "2.36"}, log)
	for _, b := range []*book{b, openBook(dir, log)} { // and after a restart
		nodes := []engine.Node{{Name: "n1", Labels: map[string]string{"arch": "aarch64"}}, {Name: "n2"}}
		b.addLabels(nodes)
		want := []engine.Node{{Name: "n1", Labels: map[string]string{"arch": "aarch64", "glibc": "2.36"}}, {Name: "n2"}}
		if diff := cmp.Diff(want, nodes); diff != "" {
			t.Error(diff)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, nodesFile), []byte("null"), 0o600); err != nil {
		t.Fatal(err)
	}
	b = openBook(dir, log)
	b.learn("n2", map[string]string{"a": "b"}, log) // begins anew
	if len(b.of) != 1 {
		t.Errorf("%v", b.of)
	}
}
