package environment_test

import (
	"testing"

	"github.com/falaj-ml/falaj/internal/store/storetest"
)

// database is where the tests keep their rows.
var database storetest.Open = storetest.SQLite

// TestPostgreSQL runs what asks the database on PostgreSQL too.
func TestPostgreSQL(t *testing.T) {
	database = storetest.PostgreSQL
	t.Cleanup(func() { database = storetest.SQLite })
	t.Run("BuiltOnce", TestBuiltOnce)
	t.Run("WhatCannotBeResolved", TestWhatCannotBeResolved)
	t.Run("RestartInTheMiddle", TestRestartInTheMiddle)
	t.Run("Refused", TestRefused)
	t.Run("Images", TestImages)
	t.Run("Checked", TestChecked)
	t.Run("Prune", TestPrune)
	t.Run("PruneAndUse", TestPruneAndUse)
	t.Run("ImagesArePulledAhead", TestImagesArePulledAhead)
}
