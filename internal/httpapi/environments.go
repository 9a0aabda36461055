package httpapi

import (
	"context"
	"net/http"
	"strconv"
	"time"

	"github.com/falaj-ml/falaj/internal/environment"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/training"
)

func (s *Server) environmentRoutes(p string) {
	route(s, "POST", p+"/environments/{name}/build", "environment.apply", "Rebuild an environment with the newest allowed versions", s.buildEnvironment)
	route(s, "GET", p+"/environments/{name}/check", "environment.read", "Check which pools an environment is compatible with", s.checkEnvironment)
	route(s, "GET", p+"/environments/{name}/diff", "environment.read", "Compare two environments", s.diffEnvironments)
	s.raw("GET", p+"/environments/{name}/sbom", "environment.read", "Get an environment's SBOM (CycloneDX 1.5)",
		media{gives: "application/vnd.cyclonedx+json"}, s.environmentMaterials)
	route(s, "POST", p+"/doctor", "job.submit", "Start a two-worker diagnostic job on a pool", s.startDoctor)
	route(s, "POST", "/api/v1/environments/prune", "environment.prune", "Remove unused environment files and images", s.pruneEnvironments).keepsNothing()
}

// InEnvironment is the path of an environment.
type InEnvironment struct {
	InProject
	Name string `path:"name" maxLength:"135" doc:"Environment, or name@digest"`
}

func (s *Server) buildEnvironment(ctx context.Context, in *struct {
	InProject
	Name string `path:"name" maxLength:"63" doc:"Environment"`
},
) (*tagged[environment.Environment], error) {
	e, err := s.Environments.Build(ctx, project.Name(in.Project), in.Name)
	e.SBOM = nil
	return revised(e, e.Revision, err)
}

func (s *Server) checkEnvironment(ctx context.Context, in *struct{ InEnvironment }) (*body[environment.Checked], error) {
	c, err := s.Environments.Fits(ctx, project.Name(in.Project), in.Name)
	return &body[environment.Checked]{c}, err
}

func (s *Server) diffEnvironments(ctx context.Context, in *struct {
	InEnvironment
	With string `query:"with" maxLength:"135" required:"true" doc:"The other environment, or name@digest"`
},
) (*body[environment.Difference], error) {
	d, err := s.Environments.Diff(ctx, project.Name(in.Project), in.Name, in.With)
	return &body[environment.Difference]{d}, err
}

func (s *Server) environmentMaterials(w http.ResponseWriter, r *http.Request) {
	b, err := s.Environments.Materials(r.Context(), project.Name(r.PathValue("project")), r.PathValue("name"))
	if err != nil {
		s.fail(w, r, err)
		return
	}
	w.Header().Set("Content-Type", "application/vnd.cyclonedx+json; version=1.5")
	w.Header().Set("Content-Length", strconv.Itoa(len(b)))
	_, _ = w.Write(b) // a reader that went away
}

func (s *Server) pruneEnvironments(ctx context.Context, in *struct {
	Body struct {
		Older string `json:"older,omitempty" doc:"Only environments not requested for this long, such as 720h, the default; at least 1h"`
		Dry   bool   `json:"dry,omitempty" doc:"Only report what would be removed"`
	}
},
) (*body[items[environment.Pruned]], error) {
	age := 30 * 24 * time.Hour
	if in.Body.Older != "" {
		var err error
		if age, err = time.ParseDuration(in.Body.Older); err != nil {
			return nil, fault.New(fault.Invalid, "older: %.40q is not a duration such as 720h", in.Body.Older)
		}
	}
	pruned, err := s.Environments.Prune(ctx, age, in.Body.Dry)
	return listed(pruned, "", err)
}

func (s *Server) startDoctor(ctx context.Context, in *struct {
	InProject
	Body struct {
		Pool string `json:"pool" maxLength:"63" doc:"Pool"`
	}
},
) (*tagged[training.Job], error) {
	j, err := s.Training.Submission.Doctor(ctx, project.Name(in.Project), in.Body.Pool)
	return revised(j, j.Revision, err)
}
