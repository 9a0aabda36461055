// Package iceberg speaks the Iceberg REST catalog protocol, so that Spark,
// pyiceberg, Polars and others read and write open datasets as tables. It translates and
// decides nothing.
//
// Source: open-api/rest-catalog-open-api.yaml of Apache Iceberg.
//
// # Map
//
//   - iceberg.go: what happens to a request; the error model.
//   - routes.go is the whole API, and what of the protocol is refused and why.
//   - catalog.go: configuration, namespaces, tables. token.go: the OAuth2 shape
//     in which clients send their token.
//
// # Names
//
// A namespace is a project and a table is an open dataset: flights.weather. There
// is no prefix and no warehouse to choose. A token sees the projects that it may
// read.
package iceberg

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"

	"github.com/falaj-ml/falaj/internal/coding"
	"github.com/falaj-ml/falaj/internal/dataset"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/governance/project"
)

// Datasets is what the protocol asks of datasets.
type Datasets interface {
	Table(ctx context.Context, p project.Name, name string) (dataset.OpenTable, error)
	ListTables(ctx context.Context, p project.Name, page dataset.Page) (names []string, next string, err error)
	CreateTable(ctx context.Context, r dataset.CreateTableRequest) (dataset.OpenTable, error)
	CommitTable(ctx context.Context, p project.Name, name string, c dataset.TableCommit) (dataset.OpenTable, error)
}

// Projects is what it asks of projects.
type Projects interface {
	List(ctx context.Context, limit int, token string) ([]project.Project, string, error)
	One(ctx context.Context, name project.Name) (project.Project, error)
}

// API is the protocol's handlers.
type API struct {
	Datasets Datasets
	Projects Projects
	// Authenticate tells whose token it is, for the one route that brings it in a
	// body.
	Authenticate func(ctx context.Context, token string) (identity.Principal, error)
	// Gate asks whether the caller may do the action in the project.
	Gate func(ctx context.Context, action policy.Action, project string) error
	// Ended takes the error that ends a request, logs and records it, and gives what the
	// caller is told.
	Ended func(r *http.Request, err error) error
}

// root is where the catalog is: clients are given the address with it.
const root = "/iceberg"

// Ours says whether a path is one of this protocol's.
func Ours(path string) bool { return path == root || strings.HasPrefix(path, root+"/") }

// Mux is where routes are added, an http.ServeMux for one.
type Mux interface {
	HandleFunc(pattern string, handler func(http.ResponseWriter, *http.Request))
}

// Register adds the routes to a mux.
func (a *API) Register(mux Mux) {
	for _, r := range Routes() {
		if r.Pattern == tokenPath {
			mux.HandleFunc(r.Method+" "+r.Pattern, a.serveToken)
			continue
		}
		mux.HandleFunc(r.Method+" "+r.Pattern, a.serve(r))
	}
	mux.HandleFunc(root+"/", func(w http.ResponseWriter, r *http.Request) {
		refuse(w, problem{"NoSuchEndpointException", http.StatusNotFound}, "the catalog has nothing at "+clip(r.URL.Path))
	})
}

func (a *API) serve(route Route) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		p := r.PathValue("project")
		if strings.Contains(p, separator) { // clients look for tables in nested namespaces
			a.fail(w, r, route, fault.New(fault.NotFound, "there are no namespaces within namespaces").WithHint("A namespace is a project."))
			return
		}
		if route.Action != "" {
			if err := a.Gate(r.Context(), route.Action, p); err != nil {
				route.missing = noNamespace
				a.fail(w, r, route, err)
				return
			}
		}
		answer, err := route.handle(a, r)
		if err != nil {
			a.fail(w, r, route, err)
			return
		}
		if answer == nil {
			w.WriteHeader(http.StatusNoContent)
			return
		}
		write(w, http.StatusOK, answer)
	}
}

// separator is between the levels of a namespace in a path.
const separator = "\x1f"

// problem is the protocol's name and status of an error.
type problem struct {
	name   string
	status int
}

// What is not there, by route.
var (
	noNamespace = problem{"NoSuchNamespaceException", http.StatusNotFound}
	noTable     = problem{"NoSuchTableException", http.StatusNotFound}
	noView      = problem{"NoSuchViewException", http.StatusNotFound}
	exists      = problem{"AlreadyExistsException", http.StatusConflict}
)

// problems are the protocol's names of our kinds. Clients try again after 503.
var problems = map[fault.Kind]problem{
	fault.Internal:         {"InternalServerError", http.StatusInternalServerError},
	fault.Invalid:          {"BadRequestException", http.StatusBadRequest},
	fault.Unauthenticated:  {"NotAuthorizedException", http.StatusUnauthorized},
	fault.PermissionDenied: {"ForbiddenException", http.StatusForbidden},
	fault.NotFound:         noTable,
	fault.Conflict:         {"CommitFailedException", http.StatusConflict},
	fault.Gone:             noTable,
	fault.TooLarge:         {"BadRequestException", http.StatusRequestEntityTooLarge},
	fault.Exhausted:        {"TooManyRequestsException", http.StatusTooManyRequests},
	fault.Unsupported:      {"UnsupportedOperationException", http.StatusNotAcceptable},
	fault.Unavailable:      {"ServiceUnavailableException", http.StatusServiceUnavailable},
	fault.Timeout:          {"CommitStateUnknownException", http.StatusGatewayTimeout},
}

func (a *API) fail(w http.ResponseWriter, r *http.Request, route Route, err error) {
	respond(w, route, a.Ended(r, err))
}

// Refuse answers an error in the protocol's form.
func Refuse(w http.ResponseWriter, err error) { respond(w, Route{}, err) }

// respond answers an error of a route. The text of a defect stays inside.
func respond(w http.ResponseWriter, route Route, err error) {
	if tooLarge, ok := errors.AsType[*http.MaxBytesError](err); ok {
		err = fault.New(fault.TooLarge, "the request has more than %d bytes", tooLarge.Limit)
	}
	p := problems[fault.KindOf(err)]
	for _, own := range []problem{route.missing, route.conflict} {
		if p.status == own.status {
			p = own
		}
	}
	if fault.Full(err) {
		p.status = http.StatusInsufficientStorage
	}
	if errors.Is(err, coding.ErrUnknown) {
		p = problem{"BadRequestException", http.StatusUnsupportedMediaType}
	}
	text := err.Error()
	if p.status == http.StatusInternalServerError {
		text = "internal error; the server's log has the cause"
	} else if hint := fault.HintOf(err); hint != "" {
		text = strings.TrimSuffix(text, ".") + ". " + hint
	}
	if after := fault.RetryAfter(err); after != "" {
		w.Header().Set("Retry-After", after)
	}
	refuse(w, p, text)
}

func refuse(w http.ResponseWriter, p problem, text string) {
	type model struct {
		Message string `json:"message"`
		Type    string `json:"type"`
		Code    int    `json:"code"`
	}
	write(w, p.status, map[string]model{"error": {text, p.name, p.status}})
}

func write(w http.ResponseWriter, status int, v any) {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // our own structs always encode
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(b) // the client went away: nobody to tell
}

func clip(s string) string { return fault.Clip(s, 200) }
