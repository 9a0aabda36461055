package httpapi

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/share"
	"github.com/falaj-ml/falaj/test/heavy"
)

// heavyWork is the usage of processors.
func heavyWork(t *testing.T) share.Usage {
	t.Helper()
	for _, u := range share.Measured() {
		if u.Name == "heavy_work" {
			return u
		}
	}
	return share.Usage{}
}

// TestHeavyBodiesTakeTurns: at every door a large body takes a turn, and has given it back
// when it is answered; a small one takes none.
func TestHeavyBodiesTakeTurns(t *testing.T) {
	w := open(t)
	requests, err := heavy.Requests("flights")
	if err != nil {
		t.Fatal(err)
	}
	list := func(n int) string { return "[" + strings.Repeat("0,", n) + "0]" }
	in := "/api/v1/projects/flights"
	for _, c := range []struct {
		name, path, body, encoding string
		heavy                      bool
	}{
		{"YAML", requests["wide YAML"].Path, string(requests["wide YAML"].Body), "", true},
		{"deep YAML", requests["deep YAML"].Path, string(requests["deep YAML"].Body), "", true},
		{"jobs", requests["wide jobs"].Path, string(requests["wide jobs"].Body), "", true},
		{"JSON of the API", in + "/query", `{"inputs":` + list(100_000) + `}`, "", true},
		{"MLflow", requests["wide MLflow"].Path, `{"tags":` + list(100_000) + `}`, "", true},
		{"MLflow in a string", requests["MLflow in a string"].Path, fmt.Sprintf("%q", `{"tags":`+list(200_000)+`}`), "", true},
		{"a filter", requests["long filter"].Path, `{"max_results":` + list(100_000) + `}`, "", true},
		{"inference", "/v2/models/x/infer", `{"inputs":` + list(200_000) + `}`, "", true},
		{"compressed inference", "/v2/models/x/infer", string(requests["inference bomb"].Body), "gzip", true},
		{"features", "/get-online-features", `{"features":["a:b"],"entities":{"a":` + list(100_000) + `}}`, "", true},
		{"imported runs", in + "/imports/mlflow", `{"items":` + list(100_000) + `}`, "", true},
		{"a small query", in + "/query", `{"sql":1}`, "", false},
		{"a small inference", "/v2/models/x/infer", `{"inputs":[]}`, "", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := heavyWork(t)
			headers := []string{"Content-Type", "application/json", "Falaj-Project", "flights"}
			if c.encoding != "" {
				headers = append(headers, "Content-Encoding", c.encoding)
			}
			got := w.do(t, w.Secret, http.MethodPost, c.path, c.body, headers...)
			if got.status < 400 || got.status >= 500 || got.status == http.StatusNotFound && c.name != "inference" {
				t.Errorf("%d %.300s", got.status, got.body)
			}
			after := heavyWork(t)
			if took := after.Granted > before.Granted; took != c.heavy || after.Held != 0 {
				t.Errorf("a turn was taken: %v, want %v; %d are held; %d %.200s", took, c.heavy, after.Held, got.status, got.body)
			}
		})
	}
}

// TestSlowSendersHoldNoProcessor: while a large body comes, whole ones are parsed.
func TestSlowSendersHoldNoProcessor(t *testing.T) {
	w := open(t)
	for range 4 { // more than there may be turns
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", strings.TrimPrefix(w.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := fmt.Fprintf(conn, "POST /api/v1/apply?project=flights HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\nContent-Length: 600000\r\n\r\n", w.Secret); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(conn, strings.Repeat("[a, ", 100_000)); err != nil {
			t.Fatal(err)
		}
	}
	before := heavyWork(t)
	got := w.do(t, w.Secret, http.MethodPost, "/api/v1/apply?project=flights", strings.Repeat("[", 70_000))
	if got.status != http.StatusBadRequest {
		t.Errorf("%d %.300s", got.status, got.body)
	}
	if after := heavyWork(t); after.Granted != before.Granted+1 || after.Held != 0 {
		t.Errorf("%+v, before %+v", after, before)
	}
}

// TestARepeatedRequestTakesItsTurnAgain: with an Idempotency-Key the body is read before
// the request waits for others of its key, and decoded afterwards.
func TestARepeatedRequestTakesItsTurnAgain(t *testing.T) {
	w := open(t)
	before := heavyWork(t)
	body := `{"sql":"SELECT 1","inputs":[` + strings.Repeat("0,", 100_000) + `0]}`
	got := w.do(t, w.Secret, http.MethodPost, "/api/v1/projects/flights/query", body, "Content-Type", "application/json", "Idempotency-Key", "k")
	if got.status != http.StatusBadRequest {
		t.Errorf("%d %.300s", got.status, got.body)
	}
	if after := heavyWork(t); after.Granted != before.Granted+2 || after.Held != 0 {
		t.Errorf("%+v, before %+v", after, before)
	}
}

// TestARepeatedRequestOutlivesItsClient: a heavy request with an Idempotency-Key is carried out
// when its client leaves while it waits for its turn.
func TestARepeatedRequestOutlivesItsClient(t *testing.T) {
	w := open(t)
	ctx, leave := context.WithCancel(identity.With(t.Context(), w.Admin))
	r := httptest.NewRequestWithContext(ctx, http.MethodPost, "/api/v1/things", strings.NewReader("a large body"))
	r.Header.Set(idempotencyKey, "k")
	r.Header.Set("Authorization", "Bearer "+w.Secret)
	turn := share.NewTurn(shareOf(r))
	r = r.WithContext(share.WithTurn(ctx, turn))
	r.Body = &turning{r.Body, r, turn, func() int64 { return share.Heavy }}
	acted := false
	w.server.idempotent(httptest.NewRecorder(), r, func(out http.ResponseWriter, r *http.Request) {
		leave()
		b, err := io.ReadAll(r.Body)
		if err != nil || string(b) != "a large body" || heavyWork(t).Held != 1 {
			t.Errorf("%q, %v, with %d processors", b, err, heavyWork(t).Held)
		}
		share.TurnOf(r.Context()).End()
		acted = true
	})
	if held := heavyWork(t).Held; !acted || held != 0 {
		t.Errorf("acted: %v; %d processors are held at the end", acted, held)
	}
}
