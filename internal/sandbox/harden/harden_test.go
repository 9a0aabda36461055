package harden

import (
	"errors"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/falaj-ml/falaj/internal/sandbox/internal/seccomp"
)

// child is the environment of TestHardened in a process of its own.
const child = "FALAJ_TEST_HARDENED=1"

// TestHardened is what a server does at its start; then it tries what is refused, itself
// and by a child. TestExec starts it.
func TestHardened(t *testing.T) {
	if !slices.Contains(os.Environ(), child) {
		t.Skip("TestExec runs this in a process of its own")
	}
	if !slices.Contains(os.Environ(), Marker) {
		t.Fatal(Exec(os.Environ()))
	}
	for name, call := range calls {
		if err := call(); !errors.Is(err, unix.EPERM) {
			t.Errorf("%s is not refused: %v", name, err)
		}
	}
	if s, err := Of(os.Getpid()); err != nil || s.Err() != nil {
		t.Error(err, s.Err())
	}
	out, err := exec.CommandContext(t.Context(), "grep", "-E", "^(NoNewPrivs|Seccomp):", "/proc/self/status").CombinedOutput()
	if err != nil || strings.Join(strings.Fields(string(out)), " ") != "NoNewPrivs: 1 Seccomp: 2" {
		t.Errorf("a child: %v %s", err, out)
	}
}

// calls are refused by the filter before the kernel looks at their arguments, which make
// no sense: without it they answer something else to root, and some to everybody.
var calls = map[string]func() error{
	"keyctl":          func() error { return call(unix.SYS_KEYCTL, 1<<20) },
	"io_uring_setup":  func() error { return call(unix.SYS_IO_URING_SETUP, 0) },
	"perf_event_open": func() error { return call(unix.SYS_PERF_EVENT_OPEN, 0) },
	"init_module":     func() error { return call(unix.SYS_INIT_MODULE, 0) },
	"settimeofday":    func() error { return call(unix.SYS_SETTIMEOFDAY, 1) },
	"kexec_load":      func() error { return call(unix.SYS_KEXEC_LOAD, 0) },
}

func call(nr, arg uintptr) error {
	if _, _, errno := unix.Syscall6(nr, arg, 1, 1, 1, 1, 0); errno != 0 {
		return errno
	}
	return nil
}

func TestExec(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := exec.CommandContext(t.Context(), self, "-test.run=^TestHardened$", "-test.v")
	c.Env = append(os.Environ(), child)
	if out, err := c.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS: TestHardened") {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestTry: a trial leaves this process as it was.
func TestTry(t *testing.T) {
	t.Parallel()
	before, err := Of(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if s, err := Try(); err != nil || s.Err() != nil {
		t.Fatal(s, err)
	}
	if after, err := Of(os.Getpid()); err != nil || after != before {
		t.Errorf("%+v, was %+v: %v", after, before, err)
	}
	if !before.Filtered {
		if err := calls["keyctl"](); errors.Is(err, unix.EPERM) {
			t.Error("the trial's filter is in force here")
		}
	}
}

// TestFilter: what is refused is what the jobs are refused, and nothing that sandboxes are
// made of.
func TestFilter(t *testing.T) {
	t.Parallel()
	for _, needed := range []uint32{
		unix.SYS_MOUNT, unix.SYS_UMOUNT2, unix.SYS_PIVOT_ROOT, unix.SYS_CHROOT, unix.SYS_MOVE_MOUNT, unix.SYS_OPEN_TREE, unix.SYS_MOUNT_SETATTR,
		unix.SYS_FSOPEN, unix.SYS_FSCONFIG, unix.SYS_FSMOUNT, unix.SYS_SETNS, unix.SYS_UNSHARE, unix.SYS_CLONE3, unix.SYS_PTRACE, unix.SYS_PROCESS_VM_READV,
		unix.SYS_SETHOSTNAME, unix.SYS_SECCOMP, unix.SYS_SET_MEMPOLICY, unix.SYS_PIDFD_OPEN, unix.SYS_PRLIMIT64, unix.SYS_MEMFD_CREATE, unix.SYS_OPENAT2,
	} {
		if slices.Contains(seccomp.Kernel, needed) {
			t.Errorf("call %d makes sandboxes, and is refused", needed)
		}
	}
	if n := len(filter()); n > 300 {
		t.Errorf("the filter has %d instructions, which each call of a kernel without its cache runs through", n)
	}
}

func TestState(t *testing.T) {
	t.Parallel()
	const good = "Name:\tfalaj\nCapInh:\t0000000000000000\nCapPrm:\t0000000000000001\nCapEff:\t0000000000000001\nCapAmb:\t0000000000000000\nNoNewPrivs:\t1\nSeccomp:\t2\n"
	for name, test := range map[string]struct{ status, want string }{
		"all":          {good, ""},
		"privileges":   {strings.Replace(good, "Privs:\t1", "Privs:\t0", 1), "programs that it starts may gain privileges"},
		"filter":       {strings.Replace(good, "comp:\t2", "comp:\t0", 1), "it has no system call filter"},
		"capabilities": {strings.Replace(good, "CapEff:\t0000000000000001", "CapEff:\t000001ffffffffff", 1), "it has capabilities 0x1ff"},
		"nothing":      {"", "CapEff"},
	} {
		s, err := parse(test.status)
		if err == nil {
			err = s.Err()
		}
		if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
