package httpapi

import (
	"context"

	"github.com/falaj-ml/falaj/internal/compute"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/scheduler/replay"
	"github.com/falaj-ml/falaj/internal/training"
)

func (s *Server) snapshot(ctx context.Context, _ *struct{}) (*body[replay.Snapshot], error) {
	return one(s.Compute.Scheduling.Snapshot(ctx, compute.Viewer{
		Reads: func(ctx context.Context, p project.Name) (bool, error) {
			return s.authz.Permits(ctx, "project.read", policy.Object{Project: string(p)})
		},
		Left: s.Training.Usage.Remaining,
	}))
}

func (s *Server) proposeJob(ctx context.Context, in *struct {
	InProject
	Body struct {
		Name string        `json:"name,omitempty" doc:"Display name"`
		Spec training.Spec `json:"spec"`
	}
},
) (*body[replay.Proposal], error) {
	r, left, err := s.Training.Submission.Propose(ctx, project.Name(in.Project), in.Body.Name, in.Body.Spec)
	if err != nil {
		return nil, err
	}
	work, err := s.Compute.Workloads.Propose(ctx, r)
	about := replay.About{ID: work.ID, Label: in.Body.Name, Project: in.Project, Queue: work.Queue, State: "proposed"}
	if left.Basis != "" {
		seconds := left.Time.Seconds()
		about.Left, about.Basis = &seconds, left.Basis
	}
	return one(replay.Proposal{About: about, Work: work}, err)
}
