package httpapi

import (
	"context"

	"github.com/falaj-ml/falaj/internal/governance/request"
)

func (s *Server) listRequests(ctx context.Context, in *struct {
	Project string `query:"project" maxLength:"63" doc:"Project; empty: the installation"`
	State   string `query:"state" enum:"requested,approved,done,failed,rejected,withdrawn,expired" doc:"Filter by state"`
	Token   string `query:"page_token" maxLength:"64" doc:"next_page_token of the previous page"`
},
) (*body[items[request.Request]], error) {
	return listed(s.Requests.List(ctx, in.Project, request.State(in.State), in.Token))
}

// InRequest is the path of an act that takes two people.
type InRequest struct {
	ID string `path:"id" maxLength:"64" doc:"Identifier, as in the list"`
}

func (s *Server) oneRequest(ctx context.Context, in *InRequest) (*body[request.Request], error) {
	return one(s.Requests.One(ctx, in.ID))
}

func (s *Server) approveRequest(ctx context.Context, in *InRequest) (*body[request.Request], error) {
	return one(s.Requests.Approve(ctx, in.ID))
}

func (s *Server) rejectRequest(ctx context.Context, in *InRequest) (*body[request.Request], error) {
	return one(s.Requests.Reject(ctx, in.ID))
}
