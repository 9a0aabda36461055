package dataset_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/dataset"
	"github.com/falaj-ml/falaj/internal/dataset/datasetsql"
	"github.com/falaj-ml/falaj/internal/dataset/datasettest"
	"github.com/falaj-ml/falaj/internal/dataset/expectation"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/store"
)

// A value has to be in the newest accepted version of another dataset. Bytes that
// were rejected are accepted when what they refer to has come.
func TestReferences(t *testing.T) {
	h := datasettest.New(t, nil)
	rule := expectation.Rule{Check: expectation.Refers, Column: "buyer", In: &expectation.Target{Dataset: "customers", Column: "id"}}
	aside := rule
	aside.Otherwise = expectation.Quarantine
	h.Declare(t, "orders", dataset.Spec{Protection: dataset.Open, Expectations: []expectation.Rule{rule}})
	const file = "buyer,n\namal,1\nbadr,2\n,3\n"
	_, err := imports(t, h, "orders", file)
	wantFault(t, err, fault.NotFound, "customers")
	h.Put(t, "customers", dataset.Spec{}, "id\namal\n")
	v, err := imports(t, h, "orders", file)
	if err != nil || v.State != dataset.Rejected || v.Reason != `refers(buyer, customers.id) fails for 1 of 2 rows, first at row 2, column "buyer": "badr"` || v.Expectations[0].Against != "customers@1" {
		t.Fatalf("%s: %s, %v", v.State, v.Reason, err)
	}
	if v, err := imports(t, h, "orders", file); err != nil || !v.Unchanged || v.Number != 1 {
		t.Errorf("the same again: %s %t, %v", v.Ref(), v.Unchanged, err)
	}
	h.Put(t, "customers", dataset.Spec{}, "id\namal\nbadr\n")
	if v, err = imports(t, h, "orders", file); err != nil || v.State != dataset.Accepted || v.Number != 2 || v.Expectations[0].Against != "customers@2" {
		t.Errorf("%s %s: %s, %v", v.Ref(), v.State, v.Reason, err)
	}
	if v, err := imports(t, h, "orders", file); err != nil || !v.Unchanged || v.Number != 2 {
		t.Errorf("the same once more: %s %t, %v", v.Ref(), v.Unchanged, err)
	}

	v = h.Put(t, "sifted", dataset.Spec{Expectations: []expectation.Rule{aside}}, "buyer,n\namal,1\ncarla,2\nbadr,3\n")
	if got := asideOf(t, h, "sifted@1"); !slices.Equal(got, []string{"2 refers(buyer, customers.id): carla|2"}) || v.Rows != 2 {
		t.Errorf("quarantine %q", got)
	}
	if got := redact(t, h, dataset.Person{
		Project: project, Entity: "customer", Keys: []string{"buyer"}, Read: map[string]bool{"sifted": true}, Purpose: "erasure ers_1",
		Is: func(v []string) bool { return v[0] == "amal" },
	}); !slices.Equal(got, []string{"sifted@1 1 sifted@2"}) {
		t.Errorf("redacted %q", got)
	}

	h.Put(t, "numbers", dataset.Spec{}, "id\n1\n")
	h.Declare(t, "orders", dataset.Spec{Expectations: []expectation.Rule{{Check: expectation.Refers, Column: "buyer", In: &expectation.Target{Dataset: "numbers", Column: "id"}}}})
	if v, err := imports(t, h, "orders", file); err != nil || !strings.Contains(v.Reason, "the column is string, and id of numbers@1 is int64") {
		t.Errorf("%s, %v", v.Reason, err)
	}
	h.Declare(t, "orders", dataset.Spec{Expectations: []expectation.Rule{{Check: expectation.Refers, Column: "buyer", In: &expectation.Target{Dataset: "numbers", Column: "no"}}}})
	_, err = imports(t, h, "orders", file)
	wantFault(t, err, fault.Invalid, "no")
}

// What a dataset refers to is read by who imports, and tells of itself by the rows
// that stay: it passes the doors of a read, and is not told to what is more open.
func TestReferencesAreReads(t *testing.T) {
	h := datasettest.New(t, nil)
	rule := []expectation.Rule{{Check: expectation.Refers, Column: "id", In: &expectation.Target{Dataset: "patients", Column: "id"}}}
	h.Put(t, "patients", dataset.Spec{Classification: dataset.Confidential, Residency: residency.Of(residency.Home)}, "id\n7\n")
	h.Declare(t, "visits", dataset.Spec{Expectations: rule})
	_, err := imports(t, h, "visits", "id\n7\n")
	wantFault(t, err, fault.Conflict, "patients@1 is confidential")
	read := h.Journal.Entries()
	if len(read) != 1 || read[0].Object != "dataset patients@1" || read[0].Reason != "reference of visits" {
		t.Errorf("journal %v", read)
	}
	h.Declare(t, "secret", dataset.Spec{Expectations: rule, Classification: dataset.Confidential})
	if v, err := imports(t, h, "secret", "id\n7\n"); err != nil || v.State != dataset.Accepted {
		t.Errorf("%s, %v", v.Reason, err)
	}
	h.Policy.Deny(func(a policy.Action, o policy.Object) bool {
		return a == dataset.ActionQuery && strings.HasPrefix(o.Name, "patients")
	})
	_, err = imports(t, h, "secret", "id\n7\n8\n")
	wantFault(t, err, fault.PermissionDenied)
	// A loop may read everything, so who declares it is asked; what is declared stays.
	apply := func(name string, s dataset.Spec) error {
		_, _, err := h.Definitions.Apply(datasettest.Context(t), dataset.ApplyRequest{Project: project, Name: name, Spec: s})
		return err
	}
	probe := dataset.Spec{Expectations: rule, Classification: dataset.Confidential}
	wantFault(t, apply("probe", probe), fault.PermissionDenied, "refers(id, patients.id) reads dataset patients")
	wantFault(t, h.Definitions.MayRunExpectations(datasettest.Context(t), project, "secret"), fault.PermissionDenied, "patients")
	probe.Description = "of the clinic"
	if err := apply("secret", probe); err != nil {
		t.Error(err)
	}
	if err := apply("other", dataset.Spec{Expectations: []expectation.Rule{{Check: expectation.Refers, Column: "id", In: &expectation.Target{Dataset: "nobody", Column: "id"}}}}); err != nil {
		t.Error(err)
	}
}

// Drift tells of the version before: that is read as any is, and not told to what is
// more open.
func TestDriftIsARead(t *testing.T) {
	h := datasettest.New(t, nil)
	spec := dataset.Spec{Classification: dataset.Confidential, Expectations: []expectation.Rule{
		{Check: expectation.Drift, Column: "n", Method: "wasserstein", Max: 1e9}, {Check: expectation.Drift, Column: "n", Max: 1e9},
	}}
	h.Put(t, "d", spec, "n\n1\n2\n")
	if read := h.Journal.Entries(); len(read) != 0 {
		t.Errorf("the first version read %v", read)
	}
	spec.Expectations = append(spec.Expectations, expectation.Rule{Check: expectation.Drift, Column: "new", Max: 1e9})
	h.Put(t, "d", spec, "n,new\n1,1\n3,1\n")
	read := h.Journal.Entries()
	if len(read) != 1 || read[0].Object != "dataset d@1" || read[0].Reason != "drift of d" || fmt.Sprint(read[0].Detail["columns"]) != "[n]" {
		t.Errorf("journal %v", read)
	}
	open := spec
	open.Classification = dataset.Internal
	if err := h.DB.Update(t.Context(), string(project), func(ctx context.Context, tx *store.Tx) error { // as two people do
		return dataset.Labels{Store: datasetsql.Store{}}.Reclassify(ctx, tx, project, "d", open.Classification)
	}); err != nil {
		t.Fatal(err)
	}
	_, err := imports(t, h, "d", "n,new\n5,1\n")
	wantFault(t, err, fault.Conflict, "d@2 is confidential")
	h.Declare(t, "d", spec)
	h.Policy.Deny(func(a policy.Action, o policy.Object) bool {
		return a == dataset.ActionQuery && o.Classification == string(dataset.Confidential)
	})
	_, err = imports(t, h, "d", "n,new\n5,1\n")
	wantFault(t, err, fault.PermissionDenied, "drift(n, wasserstein)")
	spec.Expectations = append(slices.Clip(spec.Expectations), expectation.Rule{Check: expectation.Drift, Column: "n", Method: "ks", Min: 0.01})
	_, _, err = h.Definitions.Apply(datasettest.Context(t), dataset.ApplyRequest{Project: project, Name: "d", Spec: spec})
	wantFault(t, err, fault.PermissionDenied, "drift(n, ks) reads dataset d")
}

func TestFreshness(t *testing.T) {
	now := time.Date(2026, 3, 10, 12, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		class  dataset.Classification
		within string
		file   string
		want   string
	}{
		{dataset.Internal, "24h", "at\n2026-03-09T12:00:00Z\n2020-01-01T00:00:00Z\n", ""},
		{dataset.Internal, "24h", "at\n2026-03-09T11:59:59Z\n", `fresh(at, 24h) fails: the newest time is too old [{1 at 2026-03-09T11:59:59Z false}]`},
		{dataset.Confidential, "24h", "at\n2020-01-01T00:00:00Z\n2021-01-01T00:00:00Z\n", `fresh(at, 24h) fails: the newest time is too old [{2 at  true}]`},
		{dataset.Internal, "24h", "at\n2026-03-10T13:00:00Z\n", `fresh(at, 24h) fails: all its times are in the future []`}, // the clock of a source is wrong
		{dataset.Internal, "2d", "at\n2026-03-08\n", ""},
		{dataset.Internal, "1d", "at\n2026-03-08\n", `fresh(at, 1d) fails: the newest time is too old [{1 at 2026-03-08 false}]`},
		{dataset.Internal, "1d", "at\n7\n", `fresh(at, 1d) fails: a column of int64 contains no dates or timestamps []`},
	} {
		h := datasettest.New(t, func(cfg *dataset.Config) { cfg.Now = func() time.Time { return now } })
		h.Declare(t, "d", dataset.Spec{Classification: c.class, Expectations: []expectation.Rule{{Check: expectation.Fresh, Column: "at", Within: c.within}}})
		v, err := imports(t, h, "d", c.file)
		if err != nil {
			t.Fatal(err)
		}
		if v.State == dataset.Accepted {
			if c.want != "" {
				t.Errorf("%q is fresh", c.file)
			}
			continue
		}
		if got := fmt.Sprint(v.Reason, " ", v.Expectations[0].Examples); got != c.want {
			t.Errorf("%q: %q, want %q", c.file, got, c.want)
		}
	}
}

// What was fresh when it came stays so: an erasure does not ask again.
func TestFreshnessIsOfItsTime(t *testing.T) {
	now := time.Date(2026, 3, 10, 12, 0, 0, 0, time.UTC)
	h := datasettest.New(t, func(cfg *dataset.Config) { cfg.Now = func() time.Time { return now } })
	h.Put(t, "orders", dataset.Spec{Expectations: []expectation.Rule{{Check: expectation.Fresh, Column: "at", Within: "24h"}}}, "buyer,at\namal,2026-03-10T11:00:00Z\ncarla,2026-03-10T11:30:00Z\n")
	now = now.Add(30 * 24 * time.Hour)
	if got := redact(t, h, carla("orders")); !slices.Equal(got, []string{"orders@1 1 orders@2"}) {
		t.Fatalf("redacted %q", got)
	}
	v, err := h.Definitions.Version(datasettest.Context(t), project, ref(t, "orders@2"))
	if err != nil || v.State != dataset.Accepted || len(v.Expectations) != 1 || v.Expectations[0].String() != "fresh(at, 24h) holds: not checked again" {
		t.Errorf("%s: %v, %v", v.State, v.Expectations, err)
	}
}

// normal are rows of a normal distribution and of two kinds.
func normal(seed uint64, rows int, mean, share float64) string {
	dice := rand.New(rand.NewPCG(seed, 1))
	var b strings.Builder
	b.WriteString("x,kind\n")
	for range rows {
		kind := "a"
		if dice.Float64() < share {
			kind = "b"
		}
		fmt.Fprintf(&b, "%g,%s\n", mean+dice.NormFloat64(), kind)
	}
	return b.String()
}

// A column is compared with what it was in the newest accepted version: rejected
// ones in between do not count.
func TestDriftIsFound(t *testing.T) {
	h := datasettest.New(t, nil)
	spec := dataset.Spec{Expectations: []expectation.Rule{
		{Check: expectation.Drift, Column: "x"},
		{Check: expectation.Drift, Column: "x", Method: "ks", Min: 0.001},
		{Check: expectation.Drift, Column: "kind", Method: "chi_square", Min: 0.001},
		{Check: expectation.Drift, Column: "kind", Method: "jensen_shannon", Max: 0.2},
	}}
	h.Declare(t, "d", spec)
	steps := []struct {
		mean, share float64
		fails       []int // expectations
	}{
		{0, 0.5, nil},
		{0, 0.5, nil},
		{3, 0.5, []int{0, 1}},
		{0, 0.95, []int{2, 3}},
		{0, 0.5, nil},
		{3, 0.95, []int{0, 1, 2, 3}},
	}
	accepted := 0
	for i, step := range steps {
		v, err := imports(t, h, "d", normal(uint64(i), 3000, step.mean, step.share))
		if err != nil {
			t.Fatal(err)
		}
		var fails []int
		for n, e := range v.Expectations {
			if !e.Passed {
				fails = append(fails, n)
			}
			want := fmt.Sprintf("d@%d", accepted)
			if accepted == 0 {
				want = ""
			}
			if e.Against != want {
				t.Errorf("%s, %s: against %q, want %q", v.Ref(), e.Expectation, e.Against, want)
			}
		}
		if !slices.Equal(fails, step.fails) {
			t.Errorf("%s: %v fail, want %v: %v", v.Ref(), fails, step.fails, v.Expectations)
		}
		if v.State == dataset.Accepted {
			accepted = int(v.Number)
		}
	}
	v, err := h.Definitions.Version(datasettest.Context(t), project, ref(t, "d@3"))
	if err != nil || !strings.HasPrefix(v.Reason, "drift(x, psi) fails: psi is ") || !strings.Contains(v.Reason, "with the drift threshold 0.25, against d@2; drift(x, ks) fails: ks has the p-value ") {
		t.Errorf("%q, %v", v.Reason, err)
	}
	typed := spec
	typed.Columns = []dataset.Column{{Name: "x", Type: "float64"}}
	for _, c := range []struct {
		spec       dataset.Spec
		file, want string
	}{
		{spec, "x,kind\nhot,a\ncold,b\n", "its type in d@5 is numeric"},
		{typed, "x,kind\n,a\n,b\n", "all its values are null"},
		{spec, "kind\na\n", `there is no column "x"`},
	} {
		h.Declare(t, "d", c.spec)
		if v, err := imports(t, h, "d", c.file); err != nil || !strings.Contains(v.Reason, c.want) {
			t.Errorf("%q: %q, %v", c.file, v.Reason, err)
		}
	}
}

// A version from before there were sketches is compared by its rows.
func TestDriftWithoutSketches(t *testing.T) {
	h := datasettest.New(t, nil)
	spec := dataset.Spec{Expectations: []expectation.Rule{{Check: expectation.Drift, Column: "x"}}}
	h.Put(t, "d", spec, normal(1, 500, 0, 0.5))
	sketches := slices.DeleteFunc(h.Files.List(t), func(k string) bool { return !strings.HasSuffix(k, "picture.json") })
	if len(sketches) != 1 {
		t.Fatalf("sketches %q", sketches)
	}
	if err := h.Files.Remove(context.Background(), sketches[0]); err != nil {
		t.Fatal(err)
	}
	v, err := imports(t, h, "d", normal(2, 500, 3, 0.5))
	if err != nil || v.State != dataset.Rejected || v.Expectations[0].Against != "d@1" {
		t.Errorf("%s: %s, %v", v.State, v.Reason, err)
	}
}

func TestBeyondRefused(t *testing.T) {
	to := &expectation.Target{Dataset: "customers", Column: "id"}
	for _, c := range []struct {
		e    expectation.Rule
		want string
	}{
		{expectation.Rule{Check: expectation.Refers, Column: "a"}, "refers requires in"},
		{expectation.Rule{Check: expectation.NotNull, Column: "a", In: to}, "refers requires in"},
		{expectation.Rule{Check: expectation.Refers, Column: "a", In: &expectation.Target{Dataset: "../x", Column: "id"}}, "dataset name"},
		{expectation.Rule{Check: expectation.Refers, Column: "a", In: &expectation.Target{Dataset: "x"}}, "in.column is required"},
		{expectation.Rule{Check: expectation.Fresh, Column: "a"}, "fresh requires within"},
		{expectation.Rule{Check: expectation.Fresh, Column: "a", Within: "soon"}, "within"},
		{expectation.Rule{Check: expectation.Fresh, Column: "a", Within: "3s"}, "less than a minute"},
		{expectation.Rule{Check: expectation.Fresh, Column: "a", Within: "1d", Otherwise: expectation.Quarantine}, "checks the whole version"},
		{expectation.Rule{Check: expectation.Fresh, Column: "a", Within: "1d", Mostly: 0.5}, "mostly has no effect"},
		{expectation.Rule{Check: expectation.Drift, Column: "a", Method: "guess"}, "there is no method"},
		{expectation.Rule{Check: expectation.Drift, Column: "a", Method: "auto"}, "there is no method"},
		{expectation.Rule{Check: expectation.Drift, Column: "a", Method: "ks"}, "least p-value"},
		{expectation.Rule{Check: expectation.Drift, Column: "a", Method: "ks", Min: 0.01, Max: 1}, "least p-value"},
		{expectation.Rule{Check: expectation.Drift, Column: "a", Min: 0.1}, "is a distance"},
		{expectation.Rule{Check: expectation.Drift, Column: "a", Max: -1}, "is a distance"},
		{expectation.Rule{Check: expectation.Drift, Column: "a", Max: "2020-01-01"}, "is a distance"},
		{expectation.Rule{Check: expectation.NotNull, Column: "a", Method: "ks"}, "method is valid only with the check drift"},
	} {
		wantFault(t, c.e.Validate(), fault.Invalid, c.want)
	}
	wantFault(t, dataset.Spec{Fresh: "soon"}.Validate(), fault.Invalid, "spec.fresh")
}

// A dataset that had no new version for longer than it says is told of once, until
// one comes; a redaction is no new version.
func TestStaleDatasetsAreTold(t *testing.T) {
	now := time.Date(2026, 3, 10, 12, 0, 0, 0, time.UTC)
	h := datasettest.New(t, func(cfg *dataset.Config) { cfg.Now = func() time.Time { return now } })
	tell := func(want ...string) {
		t.Helper()
		n, err := h.Maintenance.PublishStale(datasettest.Context(t), project)
		if err != nil || n != len(want) {
			t.Fatalf("told of %d, want %v: %v", n, want, err)
		}
	}
	h.Declare(t, "never", dataset.Spec{Fresh: "2d"})
	h.Put(t, "quiet", dataset.Spec{}, "a\n1\n")
	h.Put(t, "daily", dataset.Spec{Fresh: "1d"}, "buyer,n\ncarla,1\namal,2\n")
	tell()
	now = now.Add(24 * time.Hour)
	tell()
	now = now.Add(time.Second)
	redact(t, h, carla("daily")) // daily@2 stands for daily@1, which is old
	tell("daily")
	tell()
	if d, err := h.Definitions.One(datasettest.Context(t), project, "daily"); err != nil || !d.Stale {
		t.Errorf("stale %t, %v", d.Stale, err)
	}
	h.Declare(t, "daily", dataset.Spec{Fresh: "1d", Expectations: []expectation.Rule{{Check: expectation.NotNull, Column: "n"}}})
	if v, err := imports(t, h, "daily", "buyer,n\namal,\n"); err != nil || v.State != dataset.Rejected {
		t.Fatalf("%s, %v", v.State, err)
	}
	if d, err := h.Definitions.One(datasettest.Context(t), project, "daily"); err != nil || !d.Stale {
		t.Errorf("after a rejected version: stale %t, %v", d.Stale, err)
	}
	if v, err := imports(t, h, "daily", "buyer,n\namal,3\n"); err != nil || v.State != dataset.Accepted {
		t.Fatalf("%s, %v", v.State, err)
	}
	if d, err := h.Definitions.One(datasettest.Context(t), project, "daily"); err != nil || d.Stale {
		t.Errorf("after a version: stale %t, %v", d.Stale, err)
	}
	now = now.Add(49 * time.Hour)
	tell("daily", "never")
	h.Declare(t, "never", dataset.Spec{Fresh: "30d"})
	tell()
	var told []string
	records, _, err := h.DB.ReadStream(t.Context(), "event", store.Position{}, 100)
	for _, r := range records {
		if r.Kind == dataset.EventStale {
			var body dataset.Event
			if err := json.Unmarshal(r.Body, &body); err != nil {
				t.Fatal(err)
			}
			told = append(told, fmt.Sprint(body.Name, body.Number))
		}
	}
	if err != nil || !slices.Equal(told, []string{"daily2", "daily4", "never0"}) {
		t.Errorf("events %v, %v", told, err)
	}
}
