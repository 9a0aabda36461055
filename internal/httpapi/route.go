package httpapi

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/feature"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/httpapi/iceberg"
	"github.com/falaj-ml/falaj/internal/httpapi/mlflow"
	"github.com/falaj-ml/falaj/internal/httpapi/oip"
	"github.com/falaj-ml/falaj/internal/jsondoc"
	"github.com/falaj-ml/falaj/internal/share"
)

// bodies is how operations read and write JSON. huma decodes a body twice: into an interface,
// which it compares with the schema and whose numbers are float64, and into the operation's
// struct, whose interfaces keep numbers as they are written.
var bodies = huma.Format{
	Marshal: func(w io.Writer, v any) error {
		if large, ok := v.(interface{ Size() int64 }); ok && large.Size() >= share.Heavy {
			if held, ok := w.(*heldWriter); ok { // whose turn ends with the first byte
				_ = held.turn.Begin(held.request.Context()) // an answer that is there goes out in any case
			}
		}
		return huma.DefaultJSONFormat.Marshal(w, v)
	},
	Unmarshal: func(text []byte, into any) error {
		if _, compared := into.(*any); compared {
			return jsondoc.Decode(text, into, jsondoc.Floats)
		}
		return jsondoc.Decode(text, into)
	},
}

// body is an answer with a JSON body.
type body[T any] struct{ Body T }

// Page is the query of a list.
type Page struct {
	Size  int    `query:"page_size" minimum:"0" maximum:"1000" doc:"Page size; 0 means 100"`
	Token string `query:"page_token" maxLength:"512" doc:"next_page_token of the previous page"`
}

// items is a page of a list.
type items[T any] struct {
	Items []T    `json:"items"`
	Next  string `json:"next_page_token,omitempty" doc:"page_token of the next page; empty on the last page"`
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
	ETag string `header:"ETag" doc:"Revision of the object; send it as If-Match to apply the manifest of a project or dataset only to this revision"`
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

// media are the types of what an operation that is not JSON takes and gives.
type media struct{ takes, gives string }

var text = &huma.Schema{Type: "string"}

// query is a parameter of an operation that huma does not decode.
func query(name, doc string) *huma.Param {
	return &huma.Param{Name: name, In: "query", Schema: text, Description: doc}
}

// onceParam is the header that creating requests may have.
var onceParam = &huma.Param{
	Name: idempotencyKey, In: "header", Schema: text,
	Description: "Idempotency key, a unique random value: a retry of the request within 24 hours returns the same response and changes nothing. A different request with the same key is a conflict.",
}

// refusals are the statuses of errors that every operation may answer.
var refusals = []int{400, 401, 403, 404, 409, 413, 429, 500, 503, 507}

// operation describes a route.
func operation(method, path string, action policy.Action, summary string) huma.Operation {
	op := huma.Operation{
		OperationID: operationID(method, path), Method: method, Path: path, Summary: summary, DefaultStatus: http.StatusOK,
		Description: needs(action), Tags: []string{tag(path)},
		Security:   []map[string][]string{{"token": {}}},
		Responses:  map[string]*huma.Response{},
		Extensions: map[string]any{permission: string(action)},
	}
	switch {
	case method == http.MethodDelete:
		op.DefaultStatus = http.StatusNoContent
	case method == http.MethodPost && strings.HasSuffix(path, "s"):
		op.DefaultStatus = http.StatusCreated
	}
	return op
}

// permission is the extension of the OpenAPI document that names an operation's
// action.
const permission = "x-falaj-permission"

// route adds an operation of /api/v1. Before its body is decoded the gate asks
// whether the caller may do the action to anything in the path's project.
func route[I, O any](s *Server, method, path string, action policy.Action, summary string, handle func(context.Context, *I) (*O, error)) *Route {
	op := operation(method, path, action, summary)
	op.MaxBodyBytes, op.BodyReadTimeout = s.cfg.MaxBody, -1 // the server bounds both
	op.Errors = refusals
	op.Middlewares = huma.Middlewares{func(ctx huma.Context, next func(huma.Context)) {
		if err := s.gate(ctx.Context(), action, ctx.Param("project")); err != nil {
			s.refuse(ctx, err)
			return
		}
		r, w := humago.Unwrap(ctx)
		if method != http.MethodPost || r.Header.Get(idempotencyKey) == "" {
			next(ctx)
			return
		}
		s.idempotent(w, r, func(w http.ResponseWriter, r *http.Request) {
			next(humago.NewContext(ctx.Operation(), r, w))
		})
	}}
	if method == http.MethodPost {
		op.Parameters = append(op.Parameters, onceParam)
	}
	declared := s.declare(method, path, action)
	huma.Register(s.api, op, func(ctx context.Context, in *I) (*O, error) {
		share.TurnOf(ctx).End() // the body is decoded
		out, err := handle(ctx, in)
		if err != nil {
			return nil, problemOf(s.endedCall(ctx, path, err))
		}
		return out, nil
	})
	delete(op.Responses, "422") // huma's answer to a wrong field; ours is 400
	return declared
}

// raw adds an operation whose body or answer is not JSON. The OpenAPI document
// has it with its media types.
func (s *Server) raw(method, path string, action policy.Action, summary string, m media, handle http.HandlerFunc, params ...*huma.Param) *Route {
	declared := s.declare(method, path, action)
	s.mux.HandleFunc(method+" "+path, func(w http.ResponseWriter, r *http.Request) {
		if err := s.gate(r.Context(), action, r.PathValue("project")); err != nil {
			s.fail(w, r, err)
			return
		}
		s.idempotent(w, r, handle)
	})
	if method == http.MethodPost && m.takes == "application/yaml" { // uploads take no key
		params = append(params, onceParam)
	}
	s.describe(operation(method, path, action, summary), m, "application/problem+json", s.problemSchema(), params...)
	return declared
}

// problemSchema is the form of our refusals.
func (s *Server) problemSchema() *huma.Schema {
	return s.api.OpenAPI().Components.Schemas.Schema(reflect.TypeFor[*Problem](), true, "")
}

// describe puts a route that huma does not serve into the OpenAPI document.
func (s *Server) describe(op huma.Operation, m media, refusal string, problem *huma.Schema, params ...*huma.Param) {
	op.Responses[strconv.Itoa(op.DefaultStatus)] = &huma.Response{Description: http.StatusText(op.DefaultStatus), Content: map[string]*huma.MediaType{m.gives: {}}}
	for _, status := range refusals {
		op.Responses[strconv.Itoa(status)] = &huma.Response{Description: http.StatusText(status), Content: map[string]*huma.MediaType{refusal: {Schema: problem}}}
	}
	for part := range strings.SplitSeq(op.Path, "/") {
		if name, ok := strings.CutPrefix(part, "{"); ok {
			name, _, _ = strings.Cut(name, "}")
			op.Parameters = append(op.Parameters, &huma.Param{Name: strings.Trim(name, "."), In: "path", Required: true, Schema: text})
		}
	}
	op.Parameters = append(op.Parameters, params...)
	if m.takes != "" {
		op.RequestBody = &huma.RequestBody{Required: true, Content: map[string]*huma.MediaType{m.takes: {}}}
	}
	s.api.OpenAPI().AddOperation(&op)
}

func needs(action policy.Action) string {
	if action == "" {
		return "Requires a token; permissions are checked per object."
	}
	return "Requires the permission `" + string(action) + "`."
}

// inference adds a route of the Open Inference Protocol, whose errors have that
// protocol's form.
func (s *Server) inference(method, path, action, summary string, h http.HandlerFunc) {
	s.declare(method, path, policy.Action(action)).takes(inferenceBody).keepsNothing().atGateway()
	s.mux.HandleFunc(method+" "+path, h)
	m := media{gives: "application/json"}
	if method == http.MethodPost {
		m.takes = "application/json"
	}
	op := operation(method, oip.Documented(path), policy.Action(action), summary)
	op.DefaultStatus = http.StatusOK
	s.describe(op, m, "application/json", &huma.Schema{Type: "object", Properties: map[string]*huma.Schema{"error": text}, Required: []string{"error"}})
}

// feast adds a route of Feast's feature server, whose errors are a JSON string.
func (s *Server) feast(method, path string, action policy.Action, summary string, h http.HandlerFunc) {
	declared := s.declare(method, path, action).takes(feastBody)
	if action == feature.ActionOnline {
		declared.readsOnly()
	}
	s.mux.HandleFunc(method+" "+path, h)
	m := media{gives: "application/json"}
	if method == http.MethodPost {
		m.takes = "application/json"
	}
	op := operation(method, path, action, summary)
	op.DefaultStatus = http.StatusOK
	s.describe(op, m, "application/json", text)
}

// open adds a route that answers GET without credentials; see opened.
func (s *Server) open(path string, h http.HandlerFunc) *Route {
	declared := s.declare(http.MethodGet, path, "")
	declared.Open = true
	s.mux.HandleFunc("GET "+path, h)
	return declared
}

// Route is one line of the API: what it asks of callers, and what they may ask of the server.
type Route struct {
	Method string // empty: any
	Path   string // as http.ServeMux takes it
	// Action is asked of the path's project, of the token's for clients that
	// cannot name one, else of the installation. Empty: asked by the handler for
	// each object, or nothing of anybody is told.
	Action policy.Action
	Open   bool // answers without credentials
	// Keeps reports that the server may keep more after a request than before: it is refused
	// while the reserve of the disk is used up. Other routes keep nothing new (or a line,
	// where not acting would do harm), or make room.
	Keeps bool
	// Reads reports a POST that changes nothing: its answer may be refused when it is done.
	Reads   bool
	Gateway bool  // a gateway has it, too
	Body    *Body // what requests carry
}

func (r *Route) takes(b *Body) *Route { r.Body = b; return r }
func (r *Route) keepsNothing() *Route { r.Keeps = false; return r }
func (r *Route) readsOnly()           { r.Keeps, r.Reads = false, true }
func (r *Route) atGateway() *Route    { r.Gateway = true; return r }

// declare says what there is to know of a route beside its handler.
func (s *Server) declare(method, path string, action policy.Action) *Route {
	r := s.mux.route(strings.TrimSpace(method + " " + path))
	r.Action = action
	return r
}

// Routes lists everything that the server answers, in the order in which it was
// added: what is not declared is in the list, too.
func (s *Server) Routes() []Route {
	out := make([]Route, 0, len(s.mux.patterns))
	for _, pattern := range s.mux.patterns {
		out = append(out, *s.mux.routes[pattern])
	}
	return out
}

// mux collects routes and their handlers; serve adds them to the ServeMux.
type mux struct {
	*http.ServeMux
	patterns []string
	routes   map[string]*Route
	handlers map[string]http.HandlerFunc
	served   bool // a route is added to the ServeMux at once
}

func newMux() *mux {
	return &mux{ServeMux: http.NewServeMux(), routes: map[string]*Route{}, handlers: map[string]http.HandlerFunc{}}
}

// route is what is declared of a pattern. By default it takes a JSON document, and keeps
// something unless its method says otherwise.
func (m *mux) route(pattern string) *Route {
	r := m.routes[pattern]
	if r == nil {
		method, path, ok := strings.Cut(pattern, " ")
		if !ok {
			method, path = "", pattern
		}
		r = &Route{Method: method, Path: path, Body: jsonBody}
		switch method {
		case http.MethodPost, http.MethodPut, http.MethodPatch:
			r.Keeps = true
		}
		m.routes[pattern] = r
	}
	return r
}

// HandleFunc adds a route. It is the only way in: Handle of the ServeMux is not
// used.
func (m *mux) HandleFunc(pattern string, h func(http.ResponseWriter, *http.Request)) {
	m.route(pattern)
	m.patterns = append(m.patterns, pattern)
	if m.served {
		m.ServeMux.HandleFunc(pattern, h)
		return
	}
	m.handlers[pattern] = h
}

// serve serves the routes, or those of a gateway. guard, unless it is nil, comes before those that
// keep something.
func (m *mux) serve(gateway bool, guard func(*Route, http.HandlerFunc) http.HandlerFunc) {
	m.patterns = slices.DeleteFunc(m.patterns, func(pattern string) bool { return gateway && !m.routes[pattern].Gateway })
	for _, pattern := range m.patterns {
		r, h := m.routes[pattern], m.handlers[pattern]
		if r.Keeps && guard != nil {
			h = guard(r, h)
		}
		m.ServeMux.HandleFunc(pattern, h)
	}
	m.served = true
}

// unknown is what the server does of a request that no route takes.
var unknown = &Route{Body: jsonBody}

// of is the route that takes a request.
func (m *mux) of(r *http.Request) *Route {
	_, pattern := m.Handler(r)
	if route := m.routes[pattern]; route != nil {
		return route
	}
	return unknown
}

// gate asks the permission to act on something of the project; an empty
// project is the installation. A token bound to a project stays in it.
func (s *Server) gate(ctx context.Context, action policy.Action, project string) error {
	if action == "" {
		return nil
	}
	return s.authz.Allow(ctx, action, policy.Object{Project: project})
}

func (s *Server) refuse(ctx huma.Context, err error) {
	p := problemOf(s.endedCall(ctx.Context(), ctx.URL().Path, err))
	ctx.SetHeader("Content-Type", "application/problem+json")
	for name := range p.header {
		ctx.SetHeader(name, p.header.Get(name))
	}
	ctx.SetStatus(p.Status)
	_ = json.NewEncoder(ctx.BodyWriter()).Encode(p) // the client went away: nobody to tell
}

func operationID(method, path string) string {
	path = strings.TrimPrefix(strings.TrimPrefix(path, "/api/v1/"), "/")
	path = strings.NewReplacer("{", "", "}", "", "/", "-", ".", "-", ":", "-").Replace(path)
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
			WithHint("Create one with `falaj token create --project P`, or send the header Falaj-Project.")
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

// foreign adds the protocols of MLflow and of Iceberg's catalogs.
func (s *Server) foreign() {
	api := mlflow.New(mlflow.Config{Tracking: s.Tracking, Registry: s.Registry, Webhooks: s.Webhooks, Authz: s.authz, Ended: s.ended})
	api.Register(s.mux)
	for _, r := range mlflow.Routes() {
		declared := s.declare(r.Method, r.Pattern, r.Action).takes(mlflowBody)
		switch {
		case r.Upload:
			declared.takes(fileBody)
		case r.Reads:
			declared.readsOnly()
		case r.KeepsNothing:
			declared.keepsNothing()
		}
	}
	catalog := &iceberg.API{
		Datasets: s.Datasets.Tables, Projects: s.Projects, Gate: s.gate,
		Authenticate: func(ctx context.Context, token string) (identity.Principal, error) {
			p, err := s.auth.Authenticate(ctx, token)
			if err == nil && p.Strayed(ctx) {
				return identity.Principal{}, strayed(p)
			}
			return p, err
		},
		Ended: s.ended,
	}
	catalog.Register(s.mux)
	for _, r := range iceberg.Routes() {
		declared := s.declare(r.Method, r.Pattern, r.Action)
		if r.KeepsNothing {
			declared.keepsNothing()
		}
	}
}
