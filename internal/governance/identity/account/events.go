package account

import "github.com/falaj-ml/falaj/internal/governance/project"

// The events.
const (
	AccountCreated = "account.created" // body: Account
	AccountDeleted = "account.deleted" // body: Account

	AccountDisabled = "account.disabled" // body: Account
	AccountEnabled  = "account.enabled"  // body: Account

	TokenCreated = "token.created" // body: TokenEvent
	TokenRevoked = "token.revoked" // body: TokenEvent
)

// TokenEvent tells of a token.
type TokenEvent struct {
	ID        string       `json:"id"`
	Kind      Kind         `json:"kind"`
	Principal string       `json:"principal"`
	Project   project.Name `json:"project,omitempty"`
}

func (t Token) event() TokenEvent {
	return TokenEvent{ID: t.ID, Kind: t.Kind, Principal: t.Principal, Project: t.Project}
}
