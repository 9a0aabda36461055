package httpapi

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/falaj-ml/falaj/internal/coding"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/flight"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/httpapi/feast"
	"github.com/falaj-ml/falaj/internal/httpapi/iceberg"
	"github.com/falaj-ml/falaj/internal/httpapi/mlflow"
	"github.com/falaj-ml/falaj/internal/httpapi/oip"
	"github.com/falaj-ml/falaj/internal/httpapi/optuna"
	"github.com/falaj-ml/falaj/internal/httpapi/rpc"
	"github.com/falaj-ml/falaj/internal/resource"
	"github.com/falaj-ml/falaj/internal/serving"
)

// Problem is an RFC 9457 problem document. It implements error and huma's
// StatusError, so it is the one form in which this API says no.
type Problem struct { //nolint:errname // RFC 9457's word
	Type   string          `json:"type" doc:"about:blank, or a URI of the kind of problem"`
	Title  string          `json:"title" doc:"Short name of the status"`
	Status int             `json:"status" doc:"HTTP status"`
	Kind   string          `json:"kind" doc:"Machine-readable kind of the error: invalid, not_found, conflict …"`
	Detail string          `json:"detail,omitempty" doc:"Error message"`
	Hint   string          `json:"hint,omitempty" doc:"Remedy"`
	Errors []ProblemDetail `json:"errors,omitempty" doc:"Errors by field"`

	header http.Header // of the answer, beside the type
}

// ProblemDetail is one wrong field of a request.
type ProblemDetail struct {
	Location string `json:"location,omitempty" doc:"Location, such as body.spec.format"`
	Message  string `json:"message"`
}

func (p *Problem) Error() string { return p.Detail }

// GetStatus is huma's StatusError.
func (p *Problem) GetStatus() int { return p.Status }

// GetHeaders is huma's HeadersError.
func (p *Problem) GetHeaders() http.Header { return p.header }

// ContentType is huma's ContentTypeFilter.
func (p *Problem) ContentType(string) string { return "application/problem+json" }

var statusOf = map[fault.Kind]int{
	fault.Internal:         http.StatusInternalServerError,
	fault.Invalid:          http.StatusBadRequest,
	fault.Unauthenticated:  http.StatusUnauthorized,
	fault.PermissionDenied: http.StatusForbidden,
	fault.NotFound:         http.StatusNotFound,
	fault.Conflict:         http.StatusConflict,
	fault.Gone:             http.StatusGone,
	fault.TooLarge:         http.StatusRequestEntityTooLarge,
	fault.Exhausted:        http.StatusTooManyRequests,
	fault.Unsupported:      http.StatusNotImplemented,
	fault.Unavailable:      http.StatusServiceUnavailable,
	fault.Timeout:          http.StatusGatewayTimeout,
}

// StatusOf is the HTTP status of an error; the one translation.
func StatusOf(err error) int {
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return http.StatusRequestEntityTooLarge
	}
	if errors.Is(err, errSlow) {
		return http.StatusRequestTimeout
	}
	if _, ok := errors.AsType[*serving.MissingError](err); ok {
		return http.StatusUnprocessableEntity // a right request for an entity whose features are not there
	}
	if errors.Is(err, coding.ErrUnknown) {
		return http.StatusUnsupportedMediaType
	}
	if fault.Full(err) {
		return http.StatusInsufficientStorage
	}
	return statusOf[fault.KindOf(err)]
}

// setRetry says after how long it is worth asking again, where err knows. Where a status
// asks to wait and nobody knows, statusWriter says a second.
func setRetry(h http.Header, err error) {
	if after := fault.RetryAfter(err); after != "" {
		h.Set("Retry-After", after)
	}
}

func problemOf(err error) *Problem {
	var p *Problem
	if errors.As(err, &p) {
		return p
	}
	kind := fault.KindOf(err)
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		kind = fault.TooLarge
	}
	p = &Problem{Type: "about:blank", Status: statusOf[kind], Kind: kind.String(), Detail: fault.Told(err), Hint: fault.HintOf(err), header: http.Header{}}
	setRetry(p.header, err)
	if errors.Is(err, errSlow) || errors.Is(err, coding.ErrUnknown) || fault.Full(err) {
		p.Status = StatusOf(err)
	}
	p.Title = http.StatusText(p.Status)
	if kind == fault.Internal { // a defect's text is for our log, not for callers
		p.Detail, p.Hint = "internal error", "The server's log has the cause; please report it."
	}
	return p
}

// fail ends a request that err has stopped.
func (s *Server) fail(w http.ResponseWriter, r *http.Request, err error) {
	refuse(w, r, s.ended(r, err))
}

// refuse answers with err in the form that clients of the path understand: a
// problem, or what the other people's protocols have.
func refuse(w http.ResponseWriter, r *http.Request, err error) {
	status := StatusOf(err)
	if status == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", `Bearer realm="falaj"`)
	}
	setRetry(w.Header(), err)
	switch {
	case oip.Ours(r.URL.Path):
		oip.Refuse(w, status, err)
	case mlflow.Ours(r.URL.Path):
		mlflow.Refuse(w, err)
	case feast.Ours(r.URL.Path):
		feast.Refuse(w, status, err)
	case iceberg.Ours(r.URL.Path):
		iceberg.Refuse(w, err)
	case flight.Ours(r.URL.Path), rpc.Ours(r.URL.Path), optuna.Ours(r.URL.Path), oip.Calls(r.URL.Path):
		flight.Refuse(w, status, err)
	default:
		writeProblem(w, problemOf(err))
	}
}

// ended logs what callers may not see of err and puts a refusal on record. It gives what
// callers are told.
func (s *Server) ended(r *http.Request, err error) error {
	return s.endedCall(r.Context(), r.URL.Path, err)
}

// endedCall is ended of a call that is known by its context.
func (s *Server) endedCall(ctx context.Context, path string, err error) error {
	s.logInternal(ctx, path, err)
	return audit.RecordRefusal(ctx, s.journal, err)
}

func (s *Server) logInternal(ctx context.Context, path string, err error) {
	if errors.Is(err, context.Canceled) && ctx.Err() != nil {
		return // the client went away: no defect
	}
	if StatusOf(err) == http.StatusInternalServerError {
		s.log.ErrorContext(ctx, "request failed", slog.String("path", path), slog.String("error", err.Error()))
	}
}

func writeProblem(w http.ResponseWriter, p *Problem) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(p.Status)
	_ = json.NewEncoder(w).Encode(p) // the client went away: nobody to tell
}

// useProblems makes huma's own refusals (schema, missing field) problems too.
func useProblems() {
	huma.ValidateStrictCasing = true // names are exact
	huma.NewError = func(status int, msg string, errs ...error) huma.StatusError {
		for _, err := range errs {
			if _, ours := errors.AsType[*fault.Error](err); ours { // of reading the body
				return problemOf(err)
			}
		}
		p := &Problem{Type: "about:blank", Status: status, Title: http.StatusText(status), Detail: msg, Kind: kindOfStatus(status).String()}
		if status == http.StatusUnprocessableEntity {
			p.Status, p.Title, p.Kind = http.StatusBadRequest, http.StatusText(http.StatusBadRequest), fault.Invalid.String()
		}
		for _, err := range errs {
			if d, ok := errors.AsType[*huma.ErrorDetail](err); ok {
				p.Errors = append(p.Errors, ProblemDetail{Location: d.Location, Message: d.Message})
				p.Detail = d.Location + ": " + d.Message
				p.Hint = cmp.Or(p.Hint, resource.AcceleratorHint(d.Location))
				continue
			}
			if err != nil {
				p.Errors = append(p.Errors, ProblemDetail{Message: err.Error()})
			}
		}
		return p
	}
}

func kindOfStatus(status int) fault.Kind {
	for kind, s := range statusOf {
		if s == status {
			return kind
		}
	}
	if status >= http.StatusInternalServerError {
		return fault.Internal
	}
	return fault.Invalid
}
