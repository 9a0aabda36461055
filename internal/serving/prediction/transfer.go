package prediction

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"math"
	"path/filepath"

	"github.com/falaj-ml/falaj/internal/fault"
)

// AppendRecords appends a record, after its length, as it goes to another log. Errors:
// fault.Invalid, fault.TooLarge.
func AppendRecords(dst []byte, r *Record) ([]byte, error) {
	b, err := appendRecord(nil, r)
	if err != nil {
		return dst, err
	}
	return append(binary.AppendUvarint(dst, uint64(len(b))), b...), nil
}

// DecodeRecords reads what AppendRecords wrote, all of it. Project and deployment are
// not in it. Error: fault.Invalid.
func DecodeRecords(b []byte) ([]*Record, error) {
	var out []*Record
	err := eachRecord(b, func(_ int, b []byte) error {
		r := &Record{}
		out = append(out, r)
		return decodeRecord(b, r)
	})
	if err != nil {
		return nil, fault.New(fault.Invalid, "the predictions are invalid: %w", err)
	}
	return out, nil
}

// Sync brings to disk what was appended to a deployment's log, with the names of its
// files.
func (l *Log) Sync(_ context.Context, project, deployment string) error {
	j, err := l.of(Place{project, deployment})
	if err != nil {
		return err
	}
	if err := j.sync(false); err != nil {
		return err
	}
	return errors.Join(syncDir(j.dir), syncDir(filepath.Dir(j.dir)), syncDir(l.cfg.Dir))
}

// End is behind the last record of a deployment's log: what Read visits after it was
// appended later. Its Index is -1, which String does not write.
func (l *Log) End(ctx context.Context, project, deployment string) (Cursor, error) {
	j, err := l.of(Place{project, deployment})
	if err != nil {
		return Cursor{}, err
	}
	if _, err := j.load(ctx); err != nil {
		return Cursor{}, err
	}
	j.writing.Lock()
	defer j.writing.Unlock()
	j.mu.Lock()
	defer j.mu.Unlock()
	if len(j.segments) == 0 {
		return Cursor{}, nil
	}
	last := j.segments[len(j.segments)-1]
	c := Cursor{Segment: last.number, Offset: last.end, Index: -1}
	if j.active != nil && j.active.sg == last {
		c.Frame = j.active.frame
	}
	return c, nil
}

// Behind is about how many bytes of a deployment's log lie behind a cursor.
func (l *Log) Behind(ctx context.Context, project, deployment string, c Cursor) (n int64, err error) {
	j, err := l.of(Place{project, deployment})
	if err != nil {
		return 0, err
	}
	if _, err := j.load(ctx); err != nil {
		return 0, err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, sg := range j.segments {
		switch {
		case sg.number > c.Segment:
			n += sg.end - headerSize
		case sg.number == c.Segment:
			n += max(0, sg.end-max(c.Offset, headerSize))
		}
	}
	return n, nil
}

// Forget removes the records up to that of a cursor, all of which are elsewhere: the
// segments before its own, and its own when nothing follows there.
func (l *Log) Forget(ctx context.Context, project, deployment string, upTo Cursor) error {
	j, err := l.of(Place{project, deployment})
	if err != nil {
		return err
	}
	if err := j.sync(true); err != nil { // what comes now begins a segment
		return err
	}
	segments, key, err := j.look(ctx, upTo.Segment)
	if err != nil {
		return err
	}
	last := upTo.Segment
	if len(segments) > 0 && segments[0].number == upTo.Segment {
		if err := j.readSegment(ctx, segments[0], key, upTo, func(Cursor, *Record) error {
			last = upTo.Segment - 1
			return io.EOF
		}); err != nil && !errors.Is(err, io.EOF) {
			return err
		}
	}
	_, err = j.remove(func(sg *segment) bool { return sg.number <= last })
	return err
}

// Erase takes what a person's rows say out of the record, as Log.Erase does in the
// log, and returns how many they were.
func (r *Record) Erase(p Person) int {
	rows := p.rows(r)
	if len(rows) == 0 {
		return 0
	}
	r.Erased = true
	for _, columns := range [][]Column{r.Keys, r.Inputs} {
		for i := range columns {
			c := &columns[i]
			for _, at := range rows {
				if len(c.Texts) > 0 {
					c.Texts[at] = ""
				} else {
					c.Numbers[at] = math.NaN()
				}
			}
		}
	}
	for _, at := range rows {
		if at < len(r.Scores) {
			r.Scores[at] = math.NaN()
		}
	}
	return len(rows)
}
