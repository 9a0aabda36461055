package mlflow

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/falaj-ml/falaj/internal/fault"
)

// TestIntegers: an integer may be a text, as R's client sends it, and is exact or refused.
func TestIntegers(t *testing.T) {
	for text, want := range map[string]int64{
		"5": 5, "-7": -7, `"5"`: 5, `"1e+05"`: 100_000, "1e+05": 100_000, `"1.5E1"`: 15, "8.0": 8, `"9223372036854775807"`: 1<<63 - 1, `"1700000000000"`: 1_700_000_000_000, "9007199254740991.0": 1<<53 - 1,
	} {
		q := new(logMetric)
		body := `{"run_id":"r","key":"k","value":1,"timestamp":1,"step":` + text + `}`
		if err := decodeRequest(httptest.NewRequest(http.MethodPost, "/", strings.NewReader(body)), q); err != nil || q.Step != want {
			t.Errorf("%s: %d %v, want %d", text, q.Step, err, want)
		}
	}
	for _, text := range []string{"8.5", `"8.5"`, `"1e-1"`, `"x"`, `""`, `" 5"`, `"5 "`, `"0x10"`, `"1e400"`, `"1e30"`, "9007199254740993.0", "9007199254740992.0", `"Infinity"`, "true", "[]", `"1_000"`, `"+5e0"`} {
		q := new(logMetric)
		body := `{"run_id":"r","key":"k","value":1,"timestamp":1,"step":` + text + `}`
		if err := decodeRequest(httptest.NewRequest(http.MethodPost, "/", strings.NewReader(body)), q); !fault.Is(err, fault.Invalid) {
			t.Errorf("%s: %d %v", text, q.Step, err)
		}
	}
}

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
		if (got.model != "") == (got.place.ID() != "") || strings.Contains("/"+got.path+"/", "/../") || strings.ContainsAny(got.path, "\\\x00#") || strings.ContainsAny(got.model, "/\x00") {
			t.Fatalf("%q became %+v", p, got)
		}
	})
}
