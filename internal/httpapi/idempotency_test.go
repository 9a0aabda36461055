package httpapi

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/falaj-ml/falaj/internal/event"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/store"
)

// tokensOf counts the tokens of a service in the project flights.
func (w *world) tokensOf(t *testing.T, name string) int {
	t.Helper()
	got := w.do(t, w.Secret, "GET", "/api/v1/tokens?project=flights&page_size=1000", "")
	var page items[struct{ Name string }]
	if err := json.Unmarshal([]byte(got.body), &page); err != nil || got.status != http.StatusOK {
		t.Fatal(got, err)
	}
	n := 0
	for _, o := range page.Items {
		if o.Name == name {
			n++
		}
	}
	return n
}

func replayed(a answered) bool { return a.header.Get(replayedHeader) == "true" }

// TestOnceConcurrently: of many equal requests one acts, and all get its answer.
func TestOnceConcurrently(t *testing.T) {
	w := open(t)
	const n = 12
	answers := make([]answered, n)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			a, err := w.try(t.Context(), w.Secret, "POST", "/api/v1/tokens", `{"project":"flights","name":"ci","role":"viewer"}`, idempotencyKey, "k")
			if err != nil {
				t.Error(err)
			}
			answers[i] = a
		})
	}
	all.Wait()
	first := 0
	for _, a := range answers {
		if a.status != http.StatusCreated || a.body != answers[0].body || a.body == "" {
			t.Errorf("one got %d %s, another %d %s", a.status, a.body, answers[0].status, answers[0].body)
		}
		if !replayed(a) {
			first++
		}
	}
	if made := w.tokensOf(t, "ci"); first != 1 || made != 1 {
		t.Errorf("%d answers were first ones, %d tokens were made", first, made)
	}
	if len(w.server.idempotency.taken) != 0 {
		t.Errorf("%d turns were never ended", len(w.server.idempotency.taken))
	}
}

func TestOnce(t *testing.T) {
	w := open(t)
	const path = "/api/v1/tokens"
	const body = `{"project":"flights","name":"ci","role":"viewer"}`
	post := func(token, body string, headers ...string) answered {
		t.Helper()
		return w.do(t, token, "POST", path, body, append([]string{idempotencyKey, "k"}, headers...)...)
	}
	first := post(w.Secret, body)
	if first.status != http.StatusCreated || replayed(first) {
		t.Fatal(first)
	}
	if again := post(w.Secret, body); again.body != first.body || again.status != first.status || !replayed(again) || again.header.Get("Content-Type") != first.header.Get("Content-Type") {
		t.Errorf("repeated: %v", again)
	}

	for name, other := range map[string]answered{
		"body":       post(w.Secret, `{"project":"flights","name":"cd","role":"viewer"}`),
		"query":      w.do(t, w.Secret, "POST", path+"?x=1", body, idempotencyKey, "k"),
		"path":       w.do(t, w.Secret, "POST", "/api/v1/apply", body, idempotencyKey, "k"),
		"If-Match":   post(w.Secret, body, "If-Match", `"1"`),
		"empty body": post(w.Secret, ""),
	} {
		if other.status != http.StatusConflict || strings.Contains(other.body, "flj_") {
			t.Errorf("the same key with another %s: %d %s", name, other.status, other.body)
		}
	}
	if n := w.tokensOf(t, "cd"); n != 0 {
		t.Errorf("a conflicting request made %d tokens", n)
	}

	// The key is the token's own: another of the same person, another person, and
	// the same token for another project do not meet it.
	var mine tokenAnswer
	if err := json.Unmarshal([]byte(w.do(t, w.Secret, "POST", path, `{}`).body), &mine); err != nil {
		t.Fatal(err)
	}
	boss, _ := w.member(t, "flights", "boss", project.Admin)
	for name, a := range map[string]answered{
		"token":   post(mine.Secret, body),
		"person":  post(boss, body),
		"project": post(w.Secret, body, "Falaj-Project", "flights"),
	} {
		if a.status != http.StatusCreated || replayed(a) || a.body == first.body {
			t.Errorf("another %s with the same key: %v", name, a)
		}
	}

	// Who may no longer get anything gets no old answer.
	if got := w.do(t, w.Secret, "DELETE", path+"/"+mine.ID, ""); got.status != http.StatusNoContent {
		t.Fatal(got)
	}
	if got := post(mine.Secret, body); got.status != http.StatusUnauthorized {
		t.Errorf("a revoked token's answer: %v", got)
	}
}

// TestOnceAsksAgain: the gate is asked before an old answer is given.
func TestOnceAsksAgain(t *testing.T) {
	w := open(t)
	boss, _ := w.member(t, "flights", "boss", project.Admin)
	if _, err := w.server.Keys.DataKey(t.Context(), "flights", "dataset/weather", "test"); err != nil {
		t.Fatal(err)
	}
	destroy := func() answered {
		return w.do(t, boss, "POST", "/api/v1/projects/flights/keys/destroy", `{"owner":"dataset/weather","confirm":"dataset/weather"}`, idempotencyKey, "k")
	}
	if got := destroy(); got.status != http.StatusOK {
		t.Fatal(got)
	}
	if got := destroy(); got.status != http.StatusOK || !replayed(got) {
		t.Fatal(got)
	}
	grants, _, err := w.Tenancy.Members(w.AsAdmin(t.Context()), "flights", "")
	if err != nil || len(grants) != 1 {
		t.Fatal(grants, err)
	}
	if err := w.Tenancy.Revoke(w.AsAdmin(t.Context()), "flights", grants[0].Name); err != nil {
		t.Fatal(err)
	}
	if got := destroy(); got.status != http.StatusForbidden {
		t.Errorf("one without a role any more: %v", got)
	}
}

// TestOnceSealed: what is kept opens with the token of the request only.
func TestOnceSealed(t *testing.T) {
	w := open(t)
	got := w.do(t, w.Secret, "POST", "/api/v1/tokens", `{"project":"flights","name":"ci","role":"viewer"}`, idempotencyKey, "k")
	var made tokenAnswer
	if err := json.Unmarshal([]byte(got.body), &made); err != nil || made.Secret == "" {
		t.Fatal(got, err)
	}
	var kept [][]byte
	err := w.DB.View(t.Context(), func(ctx context.Context, tx *store.Tx) error {
		return tx.NewRaw(`SELECT answer FROM store_idempotency`).Scan(ctx, &kept)
	})
	if err != nil || len(kept) != 1 {
		t.Fatal(len(kept), err)
	}
	if strings.Contains(string(kept[0]), made.Secret) || strings.Contains(string(kept[0]), "secret") {
		t.Error("the database has the token's secret")
	}
	for token, opens := range map[string]bool{w.Secret: true, made.Secret: false, "": false} {
		seal, err := answerSeal(token)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := unseal(seal, kept[0]); (err == nil) != opens {
			t.Errorf("%.12s opens the answer: %v", token, err)
		}
	}
	seal, _ := answerSeal(w.Secret)
	if _, err := unseal(seal, []byte("short")); err == nil {
		t.Error("five bytes are an answer")
	}
}

// TestOnceMarks: what is kept of a request cannot be found by guessing the request, as
// a digest of it could, only with the token.
func TestOnceMarks(t *testing.T) {
	w := open(t)
	const path, body = "/api/v1/tokens", `{"project":"flights","name":"ci","role":"viewer"}`
	if got := w.do(t, w.Secret, "POST", path, body, idempotencyKey, "k"); got.status != http.StatusCreated {
		t.Fatal(got)
	}
	var kept [][]byte
	err := w.DB.View(t.Context(), func(ctx context.Context, tx *store.Tx) error {
		return tx.NewRaw(`SELECT request FROM store_idempotency`).Scan(ctx, &kept)
	})
	if err != nil || len(kept) != 1 {
		t.Fatal(len(kept), err)
	}
	for token, same := range map[string]bool{w.Secret: true, "": false, "another": false} {
		guess, err := requestDigest(token, "POST", path, "", body)
		if err != nil {
			t.Fatal(err)
		}
		if digest := sha256.Sum256(guess); bytes.Equal(kept[0], digest[:]) != same {
			t.Errorf("with the token %.5s the request is found: %v", token, !same)
		}
	}
	plain, err := json.Marshal([]string{"POST", path, "", body})
	if err != nil {
		t.Fatal(err)
	}
	if digest := sha256.Sum256(plain); bytes.Equal(kept[0], digest[:]) {
		t.Error("the request is kept as a digest without a key")
	}
}

// TestOnceWithoutEffect: what changed nothing may be tried again with its key.
func TestOnceWithoutEffect(t *testing.T) {
	w := open(t)
	post := func() answered {
		t.Helper()
		return w.do(t, w.Secret, "POST", "/api/v1/tokens", `{"project":"late"}`, idempotencyKey, "k")
	}
	if got := post(); got.status != http.StatusNotFound {
		t.Fatal(got)
	}
	w.Project(t, "late")
	if got := post(); got.status != http.StatusCreated || replayed(got) {
		t.Errorf("after the project was made: %v", got)
	}
	for name, key := range map[string]string{"long": strings.Repeat("x", 256)} {
		if got := w.do(t, w.Secret, "POST", "/api/v1/tokens", `{}`, idempotencyKey, key); got.status != http.StatusBadRequest {
			t.Errorf("a %s key: %v", name, got)
		}
	}
	if got := w.do(t, w.Secret, "POST", "/api/v1/projects/flights/datasets/weather/versions", "a\n1\n", idempotencyKey, "u"); got.status != http.StatusNotImplemented {
		t.Errorf("an upload with a key: %v", got)
	}
}

// acting is a request with the key "k" whose act is the test's own.
func (w *world) acting(ctx context.Context, act http.HandlerFunc) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodPost, "/api/v1/things", strings.NewReader("{}")).WithContext(identity.With(ctx, w.Admin))
	r.Header.Set(idempotencyKey, "k")
	r.Header.Set("Authorization", "Bearer "+w.Secret)
	got := httptest.NewRecorder()
	w.server.idempotent(got, r, act)
	return got
}

// effect is an act that takes effect and answers.
func (w *world) effect(count *atomic.Int32, answer string) http.HandlerFunc {
	return func(out http.ResponseWriter, r *http.Request) {
		err := w.DB.Update(r.Context(), "flights", func(ctx context.Context, tx *store.Tx) error {
			return event.Publish(ctx, tx, "flights", "thing.made", nil)
		})
		if err != nil {
			w.server.fail(out, r, err)
			return
		}
		count.Add(1)
		out.WriteHeader(http.StatusCreated)
		_, _ = fmt.Fprint(out, answer)
	}
}

// TestOnceClientGone: when the client goes away while the request acts, it is
// carried to its end, and the repetition gets the answer.
func TestOnceClientGone(t *testing.T) {
	w := open(t)
	var count atomic.Int32
	ctx, gone := context.WithCancel(t.Context())
	act := w.effect(&count, "made")
	first := w.acting(ctx, func(out http.ResponseWriter, r *http.Request) {
		gone()
		act(out, r)
	})
	if first.Code != http.StatusCreated {
		t.Errorf("the act was cut off: %d %s", first.Code, first.Body)
	}
	again := w.acting(t.Context(), act)
	if again.Code != http.StatusCreated || again.Body.String() != "made" || again.Header().Get(replayedHeader) != "true" || count.Load() != 1 {
		t.Errorf("repeated: %d %s, %d effects", again.Code, again.Body, count.Load())
	}
}

// TestOnceWaits: a repetition that comes while the first acts waits for its
// answer, and one whose client goes away waits no longer.
func TestOnceWaits(t *testing.T) {
	w := open(t)
	var count atomic.Int32
	acts, release := make(chan struct{}), make(chan struct{})
	act := w.effect(&count, "made")
	var both sync.WaitGroup
	both.Go(func() {
		w.acting(t.Context(), func(out http.ResponseWriter, r *http.Request) {
			close(acts)
			<-release
			act(out, r)
		})
	})
	<-acts
	impatient, gone := context.WithCancel(t.Context())
	gone()
	if got := w.acting(impatient, act); got.Code == http.StatusCreated {
		t.Errorf("a client that had gone got %d", got.Code)
	}
	var second *httptest.ResponseRecorder
	both.Go(func() { second = w.acting(t.Context(), act) })
	close(release)
	both.Wait()
	if second.Code != http.StatusCreated || second.Body.String() != "made" || count.Load() != 1 {
		t.Errorf("the second got %d %s, %d effects", second.Code, second.Body, count.Load())
	}
}

// TestOnceTooLarge: an answer that is too large to keep is given, and a
// repetition is a conflict and not a second effect.
func TestOnceTooLarge(t *testing.T) {
	w := open(t)
	var count atomic.Int32
	act := w.effect(&count, strings.Repeat("x", 2<<20))
	if got := w.acting(t.Context(), act); got.Code != http.StatusCreated || got.Body.Len() != 2<<20 {
		t.Errorf("%d with %d bytes", got.Code, got.Body.Len())
	}
	if got := w.acting(t.Context(), act); got.Code != http.StatusConflict || count.Load() != 1 {
		t.Errorf("repeated: %d, %d effects", got.Code, count.Load())
	}
}

// TestOnceRefused: an act that fails after its effect is answered so again.
func TestOnceRefused(t *testing.T) {
	w := open(t)
	var count atomic.Int32
	act := w.effect(&count, "")
	refuse := func(out http.ResponseWriter, r *http.Request) {
		act(httptest.NewRecorder(), r)
		w.server.fail(out, r, fault.New(fault.Conflict, "half done"))
	}
	for range 2 {
		if got := w.acting(t.Context(), refuse); got.Code != http.StatusConflict || !strings.Contains(got.Body.String(), "half done") {
			t.Errorf("%d %s", got.Code, got.Body)
		}
	}
	if count.Load() != 1 {
		t.Errorf("%d effects", count.Load())
	}
}
