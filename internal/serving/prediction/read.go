package prediction

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"sort"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
)

// whole is a segment as a reader sees it: what was there when it looked.
type whole struct {
	number uint64
	path   string
	end    int64
}

// look is the list of the segments from a number on, with the key that opens
// them.
func (j *journal) look(ctx context.Context, from uint64) ([]whole, []byte, error) {
	key, err := j.load(ctx)
	if err != nil {
		return nil, nil, err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	first := sort.Search(len(j.segments), func(i int) bool { return j.segments[i].number >= from })
	out := make([]whole, 0, len(j.segments)-first)
	for _, sg := range j.segments[first:] {
		out = append(out, whole{sg.number, sg.path, sg.end})
	}
	return out, key, nil
}

// Read calls visit for each record of a deployment after a cursor, in the order
// of appending, up to what was appended when Read was called; an error of visit
// ends it. Records of shadows are among them. visit may keep the record. A
// deployment without records has none to visit. A part that is damaged on disk is
// skipped, logged and counted in Stats. Errors: visit's; fault.Gone when the
// project's key was destroyed.
func (l *Log) Read(ctx context.Context, project, deployment string, after Cursor, visit func(Cursor, *Record) error) error {
	j, err := l.of(Place{project, deployment})
	if err != nil {
		return err
	}
	segments, key, err := j.look(ctx, after.Segment)
	if err != nil {
		return err
	}
	for _, sg := range segments {
		if err := j.readSegment(ctx, sg, key, after, visit); err != nil {
			return err
		}
	}
	return nil
}

func (j *journal) readSegment(ctx context.Context, sg whole, key []byte, after Cursor, visit func(Cursor, *Record) error) error {
	f, s, err := openSegment(sg.path, sg.number, key, j.bound())
	if errors.Is(err, fs.ErrNotExist) {
		return nil // trimmed meanwhile
	}
	if err != nil {
		return fault.Wrap(err, "opening the prediction log of %s", j.place.Deployment)
	}
	defer func() { _ = f.Close() }()
	fs := frames{f: &window{f: f}, s: s, at: headerSize, end: sg.end}
	skip := -1 // index up to which the first frame was read already
	if after.Segment == sg.number && after.Offset >= headerSize {
		fs.at, fs.number, skip = after.Offset, after.Frame, after.Index
	}
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		number := fs.number
		plain, at, err := fs.next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if errors.Is(err, errFrame) {
			j.damaged(ctx, sg, at)
			return nil
		}
		if err != nil {
			return fault.Wrap(err, "reading the prediction log of %s", j.place.Deployment)
		}
		err = eachRecord(plain, func(i int, b []byte) error {
			if i <= skip {
				return nil
			}
			r := &Record{Project: j.place.Project, Deployment: j.place.Deployment}
			if err := decodeRecord(b, r); err != nil {
				return err
			}
			return visit(Cursor{Segment: sg.number, Offset: at, Frame: number, Index: i}, r)
		})
		if err != nil {
			return err
		}
		skip = -1
	}
}

// damaged notes, once, that a segment cannot be read from a place on.
func (j *journal) damaged(ctx context.Context, sg whole, at int64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, known := range j.segments {
		if known.number == sg.number && !known.broken {
			known.broken = true
			j.log.cfg.Logger.ErrorContext(ctx, "a corrupted part of the prediction log is skipped",
				slog.String("project", j.place.Project), slog.String("deployment", j.place.Deployment),
				slog.String("file", sg.path), slog.Int64("offset", at))
		}
	}
}

// Fetch calls visit for the record at each cursor that Read gave, with nil for
// one that is no longer there. It is quickest when the cursors are in order.
// Errors as of Read.
func (l *Log) Fetch(ctx context.Context, project, deployment string, at []Cursor, visit func(i int, r *Record) error) error {
	if len(at) == 0 {
		return nil
	}
	j, err := l.of(Place{project, deployment})
	if err != nil {
		return err
	}
	segments, key, err := j.look(ctx, 0)
	if err != nil {
		return err
	}
	var f *os.File
	defer func() {
		if f != nil {
			_ = f.Close()
		}
	}()
	var fs frames
	opened := uint64(0)
	var plain []byte
	var held Cursor // whose frame plain is
	for i, c := range at {
		if err := ctx.Err(); err != nil {
			return err
		}
		n := sort.Search(len(segments), func(k int) bool { return segments[k].number >= c.Segment })
		if n == len(segments) || segments[n].number != c.Segment || c.Offset < headerSize {
			if err := visit(i, nil); err != nil {
				return err
			}
			continue
		}
		if opened != c.Segment {
			if f != nil {
				_ = f.Close()
			}
			var s *sealer
			if f, s, err = openSegment(segments[n].path, c.Segment, key, j.bound()); err != nil {
				f, opened = nil, 0
				if errors.Is(err, os.ErrNotExist) {
					if err := visit(i, nil); err != nil {
						return err
					}
					continue
				}
				return fault.Wrap(err, "opening the prediction log of %s", deployment)
			}
			fs, opened, held = frames{f: &window{f: f}, s: s, end: segments[n].end}, c.Segment, Cursor{}
		}
		if held.Segment != c.Segment || held.Offset != c.Offset || held.Frame != c.Frame {
			fs.at, fs.number = c.Offset, c.Frame
			if plain, _, err = fs.next(); err != nil {
				if !errors.Is(err, errFrame) && !errors.Is(err, io.EOF) {
					return err
				}
				plain = nil
			}
			held = c
		}
		var found *Record
		err := eachRecord(plain, func(k int, b []byte) error {
			if k != c.Index {
				return nil
			}
			found = &Record{Project: project, Deployment: deployment}
			return decodeRecord(b, found)
		})
		if err != nil {
			return err
		}
		if err := visit(i, found); err != nil {
			return err
		}
	}
	return nil
}

// Since is a cursor before every record that was received at a time or later,
// and after as many of the others as is cheap.
func (l *Log) Since(ctx context.Context, project, deployment string, received time.Time) (Cursor, error) {
	j, err := l.of(Place{project, deployment})
	if err != nil {
		return Cursor{}, err
	}
	if _, err := j.load(ctx); err != nil {
		return Cursor{}, err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	for i, sg := range j.segments {
		if sg.span.received >= micros(received) || i == len(j.segments)-1 {
			return Cursor{Segment: sg.number}, nil
		}
	}
	return Cursor{}, nil
}

// window reads a file ahead, in chunks.
type window struct {
	f   *os.File
	buf []byte
	at  int64
}

const chunk = 256 << 10

func (w *window) ReadAt(p []byte, off int64) (int, error) {
	if len(p) > chunk {
		return w.f.ReadAt(p, off)
	}
	if off < w.at || off+int64(len(p)) > w.at+int64(len(w.buf)) {
		if w.buf == nil {
			w.buf = make([]byte, 0, chunk)
		}
		n, err := w.f.ReadAt(w.buf[:chunk], off)
		w.buf, w.at = w.buf[:n], off
		if n < len(p) {
			return copy(p, w.buf), err
		}
	}
	return copy(p, w.buf[off-w.at:]), nil
}
