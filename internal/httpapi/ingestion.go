package httpapi

import (
	"context"
	"time"

	"github.com/falaj-ml/falaj/internal/dataset"
	"github.com/falaj-ml/falaj/internal/dataset/ingestion"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/project"
)

// ingestionRoutes are those of sources and their runs, below p.
func (s *Server) ingestionRoutes(p string) {
	route(s, "GET", p+"/sources", "source.read", "List the sources of datasets", s.listSources)
	route(s, "GET", p+"/sources/{name}", "source.read", "Get a source and its last run", s.oneSource)
	route(s, "DELETE", p+"/sources/{name}", "source.delete", "Delete a source; the dataset stays", s.deleteSource)
	route(s, "GET", p+"/sources/{name}/runs", "source.read", "List the ingestions of a source, newest first", s.listIngestions)
	route(s, "POST", p+"/sources/{name}/runs", "source.run", "Start an ingestion, or return the running one", s.ingest)
	route(s, "GET", p+"/ingestions/{run}", "source.read", "Get an ingestion; with wait, when it has finished", s.oneIngestion)
	route(s, "POST", p+"/ingestions/{run}/cancel", "source.run", "Cancel an ingestion; the dataset is unchanged", s.cancelIngestion).keepsNothing()
}

// sourceKinds are the manifests of sources.
func (s *Server) sourceKinds() map[string]applier {
	return map[string]applier{
		ingestion.ManifestKind: {gate: ingestion.ActionApply, apply: decoded(func(ctx context.Context, p, name string, spec ingestion.Spec, dry bool) (applied, error) {
			src, change, err := s.Ingestion.Apply(ctx, ingestion.ApplyRequest{Project: project.Name(p), Name: name, Spec: spec, DryRun: dry})
			return applied{Result: string(change), ID: string(src.ID)}, err
		}), show: func(ctx context.Context, p, name string) (string, any, error) {
			src, err := s.Ingestion.One(ctx, project.Name(p), name)
			return src.Name, src.Spec, err
		}},
	}
}

// sourcePath names a source.
type sourcePath struct {
	InProject
	Name string `path:"name" maxLength:"63" doc:"Source, or its dataset"`
}

func (s *Server) listSources(ctx context.Context, in *struct {
	InProject
	Page
},
) (*body[items[ingestion.Source]], error) {
	return listed(s.Ingestion.List(ctx, project.Name(in.Project), dataset.Page{Size: in.Size, Token: in.Token}))
}

func (s *Server) oneSource(ctx context.Context, in *sourcePath) (*tagged[ingestion.Source], error) {
	src, err := s.Ingestion.One(ctx, project.Name(in.Project), in.Name)
	return revised(src, src.Revision, err)
}

func (s *Server) deleteSource(ctx context.Context, in *sourcePath) (*none, error) {
	return &none{}, s.Ingestion.Delete(ctx, project.Name(in.Project), in.Name)
}

// ingestionRun is a run in a list; the description of the API has a list of
// materialisations, too.
type ingestionRun struct{ ingestion.Run }

func (s *Server) listIngestions(ctx context.Context, in *struct {
	InProject
	Page
	Name string `path:"name" maxLength:"63" doc:"Source, or its dataset"`
},
) (*body[items[ingestionRun]], error) {
	list, next, err := s.Ingestion.Runs(ctx, project.Name(in.Project), in.Name, dataset.Page{Size: in.Size, Token: in.Token})
	runs := make([]ingestionRun, len(list))
	for i, r := range list {
		runs[i] = ingestionRun{r}
	}
	return listed(runs, next, err)
}

func (s *Server) ingest(ctx context.Context, in *struct {
	InProject
	Name string `path:"name" maxLength:"63" doc:"Source, or its dataset"`
	Body struct {
		Anew bool `json:"anew,omitempty" doc:"Ingest from the start, ignoring the stored position"`
	}
},
) (*body[ingestion.Run], error) {
	return one(s.Ingestion.Start(ctx, project.Name(in.Project), in.Name, in.Body.Anew))
}

// ingestionPath names a run.
type ingestionPath struct {
	InProject
	Run string `path:"run" maxLength:"40" doc:"Run"`
}

func (s *Server) oneIngestion(ctx context.Context, in *struct {
	InProject
	Run  string `path:"run" maxLength:"40" doc:"Run"`
	Wait string `query:"wait" doc:"Wait until it has ended, at most this time, such as 30s; at most 1m"`
},
) (*body[ingestion.Run], error) {
	p, run := project.Name(in.Project), ingestion.RunID(in.Run)
	if in.Wait == "" {
		return one(s.Ingestion.Run(ctx, p, run))
	}
	d, err := time.ParseDuration(in.Wait)
	if err != nil || d < 0 {
		return nil, fault.New(fault.Invalid, "wait: %q is not a duration such as 30s", in.Wait)
	}
	waiting, cancel := context.WithTimeout(ctx, min(d, maxWait))
	defer cancel()
	ended, err := s.Ingestion.Wait(waiting, p, run)
	if err != nil && waiting.Err() != nil {
		return one(s.Ingestion.Run(ctx, p, run))
	}
	return one(ended, err)
}

func (s *Server) cancelIngestion(ctx context.Context, in *ingestionPath) (*body[ingestion.Run], error) {
	return one(s.Ingestion.Cancel(ctx, project.Name(in.Project), ingestion.RunID(in.Run)))
}
