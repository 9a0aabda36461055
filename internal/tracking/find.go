package tracking

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/tracking/search"
)

// TagFields are what a search finds an object by that has the tags: those of users.
func TagFields(tags ...Pair) (out []store.Field) {
	for _, t := range tags {
		if !strings.HasPrefix(t.Key, "mlflow.") {
			out = append(out, store.Field{Name: "tag", Value: t.Key + "=" + t.Value})
		}
	}
	return out
}

// SearchKey is the place of an experiment in the list: newest first, by milliseconds, then the
// lower number.
func (e Experiment) SearchKey() string {
	created := int64(0) // imported without a time
	if !e.Created.IsZero() {
		created = e.Created.UnixMilli()
	}
	return fmt.Sprintf("%d:%d", created, e.ID)
}

// ParseSearchKey reads a SearchKey. Errors are fault.Invalid.
func ParseSearchKey(key string) (created int64, id ExperimentID, err error) {
	if _, err := fmt.Sscanf(key, "%d:%d", &created, &id); err != nil {
		return 0, 0, fault.New(fault.Invalid, "invalid page token")
	}
	return created, id, nil
}

// FindExperiments reads those active experiments, in the order of SearchExperiments after a key,
// of which may says that they may be what is looked for: limit of them at most.
func (s *Experiments) FindExperiments(ctx context.Context, p project.Name, after string, limit int, may func(store.Line) (bool, error)) (found store.Found[Experiment], err error) {
	if err := s.allow(ctx, ActionRead, p, "experiment", ""); err != nil {
		return found, err
	}
	if err := s.ensureDefault(ctx, p); err != nil {
		return found, err
	}
	return store.Find(ctx, s.db, store.Lookup[Experiment]{
		Lines: func(ctx context.Context, tx *store.Tx, after string, limit int) ([]store.Line, error) {
			return s.store.ExperimentLines(ctx, tx, p, after, limit)
		},
		Read: func(ctx context.Context, tx *store.Tx, keys []string) (all []Experiment, err error) {
			all, err = store.Each(keys, func(key string) (Experiment, error) {
				_, id, err := ParseSearchKey(key)
				if err != nil {
					return Experiment{}, err
				}
				return s.store.Experiment(ctx, tx, p, id)
			})
			return slices.DeleteFunc(all, func(e Experiment) bool { return e.Stage != Active }), err
		},
		Key: Experiment.SearchKey,
	}, after, limit, may)
}

// Search is a search as a client asks it.
type Search struct {
	Experiments []ExperimentID
	View        View
	Filter      string
	OrderBy     []string
	Datasets    []DatasetInput // logged models only: metrics on these data sets
	OrderOn     []DatasetInput // logged models only: of each clause of OrderBy, on which data set; may be empty
	Max         int            // results per page, at least 1
	Page        string         // token of an earlier answer
}

func (s Search) query(g search.Grammar, limit int) (Query, error) {
	q := Query{Experiments: s.Experiments, View: s.View, Datasets: s.Datasets, OrderOn: s.OrderOn}
	if q.View == "" {
		q.View = ViewActive
	}
	if s.Max < 1 {
		return q, fault.New(fault.Invalid, "Invalid value %d for parameter 'max_results' supplied. It must be a positive integer", s.Max)
	}
	if s.Max > limit {
		return q, fault.New(fault.Invalid, "Invalid value %d for parameter 'max_results' supplied. It must be at most %d", s.Max, limit)
	}
	var err error
	if q.Offset, err = search.Offset(s.Page); err != nil {
		return q, err
	}
	q.Limit = s.Max + 1 // one more says whether there is a next page
	if q.Where, err = g.Parse(s.Filter); err != nil {
		return q, err
	}
	q.Order, err = g.ParseOrder(s.OrderBy)
	return q, err
}

// page cuts the surplus row and makes the next token.
func page[T any](rows []T, s Search, q Query) ([]T, string) {
	if len(rows) <= s.Max {
		return rows, ""
	}
	return rows[:s.Max], search.Token(q.Offset + s.Max)
}
