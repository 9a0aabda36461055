package httpapi

import (
	"context"

	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/usecase/search"
)

// finder is the search in all services that the edge has.
func (s *Server) finder() search.Service {
	return search.Service{
		Authorizer: s.authz, Pages: s.pages, Datasets: s.Datasets.Definitions, Features: s.Features, Registry: s.Registry.Models, Serving: s.Serving.Deployments, Monitoring: s.Monitoring,
		Ingestion: s.Ingestion, Training: s.Training.Jobs, Environments: s.Environments, Tracking: s.Tracking, Sweeps: s.Sweeps, Lineage: s.Lineage, Names: s.ownerNames,
	}
}

func (s *Server) search(ctx context.Context, in *struct {
	InProject
	Page
	Query string `query:"q" required:"true" maxLength:"256" doc:"Words that must all match; field:word searches one field: name, kind, owner, tag, column, description, or from (upstream)"`
},
) (*body[items[search.Hit]], error) {
	return listed(s.finder().Find(ctx, project.Name(in.Project), in.Query, in.Size, in.Token))
}
