package httpapi

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"testing"

	"github.com/falaj-ml/falaj/internal/dataset"
	"github.com/falaj-ml/falaj/internal/dataset/datasetsql"
	"github.com/falaj-ml/falaj/internal/dataset/openlineage"
	"github.com/falaj-ml/falaj/internal/dataset/openlineage/openlineagesql"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/store/storetest"
	"github.com/falaj-ml/falaj/internal/training"
	"github.com/falaj-ml/falaj/internal/training/trainingsql"
	"github.com/falaj-ml/falaj/internal/usecase/search"
)

// A search goes on page by page, finds each object once, and only what its caller may
// see.
func TestSearchPages(t *testing.T) {
	w := open(t)
	names := map[string]bool{}
	for _, n := range []string{"alpha", "beta", "gamma", "delta", "other"} {
		names[n] = true
		if got := w.do(t, w.Secret, "POST", "/api/v1/apply", `{api_version: falaj/v1, kind: Dataset, name: `+n+`, project: flights, spec: {description: needle `+n+`}}`); got.status != 200 {
			t.Fatal(got)
		}
	}
	viewer, _ := w.member(t, "flights", "eve", "viewer")
	stranger, _ := w.member(t, "other", "mallory", "admin")
	for _, token := range []string{w.Secret, viewer} {
		left, next := map[string]bool{}, ""
		for n := range names {
			left[n] = true
		}
		for pages := 0; ; pages++ {
			var page items[search.Hit]
			got := w.do(t, token, "GET", "/api/v1/projects/flights/search?q=needle+kind:dataset&page_size=2&page_token="+next, "")
			if err := json.Unmarshal([]byte(got.body), &page); err != nil || got.status != 200 {
				t.Fatal(got, err)
			}
			if len(page.Items) > 2 || pages > 5 {
				t.Fatalf("page %d has %d objects", pages, len(page.Items))
			}
			for _, h := range page.Items {
				if !left[h.Name] || h.Kind != "dataset" || len(h.Matches) == 0 {
					t.Errorf("%+v", h)
				}
				delete(left, h.Name)
			}
			if next = page.Next; next == "" {
				break
			}
		}
		if len(left) > 0 {
			t.Errorf("not found: %v", left)
		}
	}
	if got := w.do(t, stranger, "GET", "/api/v1/projects/flights/search?q=needle", ""); got.status != 403 && got.status != 404 {
		t.Errorf("a stranger: %+v", got)
	}
	for _, q := range []string{"q=", "q=x&page_token=abc", "q=x&page_token=eyJrIjo5OX0"} {
		if got := w.do(t, w.Secret, "GET", "/api/v1/projects/flights/search?"+q, ""); got.status != 400 {
			t.Errorf("%s: %+v", q, got)
		}
	}
}

// without is an authorizer that keeps one object from everybody.
type without struct {
	policy.Authorizer
	name string
}

func (w without) Allow(ctx context.Context, action policy.Action, object policy.Object) error {
	if object.Name == w.name {
		return fault.New(fault.PermissionDenied, "%s is kept", w.name)
	}
	return w.Authorizer.Allow(ctx, action, object)
}

// hits are the names that a search gives, over all its pages.
func (w *world) hits(t *testing.T, token, query string) (names []string) {
	t.Helper()
	for next, pages := "", 0; ; pages++ {
		var page items[search.Hit]
		got := w.do(t, token, "GET", "/api/v1/projects/flights/search?page_size=2&q="+query+"&page_token="+next, "")
		if err := json.Unmarshal([]byte(got.body), &page); err != nil || got.status != 200 || pages > 100 {
			t.Fatal(got, err)
		}
		for _, h := range page.Items {
			names = append(names, h.Name)
		}
		if next = page.Next; next == "" {
			return names
		}
	}
}

// One object in a list that the caller may not see does not end the search.
func TestSearchGoesOnBehindWhatIsHidden(t *testing.T) {
	w := open(t)
	db := storetest.SQLite(t, trainingsql.Migrations)
	w.server.Training = training.New(training.Config{DB: db, Store: trainingsql.Store{}, Authorizer: without{w.Authority, "job_49"}})
	if err := db.Update(t.Context(), "flights", func(ctx context.Context, tx *store.Tx) error {
		for i := range 50 {
			j := training.Job{ID: training.JobID(fmt.Sprintf("job_%02d", i)), Project: "flights", Name: fmt.Sprintf("train%02d", i), State: training.Queued}
			if err := (trainingsql.Store{}).InsertJob(ctx, tx, j); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if got := w.hits(t, w.Secret, "kind:job+name:train0"); len(got) != 10 {
		t.Errorf("found %q", got)
	}
	var scopes []string
	for i := range 30 {
		name := fmt.Sprintf("d%02d", i)
		if got := w.do(t, w.Secret, "POST", "/api/v1/apply", `{api_version: falaj/v1, kind: Dataset, name: `+name+`, project: flights, spec: {description: needle}}`); got.status != 200 {
			t.Fatal(got)
		}
		scopes = append(scopes, "dataset.read:"+name)
	}
	w.server.Datasets = dataset.New(dataset.Config{DB: w.DB, Store: datasetsql.Store{}, Authorizer: without{w.Authority, "d03"}, Guard: w.Guard, Journal: w.Journal})
	if got := w.hits(t, w.attempt(t, "flights", "att_one", scopes...), "kind:dataset+needle"); len(got) != 29 || got[28] != "d29" {
		t.Errorf("found %q", got)
	}
}

// The columns that others told of one of Falaj's datasets are not found beside it. A
// damaged event is the sender's mistake.
func TestSearchLineage(t *testing.T) {
	w := open(t)
	db := storetest.SQLite(t, openlineagesql.Migrations)
	w.server.Lineage = openlineage.New(openlineage.Config{DB: db, Store: openlineagesql.Store{}, Authorizer: w.Authority, Datasets: w.server.Datasets})
	const facet = `"_producer":"https://a.example","_schemaURL":"https://a.example/f.json"`
	table := func(namespace, name string) string {
		return fmt.Sprintf(`{"namespace":%q,"name":%q,"facets":{"schema":{%s,"fields":[{"name":"iban"}]}}}`, namespace, name, facet)
	}
	event := []byte(`{"eventTime":"2026-01-01T00:00:00Z","producer":"https://a.example","schemaURL":"https://a.example/e.json","job":{"namespace":"a","name":"job"},"inputs":[` +
		table("falaj://flights", "salaries") + "," + table("s3://lake", "open") + `]}`)
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	_, _ = z.Write(event)
	_ = z.Close()
	flipped := bytes.Clone(packed.Bytes())
	flipped[len(flipped)/2] ^= 4
	for body, want := range map[string]int{packed.String(): 201, string(flipped): 400, packed.String()[:packed.Len()-20]: 400, "": 400} {
		if got := w.do(t, w.Secret, "POST", reportPath, body, "Content-Encoding", "gzip", "Falaj-Project", "flights"); got.status != want {
			t.Errorf("%d bytes: %+v", len(body), got)
		}
	}
	// Names are those of RFC 9110; what a door does not know is 415, at each of them.
	for _, c := range []struct {
		path, coding string
		want         int
	}{
		{reportPath, "X-GZIP", 201},
		{reportPath, "br", 415},
		{reportPath, "gzip, gzip", 415},
		{"/api/v1/apply", "gzip", 415},
		{"/api/v1/apply", "br", 415},
		{"/api/2.0/mlflow/runs/create", "gzip", 415},
		{"/iceberg/v1/namespaces", "gzip", 415},
	} {
		if got := w.do(t, w.Secret, "POST", c.path, packed.String(), "Content-Encoding", c.coding, "Falaj-Project", "flights"); got.status != c.want {
			t.Errorf("%s in %s: %+v", c.path, c.coding, got)
		}
	}
	if got := w.hits(t, w.Secret, "kind:lineage+column:iban"); len(got) != 1 || got[0] != "open" {
		t.Errorf("found %q", got)
	}
	if got := w.hits(t, w.Secret, "kind:lineage+salaries"); len(got) != 1 {
		t.Errorf("found %q", got)
	}
}
