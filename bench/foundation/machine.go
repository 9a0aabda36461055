package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// machine is what a reader needs to judge the numbers; it names no host.
type machine struct {
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

func describeMachine(dir string) machine {
	m := machine{
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

// resident memory of a process, in MiB.
func resident(pid int) (rssAnon, rss float64) {
	path := fmt.Sprintf("/proc/%d/status", pid)
	mib := func(name string) float64 {
		kib, _ := strconv.ParseFloat(strings.TrimSuffix(procField(path, name), " kB"), 64)
		return kib / 1024
	}
	return mib("RssAnon"), mib("VmRSS")
}

// cpuSeconds that a process has used, in user and kernel mode. The kernel counts
// in hundredths of a second.
func cpuSeconds(pid int) (float64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	// The name in brackets may hold anything; utime and stime are 14th and 15th.
	_, rest, _ := strings.Cut(string(text[bytes.LastIndexByte(text, ')'):]), " ")
	fields := strings.Fields(rest)
	if len(fields) < 13 {
		return 0, fmt.Errorf("%d fields in stat", len(fields))
	}
	user, err := strconv.ParseFloat(fields[11], 64)
	if err != nil {
		return 0, err
	}
	system, err := strconv.ParseFloat(fields[12], 64)
	return (user + system) / 100, err
}

// allowed lists the cores that this process may use.
func allowed() []int {
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

// startOn runs start with the calling thread confined to one core, which a
// process started by it inherits. A negative core means no confinement.
func startOn(core int, start func() error) error {
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

// pinSelf confines all threads of this process to a core; the returned function
// undoes it.
func pinSelf(core int) (undo func(), err error) {
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
