package training_test

import (
	"testing"

	"github.com/falaj-ml/falaj/internal/store/storetest"
)

// database is where the tests keep their rows.
var database storetest.Open = storetest.SQLite

// TestPostgreSQL runs what asks the database on PostgreSQL too.
func TestPostgreSQL(t *testing.T) { //nolint:tparallel // one after the other, on the database that they share
	database = storetest.PostgreSQL
	t.Cleanup(func() { database = storetest.SQLite })
	t.Run("AJobFromDataToModel", TestAJobFromDataToModel)
	t.Run("EndsAndRepetitions", TestEndsAndRepetitions)
	t.Run("CheckpointsStayBetweenAttempts", TestCheckpointsStayBetweenAttempts)
	t.Run("Cancel", TestCancel)
	t.Run("RefusedAtSubmission", TestRefusedAtSubmission)
	t.Run("ApplyIsIdempotent", TestApplyIsIdempotent)
	t.Run("AJobWaitsForItsEnvironment", TestAJobWaitsForItsEnvironment)
	t.Run("Restart", TestRestart)
	t.Run("LostIsRepeated", TestLostIsRepeated)
	t.Run("ListPages", TestListPages)
	t.Run("AGangIsPrepared", TestAGangIsPrepared)
	t.Run("ResizeOfAJob", TestResizeOfAJob)
	t.Run("RepeatIsTheSame", TestRepeatIsTheSame)
	t.Run("AJobThatOnlySaves", TestAJobThatOnlySaves)
	t.Run("Profile", TestProfile)
	t.Run("MeasurementsAreKept", TestMeasurementsAreKept)
	t.Run("Measurement", TestMeasurement)
	t.Run("SlowNode", TestSlowNode)
	t.Run("SourceArchivesGo", TestSourceArchivesGo)
	t.Run("SourceArchivesOfAKilledServer", TestSourceArchivesOfAKilledServer)
}
