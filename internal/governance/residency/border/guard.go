package border

import (
	"context"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/residency"
)

// journalTime is how long a refusal may wait to be on record.
const journalTime = 10 * time.Second

// Guard implements residency.Guard, and records refusals. It is safe for concurrent use.
type Guard struct {
	journal audit.Journal
}

var _ residency.Guard = (*Guard)(nil)

// NewGuard makes a guard that records refusals in the journal.
func NewGuard(j audit.Journal) *Guard { return &Guard{journal: j} }

// Pass lets through what may be in the zone. Errors: fault.PermissionDenied, on
// record when Pass returns; fault.Unavailable when it could not be recorded,
// which is a refusal, too.
func (g *Guard) Pass(ctx context.Context, p residency.Transfer) error {
	refusal := residency.Check(p.What, p.Label, p.Where, p.Zone)
	if refusal == nil {
		return nil
	}
	// The refused caller cannot escape the record by hanging up.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), journalTime)
	defer cancel()
	detail := map[string]any{"zone": p.Zone, "label": p.Label.Zones(), "where": p.Where}
	if p.Machine != "" {
		detail["machine"] = p.Machine
	}
	err := g.journal.Record(ctx, audit.Entry{
		Project: p.Project, Action: p.Action, Object: p.What, Outcome: audit.Refused, Reason: refusal.Error(), Detail: detail,
	})
	if err != nil {
		return &fault.Error{Kind: fault.Unavailable, Message: "refused, and the refusal could not be recorded", Hint: "Check the server's log, and free disk space.", Err: err}
	}
	return audit.OnRecord(refusal)
}
