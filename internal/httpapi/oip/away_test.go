package oip

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/serving"
	"github.com/falaj-ml/falaj/internal/serving/inference"
)

// away is a model whose process is gone, and which refused a row before.
type away struct{ oneModel }

func (m away) Metadata(ctx context.Context, project, name, version string) (serving.Description, error) {
	d, err := m.oneModel.Metadata(ctx, project, name, version)
	d.Away = fault.New(fault.Unavailable, "it is started again")
	return d, err
}

func (away) Answers(context.Context, string, string, string) (why, err error) {
	return fault.New(fault.Unavailable, "it is started again"), nil
}

func (away) Infer(context.Context, serving.Request) (serving.Answer, error) {
	return serving.Answer{}, fault.New(fault.Invalid, "the model refused the input").WithData("4711 is too much")
}

// TestAway: a model that is away is known and not ready; who sent a row hears what of
// it was wrong.
func TestAway(t *testing.T) {
	api := edge(t)
	api.Serving = away{api.Serving.(oneModel)}
	mux := http.NewServeMux()
	api.Register(func(method, path, _, _ string, h http.HandlerFunc) { mux.Handle(method+" "+path, h) })
	for _, c := range []struct {
		method, path, body, want string
		status                   int
	}{
		{http.MethodGet, "/v2/models/delay", "", `"name":"delay"`, http.StatusOK},
		{http.MethodGet, "/v2/models/delay/ready", "", `{"error":"it is started again"}`, http.StatusBadRequest},
		{http.MethodPost, "/v2/models/delay/infer", `{"inputs":[{"name":"X","shape":[1,2],"datatype":"FP32","data":[1,2]}]}`, "4711 is too much", http.StatusBadRequest},
	} {
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), c.method, c.path, strings.NewReader(c.body)))
		if w.Code != c.status || !strings.Contains(w.Body.String(), c.want) {
			t.Errorf("%s %s: %d %s", c.method, c.path, w.Code, w.Body)
		}
	}
	ctx := context.WithValue(t.Context(), callKey{}, call{project: "nyc"})
	if r, err := api.callReady(ctx, &inference.ModelReadyRequest{Name: "delay"}); err != nil || r.GetReady() {
		t.Errorf("ready is %v, %v", r.GetReady(), err)
	}
}
