package httpapi

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"strings"

	"github.com/falaj-ml/falaj/internal/compute"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/training"
)

// workerRoutes are for the agents on the nodes of remote engines; see package
// worker/protocol.
func (s *Server) workerRoutes(p string) {
	p += "/workloads/{workload}/worker"
	said, tar := media{takes: "application/json", gives: "application/json"}, "application/x-tar"
	for _, r := range []struct {
		method, path, summary string
		m                     media
	}{
		{"POST", "/join", "Join the gang; returns what to run, or the workers still missing", said},
		{"POST", "/beat", "Send a heartbeat; returns pending instructions", said},
		{"POST", "/log", "Append to the logs", media{takes: "application/octet-stream", gives: "application/json"}},
		{"POST", "/profile", "Upload a profile", said},
		{"POST", "/output", "List files of the output, or report an error", said},
		{"PUT", "/output", "Upload a file of the output", media{takes: "application/octet-stream", gives: "application/json"}},
		{"POST", "/end", "Report the outcome", said},
		{"GET", "/mounts/{mount}", "Download a mount", media{gives: tar}},
		{"POST", "/mounts/{mount}/manifest", "Announce the files of an upload; returns the files that are needed", said},
		{"PUT", "/mounts/{mount}/tree", "Upload a checkpoint or the output", media{takes: tar, gives: "application/json"}},
	} {
		s.raw(r.method, p+r.path, "workload.work", "For agents: "+r.summary, r.m, s.work)
	}
	s.raw("GET", p+"/secrets", "workload.work", "For agents: Get the secrets of the job", media{gives: "application/json"}, s.jobSecrets)
}

// jobSecrets answers a worker that is about to start the program of a job.
func (s *Server) jobSecrets(w http.ResponseWriter, r *http.Request) {
	workload := r.PathValue("workload")
	err := speaksFor(r, workload)
	var set any
	if err == nil {
		set, err = s.Training.Secrets(r.Context(), training.AttemptID(workload))
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
	driver, err := s.Compute.Driver(ctx, compute.WorkloadID(workload))
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

// worked reports a request of an agent that may be large: a tree or a file of the output,
// or the manifest of a tree, a profile or a list of the output, which are JSON.
func worked(r *http.Request) (tree, large bool) {
	rest, ok := strings.CutPrefix(r.URL.Path, "/api/v1/projects/")
	parts := strings.Split(rest, "/")
	if ok && len(parts) == 5 && parts[1] == "workloads" && parts[3] == "worker" {
		switch parts[4] {
		case "profile":
			return false, r.Method == http.MethodPost
		case "output":
			return r.Method == http.MethodPut, r.Method == http.MethodPost
		}
	}
	if !ok || len(parts) != 7 || parts[1] != "workloads" || parts[3] != "worker" || parts[4] != "mounts" {
		return false, false
	}
	return r.Method == http.MethodPut && parts[6] == "tree", r.Method == http.MethodPost && parts[6] == "manifest"
}
