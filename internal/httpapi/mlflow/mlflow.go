// Package mlflow speaks MLflow's REST protocol, so that its unmodified client
// logs into tracking and the registry. It translates and decides nothing.
//
// # Map
//
//   - routes.go is the whole API, and what of MLflow is answered 501 and why.
//   - mlflow.go: what happens to a request; the error envelope.
//   - decode.go: requests, with the leniency of proto2 JSON and MLflow's texts.
//   - wire.go: answers: snake_case names, 64-bit integers as numbers, NaN as text.
//   - experiments.go runs.go loggedmodels.go registry.go artifacts.go multipart.go
//     webhooks.go: handlers.
//   - guard.go: refuses paths that are not plain before any routing.
//
// # Order on every request
//
// The server before us authenticates and bounds. Here: the project of the token
// → its permission for the route → a bounded, decoded body → the service, which
// asks for the object. MLflow cannot name a project, so a token must be bound
// to one.
package mlflow

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"

	"github.com/falaj-ml/falaj/internal/coding"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/monitoring/webhook"
	"github.com/falaj-ml/falaj/internal/registry"
	"github.com/falaj-ml/falaj/internal/tracking"
)

// Version is the MLflow release whose protocol this is; GET /version says it.
const Version = "3.17.2"

// Authorizer answers whether the context's principal may act.
type Authorizer interface {
	Allow(ctx context.Context, action policy.Action, object policy.Object) error
}

// Config is what an API needs.
type Config struct {
	Tracking tracking.Services
	Registry registry.Services
	Webhooks *webhook.Service
	Authz    Authorizer
	// Ended takes the error that ends a request, logs and records it, and gives what the
	// caller is told; nil changes nothing.
	Ended func(r *http.Request, err error) error

	MaxBody int64 // bytes of a JSON body; 0 is 20 MiB, for the profiles of data sets
}

// API answers MLflow's routes. Safe for concurrent use.
type API struct {
	tracking tracking.Services
	registry registry.Services
	webhooks *webhook.Service
	authz    Authorizer
	ended    func(r *http.Request, err error) error
	maxBody  int64
}

// New makes an API.
func New(cfg Config) *API {
	a := &API{tracking: cfg.Tracking, registry: cfg.Registry, webhooks: cfg.Webhooks, authz: cfg.Authz, ended: cfg.Ended, maxBody: cfg.MaxBody}
	if a.ended == nil {
		a.ended = func(_ *http.Request, err error) error { return err }
	}
	if a.maxBody == 0 {
		a.maxBody = 20 << 20
	}
	return a
}

// Mux is where routes are added, an http.ServeMux for one.
type Mux interface {
	HandleFunc(pattern string, handler func(http.ResponseWriter, *http.Request))
}

// Register adds the routes to a mux. Put Guard before that mux.
func (a *API) Register(mux Mux) {
	for _, r := range Routes() {
		mux.HandleFunc(r.Method+" "+r.Pattern, a.serve(r))
	}
	for _, prefix := range []string{"/api/2.0/mlflow/", "/api/3.0/mlflow/", "/ajax-api/2.0/mlflow/", "/ajax-api/3.0/mlflow/", "/api/2.0/mlflow-artifacts/", "/ajax-api/2.0/mlflow-artifacts/"} {
		mux.HandleFunc(prefix, func(w http.ResponseWriter, r *http.Request) {
			writeError(w, http.StatusNotFound, "ENDPOINT_NOT_FOUND", "No API found for '"+r.Method+" "+clip(r.URL.Path)+"'.")
		})
	}
}

// call is one request on its way.
type call struct {
	w       http.ResponseWriter
	r       *http.Request
	project project.Name
}

// done is what a handler returns that has answered by itself.
type done struct{}

func (a *API) serve(route Route) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if route.Unsupported != "" {
			writeError(w, http.StatusNotImplemented, "NOT_IMPLEMENTED", route.Unsupported)
			return
		}
		c := &call{w: w, r: r}
		if route.Action != "" {
			who := identity.From(r.Context())
			if who.Project == "" {
				a.fail(c, fault.New(fault.PermissionDenied, "the token of %s is not bound to a project, which MLflow requires", who).
					WithHint("Create one with `falaj token create -p NAME`."))
				return
			}
			c.project = who.Project
			action := route.Action
			if route.actionOf != nil {
				action = route.actionOf(r)
			}
			if err := a.authz.Allow(r.Context(), action, policy.Object{Project: string(c.project)}); err != nil {
				a.fail(c, err)
				return
			}
		}
		if !route.stream {
			r.Body = http.MaxBytesReader(w, r.Body, a.maxBody)
		}
		answer, err := route.handle(a, c)
		if err != nil {
			a.fail(c, err)
			return
		}
		if _, ok := answer.(done); ok {
			return
		}
		writeJSON(w, http.StatusOK, answer)
	}
}

// handle makes a handler of a function that takes a decoded request.
func handle[Q any](f func(a *API, c *call, q *Q) (any, error)) func(*API, *call) (any, error) {
	return func(a *API, c *call) (any, error) {
		q := new(Q)
		if err := decodeRequest(c.r, q); err != nil {
			return nil, err
		}
		return f(a, c, q)
	}
}

// codes are MLflow's names and statuses of our kinds.
var codes = map[fault.Kind]struct {
	name   string
	status int
}{
	fault.Internal:         {"INTERNAL_ERROR", http.StatusInternalServerError},
	fault.Invalid:          {"INVALID_PARAMETER_VALUE", http.StatusBadRequest},
	fault.Unauthenticated:  {"UNAUTHENTICATED", http.StatusUnauthorized},
	fault.PermissionDenied: {"PERMISSION_DENIED", http.StatusForbidden},
	fault.NotFound:         {"RESOURCE_DOES_NOT_EXIST", http.StatusNotFound},
	fault.Conflict:         {"RESOURCE_CONFLICT", http.StatusConflict},
	fault.Gone:             {"RESOURCE_DOES_NOT_EXIST", http.StatusNotFound},
	fault.TooLarge:         {"INVALID_PARAMETER_VALUE", http.StatusRequestEntityTooLarge},
	fault.Exhausted:        {"RESOURCE_EXHAUSTED", http.StatusTooManyRequests},
	fault.Unsupported:      {"NOT_IMPLEMENTED", http.StatusNotImplemented},
	fault.Unavailable:      {"TEMPORARILY_UNAVAILABLE", http.StatusServiceUnavailable},
	fault.Timeout:          {"DEADLINE_EXCEEDED", http.StatusGatewayTimeout},
}

// exists turns a conflict of a create into the code that clients look for.
func exists[T any](v T, err error) (T, error) {
	if fault.Is(err, fault.Conflict) {
		err = &existsError{err}
	}
	return v, err
}

type existsError struct{ err error }

func (e *existsError) Error() string { return e.err.Error() }
func (e *existsError) Unwrap() error { return e.err }

func (a *API) fail(c *call, err error) {
	Refuse(c.w, a.ended(c.r, err))
}

// Refuse answers with an error in the protocol's form; it gives the status. The
// text of a defect stays inside.
func Refuse(w http.ResponseWriter, err error) int {
	if tooLarge, ok := errors.AsType[*http.MaxBytesError](err); ok {
		err = fault.New(fault.TooLarge, "the request has more than %d bytes", tooLarge.Limit)
	}
	code := codes[fault.KindOf(err)]
	if _, ok := errors.AsType[*existsError](err); ok {
		code.name, code.status = "RESOURCE_ALREADY_EXISTS", http.StatusBadRequest
	}
	if fault.Full(err) {
		code.status = http.StatusInsufficientStorage
	}
	if errors.Is(err, coding.ErrUnknown) {
		code.name, code.status = "INVALID_PARAMETER_VALUE", http.StatusUnsupportedMediaType
	}
	message := err.Error()
	if hint := fault.HintOf(err); hint != "" {
		if !strings.HasSuffix(message, ".") && !strings.HasSuffix(message, "?") {
			message += "."
		}
		message += " " + hint
	}
	if code.status == http.StatusInternalServerError {
		message = "internal error; the server's log has the cause"
	}
	if after := fault.RetryAfter(err); after != "" {
		w.Header().Set("Retry-After", after)
	}
	writeError(w, code.status, code.name, message)
	return code.status
}

func writeError(w http.ResponseWriter, status int, code, message string) {
	out := map[string]string{"error_code": code, "message": message}
	if c, ok := classes[code]; ok {
		out["error_class"], out["sqlstate"] = c.class, c.state
	}
	writeJSON(w, status, out)
}

// classes are what newer servers say beside a code, for dashboards.
var classes = map[string]struct{ class, state string }{
	"INTERNAL_ERROR": {"CLIENT_INTERNAL_ERROR", "XXM00"}, "TEMPORARILY_UNAVAILABLE": {"CLIENT_INTERNAL_ERROR", "XXM00"},
	"INVALID_PARAMETER_VALUE": {"INVALID_PARAMETER_VALUE", "KAM00"}, "BAD_REQUEST": {"INVALID_PARAMETER_VALUE", "KAM00"},
	"PERMISSION_DENIED": {"PERMISSION_DENIED", "KAM00"}, "RESOURCE_ALREADY_EXISTS": {"RESOURCE_ALREADY_EXISTS", "KAM00"},
	"RESOURCE_DOES_NOT_EXIST": {"RESOURCE_NOT_FOUND", "KAM00"}, "ENDPOINT_NOT_FOUND": {"RESOURCE_NOT_FOUND", "KAM00"},
}

// answers are buffers for them, which have up to some hundred KiB.
var answers = sync.Pool{New: func() any { return new(bytes.Buffer) }}

// maxAnswer is how large a buffer may be to be used again.
const maxAnswer = 1 << 20

func writeJSON(w http.ResponseWriter, status int, v any) {
	b := answers.Get().(*bytes.Buffer)
	b.Reset()
	if err := json.NewEncoder(b).Encode(v); err != nil {
		panic(err) // our own structs always encode
	}
	text := bytes.TrimSuffix(b.Bytes(), []byte("\n"))
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(text)))
	w.WriteHeader(status)
	// If it fails the client went away: nobody to tell, and HTTP/2 may still read the text.
	if _, err := w.Write(text); err == nil && b.Cap() <= maxAnswer {
		answers.Put(b)
	}
}

func serveHealth(_ *API, c *call) (any, error) {
	_, err := io.WriteString(c.w, "OK")
	return done{}, err
}

func serveVersion(_ *API, c *call) (any, error) {
	_, err := io.WriteString(c.w, Version)
	return done{}, err
}

func serveInfo(*API, *call) (any, error) {
	return map[string]any{
		"store_type": "SqlStore", "workspaces_enabled": false, "trace_archival_enabled": false,
		"multipart_uploads_enabled": true, "multipart_downloads_enabled": false,
		"presigned_upload_run_id_supported": true, "presigned_upload_model_id_supported": true, // that a request may name either
		"features_enabled": map[string]bool{"gateway": false},
	}, nil
}
