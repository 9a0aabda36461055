package harness

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Machine is what a reader needs to judge the numbers; it names no host.
type Machine struct {
	CPU        string `json:"cpu"`
	Cores      int    `json:"cores"`
	MemoryGiB  int    `json:"memory_gib"`
	Kernel     string `json:"kernel"`
	Go         string `json:"go"`
	FileSystem string `json:"file_system"`
	// The one-minute load averages tell whether others used the machine.
	LoadBefore string `json:"load_before"`
	LoadAfter  string `json:"load_after"`
}

// like says that numbers measured on both may be compared.
func (m Machine) like(other Machine) bool {
	return m.CPU == other.CPU && m.Cores == other.Cores && m.MemoryGiB == other.MemoryGiB
}

// DescribeMachine looks at this machine and the file system of a directory.
func DescribeMachine(dir string) Machine {
	m := Machine{
		CPU: procField("/proc/cpuinfo", "model name"), Cores: runtime.NumCPU(), Go: runtime.Version(),
		LoadBefore: loadAverage(), FileSystem: fileSystem(dir),
	}
	kib, _ := strconv.Atoi(strings.TrimSuffix(procField("/proc/meminfo", "MemTotal"), " kB"))
	m.MemoryGiB = (kib + 1<<19) >> 20
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		m.Kernel = string(u.Release[:bytes.IndexByte(u.Release[:], 0)])
	}
	return m
}

func fileSystem(dir string) string {
	var s unix.Statfs_t
	if unix.Statfs(dir, &s) != nil {
		return "unknown"
	}
	switch s.Type {
	case unix.EXT4_SUPER_MAGIC:
		return "ext4"
	case unix.XFS_SUPER_MAGIC:
		return "xfs"
	case unix.BTRFS_SUPER_MAGIC:
		return "btrfs"
	case unix.OVERLAYFS_SUPER_MAGIC:
		return "overlayfs"
	case unix.TMPFS_MAGIC:
		return "tmpfs (a sync costs nothing: multiples of it mean little)"
	}
	return fmt.Sprintf("%#x", s.Type)
}

// procField is the value of the first line "name: value" of a file in /proc.
func procField(path, name string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(text)) {
		if k, v, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(k) == name {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

func loadAverage() string {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return ""
	}
	first, _, _ := strings.Cut(string(text), " ")
	return first
}

// Resident memory of a process, in MiB.
func Resident(pid int) (rssAnon, rss float64) {
	path := fmt.Sprintf("/proc/%d/status", pid)
	mib := func(name string) float64 {
		kib, _ := strconv.ParseFloat(strings.TrimSuffix(procField(path, name), " kB"), 64)
		return kib / 1024
	}
	return mib("RssAnon"), mib("VmRSS")
}

// CPUSeconds that the threads of a process have used so far, to the nanosecond. A
// thread that has ended is not counted: Go keeps its threads.
func CPUSeconds(pid int) (float64, error) {
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	if err != nil || len(tasks) == 0 {
		return 0, fmt.Errorf("process %d has no threads: %w", pid, err)
	}
	total := 0.0
	for _, path := range tasks {
		text, err := os.ReadFile(path)
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) {
			continue
		}
		if err != nil {
			return 0, err
		}
		spent, _, _ := strings.Cut(string(text), " ")
		ns, err := strconv.ParseFloat(spent, 64)
		if err != nil {
			return 0, err
		}
		total += ns
	}
	return total / 1e9, nil
}

// Tree is a process and those that it and its children started and that still run.
func Tree(pid int) []int {
	all := []int{pid}
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, path := range tasks {
		text, _ := os.ReadFile(path) // a thread may end meanwhile
		for word := range strings.FieldsSeq(string(text)) {
			if child, err := strconv.Atoi(word); err == nil {
				all = append(all, Tree(child)...)
			}
		}
	}
	return all
}

// TreeCPUSeconds that a process and those of its tree have used so far. What ended
// is not counted.
func TreeCPUSeconds(pid int) (total float64, err error) {
	for _, p := range Tree(pid) {
		spent, err := CPUSeconds(p)
		if err != nil && p == pid {
			return 0, err
		}
		total += spent
	}
	return total, nil
}

// TreeMemory is what a process and those of its tree have in memory, in MiB; what
// several have is divided among them.
func TreeMemory(pid int) float64 {
	total := 0.0
	for _, p := range Tree(pid) {
		kib, _ := strconv.ParseFloat(strings.TrimSuffix(procField(fmt.Sprintf("/proc/%d/smaps_rollup", p), "Pss"), " kB"), 64)
		total += kib / 1024
	}
	return total
}

// Allowed lists the cores that this process may use.
func Allowed() []int {
	var set unix.CPUSet
	if unix.SchedGetaffinity(0, &set) != nil {
		return nil
	}
	var cores []int
	for c := range 1024 {
		if set.IsSet(c) {
			cores = append(cores, c)
		}
	}
	return cores
}

// StartOn runs start with the calling thread confined to one core, which a
// process started by it inherits. A negative core means no confinement.
func StartOn(core int, start func() error) error {
	if core < 0 {
		return start()
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var before, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &before); err != nil {
		return err
	}
	one.Set(core)
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		return err
	}
	err := start()
	if back := unix.SchedSetaffinity(0, &before); err == nil {
		err = back
	}
	return err
}

// PinSelf confines all threads of this process to a core; the returned function
// undoes it.
func PinSelf(core int) (undo func(), err error) {
	var before, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &before); err != nil {
		return nil, err
	}
	one.Set(core)
	if err := eachThread(&one); err != nil {
		return nil, err
	}
	return func() { _ = eachThread(&before) }, nil
}

func eachThread(set *unix.CPUSet) error {
	tasks, err := filepath.Glob("/proc/self/task/*")
	if err != nil {
		return err
	}
	for _, t := range tasks {
		tid, err := strconv.Atoi(filepath.Base(t))
		if err != nil {
			return err
		}
		if err := unix.SchedSetaffinity(tid, set); err != nil && err != unix.ESRCH {
			return err
		}
	}
	return nil
}
