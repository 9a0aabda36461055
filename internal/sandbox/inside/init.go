// Package inside is the half of the sandbox that runs in the child, in the
// falaj-worker binary: Init builds the namespaces' root and stays as their
// first process, Exec confines itself and becomes the program.
//
// Parts: init.go (start, reap, end), root.go (the root directory), contain.go
// (the root of an OCI image, and the runtime's configuration), forward.go
// (loopback ports, name look-ups), exec.go (limits, Landlock, become the
// program), filter.go (the seccomp program), enter.go (a look into what runs),
// kill.go (ending a tree without a pid namespace).
//
// Linux only; a process runs one of these once and then exits.
package inside

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/falaj-ml/falaj/internal/sandbox/internal/wire"
)

// Exit codes of the worker when the program was not started.
const (
	exitFault  = 125
	exitKilled = 137
)

// Init builds the sandbox that the spec in descriptor 3 describes, runs its
// program, and returns the exit code: the program's, or 128+n after signal n.
// It must be called from the main goroutine before anything else ran.
func Init() int {
	// The kernel's death signal is bound to the thread that started the child.
	runtime.LockOSThread()
	spec, err := wire.ReadSpec()
	if err != nil {
		return exitFault
	}
	b := &box{spec: spec, signals: make(chan os.Signal, 16), lost: make(chan struct{})}
	if err := closeOnExec(); err != nil {
		b.fail("closing descriptors", err)
		return exitFault
	}
	signal.Notify(b.signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2)
	if step, err := b.build(); err != nil {
		b.fail(step, err)
		return exitFault
	}
	go b.watchCaller()
	return b.run()
}

// box is the sandbox as its first process holds it.
type box struct {
	spec    *wire.Spec
	signals chan os.Signal
	lost    chan struct{} // closed when the caller has died
	env     map[string]string
	serving []func()
}

// build makes everything that needs the rights we are about to give up.
func (b *box) build() (step string, err error) {
	syscall.Umask(0o022)
	b.env = map[string]string{}
	if b.spec.Image != nil { // Contain and the runtime made the rest
		if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
			return "closing /proc/1", err
		}
		if b.spec.Image.OneStream {
			if err := unix.Dup3(1, 2, 0); err != nil {
				return "joining the streams", err
			}
		}
		return "listening inside", b.listen()
	}
	if step, err := joinLimits(b.spec); err != nil {
		return step, err
	}
	if b.spec.Separate {
		if err := unix.Sethostname([]byte(wire.UserName)); err != nil {
			return "naming the host", err
		}
		if err := loopbackUp(); err != nil {
			return "starting the loopback interface", err
		}
	}
	if err := b.listen(); err != nil {
		return "listening inside", err
	}
	if b.spec.Separate {
		if step, err := buildRoot(b.spec); err != nil {
			return step, err
		}
	} else if b.spec.Confine {
		if err := dropCapabilities(); err != nil {
			return "dropping capabilities", err
		}
	}
	return "", nil
}

// joinLimits puts us, and so all our children, under the spec's limits.
func joinLimits(spec *wire.Spec) (step string, err error) {
	for _, file := range spec.Cgroups {
		if err := os.WriteFile(file, []byte("0"), 0); err != nil {
			return "joining the cgroup", err
		}
	}
	if spec.Nice > 0 { // of this thread, from which the program inherits it
		now, err := unix.Getpriority(unix.PRIO_PROCESS, 0) // 20 less the niceness
		if err == nil {
			err = unix.Setpriority(unix.PRIO_PROCESS, 0, min(19, 20-now+spec.Nice))
		}
		if err != nil {
			return "lowering the priority", err
		}
	}
	if len(spec.CPUs) > 0 {
		if err := setAffinity(spec.CPUs); err != nil {
			return "choosing processor cores", err
		}
	}
	if len(spec.Nodes) > 0 {
		return "binding memory to NUMA nodes", bindMemory(spec.Nodes)
	}
	return "", nil
}

// run starts the program, gives up our rights and stays until the program and
// all its children have ended.
func (b *box) run() int {
	if !b.spec.Separate {
		// Children that lose their parent become ours, so that we can end them.
		if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
			b.fail("becoming the reaper", err)
			return exitFault
		}
	}
	program, err := b.start()
	if err != nil {
		b.fail("starting the program", err)
		return exitFault
	}
	tell(wire.Message{Started: true})
	if b.spec.Separate {
		user := b.spec.HostUID
		if b.spec.Image != nil {
			user = 0 // the runtime made us that user already
		}
		if err := dropRights(user); err != nil {
			b.fail("dropping privileges", err)
			return exitFault // takes the program with us
		}
	}
	for _, serve := range b.serving {
		go serve()
	}
	r := newReaper(program)
	for {
		select {
		case e := <-r.ended:
			b.killAll(r)
			e.CPU, e.MaxRSS = usage()
			tell(wire.Message{Exit: &e})
			if e.Signal != 0 {
				return 128 + e.Signal
			}
			return e.Code
		case s := <-b.signals:
			if n, ok := s.(syscall.Signal); ok {
				_ = syscall.Kill(-program, n)
			}
		case <-b.lost:
			b.killAll(r)
			e := wire.Exit{Code: -1, Signal: int(syscall.SIGKILL)}
			e.CPU, e.MaxRSS = usage()
			tell(wire.Message{Exit: &e}) // the caller may only have shut down its side
			return exitKilled
		}
	}
}

// oneCore is for our own last step before the program, which has one thing to do:
// to start is cheaper so.
const oneCore = "GOMAXPROCS=1"

// start runs ourselves in mode exec, which becomes the program.
func (b *box) start() (int, error) {
	env := make([]string, 0, 1+len(b.env))
	env = append(env, oneCore)
	for k, v := range b.env {
		env = append(env, k+"="+v)
	}
	files := []uintptr{0, 1, 2}
	for fd := wire.SpecFD; fd < wire.FirstFD+b.spec.Files; fd++ {
		files = append(files, uintptr(fd))
	}
	attr := &syscall.ProcAttr{Dir: "/", Env: env, Files: files, Sys: &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}}
	self := "/proc/self/exe"
	switch {
	case b.spec.Image != nil:
		self = workerInside // without a right since the runtime started us
	case b.spec.Separate:
		self = workerInside
		// One more user namespace: the program has no right over the mounts, the
		// network and the processes of the first one, whatever it becomes.
		host := b.spec.HostUID // 0 is ourselves without root: root of the first user namespace
		attr.Sys.Cloneflags = syscall.CLONE_NEWUSER
		attr.Sys.UidMappings = []syscall.SysProcIDMap{{ContainerID: wire.UserID, HostID: host, Size: 1}}
		attr.Sys.GidMappings = []syscall.SysProcIDMap{{ContainerID: wire.UserID, HostID: host, Size: 1}}
		attr.Sys.Credential = &syscall.Credential{Uid: wire.UserID, Gid: wire.UserID, NoSetGroups: true}
	}
	return syscall.ForkExec(self, []string{"falaj-worker", wire.ModeExec}, attr)
}

// closeOnExec keeps every descriptor but the standard ones from our children,
// those included that our caller inherited itself and passed on unknowingly.
func closeOnExec() error {
	return closeOnExecFrom(wire.SpecFD)
}

func closeOnExecFrom(first int) error {
	err := unix.CloseRange(uint(first), 1<<31-1, unix.CLOSE_RANGE_CLOEXEC)
	if err == nil || !errors.Is(err, unix.ENOSYS) && !errors.Is(err, unix.EINVAL) {
		return err
	}
	entries, err := os.ReadDir("/proc/self/fd") // before Linux 5.11
	if err != nil {
		return err
	}
	for _, e := range entries {
		if fd, err := strconv.Atoi(e.Name()); err == nil && fd >= first {
			unix.CloseOnExec(fd)
		}
	}
	return nil
}

// watchCaller ends everything when the caller's end of the socket is closed or
// shut down for writing.
func (b *box) watchCaller() {
	buf := make([]byte, 1)
	for {
		n, err := unix.Read(wire.SocketFD, buf)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		// An error is the end, too: who was killed before it had read what we told
		// it leaves ECONNRESET.
		if err != nil || n == 0 {
			close(b.lost)
			return
		}
	}
}

// killAll kills all descendants and waits until they are reaped.
func (b *box) killAll(r *reaper) {
	if !b.spec.Separate {
		killChildren(r)
		<-r.empty
		return
	}
	// As first process of a pid namespace, -1 is everybody else inside it; the
	// kernel lets nobody fork in between.
	_ = syscall.Kill(-1, syscall.SIGKILL)
	<-r.empty
}

func (b *box) fail(step string, err error) {
	forbidden := b.spec.Separate && isForbidden(err)
	tell(wire.Message{Fault: &wire.Fault{Step: step, Err: err.Error(), Unsupported: forbidden}})
}

// isForbidden reports whether the kernel, not the spec, is the reason.
func isForbidden(err error) bool {
	return errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EACCES)
}

// reaper is the only one who waits for children: a second waiter could take
// the program's exit status away.
type reaper struct {
	ended  chan wire.Exit // how the program ended
	reaped chan struct{}  // something was reaped since the last look
	empty  chan struct{}  // closed when there is no child
}

func newReaper(program int) *reaper {
	r := &reaper{ended: make(chan wire.Exit, 1), reaped: make(chan struct{}, 1), empty: make(chan struct{})}
	go func() {
		defer close(r.empty)
		for {
			var ws syscall.WaitStatus
			pid, err := syscall.Wait4(-1, &ws, 0, nil)
			if errors.Is(err, syscall.EINTR) {
				continue
			}
			if err != nil { // no child
				return
			}
			select {
			case r.reaped <- struct{}{}:
			default:
			}
			switch {
			case pid != program:
			case ws.Signaled():
				r.ended <- wire.Exit{Code: -1, Signal: int(ws.Signal())}
			default:
				r.ended <- wire.Exit{Code: ws.ExitStatus()}
			}
		}
	}()
	return r
}

// usage is what all reaped children took.
func usage() (cpu time.Duration, maxRSS int64) {
	var r syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_CHILDREN, &r) != nil {
		return 0, 0
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano()), r.Maxrss << 10
}

// tell sends one message to the caller, with at most one descriptor.
func tell(m wire.Message, fds ...int) {
	b, err := json.Marshal(m)
	if err != nil || len(b) > wire.MaxMessage {
		return
	}
	var rights []byte
	if len(fds) > 0 {
		rights = unix.UnixRights(fds...)
	}
	for {
		err := unix.Sendmsg(socketFD, b, rights, nil, unix.MSG_NOSIGNAL)
		if !errors.Is(err, unix.EINTR) {
			return
		}
	}
}

// socketFD is where the socket to the caller is; Exec moves it.
var socketFD = wire.SocketFD

// dropRights makes the first process as weak as the program: another user, no
// capability, not to be looked into.
func dropRights(uid int) error {
	if uid != 0 {
		if err := syscall.Setgroups(nil); err != nil {
			return fmt.Errorf("setgroups: %w", err)
		}
		if err := syscall.Setresgid(uid, uid, uid); err != nil {
			return fmt.Errorf("setresgid: %w", err)
		}
		if err := syscall.Setresuid(uid, uid, uid); err != nil {
			return fmt.Errorf("setresuid: %w", err)
		}
	}
	// No exec of ours gains anything: what bounds that need not be emptied, which
	// takes a stop of all threads for each capability.
	if _, _, errno := syscall.AllThreadsSyscall(syscall.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0); errno != 0 {
		return fmt.Errorf("no new privileges: %w", errno)
	}
	if err := emptyCapabilities(); err != nil {
		return err
	}
	// The change of user cleared it, and it keeps /proc/1 closed to the program.
	return unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0)
}

// dropCapabilities empties the capability sets of all our threads, and where
// we may the set that bounds what a later exec can gain.
func dropCapabilities() error {
	for c := range uintptr(64) {
		if _, _, errno := syscall.AllThreadsSyscall(syscall.SYS_PRCTL, unix.PR_CAPBSET_DROP, c, 0); errno == syscall.EINVAL {
			break // beyond the last capability this kernel knows
		}
	}
	return emptyCapabilities()
}

// emptyCapabilities empties what all our threads have now and pass on.
func emptyCapabilities() error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var none [2]unix.CapUserData
	if _, _, errno := syscall.AllThreadsSyscall(syscall.SYS_CAPSET, uintptr(unsafe.Pointer(&header)), uintptr(unsafe.Pointer(&none[0])), 0); errno != 0 { //nolint:gosec // The kernel's structures.
		return fmt.Errorf("capset: %w", errno)
	}
	return nil
}

func setAffinity(cpus []int) error {
	var set unix.CPUSet
	for _, c := range cpus {
		set.Set(c)
	}
	// Of this thread, which is the one that starts the program.
	return unix.SchedSetaffinity(0, &set)
}

// bindMemory binds the memory of this thread, and of all that it starts, to NUMA
// nodes: an allocation that finds none free there fails rather than goes elsewhere.
func bindMemory(nodes []int) error {
	var set unix.CPUSet // a set of numbers as the kernel reads it
	for _, n := range nodes {
		set.Set(n)
	}
	return unix.SetMemPolicy(unix.MPOL_BIND, &set)
}

// Hold owns a user namespace until it is killed: its caller opens
// /proc/PID/ns/user to map a mount's owners.
func Hold() int {
	_, _ = unix.Read(0, make([]byte, 1))
	return 0
}
