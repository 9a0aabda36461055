package store_test

import (
	"context"
	"math"
	"testing"
	"testing/fstest"

	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/store/storetest"
)

// TestInsertRows: what is bound is what the text of a statement would have said, on
// either side of the bounds of a statement.
func TestInsertRows(t *testing.T) {
	schema := store.Migrations{Name: "rows", FS: fstest.MapFS{"00001_rows.sql": {Data: []byte("-- +goose Up\nCREATE TABLE rows_row (id BIGINT NOT NULL PRIMARY KEY, name TEXT NOT NULL, value DOUBLE PRECISION NOT NULL, rank DOUBLE PRECISION);\n")}}}
	values := []float64{1.5, math.NaN(), math.Inf(1), math.Inf(-1), math.Copysign(0, -1), math.MaxFloat64, 5e-324}
	for database, open := range map[string]storetest.Open{"SQLite": storetest.SQLite, "PostgreSQL": storetest.PostgreSQL} {
		t.Run(database, func(t *testing.T) {
			db := open(t, schema)
			for _, n := range []int{0, 1, 39, 40, 41, 80, 499, 500, 1001} {
				type row struct {
					ID    int64
					Name  string
					Value store.Float
					Rank  *float64
				}
				var got []row
				err := db.Update(t.Context(), "p", func(ctx context.Context, tx *store.Tx) error {
					if _, err := tx.NewRaw("DELETE FROM rows_row").Exec(ctx); err != nil {
						return err
					}
					insert := func(ctx context.Context, tx *store.Tx) error {
						return tx.InsertRows(ctx, "INSERT INTO rows_row (id, name, value, rank) VALUES", "ON CONFLICT (id) DO NOTHING", 4, n, func(args []any, i int) []any {
							v := values[i%len(values)]
							rank := &v
							if i%len(values) == 1 {
								rank = nil
							}
							if i%len(values) > 1 {
								rank = new(float64)
							}
							return append(args, int64(i), "it's ? \\ é", store.Float(v), rank)
						})
					}
					if err := tx.Savepoint(ctx, insert); err != nil { // within one, too
						return err
					}
					return insert(ctx, tx) // and again: nothing
				})
				if err != nil {
					t.Fatal(err)
				}
				err = db.View(t.Context(), func(ctx context.Context, tx *store.Tx) error {
					return tx.NewRaw("SELECT id, name, value, rank FROM rows_row ORDER BY id").Scan(ctx, &got)
				})
				if err != nil || len(got) != n {
					t.Fatalf("%d rows of %d: %v", len(got), n, err)
				}
				for i, r := range got {
					want := values[i%len(values)]
					same := float64(r.Value) == want && !math.Signbit(float64(r.Value)+0) == !math.Signbit(want+0) || math.IsNaN(want) && math.IsNaN(float64(r.Value))
					if r.ID != int64(i) || r.Name != "it's ? \\ é" || !same || (r.Rank == nil) != (i%len(values) == 1) {
						t.Fatalf("row %d is %+v", i, r)
					}
				}
			}
		})
	}
}
