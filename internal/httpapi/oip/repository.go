package oip

import (
	"context"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/jsondoc"
	"github.com/falaj-ml/falaj/internal/serving"
)

// Triton's extensions: its repository is the project's deployments.

// indexed is a version of a deployment.
type indexed struct {
	Name    string `json:"name"`
	Version string `json:"version"`
	State   string `json:"state"`
	Reason  string `json:"reason,omitempty"`
}

// Triton's words for the states.
var states = map[serving.State]string{serving.Loading: "LOADING", serving.Ready: "READY", serving.Failed: "UNAVAILABLE"}

// maxIndex bounds the deployments of an index.
const maxIndex = 10_000

// index lists the versions of a project's deployments, or those that answer.
func (a *API) index(ctx context.Context, project string, ready bool) ([]indexed, error) {
	out := []indexed{}
	after := ""
	for range maxIndex / page {
		all, err := a.Serving.List(ctx, project, after, page)
		if err != nil {
			return nil, err
		}
		for _, d := range all {
			for _, t := range d.Targets {
				if t.Role != serving.Shadow && (!ready || t.State == serving.Ready) {
					out = append(out, indexed{d.Name, strconv.FormatInt(t.Version, 10), states[t.State], t.Reason})
				}
			}
			after = d.Name
		}
		if len(all) < page {
			break
		}
	}
	return out, nil
}

const page = 500

// load loads again what is deployed.
func (a *API) load(ctx context.Context, project, name string, parameters bool) error {
	if parameters {
		return fault.New(fault.Unsupported, "load parameters are not supported: a deployment is defined by its manifest").WithHint("Change it with `falaj apply`.")
	}
	return a.Serving.Load(ctx, project, name)
}

func (a *API) repositoryIndex(w http.ResponseWriter, r *http.Request) {
	var q struct {
		Ready bool `json:"ready"`
	}
	project, err := a.enter(r, read)
	if err == nil {
		err = a.bodyOf(r, &q)
	}
	var rows []indexed
	if err == nil {
		rows, err = a.index(r.Context(), project, q.Ready)
	}
	a.reply(w, r, rows, err)
}

func (a *API) repositoryLoad(w http.ResponseWriter, r *http.Request) {
	var q struct {
		Parameters map[string]any `json:"parameters"`
	}
	project, err := a.enter(r, apply)
	if err == nil {
		err = a.bodyOf(r, &q)
	}
	if err == nil {
		err = a.load(r.Context(), project, r.PathValue("model"), len(q.Parameters) > 0)
	}
	if err != nil {
		a.Refuse(w, r, err)
	} // else an empty answer, as Triton's
}

func (a *API) repositoryUnload(w http.ResponseWriter, r *http.Request) {
	_, err := a.enter(r, apply)
	if err == nil {
		err = errNoUnload
	}
	a.Refuse(w, r, err)
}

func (a *API) noRegions(w http.ResponseWriter, r *http.Request) {
	_, err := a.enter(r, infer)
	if err == nil {
		err = errNoRegions
	}
	a.Refuse(w, r, err)
}

// bodyOf reads an optional body of JSON.
func (a *API) bodyOf(r *http.Request, into any) error {
	s := a.held.share(r.Context())
	defer s.free()
	b, err := receive(r, -1, trusted, s)
	if err != nil || len(strings.TrimSpace(string(b))) == 0 {
		return err
	}
	if err := jsondoc.Decode(b, into); err != nil {
		return fault.New(fault.Invalid, "the request is not valid JSON: %v", err)
	}
	return nil
}

func (a *API) reply(w http.ResponseWriter, r *http.Request, v any, err error) {
	if err != nil {
		a.Refuse(w, r, err)
		return
	}
	write(w, http.StatusOK, v)
}

func versions(d serving.Description) []string {
	out := make([]string, len(d.Versions))
	for i, v := range d.Versions {
		out[i] = strconv.FormatInt(v, 10)
	}
	return out
}

// Settings of Triton's as they are here: there is no trace of its kind, and what the
// server logs is its operator's to say.
var (
	traceSettings = map[string]any{
		"trace_level": []string{"OFF"}, "trace_rate": "1000", "trace_count": "-1", "log_frequency": "0", "trace_file": "", "trace_mode": "triton",
	}
	logSettings = map[string]any{
		"log_file": "", "log_info": true, "log_warning": true, "log_error": true, "log_verbose_level": int64(0), "log_format": "default",
	}
)

// listOf is a setting as gRPC has it.
func listOf(v any) []string {
	if s, ok := v.(string); ok {
		return []string{s}
	}
	return v.([]string)
}

func unchangeable(name string) error {
	return fault.New(fault.Unsupported, "the setting %.80q is read-only", name).
		WithHint("Logs and traces are configured for the server: see `falaj up --help`.")
}

// settings answers with them, and refuses to change any.
func (a *API) settings(is map[string]any) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		project, err := a.enter(r, read)
		if err == nil && r.PathValue("model") != "" {
			_, err = a.Serving.Metadata(r.Context(), project, r.PathValue("model"), "")
		}
		var q map[string]any
		if err == nil && r.Method == http.MethodPost {
			err = a.bodyOf(r, &q)
		}
		for name, v := range q {
			was, known := is[name]
			if same, _ := json.Marshal(was); err == nil && (!known || v != nil && !equal(same, v)) {
				err = unchangeable(name)
			}
		}
		a.reply(w, r, is, err)
	}
}

// equal reports whether a value that came as JSON is what was written.
func equal(written []byte, v any) bool {
	b, err := json.Marshal(v)
	return err == nil && string(b) == string(written)
}
