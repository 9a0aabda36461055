package archive_test

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"pgregory.net/rapid"

	"github.com/falaj-ml/falaj/internal/worker/archive"
)

// TestSparse: whatever is written, in pieces of whatever sizes, is what is read.
func TestSparse(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	rapid.Check(t, func(r *rapid.T) {
		f, err := os.CreateTemp(dir, "")
		if err != nil {
			r.Fatal(err)
		}
		defer os.Remove(f.Name())
		defer f.Close()
		var want []byte
		s := archive.NewSparse(f)
		for range rapid.IntRange(0, 6).Draw(r, "pieces") {
			piece := make([]byte, rapid.IntRange(0, 200<<10).Draw(r, "size"))
			if len(piece) > 0 && rapid.Bool().Draw(r, "data") {
				piece[rapid.IntRange(0, len(piece)-1).Draw(r, "at")] = 1
			}
			want = append(want, piece...)
			if n, err := s.Write(piece); err != nil || n != len(piece) {
				r.Fatal(n, err)
			}
		}
		if err := s.Finish(); err != nil {
			r.Fatal(err)
		}
		got, err := os.ReadFile(f.Name())
		if err != nil || !bytes.Equal(got, want) {
			r.Fatalf("%d bytes, want %d: %v", len(got), len(want), err)
		}
	})
}

// TestHoles: a sparse file that is sent takes no more space than it did.
func TestHoles(t *testing.T) {
	t.Parallel()
	from, to := t.TempDir(), filepath.Join(t.TempDir(), "to")
	f, err := os.Create(filepath.Join(from, "hole"))
	if err != nil {
		t.Fatal(err)
	}
	const size = 256 << 20
	if _, err := f.WriteAt([]byte("end"), size-3); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	r, w := io.Pipe()
	go func() { _ = w.CloseWithError(archive.Pack(w, from, nil)) }()
	if err := archive.Unpack(r, to, archive.Limits{}); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(filepath.Join(to, "hole"))
	if err != nil {
		t.Fatal(err)
	}
	if got := info.Sys().(*syscall.Stat_t).Blocks * 512; info.Size() != size || got > 1<<20 {
		t.Errorf("%d bytes that take %d", info.Size(), got)
	}
}
