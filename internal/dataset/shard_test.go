package dataset_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"pgregory.net/rapid"

	"github.com/falaj-ml/falaj/internal/dataset"
	"github.com/falaj-ml/falaj/internal/dataset/datasettest"
	"github.com/falaj-ml/falaj/internal/fault"
)

// The shards of any number of rows are all of them, in order, none twice, and
// of two shards none has two rows more than the other.
func TestShards(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rows := rapid.OneOf(rapid.Int64Range(0, 100), rapid.Int64Range(0, 1<<50)).Draw(t, "rows")
		count := rapid.OneOf(rapid.Int64Range(1, 20), rapid.Int64Range(1, dataset.MaxShards)).Draw(t, "count")
		next, least, most := int64(0), rows, int64(0)
		for i := range count {
			p := dataset.Shard{Index: i, Count: count}
			if err := p.Validate(); err != nil {
				t.Fatal(err)
			}
			from, to := p.Rows(rows)
			if from != next || to < from {
				t.Fatalf("shard %d of %d of %d rows is %d to %d, after %d", i, count, rows, from, to, next)
			}
			next, least, most = to, min(least, to-from), max(most, to-from)
		}
		if next != rows || most-least > 1 {
			t.Fatalf("%d shards of %d rows end at %d and have %d to %d rows", count, rows, next, least, most)
		}
	})
	for _, p := range []dataset.Shard{{Count: -1}, {Count: dataset.MaxShards + 1}, {Index: 1}, {Index: 2, Count: 2}, {Index: -1, Count: 2}, {Skip: -1}, {Take: -1}} {
		if err := p.Validate(); !fault.Is(err, fault.Invalid) {
			t.Errorf("%+v: %v", p, err)
		}
	}
}

// numbered makes a version of one column that counts from 0, in one file for each
// batch.
func numbered(t *testing.T, h *datasettest.Harness, name string, batches ...int) dataset.Version {
	t.Helper()
	schema := arrow.NewSchema([]arrow.Field{{Name: "n", Type: arrow.PrimitiveTypes.Int64}, {Name: "word", Type: arrow.BinaryTypes.String, Nullable: true}}, nil)
	var recs []arrow.RecordBatch
	next := int64(0)
	for _, rows := range batches {
		b := array.NewRecordBuilder(memory.DefaultAllocator, schema)
		for range rows {
			b.Field(0).(*array.Int64Builder).Append(next)
			if next%3 == 0 {
				b.Field(1).AppendNull()
			} else {
				b.Field(1).(*array.StringBuilder).Append(fmt.Sprint("w", next))
			}
			next++
		}
		recs = append(recs, b.NewRecordBatch())
	}
	rows, err := array.NewRecordReader(schema, recs)
	if err != nil {
		t.Fatal(err)
	}
	v, err := h.Writes.Create(datasettest.Context(t), dataset.CreateRequest{Project: project, Name: name, Rows: rows})
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// Whatever part is asked for is what the same rows of the whole are; over files
// of any sizes, sealed and open.
func TestPartsOfAVersion(t *testing.T) {
	h := datasettest.New(t, func(c *dataset.Config) { c.Limits.DataFile = 1 })
	h.Declare(t, "open", dataset.Spec{Protection: dataset.Open})
	v := map[string]dataset.Version{
		"sealed": numbered(t, h, "sealed", 5, 1, 7, 3), "open": numbered(t, h, "open", 2, 9, 4), "empty": numbered(t, h, "empty"),
	}
	if n := len(v["sealed"].Files); n != 4 {
		t.Fatalf("%d files", n)
	}
	whole := map[string][]string{}
	for name := range v {
		whole[name] = rowsOf(t, h, name)
	}
	for name, want := range map[string][]int64{"sealed": {0, 5, 6, 13}, "open": {0, 2, 11}, "empty": nil} {
		plan, err := h.Reads.Plan(datasettest.Context(t), dataset.OpenRequest{Project: project, Ref: dataset.Ref{Name: name}})
		if err != nil {
			t.Fatal(err)
		}
		if got := plan.Version.GroupStarts(4); !slices.Equal(got, want) {
			t.Errorf("row groups of %s begin at %v, want %v", name, got, want)
		}
		if got := plan.Version.GroupStarts(2); got != nil {
			t.Errorf("row groups of %s begin at %v, more than 2", name, got)
		}
	}
	rapid.Check(t, func(rt *rapid.T) {
		name := rapid.SampledFrom([]string{"sealed", "open", "empty"}).Draw(rt, "dataset")
		p := dataset.Shard{
			Count: rapid.Int64Range(0, 6).Draw(rt, "count"),
			Skip:  rapid.Int64Range(0, 20).Draw(rt, "skip"), Take: rapid.Int64Range(0, 20).Draw(rt, "take"),
		}
		if p.Count > 0 {
			p.Index = rapid.Int64Range(0, p.Count-1).Draw(rt, "index")
		}
		r := dataset.OpenRequest{Project: project, Ref: dataset.Ref{Name: name}, Shard: p, Digest: v[name].ContentDigest}
		plan, err := h.Reads.Plan(datasettest.Context(t), r)
		if err != nil {
			rt.Fatal(err)
		}
		rows, err := h.Reads.Open(datasettest.Context(t), r)
		if err != nil {
			rt.Fatal(err)
		}
		defer rows.Release()
		table, err := dataset.Collect(t.Context(), rows, 1000, 0)
		if err != nil {
			rt.Fatal(err)
		}
		got := []string{}
		for _, row := range table.Rows {
			got = append(got, fmt.Sprintf("%v|%v", row[0], row[1]))
		}
		if want := whole[name][plan.From:plan.To]; !slices.Equal(got, want) {
			rt.Fatalf("%+v of %s: %v, want %v", p, name, got, want)
		}
	})
	_, err := h.Reads.Open(datasettest.Context(t), dataset.OpenRequest{Project: project, Ref: dataset.Ref{Name: "open"}, Digest: "sha256:other"})
	wantFault(t, err, fault.Conflict, "sha256:other")
	_, err = h.Reads.Open(datasettest.Context(t), dataset.OpenRequest{Project: project, Ref: dataset.Ref{Name: "open"}, Shard: dataset.Shard{Index: 1}})
	wantFault(t, err, fault.Invalid, "no shard 1 of 1")
}
