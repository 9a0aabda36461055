package oip

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"pgregory.net/rapid"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/serving"
	"github.com/falaj-ml/falaj/internal/serving/runtime"
	"github.com/falaj-ml/falaj/internal/serving/runtime/runtimetest"
)

// oneModel is the model delay, and a project whose model does not load.
type oneModel struct {
	session runtime.Session
	columns []string // of its features, if it has any
}

func (m oneModel) Metadata(_ context.Context, _, name, _ string) (serving.Description, error) {
	if name != "delay" {
		return serving.Description{}, fault.New(fault.NotFound, "unknown model: %q is not deployed", name)
	}
	return serving.Description{Metadata: m.session.Metadata(), Name: name, Versions: []int64{3}}, nil
}

func (m oneModel) Answers(ctx context.Context, project, name, version string) (away, err error) {
	_, err = m.Metadata(ctx, project, name, version)
	return nil, err
}

func (m oneModel) Infer(ctx context.Context, r serving.Request) (serving.Answer, error) {
	d, err := m.Metadata(ctx, "", r.Name, "")
	if err != nil {
		return serving.Answer{}, err
	}
	if err := d.Check(r.Inputs); err != nil {
		return serving.Answer{}, err
	}
	answer := serving.Answer{ID: r.ID, Version: 3}
	if len(r.Outputs) == 0 {
		r.Outputs = []string{"label", "probabilities"}
	}
	if answer.ID == "" { // what was asked beside the inputs
		answer.ID = "prd_" + r.RouteKey
		if !r.AsOf.IsZero() {
			answer.ID += "@" + r.AsOf.Format(time.RFC3339)
		}
	}
	answer.Outputs, err = m.session.Infer(ctx, r.Inputs, r.Outputs)
	return answer, err
}

func (m oneModel) Takes(ctx context.Context, project, name, version string) (serving.Takes, error) {
	d, err := m.Metadata(ctx, project, name, version)
	return serving.Takes{Inputs: d.Inputs, Columns: m.columns}, err
}

func (oneModel) List(_ context.Context, _, after string, _ int) ([]serving.Deployment, error) {
	if after != "" {
		return nil, nil
	}
	return []serving.Deployment{{Name: "delay", Targets: []serving.Target{
		{Role: serving.Stable, Version: 3, State: serving.Ready},
		{Role: serving.Canary, Version: 4, State: serving.Failed, Reason: "it is broken"},
		{Role: serving.Shadow, Version: 5, State: serving.Ready},
	}}}, nil
}

func (m oneModel) Statistics(ctx context.Context, _, name, version string) ([]serving.Statistics, error) {
	if _, err := m.Metadata(ctx, "", name, ""); err != nil {
		return nil, err
	}
	if version != "" && version != "3" {
		return nil, fault.New(fault.Unavailable, "version %s is not ready", version)
	}
	spent := func(n int64) serving.Spent { return serving.Spent{Count: n, Time: time.Duration(10 * n)} }
	return []serving.Statistics{{
		Version: 3, Last: time.UnixMilli(1234), Inferences: 9, Executions: 2, Success: spent(1), Fail: spent(2), Queue: spent(3), Input: spent(4), Infer: spent(5), Output: spent(6),
		Batches: []serving.BatchStatistics{{Size: 4, Input: spent(7), Infer: spent(8), Output: spent(9)}},
	}}, nil
}

func (m oneModel) Load(ctx context.Context, _, name string) error {
	_, err := m.Metadata(ctx, "", name, "")
	return err
}

func (oneModel) Ready(project string) bool { return project != "broken" }

func server(t *testing.T) *httptest.Server {
	t.Helper()
	return serverOf(t, edge(t))
}

// serverOf is a server whose requests hold nothing in the end.
func serverOf(t *testing.T, api *API) *httptest.Server {
	t.Helper()
	mux := http.NewServeMux()
	api.Register(func(method, path, _, _ string, h http.HandlerFunc) { mux.Handle(method+" "+path, h) })
	srv := httptest.NewServer(balanced(t, api, mux))
	t.Cleanup(srv.Close)
	return srv
}

func balanced(t *testing.T, api *API, h http.Handler) http.Handler {
	t.Helper()
	var all sync.WaitGroup
	t.Cleanup(func() {
		all.Wait()
		if api.held.all != 0 || len(api.held.of) != 0 {
			t.Errorf("%d bytes are held after the last request", api.held.all)
		}
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		all.Add(1)
		defer all.Done()
		h.ServeHTTP(w, r)
	})
}

// edge is the protocol over oneModel.
func edge(t *testing.T) *API {
	t.Helper()
	s, err := runtimetest.Fake{}.Load(t.Context(), runtimetest.FakeModel, runtime.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return &API{
		Serving: oneModel{session: s}, Version: "test", Ended: func(_ *http.Request, err error) error { return err },
		Project: func(r *http.Request) (string, error) {
			switch p := r.Header.Get("Falaj-Project"); p {
			case "":
				return "nyc", nil
			case "none":
				return "", fault.New(fault.PermissionDenied, "this token is not bound to a project")
			default:
				return p, nil
			}
		},
		Gate: func(_ *http.Request, action, project string) error {
			if project == "foreign" {
				return fault.New(fault.PermissionDenied, "no %s", action)
			}
			return nil
		},
		Status: func(err error) int {
			switch fault.KindOf(err) { //nolint:exhaustive // those that happen here
			case fault.NotFound:
				return http.StatusNotFound
			case fault.PermissionDenied:
				return http.StatusForbidden
			case fault.Internal:
				return http.StatusInternalServerError
			case fault.TooLarge:
				return http.StatusRequestEntityTooLarge
			case fault.Exhausted:
				return http.StatusTooManyRequests
			}
			return http.StatusBadRequest
		},
		EndedCall: func(ctx context.Context, err error) error {
			_ = grpc.SetTrailer(ctx, metadata.Pairs("problem", err.Error()))
			code := codes.InvalidArgument
			switch fault.KindOf(err) { //nolint:exhaustive // those that happen here
			case fault.NotFound:
				code = codes.NotFound
			case fault.Unsupported:
				code = codes.Unimplemented
			case fault.Exhausted:
				code = codes.ResourceExhausted
			case fault.PermissionDenied:
				code = codes.PermissionDenied
			}
			return status.Error(code, err.Error())
		},
		Permits:        func(context.Context, string, string, string) (bool, error) { return true, nil },
		Reauthenticate: func(*http.Request) (identity.Principal, error) { return identity.Principal{}, nil },
	}
}

// TestProtocol walks requests and the exact answers.
func TestProtocol(t *testing.T) {
	srv := server(t)
	const wrongShape = `{"error":"input \"X\": data does not have shape [2 2]. data is a flat array of all elements in row-major order, or nested exactly as the shape."}`
	const asked = `"inputs":[{"name":"X","shape":[2,2],"datatype":"FP32","data":`
	for name, c := range map[string]struct {
		method, path, body string
		status             int
		want               string
	}{
		"live":       {"GET", "/v2/health/live", "", 200, `{"live":true}`},
		"ready":      {"GET", "/v2/health/ready", "", 200, `{"ready":true}`},
		"server":     {"GET", "/v2", "", 200, `{"extensions":["binary_tensor_data","classification","model_configuration","model_repository","parameters","schedule_policy","statistics","trace","logging"],"name":"falaj","version":"test"}`},
		"model":      {"GET", "/v2/models/delay", "", 200, `{"inputs":[{"name":"X","datatype":"FP32","shape":[-1,2]}],"name":"delay","outputs":[{"name":"label","datatype":"INT64","shape":[-1]},{"name":"probabilities","datatype":"FP32","shape":[-1,2]}],"platform":"fake","versions":["3"]}`},
		"version":    {"GET", "/v2/models/delay/versions/3/ready", "", 200, `{"name":"delay","ready":true}`},
		"unknown":    {"GET", "/v2/models/nothing", "", 404, `{"error":"unknown model: \"nothing\" is not deployed"}`},
		"config":     {"GET", "/v2/models/delay/config", "", 200, `{"backend":"fake","input":[{"data_type":"TYPE_FP32","dims":[-1,2],"name":"X"}],"max_batch_size":0,"name":"delay","output":[{"data_type":"TYPE_INT64","dims":[-1],"name":"label"},{"data_type":"TYPE_FP32","dims":[-1,2],"name":"probabilities"}],"platform":"fake","version_policy":{"specific":{"versions":[3]}}}`},
		"index":      {"POST", "/v2/repository/index", "", 200, `[{"name":"delay","version":"3","state":"READY"},{"name":"delay","version":"4","state":"UNAVAILABLE","reason":"it is broken"}]`},
		"ready ones": {"POST", "/v2/repository/index", `{"ready":true}`, 200, `[{"name":"delay","version":"3","state":"READY"}]`},
		"load":       {"POST", "/v2/repository/models/delay/load", `{}`, 200, ""},
		"load with":  {"POST", "/v2/repository/models/delay/load", `{"parameters":{"config":"{}"}}`, 400, `{"error":"load parameters are not supported: a deployment is defined by its manifest. Change it with ` + "`falaj apply`" + `."}`},
		"load none":  {"POST", "/v2/repository/models/nothing/load", "", 404, `{"error":"unknown model: \"nothing\" is not deployed"}`},
		"unload":     {"POST", "/v2/repository/models/delay/unload", "", 400, `{"error":"a deployment cannot be unloaded while its manifest exists. Delete it with ` + "`falaj delete deployment NAME`" + `."}`},
		"trace":      {"GET", "/v2/models/delay/trace/setting", "", 200, `{"log_frequency":"0","trace_count":"-1","trace_file":"","trace_level":["OFF"],"trace_mode":"triton","trace_rate":"1000"}`},
		"tracing":    {"POST", "/v2/trace/setting", `{"trace_level":["TIMESTAMPS"]}`, 400, `{"error":"the setting \"trace_level\" is read-only. Logs and traces are configured for the server: see ` + "`falaj up --help`" + `."}`},
		"no trace":   {"POST", "/v2/trace/setting", `{"trace_level":["OFF"],"trace_rate":null}`, 200, `{"log_frequency":"0","trace_count":"-1","trace_file":"","trace_level":["OFF"],"trace_mode":"triton","trace_rate":"1000"}`},
		"logging":    {"GET", "/v2/logging", "", 200, `{"log_error":true,"log_file":"","log_format":"default","log_info":true,"log_verbose_level":0,"log_warning":true}`},
		"verbose":    {"POST", "/v2/logging", `{"log_verbose_level":1}`, 400, `{"error":"the setting \"log_verbose_level\" is read-only. Logs and traces are configured for the server: see ` + "`falaj up --help`" + `."}`},
		"flat":       {"POST", "/v2/models/delay/infer", `{"id":"7",` + asked + `[0,0,4,3]}],"outputs":[{"name":"label"}]}`, 200, `{"model_name":"delay","model_version":"3","id":"7","outputs":[{"name":"label","datatype":"INT64","shape":[2],"data":[0,1]}]}`},
		"nested":     {"POST", "/v2/models/delay/versions/3/infer", `{` + asked + ` [ [0, 0] , [4,3.0e0] ] }],"outputs":[{"name":"label"}]}`, 200, `{"model_name":"delay","model_version":"3","id":"prd_","outputs":[{"name":"label","datatype":"INT64","shape":[2],"data":[0,1]}]}`},
		"replayed":   {"POST", "/v2/models/delay/infer", `{"parameters":{"as_of":"2013-07-04T12:00:00+02:00","route_key":"k","other":1},` + asked + `[0,0,4,3]}],"outputs":[{"name":"label"}]}`, 200, `{"model_name":"delay","model_version":"3","id":"prd_k@2013-07-04T10:00:00Z","outputs":[{"name":"label","datatype":"INT64","shape":[2],"data":[0,1]}]}`},
		"no time":    {"POST", "/v2/models/delay/infer", `{"parameters":{"as_of":"yesterday"},` + asked + `[0,0,4,3]}]}`, 400, `{"error":"parameters.as_of is not a timestamp: yesterday. Write it as 2013-07-04T12:00:00Z."}`},
		"no key":     {"POST", "/v2/models/delay/infer", `{"parameters":{"route_key":7},` + asked + `[0,0,4,3]}]}`, 400, `{"error":"parameters.route_key is not text: 7"}`},
		"no model":   {"POST", "/v2/models/nothing/infer", `{` + asked + `[0,0,4,3]}]}`, 404, `{"error":"unknown model: \"nothing\" is not deployed"}`},
		"too few":    {"POST", "/v2/models/delay/infer", `{` + asked + `[0,0,4]}]}`, 400, wrongShape},
		"too many":   {"POST", "/v2/models/delay/infer", `{` + asked + `[0,0,4,3,1]}]}`, 400, wrongShape},
		"ragged":     {"POST", "/v2/models/delay/infer", `{` + asked + `[[0,0,4],[3]]}]}`, 400, wrongShape},
		"words":      {"POST", "/v2/models/delay/infer", `{` + asked + `[0,0,"a",3]}]}`, 400, `{"error":"input \"X\": element 2, \"a\", is not a number"}`},
		"datatype":   {"POST", "/v2/models/delay/infer", `{"inputs":[{"name":"X","shape":[1],"datatype":"FP64","data":[1]}]}`, 400, `{"error":"input \"X\" has datatype FP64, the model needs FP32"}`},
		"half":       {"POST", "/v2/models/delay/infer", `{"inputs":[{"name":"X","shape":[1],"datatype":"FP16","data":[1]}]}`, 400, `{"error":"input \"X\": FP16 cannot be sent as JSON. Send it as binary data."}`},
		"huge":       {"POST", "/v2/models/delay/infer", `{"inputs":[{"name":"X","shape":[99999,99999],"datatype":"FP32","data":[1]}]}`, 413, `{"error":"input \"X\": shape [99999 99999] has more than 268435456 elements"}`},
		"promises":   {"POST", "/v2/models/delay/infer", `{"inputs":[{"name":"X","shape":[9999,2],"datatype":"FP32","data":[1]}]}`, 400, `{"error":"input \"X\": shape [9999 2] requires 19998 elements, but data has fewer"}`},
		"negative":   {"POST", "/v2/models/delay/infer", `{"inputs":[{"name":"X","shape":[-1,2],"datatype":"FP32","data":[1]}]}`, 400, `{"error":"input \"X\": shape [-1 2] has a negative dimension"}`},
		"no inputs":  {"POST", "/v2/models/delay/infer", `{}`, 400, `{"error":"the request has no inputs"}`},
		"not json":   {"POST", "/v2/models/delay/infer", `inputs`, 400, `{"error":"the request is not an inference request in JSON: byte 1 is 'i', expected '{'"}`},
	} {
		t.Run(name, func(t *testing.T) {
			req, err := http.NewRequestWithContext(t.Context(), c.method, srv.URL+c.path, strings.NewReader(c.body))
			if err != nil {
				t.Fatal(err)
			}
			resp, err := srv.Client().Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			b, _ := io.ReadAll(resp.Body)
			if resp.StatusCode != c.status {
				t.Errorf("status %d, want %d", resp.StatusCode, c.status)
			}
			if diff := cmp.Diff(c.want, strings.TrimSpace(string(b))); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

// TestReadiness: a broken model is its own project's matter.
func TestReadiness(t *testing.T) {
	srv := server(t)
	for project, status := range map[string]int{"nyc": 200, "broken": 400, "none": 200, "foreign": 403} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, srv.URL+"/v2/health/ready", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Falaj-Project", project)
		resp, err := srv.Client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != status {
			t.Errorf("%s: status %d, want %d", project, resp.StatusCode, status)
		}
	}
}

// TestRoundTrip sends random tensors as encoding/json writes them, flat or
// nested, and wants the same back.
func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rows, cols := rapid.IntRange(0, 4).Draw(t, "rows"), rapid.IntRange(1, 4).Draw(t, "cols")
		data := rapid.SliceOfN(rapid.Float64(), rows*cols, rows*cols).Draw(t, "data")
		var j []byte
		if rapid.Bool().Draw(t, "nested") {
			nested := make([][]float64, rows)
			for i := range nested {
				nested[i] = data[i*cols : (i+1)*cols]
			}
			j, _ = json.Marshal(nested)
		} else {
			j, _ = json.Marshal(data)
		}
		body, _ := json.Marshal(map[string]any{"inputs": []any{map[string]any{
			"name": "X", "shape": []int{rows, cols}, "datatype": "FP64", "data": json.RawMessage(j),
		}}})
		asked, err := decode(body, len(body))
		if err != nil {
			t.Fatal(err)
		}
		in := asked.Inputs
		if diff := cmp.Diff(data, in[0].Data); diff != "" {
			t.Fatal(diff)
		}
		out, _, err := asked.encode(nil, "1", "", in)
		if err != nil {
			t.Fatal(err)
		}
		var answer struct{ Outputs []struct{ Data []float64 } }
		if err := json.Unmarshal(out, &answer); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(data, answer.Outputs[0].Data); diff != "" {
			t.Fatal(diff)
		}
	})
}
