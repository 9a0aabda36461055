package httpapi

import (
	"context"
	"net/http"

	"github.com/falaj-ml/falaj/internal/governance/deletion"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/training/checkpoint"
)

func (s *Server) checkpointRoutes(p string) {
	route(s, "GET", p+"/jobs/{job}/checkpoints", "job.read", "List the retained checkpoints of a job and the reason each is retained", s.listCheckpoints)
	s.raw("GET", p+"/jobs/{job}/checkpoints/{name}/archive", "checkpoint.read", "Download a retained checkpoint as a tar archive", media{gives: "application/x-tar"}, s.checkpointArchive)
	route(s, "DELETE", p+"/jobs/{job}/checkpoints/{name}", "checkpoint.delete", "Delete a retained checkpoint", s.deleteCheckpoint)
}

func (s *Server) listCheckpoints(ctx context.Context, in *InJob) (*body[items[checkpoint.Record]], error) {
	all, err := s.Checkpoints.List(ctx, project.Name(in.Project), in.Job)
	return listed(all, "", err)
}

func (s *Server) deleteCheckpoint(ctx context.Context, in *struct {
	InJob
	Deleting
	Name string `path:"name" maxLength:"200" doc:"Name, which selects its newest checkpoint, or identifier"`
},
) (*none, error) {
	if err := s.Deletions.Allow(ctx, project.Name(in.Project), "checkpoint", in.Job+"/"+in.Name, deletion.Request{Yes: in.Yes}); err != nil {
		return nil, err
	}
	return nil, s.Checkpoints.Delete(ctx, project.Name(in.Project), in.Job, in.Name)
}

// checkpointArchive streams a checkpoint; one that turns out to be damaged on
// the way is broken off.
func (s *Server) checkpointArchive(w http.ResponseWriter, r *http.Request) {
	record, write, err := s.Checkpoints.Archive(r.Context(), project.Name(r.PathValue("project")), r.PathValue("job"), r.PathValue("name"))
	if err != nil {
		s.fail(w, r, err)
		return
	}
	w.Header().Set("Content-Type", "application/x-tar")
	w.Header().Set("Falaj-Checkpoint", record.ID)
	counted := &firstByte{ResponseWriter: w}
	if err := write(r.Context(), counted); err != nil {
		if !counted.written {
			s.fail(w, r, err)
			return
		}
		s.logInternal(r.Context(), r.URL.Path, err)
		panic(http.ErrAbortHandler)
	}
}
