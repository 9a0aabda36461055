package oip

import (
	"bytes"
	"compress/gzip"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/falaj-ml/falaj/test/live"
)

// TestScoring asks a deployment whose name has capitals and a dot by MLflow's scoring
// protocol and by KServe's version 1, and finds the requests in the same statistics.
func TestScoring(t *testing.T) {
	s := live.New(t, "")
	s.Up(t)
	p := s.Project(t, "nyc")
	model, err := os.ReadFile(filepath.Join("testdata", "linear.onnx"))
	p.Must(err)
	p.Register("ResNet50.v2", model)
	p.Apply(`{api_version: falaj/v1, kind: Deployment, name: ResNet50.v2, project: PROJECT, spec: {model: ResNet50.v2, version: champion}}`)
	const want = `{"predictions":[{"y":[3,5,7],"largest":2},{"y":[3,1,1],"largest":0}]}`
	for path, body := range map[string]string{
		"/v1/models/ResNet50.v2:predict":            `{"instances": [[1, 2, 3], [1, 0, 0]]}`,
		"/v1/models/ResNet50.v2/versions/1:predict": `{"inputs": {"x": [[1, 2, 3], [1, 0, 0]]}}`,
		"/endpoints/ResNet50.v2/invocations":        `{"dataframe_split": {"columns": ["a", "b", "c"], "data": [[1, 2, 3], [1, 0, 0]]}}`,
		"/invocations":                              `{"dataframe_records": [{"a": 1, "b": 2, "c": 3}, {"a": 1, "b": 0, "c": 0}]}`,
	} {
		var packed bytes.Buffer
		z := gzip.NewWriter(&packed)
		_, err := z.Write([]byte(body))
		p.Must(err)
		p.Must(z.Close())
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.URL+path, &packed)
		p.Must(err)
		for name, value := range map[string]string{"Authorization": "Bearer " + s.Token, "Falaj-Project": p.Name, "Content-Type": "application/json", "Content-Encoding": "gzip"} {
			req.Header.Set(name, value)
		}
		resp, err := http.DefaultClient.Do(req)
		p.Must(err)
		b, err := io.ReadAll(resp.Body)
		p.Must(err)
		_ = resp.Body.Close()
		if got := strings.TrimSpace(string(b)); resp.StatusCode != http.StatusOK || got != want {
			t.Errorf("%s: %d %s", path, resp.StatusCode, got)
		}
	}
	var stats struct {
		Models []struct {
			Name  string `json:"name"`
			Count int    `json:"inference_count"`
		} `json:"model_stats"`
	}
	p.Must(p.Foreign(p.C, http.MethodGet, "/v2/models/ResNet50.v2/stats", nil, &stats))
	if len(stats.Models) != 1 || stats.Models[0].Name != "ResNet50.v2" || stats.Models[0].Count != 8 {
		t.Errorf("%+v", stats)
	}
}
