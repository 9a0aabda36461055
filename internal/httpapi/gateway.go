package httpapi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/serving"
	"github.com/falaj-ml/falaj/internal/serving/gateway"
)

// gatewayRoutes are how servers elsewhere come to a project's models.
func (s *Server) gatewayRoutes(p string) {
	route(s, "GET", p+"/gateways", gateway.ActionRead, "List gateways and their last reported status", s.listGateways)
	route(s, "GET", p+"/gateways/{name}", gateway.ActionRead, "Get a gateway and its last reported status", s.oneGateway)
	route(s, "DELETE", p+"/gateways/{name}", gateway.ActionApply, "Delete a gateway; it stops serving at its next sync", s.deleteGateway)
	route(s, "POST", p+"/gateways/{name}/sync", gateway.ActionPull, "Report a gateway's current state and get its desired state", s.syncGateway)
	s.raw("GET", p+"/gateways/{name}/models/{model}/versions/{version}/files/{file}", gateway.ActionPull, "Download a file of a model version assigned to a gateway", media{gives: "application/octet-stream"}, s.gatewayFile)
	s.raw("POST", p+"/gateways/{name}/hand-over", gateway.ActionPull, "Upload a batch of a gateway's predictions; returns the position reached in its log", media{takes: "application/octet-stream", gives: "application/json"}, s.gatewayPredictions,
		query("deployment", "Deployment of the predictions"), query("id", "Its id"), query("instance", "Identifier of the gateway's log"), query("clock", "Clock of the gateway (RFC 3339)"), query("from", "Log position before the batch"), query("to", "Log position at the end of the batch")).takes(handOverBody)
}

// gatewayKind is how a manifest of a Gateway is applied.
func (s *Server) gatewayKind() applier {
	return applier{gate: gateway.ActionApply, apply: decoded(func(ctx context.Context, p, name string, spec gateway.Spec, dry bool) (applied, error) {
		_, change, err := s.Gateways.Apply(ctx, p, name, spec, dry)
		return applied{Result: string(change)}, err
	}), show: func(ctx context.Context, p, name string) (string, any, error) {
		g, err := s.Gateways.One(ctx, p, name)
		return g.Name, g.Spec, err
	}}
}

// InGateway is the path of a gateway.
type InGateway struct {
	InProject
	Name string `path:"name" maxLength:"63" doc:"Gateway"`
}

func (s *Server) listGateways(ctx context.Context, in *struct {
	InProject
	Page
},
) (*body[items[gateway.Gateway]], error) {
	size := in.Size
	if size == 0 {
		size = 100
	}
	all, err := s.Gateways.List(ctx, in.Project, in.Token, size+1)
	next := ""
	if len(all) > size {
		all = all[:size]
		next = all[size-1].Name
	}
	return listed(all, next, err)
}

func (s *Server) oneGateway(ctx context.Context, in *InGateway) (*tagged[gateway.Gateway], error) {
	g, err := s.Gateways.One(ctx, in.Project, in.Name)
	return revised(g, g.Revision, err)
}

func (s *Server) deleteGateway(ctx context.Context, in *InGateway) (*none, error) {
	return &none{}, s.Gateways.Delete(ctx, in.Project, in.Name)
}

func (s *Server) syncGateway(ctx context.Context, in *struct {
	InGateway
	Body gateway.Report
},
) (*body[gateway.Wanted], error) {
	return one(s.Gateways.Sync(ctx, in.Project, in.Name, in.Body))
}

func (s *Server) gatewayFile(w http.ResponseWriter, r *http.Request) {
	f, size, err := s.Gateways.File(r.Context(), r.PathValue("project"), r.PathValue("name"), r.PathValue("model"), r.PathValue("version"), r.PathValue("file"))
	if err != nil {
		s.fail(w, r, err)
		return
	}
	defer func() { _ = f.Close() }()
	from, err := fileFrom(r.Header.Get("Range"), size)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	if size > 0 {
		w.Header().Set("Content-Length", strconv.FormatInt(size-from, 10))
	}
	if from > 0 {
		w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, size-1, size))
		w.WriteHeader(http.StatusPartialContent)
	}
	_, err = io.CopyN(io.Discard, f, from) // it is checked as a whole
	sent := int64(0)
	if err == nil {
		sent, err = io.Copy(w, f)
	}
	if err != nil && sent == 0 && from == 0 {
		w.Header().Del("Content-Length")
		s.fail(w, r, err)
		return
	}
	if err != nil { // cut off, so that nobody takes it for the whole
		s.logInternal(r.Context(), r.URL.Path, err)
		panic(http.ErrAbortHandler)
	}
}

// fileFrom is where a file goes on that a gateway has a part of: "bytes=N-". Ranges of
// another form, and of files whose size is not known, are as none.
func fileFrom(header string, size int64) (int64, error) {
	text, ok := strings.CutPrefix(header, "bytes=")
	text, open := strings.CutSuffix(text, "-")
	from, err := strconv.ParseInt(text, 10, 64)
	if !ok || !open || err != nil || from < 0 || size <= 0 {
		return 0, nil //nolint:nilerr // who asks in another way is given the whole
	}
	if from >= size {
		return 0, fault.New(fault.Invalid, "the file has %d bytes; offset %d is beyond its end", size, from)
	}
	return from, nil
}

func (s *Server) gatewayPredictions(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	records, err := io.ReadAll(io.LimitReader(r.Body, gateway.MaxBatch+1))
	if large, is := errors.AsType[*http.MaxBytesError](err); is {
		err = fault.New(fault.TooLarge, "the batch has more than %d bytes", large.Limit)
	}
	if err != nil {
		s.fail(w, r, err)
		return
	}
	var clock time.Time
	if text := q.Get("clock"); text != "" {
		if clock, err = time.Parse(time.RFC3339Nano, text); err != nil {
			s.fail(w, r, fault.New(fault.Invalid, "clock: %.40q is not a timestamp such as 2026-01-02T15:04:05Z", text))
			return
		}
	}
	position, err := s.Gateways.Accept(r.Context(), r.PathValue("project"), r.PathValue("name"), gateway.Batch{
		Clock: clock, Deployment: q.Get("deployment"), DeploymentID: serving.ID(q.Get("id")), Instance: q.Get("instance"), From: q.Get("from"), To: q.Get("to"), Records: records,
	})
	if err != nil {
		s.fail(w, r, err)
		return
	}
	answer(w, http.StatusOK, struct {
		Position string `json:"position"`
	}{position})
}
