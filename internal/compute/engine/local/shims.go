package local

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/sandbox/shim"
	"github.com/falaj-ml/falaj/internal/worker/protocol"
)

// idleTime is how long a shim whose program has ended waits for another: in a
// burst of short programs most starts are saved, and else nothing stays.
const idleTime = time.Second

// shims starts shims, and keeps those that are free for a while.
type shims struct {
	worker string
	stderr string // file for what they say when they fail

	mu     sync.Mutex
	free   []*keeper
	closed bool
}

// maxErrors is how much of what shims say is kept before it begins anew.
const maxErrors = 1 << 20

// keeper is a shim that we started. It is used by one workload at a time.
type keeper struct {
	process *os.Process
	code    int // how it ended, when gone is closed
	control net.Conn
	lines   *bufio.Reader
	idle    *time.Timer   // while it is free
	gone    chan struct{} // closed when it has ended
}

// take gives a free shim, or starts one.
func (s *shims) take() (*keeper, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.free) > 0 {
		k := s.free[len(s.free)-1]
		s.free = s.free[:len(s.free)-1]
		if k.idle.Stop() {
			return k, nil
		}
	}
	return s.start()
}

func (s *shims) start() (*keeper, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	ours, theirs := os.NewFile(uintptr(pair[0]), "shim"), os.NewFile(uintptr(pair[1]), "control")
	defer ours.Close() // the connection has its own
	defer theirs.Close()
	stderr, err := os.OpenFile(s.stderr, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer stderr.Close()
	if info, err := stderr.Stat(); err == nil && info.Size() > maxErrors {
		_ = stderr.Truncate(0) // who writes there appends
	}
	control, err := net.FileConn(ours)
	if err != nil {
		return nil, err
	}
	// Not CommandContext: the shim outlives the request, and us.
	cmd := exec.Command(s.worker, "shim") //nolint:noctx // See above.
	// Two cores at a time: one answers for the program's opens, one takes its output.
	cmd.Env, cmd.Dir, cmd.Stderr = []string{"GOMAXPROCS=2"}, "/", stderr
	cmd.ExtraFiles = []*os.File{theirs}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return nil, errors.Join(err, control.Close())
	}
	k := &keeper{process: cmd.Process, control: control, lines: bufio.NewReader(control), gone: make(chan struct{})}
	go func() {
		_ = cmd.Wait() // reaps it while we live
		k.code = cmd.ProcessState.ExitCode()
		close(k.gone)
	}()
	return k, nil
}

// keep takes back a shim whose workload is over.
func (s *shims) keep(k *keeper) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || len(s.free) == maxFree {
		k.leave()
		return
	}
	k.idle = time.AfterFunc(idleTime, func() {
		s.mu.Lock()
		s.free = slices.DeleteFunc(s.free, func(x *keeper) bool { return x == k })
		s.mu.Unlock()
		k.leave()
	})
	s.free = append(s.free, k)
}

// maxFree bounds the shims that wait.
const maxFree = 8

// close lets the free ones go, and waits for that; those that work end with
// their work.
func (s *shims) close() {
	s.mu.Lock()
	free := s.free
	s.free, s.closed = nil, true
	s.mu.Unlock()
	for _, k := range free {
		k.leave()
	}
	for _, k := range free {
		<-k.gone
	}
}

// leave lets a shim go, when what it runs has ended.
func (k *keeper) leave() { _ = k.control.Close() }

// run gives a workload's directory to a shim. It returns when the shim has
// recorded itself there; without an error that may be by another shim, earlier.
func (s *shims) run(dir string) (*keeper, error) {
	for retry := true; ; retry = false {
		k, err := s.take()
		if err != nil {
			return nil, err
		}
		_ = k.control.SetDeadline(time.Now().Add(startTime))
		_, err = k.control.Write([]byte(dir + "\n"))
		line := ""
		if err == nil {
			line, err = k.lines.ReadString('\n')
		}
		_ = k.control.SetDeadline(time.Time{})
		if line == shim.Ready {
			return k, nil
		}
		k.leave()
		if _, serr := os.Stat(filepath.Join(dir, shim.StatusFile)); serr == nil {
			return k, nil
		}
		_ = k.process.Kill() // in case it is only late
		if !retry {          // one retry, because a free shim may have been killed meanwhile
			if <-k.gone; k.code == usage {
				return nil, s.otherBuild()
			}
			return nil, errors.Join(errors.New("it ended before it wrote its record; its output is at the end of "+s.stderr), err)
		}
	}
}

// usage is how a worker ends that does not know what is asked of it.
const usage = 2

// speaks refuses a worker that does not know a version of the protocol.
func (s *shims) speaks(least int) error {
	says, err := s.version()
	has := 0
	if _, bad := fmt.Sscanf(string(says), "falaj-worker protocol %d", &has); err == nil && bad == nil && has >= least {
		return nil
	}
	return s.otherBuild()
}

func (s *shims) version() ([]byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	return exec.CommandContext(ctx, s.worker, "version").Output()
}

// otherBuild says that the worker is not the one that came with this server.
func (s *shims) otherBuild() error {
	says, err := s.version()
	return fault.New(fault.Unavailable, "%s is from another build than this server, which needs falaj-worker protocol %d, shim %d: it reports %q%s",
		s.worker, protocol.Version, shim.Version, strings.TrimSpace(string(says)), because(err)).
		WithHint("Install the falaj-worker that was built with this server there (check it with falaj-worker version), or set worker.path. No restart is needed.")
}

func because(err error) string {
	if err == nil {
		return ""
	}
	return " (" + err.Error() + ")"
}

// over waits until the shim says that the workload's end is recorded. false is
// that it will say no more: it has died, or we are closing.
func (k *keeper) over() bool {
	line, err := k.lines.ReadString('\n')
	return err == nil && line == shim.Over
}
