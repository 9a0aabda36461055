package erasure

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/falaj-ml/falaj/internal/dataset"
	"github.com/falaj-ml/falaj/internal/dataset/datasettest"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/feature"
	"github.com/falaj-ml/falaj/internal/feature/featuresql"
	"github.com/falaj-ml/falaj/internal/feature/offline"
	"github.com/falaj-ml/falaj/internal/feature/online"
	"github.com/falaj-ml/falaj/internal/feature/online/onlinetest"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/governance/privacy"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/store/storetest"
	"github.com/falaj-ml/falaj/internal/usecase/featuredata"
)

// clicks are rows of a stream's dataset.
func clicks(t *testing.T, who ...string) array.RecordReader {
	t.Helper()
	schema := arrow.NewSchema([]arrow.Field{{Name: "who", Type: arrow.BinaryTypes.String, Nullable: true}}, nil)
	b := array.NewRecordBuilder(memory.DefaultAllocator, schema)
	defer b.Release()
	b.Field(0).(*array.StringBuilder).AppendValues(who, nil)
	rec := b.NewRecordBatch()
	defer rec.Release()
	rows, err := array.NewRecordReader(schema, []arrow.RecordBatch{rec})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(rows.Release)
	return rows
}

// keep makes a version of clicks.
func keep(t *testing.T, h *datasettest.Harness, who ...string) {
	t.Helper()
	if _, err := h.Writes.Create(datasettest.Context(t), dataset.CreateRequest{Project: datasettest.Project, Name: "clicks", Rows: clicks(t, who...)}); err != nil {
		t.Fatal(err)
	}
}

func forget(t *testing.T, h *datasettest.Harness, who string) (held []string) {
	t.Helper()
	if err := h.Erasure.Redact(datasettest.Context(t), dataset.Person{
		Project: datasettest.Project, Entity: "customer", Keys: []string{"who"}, Read: map[string]bool{"clicks": true}, Purpose: "erasure of " + who,
		Is: func(values []string) bool { return slices.Equal(values, []string{who}) },
	}, func(h dataset.Held) error {
		held = append(held, h.Version.Ref().String()+" "+h.Redacted)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return held
}

// A stream is cut on top of what the dataset's name means, whatever numbers a
// redaction has given to older versions.
func TestCutsAfterAnErasure(t *testing.T) {
	h := datasettest.New(t, nil)
	data := featuredata.Data{Datasets: h.Services}
	ctx := datasettest.Context(t)
	keep(t, h, "carla", "amal")
	keep(t, h, "amal", "badr")
	if got := forget(t, h, "carla"); !slices.Equal(got, []string{"clicks@1 clicks@3"}) {
		t.Fatal(got)
	}
	thens := 0
	cut := func(base string, who ...string) (string, error) {
		v, err := data.Append(ctx, feature.Appended{
			Project: datasettest.Project, Dataset: "clicks", Base: base, Rows: clicks(t, who...), Text: "test",
			Then: func(context.Context, *store.Tx, feature.DatasetVersion) error { thens++; return nil },
		})
		return v.Ref, err
	}
	if ref, err := cut("clicks@2", "amal", "badr", "dana"); err != nil || ref != "clicks@4" {
		t.Errorf("%s %v", ref, err)
	}
	if ref, err := cut("clicks@4", "amal", "badr", "dana"); err != nil || ref != "clicks@4" { // the events were all of somebody who is gone
		t.Errorf("%s %v", ref, err)
	}
	if thens != 2 {
		t.Errorf("what runs with a cut ran %d times", thens)
	}
	if _, err := cut("clicks@2", "amal", "badr", "eman"); !fault.Is(err, fault.Conflict) {
		t.Errorf("on top of what was replaced: %v", err)
	}
}

// A model names the version that it was trained on, which may have been replaced for
// somebody else before.
func TestVersionsThatModelsName(t *testing.T) {
	h := datasettest.New(t, nil)
	keep(t, h, "carla", "amal", "badr")
	forget(t, h, "carla")
	if got := forget(t, h, "amal"); !slices.Equal(got, []string{"clicks@2 clicks@3"}) {
		t.Fatal(got)
	}
	e := erasedDatasets{datasets: h.Services}
	got, err := e.named(datasettest.Context(t), datasettest.Project, privacy.Found{
		Places: []privacy.Place{{Kind: "datasets", Name: "clicks@2"}, {Kind: "predictions", Name: "churn"}}, Unsearched: []privacy.Unsearched{{Kind: "datasets", Name: "sums@4"}, {Name: "something else"}, {Kind: "artifacts", Name: "run"}, undeclared("people", dataset.Person{Entity: "customer", Keys: []string{"buyer"}})},
		Deleted: []privacy.Place{{Kind: "datasets", Name: "gone@1"}},
	})
	slices.Sort(got)
	if err != nil || strings.Join(got, ", ") != "clicks@1, clicks@2, gone@1, something else, sums@4" {
		t.Errorf("%v %v", got, err)
	}
	// And one that is registered later may name what both were taken out of.
	if err := h.DB.View(t.Context(), func(ctx context.Context, tx *store.Tx) error {
		since, err := h.Lineage.StandIns(ctx, tx, datasettest.Project, dataset.Ref{Name: "clicks", Number: 1})
		if want := []dataset.Ref{{Name: "clicks", Number: 2}, {Name: "clicks", Number: 3}}; !slices.Equal(since, want) {
			t.Errorf("clicks@1 was followed by %v", since)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
}

// failing gives keys, or fails when told to.
type failing struct {
	datasettest.Keys
	err error
}

func (f *failing) DataKey(ctx context.Context, project, owner, use string) ([]byte, error) {
	if f.err != nil {
		return nil, f.err
	}
	return f.Keys.DataKey(ctx, project, owner, use)
}

type everybody struct{}

func (everybody) Allow(context.Context, policy.Action, policy.Object) error { return nil }

// A second look that cannot look is no certificate.
func TestSecondLookThatFails(t *testing.T) {
	h := datasettest.New(t, nil)
	ctx := datasettest.Context(t)
	h.Put(t, "orders", dataset.Spec{}, "who,at,one\namal,2024-05-01T00:00:00Z,1\n")
	keys := &failing{}
	features := feature.New(feature.Config{
		DB: storetest.SQLite(t, featuresql.Migrations), Store: featuresql.Store{}, Data: featuredata.Data{Datasets: h.Services}, Keys: keys,
		Online: online.New(&onlinetest.Memory{}, keys, online.Options{}), Authorizer: everybody{}, Guard: datasettest.Guard{}, Journal: h.Journal,
		Join: offline.Options{Dir: t.TempDir()}, Log: slog.New(slog.DiscardHandler),
	})
	request := feature.ApplyRequest{Project: datasettest.Project, Name: "customer"}
	_, _, err := features.Definitions.ApplyEntity(ctx, request, feature.EntitySpec{Type: "string", JoinKeys: []string{"who"}})
	if err != nil {
		t.Fatal(err)
	}
	request.Name = "orders"
	if _, _, err := features.Definitions.ApplyView(ctx, request, feature.ViewSpec{
		Source: feature.Source{Dataset: "orders"}, Entities: []string{"customer"}, Timestamp: "at", Features: []feature.FieldSpec{{Name: "one", Type: "int64"}},
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := features.Materialisation.Materialise(ctx, feature.MaterialiseRequest{Project: datasettest.Project, View: "orders"}); err != nil {
		t.Fatal(err)
	}
	if err := features.Materialisation.RunOnce(ctx); err != nil {
		t.Fatal(err)
	}
	e := erasedOnline{features: features.Erasure, materialisation: features.Materialisation, log: slog.New(slog.DiscardHandler)}
	for _, s := range []privacy.Subject{{Project: string(datasettest.Project), Entity: "customer"}, {Erasure: "ers_1", Project: string(datasettest.Project), Entity: "customer"}} {
		keys.err = nil
		if _, err := e.Find(ctx, s); err != nil {
			t.Fatal(err)
		}
		keys.err = fault.New(fault.Unavailable, "it is away")
		if f, err := e.Find(ctx, s); !fault.Is(err, fault.Unavailable) {
			t.Errorf("found %+v, %v", f, err)
		}
	}
}

// TestUndeclared: a dataset of which nobody says whose its rows are is named, with what to
// do about it.
func TestUndeclared(t *testing.T) {
	t.Parallel()
	for want, keys := range map[string][]string{"it has the column buyer": {"buyer"}, "it has the columns street, house": {"street", "house"}} {
		u := undeclared("people", dataset.Person{Entity: "customer", Keys: keys})
		if u.Kind == (erasedDatasets{}).Kind() || u.Name != "people" || u.Seen || !strings.HasPrefix(u.Reason, "not searched, because ") || !strings.HasSuffix(u.Reason, want) || !strings.Contains(u.Tool, "spec.entities.customer") {
			t.Errorf("%+v", u)
		}
	}
}
