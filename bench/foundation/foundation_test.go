package main

import (
	"encoding/json"
	"os"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/bench/harness/harnesstest"
)

// TestMain lets the test binary be the echo server that the program starts.
func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == "echo" {
		if err := serveEcho(os.Stdout); err != nil {
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

func TestQuick(t *testing.T) {
	rows := harnesstest.Quick(t, "foundation", steps,
		"start to ready, new data directory", "RssAnon at rest", "no-op job, submitted to finished, p50",
		"commit p99, 64 writers", "write with its audit entry, 1 writer, p50", "OIP REST added p50", madeName, joinName)
	for _, r := range rows {
		if r.Ours != nil && *r.Ours <= 0 && r.Name != "OIP REST added p50" && r.Name != "OIP REST CPU per 1,000 requests" {
			t.Errorf("%s is %v", r.Name, *r.Ours)
		}
	}
}

// TestMeansOfAWeek: the window is seven days, both ends included, one row for
// each instant.
func TestMeansOfAWeek(t *testing.T) {
	to := newTable(text("carrier"), instant("landed_at"), number("mean_delay"), number("landings"))
	day := func(n int, delay float64) landing { return landing{at: dayOf(n), delay: delay} }
	if err := meansOfAWeek(to, "AA", []landing{day(9, 7), day(1, 10), day(8, 20), day(8, 30)}); err != nil {
		t.Fatal(err)
	}
	got, err := to.done().batches[0].MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	var rows []struct {
		Mean     float64 `json:"mean_delay"`
		Landings float64 `json:"landings"`
	}
	if err := json.Unmarshal(got, &rows); err != nil {
		t.Fatal(err)
	}
	// Day 1; day 8 with day 1, seven days before; day 9 without it.
	want := [][2]float64{{10, 1}, {20, 3}, {19, 3}}
	if len(rows) != len(want) {
		t.Fatalf("%d rows: %s", len(rows), got)
	}
	for i, w := range want {
		if rows[i].Mean != w[0] || rows[i].Landings != w[1] {
			t.Errorf("row %d: %+v, want %v", i, rows[i], w)
		}
	}
}

func dayOf(n int) time.Time { return time.Date(2013, 1, n, 12, 0, 0, 0, time.UTC) }
