package archive

import (
	"bytes"
	"os"
)

// Sparse writes a new file and leaves holes where the content has nothing but zeros, so that
// a sparse file that was sent takes no more space than it did. Finish gives the file its
// length.
type Sparse struct {
	f   *os.File
	end int64
}

// NewSparse writes to an empty file.
func NewSparse(f *os.File) *Sparse { return &Sparse{f: f} }

// holeSize is the least that is left out: smaller holes cost more than they save.
const holeSize = 64 << 10

var zeros [holeSize]byte

// Write implements io.Writer.
func (s *Sparse) Write(b []byte) (int, error) {
	if err := WriteSparse(s.f, b, s.end); err != nil {
		return 0, err
	}
	s.end += int64(len(b))
	return len(b), nil
}

// Finish makes the file as long as what was written.
func (s *Sparse) Finish() error { return s.f.Truncate(s.end) }

// WriteSparse writes at an offset what is not zero, in blocks; what is left out must be a hole
// already.
func WriteSparse(f *os.File, b []byte, at int64) error {
	for len(b) > 0 {
		// Blocks end where those of the file end, so that a hole is one for its file system.
		n := min(int64(len(b)), holeSize-at%holeSize)
		if !bytes.Equal(b[:n], zeros[:n]) {
			if _, err := f.WriteAt(b[:n], at); err != nil {
				return err
			}
		}
		b, at = b[n:], at+n
	}
	return nil
}
