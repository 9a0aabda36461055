package labels

import (
	"net/http"
	"strings"
	"testing"

	"github.com/falaj-ml/falaj/client"
	"github.com/falaj-ml/falaj/test/live"
)

// TestFeaturesClassifyWhatIsSeen: the model is of nothing in particular, but what
// it sees is confidential, and so are labels and windows of it.
func TestFeaturesClassifyWhatIsSeen(t *testing.T) {
	w := deployed(t, strings.Replace(live.Weather, "classification: internal", "classification: confidential", 1), 1)
	ctx := t.Context()
	if s, err := w.C.DeploymentStatus(ctx, "nyc", "delay"); err != nil || s.Text("deployment.state") != "ready" || s.Text("deployment.classification") == "confidential" {
		t.Fatalf("%v, %v", s, err)
	}

	w.Must(w.C.Do(ctx, http.MethodPost, "/api/v1/projects/nyc/deployments/delay/labels", map[string]any{
		"labels": []any{map[string]any{"id": w.ask(1), "value": 1}},
	}, nil))
	var entries client.Object
	w.Eventually("the label is not in the audit log", func() (bool, error) {
		err := w.C.Do(ctx, http.MethodGet, "/api/v1/audit?project=nyc&action=label.write", nil, &entries)
		return err == nil && strings.Contains(entries.Text("items"), "label.write"), err
	})
	if !strings.Contains(entries.Text("items"), "confidential") {
		t.Errorf("%s", entries.Text("items"))
	}
}
