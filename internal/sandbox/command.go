package sandbox

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/resource"
	"github.com/falaj-ml/falaj/internal/sandbox/internal/wire"
)

// killDelay bounds how long a killed child may take to be gone.
const killDelay = 10 * time.Second

// Cmd is an exec.Cmd whose child is confined. Set Stdin, Stdout, Stderr and
// ExtraFiles (entry i is descriptor 3+i inside) before Start; leave the other
// fields alone. Not safe for concurrent use, but for Kill and Terminate.
type Cmd struct {
	*exec.Cmd

	// OnDenial is called for each denied file or address that the program tried to reach,
	// at level Sandbox; setting it makes the kernel ask about every open and connect. It
	// is called by one goroutine at a time and must not block for long. nil
	// leaves the program unobserved.
	OnDenial func(Denial)

	policy  Policy
	argv    []string
	socket  *socket
	groups  *cgroups
	timer   *time.Timer
	expired atomic.Bool
	readers sync.WaitGroup
	denials sync.Mutex
	started chan struct{} // closed when the program's process exists or never will

	mu      sync.Mutex
	fault   *wire.Fault
	exit    *wire.Exit
	outcome Outcome
}

// socket is the caller's end of the socket pair.
type socket struct{ f *os.File }

// Outcome is how a program ended, known after Wait.
type Outcome struct {
	ExitCode    int            // -1 when a signal ended it
	Signal      syscall.Signal // that ended it, or 0
	TimedOut    bool           // Limits.Wall passed
	OutOfMemory bool           // a process of it was killed at the memory limit
	CPU         time.Duration  // user and system time of all its processes
	PeakRSS     resource.Bytes // of its largest process
	Unapplied   []string       // limits that could not be set, with the reason
}

// Command prepares argv to run under the policy by the falaj-worker at
// workerPath. When ctx ends, everything inside is killed. argv[0] without a
// slash is looked for in the PATH of the policy's environment.
//
// Errors: fault.Invalid for a policy that makes no sense, fault.Unavailable
// without the worker. That this kernel forbids the level is known when the
// child starts: Start or Wait then give fault.Unsupported with what is missing,
// and the program has not run. Check tells it beforehand.
func Command(ctx context.Context, workerPath string, policy Policy, argv ...string) (*Cmd, error) {
	if len(argv) == 0 || argv[0] == "" {
		return nil, fault.New(fault.Invalid, "no command to run")
	}
	if slices.ContainsFunc(argv, func(a string) bool { return strings.ContainsRune(a, 0) }) {
		return nil, fault.New(fault.Invalid, "the command holds a zero byte")
	}
	if err := policy.Validate(); err != nil {
		return nil, err
	}
	if _, err := os.Stat(workerPath); err != nil {
		return nil, fault.New(fault.Unavailable, "the falaj-worker binary is not at %s", workerPath).
			WithHint("Build it with make build, or set worker.path.")
	}
	mode := wire.ModeInit
	if policy.Image != nil {
		if err := containable(*policy.Image); err != nil {
			return nil, err
		}
		mode = wire.ModeContain
	}
	c := &Cmd{Cmd: exec.CommandContext(ctx, workerPath, mode), policy: policy, argv: argv, started: make(chan struct{})}
	// Nothing of ours is inherited. Inside, the worker only waits and passes bytes
	// on: one core at a time is cheaper to start, and none of this reaches the
	// program.
	c.Env = []string{"GOMAXPROCS=1"}
	c.Dir = "/"
	c.Cancel = c.Kill
	c.WaitDelay = killDelay
	return c, nil
}

// Start starts the child and returns when it exists; the program inside may
// still fail to start, which Wait and Started tell.
func (c *Cmd) Start() error {
	spec := c.spec()
	groups := newCgroups(c.policy)
	c.groups = groups
	spec.Cgroups = groups.procs
	if !groups.memory && c.policy.Limits.Memory > 0 {
		spec.Data = int64(c.policy.Limits.Memory)
	}
	if err := c.start(spec); err != nil {
		groups.remove()
		return err
	}
	if c.policy.Limits.Wall > 0 {
		c.timer = time.AfterFunc(c.policy.Limits.Wall, func() {
			c.expired.Store(true)
			_ = c.Kill()
		})
	}
	return nil
}

func (c *Cmd) start(spec wire.Spec) error {
	if !slices.ContainsFunc(spec.Mounts, func(m wire.Mount) bool { return m.Mapped }) {
		return c.launch(spec)
	}
	namespace, err := ownersOf(c.Path, spec.HostUID)
	switch {
	case forbidden(err):
		return unsupported(c.policy.Level, "creating a user namespace for the owners of mounts: "+err.Error())
	case err != nil: // it passes: too many processes or open files
		return fault.New(fault.Unavailable, "creating a user namespace for the owners of mounts: %w", err).
			WithHint("Try again. If this persists, raise the server's limits of processes and open files.")
	}
	defer namespace.Close()
	spec.Owners = wire.FirstFD + spec.Files
	return c.launch(spec, namespace)
}

// forbidden reports whether the kernel's error is about namespaces, and not about
// what is lacking at the moment.
func forbidden(err error) bool {
	return errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EINVAL)
}

// launch starts the worker with a spec; last are the files that follow the caller's.
func (c *Cmd) launch(spec wire.Spec, last ...*os.File) error {
	files := c.ExtraFiles
	defer func() { c.ExtraFiles = files }()
	b, err := json.Marshal(spec)
	if err != nil {
		return fault.Wrap(err, "describing the sandbox")
	}
	memory, err := sealed(b)
	if err != nil {
		return fault.Wrap(err, "describing the sandbox")
	}
	defer memory.Close()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fault.Wrap(err, "connecting to the sandbox")
	}
	// The caller's end is non-blocking, so that closing it ends a read.
	_ = unix.SetNonblock(pair[0], true)
	ours, theirs := os.NewFile(uintptr(pair[0]), "sandbox"), os.NewFile(uintptr(pair[1]), "sandbox child")
	defer theirs.Close()

	c.ExtraFiles = slices.Concat([]*os.File{memory, theirs}, files, last)
	attr := &syscall.SysProcAttr{}
	switch {
	case !spec.Separate:
		attr.Setsid = true
	case spec.Image != nil: // the runtime makes the others, one level further in
		attr.Cloneflags = syscall.CLONE_NEWNS | syscall.CLONE_NEWPID
		attr.Setsid = true
	case os.Geteuid() == 0:
		attr.Cloneflags = separate
		attr.Setsid = true
	default:
		// Without root, a user namespace in which we are root comes first.
		attr.Cloneflags = separate | syscall.CLONE_NEWUSER
		attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}}
		attr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}}
		attr.Setsid = true
	}
	c.SysProcAttr = attr
	c.socket = &socket{ours} // before the start: a context that ends at once kills through it
	if err := c.Cmd.Start(); err != nil {
		_ = ours.Close()
		if spec.Separate && forbidden(err) {
			return unsupported(c.policy.Level, "the kernel refused new namespaces: "+err.Error())
		}
		return fault.Wrap(err, "starting %s", c.Path)
	}
	c.readers.Go(c.receive)
	return nil
}

const separate = syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWIPC | syscall.CLONE_NEWUTS | syscall.CLONE_NEWNET

// Wait waits until nothing of the program runs any more. The error is an
// *exec.ExitError when the program did not exit with 0 (128+n after signal n),
// fault.Unsupported or fault.Invalid when it could not be started, and
// fault.Timeout when the wall limit ended it.
func (c *Cmd) Wait() error {
	err := c.Cmd.Wait()
	if c.timer != nil {
		c.timer.Stop()
	}
	_ = c.socket.f.SetReadDeadline(time.Now().Add(killDelay)) // what the child said is in the socket; its end of file follows
	c.readers.Wait()
	_ = c.socket.f.Close()
	oom := c.groups.outOfMemory()
	c.groups.remove()

	c.mu.Lock()
	defer c.mu.Unlock()
	c.outcome = Outcome{ExitCode: -1, TimedOut: c.expired.Load(), Unapplied: c.groups.unapplied}
	switch e := c.exit; {
	case e != nil:
		c.outcome.ExitCode, c.outcome.Signal = e.Code, syscall.Signal(e.Signal)
		c.outcome.CPU, c.outcome.PeakRSS = e.CPU, resource.Bytes(e.MaxRSS)
		c.outcome.OutOfMemory = oom && (e.Signal != 0 || e.Code != 0)
	case c.ProcessState != nil: // init itself was killed
		if ws, ok := c.ProcessState.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
			c.outcome.Signal = ws.Signal()
		}
		c.outcome.CPU = c.ProcessState.UserTime() + c.ProcessState.SystemTime()
		c.outcome.OutOfMemory = oom
	}
	if f := c.fault; f != nil {
		if f.Unsupported {
			return unsupported(c.policy.Level, f.Step+": "+f.Err)
		}
		return fault.New(fault.Invalid, "%s: %s", f.Step, f.Err)
	}
	if c.policy.Image != nil && c.exit == nil && c.ProcessState != nil && !c.ProcessState.Success() && c.outcome.Signal == 0 {
		return fault.New(fault.Invalid, "starting the container: %s failed; its message is in the output", filepath.Base(c.policy.Image.Runtime))
	}
	if c.outcome.TimedOut {
		return fault.New(fault.Timeout, "%s did not finish in %s", filepath.Base(c.argv[0]), c.policy.Limits.Wall)
	}
	return err
}

// Run starts the program and waits for it.
func (c *Cmd) Run() error {
	if err := c.Start(); err != nil {
		return err
	}
	return c.Wait()
}

// Output runs the program and returns its standard output.
func (c *Cmd) Output() ([]byte, error) {
	var out bytes.Buffer
	c.Stdout = &out
	err := c.Run()
	return out.Bytes(), err
}

// CombinedOutput runs the program and returns its standard output and error.
func (c *Cmd) CombinedOutput() ([]byte, error) {
	var out bytes.Buffer
	c.Stdout, c.Stderr = &out, &out
	err := c.Run()
	return out.Bytes(), err
}

// Started returns when the program's process exists (nil) or when it is known
// that it never will (why).
func (c *Cmd) Started(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-c.started:
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fault != nil {
		return fault.New(fault.Invalid, "%s: %s", c.fault.Step, c.fault.Err)
	}
	return nil
}

// Terminate sends SIGTERM to the program's process group, as soon as there is
// one.
func (c *Cmd) Terminate() {
	go func() {
		<-c.started
		_ = c.Process.Signal(syscall.SIGTERM)
	}()
}

// Kill ends everything inside at once.
func (c *Cmd) Kill() error {
	unthrottle(c.groups.dirs)
	if c.policy.Level >= Sandbox {
		return c.Process.Kill() // the death of the first process takes the namespace with it
	}
	// Without a pid namespace it is init that finds and kills the children; it
	// takes the end of our side as the order.
	raw, err := c.socket.f.SyscallConn()
	if err != nil {
		return err
	}
	var serr error
	err = raw.Control(func(fd uintptr) { serr = unix.Shutdown(int(fd), unix.SHUT_WR) })
	return errors.Join(err, serr)
}

// Outcome is how the program ended; call it after Wait.
func (c *Cmd) Outcome() Outcome {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.outcome
}

// Cgroups lists the directories that bound the program, so that another process
// can remove them if this one dies before Wait.
func (c *Cmd) Cgroups() []string { return c.groups.dirs }

func (c *Cmd) spec() wire.Spec {
	p, l := c.policy, c.policy.Limits
	s := wire.Spec{
		Argv: c.argv, Env: p.Env, Dir: p.Dir,
		Confine: p.Level >= Process, Separate: p.Level >= Sandbox,
		Devices: p.Devices, Names: p.Network.Names, CPUs: l.CPUs, Nodes: l.Nodes,
		Observe: p.Level >= Sandbox && c.OnDenial != nil,
		Files:   len(c.ExtraFiles),

		OpenFiles: 65536, Processes: 4096, FileSize: int64(l.FileSize),
		Tmp: int64(defaultTmp),
	}
	if l.Yields {
		s.Nice = niceness
	}
	if s.Dir == "" {
		s.Dir = "/tmp"
	}
	if l.OpenFiles > 0 {
		s.OpenFiles = int64(l.OpenFiles)
	}
	if l.Processes > 0 {
		s.Processes = int64(l.Processes)
	}
	if l.Memory > 0 {
		s.Tmp = int64(max(l.Memory/2, minTmp))
	}
	if l.Tmp > 0 {
		s.Tmp = int64(l.Tmp)
	}
	root := os.Geteuid() == 0
	if s.Separate && root {
		s.HostUID = p.UID
		if s.HostUID == 0 {
			s.HostUID = DefaultUID
		}
	}
	if p.Image != nil {
		s.Image = &wire.Image{Root: p.Image.Root, Runtime: p.Image.Runtime, OneStream: c.Stdout != nil && c.Stdout == c.Stderr}
		s.HostRoot = s.HostUID + maxUID - DefaultUID
	}
	for _, m := range p.Mounts {
		s.Mounts = append(s.Mounts, wire.Mount{Path: m.Path, Writable: m.Writable, Mapped: s.HostUID != 0 && ownedByUs(m.Path)})
	}
	// A mount over another must come after it.
	slices.SortStableFunc(s.Mounts, func(a, b wire.Mount) int { return len(a.Path) - len(b.Path) })
	for _, f := range p.Network.Forwards {
		w := wire.Forward{Port: f.Port, Socket: f.Socket, Env: f.Env}
		if !s.Separate {
			w.Port = 0
		}
		s.Forwards = append(s.Forwards, w)
	}
	return s
}

// receive reads what the worker says until its end is closed.
func (c *Cmd) receive() {
	var once sync.Once
	known := func() { once.Do(func() { close(c.started) }) }
	defer known()
	buf, oob := make([]byte, wire.MaxMessage), make([]byte, unix.CmsgSpace(4))
	for {
		n, fds, err := c.socket.read(buf, oob)
		if err != nil || n == 0 {
			return
		}
		var m wire.Message
		if json.Unmarshal(buf[:n], &m) != nil {
			continue
		}
		c.mu.Lock()
		switch {
		case m.Fault != nil:
			c.fault = m.Fault
		case m.Exit != nil:
			c.exit = m.Exit
		}
		c.mu.Unlock()
		switch {
		case m.Started || m.Fault != nil:
			known()
		case m.Lookup != "":
			c.report(Denial{Time: time.Now(), Kind: "connect", Target: m.Lookup})
		case m.Listener && len(fds) == 1 && c.OnDenial != nil:
			o := newObserver(fds[0], c.Process.Pid, c.policy, c.report)
			c.readers.Go(o.run)
			fds = nil
		}
		for _, fd := range fds {
			_ = unix.Close(fd)
		}
	}
}

func (c *Cmd) report(d Denial) {
	if c.OnDenial == nil {
		return
	}
	c.denials.Lock()
	defer c.denials.Unlock()
	c.OnDenial(d)
}

// read receives one packet with at most one descriptor.
func (s *socket) read(buf, oob []byte) (size int, fds []int, err error) {
	raw, err := s.f.SyscallConn()
	if err != nil {
		return 0, nil, err
	}
	var oobn int
	var rerr error
	err = raw.Read(func(fd uintptr) bool {
		for {
			size, oobn, _, _, rerr = unix.Recvmsg(int(fd), buf, oob, unix.MSG_CMSG_CLOEXEC)
			if !errors.Is(rerr, unix.EINTR) {
				return !errors.Is(rerr, unix.EAGAIN)
			}
		}
	})
	if err = errors.Join(err, rerr); err != nil {
		return 0, nil, err
	}
	if oobn > 0 {
		messages, err := unix.ParseSocketControlMessage(oob[:oobn])
		if err != nil {
			return 0, nil, err
		}
		for _, m := range messages {
			got, err := unix.ParseUnixRights(&m)
			if err == nil {
				fds = append(fds, got...)
			}
		}
	}
	return size, fds, nil
}

// sealed is a file in memory with the content.
func sealed(b []byte) (*os.File, error) {
	fd, err := unix.MemfdCreate("falaj-sandbox", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "falaj-sandbox")
	if _, err := f.Write(b); err != nil {
		_ = f.Close()
		return nil, err
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		_ = f.Close()
		return nil, err
	}
	_, _ = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_WRITE|unix.F_SEAL_SEAL)
	return f, nil
}

// ownedByUs reports whether the path belongs to our user, so that an id-mapped
// mount shows it as the child's.
func ownedByUs(path string) bool {
	var st unix.Stat_t
	return unix.Stat(path, &st) == nil && int(st.Uid) == os.Geteuid()
}

func unsupported(l Level, why string) error {
	return fault.New(fault.Unsupported, "isolation %s is unavailable here: %s", l, why).
		WithHint("Ask the administrator of the machine to permit it, or accept weaker isolation with --isolation process: code then has none of the server's privileges, but can read the files that the server's user can read.")
}

// String is for people; it shows no environment.
func (c *Cmd) String() string {
	return fmt.Sprintf("[%s] %s", c.policy.Level, strings.Join(c.argv, " "))
}
