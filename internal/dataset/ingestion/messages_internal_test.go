package ingestion

import (
	"slices"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow/array"

	"github.com/falaj-ml/falaj/internal/dataset/parser"
)

// Messages come as they are, a row each, in batches; of one that is too long the
// beginning, and the next is whole again.
func TestLines(t *testing.T) {
	long := strings.Repeat("x", maxMessage+100)
	in := []string{`{"a": 1}`, "no JSON", "", "\x00\xff", long, `{"b": 2}`}
	rows, err := lines{}.Parse(t.Context(), strings.NewReader(strings.Join(in, "\n")+"\n"), parser.Request{Batch: 2})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	var batches []int64
	for rows.Next() {
		rec := rows.RecordBatch()
		batches = append(batches, rec.NumRows())
		column := rec.Column(0).(*array.Binary)
		for i := range column.Len() {
			got = append(got, string(column.Value(i)))
		}
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	if _, err := rows.Summary(); err != nil {
		t.Error(err)
	}
	if err := rows.Close(); err != nil {
		t.Error(err)
	}
	in[4] = long[:len(got[4])]
	if !slices.Equal(got, in) || !slices.Equal(batches, []int64{2, 2, 2}) || len(got[4]) < maxMessage || len(got[4]) > maxMessage+64<<10 {
		t.Errorf("%d rows in batches of %v, the long one has %d bytes", len(got), batches, len(got[4]))
	}
}
