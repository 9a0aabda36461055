package tuningsql_test

import (
	"testing"

	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/store/storetest"
	"github.com/falaj-ml/falaj/internal/tuning/tuningsql"
	"github.com/falaj-ml/falaj/internal/tuning/tuningtest"
)

func TestSQLite(t *testing.T) {
	tuningtest.Run(t, tuningsql.Store{}, func(tb testing.TB) *store.DB {
		tb.Helper()
		return storetest.SQLite(tb, tuningsql.Migrations)
	})
}

func TestPostgreSQL(t *testing.T) {
	tuningtest.Run(t, tuningsql.Store{}, func(tb testing.TB) *store.DB {
		tb.Helper()
		return storetest.PostgreSQL(tb, tuningsql.Migrations)
	})
}
