package compute

import (
	"context"
	"time"

	"github.com/falaj-ml/falaj/internal/resource"
	"github.com/falaj-ml/falaj/internal/scheduler"
	"github.com/falaj-ml/falaj/internal/store"
)

// PricedPools lists all pools by name as they are now, and the currency of their prices.
// The caller has asked whether it may.
func (s *Pools) PricedPools(ctx context.Context) (pools []Pool, currency string, err error) {
	err = s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		pools, _, err = s.all(ctx, tx)
		return err
	})
	return pools, s.cfg.Currency, err
}

// week is over which prices that change with the time are averaged.
const week = 7 * 24 * time.Hour

// HourlyCost is what a worker that asks for so much of a node costs in an hour, mean
// over the week from an instant; 0 without a price.
func (p Pool) HourlyCost(ask resource.Amount, node Node, from time.Time) float64 {
	return scheduler.Share(ask, node.Amount()) * p.Price().Rate().Over(from, from.Add(week)) / week.Hours()
}
