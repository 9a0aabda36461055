// Package deletions finds what cites an object before it is deleted.
package deletions

import (
	"context"
	"slices"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/deletion"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/monitoring"
	"github.com/falaj-ml/falaj/internal/serving"
	"github.com/falaj-ml/falaj/internal/serving/gateway"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/training"
)

// What cites what, and what stays of it when it is deleted:
//
//	kind                    cited by                                   stays
//	dataset, its version    jobs, runs, models, training sets, views,  digest, schema, parents, whose
//	                        monitors, sources, versions made of it,    rows it had (dataset.Tombstone)
//	                        deployments of such models (in use)
//	model, its version      deployments (never deleted then)           its record, with all that it came from
//	run                     model versions (then prune keeps it)       all, until it is pruned
//	checkpoint              jobs that resume from it                   its digest, in the audit log
//	monitor                 its deployment                             its findings, in the audit log
//	deployment              monitors that people made, gateways        its predictions, until they expire
//	entity, view, service   never deleted
//	job, environment, pool  never deleted
//	source, sweep           nothing: what they made names itself
//	secret                  jobs and sources (never deleted then)
//	project                 whatever is in it (never deleted then)
//
// Datasets ask for themselves, because a tombstone is made in between; the rest is
// asked for here, before it is deleted.

// Service implements httpapi.Deletions.
type Service struct {
	DB         *store.DB
	Authorizer policy.Permitter
	Training   *training.Records
	Monitoring *monitoring.Service
	Serving    *serving.Deployments
	Gateways   *gateway.Service
}

type citing struct {
	action policy.Action // that deletes the object
	find   func(ctx context.Context, tx *store.Tx, p project.Name, name string) ([]string, error)
}

// citing finds what cites an object of a kind that a request deletes.
func (s Service) citing(kind string) citing {
	switch kind {
	case "checkpoint":
		return citing{"checkpoint.delete", s.Training.ResumingFrom}
	case "monitor":
		return citing{"monitor.apply", func(ctx context.Context, tx *store.Tx, p project.Name, name string) ([]string, error) {
			watched, err := s.Monitoring.DeploymentOf(ctx, tx, string(p), name)
			if err != nil {
				return nil, err
			}
			d, err := s.Serving.RecordIn(ctx, tx, string(p), watched)
			if fault.Is(err, fault.NotFound) {
				return nil, nil
			}
			return []string{"deployment " + d.Name}, err
		}}
	case "deployment":
		return citing{"deployment.apply", func(ctx context.Context, tx *store.Tx, p project.Name, name string) ([]string, error) {
			monitors, err := s.Monitoring.WatchersOf(ctx, tx, string(p), name)
			if err != nil {
				return nil, err
			}
			gateways, err := s.Gateways.Offering(ctx, tx, string(p), name)
			return slices.Concat(monitors, gateways), err
		}}
	}
	return citing{}
}

// Allow refuses to delete what something cites, unless the request says that it may go.
// Who may not delete it is not told what does: that is refused by its domain.
func (s Service) Allow(ctx context.Context, p project.Name, kind, name string, r deletion.Request) error {
	of := s.citing(kind)
	may, err := s.Authorizer.Permits(ctx, of.action, policy.Object{Project: string(p), Kind: kind, Name: name})
	if err != nil || !may {
		return err
	}
	var by []string
	err = s.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		by, err = of.find(ctx, tx, p, name)
		return err
	})
	if fault.Is(err, fault.NotFound) || fault.Is(err, fault.PermissionDenied) {
		return nil // its domain says so
	}
	if err != nil {
		return err
	}
	cited := make([]deletion.Citation, len(by))
	for i, b := range by {
		cited[i] = deletion.Citation{By: b, Of: name}
	}
	return r.Allow(kind+" "+name, cited)
}
