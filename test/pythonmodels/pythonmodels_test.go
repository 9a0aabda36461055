// Package pythonmodels serves models that are no ONNX file with the built binary, in the
// sandbox and in an environment: what they answer, what they cannot reach, and what is
// left when they misbehave.
package pythonmodels

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	"github.com/falaj-ml/falaj/client"
	"github.com/falaj-ml/falaj/internal/serving/inference"
	"github.com/falaj-ml/falaj/test/live"
)

// world is a server with an environment that is built.
type world struct {
	*live.Project
	calls string // address of gRPC
}

const environment = "{api_version: falaj/v1, kind: Environment, name: %s, project: PROJECT, spec: {python: /usr/bin/python3.11, site_packages: true, requirements: []}}"

// actsManifest deploys the model that does what its requests say.
const actsManifest = `{api_version: falaj/v1, kind: Deployment, name: acts, project: PROJECT, spec: {model: acts, version: "1", runtime: {memory: 512MiB, python: {environment: py}}}}`

func TestPythonModels(t *testing.T) {
	if testing.Short() {
		t.Skip("runs a real server")
	}
	for _, packages := range []string{"numpy", "sklearn"} {
		if _, err := os.Stat("/usr/lib/python3/dist-packages/" + packages); err != nil {
			live.Absent(t, "the machine's Python has no %s; run `make engines`", packages)
		}
	}
	s := live.New(t, "")
	w := &world{}
	w.calls, _ = live.Address(t)
	s.Args, s.Env = []string{"--grpc", w.calls}, append(s.Env, "FALAJ_SERVING_LOAD_TIMEOUT=2m")
	s.Up(t)
	w.Project = s.Project(t, "snakes")

	// Deployed together with its environment, a model waits for it.
	w.register("acts", "testdata/predict.py", map[string]string{"weights/w.txt": "1 10"})
	w.Apply(fmt.Sprintf(environment, "py") + `
---
` + actsManifest)
	var d client.Object
	w.Must(w.C.Do(t.Context(), http.MethodGet, w.Path("deployments/acts"), nil, &d))
	if state, reason := d.Text("state"), d.Text("reason"); state != "ready" && (state != "loading" || !strings.Contains(reason, "environment py is being built")) {
		t.Errorf("%s: %s", state, reason)
	}
	w.ready("acts")
	said := w.Run(0, "describe", "deployment", "acts")
	if !strings.Contains(said, "py@sha256:") {
		t.Errorf("the environment is not in\n%s", said)
	}

	for _, part := range []struct {
		name string
		test func(*world)
	}{
		{"answers", answers}, {"estimator", estimator}, {"rollout", rollout}, {"confined", confined}, {"abuse", abuse}, {"killed", killed}, {"lite", lite}, {"refused", refused}, {"gone", gone},
	} {
		t.Run(part.name, func(t *testing.T) {
			p := *w.Project
			p.T = t
			part.test(&world{&p, w.calls})
		})
	}
}

// register makes a version of a model of a predict.py and other files.
func (w *world) register(name, predict string, files map[string]string) {
	w.T.Helper()
	if predict != "" {
		b, err := os.ReadFile(predict)
		w.Must(err)
		files["predict.py"] = string(b)
	}
	err := w.Foreign(w.C, http.MethodPost, "/api/2.0/mlflow/registered-models/create", map[string]any{"name": name}, nil)
	if err != nil && !strings.Contains(err.Error(), "already exists") {
		w.Must(err)
	}
	var run client.Object
	w.Must(w.Foreign(w.C, http.MethodPost, "/api/2.0/mlflow/runs/create", map[string]any{"experiment_id": "0"}, &run))
	id := run.Text("run.info.run_id")
	for file, text := range files {
		w.Must(w.Foreign(w.C, http.MethodPut, "/api/2.0/mlflow-artifacts/artifacts/0/"+id+"/artifacts/model/"+file, bytes.NewReader([]byte(text)), nil))
	}
	w.Must(w.Foreign(w.C, http.MethodPost, "/api/2.0/mlflow/model-versions/create", map[string]any{"name": name, "source": "runs:/" + id + "/model", "run_id": id}, nil))
}

func (w *world) ready(name string) {
	w.T.Helper()
	w.Eventually(name+" is not ready", func() (bool, error) {
		var d client.Object
		err := w.C.Do(w.T.Context(), http.MethodGet, w.Path("deployments/"+name), nil, &d)
		if err == nil && d.Text("state") != "ready" {
			err = errors.New(d.Text("state") + ": " + d.Text("reason"))
		}
		return err == nil, err
	})
}

// act has the model do something, and gives what it said.
func (w *world) act(act string) (string, error) {
	a, err := w.Infer(w.C, "acts", nil, live.Tensor("x", "FP32", []float32{1, 2}, 1, 2), live.Tensor("act", "BYTES", []string{act}, 1))
	if err != nil {
		return "", err
	}
	return fmt.Sprint(a.Outputs[1].Data[0]), nil
}

func answers(w *world) {
	t := w.T
	a, err := w.Infer(w.C, "acts", nil, live.Tensor("x", "FP32", []float32{1, 2, 3, 4}, 2, 2), live.Tensor("act", "BYTES", []string{"", ""}, 2))
	w.Must(err)
	if got := fmt.Sprint(a.Outputs[0].Data, a.Outputs[1].Data); got != "[21 43] [done done]" {
		t.Error(got)
	}
	_, err = w.Infer(w.C, "acts", nil, live.Tensor("x", "FP64", []float64{1, 2}, 1, 2), live.Tensor("act", "BYTES", []string{""}, 1))
	w.fails("datatype", err, 400, "the model needs FP32")
	_, err = w.act("raise")
	w.fails("an exception", err, 400, "AttributeError: 'numpy.ndarray' object has no attribute 'nothing'")
	if said, err := w.act("environ"); err != nil || !strings.Contains(said, "threads 1") || strings.Contains(said, "TOKEN") {
		t.Error(said, err)
	}
}

// fails expects an error with a status.
func (w *world) fails(what string, err error, status int, says string) {
	w.T.Helper()
	e, ok := errors.AsType[*client.Error](err)
	if !ok || e.Status != status || !strings.Contains(fmt.Sprint(e, e.Hint), says) {
		w.T.Errorf("%s: %v, want status %d and %q", what, err, status, says)
	}
}

// estimator: a pipeline that a job trained answers as scikit-learn did, in the
// environment that made it, by both protocols.
func estimator(w *world) {
	t := w.T
	program, err := os.ReadFile("testdata/train.py")
	w.Must(err)
	job := w.Apply(`{api_version: falaj/v1, kind: Job, name: train, project: PROJECT, spec: {environment: py, source: "` + w.Source("train.py", program) + `", register: late, command: [python, train.py]}}`)
	w.Ends(job[0].ID, "succeeded")
	var want struct {
		X, Probabilities []float64
		Label            []string
	}
	for line := range strings.Lines(w.Run(0, "job", "logs", job[0].ID)) {
		if _, said, ok := strings.Cut(line, "RESULT "); ok {
			w.Must(json.Unmarshal([]byte(said), &want))
		}
	}
	w.Apply(`{api_version: falaj/v1, kind: Deployment, name: late, project: PROJECT, spec: {model: late, version: "1", runtime: {python: {processes: 2}}}}`)
	w.ready("late")
	var d client.Object
	w.Must(w.C.Do(t.Context(), http.MethodGet, w.Path("deployments/late"), nil, &d))
	if targets, _ := json.Marshal(d["targets"]); !strings.Contains(string(targets), `"batching":true`) {
		t.Errorf("its requests do not run together: %s", targets)
	}
	n := len(want.Label)
	// MLflow's protocol answers labels, as MLflow's server does.
	rows := make([][]float64, n)
	for i := range rows {
		rows[i] = want.X[3*i : 3*i+3]
	}
	var scored struct{ Predictions []string }
	w.Must(w.Foreign(w.C, http.MethodPost, "/endpoints/late/invocations", map[string]any{"instances": rows}, &scored))
	if !slices.Equal(scored.Predictions, want.Label) {
		t.Errorf("MLflow's protocol says %v, and scikit-learn %v", scored.Predictions, want.Label)
	}
	a, err := w.Infer(w.C, "late", nil, live.Tensor("X", "FP64", want.X, n, 3))
	w.Must(err)
	for i, label := range want.Label {
		if got := fmt.Sprint(a.Outputs[0].Data[i]); got != label {
			t.Errorf("row %d is %s, and scikit-learn says %s", i, got, label)
		}
	}
	near := func(protocol string, got []float64) {
		for i, p := range want.Probabilities {
			if len(got) != len(want.Probabilities) || math.Abs(got[i]-p) > 1e-12 {
				t.Fatalf("%s: %v, and scikit-learn says %v", protocol, got, want.Probabilities)
			}
		}
	}
	var got []float64
	for _, v := range a.Outputs[1].Data {
		f, err := v.(json.Number).Float64()
		w.Must(err)
		got = append(got, f)
	}
	near("HTTP", got)

	conn, err := grpc.NewClient(w.calls, grpc.WithTransportCredentials(insecure.NewCredentials()))
	w.Must(err)
	defer conn.Close()
	var token client.Object
	w.Must(w.C.Do(t.Context(), http.MethodPost, "/api/v1/tokens", map[string]any{"project": w.Name, "name": "caller", "role": "engineer", "expires_in": "1h"}, &token))
	ctx := metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+token.Text("secret"))
	var out inference.ModelInferResponse
	w.Must(conn.Invoke(ctx, "/inference.GRPCInferenceService/ModelInfer", &inference.ModelInferRequest{
		ModelName: "late", Outputs: []*inference.ModelInferRequest_InferRequestedOutputTensor{{Name: "probabilities"}},
		Inputs: []*inference.ModelInferRequest_InferInputTensor{{Name: "X", Datatype: "FP64", Shape: []int64{int64(n), 3}, Contents: &inference.InferTensorContents{Fp64Contents: want.X}}},
	}, &out))
	got = got[:0]
	if raw := out.GetRawOutputContents(); len(raw) == 1 {
		for i := 0; i+8 <= len(raw[0]); i += 8 {
			got = append(got, math.Float64frombits(uint64(raw[0][i])|uint64(raw[0][i+1])<<8|uint64(raw[0][i+2])<<16|uint64(raw[0][i+3])<<24|uint64(raw[0][i+4])<<32|uint64(raw[0][i+5])<<40|uint64(raw[0][i+6])<<48|uint64(raw[0][i+7])<<56))
		}
	} else {
		got = out.GetOutputs()[0].GetContents().GetFp64Contents()
	}
	near("gRPC", got)

	// A dataset is answered by a job, which runs ONNX only: it says so.
	if said := w.Run(1, "predict", "--deployment", "late", "--dataset", "none", "--into", "other"); !strings.Contains(said, "Python model") {
		t.Error(said)
	}
}

// rollout: another version of a Python model is tried, and promoted, like any.
func rollout(w *world) {
	w.register("acts", "testdata/predict.py", map[string]string{"weights/w.txt": "2 20"})
	w.Run(0, "deploy", "canary", "acts", "--version", "2", "--weight", "50")
	seen := map[string]bool{}
	w.Eventually("only one version answers", func() (bool, error) {
		a, err := w.Infer(w.C, "acts", nil, live.Tensor("x", "FP32", []float32{1, 2}, 1, 2), live.Tensor("act", "BYTES", []string{""}, 1))
		w.Must(err)
		if got, want := fmt.Sprint(a.Outputs[0].Data), map[string]string{"1": "[21]", "2": "[42]"}[a.Version]; got != want {
			w.T.Errorf("version %s says %s, want %s", a.Version, got, want)
		}
		seen[a.Version] = true
		return len(seen) == 2, nil
	})
	w.Run(0, "deploy", "promote", "acts")
	w.ready("acts")
	a, err := w.Infer(w.C, "acts", nil, live.Tensor("x", "FP32", []float32{1, 2}, 1, 2), live.Tensor("act", "BYTES", []string{""}, 1))
	w.Must(err)
	if got := fmt.Sprint(a.Version, a.Outputs[0].Data); got != "2[42]" && got != "2 [42]" {
		w.T.Error(got)
	}
	w.Run(0, "deploy", "rollback", "acts")
	w.ready("acts")
}

// confined: a model reaches nothing but its environment and its own files, which it
// cannot change.
func confined(w *world) {
	t := w.T
	models, err := filepath.Glob(filepath.Join(w.Data, "tmp", "models", "*"))
	if err != nil || len(models) < 1 {
		t.Fatal(models, err)
	}
	for act, want := range map[string]string{
		"read " + filepath.Join(w.Data, "master.key"):     "FileNotFoundError",
		"read " + filepath.Join(w.Data, "falaj.db"):       "FileNotFoundError",
		"read /etc/shadow":                                "Error",
		"connect " + strings.TrimPrefix(w.URL, "http://"): "Error",
		"connect " + w.calls:                              "Error",
		"write " + models[0] + "/predict.py":              "Error",
		"write " + models[0] + "/new":                     "Error",
		"write /usr/x":                                    "Error",
	} {
		said, err := w.act(act)
		if err != nil || !strings.Contains(said, want) {
			t.Errorf("%s: %s, %v", act, said, err)
		}
	}
	// What the sandbox has as /etc/passwd is its own.
	host, err := os.ReadFile("/etc/passwd")
	w.Must(err)
	if said, err := w.act("read /etc/passwd"); err != nil || said == string(host) {
		t.Errorf("it read the host's users: %v", err)
	}
	if said, err := w.act("list " + w.Data); err != nil || strings.Contains(said, "falaj.db") || strings.Contains(said, "master") {
		t.Errorf("it sees in the data directory: %s, %v", said, err)
	}
}

// abuse: whatever a model does, its request has an error or an answer, the server and the
// other models go on, and it is there again.
func abuse(w *world) {
	t, aside := w.T, 0
	for _, c := range []struct {
		act      string
		statuses []int // none: it is answered
		either   bool  // or it is answered
	}{
		{"print", nil, false},
		{"abort", []int{503}, false},
		{"speak", []int{503}, false},
		{"fill", []int{503}, false},
		{"fork", []int{503}, true},
		{"sleep", []int{504}, false},
	} {
		began := time.Now()
		said, err := w.act(c.act)
		e, failed := errors.AsType[*client.Error](err)
		switch {
		case len(c.statuses) == 0 && err != nil, len(c.statuses) > 0 && !c.either && !failed:
			t.Errorf("%s: %.100s, %v", c.act, said, err)
		case failed && !slices.Contains(c.statuses, e.Status):
			t.Errorf("%s: status %d, %v", c.act, e.Status, err)
		}
		t.Logf("%s: %.60s %v after %s", c.act, said, err, time.Since(began).Round(time.Millisecond))
		if _, err := w.Infer(w.C, "late", nil, live.Tensor("X", "FP64", []float64{1, 2, 3}, 1, 3)); err != nil {
			t.Errorf("another model after %s: %v", c.act, err)
		}
		w.Eventually("it is not back after "+c.act, func() (bool, error) {
			var d client.Object
			w.Must(w.C.Do(t.Context(), http.MethodGet, w.Path("deployments/acts"), nil, &d))
			if strings.Contains(d.Text("reason"), "set aside") { // after three deaths: a person tries it again
				aside++
				w.Apply(actsManifest)
			}
			said, err := w.act("")
			return said == "done", err
		})
	}
	if aside == 0 {
		t.Error("it was not set aside")
	}
}

// workers are the Python processes of models.
func (w *world) workers() (pids []int) {
	for _, p := range w.Processes() {
		if strings.Contains(p.Line, "-I -B -c") && strings.Contains(p.Line, filepath.Join(w.Data, "tmp", "models")) {
			pids = append(pids, p.PID)
		}
	}
	return pids
}

// killed: who kills a worker under load takes the requests that it had, and no others;
// none is answered with what another one asked.
func killed(w *world) {
	t := w.T
	w.Run(0, "delete", "deployment", "acts") // what it did before is not counted
	w.Apply(actsManifest)
	w.ready("acts")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var asking sync.WaitGroup
	var answered, lost atomic.Int64
	for g := range 4 {
		asking.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				v := float32(1000*g + i%1000)
				a, err := w.Infer(w.C, "acts", nil, live.Tensor("x", "FP32", []float32{v, 0}, 1, 2), live.Tensor("act", "BYTES", []string{"pause"}, 1))
				e, failed := errors.AsType[*client.Error](err)
				switch {
				case err == nil && fmt.Sprint(a.Outputs[0].Data[0]) != fmt.Sprint(v):
					t.Errorf("%v is answered by %v", v, a.Outputs[0].Data)
				case err == nil:
					answered.Add(1)
				case failed && e.Status == 503:
					lost.Add(1)
				default:
					t.Errorf("%v: %v", v, err)
				}
			}
		})
	}
	more := func() {
		n := answered.Load()
		w.Eventually("nothing is answered", func() (bool, error) { return answered.Load() > n+5, nil })
	}
	more()
	for range 2 { // the third time they would be set aside
		pids := w.workers()
		if len(pids) == 0 {
			t.Fatal("there is no worker")
		}
		for _, pid := range pids {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		more()
	}
	cancel()
	asking.Wait()
	if lost.Load() == 0 {
		t.Error("nobody noticed that all workers were killed")
	}
	t.Logf("%d answered, %d lost", answered.Load(), lost.Load())
	w.ready("late")
}

// lite: a TensorFlow Lite file, in an environment of packages from the index, answers any
// number of rows.
func lite(w *world) {
	t := w.T
	w.Apply("{api_version: falaj/v1, kind: Environment, name: lite, project: PROJECT, spec: {python: /usr/bin/python3.11, requirements: [ai-edge-litert==2.3.0, numpy==2.4.6]}}")
	w.Run(0, "env", "wait", "lite")
	b, err := os.ReadFile("testdata/lite.tflite")
	w.Must(err)
	w.register("line", "", map[string]string{"model.tflite": string(b)})
	w.Apply(`{api_version: falaj/v1, kind: Deployment, name: line, project: PROJECT, spec: {model: line, version: "1", runtime: {python: {environment: lite}}}}`)
	for _, c := range []struct {
		x    []float32
		want string
	}{{[]float32{1, 1, 1}, "[6.5 59.5]"}, {[]float32{1, 0, 0, 0, 0, 1}, "[1.5 9.5 3.5 29.5]"}, {[]float32{1, 1, 1}, "[6.5 59.5]"}} {
		a, err := w.Infer(w.C, "line", nil, live.Tensor("x", "FP32", c.x, len(c.x)/3, 3))
		w.Must(err)
		if got := fmt.Sprint(a.Outputs[0].Data); got != c.want {
			t.Errorf("%v is answered by %s, want %s", c.x, got, c.want)
		}
	}
	w.Run(0, "delete", "deployment", "line")
	b, err = os.ReadFile("testdata/pool.tflite") // of any sizes, of which those of the output are not in the file
	w.Must(err)
	w.register("pool", "", map[string]string{"model.tflite": string(b)})
	w.Apply(`{api_version: falaj/v1, kind: Deployment, name: pool, project: PROJECT, spec: {model: pool, version: "1", runtime: {python: {environment: lite}}}}`)
	for _, c := range []struct {
		rows, height int
		want         string
	}{{2, 3, "[1.5 3.5 7.5 9.5]"}, {1, 2, "[1.5]"}, {3, 2, "[1.5 5.5 9.5]"}} {
		x := make([]float32, c.rows*c.height*2)
		for i := range x {
			x[i] = float32(i)
		}
		a, err := w.Infer(w.C, "pool", nil, live.Tensor("x", "FP32", x, c.rows, c.height, 2, 1))
		w.Must(err)
		if got := fmt.Sprint(a.Outputs[0].Data); got != c.want {
			t.Errorf("%d rows of %d are answered by %s, want %s", c.rows, c.height, got, c.want)
		}
	}
	w.Run(0, "delete", "deployment", "pool")
}

// refused: what cannot be deployed says why, and what to do.
func refused(w *world) {
	t := w.T
	w.register("silent", "", map[string]string{"predict.py": "def load(path): pass\ndef predict(model, inputs): pass\n"})
	w.register("other", "", map[string]string{"weights.bin": "x"})
	for spec, says := range map[string]string{
		`{model: acts, version: "1"}`:                                                              "spec.runtime.python.environment",
		`{model: acts, version: "1", runtime: {python: {environment: nope}}}`:                      "nope",
		`{model: acts, version: "1", runtime: {python: {environment: py, processes: 63}}}`:         "cores",
		`{model: acts, version: "1", runtime: {isolation: in-process, python: {environment: py}}}`: "do not support in-process",
		`{model: silent, version: "1", runtime: {python: {environment: py}}}`:                      "falaj.json",
		`{model: other, version: "1", runtime: {python: {environment: py}}}`:                       "model.onnx",
		`{model: acts, version: "1", runtime: {memory: 64MiB, python: {environment: py}}}`:         "less than the minimum",
	} {
		_, err := w.Try(w.C, "{api_version: falaj/v1, kind: Deployment, name: no, project: PROJECT, spec: "+spec+"}")
		e, ok := errors.AsType[*client.Error](err)
		if !ok || e.Status >= 500 || !strings.Contains(fmt.Sprint(e, e.Hint), says) {
			t.Errorf("%s: %v", spec, err)
		}
	}
}

// gone: a server that was killed leaves files, which the next one removes before it loads
// the models again; nothing is left of what is not deployed any more.
func gone(w *world) {
	dir := filepath.Join(w.Data, "tmp", "models")
	var before []os.DirEntry
	w.Eventually("there are others than two models' files", func() (bool, error) {
		var err error
		before, err = os.ReadDir(dir)
		return len(before) == 2, err
	})
	w.Must(w.Kill())
	w.Again()
	w.Loaded()
	if said, err := w.act(""); said != "done" {
		w.T.Errorf("after a restart: %q, %v", said, err)
	}
	after, err := os.ReadDir(dir)
	w.Must(err)
	if len(after) != 2 || slices.ContainsFunc(after, func(e os.DirEntry) bool { return e.Name() == before[0].Name() || e.Name() == before[1].Name() }) {
		w.T.Errorf("%v before and %v after", before, after)
	}
	w.Run(0, "delete", "deployment", "acts")
	w.Run(0, "delete", "deployment", "late")
	w.Eventually("something is left", func() (bool, error) {
		left, err := os.ReadDir(dir)
		return err == nil && len(left) == 0 && len(w.workers()) == 0, fmt.Errorf("%v %v %w", left, w.workers(), err)
	})
}
