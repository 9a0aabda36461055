package sandbox

import (
	"bufio"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// cgroups are the control groups of one program; the zero value is none.
type cgroups struct {
	dirs      []string // made by us
	procs     []string // where init writes itself to join
	memory    bool     // memory is bounded
	oomFile   string   // counts processes killed at the limit
	unapplied []string
}

// hierarchy is where one controller is, below the group that we are in.
type hierarchy struct {
	base string
	v2   bool
}

// limitFile is one limit as a file of a controller.
type limitFile struct {
	name     string
	value    string
	optional bool // absent on some kernels
}

// newCgroups makes the groups that the policy's limits need. What the kernel
// does not let us set is in unapplied; that is no error, because every limit
// has a weaker form (affinity, RLIMIT_DATA, RLIMIT_NPROC) which is set anyway.
func newCgroups(p Policy) *cgroups {
	g := &cgroups{}
	if p.Level == None {
		return g
	}
	name := p.group()
	l := p.Limits
	if l.Memory > 0 {
		bytes := strconv.FormatInt(int64(l.Memory), 10)
		dir, err := g.apply("memory", name,
			[]limitFile{{name: "memory.limit_in_bytes", value: bytes}, {name: "memory.memsw.limit_in_bytes", value: bytes, optional: true}},
			[]limitFile{{name: "memory.max", value: bytes}, {name: "memory.swap.max", value: "0", optional: true}})
		if err == nil {
			g.memory = true
			g.oomFile = filepath.Join(dir, "memory.events")
			if _, err := os.Stat(g.oomFile); err != nil {
				g.oomFile = filepath.Join(dir, "memory.oom_control")
			}
		} else {
			g.unapplied = append(g.unapplied, "memory by cgroup (each process is bounded by RLIMIT_DATA instead): "+err.Error())
		}
	}
	if h := hierarchies()["cpu"]; l.Yields && h.v2 && g.memory {
		// In a group of its own that has a weight its niceness would count for nothing.
		_, _ = g.apply("cpu", name, nil, []limitFile{{name: "cpu.weight", value: "33", optional: true}})
	}
	if l.CPU > 0 {
		const period = 100_000
		quota := strconv.FormatInt(max(int64(l.CPU)*period/1000, 1000), 10)
		_, err := g.apply("cpu", name,
			[]limitFile{{name: "cpu.cfs_period_us", value: strconv.Itoa(period)}, {name: "cpu.cfs_quota_us", value: quota}},
			[]limitFile{{name: "cpu.max", value: fmt.Sprintf("%s %d", quota, period)}})
		if err != nil {
			g.unapplied = append(g.unapplied, "cpu by cgroup (affinity only): "+err.Error())
		}
	}
	if l.Processes > 0 {
		// init and the worker's threads count too.
		n := strconv.Itoa(l.Processes + 32)
		if _, err := g.apply("pids", name, []limitFile{{name: "pids.max", value: n}}, []limitFile{{name: "pids.max", value: n}}); err != nil {
			g.unapplied = append(g.unapplied, "processes by cgroup (RLIMIT_NPROC only): "+err.Error())
		}
	}
	return g
}

// niceness is how much nicer what yields is than its caller: a third of the weight.
const niceness = 5

// groupPrefix begins the name of every group that this package makes.
const groupPrefix = "falaj-"

// group names the policy's groups: by its owner, so that SweepCgroups finds what a
// killed owner left, and by its name.
func (p *Policy) group() string {
	name := groupPrefix
	if p.Owner != "" {
		name += p.Owner + "-"
	}
	if p.Name == "" {
		return name + rand.Text()
	}
	return name + p.Name
}

// CgroupBases are the directories in which this process makes control groups, sorted.
// They may be others after a restart, as in another session of systemd.
func CgroupBases() []string {
	var all []string
	for _, h := range hierarchies() {
		all = append(all, h.base)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// SweepCgroups deletes the groups of an owner in some directories, with what still runs
// in them, and returns how many there were. Groups of other owners, and of policies
// without an owner, stay. The caller is the only process of the owner.
func SweepCgroups(bases []string, owner string) int {
	if owner == "" {
		return 0
	}
	n := 0
	for _, base := range bases {
		left, _ := filepath.Glob(filepath.Join(quoted(base), groupPrefix+owner+"-*")) // the pattern is well-formed
		RemoveCgroups(left)
		n += len(left)
	}
	return n
}

// quoted is a path as a pattern that matches only it.
func quoted(path string) string {
	return strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`).Replace(path)
}

// RemoveNamedCgroups deletes the groups that a policy with this name and no owner made,
// wherever this process makes groups: its caller may have died before it recorded them.
func RemoveNamedCgroups(name string) {
	for _, base := range CgroupBases() {
		dir := filepath.Join(base, (&Policy{Name: name}).group())
		if _, err := os.Stat(dir); name != "" && err == nil {
			RemoveCgroups([]string{dir})
		}
	}
}

// apply makes the group in the controller's hierarchy and sets its limits.
func (g *cgroups) apply(controller, name string, v1, v2 []limitFile) (dir string, err error) {
	h, ok := hierarchies()[controller]
	if !ok {
		return "", fmt.Errorf("the kernel offers no %s controller to this process", controller)
	}
	dir = filepath.Join(h.base, name)
	if h.v2 && !slices.Contains(g.dirs, dir) {
		if err := enable(h.base, controller); err != nil {
			return "", reason(err)
		}
	} else if h.v2 {
		_ = enable(h.base, controller)
	}
	if err := os.Mkdir(dir, 0o755); err == nil { //nolint:gosec // A group's directory, not a file of ours.
		g.dirs = append(g.dirs, dir)
		g.procs = append(g.procs, filepath.Join(dir, "cgroup.procs"))
	} else if !slices.Contains(g.dirs, dir) {
		if !errors.Is(err, fs.ErrExist) {
			return "", reason(err)
		}
		// Left by a run of the same name that died: it is empty or still ending.
		g.dirs = append(g.dirs, dir)
		g.procs = append(g.procs, filepath.Join(dir, "cgroup.procs"))
	}
	limits := v1
	if h.v2 {
		limits = v2
	}
	for _, l := range limits {
		if err := os.WriteFile(filepath.Join(dir, l.name), []byte(l.value), 0); err != nil && !l.optional {
			return "", reason(err)
		}
	}
	if f, err := os.OpenFile(filepath.Join(dir, "cgroup.procs"), os.O_WRONLY, 0); err != nil {
		return "", reason(err)
	} else if err := f.Close(); err != nil {
		return "", reason(err)
	}
	return dir, nil
}

// enable offers the controller to the children of a version 2 group.
func enable(base, controller string) error {
	file := filepath.Join(base, "cgroup.subtree_control")
	if b, err := os.ReadFile(file); err == nil && slices.Contains(strings.Fields(string(b)), controller) {
		return nil
	}
	err := os.WriteFile(file, []byte("+"+controller), 0)
	if errors.Is(err, syscall.EBUSY) {
		return errors.New("the control group of the server contains processes; with systemd 254 or later set Delegate=yes and DelegateSubgroup=server")
	}
	return err
}

// reason shortens what the kernel said: the path is of no use to a reader.
func reason(err error) error {
	if pe, ok := errors.AsType[*fs.PathError](err); ok {
		return fmt.Errorf("%s of %s: %w", pe.Op, filepath.Base(pe.Path), pe.Err)
	}
	return err
}

// outOfMemory reports whether a process was killed at the memory limit.
func (g *cgroups) outOfMemory() bool {
	b, err := os.ReadFile(g.oomFile)
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(b)) {
		if n, ok := strings.CutPrefix(strings.TrimSpace(line), "oom_kill "); ok {
			return n != "0"
		}
	}
	return false
}

// unthrottle gives the processes of groups all the CPU there is. To end takes time, too: a
// fork bomb of hundreds of processes that share a fraction of a core dies for
// minutes.
func unthrottle(dirs []string) {
	for _, dir := range dirs {
		for file, unlimited := range map[string]string{"cpu.cfs_quota_us": "-1", "cpu.max": "max"} {
			if f, err := os.OpenFile(filepath.Join(dir, file), os.O_WRONLY, 0); err == nil {
				_, _ = f.WriteString(unlimited)
				_ = f.Close()
			}
		}
	}
}

// remove deletes the groups; the processes in them have ended.
func (g *cgroups) remove() { RemoveCgroups(g.dirs) }

// RemoveCgroups deletes groups that Cmd.Cgroups named. Processes that are
// still in them are killed first, and waited for: one that was just killed may be
// leaving for a while.
func RemoveCgroups(dirs []string) {
	for _, dir := range dirs {
		if !strings.HasPrefix(filepath.Base(dir), groupPrefix) || !strings.HasPrefix(dir, "/sys/fs/cgroup/") {
			continue
		}
		unthrottle([]string{dir})
		for pause := time.Millisecond; errors.Is(syscall.Rmdir(dir), syscall.EBUSY); pause *= 2 {
			b, _ := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
			for pid := range strings.FieldsSeq(string(b)) {
				if n, err := strconv.Atoi(pid); err == nil && n > 1 {
					_ = syscall.Kill(n, syscall.SIGKILL)
				}
			}
			_ = os.WriteFile(filepath.Join(dir, "cgroup.kill"), []byte("1"), 0)
			if pause > leaving {
				break // the next sweep finds it
			}
			<-time.After(pause)
		}
	}
}

// leaving is about how long killed processes may take to leave a group.
const leaving = time.Second

// PidsLimits are the files that bound the processes and threads of this process's own
// control group and those above it.
func PidsLimits() (files []string) {
	h, ok := hierarchies()["pids"]
	if !ok {
		return nil
	}
	for dir := h.base; strings.HasPrefix(dir, "/sys/fs/cgroup"); dir = filepath.Dir(dir) {
		files = append(files, filepath.Join(dir, "pids.max"))
	}
	return files
}

// hierarchies finds where this process is in each controller's hierarchy.
var hierarchies = sync.OnceValue(func() map[string]hierarchy {
	found := map[string]hierarchy{}
	mounts, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return found
	}
	defer mounts.Close()
	groups, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return found
	}
	return parseHierarchies(bufio.NewScanner(mounts), string(groups), func(dir string) string {
		b, _ := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
		return string(b)
	})
})

// parseHierarchies reads mountinfo and /proc/self/cgroup. controllers gives the
// content of a version 2 group's cgroup.controllers.
func parseHierarchies(mountinfo *bufio.Scanner, groups string, controllers func(dir string) string) map[string]hierarchy {
	found := map[string]hierarchy{}
	ours := map[string]string{} // controller, or "" for version 2 → our group
	for line := range strings.Lines(groups) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) != 3 {
			continue
		}
		for name := range strings.SplitSeq(parts[1], ",") {
			ours[name] = parts[2]
		}
	}
	for mountinfo.Scan() {
		// 36 35 98:0 /root /mount/point options - cgroup2 source superoptions
		before, after, ok := strings.Cut(mountinfo.Text(), " - ")
		left, right := strings.Fields(before), strings.Fields(after)
		if !ok || len(left) < 5 || len(right) < 3 {
			continue
		}
		root, point := left[3], left[4]
		base := func(group string) string {
			if rel, err := filepath.Rel(root, group); err == nil && !strings.HasPrefix(rel, "..") {
				return filepath.Join(point, rel)
			}
			return point
		}
		switch right[0] {
		case "cgroup2":
			group, ok := ours[""]
			if !ok {
				continue
			}
			dir := base(group)
			if filepath.Base(dir) == "server" { // DelegateSubgroup=server: our siblings go beside us
				dir = filepath.Dir(dir)
			}
			for name := range strings.FieldsSeq(controllers(dir)) {
				found[name] = hierarchy{base: dir, v2: true}
			}
		case "cgroup":
			for name := range strings.SplitSeq(right[2], ",") {
				if group, ok := ours[name]; ok {
					found[name] = hierarchy{base: base(group)}
				}
			}
		}
	}
	return found
}
