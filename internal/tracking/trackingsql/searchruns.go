package trackingsql

import (
	"context"
	"strings"
	"unicode/utf8"

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

// few is how many runs a comparison may find to be looked up one by one, and a
// handful how many may be sorted besides. Tests change them.
var few, handful = 2000, 300

// SearchRuns implements tracking.Store.
//
// A search that is ordered by a metric, a param or a tag reads the values of one
// experiment in their order and ends when it has a page, instead of sorting all runs.
// Only when those with a value do not fill the page are the others sorted, which come
// after them. A comparison that finds few runs is answered from an index of values.
func (s Store) SearchRuns(ctx context.Context, tx *store.Tx, p project.Name, q tracking.Query) ([]tracking.Run, error) {
	f := runSearch{p: p, q: q, sqlite: isSQLite(tx)}
	if err := f.look(ctx, tx); err != nil {
		return nil, err
	}
	if f.rare > 0 && f.finds == 0 {
		return nil, nil
	}
	if f.rare > 0 && f.finds < handful || len(q.Order) == 0 || q.Order[0].Entity == search.Attribute || len(q.Experiments) != 1 {
		return f.sorted(ctx, tx, "", nil, q.Limit, q.Offset)
	}
	found, err := f.valued(ctx, tx)
	if err != nil || len(found) == q.Limit {
		return found, err
	}
	if len(found) == 0 && q.Offset > 0 { // how many came before is not known
		return f.sorted(ctx, tx, "", nil, q.Limit, q.Offset)
	}
	by := q.Order[0]
	has := "SELECT 1 FROM " + tableOf[by.Entity] + " x WHERE x.run = t.id AND x.key = ?"
	if by.Entity == search.Metric {
		has += " AND x.rank IS NOT NULL"
	}
	rest, err := f.sorted(ctx, tx, "NOT EXISTS ("+has+")", []any{by.Key}, q.Limit-len(found), 0)
	return append(found, rest...), err
}

// runSearch is one search for runs.
type runSearch struct {
	p      project.Name
	q      tracking.Query
	sqlite bool
	rare   int // the comparison that finds few runs, from 1; 0 is none
	finds  int // how many
}

// look finds a comparison that finds few runs.
func (f *runSearch) look(ctx context.Context, tx *store.Tx) error {
	for i, cmp := range f.q.Where {
		from, ok := f.index(cmp)
		if !ok {
			continue
		}
		var n int
		if err := tx.NewRaw("SELECT COUNT(*) FROM (SELECT 1 FROM "+from.table+" x WHERE "+from.String()+" LIMIT ?) AS found", append(from.args, few)...).Scan(ctx, &n); err != nil {
			return err
		}
		if n < few && (f.rare == 0 || n < f.finds) {
			f.rare, f.finds = i+1, n
		}
		if n == 0 {
			return nil
		}
	}
	return nil
}

// tableOf holds the values of runs by experiment and key, each run's once.
var tableOf = map[search.Entity]string{search.Metric: "tracking_metric_latest", search.Param: "tracking_param", search.Tag: "tracking_tag"}

// lookup is where an index finds the runs of a comparison: rows x of a table.
type lookup struct {
	table, run string // run is the column with the run
	condition
}

// index says how an index finds what a comparison does; false: none does.
func (f *runSearch) index(cmp search.Comparison) (l lookup, ok bool) {
	l = lookup{table: tableOf[cmp.Entity], run: "x.run"}
	if cmp.Entity == search.Attribute {
		l.table, l.run = "tracking_run", "x.id"
	}
	l.and("x.project = ?", string(f.p))
	l.and("x.experiment IN (?)", bun.List(f.q.Experiments))
	switch cmp.Entity {
	case search.Metric:
		part, args := metricWhere(cmp)
		l.and("x.key = ?", cmp.Key)
		l.and(part, args...)
		return l, cmp.Op != search.NotEqual
	case search.Param, search.Tag:
		l.and("x.key = ?", cmp.Key)
		return l, l.value(cmp, f.sqlite)
	case search.Attribute:
		part, args := search.Where(cmp, "x.started", true, f.sqlite)
		l.and(part, args...)
		return l, cmp.Key == "start_time" && cmp.Op != search.NotEqual
	default:
		return l, false
	}
}

// value adds a condition for the value of a param or tag, of which the index has the
// head: all of it, unless that is as long as a head may be.
func (l *lookup) value(cmp search.Comparison, sqlite bool) (ok bool) {
	switch cmp.Op {
	case search.IsNotNull:
	case search.Equal:
		l.and("x.head = ?", head(cmp.Text))
		if utf8.RuneCountInString(cmp.Text) >= headLength {
			l.and("x.value = ?", cmp.Text)
		}
	case search.Like, search.ILike:
		if cmp.Op == search.Like {
			l.prefix(head(cmp.Text[:strings.IndexAny(cmp.Text+"%", "%_")]))
		}
		part, args := search.Where(cmp, "CASE WHEN LENGTH(x.head) < ? THEN x.head ELSE x.value END", false, sqlite)
		l.and(part, append([]any{headLength}, args...)...)
	default:
		return false
	}
	return true
}

// prefix narrows heads to those that begin so, as far as there is a text that comes
// after them all.
func (l *lookup) prefix(prefix string) {
	if prefix == "" {
		return
	}
	l.and("x.head >= ?", prefix)
	last, n := utf8.DecodeLastRuneInString(prefix)
	for last++; last <= utf8.MaxRune; last++ {
		if utf8.ValidRune(last) {
			l.and("x.head < ?", prefix[:len(prefix)-n]+string(last))
			return
		}
	}
}

// where is the condition for a run t, but for the comparison that finds few. run is
// its id, of the table that is read first.
func (f *runSearch) where(run string) (c condition) {
	c.and("t.project = ?", string(f.p))
	c.and("t.experiment IN (?)", bun.List(f.q.Experiments))
	c.view(f.q.View)
	for i, cmp := range f.q.Where {
		if i+1 == f.rare {
			continue
		}
		switch cmp.Entity {
		case search.Param, search.Tag:
			c.pairs(cmp, tableOf[cmp.Entity], "x.run = "+run, f.sqlite)
		case search.Metric:
			part, args := metricWhere(cmp)
			c.and("EXISTS (SELECT 1 FROM tracking_metric_latest x WHERE x.run = "+run+" AND x.key = ? AND "+part+")", append([]any{cmp.Key}, args...)...)
		case search.Dataset:
			part, args := search.Where(cmp, "x."+cmp.Key, false, f.sqlite)
			c.and("EXISTS (SELECT 1 FROM tracking_input x WHERE x.run = "+run+" AND "+part+")", args...)
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
			sel = sel.OrderExpr(direction("(SELECT x.value FROM "+tableOf[o.Entity]+" x WHERE x.run = t.id AND x.key = ?)", o.Desc), o.Key, o.Key)
		default: // never NULL
			sel = sel.OrderExpr(runColumns[o.Key] + way(o))
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

// valued are the runs with a value, or a number, of what orders them. SQLite takes the
// tables of a CROSS JOIN in their order.
func (f *runSearch) valued(ctx context.Context, tx *store.Tx) ([]tracking.Run, error) {
	by := f.q.Order[0]
	c := f.where("o.run")
	c.and("o.project = ? AND o.experiment = ? AND o.key = ? AND t.id = o.run", string(f.p), int64(f.q.Experiments[0]), by.Key)
	columns := []string{"o.head", "o.value"}
	if by.Entity == search.Metric {
		c.and("o.rank IS NOT NULL")
		columns = []string{"o.rank"}
	}
	if f.rare > 0 { // asked of the index, before the run is looked up
		from, _ := f.index(f.q.Where[f.rare-1])
		c.and("o.run IN (SELECT "+from.run+" FROM "+from.table+" x WHERE "+from.String()+")", from.args...)
	}
	sel := tx.NewSelect().ColumnExpr("t.*").TableExpr(tableOf[by.Entity]+" o CROSS JOIN tracking_run t").Where(c.String(), c.args...)
	for _, column := range columns {
		sel = sel.OrderExpr(column + way(by))
	}
	return scanRuns(ctx, ordered(sel, f.q.Order[1:]).Limit(f.q.Limit).Offset(f.q.Offset))
}

// sorted are runs, all of which are sorted.
func (f *runSearch) sorted(ctx context.Context, tx *store.Tx, and string, args []any, limit, offset int) ([]tracking.Run, error) {
	c := f.where("t.id")
	if and != "" {
		c.and(and, args...)
	}
	tables := "tracking_run t"
	if f.rare > 0 { // each run is there once
		from, _ := f.index(f.q.Where[f.rare-1])
		tables = from.table + " x CROSS JOIN tracking_run t"
		c.and("t.id = "+from.run+" AND "+from.String(), from.args...)
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
