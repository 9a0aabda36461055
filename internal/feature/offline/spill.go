package offline

import (
	"bufio"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"sync/atomic"

	"github.com/falaj-ml/falaj/internal/fault"
)

// disk counts the bytes of all temporary files of one join.
type disk struct {
	dir   string
	left  atomic.Int64
	limit int64
}

func newDisk(o Options) *disk {
	d := &disk{dir: o.Dir, limit: o.Disk}
	d.left.Store(o.Disk)
	return d
}

// spillChunk is the plaintext that is sealed at once.
const spillChunk = 64 << 10

// spill is a temporary file without a name: written once, then read once. Each
// chunk is sealed with AES-256-GCM under a key of this file that is nowhere but
// in memory; the nonce is the chunk's number, so that chunks cannot be swapped.
type spill struct {
	file   *os.File
	disk   *disk
	aead   cipher.AEAD
	number uint64
	used   int64
	buf    []byte // sealed chunk, length first
	w      *bufio.Writer
}

// create makes an empty spill ready to be written.
func (d *disk) create() (*spill, error) {
	file, err := os.CreateTemp(d.dir, "falaj-join-*")
	if err != nil {
		return nil, fault.Wrap(err, "creating a temporary file for a join")
	}
	// Without a name the file cannot outlive this process.
	if err := os.Remove(file.Name()); err != nil {
		return nil, errors.Join(fault.Wrap(err, "unlinking a temporary file"), file.Close())
	}
	key := make([]byte, 32)
	if _, err := rand.Read(key); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	s := &spill{file: file, disk: d, aead: aead}
	s.w = bufio.NewWriterSize(chunkWriter{s}, spillChunk)
	return s, nil
}

func (s *spill) nonce() []byte {
	n := make([]byte, 12)
	binary.BigEndian.PutUint64(n[4:], s.number)
	s.number++
	return n
}

func (s *spill) Write(p []byte) (int, error) { return s.w.Write(p) }

// chunkWriter seals what the buffer above it hands down. The buffer hands down
// chunks of its size and, for large writes, more.
type chunkWriter struct{ s *spill }

func (c chunkWriter) Write(p []byte) (int, error) {
	s, done := c.s, 0
	for done < len(p) {
		chunk := p[done:min(done+spillChunk, len(p))]
		s.buf = binary.BigEndian.AppendUint32(s.buf[:0], uint32(len(chunk))) //nolint:gosec // at most spillChunk
		s.buf = s.aead.Seal(s.buf, s.nonce(), chunk, nil)
		if s.disk.left.Add(-int64(len(s.buf))) < 0 {
			return done, fault.New(fault.Exhausted, "the join needs more than %d bytes of temporary files", s.disk.limit).
				WithHint("Raise the memory or disk limit of joins in the configuration, or join fewer rows at once.")
		}
		s.used += int64(len(s.buf))
		if _, err := s.file.Write(s.buf); err != nil {
			return done, fault.Wrap(err, "writing a temporary file of a join")
		}
		done += len(chunk)
	}
	return done, nil
}

// read ends the writing and returns what was written, from its beginning.
func (s *spill) read() (*bufio.Reader, error) {
	if err := s.w.Flush(); err != nil {
		return nil, err
	}
	if _, err := s.file.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	s.w, s.number = nil, 0
	return bufio.NewReaderSize(&chunkReader{s: s, in: bufio.NewReaderSize(s.file, spillChunk)}, 4<<10), nil
}

// Close gives the disk space back.
func (s *spill) Close() error {
	s.disk.left.Add(s.used)
	s.used = 0
	return s.file.Close()
}

type chunkReader struct {
	s     *spill
	in    *bufio.Reader
	plain []byte
}

func (c *chunkReader) Read(p []byte) (int, error) {
	if len(c.plain) == 0 {
		if err := c.next(); err != nil {
			return 0, err
		}
	}
	n := copy(p, c.plain)
	c.plain = c.plain[n:]
	return n, nil
}

func (c *chunkReader) next() error {
	var head [4]byte
	if _, err := io.ReadFull(c.in, head[:]); err != nil {
		return err // io.EOF: the file's end
	}
	n := int(binary.BigEndian.Uint32(head[:]))
	if n > spillChunk {
		return fault.New(fault.Internal, "a temporary file of a join is corrupt")
	}
	if cap(c.s.buf) < n+c.s.aead.Overhead() {
		c.s.buf = make([]byte, n+c.s.aead.Overhead())
	}
	sealed := c.s.buf[:n+c.s.aead.Overhead()]
	if _, err := io.ReadFull(c.in, sealed); err != nil {
		return fault.Wrap(err, "reading a temporary file of a join")
	}
	plain, err := c.s.aead.Open(sealed[:0], c.s.nonce(), sealed, nil)
	if err != nil {
		return fault.New(fault.Internal, "a temporary file of a join is corrupt")
	}
	c.plain = plain
	return nil
}
