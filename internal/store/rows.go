package store

import (
	"context"
	"math"
	"slices"
	"strings"

	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect"
)

// maxRows are those of one statement of InsertRows: to PostgreSQL it is the way that
// costs.
const maxRows = 500

// rowsSQLite are the numbers of rows for which SQLite keeps statements prepared.
var rowsSQLite = []int{40, 8, 1}

// InsertRows inserts n rows: insert is "INSERT INTO table (columns) VALUES", then what
// follows the rows, such as "ON CONFLICT DO NOTHING". values appends the columns of
// the i-th row to what it is given: texts, whole numbers, Floats, *float64, booleans.
// Of many rows it costs a third of what one statement with their values in its text
// does, which SQLite would have to read. On PostgreSQL it is done Later.
func (tx *Tx) InsertRows(ctx context.Context, insert, then string, columns, n int, values func(args []any, i int) []any) error {
	inner, bound := tx.IDB.(bun.Tx)
	bound = bound && tx.Dialect().Name() == dialect.SQLite
	row := "(?" + strings.Repeat(", ?", columns-1) + ")"
	args := make([]any, 0, columns*min(n, maxRows))
	for i := 0; i < n; {
		rows := min(n-i, maxRows)
		if bound {
			rows = rowsSQLite[slices.IndexFunc(rowsSQLite, func(most int) bool { return most <= n-i })]
		}
		args = args[:0]
		for range rows {
			args = values(args, i)
			i++
		}
		query := insert + " " + row + strings.Repeat(", "+row, rows-1) + " " + then //nolint:gosec // the text of our own code; the values are bound, or quoted by bun
		var err error
		if bound {
			bind(args)
			_, err = inner.Tx.ExecContext(ctx, query, args...)
		} else {
			_, err = tx.NewRaw(query, args...).Exec(Later(ctx))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// bind makes arguments what SQLite keeps of them, as AppendQuery writes them.
func bind(args []any) {
	for i, a := range args {
		if f, ok := a.(Float); ok {
			args[i] = float64(f) + 0 // no minus zero
			if math.IsNaN(float64(f)) {
				args[i] = "NaN"
			}
		}
	}
}
