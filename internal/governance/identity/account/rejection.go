package account

import (
	"context"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/share"
)

// ActionAuthenticate is the action of audit entries about failed authentications.
const ActionAuthenticate = "authenticate"

const (
	recordTime  = 5 * time.Second
	failedEvery = 100 * time.Millisecond // an address may fail so often,
	failedBurst = 5000                   // and so often at once; more are answered 429
)

// rejection says whose token was refused, and why.
type rejection struct {
	token, principal, name, project string // empty for an unknown token
	why                             string // "unknown", "revoked", "expired"
}

func (r rejection) of(t Token) rejection {
	r.token, r.principal, r.name, r.project = t.ID, t.Principal, t.Name, string(t.Project)
	return r
}

func newFailures() *share.Limiter {
	return share.NewLimiter(share.Rate{Name: "failed_authentications", Every: failedEvery, Burst: failedBurst})
}

// reject puts a failed authentication on record, and is the error that the caller gets. A
// request without a token is no attempt.
func (s *Service) reject(ctx context.Context, r rejection) error {
	if s.cfg.Journal == nil {
		return errBearer()
	}
	e := audit.Entry{Actor: identity.Loop("authentication"), Project: r.project, Action: ActionAuthenticate, Object: "an unknown token", Outcome: audit.Refused, Reason: "the token is " + r.why}
	if r.token != "" {
		e.Object, e.Detail = "token "+r.token, map[string]any{"principal": r.principal, "name": r.name}
	}
	record, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordTime)
	defer cancel()
	if err := s.cfg.Journal.Record(record, e); err != nil {
		return fault.Wrap(err, "recording a failed authentication")
	}
	if err := s.failures.Take(share.AddressKey(identity.CallOf(ctx).Address)); err != nil {
		return err
	}
	return errBearer()
}
