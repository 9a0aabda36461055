// Package harden takes from the server, and from all that it starts, the rights that
// no part of Falaj uses: to gain privileges by a program's set-id bits or file
// capabilities, system calls into the kernel and the machine (seccomp.Kernel), and,
// when it is root, capabilities beyond those in kept.
//
// A process that was taken over, by a fault in a parser or in a library, so cannot load
// a module, set the clock, reboot, trace the kernel or send raw packets, and neither
// can what it starts. The allow-list of jobs comes on top: of two filters the stricter
// one decides.
//
// How. Each of these belongs to a thread and is inherited. A Go program with C
// libraries has threads before main begins, so one thread is confined and then starts
// the program anew as this same process (execve): Exec. Nothing that Falaj starts has
// set-id bits; user namespaces are mapped by their parent, without newuidmap.
package harden

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/falaj-ml/falaj/internal/sandbox/internal/seccomp"
)

// Name is the environment variable of a process that Exec started, and Marker it as
// NAME=VALUE.
const (
	Name   = "_FALAJ_HARDENED"
	Marker = Name + "=1"
)

// kept are the capabilities that a server of root uses.
var kept = []uint{
	unix.CAP_CHOWN, unix.CAP_DAC_OVERRIDE, unix.CAP_FOWNER, unix.CAP_FSETID, // files of jobs, which have users of their own
	unix.CAP_KILL, unix.CAP_SETUID, unix.CAP_SETGID, unix.CAP_SETPCAP, unix.CAP_SETFCAP, // to become those users, and end what they run
	unix.CAP_SYS_ADMIN, unix.CAP_SYS_CHROOT, unix.CAP_NET_ADMIN, unix.CAP_MKNOD, // namespaces, mounts, loopback, devices of containers
	unix.CAP_SYS_PTRACE,                      // to look into a running job
	unix.CAP_SYS_RESOURCE, unix.CAP_SYS_NICE, // limits, processors and NUMA nodes
	unix.CAP_IPC_LOCK, unix.CAP_NET_BIND_SERVICE, // memory of GPUs and networks; ports below 1024
}

func mask() (bits uint64) {
	for _, c := range kept {
		bits |= 1 << c
	}
	return bits
}

// x32 is where the numbers of the x32 ABI begin: the same calls once more.
const x32 = 1 << 30

// filter refuses seccomp.Kernel, and permits the rest.
func filter() []unix.SockFilter {
	d := map[uint32]seccomp.Block{}
	for _, nr := range seccomp.Kernel {
		d[nr] = seccomp.Block{seccomp.Return(seccomp.EPERM)}
	}
	return seccomp.Program(d, seccomp.Block{
		seccomp.Load(seccomp.OffNr), seccomp.Jump(unix.BPF_JGE, x32, 0, 1), seccomp.Return(seccomp.ENOSYS), seccomp.Return(seccomp.Allow),
	})
}

// confine takes the rights from this thread.
func confine() error {
	if err := dropCapabilities(); err != nil {
		return err
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("setting no new privileges: %w", err)
	}
	// Without SPEC_ALLOW old kernels slow down all that follows against Spectre, which
	// is for programs that run others' code.
	_, err := seccomp.Install(filter(), unix.SECCOMP_FILTER_FLAG_SPEC_ALLOW)
	if err != nil {
		return fmt.Errorf("installing the system call filter: %w", err)
	}
	return nil
}

// dropCapabilities leaves kept, now and after any exec. Who is not root has none, unless
// an operator gave it some.
func dropCapabilities() error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var has [2]unix.CapUserData
	if err := unix.Capget(&header, &has[0]); err != nil {
		return fmt.Errorf("reading capabilities: %w", err)
	}
	keep := mask()
	for c := range uint(64) {
		if keep&(1<<c) != 0 {
			continue
		}
		// EINVAL is beyond the last one that this kernel knows. EPERM is without
		// CAP_SETPCAP: then no new privileges, which follows, has to do.
		err := unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(c), 0, 0, 0)
		if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.EPERM) {
			return fmt.Errorf("dropping capability %d: %w", c, err)
		}
	}
	for i := range has {
		word := uint32(keep >> (32 * i)) //nolint:gosec // Half of it.
		has[i].Effective &= word
		has[i].Permitted &= word
		has[i].Inheritable &= word
	}
	if err := unix.Capset(&header, &has[0]); err != nil {
		return fmt.Errorf("dropping capabilities: %w", err)
	}
	return nil
}

// alone runs f on a thread that ends with it, whatever f did to the thread. It is never
// the first thread: Go keeps that one, and /proc/PID/status shows it as the process.
func alone(f func() error) error {
	result := make(chan error)
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			defer runtime.UnlockOSThread()
			result <- alone(f) // elsewhere, while this goroutine holds the first thread
			return
		}
		result <- f() // no unlock: the thread ends
	}()
	return <-result
}

// Exec confines this process and starts the program anew as it, with the arguments it
// has, and with env and Marker. It returns only when that fails; then nothing has
// changed.
func Exec(env []string) error {
	program, err := os.Executable()
	if err != nil {
		return err
	}
	return alone(func() error {
		if err := confine(); err != nil {
			return err
		}
		err := syscall.Exec(program, os.Args, append(slices.Clip(env), Marker)) //nolint:gosec // Ourselves.
		return fmt.Errorf("restarting %s: %w", program, err)
	})
}

// Try gives what would be in force after Exec, by confining a thread that then ends.
func Try() (s State, err error) {
	err = alone(func() error {
		if err := confine(); err != nil {
			return err
		}
		s, err = read("/proc/thread-self/status")
		return err
	})
	return s, err
}

// State is what is in force of a process.
type State struct {
	NoNewPrivileges bool
	Filtered        bool   // there is a filter of system calls
	Capabilities    uint64 // that it has beyond kept
}

// Err says what is not in force; nil when all is.
func (s State) Err() error {
	var missing []string
	if !s.NoNewPrivileges {
		missing = append(missing, "programs that it starts may gain privileges")
	}
	if !s.Filtered {
		missing = append(missing, "it has no system call filter")
	}
	if s.Capabilities != 0 {
		missing = append(missing, fmt.Sprintf("it has capabilities %#x that it does not need", s.Capabilities))
	}
	if missing == nil {
		return nil
	}
	return errors.New(strings.Join(missing, "; "))
}

// Of gives what is in force of a process.
func Of(pid int) (State, error) { return read("/proc/" + strconv.Itoa(pid) + "/status") }

func read(file string) (State, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return State{}, err
	}
	return parse(string(b))
}

func parse(status string) (s State, err error) {
	says := map[string]string{}
	for line := range strings.Lines(status) {
		name, value, _ := strings.Cut(line, ":")
		says[name] = strings.TrimSpace(value)
	}
	for _, name := range []string{"CapEff", "CapPrm", "CapInh", "CapAmb"} {
		bits, err := strconv.ParseUint(says[name], 16, 64)
		if err != nil {
			return s, fmt.Errorf("%s: %w", name, err)
		}
		s.Capabilities |= bits &^ mask()
	}
	s.NoNewPrivileges, s.Filtered = says["NoNewPrivs"] == "1", says["Seccomp"] == "2"
	return s, nil
}
