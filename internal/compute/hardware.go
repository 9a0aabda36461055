package compute

import (
	"context"
	"fmt"
	"time"

	"github.com/falaj-ml/falaj/internal/event"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/store"
)

// supportWarning is how long before the end of support a warning is shown.
const supportWarning = 90 * 24 * time.Hour

// Hardware is what the nodes of a pool are, for as long as their maker supports them.
type Hardware struct {
	Generation   string `json:"generation,omitempty" doc:"Hardware generation of the nodes, such as hopper; informational"`
	EndOfSupport string `json:"end_of_support,omitempty" doc:"Last day of support, such as 2027-06-30 (UTC): afterwards no new workloads start here"`
	UseAfter     bool   `json:"use_after,omitempty" doc:"Whether workloads still start after that day"`
}

func (h *Hardware) validate() error {
	if len(h.Generation) > 100 {
		return fault.New(fault.Invalid, "generation: %d bytes exceed the limit of 100", len(h.Generation))
	}
	if h.EndOfSupport == "" && h.UseAfter {
		return fault.New(fault.Invalid, "use_after: set end_of_support as well")
	}
	if _, err := time.Parse(time.DateOnly, h.EndOfSupport); err != nil && h.EndOfSupport != "" {
		return fault.New(fault.Invalid, "end_of_support: %.40q is not a date", h.EndOfSupport).WithHint("Use the form 2027-06-30.")
	}
	return nil
}

// ends is when the last day of support is over; zero is never.
func (h *Hardware) ends() time.Time {
	if h == nil {
		return time.Time{}
	}
	day, err := time.Parse(time.DateOnly, h.EndOfSupport)
	if err != nil {
		return time.Time{}
	}
	return day.AddDate(0, 0, 1)
}

// unsupported says why nothing may start on the hardware now; empty when it may.
func (h *Hardware) unsupported(now time.Time) string {
	if at := h.ends(); at.IsZero() || now.Before(at) || h.UseAfter {
		return ""
	}
	return "its hardware is out of support since " + h.EndOfSupport
}

// words are what people should know of it.
func (h *Hardware) words(now time.Time) string {
	if h == nil {
		return ""
	}
	text := h.Generation
	if text != "" && h.EndOfSupport != "" {
		text += ", "
	}
	at := h.ends()
	after := "no new workloads start here"
	if h.UseAfter {
		after = "workloads still start here"
	}
	switch {
	case at.IsZero():
	case !now.Before(at):
		text += fmt.Sprintf("out of support since %s: %s", h.EndOfSupport, after)
	case at.Sub(now) <= supportWarning:
		when := "today"
		if days := int(at.Sub(now).Hours() / 24); days > 0 {
			when = fmt.Sprintf("in %d days", days)
			if days == 1 {
				when = "tomorrow"
			}
		}
		text += fmt.Sprintf("supported until %s, %s: afterwards %s", h.EndOfSupport, when, after)
	default:
		text += "supported until " + h.EndOfSupport
	}
	return text
}

// news is when it ceases to be supported; zero is never, or before.
func (h *Hardware) news(now time.Time) time.Time {
	if at := h.ends(); at.After(now) {
		return at
	}
	return time.Time{}
}

// warnOfSupport tells once of each pool whose hardware is soon out of support, or is
// already.
func (s *Scheduling) warnOfSupport(ctx context.Context) error {
	due := func(p Pool) bool {
		at := p.Hardware.ends()
		return !at.IsZero() && p.Warned != p.Hardware.EndOfSupport && at.Sub(s.now()) <= supportWarning
	}
	pools, err := s.recorded(ctx)
	if err != nil {
		return err
	}
	for _, p := range pools {
		if !due(p) {
			continue
		}
		err := s.cfg.DB.Update(ctx, "", func(ctx context.Context, tx *store.Tx) error {
			now, err := s.poolStore.Pool(ctx, tx, p.Name)
			if err != nil || !due(now) {
				return err // changed concurrently
			}
			now.Warned = now.Hardware.EndOfSupport
			if err := s.poolStore.SavePool(ctx, tx, now); err != nil {
				return err
			}
			words := now.Hardware.words(s.now())
			err = audit.Append(ctx, tx, audit.Entry{
				Actor: identity.Loop("compute"), Action: "pool.warn", Object: "pool " + string(now.Name), Detail: map[string]any{"hardware": words},
			})
			if err != nil {
				return err
			}
			return event.Publish(ctx, tx, "", EventSupportEnds, PoolEvent{Pool: now.Name, Reason: words})
		})
		if err != nil && !fault.Is(err, fault.NotFound) {
			return fault.Wrap(err, "publishing the end of support of pool %s", p.Name)
		}
	}
	return nil
}
