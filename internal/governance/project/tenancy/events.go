package tenancy

import (
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/resource"
)

// The events.
const (
	ProjectCreated = "project.created"     // body: project.Project
	ProjectUpdated = "project.updated"     // body: project.Project
	ProjectDeleted = "project.deleted"     // body: project.Project
	MemberGranted  = project.MemberGranted // body: project.Grant
	MemberRevoked  = project.MemberRevoked // body: project.Grant

	// QuotaReached is published, with an audit entry, when something was refused at a quota of
	// the project: once, and again after a tenth of the quota was stored or deleted, or the
	// quota was changed. Its body is ReachedQuota.
	QuotaReached = "project.quota_reached"
)

// ReachedQuota is the body of QuotaReached.
type ReachedQuota struct {
	Project       project.Name   `json:"project"`
	Kind          string         `json:"kind,omitempty"` // the quota is of one kind; empty is that of the whole project
	Quota         project.Amount `json:"quota"`
	StoredBytes   resource.Bytes `json:"stored_bytes"` // without what was refused
	StoredObjects int64          `json:"stored_objects"`
}
