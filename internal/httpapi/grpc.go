package httpapi

import (
	"net/http"
	"path"

	"google.golang.org/grpc/codes"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/feature"
	"github.com/falaj-ml/falaj/internal/flight"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/httpapi/oip"
	"github.com/falaj-ml/falaj/internal/httpapi/optuna"
	"github.com/falaj-ml/falaj/internal/httpapi/rpc"
)

// rpcRoutes adds the gRPC service of online features: requests of HTTP/2 like others,
// so that they pass what all requests pass.
func (s *Server) rpcRoutes() {
	s.declare(http.MethodPost, rpc.ReadPath, feature.ActionOnline).takes(readBody).keepsNothing()
	s.mux.HandleFunc("POST "+rpc.ReadPath, func(w http.ResponseWriter, r *http.Request) {
		p, err := projectOf(r)
		if err == nil {
			err = s.gate(r.Context(), feature.ActionOnline, p)
		}
		if err != nil {
			s.fail(w, r, err)
			return
		}
		if err := rpc.Read(w, r, project.Name(p), s.Features.OnlineReads); err != nil {
			s.failCall(w, r, err)
		}
	})
	s.noCall(rpc.Prefix)
}

// inferenceCalls adds the Open Inference Protocol's calls.
func (s *Server) inferenceCalls(a *oip.API) {
	a.RegisterCalls(func(path, action string, h http.HandlerFunc) {
		declared := s.declare(http.MethodPost, path, policy.Action(action)).takes(callBody).keepsNothing().atGateway()
		if oip.Streams(path) {
			declared.takes(streamBody)
		}
		s.mux.HandleFunc("POST "+path, h)
	}, s.fail)
	s.noCall(oip.CallPrefix).atGateway()
}

// optunaCalls adds the storage of Optuna's studies.
func (s *Server) optunaCalls() {
	a := &optuna.API{
		Tuning: s.Tuning, Project: projectOf, Gate: s.gate, Refuse: s.fail,
		Fail: func(w http.ResponseWriter, r *http.Request, code codes.Code, err error) {
			if code == codes.OK {
				s.failCall(w, r, err)
				return
			}
			flight.RefuseAs(w, http.StatusOK, code, s.ended(r, err))
		},
	}
	a.Register(func(path string, action policy.Action, h http.HandlerFunc) {
		declared := s.declare(http.MethodPost, path, action).takes(optunaBody)
		if !optuna.Keeps(path) {
			declared.keepsNothing()
		}
		s.mux.HandleFunc("POST "+path, h)
	})
	s.noCall(optuna.Prefix)
}

// noCall answers calls of a service that do not exist.
func (s *Server) noCall(prefix string) *Route {
	declared := s.declare(http.MethodPost, prefix, "").keepsNothing()
	s.mux.HandleFunc("POST "+prefix, func(w http.ResponseWriter, r *http.Request) {
		s.failCall(w, r, fault.New(fault.Unsupported, "%s is not supported", path.Base(r.URL.Path)))
	})
	return declared
}

// failCall answers a call that came as far as its handler: to HTTP all is well, and
// the status of gRPC says what is not. Clients look at that only then.
func (s *Server) failCall(w http.ResponseWriter, r *http.Request, err error) {
	flight.Refuse(w, http.StatusOK, s.ended(r, err))
}

// GRPC is the edge for a listener that speaks gRPC and nothing else.
func (s *Server) GRPC() http.Handler {
	return s.guard(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !rpc.Ours(r.URL.Path) && !oip.Calls(r.URL.Path) && !optuna.Ours(r.URL.Path) {
			s.failCall(w, r, fault.New(fault.Unsupported, "this listener serves gRPC only: falaj.online.v1.Features, inference.GRPCInferenceService and optuna.StorageService").WithHint("Use the HTTP listener for the API, and the Flight listener for Arrow Flight."))
			return
		}
		s.mux.ServeHTTP(w, r)
	}))
}
