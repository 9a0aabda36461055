// Package approvals has people register, approve of and promote versions with the built
// binary, tries to get around what is asked of them, and kills the server in between.
package approvals

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/falaj-ml/falaj/client"
	"github.com/falaj-ml/falaj/test/live"
)

const policy = `{api_version: falaj/v1, kind: ModelPolicy, name: default, project: PROJECT, spec: {promotion: {approvals: 2, gates: ["metrics.auc >= 0.8"]}}}`

const deployment = `{api_version: falaj/v1, kind: Deployment, name: delay, project: PROJECT, spec: {model: delay, version: "VERSION", rollout: {weight: 50}}}`

type world struct {
	*live.Project
	alice, bob *client.Client
	tokens     map[string]string
}

// person makes somebody with a role.
func (w *world) person(name, role string) *client.Client {
	w.T.Helper()
	var made client.Object
	w.Must(json.Unmarshal([]byte(w.Run(0, "token", "create", "--user", name, "--role", role, "-o", "json")), &made))
	w.tokens[name] = made.Text("secret")
	return w.ClientWith(w.T, w.tokens[name])
}

// registers makes a version as somebody does with MLflow's client.
func (w *world) registers(c *client.Client, auc float64, file string, body []byte) error {
	w.T.Helper()
	var run client.Object
	w.Must(w.Foreign(c, http.MethodPost, "/api/2.0/mlflow/runs/create", map[string]any{"experiment_id": "0"}, &run))
	id := run.Text("run.info.run_id")
	w.Must(w.Foreign(c, http.MethodPost, "/api/2.0/mlflow/runs/log-metric", map[string]any{"run_id": id, "key": "auc", "value": auc, "timestamp": 1}, nil))
	w.Must(w.Foreign(c, http.MethodPut, "/api/2.0/mlflow-artifacts/artifacts/0/"+id+"/artifacts/model/"+file, bytes.NewReader(body), nil))
	return w.Foreign(c, http.MethodPost, "/api/2.0/mlflow/model-versions/create", map[string]any{"name": "delay", "source": "runs:/" + id + "/model", "run_id": id}, nil)
}

func (w *world) refused(what string, err error, text string) {
	w.T.Helper()
	if err == nil || !strings.Contains(err.Error(), text) {
		w.T.Errorf("%s: %v, want %q", what, err, text)
	}
}

func (w *world) judge(c *client.Client, version int, verdict string) error {
	return c.Do(w.T.Context(), http.MethodPost, w.Path("models/delay/versions/"+strconv.Itoa(version)+"/approvals"), map[string]any{"verdict": verdict}, nil)
}

func (w *world) deploy(version string) error {
	_, err := w.Try(w.C, strings.ReplaceAll(deployment, "VERSION", version))
	return err
}

func TestApprovals(t *testing.T) {
	if testing.Short() {
		t.Skip("runs a real server")
	}
	s := live.New(t, "")
	s.Up(t)
	w := &world{Project: s.Project(t, "nyc"), tokens: map[string]string{}}
	w.alice, w.bob = w.person("alice", "engineer"), w.person("bob", "deployer")
	w.Apply(policy)
	w.Must(w.Foreign(w.alice, http.MethodPost, "/api/2.0/mlflow/registered-models/create", map[string]any{"name": "delay"}, nil))
	w.Must(w.registers(w.alice, 0.9, "model.onnx", w.Logistic()))
	w.refused("a pickle under another name", w.registers(w.alice, 0.9, "model.onnx", []byte("\x80\x04\x8c\x05posix\x8c\x06system\x93\x8c\x04true\x85R.")), "model.onnx: imports posix.system")
	w.Must(w.registers(w.alice, 0.7, "model.onnx", w.Logistic())) // version 3, not good enough

	// Nobody gets around it, by whichever way.
	ctx := t.Context()
	none := "it requires 2 approvals and has 0"
	tag := func(c *client.Client, version string) error {
		return w.Foreign(c, http.MethodPost, "/api/2.0/mlflow/registered-models/alias", map[string]any{"name": "delay", "alias": "champion", "version": version}, nil)
	}
	w.refused("alias by MLflow", tag(w.bob, "1"), none)
	w.refused("alias", w.C.Do(ctx, http.MethodPut, w.Path("models/delay/aliases/champion"), map[string]any{"version": "1"}, nil), none)
	w.refused("stage by MLflow", w.Foreign(w.bob, http.MethodPost, "/api/2.0/mlflow/model-versions/transition-stage", map[string]any{"name": "delay", "version": "1", "stage": "Production"}, nil), none)
	w.refused("deployment", w.deploy("1"), none)
	w.refused("the policy by a deployer", w.bob.Do(ctx, http.MethodDelete, w.Path("model-policies/default"), nil, nil), "model.govern")

	// The author does not count, nor the same person twice.
	w.refused("an engineer", w.judge(w.alice, 1, "approved"), "model.approve")
	w.Must(w.judge(w.bob, 1, "approved"))
	w.refused("bob again", w.judge(w.bob, 1, "approved"), "already")
	w.refused("with one", w.deploy("1"), "it requires 2 approvals and has 1 (by bob)")
	w.Must(s.Kill())
	w.Again()
	w.bob = w.ClientWith(t, w.tokens["bob"])
	if out := w.Run(0, "model", "approvals", "delay", "1"); !strings.Contains(out, "cannot be promoted yet (policy default)") || !strings.Contains(out, "approved by bob") {
		t.Error(out)
	}
	if out := w.Run(0, "model", "approve", "delay", "1", "--comment", "looks right"); !strings.Contains(out, "can be promoted (policy default, 2 of 2 approvals)") {
		t.Error(out)
	}
	w.Must(tag(w.bob, "1"))
	w.Must(w.deploy("1"))
	w.Loaded()

	// People alone are not enough.
	w.Must(w.judge(w.bob, 3, "approved"))
	w.Run(0, "model", "approve", "delay", "3")
	w.refused("a gate", tag(w.bob, "3"), "metrics.auc >= 0.8: auc is 0.7")
	w.refused("a canary", w.C.Do(ctx, http.MethodPost, w.Path("deployments/delay/canary"), map[string]any{"version": "3"}, nil), "metrics.auc >= 0.8: auc is 0.7")

	// A version that has all of it is tried and promoted. What the policy asks later holds
	// for what comes later: the way back stays open.
	w.alice = w.ClientWith(t, w.tokens["alice"])
	w.Must(w.registers(w.alice, 0.95, "model.onnx", w.Logistic()))
	w.Must(w.judge(w.bob, 4, "approved"))
	w.Run(0, "model", "approve", "delay", "4")
	w.Run(0, "deploy", "canary", "delay", "--version", "4")
	w.Run(0, "deploy", "promote", "delay")
	w.Apply(strings.Replace(policy, "approvals: 2", "approvals: 3", 1))
	w.refused("by the new policy", w.C.Do(ctx, http.MethodPut, w.Path("models/delay/aliases/champion"), map[string]any{"version": "4"}, nil), "it requires 3 approvals and has 2")
	w.Run(0, "deploy", "rollback", "delay")
	var now client.Object
	w.Must(w.C.Do(ctx, http.MethodGet, w.Path("deployments/delay"), nil, &now))
	if now.Text("version") != "1" {
		t.Errorf("after the rollback %v", now)
	}
	var audit client.Object
	w.Must(w.C.Do(ctx, http.MethodGet, "/api/v1/audit?project=nyc&action=model.approve", nil, &audit))
	if entries, _ := audit["items"].([]any); len(entries) < 6 {
		t.Errorf("%d entries in the audit log", len(entries))
	}
}

// TestWrittenDown: contents, card, bill of materials, and the folder that the tool of
// model signing verifies.
func TestWrittenDown(t *testing.T) {
	if testing.Short() {
		t.Skip("runs a real server")
	}
	s := live.New(t, "")
	s.Up(t)
	w := &world{Project: s.Project(t, "nyc"), tokens: map[string]string{}}
	w.Must(w.Foreign(w.C, http.MethodPost, "/api/2.0/mlflow/registered-models/create", map[string]any{"name": "delay"}, nil))
	w.Must(w.registers(w.C, 0.9, "model.pkl", []byte("\x80\x02cnyc.model\nDelay\n)\x81.")))
	w.Must(w.Foreign(w.C, http.MethodPost, "/api/2.0/mlflow/registered-models/set-tag", map[string]any{"name": "delay", "key": "license", "value": "Apache-2.0"}, nil))
	for _, test := range []struct {
		args string
		want []string
	}{
		{"model content delay 1", []string{"unknown: 1 files scanned", "model.pkl", "imports nyc.model.Delay"}},
		{"model card delay 1", []string{"# delay version 1", "| auc | 0.9 |", "license: \"apache-2.0\""}},
		{"model card delay 1 -o json", []string{`"license": "Apache-2.0"`}},
		{"model bom delay 1", []string{`"specVersion": "1.6"`, `"machine-learning-model"`, "nyc.model.Delay", `"id": "Apache-2.0"`}},
		{"model versions delay", []string{"CONTENT", "unknown"}},
		{"model approvals delay 1", []string{"no policy applies"}},
		{"get model-policies", []string{"NAME"}},
	} {
		out := w.Run(0, strings.Fields(test.args)...)
		for _, want := range test.want {
			if !strings.Contains(out, want) {
				t.Errorf("%s: no %q in\n%s", test.args, want, out)
			}
		}
	}
	// A copy comes from its original, and the original is known to have been copied.
	w.Must(w.Foreign(w.C, http.MethodPost, "/api/2.0/mlflow/registered-models/create", map[string]any{"name": "late"}, nil))
	w.Must(w.Foreign(w.C, http.MethodPost, "/api/2.0/mlflow/model-versions/create", map[string]any{"name": "late", "source": "models:/delay/1"}, nil))
	for args, want := range map[string]string{"lineage late@1 --kind model --up": "model delay@1", "lineage delay@1 --kind model --down": "model late@1", "model bom late 1": `"parent:delay@1"`} {
		if out := w.Run(0, strings.Fields(args)...); !strings.Contains(out, want) {
			t.Errorf("%s: no %q in\n%s", args, want, out)
		}
	}
	dir := filepath.Join(t.TempDir(), "delay")
	w.Run(0, "model", "export", "delay", "1", dir)
	w.Run(1, "model", "export", "delay", "1", dir)                                                             // it exists
	w.Run(0, "model", "verify", "delay", "1", "--signature", dir+"/model.sig", "--public-key", dir+"/key.pub") // ours is of that form
	python := filepath.Join(s.Bin.Root, ".tmp/venv/model-signing/bin/python")
	if _, err := os.Stat(python); err != nil {
		live.Absent(t, "model-signing is not installed: make engines")
	}
	verify := func() error {
		ctx, cancel := context.WithTimeout(t.Context(), live.Wait)
		defer cancel()
		return exec.CommandContext(ctx, python, "-m", "model_signing", "verify", "key", "--signature", dir+"/model.sig", "--public_key", dir+"/key.pub", dir+"/model").Run()
	}
	w.Must(verify())
	w.Must(os.WriteFile(dir+"/model/model.pkl", []byte("N."), 0o600))
	if verify() == nil {
		t.Error("a changed file passes")
	}
}
