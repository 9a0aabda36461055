package httpapi

import (
	"context"

	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/governance/residency/border"
)

// zone adds the name that tables show to a place.
type zone struct {
	Name string `json:"name"`
	residency.Place
}

func (s *Server) listZones(ctx context.Context, _ *struct{}) (*body[items[zone]], error) {
	places, err := s.Zones.Zones(ctx)
	zones := make([]zone, len(places))
	for i, p := range places {
		zones[i] = zone{Name: string(p.Zone), Place: p}
	}
	return listed(zones, "", err)
}

func (s *Server) changeLaw(ctx context.Context, in *struct {
	Zone string `path:"zone" maxLength:"64" doc:"Zone"`
	Body border.LawChange
},
) (*body[border.Widening], error) {
	in.Body.Zone = residency.Zone(in.Zone)
	return one(s.Zones.ChangeLaw(ctx, in.Body))
}

func (s *Server) listZoneWidenings(ctx context.Context, in *struct {
	State string `query:"state" enum:"requested,approved,rejected,withdrawn,expired" doc:"Filter by state"`
	Token string `query:"page_token" maxLength:"512" doc:"next_page_token of the previous page"`
},
) (*body[items[border.Widening]], error) {
	return listed(s.Zones.Widenings(ctx, "", border.State(in.State), in.Token))
}

// InZoneWidening is the path of a widening of a zone.
type InZoneWidening struct {
	ID string `path:"id" maxLength:"64" doc:"Widening"`
}

func (s *Server) approveZoneWidening(ctx context.Context, in *InZoneWidening) (*body[border.Widening], error) {
	return one(s.Zones.Approve(ctx, in.ID))
}

func (s *Server) rejectZoneWidening(ctx context.Context, in *InZoneWidening) (*body[border.Widening], error) {
	return one(s.Zones.Reject(ctx, in.ID))
}

func (s *Server) relabel(ctx context.Context, in *struct {
	InProject
	Body border.Relabelling
},
) (*body[border.Widening], error) {
	in.Body.Project = project.Name(in.Project)
	return one(s.Zones.Relabel(ctx, in.Body))
}

func (s *Server) listWidenings(ctx context.Context, in *struct {
	InProject
	State string `query:"state" enum:"requested,approved,rejected,withdrawn,expired" doc:"Filter by state"`
	Token string `query:"page_token" maxLength:"512" doc:"next_page_token of the previous page"`
},
) (*body[items[border.Widening]], error) {
	return listed(s.Zones.Widenings(ctx, project.Name(in.Project), border.State(in.State), in.Token))
}

// InWidening is the path of a widening.
type InWidening struct {
	InProject
	ID string `path:"id" maxLength:"64" doc:"Widening"`
}

func (s *Server) approveWidening(ctx context.Context, in *InWidening) (*body[border.Widening], error) {
	return one(s.Zones.Approve(ctx, in.ID))
}

func (s *Server) rejectWidening(ctx context.Context, in *InWidening) (*body[border.Widening], error) {
	return one(s.Zones.Reject(ctx, in.ID))
}
