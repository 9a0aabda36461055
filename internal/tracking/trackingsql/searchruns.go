package trackingsql

import (
	"context"
	"slices"
	"strconv"
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
	"start_time": "t.started", "end_time": "NULLIF(t.ended, 0)", // a running run has no end
	"artifact_uri": "('mlflow-artifacts:/' || CAST(t.experiment AS TEXT) || '/' || t.id || '/artifacts')",
}

// metricWhere compares as IEEE 754 does: NaN differs from every number.
func metricWhere(cmp search.Comparison, rank string) (string, []any) {
	part, args := search.Where(cmp, rank, true, false)
	if cmp.Op == search.NotEqual {
		part = "(" + part + " OR " + rank + " IS NULL)"
	}
	return part, args
}

// few is how many runs a comparison may find to be looked up one by one. Tests change
// it.
var few = 1000

// SearchRuns implements tracking.RunStore.
//
// A comparison that finds few runs is answered first, from an index of values, and
// those are sorted. Otherwise a search that is ordered by a metric, a param or a tag
// reads the values of one experiment in their order and ends when it has a page,
// instead of sorting all runs. Only when those with a value do not fill the page are
// the others sorted, which come after them.
func (s RunStore) SearchRuns(ctx context.Context, tx *store.Tx, p project.Name, q tracking.Query) ([]tracking.Run, error) {
	f := runSearch{p: p, q: q, sqlite: isSQLite(tx)}
	if err := f.look(ctx, tx); err != nil {
		return nil, err
	}
	if f.rare > 0 && len(f.runs) == 0 {
		return nil, nil
	}
	if f.rare > 0 || len(q.Order) == 0 || q.Order[0].Entity == search.Attribute || len(q.Experiments) != 1 {
		return f.sorted(ctx, tx, "", nil, q.Limit, q.Offset)
	}
	found, err := f.valued(ctx, tx)
	if err != nil || len(found) == q.Limit || slices.ContainsFunc(q.Where, func(cmp search.Comparison) bool { return f.orders(cmp) && cmp.Op != search.NotEqual }) {
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
	rare   int      // the comparison that finds few runs, from 1; 0 is none
	runs   []string // which
}

// look finds the comparison that finds the fewest runs, if they are few.
func (f *runSearch) look(ctx context.Context, tx *store.Tx) error {
	most := few
	for i, cmp := range f.q.Where {
		l, ok := f.index(cmp)
		if !ok {
			continue
		}
		var found struct {
			N    int
			Runs string
		}
		err := tx.NewRaw("SELECT COUNT(*) AS n, COALESCE(STRING_AGG(run, ' '), '') AS runs FROM (SELECT "+l.run+" AS run FROM "+l.table+" WHERE "+l.String()+" LIMIT ?) AS found",
			append(l.args, most)...).Scan(ctx, &found)
		if err != nil {
			return err
		}
		if found.N < most {
			most, f.rare, f.runs = found.N, i+1, strings.Fields(found.Runs)
		}
		if most == 0 {
			return nil
		}
	}
	return nil
}

// tableOf holds the values of runs by experiment and key, each run's once.
var tableOf = map[search.Entity]string{search.Metric: "tracking_metric_latest", search.Param: "tracking_param", search.Tag: "tracking_tag"}

// lookup is a condition on one table, whose column run is the run.
type lookup struct {
	table, run string
	condition
}

// index says how an index finds what a comparison does; false: none does. Of attributes
// the start, the name and a status that is not FINISHED have one; the others cost a look
// at the runs, not at their values.
func (f *runSearch) index(cmp search.Comparison) (l lookup, ok bool) {
	if cmp.Op == search.NotEqual || cmp.Op == search.NotIn || cmp.Op == search.IsNull {
		return l, false
	}
	l = lookup{table: tableOf[cmp.Entity] + " x", run: "run"}
	if cmp.Entity == search.Attribute {
		l.table, l.run = "tracking_run t", "id"
	}
	l.and("project = ?", string(f.p))
	l.and("experiment IN (?)", bun.List(f.q.Experiments))
	switch cmp.Entity {
	case search.Metric:
		part, args := metricWhere(cmp, "x.rank")
		l.and("key = ?", cmp.Key)
		l.and(part, args...)
	case search.Param, search.Tag:
		l.and("key = ?", cmp.Key)
		l.value(cmp, f.sqlite)
	case search.Attribute:
		l.attribute(cmp, f.sqlite)
		l.narrow(cmp, f.q.View)
		if cmp.Key != "start_time" {
			break
		}
		for _, other := range f.q.Where { // from one time to another
			if other.Entity == cmp.Entity && other.Key == cmp.Key && other.Op != search.NotEqual {
				l.attribute(other, f.sqlite)
			}
		}
	default:
		return l, false
	}
	return l, true
}

// value adds a condition for the value of a param or tag, of which the index has the
// head: all of it, unless that is as long as a head may be.
func (l *lookup) value(cmp search.Comparison, sqlite bool) {
	switch cmp.Op {
	case search.Equal:
		l.and("x.head = ?", head(cmp.Text))
		if utf8.RuneCountInString(cmp.Text) >= headLength {
			l.and("x.value = ?", cmp.Text)
		}
	case search.Like, search.ILike:
		if cmp.Op == search.Like {
			l.prefix("x.head", head(fixed(cmp.Text)))
		}
		// Only a long value is read from its row: the others are read from the index alone.
		part, args := search.Where(cmp, "CASE WHEN LENGTH(x.head) < ? THEN x.head ELSE "+
			"(SELECT y.value FROM "+tableOf[cmp.Entity]+" y WHERE y.run = x.run AND y.key = x.key) END", false, sqlite)
		l.and(part, append([]any{headLength}, args...)...)
	default: // that there is one
	}
}

// fixed is what a pattern begins with, up to the first sign that stands for others.
func fixed(pattern string) string { return pattern[:strings.IndexAny(pattern+"%", "%_")] }

// prefix narrows texts to those that begin so, as far as there is one that comes after
// them all.
func (c *condition) prefix(column, prefix string) {
	if prefix == "" {
		return
	}
	c.and(column+" >= ?", prefix)
	last, n := utf8.DecodeLastRuneInString(prefix)
	for last++; last <= utf8.MaxRune; last++ {
		if utf8.ValidRune(last) {
			c.and(column+" < ?", prefix[:len(prefix)-n]+string(last))
			return
		}
	}
}

// attribute adds a comparison of an attribute of a run t.
func (c *condition) attribute(cmp search.Comparison, sqlite bool) {
	numeric := cmp.Key == "start_time" || cmp.Key == "end_time"
	part, args := search.Where(cmp, runColumns[cmp.Key], numeric, sqlite)
	c.and(part, args...)
}

// narrow adds what follows from a comparison of an attribute, for its index, which has the
// stage before it.
func (l *lookup) narrow(cmp search.Comparison, view tracking.View) {
	if l.view(view); view == tracking.ViewAll {
		l.and("t.stage IN (?, ?)", string(tracking.Active), string(tracking.Deleted))
	}
	switch {
	case cmp.Key == "status" && cmp.Op == search.Equal && cmp.Text != string(tracking.Finished):
		l.and("t.status <> 'FINISHED'") // the condition of the index
	case cmp.Key == "run_name" && cmp.Op == search.Like:
		l.prefix("t.name", fixed(cmp.Text))
	}
}

// orders reports whether the runs are ordered by the metric that is compared.
func (f *runSearch) orders(cmp search.Comparison) bool {
	by := f.q.Order[0]
	return by.Entity == search.Metric && cmp.Entity == search.Metric && cmp.Key == by.Key
}

// where is the condition for a run t, run its id, of the table that is read first.
func (f *runSearch) where(run string) (c condition) {
	if f.rare > 0 {
		c.and(run+" IN (?)", store.Texts(f.runs))
	}
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
			if run == "o.run" && f.orders(cmp) {
				part, args := metricWhere(cmp, "o.rank")
				c.and(part, args...)
				continue
			}
			part, args := metricWhere(cmp, "x.rank")
			c.and("EXISTS (SELECT 1 FROM tracking_metric_latest x WHERE x.run = "+run+" AND x.key = ? AND "+part+")", append([]any{cmp.Key}, args...)...)
		case search.Dataset:
			part, args := search.Where(cmp, "x."+cmp.Key, false, f.sqlite)
			c.and("EXISTS (SELECT 1 FROM tracking_input x WHERE x.run = "+run+" AND "+part+")", args...)
		case search.Attribute:
			c.attribute(cmp, f.sqlite)
		}
	}
	return c
}

// ordered sorts runs t: those with a number before those with NaN before those without
// a metric, and those with a param or tag before those without.
func ordered(sel *bun.SelectQuery, order []search.Order) *bun.SelectQuery {
	for i, o := range order {
		if o.Entity == search.Attribute {
			if o.Key == "end_time" { // the only one that a run may not have
				sel = sel.OrderExpr(direction(runColumns[o.Key], o.Desc))
				continue
			}
			sel = sel.OrderExpr(runColumns[o.Key] + way(o))
			continue
		}
		as := "o" + strconv.Itoa(i)
		sel = sel.Join("LEFT JOIN "+tableOf[o.Entity]+" "+as+" ON "+as+".run = t.id AND "+as+".key = ?", o.Key)
		if o.Entity == search.Metric {
			sel = sel.OrderExpr("CASE WHEN " + as + ".run IS NULL THEN 2 WHEN " + as + ".rank IS NULL THEN 1 ELSE 0 END, " + as + ".rank" + way(o))
			continue
		}
		sel = sel.OrderExpr(direction(as+".value", o.Desc))
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
	sel := tx.NewSelect().ColumnExpr("t.*").TableExpr(tableOf[by.Entity]+" o CROSS JOIN tracking_run t").Where(c.String(), c.args...)
	for _, column := range columns {
		sel = sel.OrderExpr(column + way(by))
	}
	return scanRuns(ctx, ordered(sel, f.q.Order[1:]), f.q.Limit, f.q.Offset)
}

// sorted are runs, all of which are sorted.
func (f *runSearch) sorted(ctx context.Context, tx *store.Tx, and string, args []any, limit, offset int) ([]tracking.Run, error) {
	c := f.where("t.id")
	if and != "" {
		c.and(and, args...)
	}
	table := "tracking_run t"
	if f.named() {
		table += " INDEXED BY tracking_run_name"
	}
	sel := tx.NewSelect().ColumnExpr("t.*").TableExpr(table).Where(c.String(), c.args...)
	return scanRuns(ctx, ordered(sel, f.q.Order), limit, offset)
}

// named reports whether the index of names has the runs in their order. SQLite would take
// that of starts, and sort all runs: it does not see that a page is enough.
func (f *runSearch) named() bool {
	return f.sqlite && f.rare == 0 && len(f.q.Experiments) == 1 && (f.q.View == tracking.ViewActive || f.q.View == tracking.ViewDeleted) &&
		len(f.q.Order) > 0 && f.q.Order[0].Entity == search.Attribute && f.q.Order[0].Key == "run_name"
}

func scanRuns(ctx context.Context, sel *bun.SelectQuery, limit, offset int) ([]tracking.Run, error) {
	rows := make([]runRow, 0, min(limit, batch))
	if err := sel.Limit(limit).Offset(offset).Scan(ctx, &rows); err != nil {
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
