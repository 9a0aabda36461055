package main

import (
	"testing"

	"github.com/falaj-ml/falaj/bench/harness/harnesstest"
)

func TestQuick(t *testing.T) {
	rows := harnesstest.Quick(t, "tracking", steps)
	for _, name := range []string{"SQLite: search, p95", "SQLite: log_batch 10, p95 over that of a same-run fsync", "SQLite: mixed, 8 at a time: requests per CPU second", "artifact of 8 MiB: up"} {
		r, ok := rows[name]
		if !ok || r.Ours == nil || *r.Ours <= 0 {
			t.Errorf("%s is not measured: %+v", name, r)
		}
	}
}
