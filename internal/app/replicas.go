package app

import (
	"context"
	"net"
	"path/filepath"

	"github.com/falaj-ml/falaj/internal/compute"
	"github.com/falaj-ml/falaj/internal/compute/computesql"
	"github.com/falaj-ml/falaj/internal/config"
	"github.com/falaj-ml/falaj/internal/lifecycle"
	"github.com/falaj-ml/falaj/internal/resource"
	"github.com/falaj-ml/falaj/internal/serving"
	"github.com/falaj-ml/falaj/internal/serving/runtime"
	"github.com/falaj-ml/falaj/internal/serving/runtime/child"
	"github.com/falaj-ml/falaj/internal/serving/runtime/onnx"
	"github.com/falaj-ml/falaj/internal/usecase/replica"
)

// openReplicas opens the reservations of replicas. Where several servers share a database one
// of them schedules, and replicas on this machine are not its business: nil.
func (a *App) openReplicas() serving.Capacity {
	if a.db.Shared() {
		return nil
	}
	p := replica.New(replica.Config{
		DB: a.db, Compute: a.compute.Workloads, Tokens: a.accounts, Log: a.log, Dir: filepath.Join(a.cfg.Data, "tmp", "replicas"),
		Library: a.cfg.ORTPath(), Missing: onnx.Missing, Memory: child.Memory, MaxMemory: resource.Bytes(config.Bytes(a.cfg.Serving.Process)),
		Link: func(ctx context.Context, conn net.Conn, model []byte, o runtime.Options, cores int) (replica.Session, error) {
			l, err := a.apart.Link(ctx, conn, model, o, cores)
			if err != nil { // else the interface would hold a nil pointer
				return nil, err
			}
			return l, nil
		},
		Unsettled: computesql.Store{}.Unsettled,
	})
	a.compute.Scheduling.RegisterOwner(compute.Replica, p)
	a.replicas = p
	a.group.Add(lifecycle.Service{Name: "workloads of replicas", Start: p.EndEarlier, Stop: p.Close})
	return p
}
