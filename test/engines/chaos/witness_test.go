package chaos

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// mark is the variable of all jobs, which names the job.
const mark = "CHAOS_JOB"

// process is one of a job: a worker's own, or one of those that look after it.
type process struct {
	pid    int
	start  string // in ticks since the machine started: pid and start are one process
	parent int
	argv   []string
	env    map[string]string
}

// worker says whether it is the program of a worker, not a child of it, nor what
// started it.
func (p process) worker() bool {
	return len(p.argv) > 2 && filepath.Base(p.argv[0]) == "sh" && p.argv[1] == "-c" && p.argv[2] == program
}

// helper says whether it is one of Falaj's own that looks after workers.
func (p process) helper() bool {
	return len(p.argv) > 0 && filepath.Base(p.argv[0]) == "falaj-worker"
}

func (p process) key() string { return strconv.Itoa(p.pid) + "/" + p.start }

// processes are all that can be seen from here: those of the test's namespaces.
func processes() []process {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var all []process
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil && pid != 1 {
			if p, ok := read(pid); ok {
				all = append(all, p)
			}
		}
	}
	return all
}

// read reads a process that has not ended.
func read(pid int) (p process, ok bool) {
	dir := filepath.Join("/proc", strconv.Itoa(pid))
	stat, err := os.ReadFile(filepath.Join(dir, "stat"))
	if err != nil {
		return p, false
	}
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(fields) < 20 || fields[0] == "Z" || fields[0] == "X" {
		return p, false
	}
	p = process{pid: pid, start: fields[19], env: map[string]string{}}
	p.parent, _ = strconv.Atoi(fields[1])
	line, _ := os.ReadFile(filepath.Join(dir, "cmdline"))
	p.argv = strings.Split(strings.TrimSuffix(string(line), "\x00"), "\x00")
	if !p.worker() && !p.helper() {
		return p, len(line) > 0
	}
	env, _ := os.ReadFile(filepath.Join(dir, "environ"))
	for kv := range strings.SplitSeq(string(env), "\x00") {
		if k, v, ok := strings.Cut(kv, "="); ok {
			p.env[k] = v
		}
	}
	return p, true
}

// witness looks again and again which workers run.
type witness struct {
	mu     sync.Mutex
	before map[string]bool            // of the last look
	starts map[string]map[string]bool // of each worker of each attempt
	wrong  []string
	looks  int
}

func watch(t *testing.T) *witness {
	t.Helper()
	w := &witness{starts: map[string]map[string]bool{}}
	done := make(chan struct{})
	var over sync.WaitGroup
	over.Go(func() {
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				w.look()
			case <-done:
				return
			}
		}
	})
	t.Cleanup(func() {
		close(done)
		over.Wait()
	})
	return w
}

// workers are the programs of workers that run.
func workers() []process {
	all := processes()
	programs := map[int]bool{}
	for _, p := range all {
		programs[p.pid] = p.worker()
	}
	// A child between fork and exec looks like its parent.
	return slices.DeleteFunc(all, func(p process) bool { return !p.worker() || programs[p.parent] || p.env[mark] == "" })
}

func (w *witness) look() {
	now := workers()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.looks++
	seen, attempts := map[string]bool{}, map[string]map[string]process{}
	for _, p := range now {
		seen[p.key()] = true
		if !w.before[p.key()] {
			continue // what was forked a moment ago may be about to become something else
		}
		job, attempt := p.env[mark], p.env["FALAJ_ATTEMPT"]
		if attempts[job] == nil {
			attempts[job] = map[string]process{}
		}
		attempts[job][attempt] = p
		member := attempt + " worker " + p.env["RANK"]
		if w.starts[member] == nil {
			w.starts[member] = map[string]bool{}
		}
		if w.starts[member][p.key()] = true; len(w.starts[member]) == 2 {
			w.wrong = append(w.wrong, fmt.Sprintf("%s: %s was started twice: %v", job, member, slices.Collect(maps.Keys(w.starts[member]))))
		}
	}
	w.before = seen
	for job, at := range attempts {
		// The look took a while: only those count that are still there.
		maps.DeleteFunc(at, func(_ string, p process) bool { again, ok := read(p.pid); return !ok || again.start != p.start })
		if len(at) > 1 {
			w.wrong = append(w.wrong, fmt.Sprintf("%s: attempts run at the same time: %v", job, slices.Sorted(maps.Keys(at))))
		}
	}
}

// said is what was wrong, and how many workers were seen.
func (w *witness) said() (wrong []string, workers, looks int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.wrong), len(w.starts), w.looks
}
