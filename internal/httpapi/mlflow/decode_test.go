package mlflow

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/falaj-ml/falaj/internal/fault"
)

// FuzzDecode feeds bodies to the decoder with the richest messages: it must
// refuse with fault.Invalid or decode, never panic.
func FuzzDecode(f *testing.F) {
	for _, seed := range []string{
		`{}`, `null`, `"{}"`, `[]`, `{"run_id":"x","metrics":[{"key":"a","value":"NaN","timestamp":"1"}]}`, `{"runId":1}`,
		`{"run_id":null,"params":null}`, `{"run_id":"x","metrics":[null]}`, `{"run_id":"x","metrics":{"key":1}}`, `{"status":99999999999999999999}`,
		`{"experiment_id":"1","params":[{"key":"k","value":1e400}]}`, `{"view_type":-1}`, `{"datasets":[{"dataset":{"name":"n"},"tags":[{"key":"k"}]}]}`, strings.Repeat(`{"a":`, 500),
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, body string) {
		for _, q := range []any{new(logBatch), new(logMetric), new(updateRun), new(logInputs), new(searchModels), new(searchExperiments), new(createModel)} {
			r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(body))
			if err := decodeRequest(r, q); err != nil && !fault.Is(err, fault.Invalid) {
				t.Fatalf("%T of %q: %v", q, body, err)
			}
		}
	})
}

// FuzzGuard holds that what passes the guard has no dot segment, however it is
// decoded.
func FuzzGuard(f *testing.F) {
	for _, seed := range []string{"/api/2.0/mlflow/runs/get", "/api/2.0/mlflow/../x", "/api/2.0/mlflow/%2e%2e/x", "/api/2.0/mlflow/%252e%252e/x", "/ajax-api/..%5c", "/%2e/api/2.0/mlflow/x", "/api/2.0/mlflow/100%"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, p string) {
		if !strings.HasPrefix(p, "/") || !plain(p) {
			return
		}
		for segment := range strings.SplitSeq(strings.NewReplacer("%2e", ".", "%2E", ".", "%2f", "/", "%2F", "/", `\`, "/").Replace(p), "/") {
			if segment == ".." || segment == "." {
				t.Fatalf("%q passes", p)
			}
		}
	})
}

// FuzzProxied holds that a proxied path names one place and a plain path in it.
func FuzzProxied(f *testing.F) {
	for _, seed := range []string{
		"0/run_01J9Z6AAAAAAAAAAAAAAAAAAAA/artifacts/a/b", "0/models/m_01J9Z6AAAAAAAAAAAAAAAAAAAA/artifacts", "registry/delay/1/x", "registry/../1/x",
		"0/run_01J9Z6AAAAAAAAAAAAAAAAAAAA/artifacts/../x", "x", "",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, p string) {
		got, err := parseProxied(p)
		if err != nil {
			return
		}
		if (got.model != "") == (got.place.ID() != "") || strings.Contains("/"+got.path+"/", "/../") || strings.ContainsAny(got.path+got.model, "\\\x00#?") {
			t.Fatalf("%q became %+v", p, got)
		}
	})
}
