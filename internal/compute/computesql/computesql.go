// Package computesql keeps pools, workloads and usage in SQLite or PostgreSQL.
package computesql

import (
	"context"
	"database/sql"
	"embed"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"github.com/uptrace/bun"

	"github.com/falaj-ml/falaj/internal/compute"
	"github.com/falaj-ml/falaj/internal/compute/engine"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/resource"
	"github.com/falaj-ml/falaj/internal/scheduler"
	"github.com/falaj-ml/falaj/internal/store"
)

//go:embed migrations/*.sql
var migrations embed.FS

// Migrations are the tables of this package.
var Migrations = store.Embedded("compute", migrations)

type poolRow struct {
	bun.BaseModel `bun:"table:compute_pool"`

	Name      string     `bun:"name,pk"`
	Spec      string     `bun:"spec"`
	Found     string     `bun:"found"`
	Warned    string     `bun:"warned"`
	CreatedAt store.Time `bun:"created_at"`
	UpdatedAt store.Time `bun:"updated_at"`
	Revision  int64      `bun:"revision"`
}

func (r poolRow) pool() (compute.Pool, error) {
	var s compute.PoolSpec
	if err := json.Unmarshal([]byte(r.Spec), &s); err != nil {
		return compute.Pool{}, fault.Wrap(err, "reading pool %s", r.Name)
	}
	var seen []compute.PoolNode
	if err := json.Unmarshal([]byte(r.Found), &seen); err != nil {
		return compute.Pool{}, fault.Wrap(err, "reading the nodes of pool %s", r.Name)
	}
	return compute.Pool{
		Name: compute.PoolName(r.Name), Zone: s.Zone, Engine: s.Engine, Mode: s.Mode, Listed: s.Nodes, Seen: seen, Isolation: s.Isolation,
		PricePerHour: s.PricePerHour, PowerWatts: s.PowerWatts, Cost: s.Cost, Closed: s.Closed, Options: s.Options, Env: s.Env, Elastic: s.Elastic,
		Ahead: s.Ahead, Topology: s.Topology, Maintenance: s.Maintenance, Hardware: s.Hardware, Warned: r.Warned,
		CreatedAt: r.CreatedAt.Time(), UpdatedAt: r.UpdatedAt.Time(), Revision: r.Revision,
	}, nil
}

type workloadRow struct {
	bun.BaseModel `bun:"table:compute_workload"`

	ID        string     `bun:"id,pk"`
	Project   string     `bun:"project"`
	Kind      string     `bun:"kind"`
	Label     string     `bun:"label"`
	Asked     string     `bun:"asked"`
	State     string     `bun:"state"`
	Submitted store.Time `bun:"submitted"`
	Placed    store.Time `bun:"placed"`
	Started   store.Time `bun:"started"`
	Ended     store.Time `bun:"ended"`
	Pool      string     `bun:"pool"`
	Workers   int        `bun:"workers"`
	Nodes     string     `bun:"nodes"`
	Machine   string     `bun:"machine"`
	Zone      string     `bun:"zone"`
	Passed    string     `bun:"passed"`
	Handle    string     `bun:"handle"`
	Stop      string     `bun:"stop"`
	Status    string     `bun:"status"`
	Failure   string     `bun:"failure"`
	Hint      string     `bun:"hint"`
	Settled   bool       `bun:"settled"`
	Denials   int        `bun:"denials"`
	Saved     store.Time `bun:"saved"`
	Revision  int64      `bun:"revision"`
}

// asked is what a workload was submitted with; only the bounds of its size change, and
// refusals come.
type asked struct {
	Request        resource.Amount        `json:"request"`
	Isolation      scheduler.Isolation    `json:"isolation"`
	Residency      residency.Label        `json:"residency"`
	Classification project.Classification `json:"classification"`
	Pools          []string               `json:"pools,omitempty"`
	Priority       int                    `json:"priority"`
	Timeout        time.Duration          `json:"timeout_ns"`
	Grace          time.Duration          `json:"grace_ns"`
	NotBefore      store.Time             `json:"not_before"`
	Spec           *engine.Spec           `json:"spec,omitempty"`
	Workers        int                    `json:"workers,omitempty"`
	MaxWorkers     int                    `json:"max_workers,omitempty"`
	Roles          []scheduler.Role       `json:"roles,omitempty"`
	InPlace        bool                   `json:"in_place,omitempty"`
	Queue          string                 `json:"queue,omitempty"`
	User           string                 `json:"user,omitempty"`
	Model          string                 `json:"model,omitempty"`
	Preemptible    bool                   `json:"preemptible,omitempty"`
	Served         float64                `json:"served,omitempty"`
	Speed          []float64              `json:"speed,omitempty"`
	Restart        time.Duration          `json:"restart_ns,omitempty"`
	Target         int                    `json:"target,omitempty"`
	Within         string                 `json:"within,omitempty"`
	PerNode        int                    `json:"per_node,omitempty"`
	Due            store.Time             `json:"due,omitempty"`
	Expected       time.Duration          `json:"expected_ns,omitempty"`
	DelayCost      float64                `json:"delay_cost,omitempty"`
	Data           resource.Bytes         `json:"data,omitempty"`
	Refusals       []refusal              `json:"refusals,omitempty"`
}

// refusal is compute.Refusal as the column keeps it.
type refusal struct {
	Pool  compute.PoolName `json:"pool"`
	Why   string           `json:"why"`
	Times int              `json:"times"`
	Until time.Time        `json:"until"`
}

// status is engine.Status as the column keeps it.
type status struct {
	State    engine.State   `json:"state,omitempty"`
	Reason   engine.Reason  `json:"reason,omitempty"`
	ExitCode int            `json:"exit_code,omitempty"`
	Signal   string         `json:"signal,omitempty"`
	Message  string         `json:"message,omitempty"`
	Started  time.Time      `json:"started,omitzero"`
	Ended    time.Time      `json:"ended,omitzero"`
	CPU      time.Duration  `json:"cpu_ns,omitempty"`
	PeakRSS  resource.Bytes `json:"peak_rss,omitempty"`
	Isolated string         `json:"isolated,omitempty"`
}

func rowOf(w compute.Workload) (workloadRow, error) {
	var refusals []refusal
	for _, r := range w.Refusals {
		refusals = append(refusals, refusal(r))
	}
	a, err := json.Marshal(asked{ //nolint:musttag // engine.Spec is kept under its field names
		Request: w.Request, Isolation: w.Isolation, Residency: w.Residency, Classification: w.Classification, Pools: w.Pools,
		Priority: w.Priority, Timeout: w.Timeout, Grace: w.Grace, NotBefore: store.At(w.NotBefore), Spec: w.Spec,
		Workers: w.Workers, MaxWorkers: w.MaxWorkers, Roles: w.Roles, InPlace: w.InPlace, Queue: w.Queue, User: w.User, Model: w.Model, Preemptible: w.Preemptible, Served: w.Served,
		Speed: w.Speed, Restart: w.Restart, Target: w.Target,
		Within: w.Within, PerNode: w.PerNode, Due: store.At(w.Due), Expected: w.Expected, DelayCost: w.DelayCost, Data: w.Data, Refusals: refusals,
	})
	if err != nil {
		return workloadRow{}, err
	}
	st, err := json.Marshal(status(w.Status))
	if err != nil {
		return workloadRow{}, err
	}
	passed, err := json.Marshal(w.Passed)
	if err != nil {
		return workloadRow{}, err
	}
	nodes, err := json.Marshal(w.Nodes)
	if err != nil {
		return workloadRow{}, err
	}
	return workloadRow{
		ID: string(w.ID), Project: string(w.Project), Kind: string(w.Kind), Label: w.Label, Asked: string(a), State: string(w.State),
		Submitted: store.At(w.Submitted), Placed: store.At(w.PlacedAt), Started: store.At(w.StartedAt), Ended: store.At(w.EndedAt),
		Pool: string(w.Pool), Workers: w.Placed, Nodes: string(nodes), Machine: w.Machine, Zone: string(w.Zone), Passed: string(passed), Handle: string(w.Handle), Stop: w.Stop, Status: string(st),
		Failure: w.Failure, Hint: w.Hint, Settled: w.Settled, Denials: w.Denials, Saved: store.At(w.SavedAt), Revision: w.Revision,
	}, nil
}

func (r workloadRow) workload() (compute.Workload, error) {
	var a asked
	var st status
	w := compute.Workload{
		ID: compute.WorkloadID(r.ID), Project: project.Name(r.Project), Kind: compute.Kind(r.Kind), Label: r.Label, State: compute.State(r.State),
		Submitted: r.Submitted.Time(), PlacedAt: r.Placed.Time(), StartedAt: r.Started.Time(), EndedAt: r.Ended.Time(),
		Pool: compute.PoolName(r.Pool), Placed: r.Workers, Machine: r.Machine, Zone: residency.Zone(r.Zone), Handle: engine.Handle(r.Handle), Stop: r.Stop,
		Failure: r.Failure, Hint: r.Hint, Settled: r.Settled, Denials: r.Denials, SavedAt: r.Saved.Time(), Revision: r.Revision,
	}
	err := errors.Join(
		json.Unmarshal([]byte(r.Asked), &a), //nolint:musttag // see rowOf
		json.Unmarshal([]byte(r.Status), &st),
		json.Unmarshal([]byte(r.Passed), &w.Passed),
		json.Unmarshal([]byte(r.Nodes), &w.Nodes))
	if err != nil {
		return w, fault.Wrap(err, "reading workload %s", r.ID)
	}
	w.Status = engine.Status(st)
	w.Request, w.Isolation, w.Residency, w.Classification, w.Pools = a.Request, a.Isolation, a.Residency, a.Classification, a.Pools
	w.Priority, w.Timeout, w.Grace, w.NotBefore, w.Spec = a.Priority, a.Timeout, a.Grace, a.NotBefore.Time(), a.Spec
	w.Workers, w.MaxWorkers, w.Roles, w.InPlace = a.Workers, a.MaxWorkers, a.Roles, a.InPlace
	w.Speed, w.Restart, w.Target = a.Speed, a.Restart, a.Target
	w.Queue, w.User, w.Model, w.Preemptible, w.Served = a.Queue, a.User, a.Model, a.Preemptible, a.Served
	w.Within, w.PerNode = a.Within, a.PerNode
	w.Due, w.Expected, w.DelayCost, w.Data = a.Due.Time(), a.Expected, a.DelayCost, a.Data
	for _, r := range a.Refusals {
		w.Refusals = append(w.Refusals, compute.Refusal(r))
	}
	return w, nil
}

// Store implements compute.Store.
type Store struct {
	PoolStore
	QueueStore
	WorkloadStore
	UsageStore
	BudgetStore
	ElasticStore
}

type (
	// PoolStore implements compute.PoolStore.
	PoolStore struct{}
	// QueueStore implements compute.QueueStore.
	QueueStore struct{}
	// WorkloadStore implements compute.WorkloadStore.
	WorkloadStore struct{}
	// UsageStore implements compute.UsageStore.
	UsageStore struct{}
	// BudgetStore implements compute.BudgetStore.
	BudgetStore struct{}
	// ElasticStore implements compute.ElasticStore.
	ElasticStore struct{}
)

var _ compute.Store = Store{}

// Pool finds one pool.
func (PoolStore) Pool(ctx context.Context, tx *store.Tx, name compute.PoolName) (compute.Pool, error) {
	var r poolRow
	err := tx.NewSelect().Model(&r).Where("name = ?", string(name)).Scan(ctx)
	if errors.Is(err, sql.ErrNoRows) {
		return compute.Pool{}, fault.New(fault.NotFound, "there is no pool %.64q", string(name))
	}
	if err != nil {
		return compute.Pool{}, err
	}
	return r.pool()
}

// Pools lists all pools by name.
func (PoolStore) Pools(ctx context.Context, tx *store.Tx) ([]compute.Pool, error) {
	var rows []poolRow
	if err := tx.NewSelect().Model(&rows).OrderExpr("name").Scan(ctx); err != nil {
		return nil, err
	}
	pools := make([]compute.Pool, len(rows))
	for i, r := range rows {
		var err error
		if pools[i], err = r.pool(); err != nil {
			return nil, err
		}
	}
	return pools, nil
}

// SavePool inserts or replaces a pool.
func (PoolStore) SavePool(ctx context.Context, tx *store.Tx, p compute.Pool) error {
	spec, err := json.Marshal(p.Spec())
	if err != nil {
		return err
	}
	seen, err := json.Marshal(p.Seen)
	if err != nil {
		return err
	}
	_, err = tx.NewInsert().Model(&poolRow{
		Name: string(p.Name), Spec: string(spec), Found: string(seen), Warned: p.Warned, CreatedAt: store.At(p.CreatedAt), UpdatedAt: store.At(p.UpdatedAt), Revision: p.Revision,
	}).On("CONFLICT (name) DO UPDATE").
		Set("spec = EXCLUDED.spec").Set("found = EXCLUDED.found").Set("warned = EXCLUDED.warned").Set("updated_at = EXCLUDED.updated_at").Set("revision = EXCLUDED.revision").Exec(ctx)
	return err
}

// Workload finds one workload.
func (WorkloadStore) Workload(ctx context.Context, tx *store.Tx, id compute.WorkloadID) (compute.Workload, error) {
	var r workloadRow
	err := tx.NewSelect().Model(&r).Where("id = ?", string(id)).Scan(ctx)
	if errors.Is(err, sql.ErrNoRows) {
		return compute.Workload{}, fault.New(fault.NotFound, "there is no workload %.100q", string(id))
	}
	if err != nil {
		return compute.Workload{}, err
	}
	return r.workload()
}

// InsertWorkload adds a workload.
func (WorkloadStore) InsertWorkload(ctx context.Context, tx *store.Tx, w compute.Workload) error {
	r, err := rowOf(w)
	if err != nil {
		return err
	}
	_, err = tx.NewInsert().Model(&r).Exec(ctx)
	return err
}

// UpdateWorkload writes what may change, unless it changed concurrently.
func (WorkloadStore) UpdateWorkload(ctx context.Context, tx *store.Tx, w compute.Workload) error {
	r, err := rowOf(w)
	if err != nil {
		return err
	}
	r.Revision++
	res, err := tx.NewUpdate().Model(&r).
		Column("asked", "state", "placed", "started", "ended", "pool", "workers", "nodes", "machine", "zone", "passed", "handle", "stop", "status", "failure", "hint", "settled", "denials", "saved", "revision").
		Where("id = ? AND revision = ?", r.ID, w.Revision).Exec(ctx)
	if err != nil {
		return err
	}
	n, err := res.RowsAffected()
	if err == nil && n == 0 {
		return fault.New(fault.Conflict, "workload %s was changed meanwhile", w.ID)
	}
	return err
}

// Unsettled lists what is not over yet, in order of submission.
func (WorkloadStore) Unsettled(ctx context.Context, tx *store.Tx) ([]compute.Workload, error) {
	var rows []workloadRow
	if err := tx.NewSelect().Model(&rows).Where("NOT settled").OrderExpr("submitted, id").Scan(ctx); err != nil {
		return nil, err
	}
	return workloads(rows)
}

// Active lists what has its place and has not ended.
func (WorkloadStore) Active(ctx context.Context, tx *store.Tx) ([]compute.Workload, error) {
	var rows []workloadRow
	err := tx.NewSelect().Model(&rows).
		Where("NOT settled AND state IN (?, ?)", string(compute.Placed), string(compute.Running)).OrderExpr("submitted, id").Scan(ctx)
	if err != nil {
		return nil, err
	}
	return workloads(rows)
}

// Workloads finds those of the identifiers that exist.
func (WorkloadStore) Workloads(ctx context.Context, tx *store.Tx, ids []compute.WorkloadID) ([]compute.Workload, error) {
	var all []compute.Workload
	for chunk := range slices.Chunk(ids, 500) { // databases bound the parameters of a statement
		var rows []workloadRow
		if err := tx.NewSelect().Model(&rows).Where("id IN (?)", bun.List(chunk)).Scan(ctx); err != nil {
			return nil, err
		}
		ws, err := workloads(rows)
		if err != nil {
			return nil, err
		}
		all = append(all, ws...)
	}
	return all, nil
}

// Held implements compute.WorkloadStore.
func (WorkloadStore) Held(ctx context.Context, tx *store.Tx, handles []engine.Handle) (map[engine.Handle]compute.Held, error) {
	held := make(map[engine.Handle]compute.Held, len(handles))
	for chunk := range slices.Chunk(handles, 500) { // databases bound the parameters of a statement
		var rows []struct {
			ID     string `bun:"id"`
			Handle string `bun:"handle"`
			Lost   bool   `bun:"lost"`
		}
		// The column is JSON that this package wrote.
		err := tx.NewSelect().Table("compute_workload").Column("id", "handle").
			ColumnExpr("ended > 0 AND status LIKE ? AS lost", `{"state":"lost"%`).Where("handle <> ''").Where("handle IN (?)", bun.List(chunk)).Scan(ctx, &rows)
		if err != nil {
			return nil, err
		}
		for _, r := range rows {
			held[engine.Handle(r.Handle)] = compute.Held{ID: compute.WorkloadID(r.ID), Lost: r.Lost}
		}
	}
	return held, nil
}

// Forgettable implements compute.WorkloadStore. For each kind an index is read up to what is not
// due: no workload that is still kept is read.
func (WorkloadStore) Forgettable(ctx context.Context, tx *store.Tx, t, replicas time.Time, without []compute.PoolName, limit int) ([]compute.Workload, error) {
	var all []workloadRow
	for _, kind := range compute.Kinds {
		if kind == compute.Replica {
			t = replicas
		}
		var rows []workloadRow
		q := tx.NewSelect().Model(&rows).Where("settled AND handle <> '' AND kind = ? AND ended < ?", string(kind), store.At(t)).OrderExpr("ended").Limit(limit - len(all))
		if len(without) > 0 {
			q = q.Where("pool NOT IN (?)", bun.List(without))
		}
		if err := q.Scan(ctx); err != nil {
			return nil, err
		}
		if all = append(all, rows...); len(all) == limit {
			break
		}
	}
	return workloads(all)
}

// Forgotten implements compute.WorkloadStore.
func (WorkloadStore) Forgotten(ctx context.Context, tx *store.Tx, ids []compute.WorkloadID) error {
	for chunk := range slices.Chunk(ids, 500) {
		_, err := tx.NewUpdate().Model((*workloadRow)(nil)).Set("handle = '', revision = revision + 1").
			Where("settled = ? AND id IN (?)", true, bun.List(chunk)).Exec(ctx)
		if err != nil {
			return err
		}
	}
	return nil
}

func workloads(rows []workloadRow) ([]compute.Workload, error) {
	ws := make([]compute.Workload, len(rows))
	for i, r := range rows {
		var err error
		if ws[i], err = r.workload(); err != nil {
			return nil, err
		}
	}
	return ws, nil
}

type quarantineRow struct {
	bun.BaseModel `bun:"table:compute_quarantine"`

	Pool   string     `bun:"pool,pk"`
	Node   string     `bun:"node,pk"`
	Reason string     `bun:"reason"`
	Since  store.Time `bun:"since"`
	Until  store.Time `bun:"until"`
}

// Quarantines lists those that are not over at a time.
func (PoolStore) Quarantines(ctx context.Context, tx *store.Tx, now time.Time) ([]compute.Quarantine, error) {
	var rows []quarantineRow
	if err := tx.NewSelect().Model(&rows).Where("until > ?", store.At(now)).OrderExpr("pool, node").Scan(ctx); err != nil {
		return nil, err
	}
	qs := make([]compute.Quarantine, len(rows))
	for i, r := range rows {
		qs[i] = compute.Quarantine{Pool: compute.PoolName(r.Pool), Node: r.Node, Reason: r.Reason, Since: r.Since.Time(), Until: r.Until.Time()}
	}
	return qs, nil
}

// SaveQuarantine inserts or replaces.
func (PoolStore) SaveQuarantine(ctx context.Context, tx *store.Tx, q compute.Quarantine) error {
	_, err := tx.NewInsert().Model(&quarantineRow{
		Pool: string(q.Pool), Node: q.Node, Reason: q.Reason, Since: store.At(q.Since), Until: store.At(q.Until),
	}).On("CONFLICT (pool, node) DO UPDATE").
		Set("reason = EXCLUDED.reason").Set("since = EXCLUDED.since").Set("until = EXCLUDED.until").Exec(ctx)
	return err
}

// DeleteQuarantine removes one.
func (PoolStore) DeleteQuarantine(ctx context.Context, tx *store.Tx, pool compute.PoolName, node string) error {
	_, err := tx.NewDelete().Model((*quarantineRow)(nil)).Where("pool = ? AND node = ?", string(pool), node).Exec(ctx)
	return err
}
