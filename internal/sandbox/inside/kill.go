package inside

import (
	"os"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// killChildren kills all descendants of this process, which is their reaper.
// Children of a killed process become ours and are found in the next round. A
// round stops all processes before it kills one, so that none can answer the
// death of another by starting more; what a fork bomb starts in between is
// bounded by the limit on processes.
func killChildren(r *reaper) {
	for {
		tree := descendants(os.Getpid())
		if len(tree) == 0 {
			return
		}
		for _, s := range []syscall.Signal{syscall.SIGSTOP, syscall.SIGKILL} {
			for _, pid := range tree {
				_ = syscall.Kill(pid, s)
			}
		}
		select {
		case <-r.reaped:
		case <-r.empty:
			return
		}
	}
}

// descendants lists the processes below pid that are not zombies, by their
// parents in /proc.
func descendants(pid int) []int {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	children := map[int][]int{}
	for _, e := range entries {
		n, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		b, err := os.ReadFile("/proc/" + e.Name() + "/stat")
		if err != nil {
			continue
		}
		// 12 (name with spaces) S 1 …
		s := string(b)
		f := strings.Fields(s[strings.LastIndexByte(s, ')')+1:])
		if len(f) < 2 || f[0] == "Z" || f[0] == "X" {
			continue
		}
		if parent, err := strconv.Atoi(f[1]); err == nil {
			children[parent] = append(children[parent], n)
		}
	}
	var tree []int
	for next := []int{pid}; len(next) > 0; next = next[1:] {
		tree = append(tree, children[next[0]]...)
		next = append(next, children[next[0]]...)
	}
	return tree
}

// loopbackUp brings up the loopback interface of a new network namespace.
func loopbackUp() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	ifr, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	ifr.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, ifr)
}
