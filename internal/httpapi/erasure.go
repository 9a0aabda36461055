package httpapi

import (
	"context"
	"net/http"

	"github.com/falaj-ml/falaj/internal/governance/privacy"
)

func (s *Server) erase(ctx context.Context, in *struct {
	InProject
	Body struct {
		Entity   string   `json:"entity" maxLength:"63" doc:"Entity that represents the person"`
		Keys     []string `json:"keys" minItems:"1" maxItems:"16" doc:"Values of its join keys, in order, as text; never logged or returned"`
		Reason   string   `json:"reason" minLength:"1" maxLength:"2000" doc:"Reason, with the reference of the request; kept permanently, so it must not name the person"`
		Deadline string   `json:"deadline,omitempty" maxLength:"64" doc:"Deadline (RFC 3339); default in 30 days"`
	}
},
) (*body[privacy.Erasure], error) {
	until, err := instant("deadline", in.Body.Deadline)
	if err != nil {
		return nil, err
	}
	return one(s.Erasures.Request(ctx, privacy.Ask{
		Project: in.Project, Entity: in.Body.Entity, Values: in.Body.Keys, Reason: in.Body.Reason, Deadline: until,
	}))
}

// whereabouts is where a person is.
type whereabouts struct {
	Places     []privacy.Place      `json:"places"`
	Deleted    []privacy.Place      `json:"deleted" doc:"Previously deleted versions that contained rows of the person"`
	Unsearched []privacy.Unsearched `json:"unsearched" doc:"Stores that were not searched, or may still contain the person"`
	Models     []string             `json:"models" doc:"Model versions that were trained on rows of the person"`
}

func (s *Server) findPerson(ctx context.Context, in *struct {
	InProject
	Body struct {
		Entity string   `json:"entity" maxLength:"63" doc:"Entity that represents the person"`
		Keys   []string `json:"keys" minItems:"1" maxItems:"16" doc:"Values of its join keys, in order, as text; never logged or returned"`
	}
},
) (*body[whereabouts], error) {
	f, err := s.Erasures.Look(ctx, privacy.Ask{Project: in.Project, Entity: in.Body.Entity, Values: in.Body.Keys})
	return one(whereabouts{Places: f.Places, Deleted: append([]privacy.Place{}, f.Deleted...), Unsearched: append([]privacy.Unsearched{}, f.Unsearched...), Models: append([]string{}, f.Models...)}, err)
}

func (s *Server) listErasures(ctx context.Context, in *InPage) (*body[items[privacy.Erasure]], error) {
	return listed(s.Erasures.List(ctx, in.Project, in.Size, in.Token))
}

func (s *Server) oneErasure(ctx context.Context, in *struct {
	InProject
	ID string `path:"id" maxLength:"64" doc:"Identifier, as in the list"`
},
) (*body[privacy.Erasure], error) {
	return one(s.Erasures.One(ctx, in.Project, privacy.ID(in.ID)))
}

// certificate answers the bytes whose digest the audit log has.
func (s *Server) certificate(w http.ResponseWriter, r *http.Request) {
	file, err := s.Erasures.Certificate(r.Context(), r.PathValue("project"), privacy.ID(r.PathValue("id")))
	if err != nil {
		s.fail(w, r, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Disposition", `attachment; filename="certificate.json"`)
	_, _ = w.Write(file) // the client went away: nobody to tell
}
