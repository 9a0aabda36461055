// Package compute acts on what scheduler decides: it keeps pools and workloads,
// starts workloads through engine drivers, watches them, stops them, and meters
// what they used. Everything that runs is a workload, so that nothing
// double-books a node.
//
// # Map
//
//   - pool.go: Pool and its manifest.
//   - zone.go: in which zone work runs, by the machine that runs it.
//   - workload.go: Workload, its states and transitions, Request, Owner.
//   - service.go: Services, one for each kind of caller, and the core that they share.
//     pools.go: Pools. queue.go: Queues. report.go: Costs. workloads.go: Workloads.
//     programs.go: Programs, logs and members. retention.go: Records. loop.go: Scheduling.
//   - loop.go: the scheduling cycle, recovery after a restart, orphans.
//   - reconcile.go: one goroutine per placed workload brings it to its end.
//   - metering.go, prices.go: prices, and what was used. accelerators.go: warnings
//     about accelerators that no pool has. report.go: what that cost, where the
//     month ends, own against rented. budget.go: what projects may spend. cost/ is
//     the arithmetic.
//   - store.go: what a database must offer; computesql/ is that database.
//   - engine/: the driver interface and the drivers.
//   - inspect/: profiles and output files of running workloads.
//
// # Guarantees
//
// A workload is started at most once: its identifier is its owner's attempt,
// and drivers start an identifier once. A kill at any moment is survived: each
// state is durable before it is acted on, running workloads are found again by
// their handle, and what an engine holds that the database does not want is
// stopped. Data is never taken into a zone where it may not be: the scheduler
// checks and the door before the start checks again. Refused attempts of
// workloads are in the audit journal within seconds.
//
// # What the caller owes
//
// Methods on workloads are for the domains that own them, which have asked
// whether their caller may; only methods on pools ask themselves.
package compute

import (
	"encoding/json"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/policy"
)

// The actions that this package asks for.
const (
	ActionPoolRead  policy.Action = "pool.read"
	ActionPoolApply policy.Action = "pool.apply"
)

// Duration is a time.Duration that manifests write as "90s" or "2h".
type Duration time.Duration

// MarshalJSON writes the text form.
func (d Duration) MarshalJSON() ([]byte, error) { return json.Marshal(time.Duration(d).String()) }

// UnmarshalJSON reads the text form.
func (d *Duration) UnmarshalJSON(b []byte) error {
	var s string
	if err := json.Unmarshal(b, &s); err != nil {
		return fault.New(fault.Invalid, "%.40s is not a duration such as 90s or 2h", b)
	}
	v, err := time.ParseDuration(s)
	if err != nil {
		return fault.New(fault.Invalid, "%.40q is not a duration such as 90s or 2h", s)
	}
	*d = Duration(v)
	return nil
}
