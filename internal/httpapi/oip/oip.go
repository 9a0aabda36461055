// Package oip speaks the Open Inference Protocol (version 2) as Triton's clients do:
// health, metadata, inference and Triton's extensions, over HTTP in JSON and in raw
// bytes, with errors in the protocol's own form, {"error": "…"}, and over gRPC. A
// deployment's name is the protocol's model name.
//
// # Map
//
//   - oip.go: the routes, health and metadata; how an inference is answered.
//   - ask.go: what a request asks, whichever way it came; its limits; classes.
//   - grpc.go, message.go: the same by gRPC, of api/inference/service.proto, whose
//     messages are in internal/serving/inference. config.go, statistics.go,
//     repository.go: Triton's other extensions. openapi.go: a document of each model.
//   - frames.go: bodies of gRPC. held.go: what all bodies hold of memory.
//   - body.go: bodies of HTTP, compression. scan.go, json.go: JSON.
//   - scoring.go: MLflow's scoring protocol, and version 1 of KServe's and TensorFlow
//     Serving's, in front of the same inference.
//
// # Guarantees
//
// A request is read once. Numbers of a request stay where they were read when they
// are aligned there, and are answered from where the model put them. What a shape
// promises is compared with what was sent before memory is taken.
//
// Sources: the Open Inference Protocol's specification/protocol/inference_rest.md,
// Triton's docs/protocol; MLflow's docs/classic-ml/deployment/deploy-model-locally; KServe's
// V1 protocol; TensorFlow Serving's tensorflow_serving/g3doc/api_rest.md.
package oip

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/serving"
	"github.com/falaj-ml/falaj/internal/serving/inference"
	"github.com/falaj-ml/falaj/internal/serving/runtime"
)

// Serving is what the protocol asks of serving.
type Serving interface {
	Metadata(ctx context.Context, project, name, version string) (serving.Description, error)
	// Answers says why a model would not answer at the moment, without loading it; nil of
	// one that would.
	Answers(ctx context.Context, project, name, version string) (away, err error)
	Infer(ctx context.Context, r serving.Request) (serving.Answer, error)
	// Takes is what requests of a deployment may bring, for who may ask it.
	Takes(ctx context.Context, project, name, version string) (serving.Takes, error)
	// Statistics are those of a deployment's versions in memory; of one when it is named.
	Statistics(ctx context.Context, project, name, version string) ([]serving.Statistics, error)
	// Ready reports whether all of a project's models answer; of no project, "",
	// whether the server has looked at every deployment once.
	Ready(project string) bool
	// List is a page of a project's deployments by name, after a name.
	List(ctx context.Context, project, after string, limit int) ([]serving.Deployment, error)
	// Load tries at once to load what failed to.
	Load(ctx context.Context, project, name string) error
}

// API is the protocol's handlers.
type API struct {
	Serving Serving
	Version string                                // of Falaj
	Project func(r *http.Request) (string, error) // the project that the request's token is bound to
	Status  func(err error) int                   // HTTP status of an error
	// Ended takes the error that ends a request, logs and records it, and gives what the
	// caller is told.
	Ended func(r *http.Request, err error) error
	// Gate asks whether the caller may do the action in the project.
	Gate func(r *http.Request, action, project string) error
	// Permits asks whether the caller may do the action with a deployment, for what is
	// only shown: a no is no refusal, and not recorded.
	Permits func(ctx context.Context, action, project, name string) (bool, error)
	// Reauthenticate returns the principal of a request while it runs: its token may have been revoked.
	Reauthenticate func(r *http.Request) (identity.Principal, error)
	// EndedCall is Ended for gRPC calls.
	EndedCall func(ctx context.Context, err error) error

	streams streams
	held    held
}

// Register adds the routes. action is what the route takes in the token's
// project; Gate is asked for it before a body is read. Empty: a known caller.
func (a *API) Register(handle func(method, path, action, summary string, h http.HandlerFunc)) {
	get, post := http.MethodGet, http.MethodPost
	handle(get, "/v2", "", "Get the server metadata", a.server)
	handle(get, "/v2/health/live", "", "Check that the server is live", func(w http.ResponseWriter, _ *http.Request) {
		write(w, http.StatusOK, map[string]any{"live": true})
	})
	handle(get, "/v2/health/ready", "", "Check that all models of the token's project are ready", a.ready)
	for _, v := range []string{"", "/versions/{version}"} {
		handle(get, "/v2/models/{model}"+v, read, "Get the metadata of a model: its inputs and outputs", a.metadata)
		handle(get, "/v2/models/{model}"+v+"/ready", read, "Check that a model is ready", a.modelReady)
		handle(get, "/v2/models/{model}"+v+"/config", read, "Get a model's configuration (Triton protocol)", a.config)
		handle(get, "/v2/models/{model}"+v+"/stats", read, "Get statistics of a model's versions since the server started", a.stats)
		handle(get, "/v2/models/{model}"+v+"/openapi.json", read, "Get a model's OpenAPI document: its tensors and an example", a.describe)
		handle(post, "/v2/models/{model}"+v+"/infer", infer, "Request predictions from a model", a.infer)
	}
	a.registerScoring(handle)
	handle(get, "/v2/models/stats", read, "Get statistics of the project's models since the server started", a.stats)
	handle(post, "/v2/repository/index", read, "List the deployments of the token's project and their states", a.repositoryIndex)
	handle(post, "/v2/repository/models/{model}/load", apply, "Reload a deployment that failed to load", a.repositoryLoad)
	handle(post, "/v2/repository/models/{model}/unload", apply, "Unsupported: delete the deployment instead", a.repositoryUnload)
	for _, kind := range []string{"/v2/systemsharedmemory", "/v2/cudasharedmemory"} {
		for _, path := range []string{"/status", "/region/{name}/status"} {
			handle(get, kind+path, infer, "Unsupported: shared memory is not available", a.noRegions)
		}
		for _, path := range []string{"/unregister", "/region/{name}/register", "/region/{name}/unregister"} {
			handle(post, kind+path, infer, "Unsupported: shared memory is not available", a.noRegions)
		}
	}
	for _, method := range []string{get, post} {
		handle(method, "/v2/trace/setting", read, "Get the trace settings (Triton protocol); they are read-only", a.settings(traceSettings))
		handle(method, "/v2/models/{model}/trace/setting", read, "Get the trace settings (Triton protocol); they are read-only", a.settings(traceSettings))
		handle(method, "/v2/logging", read, "Get the log settings (Triton protocol); they are read-only", a.settings(logSettings))
	}
}

// The actions, as serving asks for them again, knowing the object.
const (
	read  = "deployment.read"
	infer = "deployment.infer"
	apply = "deployment.apply"
)

// routeKey is the header for clients that cannot send the parameter route_key:
// requests with the same value meet the same version.
const routeKey = "Falaj-Route-Key"

// enter is the request's project, in which the caller may do the action.
func (a *API) enter(r *http.Request, action string) (string, error) {
	project, err := a.Project(r)
	if err != nil {
		return "", err
	}
	return project, a.Gate(r, action, project)
}

func write(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // the client went away: nobody to tell
}

// Refuse answers an error in the protocol's form.
func (a *API) Refuse(w http.ResponseWriter, r *http.Request, err error) {
	err = a.Ended(r, err)
	status := a.Status(err)
	if errors.Is(err, errLate) {
		status = http.StatusRequestTimeout
	}
	Refuse(w, status, err)
}

// Refuse answers an error with a status in the protocol's form. The text of a
// defect stays inside.
func Refuse(w http.ResponseWriter, status int, err error) {
	text, hint := fault.Brief(err)
	if status == http.StatusInternalServerError {
		text = "internal error"
	} else if hint != "" {
		text += ". " + hint
	}
	if after := fault.RetryAfter(err); after != "" {
		w.Header().Set("Retry-After", after)
	}
	write(w, status, map[string]string{"error": text})
}

// Ours says whether a path is one of this package's protocols.
func Ours(path string) bool {
	return path == "/v2" || strings.HasPrefix(path, "/v2/") || Scores(path)
}

// extensions of Triton's that are there.
var extensions = []string{"binary_tensor_data", "classification", "model_configuration", "model_repository", "parameters", "schedule_policy", "statistics", "trace", "logging"}

func (a *API) server(w http.ResponseWriter, _ *http.Request) {
	write(w, http.StatusOK, map[string]any{"name": "falaj", "version": a.Version, "extensions": extensions})
}

// ready judges what the caller can see: another project's broken model is not
// its business. A token of no project asks for the server alone.
func (a *API) ready(w http.ResponseWriter, r *http.Request) {
	project, err := a.Project(r)
	if err != nil {
		project = ""
	} else if err := a.Gate(r, read, project); err != nil {
		a.Refuse(w, r, err)
		return
	}
	status := http.StatusOK
	if !a.Serving.Ready(project) {
		status = http.StatusBadRequest
	}
	write(w, status, map[string]any{"ready": status == http.StatusOK})
}

type spec struct {
	Name     string           `json:"name"`
	Datatype runtime.Datatype `json:"datatype"`
	Shape    []int64          `json:"shape"`
	// Parameters say what the protocol has no word for.
	Parameters *specParameters `json:"parameters,omitempty"`
}

type specParameters struct {
	Optional bool `json:"optional"` // the model has a default: a request may leave the input out
}

func specs(in []runtime.Spec) []spec {
	out := make([]spec, len(in))
	for i, s := range in {
		out[i] = spec{Name: s.Name, Datatype: s.Datatype, Shape: s.Shape}
		if s.Shape == nil { // any; the protocol has no word for it
			out[i].Shape = []int64{}
		}
	}
	return out
}

// inputsOf are a model's inputs, the optional ones after the others.
func inputsOf(m runtime.Metadata) []spec {
	out := specs(append(slices.Clip(m.Inputs), m.Optional...))
	for i := range out[len(m.Inputs):] {
		out[len(m.Inputs)+i].Parameters = &specParameters{Optional: true}
	}
	return out
}

func (a *API) metadata(w http.ResponseWriter, r *http.Request) {
	d, err := a.find(r)
	if err != nil {
		a.Refuse(w, r, err)
		return
	}
	write(w, http.StatusOK, map[string]any{
		"name": d.Name, "versions": versions(d), "platform": d.Platform, "inputs": inputsOf(d.Metadata), "outputs": specs(d.Outputs),
	})
}

func (a *API) find(r *http.Request) (serving.Description, error) {
	project, err := a.enter(r, read)
	if err != nil {
		return serving.Description{}, err
	}
	return a.Serving.Metadata(r.Context(), project, r.PathValue("model"), r.PathValue("version"))
}

func (a *API) modelReady(w http.ResponseWriter, r *http.Request) {
	project, err := a.enter(r, read)
	var away error
	if err == nil {
		away, err = a.Serving.Answers(r.Context(), project, r.PathValue("model"), r.PathValue("version"))
	}
	if err = cmp.Or(err, away); err != nil {
		a.Refuse(w, r, err)
		return
	}
	write(w, http.StatusOK, map[string]any{"name": r.PathValue("model"), "ready": true})
}

func (a *API) infer(w http.ResponseWriter, r *http.Request) {
	if err := a.answer(w, r); err != nil {
		a.Refuse(w, r, err)
	}
}

// answer answers an inference. Nothing was written when it returns an error.
func (a *API) answer(w http.ResponseWriter, r *http.Request) error {
	project, err := a.enter(r, infer)
	if err != nil {
		return err
	}
	s := a.held.share(r.Context())
	s.in = project
	defer s.done()
	q, err := a.read(r, project, s)
	s.turn.End()
	if err != nil {
		return err
	}
	got, err := a.Serving.Infer(r.Context(), q.Request)
	if err != nil {
		return err
	}
	if err := s.encoding(got.Outputs); err != nil {
		return err
	}
	outputs, err := q.shaped(r.Context(), got.Outputs)
	if err != nil {
		return err
	}
	buffer := heads.Get().(*[]byte)
	head, raw, err := q.encode((*buffer)[:0], strconv.FormatInt(got.Version, 10), got.ID, outputs)
	if err != nil {
		return err
	}
	s.free() // the answer is made; who reads it slowly holds no more than that
	if n := sizeOf(raw); n <= joined {
		head = slices.Grow(head, n)
	}
	whole, err := send(w, r, s, head, raw)
	if whole && cap(head) <= trusted { // a large one is not worth keeping
		*buffer = head
		heads.Put(buffer)
	}
	return err
}

// read is what a request asks.
func (a *API) read(r *http.Request, project string, s *share) (q *ask, err error) {
	head, err := headOf(r)
	if err != nil {
		return nil, err
	}
	route, err := single(r, routeKey)
	if err != nil {
		return nil, err
	}
	body, err := receive(r, head, MaxBody, s)
	if err != nil {
		return nil, err
	}
	name, version := r.PathValue("model"), r.PathValue("version")
	switch {
	case head < 0:
		q, err = decode(body, len(body))
	case head == 0:
		q, err = a.bare(r.Context(), body, project, name, version)
	case head > len(body):
		err = fault.New(fault.Invalid, "%s is %d, and the request has %d bytes", headLength, head, len(body))
	default:
		q, err = decode(body, head)
	}
	if err != nil {
		return nil, err
	}
	q.Project, q.Name, q.Version = project, name, version
	if q.RouteKey == "" {
		q.RouteKey = route
	}
	return q, nil
}

// bare makes a request of nothing but the bytes of a model's only input: one row
// of it, or as many as there are bytes for.
func (a *API) bare(ctx context.Context, body []byte, project, name, version string) (*ask, error) {
	takes, err := a.Serving.Takes(ctx, project, name, version)
	if err != nil {
		return nil, err
	}
	inputs := takes.Inputs
	refuse := func(format string, args ...any) (*ask, error) {
		return nil, fault.New(fault.Invalid, "a request with raw bytes only: "+format, args...).
			WithHint("Send JSON that describes the tensors, and its length in " + headLength + ".")
	}
	if len(inputs) != 1 {
		return refuse("model %q has %d inputs", name, len(inputs))
	}
	in := inputs[0]
	t := runtime.Tensor{Name: in.Name, Datatype: in.Datatype, Shape: append([]int64{}, in.Shape...)}
	if in.Datatype == runtime.Bytes { // all of it is the one element
		for i, n := range t.Shape {
			if t.Shape[i] = 1; n > 1 {
				return refuse("input %q requires %v elements", in.Name, in.Shape)
			}
		}
		if in.Shape == nil {
			t.Shape = []int64{1}
		}
		t.Data = []string{words(body)}
		return &ask{Request: serving.Request{Inputs: []runtime.Tensor{t}}, binary: true}, nil
	}
	varies, size := -1, int64(inference.Sizes[in.Datatype])
	for i, n := range t.Shape {
		switch {
		case n >= 0:
			size = min(size, int64(MaxBody)) * min(n, MaxBody)
		case varies < 0:
			varies = i
		case varies == 0: // that of the rows
			t.Shape[0], varies = 1, i
		default:
			return refuse("input %q has several dynamic dimensions: %v", in.Name, in.Shape)
		}
	}
	if in.Shape == nil {
		return refuse("input %q may have any shape", in.Name)
	}
	if varies >= 0 {
		if size == 0 || int64(len(body))%size != 0 {
			return refuse("%d bytes are not a multiple of the row size of %d bytes", len(body), size)
		}
		t.Shape[varies] = int64(len(body)) / size
	}
	if err := inference.FromRaw(&t, body); err != nil {
		return nil, err
	}
	return &ask{Request: serving.Request{Inputs: []runtime.Tensor{t}}, binary: true}, nil
}
