package dataset_test

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/tink-crypto/tink-go/v2/tink"

	"github.com/falaj-ml/falaj/internal/dataset"
	"github.com/falaj-ml/falaj/internal/dataset/datasettest"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/deletion"
	nameof "github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/store"
)

// pseudonyms names persons as an erasure does.
type pseudonyms struct {
	entities []dataset.Person
	erased   map[string]map[[sha256.Size]byte]string
}

func (p pseudonyms) Erased(context.Context, nameof.Name) (map[string]map[[sha256.Size]byte]string, error) {
	return p.erased, nil
}

func (p pseudonyms) Entities(context.Context, nameof.Name) ([]dataset.Person, error) {
	return p.entities, nil
}

func (pseudonyms) Of(p nameof.Name, entity string, values []string) (out [sha256.Size]byte) {
	m := hmac.New(sha256.New, []byte("a key"))
	fmt.Fprintf(m, "%q %q %q", p, entity, values)
	m.Sum(out[:0])
	return out
}

func (pseudonyms) Box(ctx context.Context, p nameof.Name) (tink.AEAD, error) {
	return datasettest.Keys{}.AEAD(ctx, string(p), "erasures")
}

// sought is carla as an erasure looks for her.
func sought(key string, reads ...string) dataset.Person {
	p := carla(reads...)
	p.Is = func(values []string) bool { return slices.Equal(values, []string{key}) }
	p.Pseudonym = pseudonyms{}.Of(project, p.Entity, []string{key})
	return p
}

func departed(t *testing.T, h *datasettest.Harness, p dataset.Person) (out []string) {
	t.Helper()
	all, err := h.Erasure.Departed(datasettest.Context(t), p)
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range all {
		out = append(out, fmt.Sprint(b.Version.Ref(), " ", b.Had))
	}
	slices.Sort(out)
	return out
}

// derived makes a version of a dataset of the rows of another one.
func derived(t *testing.T, h *datasettest.Harness, name, from string, columns dataset.Columns) {
	t.Helper()
	rows, err := h.Reads.Open(datasettest.Context(t), dataset.OpenRequest{Project: project, Ref: ref(t, from)})
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Release()
	if _, err := h.Writes.Create(datasettest.Context(t), dataset.CreateRequest{
		Project: project, Name: name, Rows: rows, Parents: []dataset.Ref{ref(t, from)}, Producer: dataset.Producer{Kind: "sql", Text: "SELECT"},
		Columns: func() dataset.Columns { return columns },
	}); err != nil {
		t.Fatal(err)
	}
}

// TestTombstones: a version that something cites goes only when somebody says so, and an
// erasure finds then whose rows it had; one that nothing cites leaves nothing.
func TestTombstones(t *testing.T) {
	dir := t.TempDir()
	said := texts{`{"datasets":["orders@1"]}`}
	var answering []string
	h := datasettest.At(t, dir, func(c *dataset.Config) {
		c.Pseudonyms = pseudonyms{entities: []dataset.Person{carla("orders")}}
		c.Citations = []dataset.Citations{&said}
		c.Answers = func(_ context.Context, _ *store.Tx, _ nameof.Name, by string) ([]string, error) {
			if by == "job job_1" {
				return answering, nil
			}
			return nil, nil
		}
		c.Readers = func(_ context.Context, _ *store.Tx, _ nameof.Name, name string) ([]string, error) {
			if name == "orders" {
				return []string{"feature view facts@1"}, nil
			}
			return nil, nil
		}
	})
	ctx := datasettest.Context(t)
	h.Put(t, "orders", dataset.Spec{}, bought(0, 9)) // orders@1
	h.Put(t, "orders", dataset.Spec{}, bought(9, 9)) // orders@2
	v, err := h.Definitions.Version(ctx, project, ref(t, "orders@1"))
	if err != nil {
		t.Fatal(err)
	}

	for name, c := range map[string]struct {
		of      string
		request deletion.Request
		kind    fault.Kind
		says    string
	}{
		"cited":                  {"orders@1", deletion.Request{}, fault.Conflict, "job job_1"},
		"the dataset":            {"orders", deletion.Request{}, fault.Conflict, "feature view facts@1, job job_1"},
		"force without a reason": {"orders@2", deletion.Request{Force: true}, fault.Invalid, "reason"},
	} {
		if err := h.Definitions.Delete(ctx, project, ref(t, c.of), c.request); !fault.Is(err, c.kind) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
	answering = []string{"deployment shop"}
	if err := h.Definitions.Delete(ctx, project, ref(t, "orders@1"), deletion.Request{Yes: true}); !fault.Is(err, fault.Conflict) || !strings.Contains(err.Error(), "in use by deployment shop") {
		t.Errorf("in use: %v", err)
	}
	if got := departed(t, h, sought("carla", "orders")); got != nil {
		t.Errorf("nothing was deleted, and %v are gone", got)
	}
	if err := h.Definitions.Delete(ctx, project, ref(t, "orders@1"), deletion.Request{Force: true, Reason: "court order"}); err != nil {
		t.Fatal(err)
	}
	if err := h.Definitions.Delete(ctx, project, ref(t, "orders"), deletion.Request{Yes: true}); err != nil { // orders@2 is cited by nothing of its own
		t.Fatal(err)
	}

	gone, err := h.Definitions.Version(ctx, project, ref(t, "orders@1"))
	if err != nil || gone.State != dataset.Deleted || gone.ContentDigest != v.ContentDigest || gone.DeletedBy != "usr_1" || gone.DeletedAt.IsZero() ||
		gone.Tombstone == nil || gone.Tombstone.CitedBy != "deployment shop, job job_1" || !slices.Equal(gone.Tombstone.Entities["customer"][0], []string{"buyer"}) {
		t.Errorf("what stays is %+v with %+v, error %v", gone, gone.Tombstone, err)
	}
	g, err := h.Lineage.Graph(ctx, project, ref(t, "orders@1"))
	if err != nil || g.Digest != v.ContentDigest || !strings.Contains(g.Deleted, "by usr_1") {
		t.Errorf("lineage: %+v, %v", g, err)
	}
	if _, err := h.Reads.Open(ctx, dataset.OpenRequest{Project: project, Ref: ref(t, "orders@1")}); !fault.Is(err, fault.Gone) {
		t.Errorf("reading it: %v", err)
	}
	if _, err := h.Definitions.Version(ctx, project, ref(t, "orders@7")); !fault.Is(err, fault.NotFound) {
		t.Errorf("a version that never was: %v", err)
	}

	if got, want := departed(t, h, sought("carla", "orders")), []string{"orders@1 true", "orders@2 false"}; !slices.Equal(got, want) {
		t.Errorf("carla: %v, not %v", got, want)
	}
	if got, want := departed(t, h, sought("eman", "orders")), []string{"orders@2 false"}; !slices.Equal(got, want) {
		t.Errorf("somebody else: %v, not %v", got, want)
	}
	if err := h.DB.Close(); err != nil {
		t.Fatal(err)
	}
	of := sought("carla").Pseudonym
	for _, secret := range []string{"carla", string(of[:16]), hex.EncodeToString(of[:16])} {
		if got := in(t, dir, secret); len(got) != 0 {
			t.Errorf("%q is in the clear in %v", secret, got)
		}
	}
}

// TestCitedThroughWhatWasMade: what was made of a version and what knows that cite it.
func TestCitedThroughWhatWasMade(t *testing.T) {
	said := modelsSay{`["made@1"]`}
	h := datasettest.New(t, func(c *dataset.Config) { c.Citations = []dataset.Citations{said} })
	h.Put(t, "orders", dataset.Spec{}, bought(0, 9))
	derived(t, h, "made", "orders@1", nil)
	redactedBefore := redact(t, h, carla("orders")) // orders@2 stands for orders@1, made@2 for made@1
	if len(redactedBefore) != 2 {
		t.Fatalf("redacted %v", redactedBefore)
	}
	err := h.Definitions.Delete(datasettest.Context(t), project, ref(t, "orders@2"), deletion.Request{})
	if !fault.Is(err, fault.Conflict) || !strings.Contains(err.Error(), "dataset made@2, model delay@1") {
		t.Errorf("%v", err)
	}
}

// modelsSay are model versions that name datasets.
type modelsSay []string

func (ts modelsSay) Mentions(_ context.Context, _ *store.Tx, _ nameof.Name, word string, each func(by, text string)) error {
	for i, t := range ts {
		if strings.Contains(t, word) {
			each(fmt.Sprintf("model delay@%d", i+1), t)
		}
	}
	return nil
}

// TestManyPersons: parts are searched all, and hold few in memory.
func TestManyPersons(t *testing.T) {
	if testing.Short() {
		t.Skip("imports 150,000 rows")
	}
	said := texts{`"orders@1"`}
	h := datasettest.New(t, func(c *dataset.Config) {
		c.Pseudonyms = pseudonyms{entities: []dataset.Person{carla("orders")}}
		c.Citations = []dataset.Citations{&said}
	})
	var b strings.Builder
	b.WriteString("buyer,n\n")
	for i := range 150_000 {
		fmt.Fprintf(&b, "b%d,1\n", i)
	}
	h.Put(t, "orders", dataset.Spec{}, b.String())
	if err := h.Definitions.Delete(datasettest.Context(t), project, ref(t, "orders@1"), deletion.Request{Yes: true}); err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]int{"b0": 1, "b70000": 1, "b149999": 1, "b150000": 0} {
		if got := departed(t, h, sought(key, "orders")); len(got) != want {
			t.Errorf("%s: %v", key, got)
		}
	}
}

// TestRenamedColumns: rows are found by the column that has the key, whatever it is
// called, when the lineage of the version says so; also in what stands for it after
// another person's erasure.
func TestRenamedColumns(t *testing.T) {
	h := datasettest.New(t, nil)
	h.Put(t, "orders", dataset.Spec{}, bought(0, 9))
	h.Put(t, "pairs", dataset.Spec{}, "who,friend,n\ncarla,amal,1\namal,carla,2\nbadr,amal,3\n")
	rows, err := h.Reads.Open(datasettest.Context(t), dataset.OpenRequest{Project: project, Ref: ref(t, "pairs@1")})
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Release()
	if _, err := h.Writes.Create(datasettest.Context(t), dataset.CreateRequest{
		Project: project, Name: "made", Rows: rows, Parents: []dataset.Ref{ref(t, "orders@1")}, Producer: dataset.Producer{Kind: "sql", Text: "SELECT"},
		Columns: func() dataset.Columns {
			from := func(how string) []dataset.ColumnSource {
				return []dataset.ColumnSource{{Ref: "orders@1", Column: "buyer", How: how}}
			}
			return dataset.Columns{"who": from("identity"), "friend": from("identity"), "n": from("transformation")}
		},
	}); err != nil {
		t.Fatal(err)
	}
	if got, want := redact(t, h, carla("orders")), []string{"made@1 2 made@2", "orders@1 3 orders@2"}; !slices.Equal(got, want) {
		t.Fatalf("redacted %v, not %v", got, want)
	}
	if got := rowTexts(t, h, "made"); !slices.Equal(got, []string{"badramal3"}) {
		t.Errorf("left: %v", got)
	}
	amal := sought("amal", "orders")
	amal.Purpose = "erasure ers_2"
	if got := redact(t, h, amal); !slices.Equal(got, []string{"made@2 1 made@3", "orders@2 3 orders@3"}) {
		t.Errorf("another person: %v", got)
	}
}
