package httpapi

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"strings"

	"github.com/falaj-ml/falaj/internal/compute"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/identity"
)

// workerRoutes are for the agents on the nodes of remote engines; see package
// worker/protocol.
func (s *Server) workerRoutes(p string) {
	p += "/workloads/{workload}/worker"
	said, file, tar := media{takes: "application/json", gives: "application/json"}, media{takes: "application/octet-stream", gives: "application/json"}, "application/x-tar"
	for _, r := range []struct {
		method, path, summary string
		m                     media
		body                  *Body
		keeps                 bool // beyond what is bounded: a job that cannot say how it goes is lost
	}{
		{"POST", "/join", "Join the gang; returns what to run, or the workers still missing", said, jsonBody, false},
		{"POST", "/beat", "Send a heartbeat; returns pending instructions", said, jsonBody, false},
		{"POST", "/log", "Append to the logs", file, logBody, false},
		{"POST", "/profile", "Upload a profile", said, manifestBody, false},
		{"POST", "/output", "List files of the output, or report an error", said, manifestBody, true},
		{"PUT", "/output", "Upload a file of the output", file, outputBody, true},
		{"POST", "/end", "Report the outcome", said, jsonBody, false},
		{"GET", "/mounts/{mount}", "Download a mount", media{gives: tar}, jsonBody, false},
		{"POST", "/mounts/{mount}/manifest", "Announce the files of an upload; returns the files that are needed", said, manifestBody, true},
		{"PUT", "/mounts/{mount}/tree", "Upload a checkpoint or the output", media{takes: tar, gives: "application/json"}, treeBody, true},
	} {
		declared := s.raw(r.method, p+r.path, "workload.work", "For agents: "+r.summary, r.m, s.work).takes(r.body)
		if !r.keeps {
			declared.keepsNothing()
		}
	}
	s.raw("GET", p+"/secrets", "workload.work", "For agents: Get the secrets of the job", media{gives: "application/json"}, s.jobSecrets)
}

// jobSecrets answers a worker that is about to start the program of a job.
func (s *Server) jobSecrets(w http.ResponseWriter, r *http.Request) {
	workload := r.PathValue("workload")
	err := speaksFor(r, workload)
	var set any
	if err == nil {
		set, err = s.Training.Secrets.Open(r.Context(), workload)
	}
	if err != nil {
		s.fail(w, r, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(set); err != nil {
		s.log.DebugContext(r.Context(), "a worker did not fetch its secrets", slog.Any("err", err))
	}
}

// work hands a request to the engine of the workload, whose own token it must
// have: no other attempt and no person speaks for a worker.
func (s *Server) work(w http.ResponseWriter, r *http.Request) {
	workload := r.PathValue("workload")
	if err := s.serveAgent(w, r, workload); err != nil {
		s.fail(w, r, err)
	}
}

func (s *Server) serveAgent(w http.ResponseWriter, r *http.Request, workload string) error {
	if err := speaksFor(r, workload); err != nil {
		return err
	}
	ctx := r.Context()
	driver, err := s.Compute.Programs.Driver(ctx, compute.WorkloadID(workload))
	if err != nil {
		return err
	}
	agents, ok := driver.(interface {
		ServeAgent(w http.ResponseWriter, r *http.Request, id, path string) error
	})
	if !ok {
		return fault.New(fault.Invalid, "workload %s is on an engine without agents", workload)
	}
	_, path, _ := strings.Cut(r.URL.Path, "/worker/")
	return agents.ServeAgent(w, r, workload, path)
}

// speaksFor refuses whoever does not have the workload's own token.
func speaksFor(r *http.Request, workload string) error {
	if p := identity.From(r.Context()); p.Kind != identity.Attempt || p.ID != workload || string(p.Project) != r.PathValue("project") {
		return fault.New(fault.PermissionDenied, "only the workers of %.80q may do this", workload)
	}
	return nil
}
