package account

import (
	"context"
	"errors"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/share"
)

// ActionAuthenticate is the action of audit entries about failed authentications.
const ActionAuthenticate = "authenticate"

// Failed authentications of one address with one token, or with unknown tokens, are
// summed up: the first is recorded at once, the following ones with their number by
// Flush, each minute. The numbers of all entries add up to the failures.
const (
	maxTallies  = 10_000 // addresses and tokens that are told apart between two flushes
	elsewhere   = "other addresses"
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

// source is what failures are summed up by.
type source struct {
	rejection
	address string
}

func newFailures() *share.Limiter {
	return share.NewLimiter(share.Rate{Name: "failed_authentications", Every: failedEvery, Burst: failedBurst})
}

// reject counts a failed authentication, and is the error that the caller gets. A
// request without a token is no attempt.
func (s *Service) reject(ctx context.Context, r rejection) error {
	if s.cfg.Journal == nil {
		return errBearer()
	}
	address := share.AddressKey(identity.Address(ctx))
	from := source{rejection: r, address: address}
	s.mu.Lock()
	n, known := s.rejected[from]
	if !known && len(s.rejected) >= maxTallies {
		from = source{rejection: rejection{why: r.why}, address: elsewhere}
		n, known = s.rejected[from]
	}
	if known {
		n++
	}
	s.rejected[from] = n // 0: the first one, which is recorded now
	s.mu.Unlock()
	if !known {
		if err := s.record(ctx, from, 1); err != nil {
			return err
		}
	}
	if err := s.failures.Take(address); err != nil {
		return err
	}
	return errBearer()
}

// record writes an entry about failures of one source.
func (s *Service) record(ctx context.Context, from source, n int) error {
	object := "an unknown token"
	if from.token != "" {
		object = "token " + from.token
	}
	detail := map[string]any{"address": from.address, "count": n}
	if from.principal != "" {
		detail["principal"], detail["name"] = from.principal, from.name
	}
	ctx, cancel := context.WithTimeout(identity.With(context.WithoutCancel(ctx), identity.Loop("authentication")), recordTime)
	defer cancel()
	err := s.cfg.Journal.Record(ctx, audit.Entry{
		Project: from.project, Action: ActionAuthenticate, Object: object, Outcome: audit.Refused,
		Reason: "the token is " + from.why, Detail: detail,
	})
	return fault.Wrap(err, "recording a failed authentication")
}

// flushRejected records the failures since the first one of each source.
func (s *Service) flushRejected(ctx context.Context) error {
	s.mu.Lock()
	rejected := s.rejected
	s.rejected = map[source]int{}
	s.mu.Unlock()
	var failed error
	for from, n := range rejected {
		if n == 0 {
			continue
		}
		if err := s.record(ctx, from, n); err != nil {
			failed = errors.Join(failed, err)
			s.mu.Lock()
			s.rejected[from] += n // for the next flush
			s.mu.Unlock()
		}
	}
	return failed
}
