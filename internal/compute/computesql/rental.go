package computesql

import (
	"context"
	"encoding/json"
	"time"

	"github.com/uptrace/bun"

	"github.com/falaj-ml/falaj/internal/compute"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/store"
)

type rentalRow struct {
	bun.BaseModel `bun:"table:compute_rental"`

	ID       string     `bun:"id,pk"`
	Pool     string     `bun:"pool"`
	Node     string     `bun:"node"`
	Workload string     `bun:"workload"`
	Asked    store.Time `bun:"asked"`
	Began    store.Time `bun:"began"`
	Ready    store.Time `bun:"ready"`
	Opened   store.Time `bun:"opened"`
	Leaving  store.Time `bun:"leaving"`
	Ended    store.Time `bun:"ended"`
	Failed   bool       `bun:"failed"`
	Why      string     `bun:"why"`
}

// Rentals lists those that have not ended, and those that ended after t.
func (ElasticStore) Rentals(ctx context.Context, tx *store.Tx, t time.Time) ([]compute.Rental, error) {
	var rows []rentalRow
	if err := tx.NewSelect().Model(&rows).Where("ended = 0 OR ended > ?", store.At(t)).OrderExpr("asked, id").Scan(ctx); err != nil {
		return nil, err
	}
	out := make([]compute.Rental, len(rows))
	for i, r := range rows {
		out[i] = compute.Rental{
			ID: r.ID, Pool: compute.PoolName(r.Pool), Node: r.Node, For: compute.WorkloadID(r.Workload), Asked: r.Asked.Time(), Began: r.Began.Time(),
			Ready: r.Ready.Time(), Opened: r.Opened.Time(), Leaving: r.Leaving.Time(), Ended: r.Ended.Time(), Failed: r.Failed, Why: r.Why,
		}
	}
	return out, nil
}

// SaveRental inserts or replaces.
func (ElasticStore) SaveRental(ctx context.Context, tx *store.Tx, r compute.Rental) error {
	taken, err := tx.NewSelect().Table("compute_rental").Where("pool = ? AND node = ? AND ended = 0 AND id <> ?", string(r.Pool), r.Node, r.ID).Exists(ctx)
	if err != nil {
		return err
	}
	if taken && r.Ended.IsZero() {
		return fault.New(fault.Conflict, "node %s of pool %s is already rented", r.Node, r.Pool)
	}
	_, err = tx.NewInsert().Model(&rentalRow{
		ID: r.ID, Pool: string(r.Pool), Node: r.Node, Workload: string(r.For), Asked: store.At(r.Asked), Began: store.At(r.Began), Ready: store.At(r.Ready),
		Opened: store.At(r.Opened), Leaving: store.At(r.Leaving), Ended: store.At(r.Ended), Failed: r.Failed, Why: r.Why,
	}).On("CONFLICT (id) DO UPDATE").Set("began = EXCLUDED.began").Set("ready = EXCLUDED.ready").Set("opened = EXCLUDED.opened").
		Set("leaving = EXCLUDED.leaving").Set("ended = EXCLUDED.ended").Set("failed = EXCLUDED.failed").Set("why = EXCLUDED.why").Exec(ctx)
	return err
}

type wishRow struct {
	bun.BaseModel `bun:"table:compute_wish"`

	Pool    string     `bun:"pool,pk"`
	Nodes   int        `bun:"nodes"`
	Why     string     `bun:"why"`
	Decided store.Time `bun:"decided"`
}

// Wishes lists all by pool.
func (ElasticStore) Wishes(ctx context.Context, tx *store.Tx) ([]compute.Wish, error) {
	var rows []wishRow
	if err := tx.NewSelect().Model(&rows).OrderExpr("pool").Scan(ctx); err != nil {
		return nil, err
	}
	out := make([]compute.Wish, len(rows))
	for i, r := range rows {
		out[i] = compute.Wish{Pool: compute.PoolName(r.Pool), Nodes: r.Nodes, Decided: r.Decided.Time()}
		if err := json.Unmarshal([]byte(r.Why), &out[i].Why); err != nil {
			return nil, fault.Wrap(err, "reading the desired nodes of pool %s", r.Pool)
		}
	}
	return out, nil
}

// SaveWish inserts or replaces.
func (ElasticStore) SaveWish(ctx context.Context, tx *store.Tx, w compute.Wish) error {
	why, err := json.Marshal(w.Why)
	if err != nil {
		return err
	}
	_, err = tx.NewInsert().Model(&wishRow{Pool: string(w.Pool), Nodes: w.Nodes, Why: string(why), Decided: store.At(w.Decided)}).
		On("CONFLICT (pool) DO UPDATE").Set("nodes = EXCLUDED.nodes").Set("why = EXCLUDED.why").Set("decided = EXCLUDED.decided").Exec(ctx)
	return err
}
