package httpapi

import (
	"context"

	"github.com/falaj-ml/falaj/internal/governance/deletion"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/httpapi/oip"
	"github.com/falaj-ml/falaj/internal/serving"
	"github.com/falaj-ml/falaj/internal/training"
	"github.com/falaj-ml/falaj/internal/training/score"
)

// inferenceServing is what the Open Inference Protocol asks of serving.
type inferenceServing struct {
	*serving.Inference
	*serving.Deployments
	*serving.Metrics
	*serving.Loader
}

var _ oip.Serving = inferenceServing{}

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
	all, err := s.Serving.Deployments.List(ctx, in.Project, in.Token, size+1)
	next := ""
	if len(all) > size {
		all = all[:size]
		next = all[size-1].Name
	}
	return listed(all, next, err)
}

func (s *Server) oneDeployment(ctx context.Context, in *InDeployment) (*tagged[serving.Deployment], error) {
	d, err := s.Serving.Deployments.One(ctx, in.Project, in.Name)
	return revised(d, d.Revision, err)
}

func (s *Server) deleteDeployment(ctx context.Context, in *struct {
	InDeployment
	Deleting
},
) (*none, error) {
	if err := s.Deletions.Allow(ctx, project.Name(in.Project), "deployment", in.Name, deletion.Request{Yes: in.Yes}); err != nil {
		return nil, err
	}
	return &none{}, s.Serving.Deployments.Delete(ctx, in.Project, in.Name)
}

func (s *Server) predict(ctx context.Context, in *struct {
	InDeployment
	Body score.Request
},
) (*body[training.Job], error) {
	return one(s.Scores.Begin(ctx, project.Name(in.Project), in.Name, in.Body))
}

// rolloutRoutes are how versions are tried, promoted and rolled back.
func (s *Server) rolloutRoutes(p string) {
	route(s, "GET", p+"/deployments/{name}/status", "deployment.read", "Get the status of a deployment: versions, rollouts, request statistics and automatic actions", s.deploymentStatus).atGateway()
	route(s, "GET", p+"/deployments/{name}/usage", "deployment.read", "Get the use of a deployment's quota in the current period, by client", s.deploymentUsage)
	route(s, "POST", p+"/deployments/{name}/canary", "deployment.rollout", "Start a canary, or change the weight of the running one", s.canary)
	route(s, "POST", p+"/deployments/{name}/promote", "deployment.rollout", "Promote the canary to the stable version", s.promote)
	route(s, "POST", p+"/deployments/{name}/rollback", "deployment.rollout", "Abort the running rollout, or roll back to an earlier version", s.rollback).keepsNothing()
	route(s, "POST", p+"/deployments/{name}/shadow", "deployment.rollout", "Mirror requests to a shadow version, or stop mirroring", s.shadow)
	route(s, "POST", p+"/deployments/{name}/automation", "deployment.rollout", "Enable or disable automation of a deployment", s.automation).keepsNothing()
	route(s, "POST", p+"/automation", "deployment.rollout", "Enable or disable automation of all deployments of a project", s.projectAutomation).keepsNothing()
}

func (s *Server) deploymentStatus(ctx context.Context, in *InDeployment) (*body[serving.Status], error) {
	return one(s.Serving.Deployments.Status(ctx, in.Project, in.Name))
}

func (s *Server) deploymentUsage(ctx context.Context, in *InDeployment) (*body[serving.QuotaUsage], error) {
	return one(s.Serving.Quotas.Usage(ctx, in.Project, in.Name))
}

func (s *Server) canary(ctx context.Context, in *struct {
	InDeployment
	Body struct {
		Version string `json:"version,omitempty" maxLength:"256" doc:"Number or alias of the canary version; empty changes the weight of the running canary"`
		Weight  int    `json:"weight,omitempty" doc:"Percent of the requests, 1 to 99; 0 means the manifest's value"`
		Reason  string `json:"reason,omitempty" maxLength:"512" doc:"Reason; stored in the audit log"`
	}
},
) (*body[serving.Rollout], error) {
	if in.Body.Version == "" {
		return one(s.Serving.Rollouts.SetWeight(ctx, in.Project, in.Name, in.Body.Weight))
	}
	return one(s.Serving.Rollouts.Start(ctx, in.Project, in.Name, serving.RolloutRequest{Version: in.Body.Version, Weight: in.Body.Weight, Cause: in.Body.Reason}))
}

func (s *Server) promote(ctx context.Context, in *struct {
	InDeployment
	Body struct {
		Rollout string `json:"rollout,omitempty" maxLength:"64" doc:"Fails unless this rollout is running"`
		Reason  string `json:"reason,omitempty" maxLength:"4096" doc:"Reason; stored in the audit log"`
	}
},
) (*body[serving.Rollout], error) {
	return one(s.Serving.Rollouts.Promote(ctx, in.Project, in.Name, serving.RolloutEnd{Rollout: serving.RolloutID(in.Body.Rollout), Reason: in.Body.Reason}))
}

func (s *Server) rollback(ctx context.Context, in *struct {
	InDeployment
	Body struct {
		To      int64  `json:"to,omitempty" minimum:"0" doc:"Version to roll back to; 0 aborts the running rollout or, without one, selects the previous version"`
		Rollout string `json:"rollout,omitempty" maxLength:"64" doc:"Roll back this rollout"`
		Reason  string `json:"reason,omitempty" maxLength:"4096" doc:"Reason; stored in the audit log"`
	}
},
) (*body[serving.Deployment], error) {
	return one(s.Serving.Rollouts.Rollback(ctx, in.Project, in.Name, serving.RolloutEnd{Rollout: serving.RolloutID(in.Body.Rollout), To: in.Body.To, Reason: in.Body.Reason}))
}

func (s *Server) shadow(ctx context.Context, in *struct {
	InDeployment
	Body struct {
		Version string `json:"version,omitempty" maxLength:"256" doc:"Version number or alias; empty stops mirroring"`
	}
},
) (*body[serving.Deployment], error) {
	return one(s.Serving.Rollouts.Shadow(ctx, in.Project, in.Name, in.Body.Version))
}

// switching is the body of turning automation on or off.
type switching struct {
	On     bool   `json:"on" doc:"Whether automation is enabled"`
	Reason string `json:"reason,omitempty" maxLength:"4096" doc:"Reason; stored in the audit log"`
}

func (s *Server) automation(ctx context.Context, in *struct {
	InDeployment
	Body switching
},
) (*body[serving.Switch], error) {
	return one(s.Serving.AutoActions.SetAutomation(ctx, in.Project, in.Name, in.Body.On, in.Body.Reason))
}

func (s *Server) projectAutomation(ctx context.Context, in *struct {
	InProject
	Body switching
},
) (*body[serving.Switch], error) {
	return one(s.Serving.AutoActions.SetAutomation(ctx, in.Project, "", in.Body.On, in.Body.Reason))
}
