package serving

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/feature/naming"
	"github.com/falaj-ml/falaj/internal/resource"
	"github.com/falaj-ml/falaj/internal/serving/batching"
	"github.com/falaj-ml/falaj/internal/serving/prediction"
	"github.com/falaj-ml/falaj/internal/serving/runtime"
)

// columns is a FeaturesSpec made ready for requests.
type columns struct {
	service  string
	input    string
	names    []string
	keys     []string // join keys
	values   []string // that features are computed from
	requests []string // request columns, each once
	sources  []source // beside names
}

// source is where a column's values come from.
type source struct {
	request    string // name of the request's input; "" for a feature
	feature    int    // in the set
	maxAge     time.Duration
	hasDefault bool
	otherwise  float64
}

// MissingFeature is a feature that has no usable value for a row.
type MissingFeature struct {
	Feature string // "weather:temp"
	Row     int    // from 0
	Entity  string // "origin=JFK"
	Status  FeatureStatus
	Event   time.Time // of the row that is too old
}

// MissingError refuses a request because features are missing that have no
// default. Its kind is fault.Invalid.
type MissingError struct {
	Missing []MissingFeature // at most maxMissing
	Total   int
}

const maxMissing = 10

func (e *MissingError) Error() string {
	words := make([]string, len(e.Missing))
	for i, m := range e.Missing {
		words[i] = fmt.Sprintf("feature %s of row %d (%s) is %s", m.Feature, m.Row, m.Entity, m.Status)
		if !m.Event.IsZero() {
			words[i] += ": its newest value dates from " + m.Event.UTC().Format(time.RFC3339)
		}
	}
	text := strings.Join(words, "; ")
	if n := e.Total - len(e.Missing); n > 0 {
		text += fmt.Sprintf("; and %d more", n)
	}
	return text
}

// Unwrap gives the kind and the hint.
func (e *MissingError) Unwrap() error {
	return fault.New(fault.Invalid, "features are missing").
		WithHint("Materialise the view, request a time with known values, or set a default in spec.features.defaults.")
}

func (f *FeatureSet) same(o *FeatureSet) bool {
	a, errA := json.Marshal(f)
	b, errB := json.Marshal(o)
	return errA == nil && errB == nil && string(a) == string(b)
}

// describe finds out what the features of a spec are and checks that its columns
// are among them.
func (s *Deployments) describe(ctx context.Context, project string, spec Spec) (*FeatureSet, error) {
	f := spec.Features
	if f == nil {
		return nil, nil //nolint:nilnil // no features
	}
	if s.cfg.Features == nil {
		return nil, fault.New(fault.Unsupported, "features are not enabled on this server")
	}
	set, err := s.cfg.Features.Describe(ctx, project, f.Service)
	if err != nil {
		return nil, fault.Wrap(err, "spec.features.service")
	}
	for _, c := range f.Columns {
		_, _, feature := strings.Cut(c, ":")
		at, err := naming.Find(set.Features, c)
		switch {
		case feature && err != nil:
			return nil, fault.Wrap(err, "spec.features.columns")
		case feature && at < 0:
			return nil, fault.New(fault.Invalid, "spec.features.columns: feature service %s has no feature %q", set.Ref, c).
				WithHint("Its features: %s.", strings.Join(set.Features, ", "))
		case !feature && c == f.Input:
			return nil, fault.New(fault.Invalid, "spec.features.columns: %q is the model's input; requests that contain it bring all columns", c)
		}
	}
	return &set, nil
}

// find is the place of a feature that is named with or without the version of
// its view; -1 when it is not there.
func (f *FeatureSet) find(name string) int {
	if at, err := naming.Find(f.Features, name); err == nil {
		return at
	}
	return -1
}

// fits refuses a model whose input the columns do not fill.
func (f *FeaturesSpec) fits(m runtime.Metadata) error {
	if f == nil {
		return nil
	}
	i := slices.IndexFunc(m.Inputs, func(s runtime.Spec) bool { return s.Name == f.Input })
	if i < 0 {
		return fault.New(fault.Invalid, "spec.features.input: the model has no input %q", f.Input)
	}
	in := m.Inputs[i]
	if in.Datatype != runtime.FP32 && in.Datatype != runtime.FP64 {
		return fault.New(fault.Invalid, "spec.features.input: %q has datatype %s; features need FP32 or FP64", f.Input, in.Datatype)
	}
	if in.Shape != nil && (len(in.Shape) != 2 || in.Shape[1] >= 0 && in.Shape[1] != int64(len(f.Columns))) {
		return fault.New(fault.Invalid, "spec.features.columns: %d columns do not match input %q with shape %v", len(f.Columns), f.Input, in.Shape)
	}
	return f.ordered(in)
}

// ordered refuses columns that the model was trained with in another order, as far as it knows
// their names: those of the features, with or without their view.
func (f *FeaturesSpec) ordered(in runtime.Spec) error {
	for _, named := range []func(string) string{
		func(column string) string { return column },
		func(column string) string { return strings.ReplaceAll(column, ":", "__") },
		func(column string) string { return column[strings.LastIndex(column, ":")+1:] },
	} {
		var names []string
		for _, c := range f.Columns {
			names = append(names, named(c))
		}
		if !slices.Equal(names, in.Columns) && slices.Equal(slices.Sorted(slices.Values(names)), slices.Sorted(slices.Values(in.Columns))) {
			return fault.New(fault.Invalid, "spec.features.columns: the order is not that in which the model was trained").
				WithHint("List the columns in the order %s.", fault.Clip(strings.Join(in.Columns, ", "), 500))
		}
	}
	return nil
}

// columnsOf makes a deployment's features ready; nil when it has none.
func columnsOf(d Deployment) *columns {
	f := d.Spec.Features
	if f == nil || d.FeatureSet == nil {
		return nil
	}
	c := &columns{service: d.FeatureSet.Ref, input: f.Input, names: f.Columns, keys: d.FeatureSet.JoinKeys, values: d.FeatureSet.Request}
	for _, name := range f.Columns {
		view, _, feature := strings.Cut(name, ":")
		if !feature {
			c.sources = append(c.sources, source{request: name})
			c.requests = append(c.requests, name)
			continue
		}
		src := source{feature: d.FeatureSet.find(name)}
		value, ok := f.Defaults[name]
		if !ok {
			value, ok = f.Defaults[view+":*"]
		}
		src.otherwise, src.hasDefault = float64(value), ok
		if age, ok := f.MaxAge[view]; ok {
			src.maxAge, _ = resource.ParseDuration(age) // validated
		}
		c.sources = append(c.sources, src)
	}
	return c
}

// filled is what the features made of a request.
type filled struct {
	inputs  []runtime.Tensor    // the model's
	rows    int                 // of the request
	keys    []prediction.Column // the entities
	columns []prediction.Column // what the model sees, by column
}

// bytes is what it takes in memory, where columns are not the inputs' own.
func (f *filled) bytes() int64 {
	n := batching.Bytes(f.inputs)
	for _, columns := range [][]prediction.Column{f.keys, f.columns} {
		for _, c := range columns {
			n += 8 * int64(len(c.Numbers))
			for _, text := range c.Texts {
				n += 16 + int64(len(text))
			}
		}
	}
	return n
}

// given reports whether the request brings the model's input itself.
func (c *columns) given(inputs []runtime.Tensor) bool {
	return slices.ContainsFunc(inputs, func(t runtime.Tensor) bool { return t.Name == c.input })
}

// fill makes the model's input out of keys and request columns.
func (s *Inference) fill(ctx context.Context, r *Request, c *columns, meta runtime.Metadata) (filled, error) {
	out := filled{rows: -1}
	given := make(map[string][]float64, len(c.requests))
	read := FeatureRead{Project: r.Project, Service: c.service, AsOf: r.AsOf}
	for i, t := range r.Inputs {
		isKey, isColumn := slices.Contains(c.keys, t.Name), slices.Contains(c.requests, t.Name)
		isValue := slices.Contains(c.values, t.Name)
		isModel := meta.Input(t.Name) != nil
		if slices.ContainsFunc(r.Inputs[:i], func(o runtime.Tensor) bool { return o.Name == t.Name }) {
			return out, fault.New(fault.Invalid, "duplicate input %q", t.Name)
		}
		if !isKey && !isColumn && !isValue {
			if !isModel {
				return out, fault.New(fault.Invalid, "input %q is neither a key nor a column of this deployment", t.Name).
					WithHint("%s", c.wants())
			}
			out.inputs = append(out.inputs, t)
			continue
		}
		if isModel { // a step sees it, too
			out.inputs = append(out.inputs, t)
		}
		n, err := rowsOf(t)
		if err != nil {
			return out, err
		}
		if out.rows >= 0 && n != out.rows {
			return out, fault.New(fault.Invalid, "input %q has %d rows, previous inputs have %d", t.Name, n, out.rows)
		}
		out.rows = n
		switch k := keyOf(t); {
		case isKey && k.Texts == nil && k.Ints == nil:
			return out, fault.New(fault.Invalid, "input %q is a feature key with the unsupported datatype %s", t.Name, t.Datatype).
				WithHint("Keys are BYTES or INT64.")
		case isKey:
			read.Keys = append(read.Keys, k)
			out.keys = append(out.keys, keyText(k))
		case isValue:
			if k.Texts == nil && k.Ints == nil {
				if k.Floats = numbers(t.Data); k.Floats == nil {
					return out, fault.New(fault.Invalid, "input %q has datatype %s, which on-demand features do not support", t.Name, t.Datatype)
				}
			}
			read.Keys = append(read.Keys, k)
		}
		if isColumn {
			if given[t.Name] = numbers(t.Data); given[t.Name] == nil {
				return out, fault.New(fault.Invalid, "input %q has datatype %s; the model needs a number", t.Name, t.Datatype).
					WithHint("Send FP64, FP32 or an integer datatype.")
			}
		}
	}
	for _, name := range c.keys {
		if !slices.ContainsFunc(read.Keys, func(k KeyColumn) bool { return k.Name == name }) {
			return out, fault.New(fault.Invalid, "input %q is missing: it is a feature key", name).WithHint("%s", c.wants())
		}
	}
	for _, name := range c.values {
		if !slices.ContainsFunc(read.Keys, func(k KeyColumn) bool { return k.Name == name }) {
			return out, fault.New(fault.Invalid, "input %q is missing: on-demand features need it", name).WithHint("%s", c.wants())
		}
	}
	for _, name := range c.requests {
		if given[name] == nil {
			return out, fault.New(fault.Invalid, "input %q is missing: the model needs it", name).WithHint("%s", c.wants())
		}
	}
	read.Rows = out.rows
	found, err := s.cfg.Features.Read(ctx, read)
	if err != nil {
		return out, fault.Wrap(err, "features of %s", r.Name)
	}
	if err := c.assemble(&out, given, found); err != nil {
		return out, err
	}
	t, err := c.tensor(out, meta)
	out.inputs = append(out.inputs, t)
	return out, err
}

func (c *columns) wants() string {
	columns := slices.Clone(c.requests)
	for _, name := range c.values {
		if !slices.Contains(columns, name) {
			columns = append(columns, name)
		}
	}
	return fmt.Sprintf("Send the keys %s and the columns %s, each with one value per row; or the model's own input %q.",
		strings.Join(c.keys, ", "), strings.Join(columns, ", "), c.input)
}

// assemble arranges the columns, with defaults where features may have them.
func (c *columns) assemble(out *filled, given map[string][]float64, found FeatureRows) error {
	n := out.rows
	all := make([]float64, n*len(c.names)) // one allocation, column by column
	out.columns = make([]prediction.Column, len(c.names))
	var missing *MissingError
	for i, src := range c.sources {
		values := all[i*n : (i+1)*n : (i+1)*n]
		out.columns[i] = prediction.Column{Name: c.names[i], Numbers: values}
		if src.request != "" {
			copy(values, given[src.request])
			continue
		}
		if src.feature < 0 || src.feature >= len(found.Columns) || len(found.Columns[src.feature].Values) != n {
			return fault.New(fault.Internal, "feature service %s returned %d columns", c.service, len(found.Columns))
		}
		f := found.Columns[src.feature]
		for row := range n {
			status := f.Statuses[row]
			// What was computed from values of the request alone has no time, and is not old.
			if at := f.Events[row]; status == FeaturePresent && src.maxAge > 0 && !at.IsZero() && found.At.Sub(at) > src.maxAge {
				status = FeatureTooOld
			}
			switch {
			case status == FeaturePresent:
				values[row] = f.Values[row]
			case src.hasDefault:
				values[row] = src.otherwise
			default:
				if missing == nil {
					missing = &MissingError{}
				}
				if missing.Total++; len(missing.Missing) < maxMissing {
					missing.Missing = append(missing.Missing, MissingFeature{
						Feature: c.names[i], Row: row, Entity: entity(out.keys, row), Status: status, Event: f.Events[row],
					})
				}
			}
		}
	}
	if missing != nil {
		return missing
	}
	return nil
}

// entity names a row by its keys.
func entity(keys []prediction.Column, row int) string {
	words := make([]string, len(keys))
	for i, k := range keys {
		text := k.Texts[row]
		if len(text) > 64 {
			text = strings.ToValidUTF8(text[:64], "") + "…"
		}
		words[i] = k.Name + "=" + text
	}
	return strings.Join(words, ", ")
}

// tensor writes the columns row by row. Error: fault.Invalid for a number that the input's
// datatype cannot hold.
func (c *columns) tensor(out filled, meta runtime.Metadata) (runtime.Tensor, error) {
	n, width := out.rows, len(c.names)
	t := runtime.Tensor{Name: c.input, Datatype: runtime.FP32, Shape: []int64{int64(n), int64(width)}}
	for _, in := range meta.Inputs {
		if in.Name == c.input {
			t.Datatype = in.Datatype
		}
	}
	if t.Datatype == runtime.FP64 {
		data := make([]float64, n*width)
		for i, col := range out.columns {
			for row, v := range col.Numbers {
				data[row*width+i] = v
			}
		}
		t.Data = data
		return t, nil
	}
	data := make([]float32, n*width)
	for i, col := range out.columns {
		for row, v := range col.Numbers {
			f := float32(v)
			if math.IsInf(float64(f), 0) && !math.IsInf(v, 0) {
				return t, fault.New(fault.Invalid, "input %q: the value of %s in row %d exceeds the range of FP32", c.input, c.names[i], row).
					WithHint("Scale the feature, or train the model with inputs of FP64.")
			}
			data[row*width+i] = f
		}
	}
	t.Data = data
	return t, nil
}

// rowsOf is the number of rows of an input with one value for a row.
func rowsOf(t runtime.Tensor) (int, error) {
	if len(t.Shape) == 1 || len(t.Shape) == 2 && t.Shape[1] == 1 {
		return int(t.Shape[0]), nil
	}
	return 0, fault.New(fault.Invalid, "input %q has shape %v; it needs one value per row: [n] or [n, 1]", t.Name, t.Shape)
}

// keyOf is an input as a key: texts or whole numbers.
func keyOf(t runtime.Tensor) KeyColumn {
	k := KeyColumn{Name: t.Name}
	switch data := t.Data.(type) {
	case []string:
		k.Texts = data
	case []int64:
		k.Ints = data
	}
	return k
}

func keyText(k KeyColumn) prediction.Column {
	c := prediction.Column{Name: k.Name, Texts: k.Texts}
	if k.Texts == nil {
		c.Texts = make([]string, len(k.Ints))
		for i, n := range k.Ints {
			c.Texts[i] = strconv.FormatInt(n, 10)
		}
	}
	return c
}

// numbers converts a tensor's data; nil when it holds no numbers. FP64 is not
// copied.
func numbers(data any) []float64 {
	switch d := data.(type) {
	case []float64:
		return d
	case []float32:
		return converted(d)
	case []int64:
		return converted(d)
	case []int32:
		return converted(d)
	case []int16:
		return converted(d)
	case []int8:
		return converted(d)
	case []uint64:
		return converted(d)
	case []uint32:
		return converted(d)
	case []uint16:
		return converted(d)
	case []uint8:
		return converted(d)
	case []bool:
		out := make([]float64, len(d))
		for i, b := range d {
			if b {
				out[i] = 1
			}
		}
		return out
	}
	return nil
}

func converted[T float32 | int64 | int32 | int16 | int8 | uint64 | uint32 | uint16 | uint8](d []T) []float64 {
	out := make([]float64, len(d))
	for i, v := range d {
		out[i] = float64(v)
	}
	return out
}
