package live

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/client"
)

// Project is a project on a server that runs, with the administrator's client.
// What fails ends the test, unless it is returned.
type Project struct {
	*Server
	T    *testing.T
	C    *client.Client // of the last start
	Name string
}

// Up is Start that ends the test when it fails.
func (s *Server) Up(tb testing.TB) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), Wait)
	defer cancel()
	if err := s.Start(ctx); err != nil {
		tb.Fatal(err)
	}
}

// Project makes a project.
func (s *Server) Project(t *testing.T, name string) *Project {
	t.Helper()
	p := &Project{Server: s, T: t, C: s.Client(t), Name: name}
	p.Apply("{api_version: falaj/v1, kind: Project, name: PROJECT}")
	return p
}

// Again starts the server that was killed.
func (p *Project) Again() {
	p.T.Helper()
	p.Up(p.T)
	p.C = p.Client(p.T)
}

// Loaded waits until all deployed models are.
func (p *Project) Loaded() {
	p.T.Helper()
	p.Eventually("the models are not loaded", func() (bool, error) {
		err := p.Foreign(p.C, http.MethodGet, "/v2/health/ready", nil, nil)
		return err == nil, err
	})
}

// Must ends the test on an error.
func (p *Project) Must(err error) {
	p.T.Helper()
	if err != nil {
		p.T.Fatal(err)
	}
}

// Eventually asks again until it is so.
func (p *Project) Eventually(what string, so func() (bool, error)) {
	p.T.Helper()
	p.Within(Wait, what, so)
}

// Within asks again until it is so, for as long as d.
func (p *Project) Within(d time.Duration, what string, so func() (bool, error)) {
	p.T.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(p.T.Context()), d) // also while the test ends
	defer cancel()
	if err := Until(ctx, so); err != nil {
		p.T.Fatalf("%s: not after %s: %v", what, d, err)
	}
}

// Until asks again until it is so, or ctx ends: then it gives the last error. Its pauses
// grow with the time that it has waited, to a second, because each question takes time of
// the machine from what is waited for.
func Until(ctx context.Context, so func() (bool, error)) error {
	for began := time.Now(); ; {
		ok, err := so()
		if ok {
			return nil
		}
		pause := time.NewTimer(min(max(time.Since(began)/10, 20*time.Millisecond), time.Second))
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
			return cmp.Or(err, ctx.Err())
		}
	}
}

// Load has clients call ask again and again until stop, or until ask says false. They pause
// between calls, which leaves the machine to what is tested. stop waits for them.
func Load(tb testing.TB, clients int, ask func(client, n int) bool) (stop func()) {
	tb.Helper()
	done := make(chan struct{})
	var all sync.WaitGroup
	for c := range clients {
		all.Go(func() {
			pause := time.NewTicker(5 * time.Millisecond)
			defer pause.Stop()
			for n := 0; ask(c, n); n++ {
				select {
				case <-done:
					return
				case <-pause.C:
				}
			}
		})
	}
	stop = sync.OnceFunc(func() {
		close(done)
		all.Wait()
	})
	tb.Cleanup(stop)
	return stop
}

// Ends waits for the end of a job, which must be in this state then.
func (p *Project) Ends(id, state string) (job client.Object) {
	p.T.Helper()
	p.Eventually("job "+id+" does not end", func() (bool, error) {
		err := p.C.Do(p.T.Context(), http.MethodGet, p.Path("jobs/"+id+"?wait=20s"), nil, &job)
		s := job.Text("state")
		return err == nil && s != "queued" && s != "running", err
	})
	if got := job.Text("state"); got != state {
		p.T.Fatalf("job %s is %s, not %s:\n%s", id, got, state, p.Story(id))
	}
	return job
}

// Story is what Falaj tells of a job.
func (p *Project) Story(id string) string {
	ctx := context.WithoutCancel(p.T.Context())
	said, _ := p.Command(ctx, "job", "describe", id, "-p", p.Name)
	log, _ := p.Command(ctx, "job", "logs", id, "-p", p.Name)
	return said + "\n" + log
}

// Path is the path of what is in the project.
func (p *Project) Path(rest string) string { return "/api/v1/projects/" + p.Name + "/" + rest }

// Apply applies manifests in which PROJECT stands for the project.
func (p *Project) Apply(manifests string) []client.Applied {
	p.T.Helper()
	applied, err := p.Try(p.C, manifests)
	p.Must(err)
	return applied
}

// Try is Apply with another client, which may be refused.
func (p *Project) Try(c *client.Client, manifests string) ([]client.Applied, error) {
	return c.Apply(p.T.Context(), "", []byte(strings.ReplaceAll(manifests, "PROJECT", p.Name)), false)
}

// Foreign speaks a protocol that names no project in its path. out may be nil.
func (p *Project) Foreign(c *client.Client, method, path string, body, out any) error {
	resp, err := c.Send(p.T.Context(), method, path, body, http.Header{"Falaj-Project": {p.Name}})
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if out == nil {
		return nil
	}
	return client.Decode(resp.Body, out)
}

// Run runs a command line about the project, which must exit with the code.
func (p *Project) Run(code int, args ...string) (output string) {
	p.T.Helper()
	output, got := p.Command(p.T.Context(), append(args, "-p", p.Name)...)
	if got != code {
		p.T.Fatalf("%v exits with %d and not %d:\n%s", args, got, code, output)
	}
	return output
}

// Import imports a CSV file into a dataset.
func (p *Project) Import(dataset, csv string) {
	p.T.Helper()
	_, err := p.C.Import(p.T.Context(), p.Name, dataset, dataset+".csv", strings.NewReader(csv))
	p.Must(err)
}

// Materialise brings a feature view up to date.
func (p *Project) Materialise(view string) {
	p.T.Helper()
	p.Must(p.C.Do(p.T.Context(), http.MethodPost, p.Path("feature-views/"+view+"/materialise"), map[string]any{"wait": "60s"}, nil))
}

// Source uploads a file of a job; it gives its digest.
func (p *Project) Source(name string, content []byte) string {
	p.T.Helper()
	digest, err := p.TrySource(name, content)
	p.Must(err)
	return digest
}

// TrySource is Source, which may be refused.
func (p *Project) TrySource(name string, content []byte) (digest string, err error) {
	p.T.Helper()
	var b bytes.Buffer
	gz := gzip.NewWriter(&b)
	w := tar.NewWriter(gz)
	p.Must(w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(content))}))
	_, err = w.Write(content)
	p.Must(errors.Join(err, w.Close(), gz.Close()))
	var o client.Object
	err = p.C.Do(p.T.Context(), http.MethodPost, p.Path("sources"), &b, &o)
	return o.Text("digest"), err
}

// Logistic is an ONNX file: X [N, 2] to label and probabilities.
func (p *Project) Logistic() []byte {
	p.T.Helper()
	model, err := os.ReadFile(filepath.Join(p.Bin.Root, "internal/serving/runtime/onnx/testdata/logistic.onnx"))
	p.Must(err)
	return model
}

// Register makes a version of a model for each file; the first is its champion.
func (p *Project) Register(name string, files ...[]byte) {
	p.T.Helper()
	p.Must(p.Foreign(p.C, http.MethodPost, "/api/2.0/mlflow/registered-models/create", map[string]any{"name": name}, nil))
	for _, file := range files {
		p.RegisterVersion(name, file)
	}
	p.Must(p.C.Do(p.T.Context(), http.MethodPut, p.Path("models/"+name+"/aliases/champion"), map[string]any{"version": "1"}, nil))
}

// RegisterVersion registers a version of a model that there is, as MLflow's client does.
func (p *Project) RegisterVersion(name string, file []byte) {
	p.T.Helper()
	p.RegisterFiles(name, map[string][]byte{"model.onnx": file})
}

// RegisterFiles is RegisterVersion for a version of several files, by their names.
func (p *Project) RegisterFiles(name string, files map[string][]byte) {
	p.T.Helper()
	var run client.Object
	p.Must(p.Foreign(p.C, http.MethodPost, "/api/2.0/mlflow/runs/create", map[string]any{"experiment_id": "0"}, &run))
	id := run.Text("run.info.run_id")
	for file, content := range files {
		p.Must(p.Foreign(p.C, http.MethodPut, "/api/2.0/mlflow-artifacts/artifacts/0/"+id+"/artifacts/model/"+file, bytes.NewReader(content), nil))
	}
	p.Must(p.Foreign(p.C, http.MethodPost, "/api/2.0/mlflow/model-versions/create", map[string]any{"name": name, "source": "runs:/" + id + "/model", "run_id": id}, nil))
}

// Answer is a deployment's.
type Answer struct {
	ID      string `json:"id"`
	Version string `json:"model_version"`
	Outputs []struct {
		Name string `json:"name"`
		Data []any  `json:"data"`
	} `json:"outputs"`
}

// Score is the first number of the last output, NaN without one.
func (a Answer) Score() float64 {
	if len(a.Outputs) == 0 || len(a.Outputs[len(a.Outputs)-1].Data) == 0 {
		return math.NaN()
	}
	x, err := strconv.ParseFloat(fmt.Sprint(a.Outputs[len(a.Outputs)-1].Data[0]), 64)
	if err != nil {
		return math.NaN()
	}
	return x
}

// Infer asks a deployment. Parameters may be nil; inputs are in the protocol's
// words (Tensor).
func (p *Project) Infer(c *client.Client, name string, parameters map[string]any, inputs ...any) (a Answer, err error) {
	body := map[string]any{"inputs": inputs}
	if parameters != nil {
		body["parameters"] = parameters
	}
	return a, p.Foreign(c, http.MethodPost, "/v2/models/"+name+"/infer", body, &a)
}

// Tensor is an input.
func Tensor(name, datatype string, data any, shape ...int) map[string]any {
	return map[string]any{"name": name, "datatype": datatype, "shape": shape, "data": data}
}

// Weather is a dataset and an entity.
const Weather = `
api_version: falaj/v1
kind: Dataset
name: weather
project: PROJECT
spec:
  classification: internal
  columns:
  - {name: origin, type: string}
  - {name: observed_at, type: timestamp}
  - {name: temp, type: float64}
---
{api_version: falaj/v1, kind: Entity, name: origin, project: PROJECT, spec: {}}
`

// WeatherView is the feature weather:temp of Weather, which has a version, and a
// service of it.
func WeatherView(ttl string) string {
	return `
api_version: falaj/v1
kind: FeatureView
name: weather
project: PROJECT
spec:
  source: {dataset: weather}
  entities: [origin]
  timestamp: observed_at
  ttl: ` + strconv.Quote(ttl) + `
  features: [{name: temp, type: float64}]
---
{api_version: falaj/v1, kind: FeatureService, name: weather, project: PROJECT, spec: {features: ["weather:temp"]}}
`
}
