package trackingsql

import (
	"context"

	"github.com/uptrace/bun"

	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/tracking"
	"github.com/falaj-ml/falaj/internal/tracking/search"
)

var runColumns = map[string]string{
	"run_id": "t.id", "run_name": "t.name", "status": "t.status", "user_id": "t.user_name",
	"start_time": "t.started", "end_time": "t.ended",
	"artifact_uri": "('mlflow-artifacts:/' || CAST(t.experiment AS TEXT) || '/' || t.id || '/artifacts')",
}

const (
	latestRank = "(SELECT x.rank FROM tracking_metric_latest x WHERE x.run = t.id AND x.key = ?)"
	// latestClass sorts numbers before NaN before what was never logged.
	latestClass = "COALESCE((SELECT CASE WHEN x.rank IS NULL THEN 1 ELSE 0 END FROM tracking_metric_latest x WHERE x.run = t.id AND x.key = ?), 2)"
)

// metricWhere compares as IEEE 754 does: NaN differs from every number.
func metricWhere(cmp search.Comparison) (string, []any) {
	part, args := search.Where(cmp, "x.rank", true, false)
	if cmp.Op == search.NotEqual {
		part = "(" + part + " OR x.rank IS NULL)"
	}
	return part, args
}

// few is how many runs a comparison of a metric may find to be looked up one by one,
// and a handful how many may be sorted besides. Tests change them.
var few, handful = 2000, 300

// SearchRuns implements tracking.Store.
//
// A search that is ordered by a metric reads the values of one experiment in their
// order and ends when it has a page, instead of sorting all runs. Only when those
// with a number do not fill the page are the others sorted, which come after them. A
// comparison of a metric that finds few runs is answered from the same index.
func (s Store) SearchRuns(ctx context.Context, tx *store.Tx, p project.Name, q tracking.Query) ([]tracking.Run, error) {
	f := runSearch{p: p, q: q, sqlite: isSQLite(tx)}
	if err := f.look(ctx, tx); err != nil {
		return nil, err
	}
	if f.rare > 0 && f.finds == 0 {
		return nil, nil
	}
	if f.rare > 0 && f.finds < handful || len(q.Order) == 0 || q.Order[0].Entity != search.Metric || len(q.Experiments) != 1 {
		return f.sorted(ctx, tx, "", nil, q.Limit, q.Offset)
	}
	found, err := f.numbered(ctx, tx)
	if err != nil || len(found) == q.Limit {
		return found, err
	}
	if len(found) == 0 && q.Offset > 0 { // how many came before is not known
		return f.sorted(ctx, tx, "", nil, q.Limit, q.Offset)
	}
	const others = "NOT EXISTS (SELECT 1 FROM tracking_metric_latest x WHERE x.run = t.id AND x.key = ? AND x.rank IS NOT NULL)"
	rest, err := f.sorted(ctx, tx, others, []any{q.Order[0].Key}, q.Limit-len(found), 0)
	return append(found, rest...), err
}

// runSearch is one search for runs.
type runSearch struct {
	p      project.Name
	q      tracking.Query
	sqlite bool
	rare   int // the comparison of a metric that finds few runs, from 1; 0 is none
	finds  int // how many
}

// look finds a comparison that finds few runs.
func (f *runSearch) look(ctx context.Context, tx *store.Tx) error {
	for i, cmp := range f.q.Where {
		if cmp.Entity != search.Metric || cmp.Op == search.NotEqual {
			continue
		}
		where, args := f.having(cmp)
		var n int
		if err := tx.NewRaw("SELECT COUNT(*) FROM (SELECT 1 FROM tracking_metric_latest x WHERE "+where+" LIMIT ?) AS found", append(args, few)...).Scan(ctx, &n); err != nil {
			return err
		}
		if n < few && (f.rare == 0 || n < f.finds) {
			f.rare, f.finds = i+1, n
		}
	}
	return nil
}

// having is the condition for a row x of tracking_metric_latest whose run's metric
// compares so.
func (f *runSearch) having(cmp search.Comparison) (string, []any) {
	part, args := metricWhere(cmp)
	return "x.project = ? AND x.experiment IN (?) AND x.key = ? AND " + part,
		append([]any{string(f.p), bun.List(f.q.Experiments), cmp.Key}, args...)
}

// where is the condition for a run t, but for the comparison that finds few.
func (f *runSearch) where() (c condition) {
	c.and("t.project = ?", string(f.p))
	c.and("t.experiment IN (?)", bun.List(f.q.Experiments))
	c.view(f.q.View)
	for i, cmp := range f.q.Where {
		if i+1 == f.rare {
			continue
		}
		switch cmp.Entity {
		case search.Param:
			c.pairs(cmp, "tracking_param", "x.run = t.id", f.sqlite)
		case search.Tag:
			c.pairs(cmp, "tracking_tag", "x.run = t.id", f.sqlite)
		case search.Metric:
			part, args := metricWhere(cmp)
			c.and("EXISTS (SELECT 1 FROM tracking_metric_latest x WHERE x.run = t.id AND x.key = ? AND "+part+")", append([]any{cmp.Key}, args...)...)
		case search.Dataset:
			part, args := search.Where(cmp, "x."+cmp.Key, false, f.sqlite)
			c.and("EXISTS (SELECT 1 FROM tracking_input x WHERE x.run = t.id AND "+part+")", args...)
		case search.Attribute:
			numeric := cmp.Key == "start_time" || cmp.Key == "end_time"
			part, args := search.Where(cmp, runColumns[cmp.Key], numeric, f.sqlite)
			c.and(part, args...)
		}
	}
	return c
}

func ordered(sel *bun.SelectQuery, order []search.Order) *bun.SelectQuery {
	for _, o := range order {
		switch o.Entity {
		case search.Metric:
			sel = sel.OrderExpr(latestClass, o.Key).OrderExpr(latestRank+way(o), o.Key)
		case search.Param, search.Tag:
			table := "tracking_tag"
			if o.Entity == search.Param {
				table = "tracking_param"
			}
			sel = sel.OrderExpr(direction("(SELECT x.value FROM "+table+" x WHERE x.run = t.id AND x.key = ?)", o.Desc), o.Key, o.Key)
		default:
			sel = sel.OrderExpr(direction(runColumns[o.Key], o.Desc))
		}
	}
	return sel.OrderExpr("t.started DESC, t.id")
}

func way(o search.Order) string {
	if o.Desc {
		return " DESC"
	}
	return " ASC"
}

// numbered are the runs with a number for the metric that orders them.
func (f *runSearch) numbered(ctx context.Context, tx *store.Tx) ([]tracking.Run, error) {
	by := f.q.Order[0]
	c := f.where()
	c.and("o.project = ? AND o.experiment = ? AND o.key = ? AND o.rank IS NOT NULL AND t.id = o.run", string(f.p), int64(f.q.Experiments[0]), by.Key)
	if f.rare > 0 { // asked of the index, before the run is looked up
		where, args := f.having(f.q.Where[f.rare-1])
		c.and("o.run IN (SELECT x.run FROM tracking_metric_latest x WHERE "+where+")", args...)
	}
	sel := tx.NewSelect().ColumnExpr("t.*").TableExpr("tracking_metric_latest o CROSS JOIN tracking_run t").Where(c.String(), c.args...).OrderExpr("o.rank" + way(by))
	return scanRuns(ctx, ordered(sel, f.q.Order[1:]).Limit(f.q.Limit).Offset(f.q.Offset))
}

// sorted are runs, all of which are sorted. SQLite takes the tables of a CROSS JOIN in
// their order.
func (f *runSearch) sorted(ctx context.Context, tx *store.Tx, and string, args []any, limit, offset int) ([]tracking.Run, error) {
	c := f.where()
	if and != "" {
		c.and(and, args...)
	}
	tables := "tracking_run t"
	if f.rare > 0 { // each run has a key once
		where, args := f.having(f.q.Where[f.rare-1])
		tables = "tracking_metric_latest x CROSS JOIN tracking_run t"
		c.and("t.id = x.run AND "+where, args...)
	}
	sel := tx.NewSelect().ColumnExpr("t.*").TableExpr(tables).Where(c.String(), c.args...)
	return scanRuns(ctx, ordered(sel, f.q.Order).Limit(limit).Offset(offset))
}

func scanRuns(ctx context.Context, sel *bun.SelectQuery) ([]tracking.Run, error) {
	var rows []runRow
	if err := sel.Scan(ctx, &rows); err != nil {
		return nil, err
	}
	out := make([]tracking.Run, len(rows))
	for i, row := range rows {
		var err error
		if out[i], err = row.run(); err != nil {
			return nil, err
		}
	}
	return out, nil
}
