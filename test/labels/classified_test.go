package labels

import (
	"bytes"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/falaj-ml/falaj/client"
	"github.com/falaj-ml/falaj/test/live"
)

// TestFeaturesClassifyWhatIsSeen: the model is of nothing in particular, but what
// it sees is confidential, and so are labels and windows of it.
func TestFeaturesClassifyWhatIsSeen(t *testing.T) {
	if testing.Short() {
		t.Skip("runs a real server")
	}
	w := &world{Server: live.New(t, ""), t: t}
	model, err := os.ReadFile(filepath.Join(w.Bin.Root, "internal/serving/runtime/onnx/testdata/logistic.onnx"))
	w.must(err)
	w.start()
	ctx := t.Context()
	w.apply(strings.Replace(manifests, "classification: internal", "classification: confidential", 1))
	_, err = w.c.Import(ctx, "nyc", "weather", "weather.csv", strings.NewReader(weather()))
	w.must(err)
	w.apply(features)
	w.must(w.c.Do(ctx, http.MethodPost, "/api/v1/projects/nyc/feature-views/weather/materialise", map[string]any{"wait": "30s"}, nil))
	w.must(w.foreign(http.MethodPost, "/api/2.0/mlflow/registered-models/create", map[string]any{"name": "delay"}, nil))
	var run struct {
		Run struct {
			Info struct {
				ID string `json:"run_id"`
			} `json:"info"`
		} `json:"run"`
	}
	w.must(w.foreign(http.MethodPost, "/api/2.0/mlflow/runs/create", map[string]any{"experiment_id": "0"}, &run))
	id := run.Run.Info.ID
	w.must(w.foreign(http.MethodPut, "/api/2.0/mlflow-artifacts/artifacts/0/"+id+"/artifacts/model/model.onnx", bytes.NewReader(model), nil))
	w.must(w.foreign(http.MethodPost, "/api/2.0/mlflow/model-versions/create", map[string]any{"name": "delay", "source": "runs:/" + id + "/model", "run_id": id}, nil))
	w.must(w.c.Do(ctx, http.MethodPut, "/api/v1/projects/nyc/models/delay/aliases/champion", map[string]any{"version": "1"}, nil))
	w.apply(deployment)
	if s, err := w.c.DeploymentStatus(ctx, "nyc", "delay"); err != nil || s.Text("deployment.state") != "ready" || s.Text("deployment.classification") == "confidential" {
		t.Fatalf("%v, %v", s, err)
	}

	w.must(w.c.Do(ctx, http.MethodPost, "/api/v1/projects/nyc/deployments/delay/labels", map[string]any{
		"labels": []any{map[string]any{"id": w.ask(1), "value": 1}},
	}, nil))
	var entries client.Object
	w.eventually("the label is not in the audit log", func() (bool, error) {
		err := w.c.Do(ctx, http.MethodGet, "/api/v1/audit?project=nyc&action=label.write", nil, &entries)
		return err == nil && strings.Contains(entries.Text("items"), "label.write"), err
	})
	if !strings.Contains(entries.Text("items"), "confidential") {
		t.Errorf("%s", entries.Text("items"))
	}
}
