package tenancy

import "github.com/falaj-ml/falaj/internal/governance/project"

// The events.
const (
	ProjectCreated = "project.created"     // body: project.Project
	ProjectUpdated = "project.updated"     // body: project.Project
	ProjectDeleted = "project.deleted"     // body: project.Project
	MemberGranted  = project.MemberGranted // body: project.Grant
	MemberRevoked  = project.MemberRevoked // body: project.Grant
)
