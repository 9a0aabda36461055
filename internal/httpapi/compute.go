package httpapi

import (
	"context"

	"github.com/falaj-ml/falaj/internal/compute"
)

func (s *Server) listPools(ctx context.Context, _ *struct{}) (*body[items[compute.Pool]], error) {
	pools, err := s.Compute.Pools.ListPools(ctx)
	return listed(pools, "", err)
}

func (s *Server) onePool(ctx context.Context, in *struct {
	Name string `path:"name" maxLength:"63"`
},
) (*tagged[compute.Pool], error) {
	p, err := s.Compute.Pools.Pool(ctx, compute.PoolName(in.Name))
	return revised(p, p.Revision, err)
}

func (s *Server) releaseNode(ctx context.Context, in *struct {
	Name string `path:"name" maxLength:"63" doc:"Pool"`
	Node string `path:"node" maxLength:"253" doc:"Quarantined node"`
},
) (*none, error) {
	return &none{}, s.Compute.Pools.Release(ctx, compute.PoolName(in.Name), in.Node)
}

func (s *Server) listQueues(ctx context.Context, _ *struct{}) (*body[items[compute.Queue]], error) {
	queues, err := s.Compute.Queues.ListQueues(ctx)
	return listed(queues, "", err)
}

func (s *Server) oneQueue(ctx context.Context, in *struct {
	Name string `path:"name" maxLength:"63"`
},
) (*tagged[compute.Queue], error) {
	q, err := s.Compute.Queues.Queue(ctx, in.Name)
	return revised(q, q.Revision, err)
}

func (s *Server) deleteQueue(ctx context.Context, in *struct {
	Name string `path:"name" maxLength:"63"`
},
) (*none, error) {
	return &none{}, s.Compute.Queues.DeleteQueue(ctx, in.Name)
}
