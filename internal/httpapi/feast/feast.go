// Package feast speaks the HTTP protocol of Feast's feature server and the Arrow
// Flight commands of its offline server, so that the unmodified Feast SDK has Falaj
// as its remote online and offline store: reads, writes, materialisation and
// training data, with errors in the form that the SDK turns back into its own.
// A view, a feature service and a join key have the same names in both; the
// project is the token's.
//
// # Map
//
//   - feast.go: the routes, errors.
//   - read.go: get-online-features.
//   - write.go: push and write-to-online-store.
//   - materialise.go: materialize and materialize-incremental.
//   - offline.go: what comes by Arrow Flight (package flight).
//   - wire.go: what of their JSON is not Go's: columns in their order, instants.
//   - plain.go: the request of a read in the form that clients send.
//
// # Differences
//
// Feast's server is the example, and docs/guides/feast.md the list of where this
// one answers otherwise, on purpose: TTL holds online as it does offline, a value
// that is null says NULL_VALUE, integers stay exact, a null key is found nowhere
// instead of an error, a missing key is an error instead of found nowhere, and what
// a client did wrong is never a 500.
//
// Source: Feast 0.67, feast/feature_server.py, feast/offline_server.py and the remote.py of
// feast/infra/online_stores and feast/infra/offline_stores.
package feast

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"regexp"
	"strconv"
	"strings"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/feature"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/governance/project"
)

// Features is what the protocol asks of features.
type Features interface {
	Online(ctx context.Context, r feature.OnlineRequest) (feature.OnlineAnswer, error)
	View(ctx context.Context, p project.Name, ref string) (feature.View, error)
	Views(ctx context.Context, p project.Name, after string, limit int) ([]feature.View, error)
	Freshness(ctx context.Context, p project.Name, view string) (feature.Freshness, error)
	Materialise(ctx context.Context, r feature.MaterialiseRequest) (feature.Run, error)
	WaitRun(ctx context.Context, p project.Name, run feature.RunID) (feature.Run, error)
	Push(ctx context.Context, r feature.PushRequest) (feature.View, error)
	CancelRun(ctx context.Context, p project.Name, run feature.RunID) (feature.Run, error)
}

// API is the protocol's handlers.
type API struct {
	Features Features
	Project  func(r *http.Request) (string, error) // the project that the request's token is bound to
	Status   func(err error) int                   // HTTP status of an error
	// Ended takes the error that ends a request, logs and records it, and gives what the
	// caller is told.
	Ended func(r *http.Request, err error) error
	// Gate asks whether the caller may do the action in the project.
	Gate func(r *http.Request, action policy.Action, project string) error
}

// MaxBody bounds a request, in bytes.
const MaxBody = 32 << 20

// paths are the protocol's.
const (
	readPath        = "/get-online-features"
	pushPath        = "/push"
	writePath       = "/write-to-online-store"
	materialisePath = "/materialize"
	incrementalPath = "/materialize-incremental"
)

// Ours says whether a path is one of this protocol's.
func Ours(path string) bool {
	switch path {
	case readPath, pushPath, writePath, materialisePath, incrementalPath:
		return true
	}
	return false
}

// Register adds the routes. action is what the route takes in the token's
// project, asked before a body is read. GET /health is MLflow's, and serves both.
func (a *API) Register(handle func(method, path string, action policy.Action, summary string, h http.HandlerFunc)) {
	post := func(path string, action policy.Action, summary string, act func(*http.Request, project.Name) (answer, error)) {
		handle(http.MethodPost, path, action, summary, func(w http.ResponseWriter, r *http.Request) {
			out, err := a.enter(r, action, act)
			if err != nil {
				a.refuse(w, r, err)
				return
			}
			write(w, out.status, out.body)
		})
	}
	post(readPath, feature.ActionOnline, "Read features from the online store (Feast protocol)", a.read)
	post(pushPath, feature.ActionPush, "Write rows of a view to the online store, by the name of its push source (Feast protocol)", a.push)
	post(writePath, feature.ActionPush, "Write rows of a view to the online store (Feast protocol)", a.write)
	post(materialisePath, feature.ActionMaterialise, "Materialise views into the online store (Feast protocol)", a.materialise)
	post(incrementalPath, feature.ActionMaterialise, "Materialise the newest values of views into the online store (Feast protocol)", a.incremental)
}

// answer is what a handler says: 200 and null, as Feast's server, when it is zero.
type answer struct {
	status int
	body   any // a *bytes.Buffer has JSON already, and is released
}

func (a *API) enter(r *http.Request, action policy.Action, act func(*http.Request, project.Name) (answer, error)) (answer, error) {
	p, err := a.Project(r)
	if err != nil {
		return answer{}, err
	}
	if err := a.Gate(r, action, p); err != nil {
		return answer{}, err
	}
	return act(r, project.Name(p))
}

func write(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	text, encoded := v.(*bytes.Buffer)
	if encoded {
		w.Header().Set("Content-Length", strconv.Itoa(text.Len()))
	}
	if status != 0 {
		w.WriteHeader(status)
	}
	if encoded {
		if _, err := w.Write(text.Bytes()); err == nil { // after an error net/http may still read it
			release(text)
		}
		return
	}
	_ = json.NewEncoder(w).Encode(v) // the client went away: nobody to tell
}

func (a *API) refuse(w http.ResponseWriter, r *http.Request, err error) {
	err = a.Ended(r, err)
	Refuse(w, a.Status(err), err)
}

// noView is the error for a view that is not there, which may be an on-demand one of Feast's.
func noView(err error) error {
	if f, ok := errors.AsType[*fault.Error](err); ok && f.Kind == fault.NotFound {
		err = f.WithHint("%s", strings.TrimSpace(f.Hint+" On-demand feature views of Feast are not supported: declare the expressions as `computed` of a FeatureService, and request it by feature_service."))
	}
	return classError{err, "FeatureViewNotFoundException"}
}

// classError names the class of Feast's that an error is there; others are
// FeastError.
type classError struct {
	error
	class string
}

func (e classError) Unwrap() error { return e.error }

// Refuse answers an error with a status, in the form that Feast's clients raise
// again: a JSON string, in which is a JSON object with a class of theirs. What does
// not fit is 422 there. The text of a defect stays inside.
func Refuse(w http.ResponseWriter, status int, err error) {
	switch status {
	case http.StatusBadRequest, http.StatusNotImplemented:
		status = http.StatusUnprocessableEntity
	}
	text := fault.Told(err)
	if status == http.StatusInternalServerError {
		text = "internal error"
	} else if hint := fault.HintOf(err); hint != "" {
		text += ". " + hint
	}
	if after := fault.RetryAfter(err); after != "" {
		w.Header().Set("Retry-After", after)
	}
	detail, _ := json.Marshal(map[string]string{"module": "feast.errors", "class": classOf(err), "message": text}) // strings only
	write(w, status, string(detail))
}

func classOf(err error) string {
	if c, ok := errors.AsType[classError](err); ok {
		return c.class
	}
	switch fault.KindOf(err) {
	case fault.PermissionDenied, fault.Unauthenticated:
		return "FeastPermissionError"
	case fault.NotFound:
		return "FeastObjectNotFoundException"
	default:
		return "FeastError"
	}
}

// versioned is Feast's way to name a version: "weather@v2:temp".
var versioned = regexp.MustCompile(`^([^@:]+)@v([0-9]+)(:|$)`)

// refOf is a view or feature as Falaj names it: "weather@2:temp".
func refOf(feast string) string {
	if !strings.Contains(feast, "@v") { // most; a request may name hundreds
		return feast
	}
	return versioned.ReplaceAllString(feast, "$1@$2$3")
}
