package dataset

import (
	"cmp"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/falaj-ml/falaj/internal/dataset/table"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/sketch"
	"github.com/falaj-ml/falaj/internal/store"
)

// The sketches of a version are one of each column, made of all rows up to a
// number, and of a uniform sample beyond. It is kept as a file of the version,
// sealed as the dataset's other files are: it has values of the rows. Drift is
// judged by it, and Profile shows it.

// Limits of the input of sketches.
const (
	maxSketchCells = 1 << 18 // over all columns
	maxSketchRows  = 1 << 16
	maxSketchBytes = 256 << 20 // of the file, read back
	topValues      = 10
	emptyText      = "(empty)" // stands for the text "", which a sketch counts as missing
)

const sketchesFile = "picture.json"

// columnSketches is the file.
type columnSketches struct {
	Rows    int64                     `json:"rows"` // that it was made of
	Columns map[string]*sketch.Column `json:"-"`
}

type columnSketchesJSON struct {
	Rows    int64             `json:"rows"`
	Columns map[string][]byte `json:"columns"`
}

// MarshalJSON writes sketches in their binary form.
func (p columnSketches) MarshalJSON() ([]byte, error) {
	out := columnSketchesJSON{p.Rows, map[string][]byte{}}
	for name, c := range p.Columns {
		b, err := c.MarshalBinary()
		if err != nil {
			return nil, err
		}
		out.Columns[name] = b
	}
	return json.Marshal(out)
}

// UnmarshalJSON reads what MarshalJSON writes.
func (p *columnSketches) UnmarshalJSON(b []byte) error {
	var in columnSketchesJSON
	if err := json.Unmarshal(b, &in); err != nil {
		return err
	}
	p.Rows, p.Columns = in.Rows, map[string]*sketch.Column{}
	for name, b := range in.Columns {
		c := new(sketch.Column)
		if err := c.UnmarshalBinary(b); err != nil {
			return fault.Wrap(err, "column %q", name)
		}
		p.Columns[name] = c
	}
	return nil
}

// sampler keeps a uniform sample of rows (reservoir, algorithm R), the same for the
// same rows in whatever batches.
type sampler struct {
	schema Schema
	most   int64
	seen   int64
	cols   []sampled
}

// sampled is a column of the sample: numbers, NaN for null, or texts, "" for null.
type sampled struct {
	numbers []float64
	texts   []string
}

func newSampler(s Schema) *sampler {
	return &sampler{schema: s, most: min(maxSketchRows, int64(maxSketchCells/max(len(s), 1))), cols: make([]sampled, len(s))}
}

func numeric(t Type) bool {
	_, list := t.Elem()
	return !list && t != table.String && t != table.Bool
}

func (s *sampler) add(rec arrow.RecordBatch) {
	for i := range int(rec.NumRows()) {
		s.seen++
		at := s.seen - 1
		if at >= s.most {
			if at = int64(mix(uint64(s.seen)) % uint64(s.seen)); at >= s.most { //nolint:gosec // seen is positive, at below it
				continue
			}
		}
		for c := range s.cols {
			s.cols[c].put(at, rec.Column(c), i, numeric(s.schema[c].Type))
		}
	}
}

func (c *sampled) put(at int64, a arrow.Array, i int, number bool) {
	if number {
		v := math.NaN()
		if a.IsValid(i) {
			v = cellNumber(a, i)
		}
		if at == int64(len(c.numbers)) {
			c.numbers = append(c.numbers, v)
		} else {
			c.numbers[at] = v
		}
		return
	}
	text := ""
	if a.IsValid(i) {
		if text = strings.Clone(sketch.Clip(cellText(a, i))); text == "" {
			text = emptyText
		}
	}
	if at == int64(len(c.texts)) {
		c.texts = append(c.texts, text)
	} else {
		c.texts[at] = text
	}
}

func (s *sampler) sketches() columnSketches {
	p := columnSketches{Rows: min(s.seen, s.most), Columns: map[string]*sketch.Column{}}
	for i, f := range s.schema {
		c := sketch.NewCategorical(0)
		if numeric(f.Type) {
			c = sketch.NewNumeric(1)
		}
		for _, v := range s.cols[i].numbers {
			c.Add(v)
		}
		for _, text := range s.cols[i].texts {
			c.AddText(text)
		}
		p.Columns[f.Name] = c
	}
	return p
}

// keepSketches writes the sketches of a version beside its files.
func (s *core) keepSketches(ctx context.Context, v Version, p columnSketches) error {
	return put(ctx, s.cfg.Files, v.file(sketchesFile, Enveloped), func(w io.Writer) error { return json.NewEncoder(w).Encode(p) })
}

// sketchesOf gives the sketches of a version; of one that was made without, they are made
// of the rows. The caller has passed the doors.
func (s *core) sketchesOf(ctx context.Context, v Version) (columnSketches, error) {
	p, err := s.keptSketches(ctx, v)
	if fault.Is(err, fault.NotFound) {
		return s.draw(ctx, v)
	}
	return p, err
}

// keptSketches reads the sketches that are kept. Error: fault.NotFound when the version
// was made without.
func (s *core) keptSketches(ctx context.Context, v Version) (columnSketches, error) {
	var p columnSketches
	f, err := s.cfg.Files.Open(ctx, v.file(sketchesFile, Enveloped))
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
func (s *core) draw(ctx context.Context, v Version) (p columnSketches, err error) {
	rows, err := s.read(ctx, v, OpenRequest{})
	if err != nil {
		return p, err
	}
	defer rows.Release()
	sample := newSampler(v.Schema)
	for rows.Next() {
		sample.add(rows.RecordBatch())
		if err := ctx.Err(); err != nil {
			return p, err
		}
	}
	return sample.sketches(), rows.Err()
}

// redraw makes the sketches that a version was made without, once, and keeps it: it
// reads all rows, so it takes the place and the time of a query.
func (s *Reads) redraw(ctx context.Context, v Version) (columnSketches, error) {
	free, err := s.queries.Take(ctx, identity.Share(ctx, v.Project))
	if err != nil {
		return columnSketches{}, err
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
	Version     string          `json:"version"` // "weather@3"
	Rows        int64           `json:"rows"`
	Quarantined int64           `json:"quarantined,omitempty"`
	Sampled     int64           `json:"sampled"` // rows that quantiles, histograms and top values are of
	Columns     []ColumnProfile `json:"columns"`
}

// ColumnProfile is what a column looks like. Quantiles and edges are as people read
// values, as Statistics are.
type ColumnProfile struct {
	Statistics
	Type      Type            `json:"type"`
	Quantiles []Quantile      `json:"quantiles,omitempty"`
	Histogram *ValueHistogram `json:"histogram,omitempty"`
	Top       []TopValue      `json:"top,omitempty"` // of text and bool, and of few different numbers; most frequent first, at most 10
}

// Quantile is the value that a share of the others does not exceed.
type Quantile struct {
	Share float64 `json:"share"`
	Value string  `json:"value"`
}

// ValueHistogram has the share of the values in each bin. Bin i is over Edges[i] and
// up to Edges[i+1]; the first has what is below, too, and the last what is above.
type ValueHistogram struct {
	Edges  []string  `json:"edges"`
	Shares []float64 `json:"shares"`
}

// TopValue is a frequent value and its share of the values.
type TopValue struct {
	Value string  `json:"value"`
	Share float64 `json:"share"`
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
		c := ColumnProfile{Statistics: Statistics{Column: f.Name}, Type: f.Type}
		if i < len(v.Statistics) {
			c.Statistics = v.Statistics[i]
			c.Estimated = c.Distinct > fewMost // versions of earlier releases do not say it
		}
		if col := p.Columns[f.Name]; col != nil {
			c.draw(col)
		}
		out.Columns = append(out.Columns, c)
	}
	return out, nil
}

// draw adds what a sketch knows. Of classified data the statistics leave the
// extremes out; here they may be seen, and are those of the sketch.
func (c *ColumnProfile) draw(col *sketch.Column) {
	values := float64(col.Count())
	if values == 0 {
		return
	}
	if known, _, ok := col.Categories(); ok {
		c.top(known, values)
	}
	if col.Kind() != sketch.Numeric {
		return
	}
	text := func(v float64) string { return valueText(c.Type, v) }
	if c.Min == "" {
		c.Min, c.Max = text(col.Min()), text(col.Max())
	}
	seen := col.Summary()
	for _, q := range seen.Quantiles {
		c.Quantiles = append(c.Quantiles, Quantile{q.Q, text(q.Value)})
	}
	if h := seen.Histogram; h != nil {
		c.Histogram = &ValueHistogram{Shares: h.Shares}
		for _, e := range h.Edges {
			c.Histogram.Edges = append(c.Histogram.Edges, text(e))
		}
	}
}

func (c *ColumnProfile) top(known []sketch.Category, values float64) {
	slices.SortStableFunc(known, func(a, b sketch.Category) int { return cmp.Compare(b.Count, a.Count) })
	for _, k := range known[:min(len(known), topValues)] {
		text := k.Text
		if v, err := strconv.ParseFloat(text, 64); err == nil && numeric(c.Type) {
			text = valueText(c.Type, v)
		}
		c.Top = append(c.Top, TopValue{text, float64(k.Count) / values})
	}
}

// valueText is a number of a sketch as people read values of the type. Those
// between two whole numbers, as edges are, keep their fraction.
func valueText(t Type, v float64) string {
	switch t {
	case table.Timestamp:
		return timestampText(int64(v))
	case table.Date:
		return dateText(int64(v))
	case table.Float32:
		return float32Text(float32(v))
	default:
	}
	return floatText(v)
}
