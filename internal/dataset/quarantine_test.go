package dataset_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	gocmp "github.com/google/go-cmp/cmp"

	"github.com/falaj-ml/falaj/internal/dataset"
	"github.com/falaj-ml/falaj/internal/dataset/datasettest"
	"github.com/falaj-ml/falaj/internal/dataset/expectation"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/deletion"
	"github.com/falaj-ml/falaj/internal/governance/policy"
)

// asideOf is a version's quarantine: "row reasons values".
func asideOf(t *testing.T, h *datasettest.Harness, r string) []string {
	t.Helper()
	out := []string{}
	for from := int64(0); ; {
		q, err := h.Reads.Quarantined(datasettest.Context(t), dataset.OpenRequest{Project: project, Ref: ref(t, r)}, from, 3)
		if err != nil {
			t.Fatalf("%s: %v", r, err)
		}
		for _, row := range q.Rows {
			cells := make([]string, len(row.Values))
			for i, v := range row.Values {
				cells[i] = fmt.Sprint(v)
			}
			out = append(out, fmt.Sprintf("%d %s: %s", row.Row, strings.Join(row.Reasons, " & "), strings.Join(cells, "|")))
		}
		if from += int64(len(q.Rows)); from >= q.Total {
			return out
		}
	}
}

var sifted = []expectation.Rule{
	{Check: expectation.NotNull, Column: "buyer", Otherwise: expectation.Quarantine},
	{Check: expectation.Between, Column: "n", Min: 0, Max: 100, Otherwise: expectation.Quarantine},
	{Check: expectation.Unique, Column: "id", Otherwise: expectation.Quarantine},
	{Check: expectation.RowCount, Max: 4},
	{Check: expectation.Between, Column: "n", Max: 90}, // of the rows that stay
}

const someBroken = "id,buyer,n\n1,amal,10\n2,carla,-5\n2,badr,20\n3,,101\n2,dora,30\n4,amal,90\n"

// Rows that break an expectation go to the quarantine with the reasons; the version
// is as if they had not been there.
func TestQuarantine(t *testing.T) {
	for _, protection := range []dataset.Protection{dataset.Sealed, dataset.Open} {
		t.Run(string(protection), func(t *testing.T) {
			dir := t.TempDir()
			h := datasettest.At(t, dir, nil)
			v := h.Put(t, "orders", dataset.Spec{Protection: protection, Expectations: sifted}, someBroken)
			if got := rowsOf(t, h, "orders@1"); !slices.Equal(got, []string{"1|amal|10", "2|badr|20", "4|amal|90"}) {
				t.Errorf("the version has %q", got)
			}
			want := []string{
				"2 between(n, 0, 100): 2|carla|-5",
				"4 not_null(buyer) & between(n, 0, 100): 3|<nil>|101",
				"5 unique(id): 2|dora|30",
			}
			if diff := gocmp.Diff(want, asideOf(t, h, "orders@1")); diff != "" {
				t.Error(diff)
			}
			clean := h.Put(t, "clean", dataset.Spec{Protection: protection}, "id,buyer,n\n1,amal,10\n2,badr,20\n4,amal,90\n")
			if v.Rows != 3 || v.Quarantined != 3 || v.ContentDigest != clean.ContentDigest {
				t.Errorf("%d rows, %d in quarantine, digest %s, want that of the others alone, %s", v.Rows, v.Quarantined, v.ContentDigest, clean.ContentDigest)
			}
			if diff := gocmp.Diff(clean.Statistics, v.Statistics); diff != "" {
				t.Errorf("statistics (- without the rows + with): %s", diff)
			}
			said := make([]string, len(v.Expectations))
			for i, e := range v.Expectations {
				said[i] = e.String()
			}
			if diff := gocmp.Diff([]string{
				"not_null(buyer) passes, with 1 of 6 rows quarantined",
				"between(n, 0, 100) passes, with 2 of 6 rows quarantined",
				"unique(id) passes, with 1 of 6 rows quarantined",
				"row_count(…, 4) holds", "between(n, …, 90) holds",
			}, said); diff != "" {
				t.Error(diff)
			}
			if x := v.Expectations[1].Examples; len(x) != 2 || x[0] != (expectation.Example{Row: 2, Column: "n", Value: "-5"}) {
				t.Errorf("examples %v", x)
			}
			again, err := h.Definitions.Version(datasettest.Context(t), project, v.Ref())
			if err != nil || again.Quarantined != 3 {
				t.Errorf("the record says %d, error %v", again.Quarantined, err)
			}
			if found := in(t, dir, "dora"); (len(found) > 0) != (protection == dataset.Open) {
				t.Errorf("a value is in %v", found)
			}
			if v, err := imports(t, h, "orders", someBroken); err != nil || !v.Unchanged || v.Number != 1 {
				t.Errorf("the same bytes give %v, %v", v.Ref(), err)
			}
			if err := h.Definitions.Delete(datasettest.Context(t), project, v.Ref(), deletion.Request{}); err != nil {
				t.Fatal(err)
			}
			if left := slices.DeleteFunc(h.Files.List(t), func(k string) bool { return !strings.Contains(k, string(v.ID)) }); len(left) > 0 {
				t.Errorf("files of a deleted version: %q", left)
			}
			_, err = h.Reads.Quarantined(datasettest.Context(t), dataset.OpenRequest{Project: project, Ref: v.Ref()}, 0, 0)
			wantFault(t, err, fault.Gone, "was deleted")
		})
	}
}

// Too many rows reject the version, which is kept with its quarantine; so does a
// version of which nothing is left, and a column that is not there.
func TestQuarantineHasBounds(t *testing.T) {
	third, half := 1.0/3, 0.5
	rule := expectation.Rule{Check: expectation.Between, Column: "n", Min: 0, Otherwise: expectation.Quarantine}
	with := func(m *float64) expectation.Rule { r := rule; r.AtMost = m; return r }
	for _, c := range []struct {
		rule expectation.Rule
		file string
		want string
	}{
		{with(&half), "n\n1\n-1\n", ""},
		{with(&third), "n\n1\n-1\n", `between(n, 0, …) fails for 1 of 2 rows, over at_most 0.3333333333333333, first at row 2, column "n": "-1"`},
		{with(&third), "n\n1\n-1\n2\n", ""},
		{rule, "n\n-1\n-2\n", "all 2 rows are quarantined"},
		{rule, "n\n", ""},
		{rule, "m\n1\n", `there is no column "n"`},
	} {
		h := datasettest.New(t, nil)
		h.Declare(t, "d", dataset.Spec{Protection: dataset.Open, Expectations: []expectation.Rule{c.rule}, Columns: []dataset.Column{{Name: strings.Split(c.file, "\n")[0], Type: "int64"}}})
		v, err := imports(t, h, "d", c.file)
		if err != nil {
			t.Fatalf("%q: %v", c.file, err)
		}
		if (v.State == dataset.Accepted) != (c.want == "") || !strings.Contains(v.Reason, c.want) {
			t.Errorf("%q: %s: %s, want %q", c.file, v.State, v.Reason, c.want)
		}
		if got := asideOf(t, h, "d@1"); int64(len(got)) != v.Quarantined || v.Rows+v.Quarantined != int64(strings.Count(c.file, "\n")-1) {
			t.Errorf("%q: %d rows and %q", c.file, v.Rows, got)
		}
	}
}

// A row that breaks many long rules says some of them, cut, and how many more: a small
// file cannot fill the memory with reasons.
func TestReasonsAreBounded(t *testing.T) {
	h := datasettest.New(t, nil)
	spec := dataset.Spec{Columns: []dataset.Column{{Name: "a", Type: "string"}}}
	for i := range 256 {
		spec.Expectations = append(spec.Expectations, expectation.Rule{Check: expectation.Matches, Column: "a", Pattern: fmt.Sprintf("^%d%s", i, strings.Repeat("x", 4000)), Otherwise: expectation.Quarantine})
	}
	const rows = 6000
	h.Declare(t, "d", spec)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	v, err := imports(t, h, "d", "a\n"+strings.Repeat("y\n", rows))
	runtime.ReadMemStats(&after)
	if err != nil || v.Quarantined != rows {
		t.Fatalf("%d in quarantine, %v", v.Quarantined, err)
	}
	if used := after.TotalAlloc - before.TotalAlloc; used > 1<<30 { // of all rules it would be 6 GB for the reasons alone
		t.Errorf("%d MiB were allocated", used>>20)
	}
	for _, from := range []int64{0, 5000, rows - 1} {
		q, err := h.Reads.Quarantined(datasettest.Context(t), dataset.OpenRequest{Project: project, Ref: v.Ref()}, from, 1)
		if err != nil || len(q.Rows) != 1 {
			t.Fatalf("%v, %v", q, err)
		}
		why := q.Rows[0].Reasons
		if q.Rows[0].Row != from+1 || len(why) != 11 || !strings.HasPrefix(why[9], `matches(a, "^9xx`) || len(why[9]) > 210 || why[10] != "and 246 more" {
			t.Errorf("row %d: %q", q.Rows[0].Row, why)
		}
	}
}

func TestQuarantineRefused(t *testing.T) {
	zero, more := 0.0, 1.5
	for _, c := range []struct {
		e    expectation.Rule
		want string
	}{
		{expectation.Rule{Check: expectation.RowCount, Min: 1, Otherwise: expectation.Quarantine}, "checks the whole version"},
		{expectation.Rule{Check: expectation.HasColumn, Column: "a", Otherwise: expectation.Quarantine}, "checks the whole version"},
		{expectation.Rule{Check: expectation.NotNull, Column: "a", Otherwise: "drop"}, "reject or quarantine"},
		{expectation.Rule{Check: expectation.NotNull, Column: "a", Otherwise: expectation.Quarantine, Mostly: 0.5}, "mostly has no effect"},
		{expectation.Rule{Check: expectation.NotNull, Column: "a", Otherwise: expectation.Quarantine, AtMost: &zero}, "omit otherwise"},
		{expectation.Rule{Check: expectation.NotNull, Column: "a", Otherwise: expectation.Quarantine, AtMost: &more}, "must be over 0"},
		{expectation.Rule{Check: expectation.NotNull, Column: "a", AtMost: &more}, "at_most is valid only with"},
	} {
		wantFault(t, c.e.Validate(), fault.Invalid, c.want)
	}
}

// A read of a quarantine passes the doors of a read of rows.
func TestQuarantineIsRead(t *testing.T) {
	h := datasettest.New(t, nil)
	v := h.Put(t, "d", dataset.Spec{Classification: dataset.Confidential, Expectations: sifted[:2]}, "buyer,quarantine_row,n\namal,7,1\n,8,2\n")
	if x := v.Expectations[0].Examples; len(x) != 1 || !x[0].Hidden || x[0].Value != "" {
		t.Errorf("examples %v", x)
	}
	if got := asideOf(t, h, "d@1"); !slices.Equal(got, []string{"2 not_null(buyer): <nil>|8|2"}) {
		t.Errorf("quarantine %q", got)
	}
	read := h.Journal.Entries()
	if len(read) != 1 || read[0].Object != "dataset d@1" || read[0].Detail["quarantine"] != true {
		t.Errorf("journal %v", read)
	}
	h.Journal.Fail(fault.New(fault.Unavailable, "no space"))
	ask := func() error {
		_, err := h.Reads.Quarantined(datasettest.Context(t), dataset.OpenRequest{Project: project, Ref: v.Ref()}, 0, 0)
		return err
	}
	wantFault(t, ask(), fault.Unavailable, "no space")
	h.Policy.Deny(func(a policy.Action, _ policy.Object) bool { return a == dataset.ActionQuery })
	wantFault(t, ask(), fault.PermissionDenied)
}

// An erased person's rows go from quarantines, too, also where the version itself
// has none; the others' stay, with their reasons.
func TestQuarantineIsRedacted(t *testing.T) {
	for _, protection := range []dataset.Protection{dataset.Sealed, dataset.Open} {
		dir := t.TempDir()
		h := datasettest.At(t, dir, nil)
		spec := dataset.Spec{Protection: protection, Expectations: sifted[1:3]}
		h.Put(t, "orders", spec, "id,buyer,n\n1,amal,1\n2,carla,-1\n3,badr,-2\n4,carla,-3\n")
		h.Put(t, "orders", spec, "id,buyer,n\n1,carla,1\n2,carla,-1\n3,badr,2\n")
		h.Put(t, "orders", spec, "id,buyer,n\n1,amal,1\n2,badr,-1\n") // has none
		if v, err := imports(t, h, "orders", "id,buyer,n\n1,carla,-1\n"); err != nil || v.State != dataset.Rejected {
			t.Fatalf("%v, %v", v.Ref(), err)
		}
		found, err := h.Erasure.Persons(datasettest.Context(t), carla("orders"))
		held := found.Held
		if err != nil || len(held) != 3 || held[0].Rows != 2 || held[1].Rows != 2 || held[2].Rows != 1 {
			t.Errorf("held %v, error %v", held, err)
		}
		want := []string{"orders@1 2 orders@5", "orders@2 2 orders@6", "orders@4 1 "}
		if got := redact(t, h, carla("orders")); !slices.Equal(got, want) {
			t.Errorf("redacted %q", got)
		}
		if got := redact(t, h, carla("orders")); !slices.Equal(got, want[:2]) { // told once more, as after a crash
			t.Errorf("redacted again %q", got)
		}
		for r, want := range map[string][2][]string{
			"orders@5": {{"1|amal|1"}, {"3 between(n, 0, 100): 3|badr|-2"}},
			"orders@6": {{"3|badr|2"}, {}},
			"orders@3": {{"1|amal|1"}, {"2 between(n, 0, 100): 2|badr|-1"}},
		} {
			if got := [2][]string{rowsOf(t, h, r), asideOf(t, h, r)}; !slices.Equal(got[0], want[0]) || !slices.Equal(got[1], want[1]) {
				t.Errorf("%s: %q, want %q", r, got, want)
			}
		}
		if found := in(t, dir, "carla"); len(found) > 0 {
			t.Errorf("the person is in %v", found)
		}
	}
}

// Random rows in random batches: what is kept and what is set aside is what a look
// at one row after the other gives.
func TestQuarantineOfRandomRows(t *testing.T) {
	h := datasettest.New(t, nil)
	schema := arrow.NewSchema([]arrow.Field{
		{Name: "a", Type: arrow.PrimitiveTypes.Int64, Nullable: true},
		{Name: "b", Type: arrow.BinaryTypes.String, Nullable: true},
		{Name: "x", Type: arrow.PrimitiveTypes.Float64, Nullable: true},
		{Name: "ok", Type: arrow.FixedWidthTypes.Boolean, Nullable: true},
	}, nil)
	h.Declare(t, "d", dataset.Spec{Expectations: []expectation.Rule{
		{Check: expectation.Unique, Column: "a", Otherwise: expectation.Quarantine},
		{Check: expectation.Unique, Columns: []string{"b", "ok"}, Otherwise: expectation.Quarantine},
		{Check: expectation.Between, Column: "x", Max: 0.8, Otherwise: expectation.Quarantine},
		{Check: expectation.NotNull, Column: "b", Otherwise: expectation.Quarantine},
	}})
	for seed := range uint64(30) {
		dice := rand.New(rand.NewPCG(seed, 6))
		var batches []arrow.RecordBatch
		var kept, aside []string
		seen := map[string]bool{}
		row := 0
		for range 1 + dice.IntN(4) {
			b := array.NewRecordBuilder(memory.DefaultAllocator, schema)
			for range dice.IntN(40) {
				row++
				cells := []any{nil, nil, nil, nil}
				for i, v := range []any{dice.Int64N(60), strconv.Itoa(dice.IntN(40)), float64(dice.IntN(10)) / 10, dice.IntN(2) == 0} {
					if dice.IntN(8) > 0 {
						cells[i] = v
					}
				}
				line, err := json.Marshal(map[string]any{"a": cells[0], "b": cells[1], "x": cells[2], "ok": cells[3]})
				if err != nil {
					t.Fatal(err)
				}
				if err := b.UnmarshalJSON(line); err != nil {
					t.Fatal(err)
				}
				a, key := fmt.Sprint("a", cells[0]), fmt.Sprint("b", cells[1], cells[3])
				broken := cells[0] != nil && seen[a] || cells[1] != nil && cells[3] != nil && seen[key] || cells[1] == nil
				if x, ok := cells[2].(float64); broken || ok && x > 0.8 {
					aside = append(aside, strconv.Itoa(row))
					continue
				}
				seen[a], seen[key] = true, true
				kept = append(kept, fmt.Sprintf("%v|%v|%v|%v", cells...))
			}
			batches = append(batches, b.NewRecordBatch())
		}
		rows, err := array.NewRecordReader(schema, batches)
		if err != nil {
			t.Fatal(err)
		}
		v, err := h.Writes.Create(datasettest.Context(t), dataset.CreateRequest{Project: project, Name: "d", Rows: rows, Producer: dataset.Producer{Kind: "test", Text: strconv.FormatUint(seed, 10)}})
		if err != nil {
			t.Fatal(err)
		}
		table, _, err := h.Reads.Preview(datasettest.Context(t), dataset.OpenRequest{Project: project, Ref: v.Ref()}, 1000)
		if err != nil {
			t.Fatal(err)
		}
		var got, gone []string
		for _, r := range table.Rows {
			got = append(got, fmt.Sprintf("%v|%v|%v|%v", r...))
		}
		for _, a := range asideOf(t, h, v.Ref().String()) {
			at, _, _ := strings.Cut(a, " ")
			gone = append(gone, at)
		}
		if diff := gocmp.Diff(kept, got); diff != "" {
			t.Fatalf("seed %d, kept: %s", seed, diff)
		}
		if diff := gocmp.Diff(aside, gone); diff != "" {
			t.Fatalf("seed %d, set aside: %s", seed, diff)
		}
	}
}
