package checkpoint

import (
	"cmp"
	"slices"
	"time"
)

// Why a checkpoint is kept.
const (
	keptNewest   = "newest"
	keptLast     = "among the last"
	keptBest     = "best"
	keptInterval = "one of its interval"
	keptOnly     = "damaged, and there is no other"
)

// kept says of the records of one job, in order of their numbers, why each is
// kept; one that it does not name can go. ended is zero while the job may run
// again: then the newest good one is always kept.
func kept(records []Record, rules Rules, ended, now time.Time) map[string]string {
	rules, interval, after := rules.complete()
	why := map[string]string{}
	over := !ended.IsZero()
	if over && !now.Before(ended.Add(after)) {
		return why
	}
	keep := func(r Record, because string) {
		if why[r.ID] == "" {
			why[r.ID] = because
		}
	}
	good := good(records)
	if len(good) == 0 {
		if n := len(records); n > 0 {
			keep(records[n-1], keptOnly)
		}
		return why
	}
	last := rules.KeepLast
	if over {
		last, interval = 1, 0
	}
	for i, r := range good[:min(last, len(good))] {
		if i == 0 {
			keep(r, keptNewest)
			continue
		}
		keep(r, keptLast)
	}
	for _, r := range best(good, rules) {
		keep(r, keptBest)
	}
	if interval > 0 {
		seen := map[time.Time]bool{}
		for _, r := range good {
			if slot := r.TakenAt.Truncate(interval); !seen[slot] {
				seen[slot] = true
				keep(r, keptInterval)
			}
		}
	}
	return why
}

// good gives the records that can be restored, newest first.
func good(records []Record) []Record {
	out := slices.DeleteFunc(slices.Clone(records), func(r Record) bool { return r.Damaged != "" })
	slices.Reverse(out)
	return out
}

// best gives the best records by metric; of equal ones the newer is better.
func best(newestFirst []Record, rules Rules) []Record {
	out := slices.DeleteFunc(slices.Clone(newestFirst), func(r Record) bool { return r.Metric == nil })
	slices.SortStableFunc(out, func(a, b Record) int {
		if rules.Best.Mode == "max" {
			a, b = b, a
		}
		return cmp.Compare(*a.Metric, *b.Metric)
	})
	return out[:min(rules.KeepBest, len(out))]
}
