package cli

import (
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"
)

// TestFileNameOf: a page of a study is a file of the working directory, whatever the study is called.
func TestFileNameOf(t *testing.T) {
	for name, want := range map[string]string{
		"mlp": "mlp", "größe/1": "größe_1", "../../.ssh/x": "_.._.._.ssh_x", "-": "_-", `C:\x`: "C__x", "a\nb": "a_b",
	} {
		if got := fileNameOf(name); got != want {
			t.Errorf("%q: %q, want %q", name, got, want)
		}
	}
	long := fileNameOf(strings.Repeat("ä", 255))
	if len(long) > 200 || !utf8.ValidString(long) || filepath.Base(long) != long {
		t.Errorf("a long name: %d bytes, %q", len(long), long)
	}
}
