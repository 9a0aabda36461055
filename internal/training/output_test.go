package training

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/falaj-ml/falaj/internal/fault"
)

// TestOutputOverItsLimit: the error says which limit, in units.
func TestOutputOverItsLimit(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "model"), make([]byte, 3<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := checkOutput(dir, 2<<20); !fault.Is(err, fault.TooLarge) || !strings.Contains(err.Error(), "the output is larger than its limit of 2 MiB") {
		t.Errorf("got %v", err)
	}
	if files, size, err := checkOutput(dir, 3<<20); files != 1 || size != 3<<20 || err != nil {
		t.Errorf("%d files of %d bytes, %v", files, size, err)
	}
}
