package remote_test

import (
	"path/filepath"
	"testing"

	"github.com/falaj-ml/falaj/internal/compute/engine/remote"
)

func TestInstallation(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "engines", "hpc")
	first, err := remote.Installation(dir)
	if err != nil || len(first) != 16 {
		t.Fatalf("%q %v", first, err)
	}
	if again, err := remote.Installation(dir); err != nil || again != first {
		t.Errorf("%q is not %q: %v", again, first, err)
	}
	if other, err := remote.Installation(t.TempDir()); err != nil || other == first {
		t.Errorf("two are %q: %v", other, err)
	}
}
