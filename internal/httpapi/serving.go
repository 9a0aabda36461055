package httpapi

import (
	"context"

	"github.com/falaj-ml/falaj/internal/serving"
)

// InDeployment is the path of a deployment.
type InDeployment struct {
	InProject
	Name string `path:"name" maxLength:"63" doc:"Deployment"`
}

func (s *Server) listDeployments(ctx context.Context, in *struct {
	InProject
	Page
},
) (*body[items[serving.Deployment]], error) {
	size := in.Size
	if size == 0 {
		size = 100
	}
	all, err := s.Serving.List(ctx, in.Project, in.Token, size+1)
	next := ""
	if len(all) > size {
		all = all[:size]
		next = all[size-1].Name
	}
	return listed(all, next, err)
}

func (s *Server) oneDeployment(ctx context.Context, in *InDeployment) (*tagged[serving.Deployment], error) {
	d, err := s.Serving.One(ctx, in.Project, in.Name)
	return revised(d, d.Revision, err)
}

func (s *Server) deleteDeployment(ctx context.Context, in *InDeployment) (*none, error) {
	return &none{}, s.Serving.Delete(ctx, in.Project, in.Name)
}
