package authorizer

// The events.
const (
	PolicyApplied = "policy.applied" // body: Policy
	PolicyDeleted = "policy.deleted" // body: Policy
)
