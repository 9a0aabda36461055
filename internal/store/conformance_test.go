package store_test

import (
	"testing"

	"github.com/falaj-ml/falaj/internal/store/storetest"
)

func TestSQLite(t *testing.T)     { storetest.Run(t, storetest.SQLite) }
func TestPostgreSQL(t *testing.T) { storetest.Run(t, storetest.PostgreSQL) }
