package app

import (
	"context"

	"github.com/falaj-ml/falaj/internal/blob/quota"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/governance/project/tenancy"
	"github.com/falaj-ml/falaj/internal/resource"
)

// storageLimit is a project's quota as the store of objects holds it.
func storageLimit(q project.Quota) quota.Limit {
	l := quota.Limit{Bytes: int64(q.Bytes), Objects: q.Objects}
	for kind, most := range q.Kinds.ByKind() {
		if l.Kinds == nil {
			l.Kinds = map[string]quota.Amount{}
		}
		l.Kinds[kind] = quota.Amount{Bytes: int64(most.Bytes), Objects: most.Objects}
	}
	return l
}

// quotaReached records that something was refused at a project's quota.
func (a *App) quotaReached(ctx context.Context, r quota.Reached) error {
	err := a.projects.ReachQuota(ctx, tenancy.ReachedQuota{
		Project: project.Name(r.Project), Kind: r.Kind, Quota: project.Amount{Bytes: resource.Bytes(r.Limit.Bytes), Objects: r.Limit.Objects},
		StoredBytes: resource.Bytes(r.Stored.Bytes), StoredObjects: r.Stored.Objects,
	})
	if err == nil {
		a.reached.Add(r.Project, r.Kind)
	}
	return err
}
