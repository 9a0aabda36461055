package compute_test

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
	t.Run("RunsToTheEnd", TestRunsToTheEnd)
	t.Run("WithoutOwnerItsOwnSpecRuns", TestWithoutOwnerItsOwnSpecRuns)
	t.Run("NothingIsPlacedTwice", TestNothingIsPlacedTwice)
	t.Run("Cancel", TestCancel)
	t.Run("PreparationThatFails", TestPreparationThatFails)
	t.Run("FinishIsCalledUntilItSucceeds", TestFinishIsCalledUntilItSucceeds)
	t.Run("RestartFindsRunningAgain", TestRestartFindsRunningAgain)
	t.Run("Residency", TestResidency)
	t.Run("DenialsAreJournalled", TestDenialsAreJournalled)
	t.Run("DelayedStart", TestDelayedStart)
	t.Run("ApplyPool", TestApplyPool)
	t.Run("ApplyQueue", TestApplyQueue)
	t.Run("QueueHolds", TestQueueHolds)
	t.Run("Preempt", TestPreempt)
	t.Run("TwoSchedulers", TestTwoSchedulers)
	t.Run("CostReport", TestCostReport)
	t.Run("SumsStayRight", TestSumsStayRight)
	t.Run("RecordsAreForgotten", TestRecordsAreForgotten)
	t.Run("Budget", TestBudget)
	t.Run("Gang", TestGang)
	t.Run("InPlace", TestInPlace)
	t.Run("NodesOfTheEngine", TestNodesOfTheEngine)
	t.Run("ListedNodes", TestListedNodes)
	t.Run("Quarantine", TestQuarantine)
	t.Run("Rentals", TestRentals)
	t.Run("PoolSettings", TestPoolSettings)
	t.Run("GivenUpAndLostAreStopped", TestGivenUpAndLostAreStopped)
}
