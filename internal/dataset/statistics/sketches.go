package statistics

import (
	"encoding/json"
	"math"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/falaj-ml/falaj/internal/dataset/cell"
	"github.com/falaj-ml/falaj/internal/dataset/table"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/sketch"
)

// Limits of the input of sketches.
const (
	maxSketchCells = 1 << 18 // over all columns
	maxSketchRows  = 1 << 16
	emptyText      = "(empty)" // stands for the text "", which a sketch counts as missing
)

// Sketches are one of each column of a version, made of all rows up to a number, and of a
// uniform sample beyond.
type Sketches struct {
	Rows    int64                     `json:"rows"` // that it was made of
	Columns map[string]*sketch.Column `json:"-"`
}

type sketchesJSON struct {
	Rows    int64             `json:"rows"`
	Columns map[string][]byte `json:"columns"`
}

// MarshalJSON writes sketches in their binary form.
func (p Sketches) MarshalJSON() ([]byte, error) {
	out := sketchesJSON{p.Rows, map[string][]byte{}}
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
func (p *Sketches) UnmarshalJSON(b []byte) error {
	var in sketchesJSON
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

// Sampler keeps a uniform sample of rows (reservoir, algorithm R), the same for the
// same rows in whatever batches.
type Sampler struct {
	schema table.Schema
	most   int64
	seen   int64
	cols   []sampled
}

// sampled is a column of the sample: numbers, NaN for null, or texts, "" for null.
type sampled struct {
	numbers []float64
	texts   []string
}

// NewSampler makes a sampler of rows of a schema.
func NewSampler(s table.Schema) *Sampler {
	return &Sampler{schema: s, most: min(maxSketchRows, int64(maxSketchCells/max(len(s), 1))), cols: make([]sampled, len(s))}
}

func numeric(t table.Type) bool {
	_, list := t.Elem()
	return !list && t != table.String && t != table.Bool
}

// Add reads the rows of a batch.
func (s *Sampler) Add(rec arrow.RecordBatch) {
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
			v = cell.Number(a, i)
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
		if text = strings.Clone(sketch.Clip(cell.Text(a, i))); text == "" {
			text = emptyText
		}
	}
	if at == int64(len(c.texts)) {
		c.texts = append(c.texts, text)
	} else {
		c.texts[at] = text
	}
}

// Sketches gives what was read.
func (s *Sampler) Sketches() Sketches {
	p := Sketches{Rows: min(s.seen, s.most), Columns: map[string]*sketch.Column{}}
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
