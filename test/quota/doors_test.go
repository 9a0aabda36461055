package quota

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/flight"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	"github.com/falaj-ml/falaj/client"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/test/live"
)

const mlflow = "/api/2.0/mlflow-artifacts/"

// stored is a project whose store is watched.
type stored struct {
	*live.Project
	t *testing.T
}

// usage is what the project stores.
func (s stored) usage() (u struct {
	Bytes, Objects int64
	Kinds          []struct{ Kind string }
},
) {
	s.t.Helper()
	s.Must(s.C.Do(s.t.Context(), http.MethodGet, s.Path("usage"), nil, &u))
	return u
}

func (s stored) limit(quota string) {
	s.t.Helper()
	s.Apply("{api_version: falaj/v1, kind: Project, name: PROJECT, spec: {quota: " + quota + "}}")
}

// run makes a run with a file, and gives the path of its files.
func (s stored) run(file []byte) (id, files string) {
	s.t.Helper()
	var run client.Object
	s.Must(s.Foreign(s.C, http.MethodPost, "/api/2.0/mlflow/runs/create", map[string]any{"experiment_id": "0"}, &run))
	id = run.Text("run.info.run_id")
	files = "0/" + id + "/artifacts/"
	s.Must(s.Foreign(s.C, http.MethodPut, mlflow+"artifacts/"+files+"model/model.onnx", bytes.NewReader(file), nil))
	return id, files
}

// put sends rows by Arrow Flight.
func (s stored) put(dataset string) error {
	c, err := flight.NewClientWithMiddleware(strings.TrimPrefix(s.URL, "http://"), nil, nil, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer c.Close()
	put, err := c.DoPut(metadata.AppendToOutgoingContext(s.t.Context(), "authorization", "Bearer "+s.Token, "falaj-project", s.Name))
	if err != nil {
		return err
	}
	schema := arrow.NewSchema([]arrow.Field{{Name: "n", Type: arrow.PrimitiveTypes.Int64}}, nil)
	b := array.NewRecordBuilder(memory.DefaultAllocator, schema)
	b.Field(0).(*array.Int64Builder).Append(1)
	to := flight.NewRecordWriter(put, ipc.WithSchema(schema))
	to.SetFlightDescriptor(&flight.FlightDescriptor{Type: flight.DescriptorPATH, Path: []string{dataset}})
	if err := errors.Join(to.Write(b.NewRecordBatch()), put.CloseSend()); err != nil {
		return err
	}
	_, err = put.Recv()
	return err
}

// how a refusal is told.
type how int

const (
	answered how = iota // with 507
	inWords             // otherwise, in the same words
	dropped             // by the event and the server's log: what is beside a job's work is not worth failing it
)

// TestDoors: at its quota a project stores nothing, by no door, in no part; when there is
// room, each door stores.
func TestDoors(t *testing.T) {
	server := live.New(t, "")
	server.Up(t)
	s := stored{server.Project(t, "nyc"), t}
	const weather = "origin,observed_at,temp\nEWR,2013-01-01T00:00:00Z,12.5\nJFK,2013-01-01T00:00:00Z,13\n"
	s.Apply(live.Weather)
	s.Import("weather", weather)
	s.Apply(live.WeatherView("24h"))
	s.Apply("{api_version: falaj/v1, kind: Dataset, name: daily, project: PROJECT, spec: {transform: {sql: SELECT origin FROM weather ORDER BY origin}}}")
	s.Apply("{api_version: falaj/v1, kind: Dataset, name: numbers, project: PROJECT, spec: {}}")
	s.Must(s.Foreign(s.C, http.MethodPost, "/api/2.0/mlflow/registered-models/create", map[string]any{"name": "delay"}, nil))
	run, files := s.run(s.Logistic())
	var upload, logged client.Object
	s.Must(s.Foreign(s.C, http.MethodPost, mlflow+"mpu/create/"+files+"parts", map[string]any{"path": "parts", "num_parts": 1}, &upload))
	s.Must(s.Foreign(s.C, http.MethodPost, "/api/2.0/mlflow/logged-models", map[string]any{"experiment_id": "0", "name": "m"}, &logged))
	imported := strings.Repeat("a", 32)
	s.Must(s.C.Do(t.Context(), http.MethodPost, s.Path("imports/mlflow"), map[string]any{
		"from":        "https://mlflow.example.com",
		"experiments": []any{map[string]any{"experiment_id": 0, "name": "Default", "lifecycle_stage": "active", "digest": "1"}},
		"runs":        []any{map[string]any{"run_id": imported, "experiment_id": 0, "run_name": "old", "status": "FINISHED", "lifecycle_stage": "active", "start_time": 1, "end_time": 2, "digest": "2"}},
	}, nil))

	api := func(method, path string, body any) func() error {
		return func() error {
			if b, ok := body.(string); ok {
				return s.C.Do(t.Context(), method, s.Path(path), strings.NewReader(b), nil)
			}
			return s.C.Do(t.Context(), method, s.Path(path), body, nil)
		}
	}
	theirs := func(method, path string, body any) func() error {
		return func() error {
			if b, ok := body.(string); ok {
				return s.Foreign(s.C, method, path, strings.NewReader(b), nil)
			}
			return s.Foreign(s.C, method, path, body, nil)
		}
	}
	// A job fails, and says why: nobody waits for an answer.
	job := func(script string) func() error {
		return func() error {
			var made client.Object
			if err := s.C.Do(t.Context(), http.MethodPost, s.Path("jobs"), map[string]any{"name": "writes", "spec": map[string]any{"command": []string{"/bin/sh", "-c", script}}}, &made); err != nil {
				return err
			}
			var ended client.Object
			s.Eventually("the job does not end", func() (bool, error) {
				err := s.C.Do(t.Context(), http.MethodGet, s.Path("jobs/"+made.Text("id")+"?wait=20s"), nil, &ended)
				state := ended.Text("state")
				return err == nil && state != "queued" && state != "running", err
			})
			if ended.Text("state") == "succeeded" {
				return nil
			}
			return errors.New(ended.Text("reason"))
		}
	}
	doors := []struct {
		name  string
		store func() error
		told  how
	}{
		{"import of a dataset", api(http.MethodPost, "datasets/weather/versions?filename=w.csv", weather+"LGA,2013-01-01T00:00:00Z,14\n"), answered},
		{"transformation", api(http.MethodPost, "datasets/daily/derive", map[string]any{}), answered},
		{"training set", api(http.MethodPost, "training-sets", map[string]any{
			"name": "learn", "spine": "SELECT origin, observed_at AS at, temp AS label FROM weather", "timestamp": "at", "labels": []string{"label"}, "features": []string{"weather:temp"},
		}), answered},
		{"Arrow Flight", func() error { return s.put("numbers") }, inWords},
		{"artifact of MLflow", theirs(http.MethodPut, mlflow+"artifacts/"+files+"new", "x"), answered},
		{"part of MLflow", theirs(http.MethodPut, "/api/2.0/mlflow-artifacts/mpu/parts/"+upload.Text("upload_id")+"/1", "x"), answered},
		{"file of a logged model", theirs(http.MethodPut, mlflow+"artifacts/0/models/"+logged.Text("model.info.model_id")+"/artifacts/new", "x"), answered},
		{"file of an import", api(http.MethodPut, "imports/mlflow/file?path=imported&run_id="+imported, "x"), answered},
		{"version of a model", theirs(http.MethodPost, "/api/2.0/mlflow/model-versions/create", map[string]any{"name": "delay", "source": "runs:/" + run + "/model", "run_id": run}), answered},
		{"source of a job", func() error {
			_, err := s.TrySource("train.py", []byte("print(1)"))
			return err
		}, answered},
		{"output of a job", job(`echo 1 > "$FALAJ_OUTPUT_DIR/one"`), inWords},
		{"checkpoint of a job", job(`mkdir "$FALAJ_CHECKPOINT_DIR/.new" && head -c 99 /dev/urandom > "$FALAJ_CHECKPOINT_DIR/.new/state" && mv "$FALAJ_CHECKPOINT_DIR/.new" "$FALAJ_CHECKPOINT_DIR/step-1"`), dropped},
		{"log of a job", job("echo hello"), dropped},
	}
	before := s.usage()
	for what, quota := range map[string]string{"bytes": "{bytes: 1}", "files": "{objects: 1}"} {
		s.limit(quota)
		for _, d := range doors {
			err := d.store()
			status := 0
			if e, ok := errors.AsType[*client.Error](err); ok {
				status = e.Status
			}
			refused := err != nil && strings.Contains(err.Error(), "project nyc has a quota of 1 ")
			if refused == (d.told == dropped) || d.told == answered && status != http.StatusInsufficientStorage {
				t.Errorf("%s beyond the quota of %s: %d %v", d.name, what, status, err)
			}
			if after := s.usage(); after.Bytes != before.Bytes || after.Objects != before.Objects {
				t.Errorf("%s beyond the quota of %s: %d bytes in %d files are stored, before %d in %d", d.name, what, after.Bytes, after.Objects, before.Bytes, before.Objects)
				before = after
			}
		}
	}
	s.limit("{bytes: 1GiB, objects: 1000}")
	for _, d := range doors {
		if err := d.store(); err != nil {
			t.Errorf("%s with room: %v", d.name, err)
			continue
		}
		after := s.usage()
		if after.Bytes <= before.Bytes || after.Objects <= before.Objects {
			t.Errorf("%s stores nothing: %d bytes in %d files", d.name, after.Bytes, after.Objects)
		}
		before = after
	}
	// Every kind that there is can be limited.
	all := map[string]bool{}
	for _, k := range s.usage().Kinds {
		all[k.Kind] = true
		limited := project.KindQuotas{}
		if err := json.Unmarshal([]byte(fmt.Sprintf(`{%q: {"objects": 1}}`, k.Kind)), &limited); err != nil || len(limited.ByKind()) != 1 {
			t.Errorf("kind %s has no quota", k.Kind)
		}
	}
	if len(all) != 5 {
		t.Errorf("the doors store %v", all)
	}

	// Exactly at its quota, a file that has come in parts is made of them.
	now := s.usage()
	s.limit(fmt.Sprintf("{bytes: %d, objects: %d}", now.Bytes, now.Objects))
	sum := sha256.Sum256([]byte("x"))
	s.Must(theirs(http.MethodPost, mlflow+"mpu/complete/"+files+"parts", map[string]any{
		"path": "parts", "upload_id": upload.Text("upload_id"), "parts": []any{map[string]any{"part_number": 1, "etag": "sha256:" + hex.EncodeToString(sum[:])}},
	})())
	s.limit("{}")

	// Smaller instead of larger, and what was deleted makes room.
	s.Must(s.Foreign(s.C, http.MethodPut, mlflow+"artifacts/"+files+"big", strings.NewReader(strings.Repeat("x", 100_000)), nil))
	now = s.usage()
	s.limit(fmt.Sprintf("{bytes: %d, objects: %d}", now.Bytes-1, now.Objects-1))
	if err := theirs(http.MethodPut, mlflow+"artifacts/"+files+"big", strings.Repeat("x", 100_001))(); err == nil {
		t.Error("a larger one is stored")
	}
	s.Must(theirs(http.MethodPut, mlflow+"artifacts/"+files+"big", strings.Repeat("x", 50_000))())
	if err := theirs(http.MethodPut, mlflow+"artifacts/"+files+"other", "x")(); err == nil {
		t.Error("another file is stored")
	}
	s.Must(theirs(http.MethodDelete, mlflow+"artifacts/"+files+"big", nil)())
	s.Must(theirs(http.MethodDelete, mlflow+"artifacts/"+files+"new", nil)())
	s.Must(theirs(http.MethodPut, mlflow+"artifacts/"+files+"other", "x")())

	// The event was told, of bytes and of files.
	told := s.Run(0, "audit", "list")
	if n := strings.Count(told, "project.quota_reached"); n < 2 {
		t.Errorf("%d entries about the quota:\n%s", n, told)
	}
	resp, err := s.C.Send(t.Context(), http.MethodGet, "/metrics", nil, nil)
	s.Must(err)
	defer resp.Body.Close()
	metrics, err := io.ReadAll(resp.Body)
	s.Must(err)
	for _, want := range []string{`falaj_project_quota_reached_total{kind="all",project="nyc"}`, `falaj_project_quota_objects{kind="all",project="nyc"}`} {
		if !strings.Contains(string(metrics), want) {
			t.Errorf("no metric %s", want)
		}
	}
}
