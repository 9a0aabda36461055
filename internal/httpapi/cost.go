package httpapi

import (
	"context"
	"errors"

	"github.com/falaj-ml/falaj/internal/compute"
	"github.com/falaj-ml/falaj/internal/governance/project"
)

// CostWindow is what of time and project the questions about cost are about.
type CostWindow struct {
	Project string `query:"project" maxLength:"63" doc:"Project; empty: the installation"`
	Since   string `query:"since" doc:"RFC 3339; default 30 days before the end"`
	Until   string `query:"until" doc:"RFC 3339; default now"`
}

func (w CostWindow) query() (compute.CostQuery, error) {
	since, err := instant("since", w.Since)
	until, err2 := instant("until", w.Until)
	return compute.CostQuery{Project: project.Name(w.Project), Since: since, Until: until}, errors.Join(err, err2)
}

func (s *Server) costReport(ctx context.Context, in *struct {
	CostWindow
	By    string `query:"by" maxLength:"20" doc:"project, user, queue, pool, job, model or day; default project"`
	Limit int    `query:"limit" minimum:"0" maximum:"1000" doc:"Maximum number of rows, by decreasing cost; 0 means 100. Does not apply to days"`
},
) (*body[compute.CostReport], error) {
	q, err := in.query()
	if err != nil {
		return nil, err
	}
	q.By, q.Limit = in.By, in.Limit
	return one(s.Compute.Costs.CostReport(ctx, q))
}

func (s *Server) costForecast(ctx context.Context, in *struct {
	Project string `query:"project" maxLength:"63" doc:"Project; empty: the installation"`
	Since   string `query:"since" doc:"Start of the period for the daily mean (RFC 3339); default 30 days ago"`
},
) (*body[compute.CostForecast], error) {
	since, err := instant("since", in.Since)
	if err != nil {
		return nil, err
	}
	return one(s.Compute.Costs.CostForecast(ctx, project.Name(in.Project), since))
}

func (s *Server) costCompare(ctx context.Context, in *struct {
	CostWindow
	Own    string  `query:"own" required:"true" maxLength:"63" doc:"Pool whose manifest has cost.owned"`
	Rented string  `query:"rented" required:"true" maxLength:"63" doc:"Pool whose manifest has cost.rented or price_per_hour"`
	Job    string  `query:"job" maxLength:"200" doc:"Only the usage of this job"`
	Nodes  int     `query:"nodes" minimum:"0" maximum:"1000000" doc:"Number of owned nodes; 0 means the pool's, or as many as needed"`
	Speed  float64 `query:"speed" minimum:"0" doc:"Speed of a rented node relative to an owned one; 0 means 1"`
	Egress float64 `query:"egress" minimum:"0" doc:"GiB of egress a month"`
},
) (*body[compute.CostComparison], error) {
	q, err := in.query()
	if err != nil {
		return nil, err
	}
	return one(s.Compute.Costs.CostCompare(ctx, compute.CompareQuery{
		CostQuery: q, Own: compute.PoolName(in.Own), Rented: compute.PoolName(in.Rented), Job: in.Job, Nodes: in.Nodes, Speed: in.Speed, Egress: in.Egress,
	}))
}

func (s *Server) listBudgets(ctx context.Context, in *struct {
	Project string `query:"project" maxLength:"63" doc:"Only the budget of this project; empty: all, which requires permission to read the costs of the installation"`
},
) (*body[items[compute.Budget]], error) {
	budgets, err := s.Compute.Costs.Budgets(ctx, project.Name(in.Project))
	return listed(budgets, "", err)
}

func (s *Server) oneBudget(ctx context.Context, in *InProject) (*tagged[compute.Budget], error) {
	b, err := s.Compute.Costs.Budget(ctx, project.Name(in.Project))
	return revised(b, b.Revision, err)
}

func (s *Server) deleteBudget(ctx context.Context, in *InProject) (*none, error) {
	return &none{}, s.Compute.Costs.DeleteBudget(ctx, project.Name(in.Project))
}
