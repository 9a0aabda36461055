package dataset

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"

	"github.com/falaj-ml/falaj/internal/dataset/datafile"
	"github.com/falaj-ml/falaj/internal/dataset/statistics"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/store"
)

// The sketches of a version are one of each column, made of all rows up to a
// number, and of a uniform sample beyond. It is kept as a file of the version,
// sealed as the dataset's other files are: it has values of the rows. Drift is
// computed from it, and Profile shows it.

const (
	sketchesFile   = "picture.json"
	maxSketchBytes = 256 << 20 // of the file, read back
)

// keepSketches writes the sketches of a version beside its files.
func (s *core) keepSketches(ctx context.Context, v Version, p statistics.Sketches) error {
	return datafile.Put(ctx, s.cfg.Files, v.file(sketchesFile, datafile.Enveloped), func(w io.Writer) error { return json.NewEncoder(w).Encode(p) })
}

// sketchesOf gives the sketches of a version; of one that was made without, they are made
// of the rows. The caller has passed the doors.
func (s *core) sketchesOf(ctx context.Context, v Version) (statistics.Sketches, error) {
	p, err := s.keptSketches(ctx, v)
	if fault.Is(err, fault.NotFound) {
		return s.draw(ctx, v)
	}
	return p, err
}

// keptSketches reads the sketches that are kept. Error: fault.NotFound when the version
// was made without.
func (s *core) keptSketches(ctx context.Context, v Version) (statistics.Sketches, error) {
	var p statistics.Sketches
	f, err := s.cfg.Files.Open(ctx, v.file(sketchesFile, datafile.Enveloped))
	if err != nil {
		return p, err
	}
	defer func() { _ = f.Close() }()
	if f.Size() > maxSketchBytes {
		return p, fault.New(fault.TooLarge, "the sketches of %s have %d bytes", v.Ref(), f.Size())
	}
	return p, fault.Wrap(json.NewDecoder(io.NewSectionReader(f, 0, f.Size())).Decode(&p), "the sketches of %s", v.Ref())
}

// draw makes the sketches of a version's rows.
func (s *core) draw(ctx context.Context, v Version) (p statistics.Sketches, err error) {
	rows, err := s.read(ctx, v, OpenRequest{})
	if err != nil {
		return p, err
	}
	defer rows.Release()
	sample := statistics.NewSampler(v.Schema)
	for rows.Next() {
		sample.Add(rows.RecordBatch())
		if err := ctx.Err(); err != nil {
			return p, err
		}
	}
	return sample.Sketches(), rows.Err()
}

// redraw makes the sketches that a version was made without, once, and keeps it: it
// reads all rows, so it takes the place and the time of a query.
func (s *Reads) redraw(ctx context.Context, v Version) (statistics.Sketches, error) {
	free, err := s.queries.Take(ctx, identity.Share(ctx, v.Project))
	if err != nil {
		return statistics.Sketches{}, err
	}
	defer free()
	p, err := s.keptSketches(ctx, v) // by somebody who had the place before
	if !fault.Is(err, fault.NotFound) {
		return p, err
	}
	limited, cancel := context.WithTimeout(ctx, s.limits.QueryTime)
	defer cancel()
	if p, err = s.draw(limited, v); err != nil {
		if ctx.Err() == nil && limited.Err() != nil {
			return p, fault.New(fault.TooLarge, "computing the sketches of %s takes longer than %s", v.Ref(), s.limits.QueryTime).
				WithHint("The version was made without sketches of its columns. Import it again, or raise limits.sql_time.")
		}
		return p, err
	}
	err = s.keepSketches(ctx, v, p)
	if err == nil {
		err = s.unlessDeleted(ctx, v)
	}
	if err != nil {
		s.cfg.Log.WarnContext(ctx, "the sketches of a version were not stored; they are computed again at the next request", slog.String("version", v.Ref().String()), slog.Any("error", err))
	}
	return p, nil
}

// unlessDeleted removes what was written of a version that was deleted meanwhile.
func (s *Reads) unlessDeleted(ctx context.Context, v Version) error {
	err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		v, err = s.cfg.Store.VersionByID(ctx, tx, v.Project, v.ID)
		return err
	})
	if err != nil || v.State != Deleted {
		return err
	}
	return s.cfg.Files.Remove(ctx, v.prefix())
}

// Profile is what the columns of a version look like.
type Profile struct {
	Version     string                     `json:"version"` // "weather@3"
	Rows        int64                      `json:"rows"`
	Quarantined int64                      `json:"quarantined,omitempty"`
	Sampled     int64                      `json:"sampled"` // rows that quantiles, histograms and top values are of
	Columns     []statistics.ColumnProfile `json:"columns"`
}

// Profile shows what a version's columns look like, also of a rejected one. It has
// values of the rows: needs dataset.query; otherwise as Open.
func (s *Reads) Profile(ctx context.Context, r OpenRequest) (Profile, error) {
	v, err := s.admit(ctx, r, true)
	if err != nil {
		return Profile{}, err
	}
	p, err := s.keptSketches(ctx, v)
	if fault.Is(err, fault.NotFound) {
		p, err = s.redraw(ctx, v)
	}
	if err != nil {
		return Profile{}, err
	}
	out := Profile{Version: v.Ref().String(), Rows: v.Rows, Quarantined: v.Quarantined, Sampled: p.Rows}
	for i, f := range v.Schema {
		sum := statistics.Summary{Column: f.Name}
		if i < len(v.Statistics) {
			sum = v.Statistics[i]
		}
		out.Columns = append(out.Columns, statistics.ProfileOf(f, sum, p.Columns[f.Name]))
	}
	return out, nil
}
