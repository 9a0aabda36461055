package feature

import (
	"context"
	"math"
	"slices"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/feature/online"
	"github.com/falaj-ml/falaj/internal/feature/value"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/governance/residency"
)

// Shape is what a version of a feature service gives to models.
type Shape struct {
	Service  string // "delay@2"
	JoinKeys []string
	Features []string     // "weather@3:temp", in the service's order
	Types    []value.Type // beside Features
	// Views are the views whose rows are online, with where these may be.
	Views          []residency.Parent
	Classification project.Classification // the strictest of theirs; public without any
}

// Shape resolves a feature service. Needs feature.read. Errors: fault.NotFound;
// fault.Invalid.
func (s *Service) Shape(ctx context.Context, p project.Name, service string) (Shape, error) {
	if err := s.allow(ctx, ActionRead, p, service); err != nil {
		return Shape{}, err
	}
	pl, err := s.resolve(ctx, p, Selection{Service: service, FullNames: true})
	if err != nil {
		return Shape{}, err
	}
	out := Shape{
		Service: pl.bundle, Features: make([]string, len(pl.names)), Types: make([]value.Type, len(pl.names)), Classification: project.Public, JoinKeys: pl.joinKeys(),
	}
	for n, v := range pl.views {
		if o := pl.online[n]; o.View != "" {
			out.Views = append(out.Views, residency.Parent{Name: "feature view " + v.view.Ref(), Label: o.Residency})
			out.Classification = project.Strictest(out.Classification, o.Classification)
		}
		types := v.view.featureTypes()
		for i, f := range v.features {
			out.Features[v.order[i]], out.Types[v.order[i]] = v.view.Ref()+":"+v.view.Features[f].Name, types[f]
		}
	}
	return out, nil
}

// LookupRequest is OnlineRequest for a model: keys in columns, numbers back.
type LookupRequest struct {
	Project project.Name
	Service string
	Rows    int
	Keys    []KeyColumn
	AsOf    time.Time // zero: now
}

// KeyColumn is a join key of many entities; one of Texts and Ints is as long as
// there are rows. A key of another type may come as text.
type KeyColumn struct {
	Name  string
	Texts []string
	Ints  []int64
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
// the same journal, without a name for everything. Errors: those of Online, and
// fault.Invalid for a feature that is no number.
func (s *Service) Lookup(ctx context.Context, r LookupRequest) (LookupAnswer, error) {
	action, at := ActionOnline, s.now()
	if !r.AsOf.IsZero() {
		action, at = ActionHistory, r.AsOf
	}
	if r.Rows > maxEntities {
		return LookupAnswer{}, fault.New(fault.TooLarge, "%d entities are over the limit of %d", r.Rows, maxEntities).
			WithHint("Ask in several requests.")
	}
	pl, err := s.resolve(ctx, r.Project, Selection{Service: r.Service, FullNames: true})
	if err != nil {
		return LookupAnswer{}, err
	}
	if len(pl.names)*r.Rows > maxCells {
		return LookupAnswer{}, fault.New(fault.TooLarge, "%d features of %d entities are over the limit of %d values", len(pl.names), r.Rows, maxCells).
			WithHint("Ask in several requests.")
	}
	if err := s.admit(ctx, action, r.Project, pl); err != nil {
		return LookupAnswer{}, err
	}
	keys, err := pl.columnKeys(r)
	if err != nil {
		return LookupAnswer{}, err
	}
	at = at.Truncate(time.Microsecond).UTC()
	answer := LookupAnswer{AsOf: at, Columns: make([]NumberColumn, len(pl.names))}
	for i, v := range pl.views {
		if err := s.readNumbers(ctx, v, pl.online[i].tables(), keys[i], at, answer.Columns); err != nil {
			return LookupAnswer{}, err
		}
	}
	return answer, s.journal(ctx, action, r.Project, pl, keys, at)
}

// columnKeys makes the key of each row for each view.
func (pl *plan) columnKeys(r LookupRequest) ([][][]byte, error) {
	out := make([][][]byte, len(pl.views))
	for i, v := range pl.views {
		out[i] = make([][]byte, r.Rows)
		for _, k := range v.view.Keys {
			at := slices.IndexFunc(r.Keys, func(c KeyColumn) bool { return c.Name == k.Name })
			if at < 0 || len(r.Keys[at].Texts)+len(r.Keys[at].Ints) != r.Rows {
				return nil, fault.New(fault.Invalid, "the join key %q of feature view %s does not have %d rows", k.Name, v.view.Ref(), r.Rows)
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
	case c.Ints != nil && t == value.Int64:
		return value.OfInt(c.Ints[row]), nil
	case c.Ints != nil:
		return value.Value{}, fault.New(fault.Invalid, "it is a %s, not a whole number", t)
	case t == value.String:
		return value.OfString(c.Texts[row]), nil
	}
	return parseKey(t, c.Texts[row])
}

// readNumbers fills the columns of one view.
func (s *Service) readNumbers(ctx context.Context, v picked, tables []online.Table, keys [][]byte, at time.Time, columns []NumberColumn) error {
	types := v.view.featureTypes()
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
			switch types[f] {
			case value.Float64:
				c.Values[n] = a.row[f].Float()
			case value.Int64:
				c.Values[n] = float64(a.row[f].Int())
			case value.Bool:
				if c.Values[n] = 0; a.row[f].Bool() {
					c.Values[n] = 1
				}
			default:
				return fault.New(fault.Invalid, "feature %s:%s is a %s, not a number", v.view.Ref(), v.view.Features[f].Name, types[f])
			}
		}
		return nil
	})
}
