package live

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// Fill fills the file system of a directory until so many bytes are free.
func Fill(tb testing.TB, dir string, leave int64) {
	tb.Helper()
	f, err := os.OpenFile(filepath.Join(dir, "filler"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		tb.Fatal(err)
	}
	defer f.Close()
	block := make([]byte, 64<<10)
	for err == nil {
		_, err = f.Write(block)
	}
	if !errors.Is(err, syscall.ENOSPC) {
		tb.Fatal(err)
	}
	info, err := f.Stat()
	if err == nil && leave > 0 {
		err = f.Truncate(max(0, info.Size()-leave))
	}
	if err != nil {
		tb.Fatal(err)
	}
}

// Free gives the space back.
func Free(tb testing.TB, dir string) {
	tb.Helper()
	if err := os.Remove(filepath.Join(dir, "filler")); err != nil {
		tb.Fatal(err)
	}
}
