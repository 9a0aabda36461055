package feature

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/feature/offline"
	"github.com/falaj-ml/falaj/internal/feature/online"
	"github.com/falaj-ml/falaj/internal/feature/value"
	"github.com/falaj-ml/falaj/internal/feature/window"
	"github.com/falaj-ml/falaj/internal/resource"
)

// AggregationSpec is a feature that is computed from the rows of a window of time:
// at T from those with T − window < event ≤ T (the exact rule is in package
// window).
type AggregationSpec struct {
	Name        string          `json:"name" doc:"Name of the feature"`
	Function    window.Function `json:"function" doc:"Aggregation function" enum:"sum,count,mean,min,max,std,var,first,last,approx_distinct,topk,quantile"`
	Column      string          `json:"column,omitempty" doc:"Column of the source; omit it to count rows"`
	Type        string          `json:"type,omitempty" doc:"Type of the column and of the feature; but count and approx_distinct are int64; mean, std, var and quantile are float64; topk is a string with a JSON list" enum:"int64,float64,string,bool,timestamp"`
	Window      string          `json:"window" doc:"Length of the window, such as 30m, 1h or 7d"`
	K           int             `json:"k,omitempty" doc:"Number of values that topk lists, at most 50"`
	Q           float64         `json:"q,omitempty" doc:"For quantile: between 0 and 1, such as 0.5 for the median"`
	Description string          `json:"description,omitempty" doc:"Description of the feature"`
	Protect     Protection      `json:"protect,omitempty" doc:"Value for readers without feature.clear: mask gives null, pseudonym replaces a string by an unguessable one" enum:"mask,pseudonym"`
}

// feature is the aggregation as package window takes it.
func (a AggregationSpec) feature(field string) (window.Feature, error) {
	f := window.Feature{Name: a.Name, Column: a.Column, Function: a.Function, K: a.K, Q: a.Q}
	var err error
	if f.Window, err = resource.ParseDuration(a.Window); err != nil {
		return f, bad(field+".window", "%s", err).WithHint("Write a duration such as 30m, 1h or 7d.")
	}
	if a.Type != "" {
		if f.Type, err = typeOf(field+".type", a.Type); err != nil {
			return f, err
		}
	}
	return f, nil
}

// plan is how the aggregations are computed. Error: fault.Invalid.
func (s ViewSpec) plan() (*window.Plan, error) {
	features := make([]window.Feature, len(s.Aggregations))
	for i, a := range s.Aggregations {
		field := fmt.Sprintf("aggregations[%d]", i)
		var err error
		if features[i], err = a.feature(field); err != nil {
			return nil, err
		}
		if err := features[i].Check(); err != nil {
			return nil, bad(field, "%s", err).WithHint("%s", fault.HintOf(err))
		}
	}
	p, err := window.NewPlan(features)
	if err != nil {
		return nil, bad("aggregations", "%s", err).WithHint("%s", fault.HintOf(err))
	}
	return p, nil
}

// windows is the plan of a view that was validated; nil when it has none.
func (s ViewSpec) windows() *window.Plan {
	if len(s.Aggregations) == 0 {
		return nil
	}
	p, _ := s.plan() // validated
	return p
}

// validateWindows refuses aggregations that cannot be.
func (s ViewSpec) validateWindows() error {
	names := make([]string, len(s.Aggregations))
	for i, a := range s.Aggregations {
		if err := checkFeature(fmt.Sprintf("aggregations[%d]", i), a.Name, a.Description); err != nil {
			return err
		}
		names[i] = a.Name
	}
	if err := distinct("aggregations", names); err != nil {
		return err
	}
	p, err := s.plan()
	if err != nil {
		return err
	}
	for i, f := range s.fields(p) {
		if err := checkProtection(fmt.Sprintf("aggregations[%d]", i), f.Protect, f.Type); err != nil {
			return err
		}
	}
	if len(s.Features) > 0 && !slices.EqualFunc(s.Features, s.fields(p), func(a, b FieldSpec) bool { return a.Name == b.Name && a.Type == b.Type }) {
		return bad("features", "set either features or aggregations, not both").
			WithHint("Omit features: they follow from the aggregations. For the newest values, create a second view.")
	}
	return nil
}

// fields are the features that follow from the aggregations.
func (s ViewSpec) fields(p *window.Plan) []FieldSpec {
	out := make([]FieldSpec, len(s.Aggregations))
	for i, t := range p.Types() {
		a := s.Aggregations[i]
		out[i] = FieldSpec{Name: a.Name, Type: t.String(), Description: a.Description, Protect: a.Protect}
	}
	return out
}

// complete has the features that follow from the aggregations.
func (s ViewSpec) complete() ViewSpec {
	if p := s.windows(); p != nil {
		s.Features = s.fields(p)
	}
	return s
}

// body is what is kept of a view: not what follows from the rest.
func (v View) body() viewBody {
	b := viewBody{v.ViewSpec, v.Keys}
	if len(b.Aggregations) > 0 {
		b.Features = nil
	}
	return b
}

// input is a column of the source that makes features.
type input struct {
	window.Input
	field string // of the spec that asks for it
}

// inputs are the columns that features are made of, in order.
func (v View) inputs() []input {
	var out []input
	if p := v.windows(); p != nil {
		for _, in := range p.Inputs() {
			at := slices.IndexFunc(v.Aggregations, func(a AggregationSpec) bool { return a.Column == in.Column })
			out = append(out, input{in, fmt.Sprintf("aggregations[%d]", at)})
		}
		return out
	}
	for i, t := range v.featureTypes() {
		out = append(out, input{window.Input{Column: v.Features[i].Name, Type: t}, fmt.Sprintf("features[%d]", i)})
	}
	return out
}

// tile makes the rows online of a view with aggregations from its sorted events.
func tile(p *window.Plan, events *offline.Sorted, write func(offline.Row) error) error {
	var key []byte
	t := p.NewTiler(func(r window.Record) error {
		return write(offline.Row{Key: window.LevelKey(key, r.Level), Event: r.Event, Created: r.Created, Packed: r.State})
	})
	for events.Next() {
		e := events.Row()
		if !bytes.Equal(e.Key, key) {
			if err := t.End(); err != nil {
				return err
			}
			key = bytes.Clone(e.Key)
		}
		if err := t.Add(e.Event, e.Created, e.Packed); err != nil {
			return err
		}
	}
	if err := events.Err(); err != nil {
		return err // not all of the last entity's
	}
	return t.End()
}

// records are those of one entity in the online store.
type records struct {
	reader *online.Reader
	key    []byte
}

// Span implements window.Records.
func (r records) Span(ctx context.Context, level int, from, to int64, visit func(event, created int64, state []byte) (bool, error)) error {
	return r.reader.Span(ctx, window.LevelKey(r.key, level), from, to, visit)
}

// windowed is answers of a view with aggregations.
func (s *OnlineReads) windowed(ctx context.Context, v picked, table online.Table, keys [][]byte, at time.Time, each func(n int, a answer) error) error {
	reader, err := s.cfg.Online.Reader(ctx, table)
	if err != nil {
		return err
	}
	when, floor := at.UnixMicro(), int64(math.MinInt64)
	if ttl := v.view.ttl().Microseconds(); ttl > 0 && when-ttl < when {
		floor = when - ttl
	}
	from := v.windows.NewReader()
	row := make([]value.Value, len(v.view.Features))
	for n, key := range keys {
		a := answer{status: online.NotFound, row: row}
		if key != nil {
			newest, found, err := from.At(ctx, records{reader, key}, when, floor, row)
			if err != nil {
				return err
			}
			if found {
				a.status, a.event = online.Present, time.UnixMicro(newest).UTC()
				if newest < floor {
					a.status = online.OutsideMaxAge
				}
			}
		}
		if err := each(n, a); err != nil {
			return err
		}
	}
	return nil
}

// AggregateEvents gives the rows to write to the online store so that events of an entity
// count in a view with aggregations, which is how events come one by one: reader is
// of the view's table, key value.AppendKey of the join keys, and each event has the
// values of the view's Inputs. The caller writes the rows in one batch, with the
// position of its source, before it aggregates again for the entity, and keeps others
// away meanwhile: an event that is aggregated twice counts twice.
func AggregateEvents(ctx context.Context, v View, reader *online.Reader, key []byte, events []window.Row) ([]online.Row, error) {
	p := v.windows()
	if p == nil {
		return nil, fault.New(fault.Invalid, "feature view %s has no aggregations", v.Ref())
	}
	changed, err := p.Aggregate(ctx, records{reader, key}, events)
	if err != nil {
		return nil, err
	}
	rows := make([]online.Row, len(changed))
	for i, r := range changed {
		rows[i] = online.Row{Key: window.LevelKey(key, r.Level), Event: r.Event, Created: r.Created, Packed: r.State}
	}
	return rows, nil
}

// Inputs are the columns of the source that make features, in the order in which a
// row has them; a column is there once for each type that it is read as.
func (v View) Inputs() []window.Input {
	var out []window.Input
	for _, in := range v.inputs() {
		out = append(out, in.Input)
	}
	return out
}
