package prediction

import (
	"encoding/binary"
	"math"
	"slices"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
)

// Limits of a record.
const (
	maxRecord  = 16 << 20 // bytes of one record
	maxRows    = 1 << 20
	maxColumns = 1 << 16
	maxText    = 1 << 20 // bytes of one text
)

const (
	codecVersion = 1

	flagShadow = 1 << 0
	flagReplay = 1 << 1
	flagBucket = 1 << 2 // its bucket comes at the end
	flagOwner  = 1 << 3 // and then its owner
	flagErased = 1 << 4 // rows of a person were blanked, in place
	flagRemote = 1 << 5 // and then the remote and its zone
	flagTask   = 1 << 6 // and then its task, classes and probabilities

	columnDouble = 0 // 8 bytes a number
	columnSingle = 1 // 4 bytes a number: all of them are float32 exactly
	columnText   = 2
)

// appendRecord appends a record as bytes: times in microseconds, latency in
// nanoseconds, numbers in 4 bytes where that loses nothing. Project and
// deployment are those of the segment. Errors: fault.Invalid, fault.TooLarge.
func appendRecord(dst []byte, r *Record) ([]byte, error) {
	if r.Rows < 0 || r.Rows > maxRows || len(r.Keys) > maxColumns || len(r.Inputs) > maxColumns {
		return dst, fault.New(fault.TooLarge, "a prediction of %d rows, %d keys and %d inputs is over the limits of %d rows and %d columns",
			r.Rows, len(r.Keys), len(r.Inputs), maxRows, maxColumns)
	}
	var flags byte
	if r.Shadow {
		flags |= flagShadow
	}
	if r.Replay {
		flags |= flagReplay
	}
	if r.Bucket != 0 {
		flags |= flagBucket
	}
	if r.Owner != 0 {
		flags |= flagOwner
	}
	if r.Erased {
		flags |= flagErased
	}
	if r.Remote != "" {
		flags |= flagRemote
	}
	if r.Task != "" {
		flags |= flagTask
	}
	task := slices.Index(tasks, r.Task)
	switch {
	case task < 0 || r.Task == "" && len(r.Predicted)+len(r.Probabilities) > 0:
		return dst, fault.New(fault.Invalid, "a prediction of task %q has classes", clip(string(r.Task)))
	case len(r.Predicted) != 0 && len(r.Predicted) != r.Rows,
		len(r.Probabilities) > MaxProbabilities || len(r.Probabilities)%max(r.Rows, 1) != 0:
		return dst, fault.New(fault.Invalid, "a prediction has %d classes and %d probabilities for %d rows", len(r.Predicted), len(r.Probabilities), r.Rows)
	}
	start := len(dst)
	dst = append(dst, codecVersion, flags)
	for _, s := range [...]string{r.ID, r.Model, r.Rollout, r.Failure} {
		if len(s) > maxText {
			return dst[:start], fault.New(fault.TooLarge, "a text of %d bytes in a prediction is over the limit of %d", len(s), maxText)
		}
		dst = appendText(dst, s)
	}
	dst = binary.AppendVarint(dst, r.Version)
	at := micros(r.At)
	dst = binary.AppendVarint(dst, at)
	dst = binary.AppendVarint(dst, micros(r.Received)-at)
	dst = binary.AppendVarint(dst, int64(r.Latency))
	dst = binary.AppendUvarint(dst, uint64(r.Rows))
	dst = appendNumbers(dst, r.Scores)
	for _, columns := range [...][]Column{r.Keys, r.Inputs} {
		dst = binary.AppendUvarint(dst, uint64(len(columns)))
		for i := range columns {
			c := &columns[i]
			if (len(c.Numbers) != r.Rows || len(c.Texts) != 0) && (len(c.Texts) != r.Rows || len(c.Numbers) != 0) {
				return dst[:start], fault.New(fault.Invalid, "column %q of a prediction has %d numbers and %d texts for %d rows", clip(c.Name), len(c.Numbers), len(c.Texts), r.Rows)
			}
			if len(c.Name) > maxText {
				return dst[:start], fault.New(fault.TooLarge, "the name of a column has %d bytes", len(c.Name))
			}
			dst = appendText(dst, c.Name)
			if len(c.Texts) == 0 {
				dst = appendNumbers(dst, c.Numbers)
				continue
			}
			dst = append(dst, columnText)
			for _, t := range c.Texts {
				if len(t) > maxText {
					return dst[:start], fault.New(fault.TooLarge, "a text of %d bytes in a prediction is over the limit of %d", len(t), maxText)
				}
				dst = appendText(dst, t)
			}
		}
		if len(dst)-start > maxRecord {
			return dst[:start], fault.New(fault.TooLarge, "a prediction exceeds %d bytes", maxRecord)
		}
	}
	if r.Bucket != 0 {
		dst = binary.AppendUvarint(dst, uint64(r.Bucket))
	}
	if r.Owner != 0 {
		dst = binary.LittleEndian.AppendUint64(dst, r.Owner)
	}
	if r.Remote != "" {
		dst = appendText(appendText(dst, r.Remote), r.Zone)
	}
	if r.Task == "" {
		return dst, nil
	}
	dst = binary.AppendUvarint(append(dst, byte(task)), uint64(len(r.Predicted))) //nolint:gosec // G115: one of a few tasks
	for _, t := range r.Predicted {
		if len(t) > maxText {
			return dst[:start], fault.New(fault.TooLarge, "a class of %d bytes in a prediction is over the limit of %d", len(t), maxText)
		}
		dst = appendText(dst, t)
	}
	dst = appendNumbers(dst, r.Probabilities)
	if len(dst)-start > maxRecord {
		return dst[:start], fault.New(fault.TooLarge, "a prediction exceeds %d bytes", maxRecord)
	}
	return dst, nil
}

func appendText(dst []byte, s string) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(s))), s...)
}

// appendNumbers appends a kind, a count and the numbers.
func appendNumbers(dst []byte, xs []float64) []byte {
	kind := byte(columnSingle)
	for _, x := range xs {
		if float64(float32(x)) != x && !math.IsNaN(x) {
			kind = columnDouble
			break
		}
	}
	dst = append(dst, kind)
	dst = binary.AppendUvarint(dst, uint64(len(xs)))
	for _, x := range xs {
		if kind == columnSingle {
			dst = binary.LittleEndian.AppendUint32(dst, math.Float32bits(float32(x)))
		} else {
			dst = binary.LittleEndian.AppendUint64(dst, math.Float64bits(x))
		}
	}
	return dst
}

// decodeRecord reads what appendRecord wrote, all of it. Nothing in the record
// refers to b afterwards. Error: fault.Internal.
func decodeRecord(b []byte, r *Record) error {
	d := decoder{b: b}
	if d.byte() != codecVersion {
		return errRecord("its version is unknown")
	}
	flags := d.byte()
	if flags&^(flagShadow|flagReplay|flagBucket|flagOwner|flagErased|flagRemote|flagTask) != 0 {
		return errRecord("its flags are unknown")
	}
	r.Shadow, r.Replay, r.Erased = flags&flagShadow != 0, flags&flagReplay != 0, flags&flagErased != 0
	r.ID, r.Model, r.Rollout, r.Failure = d.text(), d.text(), d.text(), d.text()
	r.Version = d.varint()
	at := d.varint()
	r.At, r.Received = instant(at), instant(at+d.varint())
	r.Latency = time.Duration(d.varint())
	rows := d.count(maxRows, 0)
	r.Rows = rows
	r.Scores = d.numbers(d.byte(), -1)
	r.Keys, r.Inputs = d.columns(rows), d.columns(rows)
	if r.Bucket = 0; flags&flagBucket != 0 {
		r.Bucket = uint32(d.count(math.MaxUint32, 0)) //nolint:gosec // G115: at most MaxUint32
		d.bad = d.bad || r.Bucket == 0
	}
	if r.Owner = 0; flags&flagOwner != 0 {
		r.Owner = d.fixed()
		d.bad = d.bad || r.Owner == 0
	}
	if r.Remote, r.Zone = "", ""; flags&flagRemote != 0 {
		r.Remote, r.Zone = d.text(), d.text()
		d.bad = d.bad || r.Remote == ""
	}
	if r.Task, r.Predicted, r.Probabilities = "", nil, nil; flags&flagTask != 0 {
		task := int(d.byte())
		if n := d.count(maxRows, 1); n > 0 {
			r.Predicted = make([]string, n)
			for i := range r.Predicted {
				r.Predicted[i] = d.text()
			}
		}
		r.Probabilities = d.numbers(d.byte(), -1)
		d.bad = d.bad || task == 0 || task >= len(tasks) || len(r.Predicted) != 0 && len(r.Predicted) != rows ||
			len(r.Probabilities) > MaxProbabilities || len(r.Probabilities)%max(rows, 1) != 0
		if !d.bad {
			r.Task = tasks[task]
		}
	}
	if d.bad || len(d.b) != 0 {
		return errRecord("it is corrupted")
	}
	return nil
}

func errRecord(why string) error {
	return fault.New(fault.Internal, "a logged prediction cannot be read: %s", why)
}

// decoder takes bytes from the front; bad says that something was not there.
type decoder struct {
	b   []byte
	bad bool
}

func (d *decoder) byte() byte {
	if len(d.b) == 0 {
		d.bad = true
		return 0
	}
	x := d.b[0]
	d.b = d.b[1:]
	return x
}

func (d *decoder) varint() int64 {
	x, n := binary.Varint(d.b)
	if n <= 0 {
		d.bad, d.b = true, nil
		return 0
	}
	d.b = d.b[n:]
	return x
}

func (d *decoder) fixed() uint64 {
	if len(d.b) < 8 {
		d.bad, d.b = true, nil
		return 0
	}
	x := binary.LittleEndian.Uint64(d.b)
	d.b = d.b[8:]
	return x
}

// count is a number of things that take at least size bytes each.
func (d *decoder) count(limit, size int) int {
	x, n := binary.Uvarint(d.b)
	if n <= 0 || x > uint64(limit) || x*uint64(size) > uint64(len(d.b)-n) { //nolint:gosec // G115: limits are positive
		d.bad, d.b = true, nil
		return 0
	}
	d.b = d.b[n:]
	return int(x) //nolint:gosec // G115: at most limit
}

func (d *decoder) text() string {
	n := d.count(maxText, 1)
	s := string(d.b[:n])
	d.b = d.b[n:]
	return s
}

// numbers reads numbers of a kind, want of them unless it is negative.
func (d *decoder) numbers(kind byte, want int) []float64 {
	size := 8
	if kind == columnSingle {
		size = 4
	}
	n := d.count(maxRows, size)
	if kind > columnSingle || (want >= 0 && n != want) {
		d.bad, d.b = true, nil
		return nil
	}
	if n == 0 {
		return nil
	}
	xs := make([]float64, n)
	for i := range xs {
		if kind == columnSingle {
			xs[i] = float64(math.Float32frombits(binary.LittleEndian.Uint32(d.b[4*i:])))
		} else {
			xs[i] = math.Float64frombits(binary.LittleEndian.Uint64(d.b[8*i:]))
		}
	}
	d.b = d.b[size*n:]
	return xs
}

func (d *decoder) columns(rows int) []Column {
	n := d.count(maxColumns, 2)
	if n == 0 {
		return nil
	}
	columns := make([]Column, n)
	for i := range columns {
		c := &columns[i]
		c.Name = d.text()
		kind := d.byte()
		if kind != columnText {
			c.Numbers = d.numbers(kind, rows)
			continue
		}
		if rows > len(d.b) {
			d.bad, d.b = true, nil
		}
		if d.bad {
			return nil
		}
		c.Texts = make([]string, rows)
		for j := range c.Texts {
			c.Texts[j] = d.text()
		}
	}
	return columns
}

func micros(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMicro()
}

func instant(us int64) time.Time {
	if us == 0 {
		return time.Time{}
	}
	return time.UnixMicro(us).UTC()
}

func clip(s string) string { return fault.Clip(s, 80) }
