package cell

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"hash"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/falaj-ml/falaj/internal/dataset/table"
)

// Digest is the identity of a table's rows, whatever batches they come
// in: a SHA-256 over the columns' names and types, the number of rows, and for
// each column the SHA-256 of its cells in order. A cell is one byte for its
// presence and, when it is not null, its value (Append).
type Digest struct {
	schema table.Schema
	cols   []hash.Hash
	rows   int64
	buf    []byte
}

const digestVersion = "falaj dataset content 1\n"

// NewDigest begins the digest of a table.
func NewDigest(s table.Schema) *Digest {
	d := &Digest{schema: s, cols: make([]hash.Hash, len(s))}
	for i := range d.cols {
		d.cols[i] = sha256.New()
	}
	return d
}

// Add adds rows.
func (d *Digest) Add(rec arrow.RecordBatch) {
	d.rows += rec.NumRows()
	for c, h := range d.cols {
		a := rec.Column(c)
		d.buf = d.buf[:0]
		for i := range a.Len() {
			if a.IsNull(i) {
				d.buf = append(d.buf, 0)
			} else {
				d.buf = Append(append(d.buf, 1), a, i)
			}
			if len(d.buf) > 64<<10 {
				h.Write(d.buf)
				d.buf = d.buf[:0]
			}
		}
		h.Write(d.buf)
	}
}

// Sum is the digest of the rows so far: "sha256:" and hexadecimal digits.
func (d *Digest) Sum() string {
	var b bytes.Buffer
	b.WriteString(digestVersion)
	_ = binary.Write(&b, binary.LittleEndian, d.rows)
	for i, f := range d.schema {
		for _, s := range []string{f.Name, string(f.Type)} {
			_ = binary.Write(&b, binary.LittleEndian, uint32(len(s))) //nolint:gosec // names are short
			b.WriteString(s)
		}
		b.Write(d.cols[i].Sum(nil))
	}
	h := sha256.Sum256(b.Bytes())
	return "sha256:" + hex.EncodeToString(h[:])
}
