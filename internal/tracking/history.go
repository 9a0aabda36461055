package tracking

import (
	"context"

	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/tracking/search"
)

// maxSpanned is of how many metrics a span is looked for.
const maxSpanned = 256

// Span gives the first and the last point since a time of the metric that was logged last;
// ok is false when there is none.
func (s *Runs) Span(ctx context.Context, p project.Name, run RunID, since Millis) (first, last Metric, ok bool, err error) {
	r, err := s.run(ctx, p, run, ActionRead)
	if err == nil {
		err = s.mayRead(ctx, p, "run", string(run), r.Owner, r.Origin)
	}
	if err != nil {
		return first, last, false, err
	}
	err = s.db.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		rows := []Run{r}
		if err := s.store.FillRuns(ctx, tx, rows); err != nil {
			return err
		}
		for _, m := range rows[0].Metrics[:min(len(rows[0].Metrics), maxSpanned)] {
			found, err := s.store.PointSince(ctx, tx, run, m.Key, since, true)
			if err != nil {
				return err
			}
			if found != nil && (!ok || found.At > last.At || found.At == last.At && found.Step > last.Step) {
				last, ok = *found, true
			}
		}
		if !ok {
			return nil
		}
		found, err := s.store.PointSince(ctx, tx, run, last.Key, since, false)
		if found != nil {
			first = *found
		}
		return err
	})
	return first, last, ok, err
}

// History gives a page of a metric's points by time, step and value, and the
// token of the next page. limit 0 is MaxHistory.
func (s *Runs) History(ctx context.Context, p project.Name, run RunID, key string, limit int, pageToken string) ([]Metric, string, error) {
	r, err := s.run(ctx, p, run, ActionRead)
	if err != nil {
		return nil, "", err
	}
	if err := s.mayRead(ctx, p, "run", string(run), r.Owner, r.Origin); err != nil {
		return nil, "", err
	}
	if limit <= 0 || limit > MaxHistory {
		limit = MaxHistory
	}
	offset, err := search.Offset(pageToken)
	if err != nil {
		return nil, "", err
	}
	var points []Metric
	err = s.db.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		points, err = s.store.History(ctx, tx, run, key, offset, limit+1)
		return err
	})
	if err != nil {
		return nil, "", err
	}
	points, next := page(points, Search{Max: limit}, Query{Offset: offset})
	return points, next, nil
}
