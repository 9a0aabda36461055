package tenancy

// The events.
const (
	ProjectCreated = "project.created" // body: project.Project
	ProjectUpdated = "project.updated" // body: project.Project
	ProjectDeleted = "project.deleted" // body: project.Project
	MemberGranted  = "member.granted"  // body: project.Grant
	MemberRevoked  = "member.revoked"  // body: project.Grant
)
