package audit

import (
	"bytes"
	"encoding/binary"
	"errors"

	"github.com/klauspost/compress/zstd"

	"github.com/falaj-ml/falaj/internal/store"
)

// An archived segment is Zstandard over: the magic, the number of leaves, the index of the
// first, and the leaves. Numbers are varints, texts have their length before them:
//
//	time | source | 1 | salt | record                                       as it was signed
//	time | source | 0 | leaf | project | actor id | name | action | outcome  blank
//
// The leaf of a record and its columns for filters follow from salt and record.
const (
	archiveMagic     = "FALAJAS1"
	maxSegmentObject = 32 << 20 // bytes, compressed or not
	blankLeaf        = 0
	wholeLeaf        = 1
)

var errNoSegment = errors.New("it is not a segment of archived audit entries")

// encodeLeaves gives the object of leaves that follow one another.
func encodeLeaves(leaves []Leaf) ([]byte, error) {
	b := []byte(archiveMagic)
	b = binary.AppendUvarint(b, uint64(len(leaves)))
	b = binary.AppendVarint(b, leaves[0].Index)
	text := func(s string) { b = append(binary.AppendUvarint(b, uint64(len(s))), s...) }
	for _, l := range leaves {
		b = binary.AppendVarint(b, int64(l.At))
		text(l.Source)
		if l.Record != nil {
			b = append(b, wholeLeaf)
			text(string(l.Salt))
			text(string(l.Record))
			continue
		}
		b = append(b, blankLeaf)
		for _, s := range []string{string(l.Commitment), l.Project, l.ActorID, l.ActorName, l.Action, string(l.Outcome)} {
			text(s)
		}
	}
	if len(b) > maxSegmentObject {
		return nil, errNoSegment
	}
	z, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.SpeedBetterCompression))
	if err != nil {
		return nil, err
	}
	return z.EncodeAll(b, nil), z.Close()
}

// decodeLeaves reads what encodeLeaves gives.
func decodeLeaves(object []byte) ([]Leaf, error) {
	z, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(maxSegmentObject))
	if err != nil {
		return nil, err
	}
	defer z.Close()
	b, err := z.DecodeAll(object, nil)
	if err != nil {
		return nil, errNoSegment
	}
	b, ok := bytes.CutPrefix(b, []byte(archiveMagic))
	if !ok {
		return nil, errNoSegment
	}
	d := leafDecoder{b: b}
	n, first := d.unsigned(), d.number()
	if d.failed || n == 0 || n > MaxSegmentLeaves || first < 0 || first > 1<<62 {
		return nil, errNoSegment
	}
	leaves := make([]Leaf, n)
	for i := range leaves {
		l := &leaves[i]
		l.Index = first + int64(i)
		l.At = store.Time(d.number())
		l.Source = string(d.text())
		switch d.unsigned() {
		case wholeLeaf:
			l.Salt, l.Record = d.text(), d.text()
			l.Commitment = commit(l.Salt, l.Record)
			repeat := l.restoreColumns()
			l.Project, l.ActorID, l.ActorName = repeat.Project, repeat.ActorID, repeat.ActorName
			l.Action, l.Object, l.Outcome = repeat.Action, repeat.Object, repeat.Outcome
		case blankLeaf:
			l.Commitment = d.text()
			l.Project, l.ActorID, l.ActorName = string(d.text()), string(d.text()), string(d.text())
			l.Action, l.Outcome = string(d.text()), Outcome(d.text())
		default:
			return nil, errNoSegment
		}
		if d.failed {
			return nil, errNoSegment
		}
	}
	if len(d.b) > 0 {
		return nil, errNoSegment
	}
	return leaves, nil
}

// leafDecoder takes values from the front of b; after one that is not there it has failed.
type leafDecoder struct {
	b      []byte
	failed bool
}

func (d *leafDecoder) number() int64 {
	v, n := binary.Varint(d.b)
	d.skip(n)
	return v
}

func (d *leafDecoder) unsigned() uint64 {
	v, n := binary.Uvarint(d.b)
	d.skip(n)
	return v
}

func (d *leafDecoder) skip(n int) {
	if n <= 0 {
		d.failed, d.b = true, nil
		return
	}
	d.b = d.b[n:]
}

// text is never nil.
func (d *leafDecoder) text() []byte {
	n := d.unsigned()
	if d.failed || n > uint64(len(d.b)) {
		d.failed, d.b = true, nil
		return []byte{}
	}
	t := d.b[:n:n]
	d.b = d.b[n:]
	return t
}
