// Package oip speaks the Open Inference Protocol (version 2) over HTTP, in
// JSON: health, metadata, inference, and errors in the protocol's own form,
// {"error": "…"}. A deployment's name is the protocol's model name.
//
// Source: the Open Inference Protocol's specification/protocol/inference_rest.md.
package oip

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strconv"
	"strings"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/serving"
	"github.com/falaj-ml/falaj/internal/serving/runtime"
)

// Serving is what the protocol asks of serving.
type Serving interface {
	Metadata(ctx context.Context, project, name, version string) (serving.Description, error)
	Infer(ctx context.Context, r serving.Request) (serving.Answer, error)
	// Ready reports whether all of a project's models answer; of no project, "",
	// whether the server has looked at every deployment once.
	Ready(project string) bool
}

// API is the protocol's handlers.
type API struct {
	Serving Serving
	Version string                                // of Falaj
	Project func(r *http.Request) (string, error) // the project that the request's token is bound to
	Status  func(err error) int                   // HTTP status of an error
	Failed  func(r *http.Request, err error)      // logs what callers may not see
	// Gate asks whether the caller may do the action in the project.
	Gate func(r *http.Request, action, project string) error
}

// Register adds the routes. action is what the route takes in the token's
// project; Gate is asked for it before a body is read. Empty: a known caller.
func (a *API) Register(handle func(method, path, action, summary string, h http.HandlerFunc)) {
	get, post := http.MethodGet, http.MethodPost
	handle(get, "/v2", "", "The server", a.server)
	handle(get, "/v2/health/live", "", "The server is there", func(w http.ResponseWriter, _ *http.Request) {
		write(w, http.StatusOK, map[string]any{"live": true})
	})
	handle(get, "/v2/health/ready", "", "All models of the token's project can answer", a.ready)
	for _, v := range []string{"", "/versions/{version}"} {
		handle(get, "/v2/models/{model}"+v, read, "A model's inputs and outputs", a.metadata)
		handle(get, "/v2/models/{model}"+v+"/ready", read, "A model can answer", a.modelReady)
		handle(post, "/v2/models/{model}"+v+"/infer", infer, "Ask a model for predictions", a.infer)
	}
}

// The actions, as serving asks for them again, knowing the object.
const (
	read  = "deployment.read"
	infer = "deployment.infer"
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
	status := a.Status(err)
	if status == http.StatusInternalServerError {
		a.Failed(r, err)
	}
	Refuse(w, status, err)
}

// Refuse answers an error with a status in the protocol's form. The text of a
// defect stays inside.
func Refuse(w http.ResponseWriter, status int, err error) {
	text := err.Error()
	if status == http.StatusInternalServerError {
		text = "something failed inside Falaj"
	} else if hint := fault.HintOf(err); hint != "" {
		text += ". " + hint
	}
	write(w, status, map[string]string{"error": text})
}

// Ours says whether a path is one of this protocol's.
func Ours(path string) bool { return path == "/v2" || strings.HasPrefix(path, "/v2/") }

func (a *API) server(w http.ResponseWriter, _ *http.Request) {
	write(w, http.StatusOK, map[string]any{"name": "falaj", "version": a.Version, "extensions": []string{}})
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
}

func specs(in []runtime.Spec) []spec {
	out := make([]spec, len(in))
	for i, s := range in {
		out[i] = spec(s)
		if s.Shape == nil { // any; the protocol has no word for it
			out[i].Shape = []int64{}
		}
	}
	return out
}

func (a *API) metadata(w http.ResponseWriter, r *http.Request) {
	d, err := a.find(r)
	if err != nil {
		a.Refuse(w, r, err)
		return
	}
	versions := make([]string, len(d.Versions))
	for i, v := range d.Versions {
		versions[i] = strconv.FormatInt(v, 10)
	}
	write(w, http.StatusOK, map[string]any{
		"name": d.Name, "versions": versions, "platform": d.Platform, "inputs": specs(d.Inputs), "outputs": specs(d.Outputs),
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
	d, err := a.find(r)
	if err != nil {
		a.Refuse(w, r, err)
		return
	}
	write(w, http.StatusOK, map[string]any{"name": d.Name, "ready": true})
}

func (a *API) infer(w http.ResponseWriter, r *http.Request) {
	project, err := a.enter(r, infer)
	if err != nil {
		a.Refuse(w, r, err)
		return
	}
	if r.Header.Get("Inference-Header-Content-Length") != "" {
		a.Refuse(w, r, fault.New(fault.Unsupported, "binary tensors are not offered here").WithHint("Send JSON."))
		return
	}
	body, err := readAll(r)
	if err != nil {
		a.Refuse(w, r, err)
		return
	}
	asked, err := decode(body)
	if err != nil {
		a.Refuse(w, r, err)
		return
	}
	asked.Project, asked.Name, asked.Version = project, r.PathValue("model"), r.PathValue("version")
	if asked.RouteKey == "" {
		asked.RouteKey = r.Header.Get(routeKey)
	}
	answer, err := a.Serving.Infer(r.Context(), asked)
	if err != nil {
		a.Refuse(w, r, err)
		return
	}
	out, err := encode(nil, asked.Name, strconv.FormatInt(answer.Version, 10), answer.ID, answer.Outputs)
	if err != nil {
		a.Refuse(w, r, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(out)))
	_, _ = w.Write(out) //nolint:gosec // JSON, never a page; and a client that went away cannot be told
}

// readAll reads a body that the edge has bounded, in one allocation when the
// length is known.
func readAll(r *http.Request) ([]byte, error) {
	if r.ContentLength > 0 && r.ContentLength < 1<<26 {
		b := make([]byte, r.ContentLength)
		_, err := io.ReadFull(r.Body, b)
		return b, err
	}
	return io.ReadAll(r.Body)
}
