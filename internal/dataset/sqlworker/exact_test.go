//go:build duckdb_arrow

package sqlworker_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/falaj-ml/falaj/internal/dataset"
	"github.com/falaj-ml/falaj/internal/dataset/datasettest"
	"github.com/falaj-ml/falaj/internal/dataset/valuetest"
	"github.com/falaj-ml/falaj/internal/fault"
)

// Decimals of a result are the float64 nearest to them, and whole numbers themselves.
func TestQueryDecimals(t *testing.T) {
	h := harness(t, nil)
	var numbers []valuetest.Number
	var columns []string
	for i, n := range valuetest.Numbers(2) {
		if n.Whole() && !n.Exact.Num().IsInt64() {
			continue // refused; see below
		}
		numbers = append(numbers, n)
		columns = append(columns, fmt.Sprintf("CAST('%s' AS DECIMAL(38,%d)) AS c%d", n.Text, n.Scale, i))
	}
	r, err := h.Reads.Query(datasettest.Context(t), dataset.QueryRequest{Project: project, SQL: "SELECT " + strings.Join(columns, ", ")})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Release()
	table, err := dataset.Collect(t.Context(), r, 1, 0)
	if err != nil || len(table.Rows) != 1 {
		t.Fatal(table, err)
	}
	for i, v := range table.Rows[0] {
		if wrong := valuetest.Wrong(numbers[i], v); wrong != "" {
			t.Error(wrong)
		}
	}
}

func TestQueriesThatAreNotWhatTheySay(t *testing.T) {
	h := harness(t, nil)
	for _, c := range []struct{ sql, want string }{
		{"SELECT 'caf\xe9'", "not UTF-8: byte 12"},
		{"SELECT 18446744073709551615::UBIGINT AS id", `row 1, column "id"`},
		{"SELECT 99999999999999999999::HUGEINT AS id", `row 1, column "id"`},
		{"SELECT TIMESTAMPTZ '10000-01-01 00:00:00+00' AS t", `row 1, column "t": the year`},
		{"SELECT TIMESTAMP '0001-01-01 (BC) 00:00:00' AS t", `row 1, column "t": the year`},
		{"SELECT DATE '10000-01-01' AS d", `row 1, column "d": the year`},
	} {
		if got, err := query(t, h, dataset.QueryRequest{SQL: c.sql}); !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %q, %v, want %s", c.sql, got, err, c.want)
		}
	}
	for sql, want := range map[string]string{"SELECT 1e400 AS x": "+Inf", "SELECT -1e400 AS x, 'Infinity \"NaN' AS y": `-Inf Infinity "NaN`} {
		if got, err := query(t, h, dataset.QueryRequest{SQL: sql}); err != nil || got != want {
			t.Errorf("%s: %q, %v", sql, got, err)
		}
	}
}
