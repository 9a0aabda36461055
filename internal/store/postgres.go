package store

import (
	"context"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/uptrace/bun"
)

type postgresDB struct{}

func openPostgres(ctx context.Context, url string, m []Migrations) (engine, error) {
	return nil, fault.New(fault.Unsupported, "soon")
}

var _ *bun.DB
