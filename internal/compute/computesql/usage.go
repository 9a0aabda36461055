package computesql

import (
	"context"
	"encoding/json"
	"slices"
	"time"

	"github.com/uptrace/bun"

	"github.com/falaj-ml/falaj/internal/compute"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/resource"
	"github.com/falaj-ml/falaj/internal/store"
)

type usageRow struct {
	bun.BaseModel `bun:"table:compute_usage"`

	Workload     string     `bun:"workload,pk"`
	Project      string     `bun:"project"`
	Kind         string     `bun:"kind"`
	Label        string     `bun:"label"`
	User         string     `bun:"username"`
	Queue        string     `bun:"queue"`
	Model        string     `bun:"model"`
	Pool         string     `bun:"pool"`
	Workers      int        `bun:"workers"`
	Started      store.Time `bun:"started"`
	Ended        store.Time `bun:"ended"`
	WallUS       int64      `bun:"wall_us"`
	CPUUS        int64      `bun:"cpu_us"`
	PeakRSS      int64      `bun:"peak_rss"`
	NodeHours    float64    `bun:"node_hours"`
	Accelerators string     `bun:"accelerators"`
	EnergyKWh    float64    `bun:"energy_kwh"`
	Cost         float64    `bun:"cost"`
	Currency     string     `bun:"currency"`
}

func (r usageRow) usage() (compute.Usage, error) {
	u := compute.Usage{
		Workload: compute.WorkloadID(r.Workload), Project: project.Name(r.Project), Kind: compute.Kind(r.Kind), Label: r.Label,
		User: r.User, Queue: r.Queue, Model: r.Model, Pool: compute.PoolName(r.Pool), Workers: r.Workers,
		Started: r.Started.Time(), Ended: r.Ended.Time(), Wall: time.Duration(r.WallUS) * time.Microsecond,
		CPU: time.Duration(r.CPUUS) * time.Microsecond, PeakRSS: resource.Bytes(r.PeakRSS),
		NodeHours: r.NodeHours, EnergyKWh: r.EnergyKWh, Cost: r.Cost, Currency: r.Currency,
	}
	err := json.Unmarshal([]byte(r.Accelerators), &u.Accelerators)
	return u, fault.Wrap(err, "reading the usage of %s", r.Workload)
}

// InsertUsage adds a metering row; a second one for the same workload is
// ignored.
func (UsageStore) InsertUsage(ctx context.Context, tx *store.Tx, u compute.Usage) error {
	accelerators, err := json.Marshal(u.Accelerators)
	if err != nil {
		return err
	}
	_, err = tx.NewInsert().Model(&usageRow{
		Workload: string(u.Workload), Project: string(u.Project), Kind: string(u.Kind), Label: u.Label,
		User: u.User, Queue: u.Queue, Model: u.Model, Pool: string(u.Pool), Workers: u.Workers,
		Started: store.At(u.Started), Ended: store.At(u.Ended), WallUS: u.Wall.Microseconds(), CPUUS: u.CPU.Microseconds(), PeakRSS: int64(u.PeakRSS),
		NodeHours: u.NodeHours, Accelerators: string(accelerators), EnergyKWh: u.EnergyKWh, Cost: u.Cost, Currency: u.Currency,
	}).On("CONFLICT (workload) DO NOTHING").Exec(ctx)
	return err
}

// Usages lists metering rows, newest first.
func (UsageStore) Usages(ctx context.Context, tx *store.Tx, p project.Name, since time.Time, limit int) ([]compute.Usage, error) {
	var rows []usageRow
	q := tx.NewSelect().Model(&rows).Where("started >= ?", store.At(since)).OrderExpr("started DESC, workload DESC").Limit(limit)
	if p != "" {
		q = q.Where("project = ?", string(p))
	}
	if err := q.Scan(ctx); err != nil {
		return nil, err
	}
	usages := make([]compute.Usage, len(rows))
	for i, r := range rows {
		var err error
		if usages[i], err = r.usage(); err != nil {
			return nil, err
		}
	}
	return usages, nil
}

// usagePage is how many rows EachUsage reads at once.
const usagePage = 5000

// EachUsage implements compute.UsageStore, page by page.
func (UsageStore) EachUsage(ctx context.Context, tx *store.Tx, p project.Name, from, until time.Time, each func(compute.Usage)) error {
	for ended, workload := store.At(from), ""; ; {
		var rows []usageRow
		q := tx.NewSelect().Model(&rows).Where("started < ?", store.At(until)).OrderExpr("ended, workload").Limit(usagePage)
		if workload == "" {
			q = q.Where("ended >= ? AND (ended > ? OR started = ended)", ended, ended)
		} else {
			q = q.Where("(ended > ? OR (ended = ? AND workload > ?))", ended, ended, workload)
		}
		if p != "" {
			q = q.Where("project = ?", string(p))
		}
		if err := q.Scan(ctx); err != nil {
			return err
		}
		for _, r := range rows {
			u, err := r.usage()
			if err != nil {
				return err
			}
			each(u)
		}
		if len(rows) < usagePage {
			return nil
		}
		last := rows[len(rows)-1]
		ended, workload = last.Ended, last.Workload
	}
}

// Spent adds the cost of what a project began since an instant and has ended.
func (UsageStore) Spent(ctx context.Context, tx *store.Tx, p project.Name, currency string, since time.Time) (float64, error) {
	var sum, days float64
	err := tx.NewSelect().Table("compute_usage").ColumnExpr("COALESCE(SUM(cost), 0.0)").
		Where("project = ?", string(p)).Where("started >= ?", store.At(since)).Where("currency IN (?, '')", currency).Scan(ctx, &sum)
	if err != nil {
		return 0, err
	}
	err = tx.NewSelect().Table("compute_usage_day").ColumnExpr("COALESCE(SUM(cost), 0.0)").
		Where("project = ?", string(p)).Where("day >= ?", store.At(since)).Where("currency IN (?, '')", currency).Scan(ctx, &days)
	return sum + days, err
}

// SpentBy implements compute.UsageStore.
func (UsageStore) SpentBy(ctx context.Context, tx *store.Tx, p project.Name, currency string, labels []string) (map[string]float64, error) {
	sums := map[string]float64{}
	for chunk := range slices.Chunk(labels, 500) { // databases bound the parameters of a statement
		var rows []struct {
			Label string
			Cost  float64
		}
		err := tx.NewSelect().Table("compute_usage").Column("label").ColumnExpr("SUM(cost) AS cost").
			Where("project = ?", string(p)).Where("label IN (?)", bun.List(chunk)).Where("currency IN (?, '')", currency).Group("label").Scan(ctx, &rows)
		if err != nil {
			return nil, err
		}
		for _, r := range rows {
			sums[r.Label] = r.Cost
		}
	}
	return sums, nil
}

type priceRow struct {
	bun.BaseModel `bun:"table:compute_price"`

	Pool  string     `bun:"pool,pk"`
	Since store.Time `bun:"since,pk"`
	Price string     `bun:"price"`
}

// SavePrice inserts or replaces a price.
func (PoolStore) SavePrice(ctx context.Context, tx *store.Tx, p compute.DatedPrice) error {
	price, err := json.Marshal(p.Price)
	if err != nil {
		return err
	}
	_, err = tx.NewInsert().Model(&priceRow{Pool: string(p.Pool), Since: store.At(p.Since), Price: string(price)}).
		On("CONFLICT (pool, since) DO UPDATE").Set("price = EXCLUDED.price").Exec(ctx)
	return err
}

// Prices lists the prices of a pool, or of all, the oldest first.
func (PoolStore) Prices(ctx context.Context, tx *store.Tx, pool compute.PoolName) ([]compute.DatedPrice, error) {
	var rows []priceRow
	q := tx.NewSelect().Model(&rows).OrderExpr("pool, since")
	if pool != "" {
		q = q.Where("pool = ?", string(pool))
	}
	if err := q.Scan(ctx); err != nil {
		return nil, err
	}
	prices := make([]compute.DatedPrice, len(rows))
	for i, r := range rows {
		prices[i] = compute.DatedPrice{Pool: compute.PoolName(r.Pool), Since: r.Since.Time()}
		if err := json.Unmarshal([]byte(r.Price), &prices[i].Price); err != nil {
			return nil, fault.Wrap(err, "reading a price of pool %s", r.Pool)
		}
	}
	return prices, nil
}

type budgetRow struct {
	bun.BaseModel `bun:"table:compute_budget"`

	Project   string     `bun:"project,pk"`
	Spec      string     `bun:"spec"`
	Month     store.Time `bun:"month"`
	Warned    float64    `bun:"warned"`
	CreatedAt store.Time `bun:"created_at"`
	UpdatedAt store.Time `bun:"updated_at"`
	Revision  int64      `bun:"revision"`
}

// Budgets lists all by project.
func (BudgetStore) Budgets(ctx context.Context, tx *store.Tx) ([]compute.Budget, error) {
	var rows []budgetRow
	if err := tx.NewSelect().Model(&rows).OrderExpr("project").Scan(ctx); err != nil {
		return nil, err
	}
	budgets := make([]compute.Budget, len(rows))
	for i, r := range rows {
		budgets[i] = compute.Budget{
			Project: project.Name(r.Project), Month: r.Month.Time(), Warned: r.Warned,
			CreatedAt: r.CreatedAt.Time(), UpdatedAt: r.UpdatedAt.Time(), Revision: r.Revision,
		}
		if err := json.Unmarshal([]byte(r.Spec), &budgets[i].BudgetSpec); err != nil {
			return nil, fault.Wrap(err, "reading the budget of %s", r.Project)
		}
	}
	return budgets, nil
}

// SaveBudget inserts or replaces a budget.
func (BudgetStore) SaveBudget(ctx context.Context, tx *store.Tx, b compute.Budget) error {
	spec, err := json.Marshal(b.BudgetSpec)
	if err != nil {
		return err
	}
	_, err = tx.NewInsert().Model(&budgetRow{
		Project: string(b.Project), Spec: string(spec), Month: store.At(b.Month), Warned: b.Warned,
		CreatedAt: store.At(b.CreatedAt), UpdatedAt: store.At(b.UpdatedAt), Revision: b.Revision,
	}).On("CONFLICT (project) DO UPDATE").Set("spec = EXCLUDED.spec").Set("month = EXCLUDED.month").Set("warned = EXCLUDED.warned").
		Set("updated_at = EXCLUDED.updated_at").Set("revision = EXCLUDED.revision").Exec(ctx)
	return err
}

// DeleteBudget removes a budget.
func (BudgetStore) DeleteBudget(ctx context.Context, tx *store.Tx, p project.Name) error {
	_, err := tx.NewDelete().Model((*budgetRow)(nil)).Where("project = ?", string(p)).Exec(ctx)
	return err
}
