package audit

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// A journal segment is a header of 16 bytes and batches, each at a multiple of
// 16 bytes, with zeros after the last:
//
//	magic (4) | length of payload (4) | CRC-32C (4) | number of entries (4) | payload
//
// The payload is entries of length (4), time in microseconds (8), JSON. The CRC
// covers the batch's offset, the length, the number and the payload. A batch is
// written by one call and synced before the next begins. So after a crash only
// the last batch can be torn; an unreadable batch with a readable one behind it
// is damage done to what was acknowledged.
const (
	segmentMagic = "FALAJJL1"
	headerBytes  = 16
	batchMagic   = 0x464a4231 // "FJB1"
	batchAlign   = 16
	maxBatch     = 1 << 20
	entryHeader  = 12
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// segmentEntry is an entry with its place: entries of one batch are told apart
// by their number.
type segmentEntry struct {
	offset int64
	number int
	at     int64 // microseconds
	json   []byte
}

func appendEntry(b []byte, at int64, json []byte) []byte {
	b = binary.LittleEndian.AppendUint32(b, uint32(len(json))) //nolint:gosec // at most maxEntry
	b = binary.LittleEndian.AppendUint64(b, uint64(at))        //nolint:gosec // after 1970
	return append(b, json...)
}

// encodeBatch gives the bytes of a batch that is to stand at offset.
func encodeBatch(offset int64, payload []byte, count int) []byte {
	b := make([]byte, headerBytes, headerBytes+len(payload))
	binary.LittleEndian.PutUint32(b, batchMagic)
	binary.LittleEndian.PutUint32(b[4:], uint32(len(payload))) //nolint:gosec // at most maxBatch
	binary.LittleEndian.PutUint32(b[12:], uint32(count))       //nolint:gosec // at most maxBatch
	b = append(b, payload...)
	binary.LittleEndian.PutUint32(b[8:], batchSum(offset, b))
	return b
}

func batchSum(offset int64, b []byte) uint32 {
	var at [8]byte
	binary.LittleEndian.PutUint64(at[:], uint64(offset)) //nolint:gosec // a file offset
	sum := crc32.Update(0, castagnoli, at[:])
	sum = crc32.Update(sum, castagnoli, b[4:8])
	return crc32.Update(sum, castagnoli, b[12:])
}

// decodeBatch reads the batch at the start of b, which stands at offset. size is
// what it takes in the file, without alignment; ok is false if it is no batch.
func decodeBatch(b []byte, offset int64) (entries []segmentEntry, size int64, ok bool) {
	if len(b) < headerBytes || binary.LittleEndian.Uint32(b) != batchMagic {
		return nil, 0, false
	}
	n := int64(binary.LittleEndian.Uint32(b[4:]))
	count := int64(binary.LittleEndian.Uint32(b[12:]))
	if n == 0 || n > maxBatch || int64(len(b)) < headerBytes+n || count > n/entryHeader {
		return nil, 0, false
	}
	size = headerBytes + n
	if batchSum(offset, b[:size]) != binary.LittleEndian.Uint32(b[8:]) {
		return nil, 0, false
	}
	rest := b[headerBytes:size]
	entries = make([]segmentEntry, 0, count)
	for len(rest) > 0 {
		if len(rest) < entryHeader {
			return nil, 0, false
		}
		length := int64(binary.LittleEndian.Uint32(rest))
		at := int64(binary.LittleEndian.Uint64(rest[4:])) //nolint:gosec // checked by the sum
		rest = rest[entryHeader:]
		if length > int64(len(rest)) {
			return nil, 0, false
		}
		entries = append(entries, segmentEntry{offset: offset, number: len(entries), at: at, json: rest[:length:length]})
		rest = rest[length:]
	}
	return entries, size, int64(len(entries)) == count
}

func align(n int64) int64 { return (n + batchAlign - 1) &^ (batchAlign - 1) }

// scanned is what a scan of a segment found.
type scanned struct {
	entries []segmentEntry
	next    int64   // where the next scan begins
	end     bool    // nothing readable is left
	torn    bool    // bytes of an unfinished batch stand at the end
	damaged []int64 // offsets of unreadable batches that have readable ones behind them
}

// scan reads batches from an offset until it has about limit entries. final says
// that nobody writes to the segment any more; while somebody does, an unreadable
// batch is one that is being written.
func scan(r io.ReaderAt, size, from int64, limit int, final bool) (scanned, error) {
	s := scanned{next: max(from, headerBytes)}
	for len(s.entries) < limit {
		entries, n, ok, err := readBatch(r, s.next)
		if err != nil {
			return s, err
		}
		if ok {
			s.entries = append(s.entries, entries...)
			s.next = align(s.next + n)
			continue
		}
		if !final {
			s.end = true
			return s, nil
		}
		later, dirty, err := findBatch(r, s.next, size)
		if err != nil {
			return s, err
		}
		if later == 0 {
			s.end, s.torn = true, dirty
			return s, nil
		}
		s.damaged = append(s.damaged, s.next)
		s.next = later
	}
	return s, nil
}

func readBatch(r io.ReaderAt, at int64) ([]segmentEntry, int64, bool, error) {
	head := make([]byte, headerBytes)
	if n, err := r.ReadAt(head, at); n < len(head) {
		return nil, 0, false, unlessEnd(err)
	}
	n := binary.LittleEndian.Uint32(head[4:])
	if binary.LittleEndian.Uint32(head) != batchMagic || n > maxBatch {
		return nil, 0, false, nil
	}
	b := make([]byte, headerBytes+int64(n))
	if n, err := r.ReadAt(b, at); n < len(b) {
		return nil, 0, false, unlessEnd(err)
	}
	entries, size, ok := decodeBatch(b, at)
	return entries, size, ok, nil
}

// findBatch looks for a readable batch behind the unreadable one at from; 0 is
// none. dirty says that there are bytes other than zeros.
func findBatch(r io.ReaderAt, from, size int64) (at int64, dirty bool, err error) {
	rest, err := io.ReadAll(io.NewSectionReader(r, from, max(0, size-from)))
	if err != nil {
		return 0, false, err
	}
	for i := batchAlign; i < len(rest); i += batchAlign {
		if _, _, ok := decodeBatch(rest[i:], from+int64(i)); ok {
			return from + int64(i), true, nil
		}
	}
	return 0, len(bytes.Trim(rest, "\x00")) > 0, nil
}

func unlessEnd(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// lockSegment takes the writer's lock, which says that the writer lives.
func lockSegment(f *os.File) bool {
	return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil
}

// allocate makes sure that the first size bytes of the file can be written on a
// full disk.
func allocate(f *os.File, size int64) error {
	err := unix.Fallocate(int(f.Fd()), 0, 0, size)
	if !errors.Is(err, unix.EOPNOTSUPP) && !errors.Is(err, unix.ENOSYS) {
		return err
	}
	zeros := make([]byte, 1<<20)
	for at := int64(0); at < size; at += int64(len(zeros)) {
		if _, err := f.WriteAt(zeros[:min(int64(len(zeros)), size-at)], at); err != nil {
			return err
		}
	}
	return nil
}
