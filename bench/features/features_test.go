package main

import (
	"fmt"
	"os"
	"testing"

	"github.com/falaj-ml/falaj/bench/harness/harnesstest"
)

func TestMain(m *testing.M) {
	if err := asked(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

func TestQuick(t *testing.T) {
	rows := harnesstest.Quick(t, "features", steps,
		"training set, 50000 rides, clustered, beside duckdb", "training set, 50000 rides, shuffled, beside polars",
		"training set, 50000 rides, clustered: CPU time over that of decoding and encoding it alone",
		"training set, 50000 rides × 5 views, shuffled: peak memory",
		"online, embedded, 10 × 50 features: requests", "online, embedded, 10 × 250 features: p99",
		"online read of 100 × 50 features, in process", "materialisation, embedded, 250 features", "freshness, embedded: a pushed row to an answer that has it, p99")
	for _, r := range rows {
		if r.Ours == nil && r.Note == "the peer is not installed" {
			continue // its Python is what reads the data frame
		}
		if r.Ours == nil || *r.Ours <= 0 {
			t.Errorf("%s is not measured: %s", r.Name, r.Note)
		}
	}
}
