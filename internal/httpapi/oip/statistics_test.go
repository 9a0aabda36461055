package oip

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/serving"
	"github.com/falaj-ml/falaj/internal/serving/batching"
	"github.com/falaj-ml/falaj/internal/serving/inference"
	"github.com/falaj-ml/falaj/internal/serving/runtime"
)

// many are deployments of which some may be read.
type many struct {
	oneModel
	errs  map[string]error
	asked *[]string
}

func (m many) List(_ context.Context, _, after string, _ int) (out []serving.Deployment, _ error) {
	if after != "" {
		return nil, nil
	}
	for _, name := range []string{"gone", "hidden", "loading", "one", "two"} {
		out = append(out, serving.Deployment{Name: name})
	}
	return out, nil
}

func (m many) Statistics(_ context.Context, _, name, _ string) ([]serving.Statistics, error) {
	*m.asked = append(*m.asked, name)
	if err := m.errs[name]; err != nil {
		return nil, err
	}
	return []serving.Statistics{{Version: 1}}, nil
}

func get(t *testing.T, api *API, path string) (int, string) {
	t.Helper()
	resp, err := http.Get(serverOf(t, api).URL + path)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

// TestStatistics: what a model did, in Triton's form, by both protocols.
func TestStatistics(t *testing.T) {
	const want = `{"model_stats":[{"name":"delay","version":"3","last_inference":1234,"inference_count":9,"execution_count":2,` +
		`"inference_stats":{"cache_hit":{"count":0,"ns":0},"cache_miss":{"count":0,"ns":0},"compute_infer":{"count":5,"ns":50},"compute_input":{"count":4,"ns":40},"compute_output":{"count":6,"ns":60},` +
		`"fail":{"count":2,"ns":20},"queue":{"count":3,"ns":30},"success":{"count":1,"ns":10}},"response_stats":{},` +
		`"batch_stats":[{"batch_size":4,"compute_input":{"count":7,"ns":70},"compute_infer":{"count":8,"ns":80},"compute_output":{"count":9,"ns":90}}],"memory_usage":[]}]}` + "\n"
	for path, status := range map[string]int{
		"/v2/models/delay/stats": 200, "/v2/models/delay/versions/3/stats": 200, "/v2/models/stats": 200, "/v2/models/nothing/stats": 404, "/v2/models/delay/versions/9/stats": 400,
	} {
		got, body := get(t, edge(t), path)
		if got != status || status == 200 && body != want {
			t.Errorf("%s: %d %s", path, got, cmp.Diff(want, body))
		}
	}
	m, err := invoke[inference.ModelStatisticsResponse](t, dial(t), "ModelStatistics", &inference.ModelStatisticsRequest{Name: "delay"})
	if err != nil {
		t.Fatal(err)
	}
	same := &inference.ModelStatisticsResponse{}
	if err := protojson.Unmarshal([]byte(want), same); err != nil || !proto.Equal(m, same) {
		t.Errorf("%v\n%v\n%v", err, m, same)
	}
}

// TestAllStatistics: what may not be read, or is not in memory, is left out, and not
// refused, which would be recorded; another error is told.
func TestAllStatistics(t *testing.T) {
	api := edge(t)
	m := many{api.Serving.(oneModel), map[string]error{
		"gone": fault.New(fault.NotFound, "gone"), "hidden": fault.New(fault.PermissionDenied, "no"), "loading": fault.New(fault.Unavailable, "loading"),
	}, new([]string)}
	api.Serving = m
	// What may be read changes meanwhile: hidden is allowed once, and refused nevertheless.
	for _, hidden := range []bool{false, true} {
		*m.asked = nil
		api.Permits = func(_ context.Context, action, project, name string) (bool, error) {
			return action == read && project == "nyc" && (name != "hidden" || hidden), nil
		}
		all, err := api.statistics(t.Context(), "nyc", "", "")
		if err != nil || len(all) != 2 || all[0].name != "one" || all[1].name != "two" || slices.Contains(*m.asked, "hidden") != hidden {
			t.Error(all, err, *m.asked)
		}
	}
	m.errs["two"] = errors.New("broken")
	if status, _ := get(t, api, "/v2/models/stats"); status != http.StatusInternalServerError {
		t.Error(status)
	}
}

// TestConfig: the rows that requests share are no dimension of the model.
func TestConfig(t *testing.T) {
	d := serving.Description{
		Name: "d", Versions: []int64{3}, Batched: true,
		Queue: batching.Options{MaxRows: 64, MaxDelay: 2 * time.Millisecond, MaxWaiting: 4096, Priorities: 2, Timeout: time.Second},
		Metadata: runtime.Metadata{
			Platform: "onnxruntime_onnx",
			Inputs:   []runtime.Spec{{Name: "x", Datatype: runtime.FP32, Shape: []int64{-1, 3}}},
			Outputs:  []runtime.Spec{{Name: "label", Datatype: runtime.Int64, Shape: []int64{-1}}, {Name: "any", Datatype: runtime.Bytes}},
		},
	}
	const want = `{"name":"d","platform":"onnxruntime_onnx","versionPolicy":{"specific":{"versions":["3"]}},"maxBatchSize":64,` +
		`"input":[{"name":"x","dataType":"TYPE_FP32","dims":["3"]}],"output":[{"name":"label","dataType":"TYPE_INT64","dims":["1"],"reshape":{}},{"name":"any","dataType":"TYPE_STRING"}],` +
		`"dynamicBatching":{"maxQueueDelayMicroseconds":"2000","priorityLevels":"2","defaultPriorityLevel":"2","defaultQueuePolicy":{"defaultTimeoutMicroseconds":"1000000","allowTimeoutOverride":true,"maxQueueSize":4096}},"backend":"onnxruntime"}`
	same := &inference.ModelConfig{}
	if err := protojson.Unmarshal([]byte(want), same); err != nil || !proto.Equal(configOf(d), same) {
		t.Errorf("%v\n%v\n%v", err, configOf(d), same)
	}
	d.Batched = false
	if c := configOf(d); c.GetMaxBatchSize() != 0 || c.GetDynamicBatching() != nil || len(c.GetInput()[0].GetDims()) != 2 || c.GetOutput()[0].GetReshape() != nil {
		t.Errorf("alone: %v", c)
	}
	d.Batched, d.Queue.Priorities = true, 1
	if c := configOf(d); c.GetDynamicBatching().GetPriorityLevels() != 0 {
		t.Errorf("one priority: %v", c)
	}
	api := edge(t)
	api.Serving = described{api.Serving.(oneModel), d}
	const json = `{"backend":"onnxruntime","dynamic_batching":{"default_priority_level":0,"default_queue_policy":{"allow_timeout_override":true,"default_timeout_microseconds":1000000,"max_queue_size":4096,"timeout_action":"REJECT"},"max_queue_delay_microseconds":2000,"priority_levels":0},` +
		`"input":[{"data_type":"TYPE_FP32","dims":[3],"name":"x"}],"max_batch_size":64,"name":"d","output":[{"data_type":"TYPE_INT64","dims":[1],"name":"label","reshape":{"shape":[]}},{"data_type":"TYPE_STRING","dims":[],"name":"any"}],` +
		`"platform":"onnxruntime_onnx","version_policy":{"specific":{"versions":[3]}}}` + "\n"
	if _, body := get(t, api, "/v2/models/d/config"); body != json {
		t.Error(cmp.Diff(json, body))
	}
}

// TestOptionalInputs: each description says which inputs a request may leave out.
func TestOptionalInputs(t *testing.T) {
	d := serving.Description{
		Name: "d", Versions: []int64{3}, Batched: true,
		Metadata: runtime.Metadata{
			Platform: "onnxruntime_onnx",
			Inputs:   []runtime.Spec{{Name: "x", Datatype: runtime.FP32, Shape: []int64{-1}}},
			Optional: []runtime.Spec{{Name: "scale", Datatype: runtime.FP32, Shape: []int64{1}}},
			Outputs:  []runtime.Spec{{Name: "y", Datatype: runtime.FP32, Shape: []int64{-1}}},
		},
	}
	api := edge(t)
	api.Serving = described{api.Serving.(oneModel), d}
	for path, want := range map[string]string{
		"/v2/models/d":        `"inputs":[{"name":"x","datatype":"FP32","shape":[-1]},{"name":"scale","datatype":"FP32","shape":[1],"parameters":{"optional":true}}]`,
		"/v2/models/d/config": `"input":[{"data_type":"TYPE_FP32","dims":[1],"name":"x","reshape":{"shape":[]}},{"data_type":"TYPE_FP32","dims":[1],"name":"scale","optional":true}]`,
	} {
		if _, body := get(t, api, path); !strings.Contains(body, want) {
			t.Errorf("%s: %s", path, body)
		}
	}
	doc := document(d, "/v2/models/d")
	if b, err := json.Marshal(doc); err != nil || !strings.Contains(string(b), `"maxItems":2,"minItems":1`) {
		t.Errorf("%s %v", b, err)
	}
	m, err := api.callMetadata(context.WithValue(t.Context(), callKey{}, call{project: "nyc"}), &inference.ModelMetadataRequest{Name: "d"})
	if err != nil || len(m.GetInputs()) != 2 || m.GetInputs()[0].GetParameters() != nil || !m.GetInputs()[1].GetParameters()["optional"].GetBoolParam() {
		t.Error(m, err)
	}
	f := frame{takes: serving.Takes{Inputs: d.Inputs, Optional: d.Optional}, hold: func(int) error { return nil }}
	in, _, err := f.json([]byte(`{"inputs": {"x": [1, 2], "scale": [3]}}`))
	if err != nil || len(in) != 2 || in[1].Name != "scale" || in[1].Datatype != runtime.FP32 || d.Check(in) != nil {
		t.Errorf("%+v %v", in, err)
	}
	// A column that is called as an optional input is no column of the matrix x.
	f = frame{takes: f.takes, hold: f.hold}
	if in, _, err := f.json([]byte(`{"dataframe_split": {"columns": ["a", "scale"], "data": [[1, 2]]}}`)); err == nil || !strings.Contains(err.Error(), `unknown column "a"`) {
		t.Errorf("%+v %v", in, err)
	}
}

type described struct {
	oneModel
	d serving.Description
}

func (d described) Metadata(context.Context, string, string, string) (serving.Description, error) {
	return d.d, nil
}
