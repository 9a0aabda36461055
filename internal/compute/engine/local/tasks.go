package local

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/falaj-ml/falaj/internal/sandbox"
	"github.com/falaj-ml/falaj/internal/sandbox/shim"
)

// Processes and threads are numbered by the kernel, and when the numbers run out nothing on
// the machine can start anything. Each workload has a limit of its own that the kernel keeps
// (RLIMIT_NPROC of its own user, and a cgroup where there is one). The limits of many
// workloads add up to more than there is, because few use what they may: when what they really
// have passes their part of the machine, the largest is evicted.

const (
	mostTasks     = 4096 // of a workload
	leastTasks    = 128  // less is no use to a Python program
	reservedTasks = 1024 // of the server, at least
)

// taskBudget is the number of processes and threads for all workloads together: the limit of this machine, or
// of the server's own control group, less a quarter for the server. A project gets half of it, a workload a
// quarter.
func taskBudget() int {
	there := taskNumbers()
	return max(there-max(reservedTasks, there/4), leastTasks)
}

// tasks is the limit of processes and threads of a workload.
func (d *Driver) tasks() int {
	if n := d.c.Limits.Processes; n > 0 {
		return n
	}
	return max(min(mostTasks, taskBudget()/4), leastTasks)
}

// relieveTasks evicts the largest workload while all, or those of a project, have more
// processes and threads than they may have together.
func (d *Driver) relieveTasks() {
	budget, limits := taskBudget(), map[string]int{}
	all := d.running()
	sum := 0
	for _, w := range all {
		sum += w.tasks
		limits[w.extras.Project] += w.tasks
	}
	over := sum > budget
	for _, n := range limits {
		over = over || n > budget/2
	}
	if !over || machineTasks() < budget/2 { // their limits suffice, or there are few
		return
	}
	roots := map[int]*workload{}
	for _, w := range all {
		if st, err := shim.Read[shim.Status](w.dir, shim.StatusFile); err == nil && st.Init.PID > 0 {
			roots[st.Init.PID] = w
		}
	}
	counts := shim.Tasks(roots)
	projects, largest := map[string]int{}, map[string]*workload{}
	total := 0
	var worst string
	for w, n := range counts {
		p := w.extras.Project
		total += n
		projects[p] += n
		if l := largest[p]; l == nil || n > counts[l] {
			largest[p] = w
		}
	}
	for p, n := range projects {
		if worst == "" || n > projects[worst] {
			worst = p
		}
	}
	if worst == "" || total <= budget && projects[worst] <= budget/2 {
		return
	}
	w := largest[worst]
	d.evict(w, shim.OutOfTasks, fmt.Sprintf("the running jobs had %d processes and threads, those of project %s %d of them; the limit is %d in all and %d for one project, and it had the most: %d",
		total, worst, projects[worst], budget, budget/2, counts[w]))
}

// machineTasks is how many processes and threads the machine has now.
func machineTasks() int {
	b, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return 1 << 30
	}
	fields := strings.Fields(string(b)) // 0.20 0.18 0.12 1/80 11206
	if len(fields) < 4 {
		return 1 << 30
	}
	_, total, _ := strings.Cut(fields[3], "/")
	n, err := strconv.Atoi(total)
	if err != nil {
		return 1 << 30
	}
	return n
}

// taskNumbers is how many processes and threads this machine, or the server's own group,
// may have.
func taskNumbers() int {
	n := 1 << 22
	for _, file := range append([]string{"/proc/sys/kernel/pid_max", "/proc/sys/kernel/threads-max"}, sandbox.PidsLimits()...) {
		b, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		if v, err := strconv.Atoi(strings.TrimSpace(string(b))); err == nil && v > 0 { // "max" is none
			n = min(n, v)
		}
	}
	return n
}
