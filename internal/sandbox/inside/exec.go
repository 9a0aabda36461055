package inside

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"

	"github.com/landlock-lsm/go-landlock/landlock"
	"golang.org/x/sys/unix"

	"github.com/falaj-ml/falaj/internal/sandbox/internal/wire"
)

// oomScore makes the kernel end the program before the server and its shims.
const oomScore = "500"

// Exec confines this process as the spec says and becomes the program. It
// returns only when that fails. extra is the environment that Init adds.
func Exec(extra []string) int {
	// Everything below holds for this thread, which is the one that execs.
	runtime.LockOSThread()
	spec, err := wire.ReadSpec()
	if err != nil {
		return exitFault
	}
	step, err := become(spec, extra)
	forbidden := errors.Is(err, unix.ENOSYS)
	tell(wire.Message{Fault: &wire.Fault{Step: step, Err: err.Error(), Unsupported: forbidden}})
	return exitFault
}

func become(spec *wire.Spec, extra []string) (step string, err error) {
	// The socket goes above the program's own descriptors.
	if socketFD, err = unix.FcntlInt(wire.SocketFD, unix.F_DUPFD_CLOEXEC, wire.FirstFD+spec.Files+16); err != nil {
		return "moving descriptors", err
	}
	all := maps.Clone(spec.Env)
	if all == nil {
		all = map[string]string{}
	}
	for _, kv := range extra { // where a forward listens is known only here
		if kv == oneCore {
			continue
		}
		k, v, _ := strings.Cut(kv, "=")
		all[k] = v
	}
	env := make([]string, 0, len(all))
	for _, k := range slices.Sorted(maps.Keys(all)) {
		env = append(env, k+"="+all[k])
	}
	if err := os.Chdir(spec.Dir); err != nil {
		return "entering the working directory " + spec.Dir, reason(err)
	}
	program, err := lookPath(spec.Argv[0], spec.Env["PATH"])
	if err != nil {
		return "finding " + spec.Argv[0], err
	}
	_ = os.WriteFile("/proc/self/oom_score_adj", []byte(oomScore), 0) // best effort: some containers forbid it
	if spec.Confine {
		if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
			return "setting no new privileges", err
		}
		if err := restrictFiles(spec); err != nil {
			return "setting Landlock rules", err
		}
	}
	// Late: our own runtime may need a thread or memory before this.
	if err := limit(spec); err != nil {
		return "setting limits", err
	}
	if err := placeFiles(spec.Files); err != nil {
		return "placing descriptors", err
	}
	if spec.Confine {
		// From here on each open waits for the caller's answer: no more of our own.
		listener, err := installFilter(spec.Observe)
		if err != nil {
			return "installing the system call filter", err
		}
		if listener >= 0 {
			tell(wire.Message{Listener: true}, listener)
			_ = unix.Close(listener)
		}
	}
	return "starting " + spec.Argv[0], syscall.Exec(program, spec.Argv, env)
}

// placeFiles moves the caller's files down to descriptor 3 and closes ours.
func placeFiles(n int) error {
	for i := range n {
		if err := unix.Dup3(wire.FirstFD+i, wire.SpecFD+i, 0); err != nil {
			return err
		}
	}
	for fd := wire.SpecFD + n; fd < wire.FirstFD+n; fd++ {
		_ = unix.Close(fd)
	}
	return nil
}

func limit(spec *wire.Spec) error {
	set := func(which int, n int64) error {
		if n <= 0 {
			return nil
		}
		var now syscall.Rlimit
		if err := syscall.Getrlimit(which, &now); err != nil {
			return err
		}
		v := min(uint64(n), now.Max)
		// Not unix.Setrlimit: syscall.Exec undoes what it does not know of.
		return syscall.Setrlimit(which, &syscall.Rlimit{Cur: v, Max: v})
	}
	if err := syscall.Setrlimit(unix.RLIMIT_CORE, &syscall.Rlimit{}); err != nil { // a core file would hold secrets
		return err
	}
	return errors.Join(
		set(unix.RLIMIT_FSIZE, spec.FileSize),
		set(unix.RLIMIT_NPROC, spec.Processes),
		set(unix.RLIMIT_DATA, spec.Data),
		set(unix.RLIMIT_NOFILE, spec.OpenFiles),
	)
}

// restrictFiles sets Landlock rules: at level sandbox a second wall behind the
// mounts (it also closes the ways through /proc/PID/root and descriptors of
// files outside), at level process the only one. A kernel without Landlock is
// no error here; Probe tells.
func restrictFiles(spec *wire.Spec) error {
	var read, write, devs []string
	for _, m := range spec.Mounts {
		if m.Writable {
			write = append(write, m.Path)
		} else {
			read = append(read, m.Path)
		}
	}
	// The filters are of version 6: later ones also refuse connecting to unix
	// sockets by path, which mounts already decide.
	config := landlock.V6
	config.HandledAccessNet = 0 // the network namespace decides that
	if spec.Separate {
		read = append(read, "/") // the new root: what is below it is what the policy gives
		write = append(write, "/tmp", "/dev/shm", "/proc")
	} else {
		// Of /proc and /dev nothing is writable but the harmless devices below:
		// a root that has no capability still owns /proc/sys.
		read = append(read, "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/sys", "/run", "/proc", "/dev")
		write = append(write, "/tmp", "/var/tmp", "/dev/shm")
	}
	devs = append(devs, devices...)
	devs = append(devs, spec.Devices...)
	rules := []landlock.Rule{
		landlock.RWFiles(devs...).WithIoctlDev().IgnoreIfMissing(),
	}
	for _, p := range read {
		rules = append(rules, rule(p, false)...)
	}
	for _, p := range write {
		rules = append(rules, rule(p, true)...)
	}
	// One ruleset for paths and scopes: a second one, without a rule for it,
	// would refuse every rename and link from one directory to another (EXDEV).
	return config.BestEffort().Restrict(rules...)
}

// rule permits a path that is a file or a directory.
func rule(p string, writable bool) []landlock.Rule {
	fi, err := os.Stat(p)
	switch {
	case err != nil:
		return nil
	case fi.IsDir() && writable:
		return []landlock.Rule{landlock.RWDirs(p).WithRefer().WithIoctlDev()}
	case fi.IsDir():
		return []landlock.Rule{landlock.RODirs(p)}
	case writable:
		return []landlock.Rule{landlock.RWFiles(p)}
	}
	return []landlock.Rule{landlock.ROFiles(p)}
}

const defaultPath = "/usr/local/bin:/usr/bin:/bin"

// lookPath finds the program as the shell does, with the PATH of the program's
// own environment.
func lookPath(name, dirs string) (string, error) {
	if strings.ContainsRune(name, '/') {
		return name, nil
	}
	if dirs == "" {
		dirs = defaultPath
	}
	for dir := range strings.SplitSeq(dirs, ":") {
		if !filepath.IsAbs(dir) {
			continue
		}
		p := filepath.Join(dir, name)
		if fi, err := os.Stat(p); err == nil && fi.Mode().IsRegular() && unix.Access(p, unix.X_OK) == nil {
			return p, nil
		}
	}
	return "", fmt.Errorf("no such program in %s", dirs)
}

func reason(err error) error {
	if pe, ok := errors.AsType[*os.PathError](err); ok {
		return pe.Err
	}
	return err
}
