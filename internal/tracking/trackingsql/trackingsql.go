// Package trackingsql keeps tracking's objects in the metadata database, SQLite
// or PostgreSQL alike.
//
// trackingsql.go holds what all share, experiment.go experiments, run.go runs and
// what they log, searchruns.go how they are found, loggedmodel.go logged models,
// artifact.go the paths of artifacts, multipart.go uploads, imported.go what came
// from elsewhere, prune.go what goes for ever, ofjob.go the runs of jobs.
package trackingsql

import (
	"context"
	"database/sql"
	"embed"
	"encoding/json"
	"errors"
	"math"
	"strings"

	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect"

	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/tracking"
	"github.com/falaj-ml/falaj/internal/tracking/search"
)

//go:embed migrations/*.sql
var files embed.FS

// Migrations is the schema of tracking.
var Migrations = store.Embedded("tracking", files)

// Store implements tracking.Store.
type Store struct {
	ExperimentStore
	RunStore
	LogStore
	LoggedModelStore
	ArtifactStore
	UploadStore
	ImportStore
	PruneStore
}

type (
	// ExperimentStore implements tracking.ExperimentStore.
	ExperimentStore struct{}
	// RunStore implements tracking.RunStore.
	RunStore struct{}
	// LogStore implements tracking.LogStore.
	LogStore struct{}
	// LoggedModelStore implements tracking.LoggedModelStore.
	LoggedModelStore struct{}
	// ArtifactStore implements tracking.ArtifactStore.
	ArtifactStore struct{}
	// UploadStore implements tracking.UploadStore.
	UploadStore struct{}
	// ImportStore implements tracking.ImportStore.
	ImportStore struct{}
	// PruneStore implements tracking.PruneStore.
	PruneStore struct{}
)

var _ tracking.Store = Store{}

// batch bounds rows and arguments of one statement: SQLite takes 32,766
// variables, though bun inlines them.
const batch = 500

func isSQLite(tx *store.Tx) bool { return tx.Dialect().Name() == dialect.SQLite }

// putPairs upserts rows of a table whose key is (column, key).
func putPairs(ctx context.Context, tx *store.Tx, table, column, owner string, pairs []tracking.Pair) error {
	for len(pairs) > 0 {
		n := min(len(pairs), batch)
		args := []any{bun.Ident(table), bun.Ident(column)}
		for _, p := range pairs[:n] {
			args = append(args, owner, p.Key, p.Value)
		}
		values := strings.Repeat(", (?, ?, ?)", n)[2:]
		args = append(args, bun.Ident(column))
		if _, err := tx.NewRaw("INSERT INTO ? (?, key, value) VALUES "+values+" ON CONFLICT (?, key) DO UPDATE SET value = excluded.value", args...).Exec(ctx); err != nil {
			return err
		}
		pairs = pairs[n:]
	}
	return nil
}

// pairsOf reads the pairs of the owners, by key.
func pairsOf(ctx context.Context, tx *store.Tx, table, column string, owners []string) (map[string][]tracking.Pair, error) {
	type owned struct {
		owner string
		tracking.Pair
	}
	out := make(map[string][]tracking.Pair, len(owners))
	err := chunks(owners, func(ids []string) error {
		var p owned
		pairs := make([]owned, 0, 8*len(ids))
		err := each(ctx, tx, func(rows *sql.Rows) error {
			err := rows.Scan(&p.owner, &p.Key, &p.Value)
			pairs = append(pairs, p)
			return err
		}, "SELECT ?, key, value FROM ? WHERE ? IN (?) ORDER BY ?, key", bun.Ident(column), bun.Ident(table), bun.Ident(column), store.Texts(ids), bun.Ident(column))
		for _, of := range alike(pairs, func(p *owned) string { return p.owner }) {
			kept := make([]tracking.Pair, len(of))
			for i := range of {
				kept[i] = of[i].Pair
			}
			out[of[0].owner] = kept
		}
		return err
	})
	return out, err
}

// alike splits rows where their key changes.
func alike[T any, K comparable](rows []T, key func(*T) K) (out [][]T) {
	from := 0
	for i := range rows {
		if i+1 == len(rows) || key(&rows[i]) != key(&rows[i+1]) {
			out, from = append(out, rows[from:i+1:i+1]), i+1
		}
	}
	return out
}

// each calls do for each row that a query finds. Of what a search reads there are
// thousands, for which bun's way by reflection costs twice as much.
func each(ctx context.Context, tx *store.Tx, do func(*sql.Rows) error, query string, args ...any) error {
	rows, err := tx.QueryContext(ctx, query, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := do(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}

func chunks(ids []string, do func([]string) error) error {
	for len(ids) > 0 {
		n := min(len(ids), batch)
		if err := do(ids[:n]); err != nil {
			return err
		}
		ids = ids[n:]
	}
	return nil
}

func exists(ctx context.Context, tx *store.Tx, query string, args ...any) (bool, error) {
	res, err := tx.NewRaw(query, args...).Exec(ctx)
	if err != nil {
		return false, err
	}
	n, err := res.RowsAffected()
	return n > 0, err
}

// condition is a WHERE clause under construction.
type condition struct {
	parts []string
	args  []any
}

func (c *condition) and(part string, args ...any) {
	c.parts = append(c.parts, part)
	c.args = append(c.args, args...)
}

func (c *condition) view(v tracking.View) {
	switch v {
	case tracking.ViewActive:
		c.and("t.stage = ?", string(tracking.Active))
	case tracking.ViewDeleted:
		c.and("t.stage = ?", string(tracking.Deleted))
	case tracking.ViewAll:
	}
}

func (c *condition) String() string { return strings.Join(c.parts, " AND ") }

// pairs adds a condition on a table of pairs.
func (c *condition) pairs(cmp search.Comparison, table, join string, sqlite bool) {
	sub := "SELECT 1 FROM " + table + " x WHERE " + join + " AND x.key = ?"
	switch cmp.Op {
	case search.IsNull:
		c.and("NOT EXISTS ("+sub+")", cmp.Key)
	case search.IsNotNull:
		c.and("EXISTS ("+sub+")", cmp.Key)
	default:
		part, args := search.Where(cmp, "x.value", false, sqlite)
		c.and("EXISTS ("+sub+" AND "+part+")", append([]any{cmp.Key}, args...)...)
	}
}

// direction puts NULLs last whichever the direction.
func direction(column string, desc bool) string {
	d := " ASC"
	if desc {
		d = " DESC"
	}
	return "CASE WHEN " + column + " IS NULL THEN 1 ELSE 0 END, " + column + d
}

// rank is the comparable form of a value, see the migration.
func rank(v float64) *float64 {
	switch {
	case math.IsNaN(v):
		return nil
	case v > math.MaxFloat64:
		v = math.MaxFloat64
	case v < -math.MaxFloat64:
		v = -math.MaxFloat64
	}
	return &v
}

// pairsJSON are pairs as [["key","value"], …].
type pairsJSON []tracking.Pair

// MarshalJSON implements json.Marshaler.
func (p pairsJSON) MarshalJSON() ([]byte, error) {
	out := make([][2]string, len(p))
	for i, pair := range p {
		out[i] = [2]string{pair.Key, pair.Value}
	}
	return json.Marshal(out)
}

// UnmarshalJSON implements json.Unmarshaler.
func (p *pairsJSON) UnmarshalJSON(b []byte) error {
	var in [][2]string
	err := json.Unmarshal(b, &in)
	*p = nil
	for _, pair := range in {
		*p = append(*p, tracking.Pair{Key: pair[0], Value: pair[1]})
	}
	return err
}

// fromJSON reads what toJSON wrote; most runs have nothing there.
func fromJSON[T any](text string, into *T) error {
	if text == "null" {
		return nil
	}
	return json.Unmarshal([]byte(text), into)
}

func toJSON(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // strings and slices of strings always encode
	}
	return string(b)
}

// OriginColumns are the columns that runs and logged models share.
type OriginColumns struct {
	Job            string
	Attempt        string
	Datasets       string
	TrainedOn      string
	FeatureViews   string
	Environment    string
	Residency      string
	Classification string
}

func originRow(o tracking.Origin) OriginColumns {
	return OriginColumns{
		Job: o.Job, Attempt: o.Attempt, Datasets: toJSON(o.Datasets), TrainedOn: o.TrainedOn, FeatureViews: toJSON(o.FeatureViews),
		Environment: o.Environment, Residency: toJSON(o.Residency), Classification: o.Classification,
	}
}

func (c OriginColumns) origin() (tracking.Origin, error) {
	o := tracking.Origin{Job: c.Job, Attempt: c.Attempt, TrainedOn: c.TrainedOn, Environment: c.Environment, Classification: c.Classification}
	var label residency.Label
	err := errors.Join(fromJSON(c.Datasets, &o.Datasets), fromJSON(c.FeatureViews, &o.FeatureViews), fromJSON(c.Residency, &label))
	o.Residency = label
	return o, err
}
