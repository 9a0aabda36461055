package tree

import (
	"os"
	"strconv"
	"strings"
	"time"
)

// Usage is what a tree uses.
type Usage struct {
	CPU time.Duration // so far, of what runs and what was buried
	RSS int64         // now, in bytes; pages that several processes have count once
}

// Usage adds up what runs below the process between.
func (t *Tree) Usage() Usage {
	all, root := processes(), t.PID()
	var u Usage
	page := int64(os.Getpagesize())
	of := map[int]int64{}
	for _, pid := range under(all, root, nil) {
		u.CPU += all[pid].cpu
		of[pid] = all[pid].pages * page
	}
	u.CPU += all[root].buried
	u.RSS = t.resident.Together(of)
	return u
}

type process struct {
	parent      int
	zombie      bool
	cpu, buried time.Duration // cpu has that of its buried children, too
	pages       int64
}

// processes reads /proc; what cannot be read is not there.
func processes() map[int]process {
	all := map[int]process{}
	dir, err := os.Open("/proc")
	if err != nil {
		return all
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1)
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		b, err := os.ReadFile("/proc/" + name + "/stat")
		if err != nil {
			continue
		}
		if p, ok := parseStat(string(b)); ok {
			all[pid] = p
		}
	}
	return all
}

// parseStat reads a line of proc(5): "pid (command) state parent …".
func parseStat(s string) (process, bool) {
	const (
		state, parent, utime, rss = 0, 1, 11, 21
		tick                      = time.Second / 100 // USER_HZ, a constant of the interface
	)
	f := strings.Fields(s[strings.LastIndexByte(s, ')')+1:])
	if len(f) <= rss {
		return process{}, false
	}
	number := func(i int) int64 {
		n, _ := strconv.ParseInt(f[i], 10, 64)
		return n
	}
	buried := time.Duration(number(utime+2)+number(utime+3)) * tick
	return process{
		parent: int(number(parent)), zombie: f[state] == "Z" || f[state] == "X", buried: buried,
		cpu: time.Duration(number(utime)+number(utime+1))*tick + buried, pages: number(rss),
	}, true
}

// below lists what lives below a process, without what is below one of not.
func below(root int, not map[int]bool) []int { return under(processes(), root, not) }

func under(all map[int]process, root int, not map[int]bool) []int {
	children := map[int][]int{}
	for pid, p := range all {
		if !p.zombie {
			children[p.parent] = append(children[p.parent], pid)
		}
	}
	var out []int
	for next := []int{root}; len(next) > 0; next = next[1:] {
		for _, c := range children[next[0]] {
			if !not[c] {
				out, next = append(out, c), append(next, c)
			}
		}
	}
	return out
}
