package dataset_test

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/falaj-ml/falaj/internal/dataset"
	"github.com/falaj-ml/falaj/internal/dataset/datasettest"
	"github.com/falaj-ml/falaj/internal/dataset/expectation"
	"github.com/falaj-ml/falaj/internal/dataset/statistics"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/deletion"
	"github.com/falaj-ml/falaj/internal/governance/policy"
)

func profileOf(t *testing.T, h *datasettest.Harness, r string) (dataset.Profile, map[string]statistics.ColumnProfile) {
	t.Helper()
	p, err := h.Reads.Profile(datasettest.Context(t), dataset.OpenRequest{Project: project, Ref: ref(t, r), Purpose: "profile"})
	if err != nil {
		t.Fatalf("%s: %v", r, err)
	}
	by := map[string]statistics.ColumnProfile{}
	for _, c := range p.Columns {
		by[c.Column] = c
	}
	return p, by
}

func topOf(c statistics.ColumnProfile) string {
	var values []string
	for _, v := range c.Top {
		values = append(values, fmt.Sprintf("%s %.3f", v.Value, v.Share))
	}
	return strings.Join(values, ", ")
}

// A profile says what the rows say, counted by hand.
func TestProfile(t *testing.T) {
	h := datasettest.New(t, nil)
	var b strings.Builder
	b.WriteString("n,x,day,at,ok,name\n")
	for i := range 1000 {
		fmt.Fprintf(&b, "%d,%g,2026-01-%02d,2026-01-01T%02d:00:00Z,%t,%s\n", i%3, float64(i)/10, 1+i%20, i%24, i%4 == 0, []string{"unmistakable", "badr", "", "badr"}[i%4])
	}
	h.Put(t, "d", dataset.Spec{Expectations: []expectation.Rule{{Check: expectation.Between, Column: "x", Max: 98.95, Otherwise: expectation.Quarantine}}}, b.String())
	p, by := profileOf(t, h, "d@1")
	if p.Version != "d@1" || p.Rows != 990 || p.Quarantined != 10 || p.Sampled != 990 || len(p.Columns) != 6 {
		t.Errorf("%+v", p)
	}
	if got := topOf(by["n"]); got != "0 0.333, 1 0.333, 2 0.333" {
		t.Errorf("n: %s", got)
	}
	if got := topOf(by["ok"]); got != "false 0.749, true 0.251" {
		t.Errorf("ok: %s", got)
	}
	if got := by["name"]; got.Nulls != 247 || len(got.Top) != 2 || got.Top[0].Value != "badr" || math.Abs(got.Top[0].Share-495.0/743) > 1e-9 || got.Histogram != nil {
		t.Errorf("name: %+v", got)
	}
	if n := by["n"]; n.Distinct != 3 || n.Estimated {
		t.Errorf("n: %d different values, estimated %t", n.Distinct, n.Estimated)
	}
	x := by["x"]
	if x.Distinct < 900 || x.Distinct > 990 || !x.Estimated {
		t.Errorf("x: %d different values, estimated %t", x.Distinct, x.Estimated)
	}
	if x.Min != "0" || x.Max != "98.9" || x.Top != nil {
		t.Errorf("x: %s to %s, top %v", x.Min, x.Max, x.Top)
	}
	sum := 0.0
	for i, share := range x.Histogram.Shares {
		from, _ := strconv.ParseFloat(x.Histogram.Edges[i], 64)
		to, _ := strconv.ParseFloat(x.Histogram.Edges[i+1], 64)
		if i > 0 && i < len(x.Histogram.Shares)-1 && math.Abs(share-(to-from)*10/990) > 0.02 {
			t.Errorf("%g of the values are between %g and %g", share, from, to)
		}
		sum += share
	}
	if math.Abs(sum-1) > 1e-9 {
		t.Errorf("the shares add up to %g", sum)
	}
	i := slices.IndexFunc(x.Quantiles, func(q statistics.Quantile) bool { return q.Share == 0.5 })
	if median, err := strconv.ParseFloat(x.Quantiles[i].Value, 64); err != nil || math.Abs(median-49.45) > 2 {
		t.Errorf("median %v, %v", x.Quantiles[i], err)
	}
	if d := by["day"]; d.Min != "2026-01-01" || !strings.HasPrefix(d.Histogram.Edges[0], "2026-01-") || len(d.Top) != 10 {
		t.Errorf("day: %+v", d)
	}
	if at := by["at"]; at.Max != "2026-01-01T23:00:00Z" || !strings.HasPrefix(at.Top[0].Value, "2026-01-01T") {
		t.Errorf("at: %+v", at)
	}
}

// Of many rows a uniform sample is drawn, the same each time.
func TestProfileOfASample(t *testing.T) {
	h := datasettest.New(t, nil)
	const rows = 80_000
	var b strings.Builder
	b.WriteString("x,kind\n")
	for i := range rows {
		fmt.Fprintf(&b, "%d,%s\n", i, []string{"early", "late"}[i*2/rows])
	}
	h.Put(t, "d", dataset.Spec{}, b.String())
	p, by := profileOf(t, h, "d")
	if p.Sampled >= p.Rows || p.Sampled != 1<<16 {
		t.Errorf("%d of %d rows", p.Sampled, p.Rows)
	}
	if got := by["kind"].Top; len(got) != 2 || math.Abs(got[0].Share-0.5) > 0.01 {
		t.Errorf("halves: %v", got)
	}
	for _, share := range by["x"].Histogram.Shares {
		if math.Abs(share-0.05) > 0.025 {
			t.Errorf("shares of equal bins: %v", by["x"].Histogram.Shares)
			break
		}
	}
	// Of a version without sketches some are made of its rows, which come in other batches.
	i := slices.IndexFunc(h.Files.List(t), func(k string) bool { return strings.HasSuffix(k, "picture.json") })
	if err := h.Files.Remove(t.Context(), h.Files.List(t)[i]); err != nil {
		t.Fatal(err)
	}
	if _, again := profileOf(t, h, "d"); fmt.Sprint(again["x"].Histogram) != fmt.Sprint(by["x"].Histogram) {
		t.Error("the same rows have other sketches")
	}
}

// Texts with the same beginning are different texts.
func TestLongTexts(t *testing.T) {
	h := datasettest.New(t, nil)
	spec := dataset.Spec{Expectations: []expectation.Rule{{Check: expectation.Drift, Column: "url"}}}
	rows := func(ends ...string) string {
		var b strings.Builder
		b.WriteString("url\n")
		for i := range 1000 {
			b.WriteString(strings.Repeat("x", 250) + strings.Repeat("y", 20) + ends[i%len(ends)] + "\n")
		}
		return b.String()
	}
	h.Put(t, "d", spec, rows("a", "b"))
	_, by := profileOf(t, h, "d@1")
	if top := by["url"].Top; len(top) != 2 || top[0].Share != 0.5 || top[1].Share != 0.5 {
		t.Errorf("%+v", top)
	}
	if v, err := imports(t, h, "d", rows("c")); err != nil || v.State != dataset.Rejected || !strings.HasPrefix(v.Reason, "drift(url, psi) fails") {
		t.Errorf("%s: %s, %v", v.State, v.Reason, err)
	}
}

// A version that was made without sketches gets them when somebody asks, once, by few
// at a time.
func TestProfileIsDrawnOnce(t *testing.T) {
	h := datasettest.New(t, func(c *dataset.Config) { c.Limits = dataset.Limits{Queries: 1, QueueTime: 1} })
	h.Put(t, "d", dataset.Spec{}, "n\n1\n8\n")
	remove := func(what string) {
		t.Helper()
		for _, k := range h.Files.List(t) {
			if strings.Contains(k, what) {
				if err := h.Files.Remove(t.Context(), k); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	ask := func() error {
		_, err := h.Reads.Profile(datasettest.Context(t), dataset.OpenRequest{Project: project, Ref: ref(t, "d@1")})
		return err
	}
	remove("picture.json")
	var busy error
	h.Files.Hook = func(step, key string) error {
		if step == "create" && strings.HasSuffix(key, "picture.json") {
			busy = ask() // by another one, meanwhile
		}
		return nil
	}
	if err := ask(); err != nil {
		t.Fatal(err)
	}
	wantFault(t, busy, fault.Exhausted)
	h.Files.Hook = nil
	remove("data-") // it is not read again
	if err := ask(); err != nil {
		t.Error(err)
	}

	// Of one that is deleted while it is drawn nothing stays.
	v := h.Put(t, "d", dataset.Spec{}, "n\n1\n9\n")
	remove("picture.json")
	h.Files.Hook = func(step, key string) error {
		if step == "create" && strings.HasSuffix(key, "picture.json") {
			return h.Definitions.Delete(datasettest.Context(t), project, v.Ref(), deletion.Request{})
		}
		return nil
	}
	if _, err := h.Reads.Profile(datasettest.Context(t), dataset.OpenRequest{Project: project, Ref: v.Ref()}); err != nil {
		t.Fatal(err)
	}
	if left := slices.DeleteFunc(h.Files.List(t), func(k string) bool { return !strings.Contains(k, string(v.ID)) }); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}

// A profile has values of the rows: it is read as rows are, and kept as they are.
func TestProfileIsRead(t *testing.T) {
	h := datasettest.New(t, nil)
	v := h.Put(t, "d", dataset.Spec{Classification: dataset.Confidential}, "n,name\n1,unmistakable\n8,unmistakable\n")
	if v.Statistics[0].Min != "" {
		t.Errorf("the record of classified data has %+v", v.Statistics[0])
	}
	_, by := profileOf(t, h, "d@1")
	if by["n"].Min != "1" || by["n"].Max != "8" || by["name"].Top[0].Value != "unmistakable" {
		t.Errorf("%+v", by)
	}
	if read := h.Journal.Entries(); len(read) != 1 || read[0].Object != "dataset d@1" || read[0].Reason != "profile" {
		t.Errorf("journal %v", read)
	}
	h.Policy.Deny(func(a policy.Action, _ policy.Object) bool { return a == dataset.ActionQuery })
	_, err := h.Reads.Profile(datasettest.Context(t), dataset.OpenRequest{Project: project, Ref: v.Ref()})
	wantFault(t, err, fault.PermissionDenied)
	h.Policy.Deny(nil)
	if err := h.Definitions.Delete(datasettest.Context(t), project, v.Ref(), deletion.Request{}); err != nil {
		t.Fatal(err)
	}
	_, err = h.Reads.Profile(datasettest.Context(t), dataset.OpenRequest{Project: project, Ref: v.Ref()})
	wantFault(t, err, fault.Gone)
	if left := slices.DeleteFunc(h.Files.List(t), func(k string) bool { return !strings.Contains(k, "picture") }); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}
