package httpapi

import (
	"context"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/httpapi/mlflow"
)

// body is an answer with a JSON body.
type body[T any] struct{ Body T }

// Page is the query of a list.
type Page struct {
	Size  int    `query:"page_size" minimum:"0" maximum:"1000" doc:"Objects in a page; 0 is 100"`
	Token string `query:"page_token" maxLength:"512" doc:"next_page_token of the page before"`
}

// items is a page of a list.
type items[T any] struct {
	Items []T    `json:"items"`
	Next  string `json:"next_page_token,omitempty" doc:"Ask with it as page_token for the next page; empty at the end"`
}

func listed[T any](all []T, next string, err error) (*body[items[T]], error) {
	if all == nil {
		all = []T{}
	}
	return &body[items[T]]{items[T]{Items: all, Next: next}}, err
}

func one[T any](v T, err error) (*body[T], error) { return &body[T]{v}, err }

// tagged is an answer whose ETag is the object's revision.
type tagged[T any] struct {
	ETag string `header:"ETag" doc:"The revision; send it as If-Match with a change"`
	Body T
}

func revised[T any](v T, revision int64, err error) (*tagged[T], error) {
	return &tagged[T]{ETag: strconv.Quote(strconv.FormatInt(revision, 10)), Body: v}, err
}

// none is the answer without a body.
type none struct{}

// InProject is the path of everything in a project.
type InProject struct {
	Project string `path:"project" maxLength:"63" doc:"Project"`
}

// route adds an operation of /api/v1. Before its body is decoded the gate asks
// whether the caller may do the action to anything in the path's project.
func route[I, O any](s *Server, method, path string, action policy.Action, summary string, handle func(context.Context, *I) (*O, error)) {
	status := http.StatusOK
	switch method {
	case http.MethodDelete:
		status = http.StatusNoContent
	case http.MethodPost:
		if strings.HasSuffix(path, "s") && !strings.Contains(path, ":") {
			status = http.StatusCreated
		}
	}
	op := huma.Operation{
		OperationID: operationID(method, path), Method: method, Path: path, Summary: summary, DefaultStatus: status,
		Description: needs(action), Tags: []string{tag(path)},
		Security:     []map[string][]string{{"token": {}}},
		MaxBodyBytes: s.cfg.MaxBody, BodyReadTimeout: -1, // the server bounds both
		Metadata: map[string]any{"action": string(action)},
		Errors:   []int{400, 401, 403, 404, 409, 413, 429, 500, 503},
		Middlewares: huma.Middlewares{func(ctx huma.Context, next func(huma.Context)) {
			if err := s.gate(ctx.Context(), action, ctx.Param("project")); err != nil {
				s.refuse(ctx, err)
				return
			}
			r, w := humago.Unwrap(ctx)
			if method != http.MethodPost || r.Header.Get(idempotencyKey) == "" {
				next(ctx)
				return
			}
			s.once(w, r, func(w http.ResponseWriter, r *http.Request) {
				next(humago.NewContext(ctx.Operation(), r, w))
			})
		}},
	}
	if method == http.MethodPost {
		op.Parameters = append(op.Parameters, onceParam)
	}
	s.record(method, path, action)
	huma.Register(s.api, op, func(ctx context.Context, in *I) (*O, error) {
		out, err := handle(ctx, in)
		if err != nil {
			s.logInternal(ctx, path, err)
			return nil, problemOf(err)
		}
		return out, nil
	})
}

// raw adds an operation whose body or answer is not JSON. The OpenAPI document
// has it with its media types.
func (s *Server) raw(method, path string, action policy.Action, summary, takes, gives string, handle http.HandlerFunc) {
	s.record(method, path, action)
	s.mux.HandleFunc(method+" "+path, func(w http.ResponseWriter, r *http.Request) {
		if err := s.gate(r.Context(), action, r.PathValue("project")); err != nil {
			s.fail(w, r, err)
			return
		}
		s.once(w, r, handle)
	})
	s.describe(method, path, action, summary, takes, gives)
}

// onceParam is the header that creating requests may have.
var onceParam = &huma.Param{
	Name: idempotencyKey, In: "header", Schema: &huma.Schema{Type: "string"},
	Description: "A fresh random key: a repetition of this request within 24 hours then gets this answer and changes nothing. Another request with the key is a conflict.",
}

// describe puts a route that huma does not serve into the OpenAPI document.
func (s *Server) describe(method, path string, action policy.Action, summary, takes, gives string) {
	op := &huma.Operation{
		OperationID: operationID(method, path), Method: method, Path: path, Summary: summary,
		Description: needs(action), Tags: []string{tag(path)},
		Security:  []map[string][]string{{"token": {}}},
		Responses: map[string]*huma.Response{"200": {Description: "Done", Content: map[string]*huma.MediaType{gives: {}}}},
	}
	for part := range strings.SplitSeq(path, "/") {
		if name, ok := strings.CutPrefix(part, "{"); ok {
			op.Parameters = append(op.Parameters, &huma.Param{Name: strings.Trim(name, "{}."), In: "path", Required: true, Schema: &huma.Schema{Type: "string"}})
		}
	}
	if takes != "" {
		op.RequestBody = &huma.RequestBody{Required: true, Content: map[string]*huma.MediaType{takes: {}}}
	}
	s.api.OpenAPI().AddOperation(op)
}

func needs(action policy.Action) string {
	if action == "" {
		return "Needs a token; each object's permission is asked."
	}
	return "Needs the permission `" + string(action) + "`."
}

// inference adds a route of the Open Inference Protocol.
func (s *Server) inference(method, path, action, summary string, h http.HandlerFunc) {
	s.record(method, path, policy.Action(action))
	s.mux.HandleFunc(method+" "+path, h)
	takes := ""
	if method == http.MethodPost {
		takes = "application/json"
	}
	s.describe(method, path, policy.Action(action), summary, takes, "application/json")
}

// Route is one line of the API, for the test that walks all of them.
type Route struct {
	Method, Path string
	Action       policy.Action // asked by the gate; empty: asked by the handler for each object
}

func (s *Server) record(method, path string, action policy.Action) {
	s.routes = append(s.routes, Route{method, path, action})
}

// Routes lists the API.
func (s *Server) Routes() []Route { return s.routes }

// gate asks the permission to act on something of the project; an empty
// project is the installation. A token bound to a project stays in it.
func (s *Server) gate(ctx context.Context, action policy.Action, project string) error {
	if action == "" {
		return nil
	}
	return s.authz.Allow(ctx, action, policy.Object{Project: project})
}

func (s *Server) refuse(ctx huma.Context, err error) {
	s.logInternal(ctx.Context(), ctx.URL().Path, err)
	p := problemOf(err)
	ctx.SetHeader("Content-Type", "application/problem+json")
	ctx.SetStatus(p.Status)
	_ = json.NewEncoder(ctx.BodyWriter()).Encode(p) // the client went away: nobody to tell
}

func operationID(method, path string) string {
	path = strings.TrimPrefix(strings.TrimPrefix(path, "/api/v1/"), "/")
	path = strings.NewReplacer("{", "", "}", "", "/", "-", ".", "-").Replace(path)
	return strings.ToLower(method) + "-" + path
}

// tag groups operations by the noun of the path.
func tag(path string) string {
	parts := strings.Split(strings.TrimPrefix(path, "/api/v1/"), "/")
	if parts[0] == "projects" && len(parts) > 2 {
		return parts[2]
	}
	return parts[0]
}

// projectOf is the project of a client that cannot name one in its path: the
// one that its token is bound to, by itself or by the Falaj-Project header.
func projectOf(r *http.Request) (string, error) {
	p := identity.From(r.Context()).Project
	if p == "" {
		return "", fault.New(fault.PermissionDenied, "this token is not bound to a project").
			WithHint("Make one that is, by `falaj token create --project P`, or send the header Falaj-Project.")
	}
	return string(p), nil
}

// narrow binds the request to the project of the Falaj-Project header, which is
// how a token of several projects is used with clients that cannot name one.
func narrow(p identity.Principal, header string) (identity.Principal, error) {
	if header == "" || string(p.Project) == header {
		return p, nil
	}
	if p.Project != "" {
		return p, fault.New(fault.PermissionDenied, "this token is bound to project %s", p.Project)
	}
	p.Project = project.Name(header)
	return p, p.Project.Validate()
}

// foreign adds the MLflow protocol.
func (s *Server) foreign(mux *http.ServeMux) {
	api := mlflow.New(mlflow.Config{Tracking: s.Tracking, Registry: s.Registry, Authz: s.authz, Log: s.log})
	api.Register(mux)
	for _, r := range mlflow.Routes() {
		s.record(r.Method, r.Pattern, "")
	}
}
