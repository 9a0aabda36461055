package inside

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/falaj-ml/falaj/internal/sandbox/internal/wire"
)

// A look into a running sandbox takes two steps. Enter, outside, finds a process
// of the program, joins its cgroups, confines itself, and becomes nsenter (of
// util-linux), because a program of several threads, as every Go program is, may
// not change its user namespace; that becomes the program's own user and has no
// right any more. Look, inside, sets limits and becomes what was asked for.
//
// What looks may be a program of the user's, so it has the walls of the user's
// program: the same namespaces and root, no capability, no new privileges, the
// same cgroups and the system call filter. Of that one call less is refused:
// process_vm_readv, which the kernel permits for processes of the same user in
// the same user namespace, and those are all the program's own: the sandbox's
// first process is of another namespace and not to be looked into. Landlock, the
// second wall behind the mounts, would forbid just this, and is left out.

// namespaces of a process, in the order in which they are opened.
var namespaceFiles = []string{"user", "mnt", "pid", "net", "ipc", "uts"}

// Enter becomes nsenter as described in the entry that is written in JSON.
func Enter(entry string, stderr io.Writer) int {
	var e wire.Entry
	err := json.Unmarshal([]byte(entry), &e)
	if err == nil {
		err = enter(e)
	}
	_, _ = fmt.Fprintln(stderr, err)
	return exitFault
}

func enter(e wire.Entry) error {
	// The filter and all below hold for this thread, which is the one that execs.
	runtime.LockOSThread()
	pid, gid, flags, err := open(e)
	for range 9 { // the process that was chosen, of those that there are
		if !errors.Is(err, errEnded) {
			break
		}
		pid, gid, flags, err = open(e)
	}
	if err != nil {
		return err
	}
	for _, dir := range e.Cgroups {
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte("0"), 0); err != nil {
			return fmt.Errorf("joining the cgroup: %w", err)
		}
	}
	nsenter := wire.Nsenter()
	if nsenter == "" {
		return errors.New("the server's machine has no nsenter, which is part of util-linux")
	}
	limits, err := limitsOf(pid)
	if err != nil {
		return fmt.Errorf("reading the program's limits: %w", err)
	}
	argv := []string{nsenter, "--preserve-credentials"}
	if os.Geteuid() == 0 {
		// The rest is nsenter's: nobody may name groups inside.
		if err := errors.Join(syscall.Setgroups(nil), syscall.Setresgid(gid, gid, gid)); err != nil {
			return fmt.Errorf("becoming the program's group: %w", err)
		}
		argv = append(argv, "--setuid="+strconv.Itoa(wire.UserID))
	} else {
		// The mounts belong to the first user namespace: its rights come first.
		argv = append(argv, "--user=/proc/"+strconv.Itoa(e.Init)+"/ns/user", "--", nsenter, "--preserve-credentials")
	}
	// Confined from before it is visible inside, so that the program can make
	// nothing of it.
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	if _, err := installFilter(false, unix.SYS_PROCESS_VM_READV, unix.SYS_SETNS); err != nil {
		return fmt.Errorf("installing the system call filter: %w", err)
	}
	argv = append(append(argv, flags...), "--", workerInside, wire.ModeLook, limits)
	return syscall.Exec(nsenter, append(argv, e.Args...), []string{"PATH=" + defaultPath})
}

// program gives a program's group outside. It refuses what is not the program, or
// not yet: while the sandbox is built, the lowest process is the server's own, or
// the OCI runtime's, with rights that nothing of the user's may have.
func program(init, pid int) (gid int, err error) {
	var said [3]string
	for i, name := range []string{"status", "uid_map", "cmdline"} {
		b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/" + name)
		if err != nil {
			return 0, err
		}
		said[i] = string(b)
	}
	first, err := os.ReadFile("/proc/" + strconv.Itoa(init) + "/status")
	if err != nil {
		return 0, err
	}
	return isProgram(string(first), said[0], said[1], said[2])
}

// isProgram decides by the status of the sandbox's first process, and by a process's
// status, user map and command line.
func isProgram(first, status, uids, argv string) (gid int, err error) {
	says := parsed(status)
	uid, err := strconv.Atoi(says["Uid:"])
	if err != nil {
		return 0, err
	}
	if gid, err = strconv.Atoi(says["Gid:"]); err != nil {
		return 0, err
	}
	words := append(strings.Split(argv, "\x00"), "")
	ours := strings.HasSuffix(words[0], "falaj-worker") && slices.Contains([]string{wire.ModeInit, wire.ModeExec, wire.ModeContain}, words[1])
	switch {
	// The filter is the last that a program gets.
	case inner(uids, uid) != wire.UserID || ours || !filtered(parsed(first), says):
		return 0, errors.New(wire.NotStarted)
	case uid <= 0 || gid <= 0:
		return 0, errors.New("the program runs as root of the machine, which no code of the user may do")
	}
	return gid, nil
}

// filtered reports whether a process has a filter beyond those of the sandbox's first
// process, which has what it inherited: of the server, or of a container around it.
// Before Linux 5.9 the kernel does not count them.
func filtered(first, says map[string]string) bool {
	const count = "Seccomp_filters:"
	inherited, err := strconv.Atoi(first[count])
	if err != nil {
		return says["Seccomp:"] == "2"
	}
	has, err := strconv.Atoi(says[count])
	return err == nil && has > inherited
}

// parsed is a status file as names and first values.
func parsed(status string) map[string]string {
	says := map[string]string{}
	for line := range strings.Lines(status) {
		if f := strings.Fields(line); len(f) > 1 {
			says[f[0]] = f[1]
		}
	}
	return says
}

// inner is how a user is called inside, or -1.
func inner(maps string, uid int) int {
	for line := range strings.Lines(maps) {
		var inner, outer, n int
		if _, err := fmt.Sscan(line, &inner, &outer, &n); err == nil && uid >= outer && uid-outer < n {
			return inner + uid - outer
		}
	}
	return -1
}

// limitsOf gives a program's limits as Look takes them, and takes its processors.
func limitsOf(pid int) (string, error) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/limits")
	if err != nil {
		return "", err
	}
	spec := wire.Spec{Processes: 4096, FileSize: 1 << 30, OpenFiles: 65536}
	for name, at := range map[string]*int64{
		"Max data size": &spec.Data, "Max processes": &spec.Processes, "Max file size": &spec.FileSize, "Max open files": &spec.OpenFiles,
	} {
		_, after, _ := strings.Cut(string(b), "\n"+name+" ")
		f := strings.Fields(after)
		if len(f) < 2 {
			return "", fmt.Errorf("there is no %s", name)
		}
		n, err := strconv.ParseInt(f[1], 10, 64) // the hard one; "unlimited" is none
		if err == nil && (*at == 0 || n < *at) {
			*at = max(n, 1) // 0 would be none
		}
	}
	var cpus unix.CPUSet
	if err := unix.SchedGetaffinity(pid, &cpus); err != nil {
		return "", err
	}
	if err := unix.SchedSetaffinity(0, &cpus); err != nil {
		return "", err
	}
	limits, err := json.Marshal(spec)
	return string(limits), err
}

var errEnded = errors.New("the program has ended")

// open opens the namespaces of a process of the program and gives nsenter's
// flags for those that are not ours.
func open(e wire.Entry) (pid, gid int, flags []string, err error) {
	tree := descendants(e.Init)
	if len(tree) == 0 {
		return 0, 0, nil, errEnded
	}
	pid = tree[len(tree)-1] // of the lowest: above it are the sandbox's own
	born := started(pid)
	// Before the namespaces: a program stays in its own, what starts it does not.
	if gid, err = program(e.Init, pid); err != nil {
		return 0, 0, nil, err
	}
	for i, name := range namespaceFiles {
		path := "/proc/" + strconv.Itoa(pid) + "/ns/" + name
		theirs, err := os.Readlink(path)
		if err != nil {
			return 0, 0, nil, err
		}
		if ours, err := os.Readlink("/proc/self/ns/" + name); err != nil || ours == theirs {
			continue
		}
		fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return 0, 0, nil, fmt.Errorf("opening %s: %w", path, err)
		}
		const above = 20 // Look closes all of them
		if err := unix.Dup3(fd, above+i, 0); err != nil {
			return 0, 0, nil, err
		}
		long := map[string]string{"mnt": "mount"}[name]
		if long == "" {
			long = name
		}
		flags = append(flags, "--"+long+"=/proc/self/fd/"+strconv.Itoa(above+i))
	}
	// Numbers are used again, start times are not: what was opened is of a process
	// below this very sandbox.
	if born == "" || started(pid) != born || started(e.Init) != strconv.FormatUint(e.Start, 10) {
		return 0, 0, nil, errEnded
	}
	return pid, gid, flags, nil
}

// started is when a process was started, in clock ticks since boot.
func started(pid int) string {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return ""
	}
	f := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
	const start = 19 // field 22 of proc(5)
	if len(f) <= start {
		return ""
	}
	return f[start]
}

// Look becomes falaj-worker inside, in the mode that args name behind its limits.
func Look(args []string, stderr io.Writer) int {
	runtime.LockOSThread() // as above
	_, _ = fmt.Fprintln(stderr, look(args))
	return exitFault
}

func look(args []string) error {
	var limits wire.Spec
	if len(args) < 2 {
		return errors.New("nothing to inspect with: this mode is for falaj's own use")
	}
	if err := errors.Join(json.Unmarshal([]byte(args[0]), &limits), closeOnExec()); err != nil {
		return err
	}
	// With nsenter, which waits for us outside and is killed when nobody does; and
	// whatever is left below us then comes to us, to be ended.
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGTERM), 0, 0, 0); err != nil {
		return err
	}
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return err
	}
	// The first to go when memory runs short.
	_ = os.WriteFile("/proc/self/oom_score_adj", []byte("1000"), 0)
	if err := limit(&limits); err != nil {
		return err
	}
	if _, err := installFilter(false, unix.SYS_PROCESS_VM_READV); err != nil {
		return fmt.Errorf("installing the system call filter: %w", err)
	}
	return syscall.Exec(workerInside, append([]string{"falaj-worker"}, args[1:]...), []string{"PATH=" + defaultPath, "TMPDIR=/tmp"})
}
