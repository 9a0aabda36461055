package compute

import (
	"context"
	"time"

	"github.com/falaj-ml/falaj/internal/compute/engine"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/scheduler"
	"github.com/falaj-ml/falaj/internal/store"
)

// Store is what this package needs from a database. Single objects that do not
// exist are fault.NotFound.
type Store interface {
	PoolStore
	QueueStore
	WorkloadStore
	UsageStore
	BudgetStore
	ElasticStore
}

// PoolStore keeps pools, their prices, and the quarantines of nodes.
type PoolStore interface {
	Pool(ctx context.Context, tx *store.Tx, name PoolName) (Pool, error)
	// Pools lists all by name.
	Pools(ctx context.Context, tx *store.Tx) ([]Pool, error)
	// SavePool inserts or replaces.
	SavePool(ctx context.Context, tx *store.Tx, p Pool) error
	// Quarantines lists those that are not over at a time.
	Quarantines(ctx context.Context, tx *store.Tx, now time.Time) ([]Quarantine, error)
	// SaveQuarantine inserts or replaces; DeleteQuarantine removes.
	SaveQuarantine(ctx context.Context, tx *store.Tx, q Quarantine) error
	DeleteQuarantine(ctx context.Context, tx *store.Tx, pool PoolName, node string) error
	// SavePrice inserts or replaces what a pool costs from an instant on; Prices
	// lists those of a pool, or of all without a name, the oldest first.
	SavePrice(ctx context.Context, tx *store.Tx, p DatedPrice) error
	Prices(ctx context.Context, tx *store.Tx, pool PoolName) ([]DatedPrice, error)
}

// QueueStore keeps queues and their past use.
type QueueStore interface {
	// Queues lists all by name.
	Queues(ctx context.Context, tx *store.Tx) ([]Queue, error)
	Queue(ctx context.Context, tx *store.Tx, name string) (Queue, error)
	// DefaultQueue is the name of a project's default queue, or else of the default queue of all projects;
	// empty without one.
	DefaultQueue(ctx context.Context, tx *store.Tx, p project.Name) (string, error)
	// SaveQueue inserts or replaces, and fault.Conflict when another one is the
	// default of a project already; DeleteQueue removes.
	SaveQueue(ctx context.Context, tx *store.Tx, q Queue) error
	DeleteQueue(ctx context.Context, tx *store.Tx, name string) error
	// SavePast replaces what is remembered of the queues' use; Past gives it.
	SavePast(ctx context.Context, tx *store.Tx, past map[string]scheduler.Used) error
	Past(ctx context.Context, tx *store.Tx) (map[string]scheduler.Used, error)
}

// WorkloadStore keeps workloads.
type WorkloadStore interface {
	Workload(ctx context.Context, tx *store.Tx, id WorkloadID) (Workload, error)
	InsertWorkload(ctx context.Context, tx *store.Tx, w Workload) error
	// UpdateWorkload writes everything that changes after submission, if the
	// revision is still w.Revision, and raises it; otherwise fault.Conflict.
	UpdateWorkload(ctx context.Context, tx *store.Tx, w Workload) error
	// Unsettled lists the workloads that compute still works on: queued,
	// placed, running, and ended ones that their owner has not taken note of.
	Unsettled(ctx context.Context, tx *store.Tx) ([]Workload, error)
	// Active lists the placed and the running.
	Active(ctx context.Context, tx *store.Tx) ([]Workload, error)
	// Workloads gives those of ids that exist, in any order.
	Workloads(ctx context.Context, tx *store.Tx, ids []WorkloadID) ([]Workload, error)
	// Held gives those of the handles that workloads have.
	Held(ctx context.Context, tx *store.Tx, handles []engine.Handle) (map[engine.Handle]Held, error)
	// Forgettable lists settled workloads with a handle that ended before t; replicas:
	// before another time, which is not earlier. Those of some pools are left out.
	Forgettable(ctx context.Context, tx *store.Tx, t, replicas time.Time, without []PoolName, limit int) ([]Workload, error)
	// Forgotten records that engines hold nothing of settled workloads any more.
	Forgotten(ctx context.Context, tx *store.Tx, ids []WorkloadID) error
	// Over lists settled workloads, except attempts of jobs, that ended before t and that engines have
	// forgotten, in the order of their ends.
	Over(ctx context.Context, tx *store.Tx, t time.Time, limit int) ([]WorkloadID, error)
	// DeleteWorkloads removes those of ids that are settled and that engines have forgotten.
	DeleteWorkloads(ctx context.Context, tx *store.Tx, ids []WorkloadID) error
}

// UsageStore keeps what workloads used.
type UsageStore interface {
	InsertUsage(ctx context.Context, tx *store.Tx, u Usage) error
	// Usages lists what a project used since t, newest first; an empty project
	// is all of them.
	Usages(ctx context.Context, tx *store.Tx, p project.Name, since time.Time, limit int) ([]Usage, error)
	// EachUsage gives what ran between two instants, the first included, in any order; an
	// empty project is all of them.
	EachUsage(ctx context.Context, tx *store.Tx, p project.Name, from, until time.Time, each func(Usage)) error
	// TakeUsage removes what workloads used that are not there any more, and gives it.
	TakeUsage(ctx context.Context, tx *store.Tx, ids []WorkloadID) ([]Usage, error)
	// AddUsageDay adds to the sum of a day; EachUsageDay gives the days that overlap the
	// time between two instants.
	AddUsageDay(ctx context.Context, tx *store.Tx, d UsageDay) error
	EachUsageDay(ctx context.Context, tx *store.Tx, p project.Name, from, until time.Time, each func(UsageDay)) error
	// Spent adds the cost, in a currency, of what a project began at or after an
	// instant, the beginning of a day in UTC, and has ended.
	Spent(ctx context.Context, tx *store.Tx, p project.Name, currency string, since time.Time) (float64, error)
	// SpentBy adds that of what has ended by label, for those labels that had any.
	SpentBy(ctx context.Context, tx *store.Tx, p project.Name, currency string, labels []string) (map[string]float64, error)
}

// BudgetStore keeps budgets.
type BudgetStore interface {
	// Budgets lists all by project.
	Budgets(ctx context.Context, tx *store.Tx) ([]Budget, error)
	// SaveBudget inserts or replaces; DeleteBudget removes.
	SaveBudget(ctx context.Context, tx *store.Tx, b Budget) error
	DeleteBudget(ctx context.Context, tx *store.Tx, p project.Name) error
}

// Held is a workload whose handle an engine may know.
type Held struct {
	ID   WorkloadID
	Lost bool // ended, because its engine could not say how it went
}
