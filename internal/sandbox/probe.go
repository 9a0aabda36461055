package sandbox

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/falaj-ml/falaj/internal/fault"
)

// probeTime bounds a trial run.
const probeTime = 20 * time.Second

// Report is what this kernel permits.
type Report struct {
	Level     Level    // the best level that a trial run reached
	Missing   []string // why a better level is not reached, in words
	Landlock  int      // version of its interface, 0 without
	Observed  bool     // refused attempts can be reported
	Cgroups   []string // controllers in which limits can be set
	OtherUser bool     // the child is another user than we are
}

// String is one line for people.
func (r Report) String() string {
	landlock := "no Landlock"
	if r.Landlock > 0 {
		landlock = "Landlock " + strconv.Itoa(r.Landlock)
	}
	s := fmt.Sprintf("isolation %s, %s, cgroup limits: %s", r.Level, landlock, orNone(strings.Join(r.Cgroups, ", ")))
	if len(r.Missing) > 0 {
		s += "; " + strings.Join(r.Missing, "; ")
	}
	return s
}

// Probe tries what this kernel permits by running the worker at workerPath.
func Probe(ctx context.Context, workerPath string) Report {
	r := Report{Level: None, Landlock: landlockVersion(), OtherUser: os.Geteuid() == 0}
	for _, name := range []string{"memory", "cpu", "pids"} {
		if cgroupWritable(name) {
			r.Cgroups = append(r.Cgroups, name)
		} else {
			r.Missing = append(r.Missing, "cgroup limits on "+name+" need a delegated cgroup (systemd 254 or later: Delegate=yes, DelegateSubgroup=server)")
		}
	}
	if r.Landlock == 0 {
		r.Missing = append(r.Missing, "Landlock is not in this kernel (CONFIG_SECURITY_LANDLOCK, lsm=landlock)")
	}
	for _, level := range []Level{Process, Sandbox} {
		if err := Check(ctx, workerPath, level); err != nil {
			r.Missing = append(r.Missing, err.Error())
			return r
		}
		r.Level = level
	}
	r.Observed = listenerAvailable()
	return r
}

type trial struct {
	worker string
	level  Level
}

var (
	trialsMu sync.Mutex
	trials   = map[trial]bool{}
)

// Check tries a level in a trial run. It returns fault.Unsupported with what is missing if this
// kernel forbids the level. A success is cached for the life of the process. A failure is
// checked again, because an administrator may have changed the setting.
func Check(ctx context.Context, workerPath string, level Level) error {
	trialsMu.Lock()
	defer trialsMu.Unlock()
	key := trial{workerPath, level}
	if trials[key] {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), probeTime)
	defer cancel()
	policy := Policy{Level: level, Limits: Limits{Tmp: minTmp}}
	if level >= Process { // the worker binary may lie anywhere
		policy.Mounts = []Mount{{Path: workerPath}}
	}
	c, err := Command(ctx, workerPath, policy, workerPath, "version")
	if err != nil {
		return err
	}
	if out, err := c.CombinedOutput(); err != nil {
		if fault.Is(err, fault.Unsupported) {
			return explain(err)
		}
		return unsupported(level, fmt.Sprintf("a trial run failed: %v %s", err, strings.TrimSpace(string(out))))
	}
	trials[key] = true
	return nil
}

// explain adds what forbids user namespaces, where a file says so.
func explain(err error) error {
	for _, s := range []struct{ file, forbids, say string }{
		{"/proc/sys/kernel/unprivileged_userns_clone", "0", "sysctl kernel.unprivileged_userns_clone is 0"},
		{"/proc/sys/user/max_user_namespaces", "0", "sysctl user.max_user_namespaces is 0"},
		{"/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1", "AppArmor restricts user namespaces (sysctl kernel.apparmor_restrict_unprivileged_userns is 1)"},
	} {
		if b, e := os.ReadFile(s.file); e == nil && strings.TrimSpace(string(b)) == s.forbids {
			return fault.Wrap(err, "%s", s.say)
		}
	}
	return err
}

// landlockVersion asks the kernel; 0 means it has none.
func landlockVersion() int {
	const createRulesetVersion = 1
	v, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, createRulesetVersion)
	if errno != 0 {
		return 0
	}
	return int(v)
}

// listenerAvailable reports whether seccomp can hand system calls to us.
func listenerAvailable() bool {
	action := uint32(unix.SECCOMP_RET_USER_NOTIF)
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_GET_ACTION_AVAIL, 0, uintptr(unsafe.Pointer(&action))) //nolint:gosec // The kernel's structure.
	return errno == 0
}

func cgroupWritable(controller string) bool {
	h, ok := hierarchies()[controller]
	return ok && unix.Access(h.base, unix.W_OK) == nil && (!h.v2 || enable(h.base, controller) == nil)
}

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}
