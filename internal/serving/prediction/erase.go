package prediction

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/falaj-ml/falaj/internal/fault"
)

// Person is whose rows are looked for in records: by the keys that were looked up,
// or the inputs of the model, that are called like the join keys of an entity.
type Person struct {
	Project string
	Keys    []string // join keys: names of columns
	// Is reports whether values, in the order of Keys and as text, are the person's.
	Is func(values []string) bool
}

// Count counts a person's rows in the log, by deployment.
func (l *Log) Count(ctx context.Context, p Person) (map[string]int64, error) {
	counts := map[string]int64{}
	return counts, l.each(p.Project, func(j *journal) error {
		n, err := j.count(ctx, p)
		if n > 0 {
			counts[j.place.Deployment] = n
		}
		return err
	})
}

// Erase takes what a person's rows say out of the log, and calls done for each
// deployment that has some, before they go: keys and texts become as many zero
// bytes, numbers and scores NaN, and the records are marked as erased. Rows of others
// in the same request stay, and so do all places in the log: cursors that others hold
// are good. What was written before is in no file when it returns.
func (l *Log) Erase(ctx context.Context, p Person, done func(deployment string, rows int64) error) error {
	return l.each(p.Project, func(j *journal) error {
		// Told first: whoever goes on after a crash does not find them any more.
		if err := j.sync(true); err != nil {
			return err
		}
		n, err := j.count(ctx, p)
		if err != nil || n == 0 {
			return err
		}
		if err := done(j.place.Deployment, n); err != nil {
			return err
		}
		_, err = j.erase(ctx, p)
		return err
	})
}

// each visits the journals of a project. Those whose key was destroyed are noise.
func (l *Log) each(project string, visit func(*journal) error) error {
	places, err := l.Places()
	if err != nil {
		return err
	}
	for _, at := range places {
		if at.Project != project {
			continue
		}
		j, err := l.of(at)
		if err == nil {
			err = visit(j)
		}
		if err != nil && !fault.Is(err, fault.Gone) {
			return fault.Wrap(err, "the predictions of %s", at.Deployment)
		}
	}
	return nil
}

func (j *journal) count(ctx context.Context, p Person) (n int64, err error) {
	segments, key, err := j.look(ctx, 0)
	if err != nil {
		return 0, err
	}
	for _, sg := range segments {
		if err := j.readSegment(ctx, sg, key, Cursor{}, func(_ Cursor, r *Record) error {
			n += int64(len(p.rows(r)))
			return nil
		}); err != nil {
			return 0, err
		}
	}
	return n, nil
}

// erase rewrites the segments that have rows of the person.
func (j *journal) erase(ctx context.Context, p Person) (n int64, err error) {
	if err := j.sync(true); err != nil { // what is being written is ended: the next record begins a segment
		return 0, err
	}
	segments, key, err := j.look(ctx, 0)
	if err != nil {
		return 0, err
	}
	for _, sg := range segments {
		if j.written(sg.number) {
			continue // since then; whoever looks again finds what is there
		}
		m, err := j.rewrite(ctx, sg, key, p)
		if err != nil {
			return n, err
		}
		n += m
	}
	return n, nil
}

// written reports whether a segment is still being written, or not sealed yet.
func (j *journal) written(number uint64) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.active != nil && j.active.sg.number == number || slices.ContainsFunc(j.retired, func(a *active) bool { return a.sg.number == number })
}

// rewrite puts a file without the person's rows in the place of a segment. It has
// another salt, and so another key: no nonce is used twice.
func (j *journal) rewrite(ctx context.Context, sg whole, key []byte, p Person) (n int64, err error) {
	from, s, err := openSegment(sg.path, sg.number, key, j.bound())
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, errTorn) {
		return 0, nil // trimmed meanwhile, or empty
	}
	if err != nil {
		return 0, err
	}
	defer func() { _ = from.Close() }()
	salt := make([]byte, saltSize)
	_, _ = rand.Read(salt) // never fails
	fresh, err := newSealer(key, salt, j.bound()+"/"+segmentName(sg.number))
	if err != nil {
		return 0, err
	}
	out, err := os.CreateTemp(j.dir, ".erase-*")
	if err != nil {
		return 0, err
	}
	defer func() {
		_ = out.Close()
		_ = os.Remove(out.Name()) // unless it has its name
	}()
	if _, err := out.Write(append([]byte(magic), salt...)); err != nil {
		return 0, err
	}
	var all span
	frames := frames{f: &window{f: from}, s: s, at: headerSize, end: sg.end}
	var buf []byte
	for {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		number := frames.number
		plain, _, err := frames.next()
		if errors.Is(err, io.EOF) || errors.Is(err, errFrame) { // what is behind a damaged frame nobody can read
			break
		}
		if err != nil {
			return 0, err
		}
		if err := eachRecord(plain, func(_ int, b []byte) error {
			var r Record
			if err := decodeRecord(b, &r); err != nil {
				return err
			}
			all.add(spanOf(&r))
			rows := p.rows(&r)
			n += int64(len(rows))
			return blank(b, rows)
		}); err != nil {
			return 0, err
		}
		buf = fresh.frame(buf[:0], kindRecords, number, plain)
		if _, err := out.Write(buf); err != nil {
			return 0, err
		}
	}
	if n == 0 {
		return 0, nil
	}
	if _, err := out.Write(appendFooter(nil, fresh, all, frames.at)); err != nil {
		return 0, err
	}
	if err := out.Sync(); err != nil {
		return 0, err
	}
	return n, j.exchange(sg, out.Name(), frames.at)
}

// exchange gives a rewritten segment its name, unless it was trimmed meanwhile.
func (j *journal) exchange(sg whole, path string, end int64) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	i := slices.IndexFunc(j.segments, func(known *segment) bool { return known.number == sg.number })
	if i < 0 {
		return nil
	}
	if err := os.Rename(path, sg.path); err != nil {
		return err
	}
	j.segments[i].end = end
	return syncDir(j.dir)
}

// rows are the places of the person's rows in a record.
func (p Person) rows(r *Record) (at []int) {
	if r.Rows == 0 || len(p.Keys) == 0 {
		return nil
	}
	columns := make([]*Column, len(p.Keys))
	for k, name := range p.Keys {
		for _, in := range [][]Column{r.Keys, r.Inputs} {
			if i := slices.IndexFunc(in, func(c Column) bool { return c.Name == name }); i >= 0 && columns[k] == nil {
				columns[k] = &in[i]
			}
		}
		if columns[k] == nil {
			return nil
		}
	}
	values := make([]string, len(columns))
	for i := range r.Rows {
		for k, c := range columns {
			if len(c.Texts) > 0 {
				values[k] = c.Texts[i]
			} else {
				values[k] = strconv.FormatFloat(c.Numbers[i], 'f', -1, 64)
			}
		}
		if p.Is(values) {
			at = append(at, i)
		}
	}
	return at
}

// blank takes what rows say out of an encoded record, in place: everything else
// stays where it is, and as long.
func blank(b []byte, rows []int) error {
	if len(rows) == 0 {
		return nil
	}
	b[1] |= flagErased
	d := decoder{b: b[2:]}
	for range 4 { // id, model, rollout, failure
		d.text()
	}
	for range 4 { // version and times
		d.varint()
	}
	count := d.count(maxRows, 0)
	d.blankNumbers(d.byte(), rows)
	for range 2 { // keys and inputs
		for range d.count(maxColumns, 2) {
			d.text()
			if kind := d.byte(); kind != columnText {
				d.blankNumbers(kind, rows)
				continue
			}
			d.blankTexts(count, rows)
		}
	}
	if flags := b[1]; flags&flagTask != 0 {
		if flags&flagBucket != 0 {
			d.count(math.MaxUint32, 0)
		}
		if flags&flagOwner != 0 {
			d.fixed()
		}
		if flags&flagRemote != 0 {
			d.text()
			d.text()
		}
		d.byte()
		d.blankTexts(d.count(maxRows, 1), rows)
		d.blankBlocks(d.byte(), rows, count)
	}
	if d.bad {
		return errRecord("it is corrupted")
	}
	return nil
}

// blankTexts passes texts, and makes those of the rows zero bytes.
func (d *decoder) blankTexts(count int, rows []int) {
	for i := range count {
		n := d.count(maxText, 1)
		if slices.Contains(rows, i) {
			clear(d.b[:n])
		}
		d.b = d.b[n:]
	}
}

// blankNumbers passes numbers, one of each row, and makes those of the rows NaN.
func (d *decoder) blankNumbers(kind byte, rows []int) { d.blankBlocks(kind, rows, 0) }

// blankBlocks passes numbers, as many of each row of count, and makes those of the rows
// NaN. 0 is a number for each.
func (d *decoder) blankBlocks(kind byte, rows []int, count int) {
	size := 8
	if kind == columnSingle {
		size = 4
	}
	n := d.count(maxRows, size)
	width := 1
	if count > 0 {
		width = n / count
	}
	for _, row := range rows {
		for i := row * width; i < min((row+1)*width, n); i++ {
			if size == 4 {
				binary.LittleEndian.PutUint32(d.b[4*i:], math.Float32bits(float32(math.NaN())))
			} else {
				binary.LittleEndian.PutUint64(d.b[8*i:], math.Float64bits(math.NaN()))
			}
		}
	}
	d.b = d.b[size*n:]
}

// sweepErased removes what a crash left of a rewrite.
func (j *journal) sweepErased() error {
	left, err := filepath.Glob(filepath.Join(j.dir, ".erase-*"))
	for _, path := range left {
		err = errors.Join(err, os.Remove(path))
	}
	return err
}
