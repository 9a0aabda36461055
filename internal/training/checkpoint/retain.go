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
	keptOnly     = "damaged, and the only one"
	keptPart     = "may be incomplete"
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
	// Of those that may be half written the last one stays until a complete one is newer.
	if n := len(records); n > 0 && records[n-1].Incomplete != "" && records[n-1].Damaged == "" {
		keep(records[n-1], keptPart)
	}
	if len(good) == 0 {
		if n := len(records); n > 0 {
			keep(records[n-1], keptOnly)
		}
		return why
	}
	good = grown(good)
	last := rules.KeepLast
	if over {
		last, interval = 1, 0
	}
	for _, some := range sorts(good) {
		for i, r := range some[:min(last, len(some))] {
			if i == 0 {
				keep(r, keptNewest)
				continue
			}
			keep(r, keptLast)
		}
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

// good gives the records that can be restored and are complete, newest first.
func good(records []Record) []Record {
	out := slices.DeleteFunc(slices.Clone(records), func(r Record) bool { return r.Damaged != "" || r.Incomplete != "" })
	slices.Reverse(out)
	return out
}

// sorts tells the directories from the files that lie beside them.
func sorts(all []Record) [2][]Record {
	var out [2][]Record
	for _, r := range all {
		i := 0
		if r.Loose {
			i = 1
		}
		out[i] = append(out[i], r)
	}
	return out
}

// first is the newest of each sort: the larger one comes first, for that is what a program
// resumes from, and the other what it needs beside it.
func first(newestFirst []Record) (out []Record) {
	for _, some := range sorts(newestFirst) {
		if len(some) > 0 {
			out = append(out, some[0])
		}
	}
	if len(out) == 2 && out[1].Bytes > out[0].Bytes {
		slices.Reverse(out)
	}
	return out
}

// grown leaves out what was taken while its program still added to it: the same name was
// taken again with more. It takes no second place.
func grown(newestFirst []Record) []Record {
	seen := map[string]Record{}
	return slices.DeleteFunc(slices.Clone(newestFirst), func(r Record) bool {
		newer, known := seen[r.Name]
		seen[r.Name] = r
		return known && (r.Files < newer.Files || r.Files == newer.Files && r.Bytes < newer.Bytes)
	})
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
