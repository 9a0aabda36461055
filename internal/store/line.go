package store

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/falaj-ml/falaj/internal/fault"
)

// Line is what a search reads of an object, out of an index, to decide whether it reads the
// object.
type Line struct {
	Key    string // place in the order of the list
	Owner  string // id; empty for none
	Fields []Field
	More   bool // the object has fields that are not in Fields
}

// Field is a text of an object and the name of the field that holds it.
type Field struct{ Name, Value string }

// FieldsOf gives several values of a field.
func FieldsOf(name string, values ...string) []Field {
	var out []Field
	for _, v := range values {
		out = append(out, Field{name, v})
	}
	return out
}

const (
	// maxLine bounds the fields in an index, in bytes: PostgreSQL takes no entry of more than
	// 2,700 bytes, and the key and the owner are in it, too.
	maxLine = 1500

	// Unlisted is the column where the fields are longer, or of a row older than the column.
	Unlisted = "*"

	betweenFields = "\x1e"
	betweenNames  = "\x1f"
)

// JoinFields writes fields, in their order, for a column that ReadLines reads.
func JoinFields(fields []Field) string {
	var b strings.Builder
	for _, f := range fields {
		if f.Value == "" {
			continue
		}
		if strings.ContainsAny(f.Name+f.Value, "\x00"+betweenFields+betweenNames) || !utf8.ValidString(f.Value) {
			return Unlisted
		}
		if b.Len() > 0 {
			b.WriteString(betweenFields)
		}
		b.WriteString(f.Name + betweenNames + f.Value)
		if b.Len() > maxLine {
			return Unlisted
		}
	}
	return b.String()
}

// Add adds fields that JoinFields wrote.
func (l *Line) Add(line string) {
	if line == Unlisted {
		l.More = true
		return
	}
	for part := range strings.SplitSeq(line, betweenFields) {
		if name, value, ok := strings.Cut(part, betweenNames); ok {
			l.Fields = append(l.Fields, Field{name, value})
		}
	}
}

// ReadLines reads lines from a query of the columns key, owner and line, in its order. Rows
// of the same key that follow each other are one line.
func ReadLines(ctx context.Context, q interface {
	Scan(ctx context.Context, dest ...any) error
},
) ([]Line, error) {
	var rows []struct{ Key, Owner, Line string }
	if err := q.Scan(ctx, &rows); err != nil {
		return nil, err
	}
	lines := make([]Line, 0, len(rows))
	for _, r := range rows {
		if n := len(lines); n == 0 || lines[n-1].Key != r.Key {
			lines = append(lines, Line{Key: r.Key, Owner: r.Owner})
		}
		lines[len(lines)-1].Add(r.Line)
	}
	return lines, nil
}

// maxLines bounds the lines that a call of Find inspects.
const maxLines = 2000

// Found is what a call of Find gives.
type Found[T any] struct {
	Objects []T    // in the order of the list
	Seen    int    // lines inspected
	Next    string // key after which to resume; empty at the end
}

// Lookup says how objects are found by their lines.
type Lookup[T any] struct {
	// Lines gives lines after a key, in order.
	Lines func(ctx context.Context, tx *Tx, after string, limit int) ([]Line, error)
	// Read gives the objects of keys that still exist, in any order.
	Read func(ctx context.Context, tx *Tx, keys []string) ([]T, error)
	Key  func(T) string
}

// Find reads the objects after a key for whose lines may reports a possible match, limit at
// most. It inspects at most 2,000 lines.
func Find[T any](ctx context.Context, db *DB, l Lookup[T], after string, limit int, may func(Line) (bool, error)) (found Found[T], err error) {
	var lines []Line
	err = db.View(ctx, func(ctx context.Context, tx *Tx) error {
		lines, err = l.Lines(ctx, tx, after, maxLines+1)
		return err
	})
	if err != nil {
		return found, err
	}
	place := map[string]int{}
	var keys []string
	for found.Seen < min(len(lines), maxLines) && len(keys) < limit {
		line := lines[found.Seen]
		found.Seen++
		switch ok, err := may(line); {
		case err != nil:
			return Found[T]{}, err
		case ok:
			place[line.Key] = len(keys)
			keys = append(keys, line.Key)
		}
	}
	if found.Seen < len(lines) {
		found.Next = lines[found.Seen-1].Key
	}
	if len(keys) == 0 {
		return found, nil
	}
	err = db.View(ctx, func(ctx context.Context, tx *Tx) error {
		found.Objects, err = l.Read(ctx, tx, keys)
		return err
	})
	slices.SortFunc(found.Objects, func(a, b T) int { return cmp.Compare(place[l.Key(a)], place[l.Key(b)]) })
	return found, err
}

// Each reads the objects of keys one by one, without those that no longer exist.
func Each[T any](keys []string, read func(key string) (T, error)) (out []T, err error) {
	for _, key := range keys {
		x, err := read(key)
		if fault.Is(err, fault.NotFound) {
			continue
		}
		if err != nil {
			return nil, err
		}
		out = append(out, x)
	}
	return out, nil
}
