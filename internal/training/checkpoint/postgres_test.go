package checkpoint_test

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
	t.Run("TakeAndRestore", TestTakeAndRestore)
	t.Run("WhatCannotBeKept", TestWhatCannotBeKept)
	t.Run("TheSameBytesAreStoredOnce", TestTheSameBytesAreStoredOnce)
	t.Run("Damage", TestDamage)
	t.Run("EndedJobs", TestEndedJobs)
	t.Run("WhatWasDroppedStaysDropped", TestWhatWasDroppedStaysDropped)
	t.Run("DeleteAndPermissions", TestDeleteAndPermissions)
	t.Run("Adopt", TestAdopt)
	t.Run("CollectingInTheMiddleOfATake", TestCollectingInTheMiddleOfATake)
	t.Run("TakingWhileCollecting", TestTakingWhileCollecting)
	t.Run("Loop", TestLoop)
	t.Run("RulesAreThoseOfTheJob", TestRulesAreThoseOfTheJob)
}
