package httpapi

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/identity/account"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/store"
)

// attempt is the token of an attempt.
func (w *world) attempt(t *testing.T, in, id string, scopes ...string) string {
	t.Helper()
	var secret string
	ctx := identity.With(t.Context(), identity.Loop("training"))
	err := w.DB.Update(ctx, in, func(ctx context.Context, tx *store.Tx) (err error) {
		_, secret, err = w.Accounts.IssueAttemptIn(ctx, tx, account.AttemptSpec{
			Attempt: id, Name: "job_x", Project: project.Name(in), Scopes: scopes, TTL: time.Hour,
		})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return secret
}

// TestOnlyTheAttempt: nobody but the attempt's own token speaks for its workers.
func TestOnlyTheAttempt(t *testing.T) {
	t.Parallel()
	w := open(t)
	engineer, _ := w.member(t, "flights", "ci", project.Engineer)
	viewer, _ := w.member(t, "flights", "eyes", project.Viewer)
	for who, token := range map[string]string{
		"an administrator": w.Secret, "an engineer": engineer, "a viewer": viewer,
		"another attempt":             w.attempt(t, "flights", "att_other", "workload.work"),
		"an attempt without scope":    w.attempt(t, "flights", "att_mine", "run.read"),
		"the attempt of a namesake":   w.attempt(t, "other", "att_mine", "workload.work"),
		"an attempt of a longer name": w.attempt(t, "flights", "att_mine2", "workload.work"),
	} {
		for _, route := range []string{"POST join", "POST beat", "POST log", "POST end", "GET mounts/0", "POST mounts/0/manifest", "PUT mounts/0/tree"} {
			method, path, _ := strings.Cut(route, " ")
			got := w.do(t, token, method, "/api/v1/projects/flights/workloads/att_mine/worker/"+path, "{}")
			// Of another project not even that it is there is told.
			if got.status != http.StatusForbidden && (got.status != http.StatusNotFound || who != "the attempt of a namesake") {
				t.Errorf("%s may %s: %d %s", who, route, got.status, got.body)
			}
		}
	}
}

// TestOutputTakesItsTime: a file of the output is read as long as its user takes, and what
// nobody reads of it is not waited for.
func TestOutputTakesItsTime(t *testing.T) {
	w := open(t)
	token, _ := w.member(t, "flights", "reader", project.Viewer)
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPut, "/api/v1/projects/flights/workloads/att_mine/worker/output", io.MultiReader(strings.NewReader("x")))
	r.Host = "127.0.0.1"
	r.Header.Set("Authorization", "Bearer "+token)
	answer := &dated{ResponseRecorder: httptest.NewRecorder()}
	w.server.ServeHTTP(answer, r)
	if n := len(answer.reads); answer.Code != http.StatusForbidden || n != 2 || !answer.reads[0].IsZero() || answer.reads[1].IsZero() {
		t.Errorf("%d, read until %v", answer.Code, answer.reads)
	}
}
