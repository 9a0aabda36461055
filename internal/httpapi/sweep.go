package httpapi

import (
	"context"
	"net/http"
	"strconv"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/resource"
	"github.com/falaj-ml/falaj/internal/tuning"
	"github.com/falaj-ml/falaj/internal/tuning/picture"
	"github.com/falaj-ml/falaj/internal/tuning/sweep"
)

func (s *Server) sweepRoutes(p string) {
	route(s, "GET", p+"/sweeps", sweep.ActionRead, "List sweeps", s.listSweeps)
	route(s, "GET", p+"/sweeps/{name}", sweep.ActionRead, "Get a sweep with its number of trials and the best ones", s.oneSweep)
	route(s, "DELETE", p+"/sweeps/{name}", sweep.ActionDelete, "Delete a finished sweep; its jobs and runs are kept", s.deleteSweep)
	route(s, "GET", p+"/sweeps/{name}/trials", sweep.ActionRead, "List the trials of a sweep", s.listTrials)
	route(s, "POST", p+"/sweeps/{name}/stop", sweep.ActionApply, "Stop a sweep and its running trials", s.stopSweep).keepsNothing()
	route(s, "POST", p+"/sweeps/{name}/resume", sweep.ActionApply, "Resume a finished sweep", s.resumeSweep)
	route(s, "GET", p+"/sweeps/{name}/figures", sweep.ActionRead, "Get plots of a sweep as SVG", s.sweepFigures)
	s.raw("GET", p+"/sweeps/{name}/report", sweep.ActionRead, "Get plots of a sweep as a self-contained HTML page: history, intermediate values, parallel coordinates, importance, contours", media{gives: "text/html"}, s.sweepReport)
}

func (s *Server) sweepKinds() map[string]applier {
	return map[string]applier{
		"Sweep": {gate: sweep.ActionApply, apply: decoded(func(ctx context.Context, p, name string, spec sweep.Spec, dry bool) (applied, error) {
			apply := s.Sweeps.Apply
			if dry {
				apply = s.Sweeps.Plan
			}
			_, change, err := apply(ctx, project.Name(p), name, spec)
			if err != nil {
				return applied{}, err
			}
			asks := []resource.Amount{spec.Job.Resources}
			for _, r := range spec.Job.Roles {
				asks = append(asks, r.Resources)
			}
			return applied{Result: string(change), Warnings: s.Compute.Pools.WarnUnknownAccelerators(ctx, asks...)}, nil
		}), show: func(ctx context.Context, p, name string) (string, any, error) {
			w, err := s.Sweeps.One(ctx, project.Name(p), name)
			if err == nil && w.State == sweep.Client {
				err = fault.New(fault.Unsupported, "sweep %s is an Optuna study, which has no manifest", w.Name)
			}
			return w.Name, w.Spec, err
		}},
	}
}

// InSweep is the path of a sweep.
type InSweep struct {
	InProject
	Name string `path:"name" maxLength:"512" doc:"Sweep; of an Optuna study its name or number"`
}

func (s *Server) listSweeps(ctx context.Context, in *struct {
	InProject
	Page
},
) (*body[items[sweep.ListedSweep]], error) {
	after, err := pageNumber(in.Token)
	if err != nil {
		return nil, err
	}
	found, more, err := s.Sweeps.List(ctx, project.Name(in.Project), tuning.StudyID(after), in.Size)
	return listed(found, pageToken(int64(more)), err)
}

func (s *Server) oneSweep(ctx context.Context, in *InSweep) (*tagged[sweep.Summary], error) {
	w, err := s.Sweeps.One(ctx, project.Name(in.Project), in.Name)
	return revised(w, w.Revision, err)
}

func (s *Server) deleteSweep(ctx context.Context, in *InSweep) (*none, error) {
	return &none{}, s.Sweeps.Delete(ctx, project.Name(in.Project), in.Name)
}

func (s *Server) listTrials(ctx context.Context, in *struct {
	InSweep
	Page
	Reports bool `query:"reports" doc:"Include the reported values of the watched metric"`
},
) (*body[items[sweep.Shown]], error) {
	from, err := pageNumber(in.Token)
	if err != nil {
		return nil, err
	}
	trials, more, err := s.Sweeps.Trials(ctx, project.Name(in.Project), in.Name, int(from), in.Size, in.Reports)
	return listed(trials, pageToken(int64(more)), err)
}

// pageNumber is where a page of something numbered goes on; pageToken is its opposite.
func pageNumber(token string) (int64, error) {
	if token == "" {
		return 0, nil
	}
	n, err := strconv.ParseInt(token, 10, 64)
	if err != nil || n < 0 {
		return 0, fault.New(fault.Invalid, "page_token %.40q is invalid", token)
	}
	return n, nil
}

func pageToken(n int64) string {
	if n == 0 {
		return ""
	}
	return strconv.FormatInt(n, 10)
}

func (s *Server) stopSweep(ctx context.Context, in *InSweep) (*body[sweep.Sweep], error) {
	return one(s.Sweeps.Stop(ctx, project.Name(in.Project), in.Name))
}

func (s *Server) resumeSweep(ctx context.Context, in *struct {
	InSweep
	Body struct {
		Trials int `json:"trials,omitempty" minimum:"0" doc:"Number of additional trials in the budget"`
	}
},
) (*body[sweep.Sweep], error) {
	return one(s.Sweeps.Resume(ctx, project.Name(in.Project), in.Name, in.Body.Trials))
}

func (s *Server) sweepFigures(ctx context.Context, in *InSweep) (*body[items[picture.Figure]], error) {
	figures, err := s.Sweeps.Figures(ctx, project.Name(in.Project), in.Name)
	return listed(figures, "", err)
}

func (s *Server) sweepReport(w http.ResponseWriter, r *http.Request) {
	page, err := s.Sweeps.Report(r.Context(), project.Name(r.PathValue("project")), r.PathValue("name"))
	if err != nil {
		s.fail(w, r, err)
		return
	}
	drawing(w, page)
}
