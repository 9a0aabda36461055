package feature

import (
	"context"
	"math"
	"slices"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/feature/online"
	"github.com/falaj-ml/falaj/internal/feature/value"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/governance/residency"
)

// Shape is what a version of a feature service gives to models.
type Shape struct {
	Service  string // "delay@2"
	JoinKeys []string
	Request  []string     // values that come with each entity, beside its keys
	Features []string     // "weather@3:temp", in the service's order, then those computed, "delay@2:felt"
	Types    []value.Type // beside Features
	// Views are the views whose rows are online, with where these may be.
	Views          []residency.Parent
	Classification project.Classification // the strictest of theirs; public without any
	// Purposes are what its views are read for, if the service names no purpose.
	Purposes []string
}

// Shape resolves a feature service. Needs feature.read. Errors: fault.NotFound;
// fault.Invalid.
func (s *OnlineReads) Shape(ctx context.Context, p project.Name, service string) (Shape, error) {
	if err := s.allow(ctx, ActionRead, p, service); err != nil {
		return Shape{}, err
	}
	pl, err := s.resolve(ctx, p, Selection{Service: service, FullNames: true})
	if err != nil {
		return Shape{}, err
	}
	out := Shape{
		Service: pl.service, Features: make([]string, len(pl.names)), Types: make([]value.Type, len(pl.names)), Classification: project.Public, JoinKeys: pl.joinKeys(),
	}
	for n, v := range pl.views {
		if len(v.view.Purpose) > 0 && pl.purpose == "" {
			out.Purposes = v.view.Purpose
		}
		if o := pl.online[n]; o.View != "" {
			out.Views = append(out.Views, residency.Parent{Name: "feature view " + v.view.Ref(), Label: o.Residency})
			out.Classification = project.Strictest(out.Classification, o.Classification)
		}
		for i, f := range v.features {
			if v.order[i] < pl.visible {
				out.Features[v.order[i]], out.Types[v.order[i]] = v.names[i], v.types[f]
			}
		}
	}
	if c := pl.computed; c != nil {
		for i, f := range c.fields {
			out.Features[pl.visible+i], out.Types[pl.visible+i] = c.ref+":"+f.name, f.typ
		}
		for _, q := range c.request {
			out.Request = append(out.Request, q.name)
		}
	}
	return out, nil
}

// LookupRequest is OnlineRequest for a model: keys in columns, numbers back.
type LookupRequest struct {
	Project project.Name
	Service string
	Rows    int
	Keys    []KeyColumn // and values of the request
	AsOf    time.Time   // zero: now
}

// KeyColumn is a join key, or a value of the request, of many entities; one of
// Texts, Ints and Floats is as long as there are rows. One of another type may come
// as text.
type KeyColumn struct {
	Name   string
	Texts  []string
	Ints   []int64
	Floats []float64 // of values of the request only
}

// LookupAnswer has a column for each feature of the service, in its order.
type LookupAnswer struct {
	AsOf    time.Time
	Columns []NumberColumn
}

// NumberColumn is a feature of many entities as numbers: a bool is 0 or 1.
// Values are NaN where the status is not Present; Events are zero where there is
// no row.
type NumberColumn struct {
	Values   []float64
	Statuses []online.Status
	Events   []time.Time
}

// Lookup is Online for the path of a prediction: the same doors, the same rule,
// the same journal, without a name for everything. The model sees protected
// features in clear, for which whoever deployed it was asked (AllowClear). Errors: those of Online, and
// fault.Invalid for a feature that is no number.
func (s *OnlineReads) Lookup(ctx context.Context, r LookupRequest) (LookupAnswer, error) {
	action, at := ActionOnline, s.now()
	if !r.AsOf.IsZero() {
		action, at = ActionHistory, r.AsOf
	}
	if r.Rows > MaxEntities {
		return LookupAnswer{}, fault.New(fault.TooLarge, "%d entities are over the limit of %d", r.Rows, MaxEntities).
			WithHint("Split the request.")
	}
	pl, err := s.resolve(ctx, r.Project, Selection{Service: r.Service, FullNames: true})
	if err != nil {
		return LookupAnswer{}, err
	}
	if err := pl.bounded(r.Rows); err != nil {
		return LookupAnswer{}, err
	}
	// It is read for what its service is for, whatever the caller's request is for.
	purpose, err := s.admit(WithPurpose(asked(ctx, action), ""), action, r.Project, pl, "")
	if err != nil {
		return LookupAnswer{}, err
	}
	keys, err := pl.columnKeys(r)
	if err != nil {
		return LookupAnswer{}, err
	}
	at = at.Truncate(time.Microsecond).UTC()
	if !r.AsOf.IsZero() {
		if err := pl.remembers(at); err != nil {
			return LookupAnswer{}, err
		}
	}
	answer := LookupAnswer{AsOf: at, Columns: make([]NumberColumn, len(pl.names))}
	if pl.computed != nil {
		if answer.Columns, err = s.computeNumbers(ctx, pl, r, keys, at); err != nil {
			return LookupAnswer{}, err
		}
		return answer, s.journal(ctx, action, r.Project, pl, keys, at, purpose, pl.clear())
	}
	for i, v := range pl.views {
		if err := s.readNumbers(ctx, v, pl.online[i].tables(), keys[i], at, answer.Columns); err != nil {
			return LookupAnswer{}, err
		}
	}
	return answer, s.journal(ctx, action, r.Project, pl, keys, at, purpose, pl.clear())
}

// columnKeys makes the key of each row for each view.
func (pl *plan) columnKeys(r LookupRequest) ([][][]byte, error) {
	out := make([][][]byte, len(pl.views))
	for i, v := range pl.views {
		out[i] = make([][]byte, r.Rows)
		for _, k := range v.view.Keys {
			at := slices.IndexFunc(r.Keys, func(c KeyColumn) bool { return c.Name == k.Name })
			if at < 0 || len(r.Keys[at].Texts)+len(r.Keys[at].Ints) != r.Rows {
				return nil, fault.New(fault.Invalid, "the join key %q of feature view %s must have %d rows", k.Name, v.view.Ref(), r.Rows)
			}
			c := r.Keys[at]
			for row := range r.Rows {
				x, err := c.value(k.Type, row)
				if err != nil {
					return nil, fault.Wrap(err, "row %d: join key %s", row, k.Name)
				}
				out[i][row] = value.AppendKey(out[i][row], x)
			}
		}
	}
	return out, nil
}

func (c KeyColumn) value(t value.Type, row int) (value.Value, error) {
	switch {
	case c.Floats != nil:
		return value.Parse(t, c.Floats[row])
	case c.Ints != nil && t == value.Int64:
		return value.OfInt(c.Ints[row]), nil
	case c.Ints != nil && (t == value.Int32 || t == value.Float64 || t == value.Float32):
		return value.Parse(t, c.Ints[row])
	case c.Ints != nil:
		return value.Value{}, fault.New(fault.Invalid, "it is a %s, not a whole number", t)
	case t == value.String:
		return value.OfString(c.Texts[row]), nil
	}
	return parseText(t, c.Texts[row])
}

// readNumbers fills the columns of one view.
func (s *OnlineReads) readNumbers(ctx context.Context, v picked, tables []online.Table, keys [][]byte, at time.Time, columns []NumberColumn) error {
	events := make([]time.Time, len(keys)) // the same for each feature
	for _, at := range v.order {
		columns[at] = NumberColumn{Values: make([]float64, len(keys)), Statuses: make([]online.Status, len(keys)), Events: events}
	}
	return s.answers(ctx, v, tables, keys, at, func(n int, a answer) error {
		events[n] = a.event
		for i, f := range v.features {
			c := &columns[v.order[i]]
			c.Values[n], c.Statuses[n] = math.NaN(), a.status
			if a.status != online.Present {
				continue
			}
			if a.row[f].IsNull() {
				c.Statuses[n] = online.NullValue
				continue
			}
			var err error
			if c.Values[n], err = asNumber(v.names[i], a.row[f]); err != nil {
				return err
			}
		}
		return nil
	})
}

// asNumber is a value as a model sees it. Error: fault.Invalid.
func asNumber(feature string, v value.Value) (float64, error) {
	switch v.Type() {
	case value.Float64, value.Float32:
		return v.Float(), nil
	case value.Int64, value.Int32:
		return float64(v.Int()), nil
	case value.Bool:
		if v.Bool() {
			return 1, nil
		}
		return 0, nil
	default:
		return 0, fault.New(fault.Invalid, "feature %s is a %s, not a number", feature, v.Type())
	}
}

// computeNumbers is readNumbers for a plan of which some is computed, from values of
// any type.
func (s *OnlineReads) computeNumbers(ctx context.Context, pl *plan, r LookupRequest, keys [][][]byte, at time.Time) ([]NumberColumn, error) {
	requested := make([][]value.Value, r.Rows)
	for _, q := range pl.computed.request {
		i := slices.IndexFunc(r.Keys, func(c KeyColumn) bool { return c.Name == q.name })
		if i < 0 || len(r.Keys[i].Texts)+len(r.Keys[i].Ints)+len(r.Keys[i].Floats) != r.Rows {
			return nil, fault.New(fault.Invalid, "the request value %q, an input of computed features of feature service %s, must have %d rows", q.name, pl.service, r.Rows)
		}
		for row := range r.Rows {
			x, err := r.Keys[i].value(q.typ, row)
			if err != nil {
				return nil, fault.Wrap(err, "row %d: value %s of the request", row, q.name)
			}
			requested[row] = append(requested[row], x)
		}
	}
	columns, err := s.readAll(ctx, pl, keys, requested, at)
	if err != nil {
		return nil, err
	}
	out := make([]NumberColumn, len(columns))
	for i, c := range columns {
		out[i] = NumberColumn{Values: make([]float64, r.Rows), Statuses: c.Statuses, Events: make([]time.Time, r.Rows)}
		for n, x := range c.Values {
			if c.EventTimes[n] != nil {
				out[i].Events[n] = *c.EventTimes[n]
			}
			if out[i].Values[n] = math.NaN(); c.Statuses[n] != online.Present {
				continue
			}
			if out[i].Values[n], err = asNumber(c.Feature, x); err != nil {
				return nil, err
			}
		}
	}
	return out, nil
}

// asked is the caller without the scopes of its token: it was allowed to ask the deployment,
// and the deployment looks the features up, not the caller. Its roles and grants count as
// always, and so do scopes for values of the past, which the caller chooses.
func asked(ctx context.Context, action policy.Action) context.Context {
	who := identity.From(ctx)
	if action != ActionOnline || who.Kind == identity.Attempt || len(who.Scopes) == 0 {
		return ctx
	}
	who.Scopes = nil
	return identity.With(ctx, who)
}
