package main

import (
	"testing"

	"github.com/falaj-ml/falaj/bench/harness/harnesstest"
)

func TestQuick(t *testing.T) {
	rows := harnesstest.Quick(t, "monitoring", steps,
		"window from rows to verdict", "records into judged windows", "rollout.Decide",
		"drift of 1 SD to its event, windows of 1,000 rows, any input",
		"prediction logging, features looked up by key, added CPU", "prediction log, bytes of a record", "labels over HTTP")
	_, quiet := rows["false alarms, share of windows, default monitor"]
	if _, missing := rows["false alarms"]; quiet == missing {
		t.Error("false alarms were not measured")
	}
	// A change of a standard deviation is told of at the end of its window or the next.
	if r := rows["drift of 1 SD to its event, windows of 1,000 rows, any input"]; r.Ours == nil || *r.Ours > 2000 {
		t.Errorf("%+v", r)
	}
}
