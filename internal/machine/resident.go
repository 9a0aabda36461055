package machine

import (
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Resident adds up the memory of processes that run together, such as those of a job. Pages
// that several of them have, as forked loader workers do, count once: the kernel's
// proportional figures (smaps_rollup of proc(5)) say how much of the sum is counted twice.
// Reading them takes time in large processes, so they are read for at most a hundredth of
// the time, and in between the same amount is taken off. The zero Resident is ready. Safe for
// concurrent use.
type Resident struct {
	mu    sync.Mutex
	twice int64 // bytes of the sum that were counted more than once
	next  time.Time
}

// resident processes below this are not looked into: what they share is not worth the time.
const resident = 16 << 20

// Together is the memory of processes, in bytes, of which the resident pages of each are
// given, in bytes by process id.
func (r *Resident) Together(of map[int]int64) int64 {
	var sum, largest int64
	large := 0
	for _, n := range of {
		sum, largest = sum+n, max(largest, n)
		if n >= resident {
			large++
		}
	}
	if large < 2 {
		return sum
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if began := time.Now(); !began.Before(r.next) {
		r.twice = 0
		for pid, n := range of {
			if n < resident {
				continue
			}
			b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/smaps_rollup")
			if err != nil {
				continue // ended, or not ours to look into: its pages count as its own
			}
			all, share := parseRollup(string(b))
			r.twice += max(all-share, 0)
		}
		r.next = time.Now().Add(100 * time.Since(began))
	}
	return max(sum-r.twice, largest)
}

// parseRollup reads the resident pages of smaps_rollup and the process's share of them, in
// bytes.
func parseRollup(s string) (all, share int64) {
	for line := range strings.Lines(s) {
		f := strings.Fields(line)
		if len(f) != 3 || f[2] != "kB" {
			continue
		}
		n, err := strconv.ParseInt(f[1], 10, 64)
		if err != nil {
			continue
		}
		switch f[0] {
		case "Rss:":
			all = n << 10
		case "Pss:":
			share = n << 10
		}
	}
	return all, share
}
