package child

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/resource"
)

// Launcher makes the process that runs this binary in a hidden mode: without
// keys, database, network or files of its own. It is not started, and dies with
// ctx.
type Launcher interface {
	Launch(ctx context.Context, mode string, opts LaunchOptions) (Process, error)
}

// Process is a child to be started. The stdin, stdout and stderr of its Command
// are the caller's to set before Start; Start and Wait are called on Process,
// because confining a child takes more than exec.Cmd does. Plain makes one of an
// exec.Cmd that needs nothing more.
type Process interface {
	Command() *exec.Cmd
	Start() error
	Wait() error
}

// Plain is a process that is not confined, for tests.
type Plain struct{ *exec.Cmd }

// Command implements Process.
func (p Plain) Command() *exec.Cmd { return p.Cmd }

// LaunchOptions are the limits of one child.
type LaunchOptions struct {
	Memory resource.Bytes // of the whole process; 0 = the launcher's own limit
	CPU    time.Duration  // of processor time; 0 = unlimited
	// Scratch is a directory that the child may write; empty for none.
	Scratch string
}

// Session is a running child seen from the server. Close it.
type Session struct {
	In  *Writer
	Out *Reader

	mode   string
	proc   Process
	cancel context.CancelFunc
	stdin  io.WriteCloser
	stderr tail
	once   sync.Once
	waited chan struct{}
	err    error // of Wait; read after waited
}

// Start launches a child. It is killed when ctx ends or by Close.
func Start(ctx context.Context, l Launcher, mode string, opts LaunchOptions) (*Session, error) {
	ctx, cancel := context.WithCancel(ctx)
	proc, err := l.Launch(ctx, mode, opts)
	if err != nil {
		cancel()
		return nil, fault.Wrap(err, "starting the %s process", mode)
	}
	cmd := proc.Command()
	s := &Session{mode: mode, proc: proc, cancel: cancel, waited: make(chan struct{})}
	fail := func(err error, opened ...*os.File) (*Session, error) {
		cancel()
		for _, f := range opened {
			_ = f.Close()
		}
		return nil, fault.Wrap(err, "starting the %s process", mode)
	}
	// Own pipes: Wait must not close stdout under a reader, and those of the command stay
	// open when the process could not be confined, so that it was never started.
	inR, inW, err := os.Pipe()
	if err != nil {
		return fail(err)
	}
	outR, outW, err := os.Pipe()
	if err != nil {
		return fail(err, inR, inW)
	}
	s.stdin, cmd.Stdin, cmd.Stdout = inW, inR, outW
	cmd.Stderr = &s.stderr
	if cmd.WaitDelay == 0 {
		cmd.WaitDelay = 5 * time.Second
	}
	if err := proc.Start(); err != nil {
		return fail(err, inR, inW, outR, outW)
	}
	_, _ = inR.Close(), outW.Close()
	s.In, s.Out = NewWriter(s.stdin), NewReader(outR)
	go func() {
		defer close(s.waited)
		s.err = proc.Wait()
		_ = s.stdin.Close() // a write to it ends, as to a pipe of the command
	}()
	context.AfterFunc(ctx, func() { _ = outR.SetReadDeadline(time.Unix(1, 0)) })
	go func() { // the read end lives until the session is closed and the child is gone
		<-ctx.Done()
		<-s.waited
		_ = outR.Close()
	}()
	return s, nil
}

// Stop kills the child without waiting, so that reading from it ends.
func (s *Session) Stop() { s.cancel() }

// Close kills the child, if it still runs, and waits for it.
func (s *Session) Close() {
	s.once.Do(func() {
		_ = s.stdin.Close()
		s.cancel()
		<-s.waited
	})
}

// Explain turns the error of a conversation into what happened: a fault from
// the child as it is, the end of ctx as a time-out, a dead child as its death.
// nil stays nil.
func (s *Session) Explain(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	if _, ok := errors.AsType[*fault.Error](err); ok {
		return err
	}
	if cause := ctx.Err(); errors.Is(cause, context.DeadlineExceeded) {
		return fault.New(fault.Timeout, "the %s process did not finish in time", s.mode)
	} else if cause != nil {
		return cause
	}
	if !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, os.ErrClosed) && !errors.Is(err, syscall.EPIPE) {
		// Bytes that are not the protocol: whatever parsed the user's file is confused or taken over.
		return fault.New(fault.Invalid, "the %s process sent an invalid message: %v", s.mode, err)
	}
	// The pipe closed first: say why the child ended.
	select {
	case <-s.waited:
	case <-time.After(5 * time.Second):
		s.Close()
	}
	if fault.Is(s.err, fault.Timeout) {
		return s.err
	}
	said := s.stderr.String()
	if limited, ok := s.proc.(interface{ OutOfMemory() bool }); ok && limited.OutOfMemory() || outOfMemory.MatchString(said) {
		return fault.New(fault.Exhausted, "the %s process ran out of memory", s.mode).
			WithHint("Split the input, or raise the limit.")
	}
	switch sig := signalOf(s.err); sig {
	case 0:
	case syscall.SIGKILL, syscall.SIGXCPU:
		return fault.New(fault.Exhausted, "the %s process exceeded its limits (%s)", s.mode, sig).
			WithHint("The input needs more memory or CPU time than the limit allows. Split the input, or raise the limit.")
	default:
		return fault.New(fault.Invalid, "the input crashed the %s process (%s)", s.mode, sig).
			WithHint("Change the query or the file. Nothing else was affected.")
	}
	if crashed.MatchString(said) {
		return fault.New(fault.Invalid, "the input crashed the %s process", s.mode).
			WithHint("Change the query or the file. Nothing else was affected.")
	}
	return fault.New(fault.Internal, "the %s process ended early (%v): %s", s.mode, s.err, said)
}

// What the runtimes of Go and C++ say when they end a process.
var (
	outOfMemory = regexp.MustCompile(`out of memory|cannot allocate memory|std::bad_alloc|cannot map pages`)
	crashed     = regexp.MustCompile(`(?m)^(panic: |fatal error: |terminate called|SIG[A-Z]+: )`)
)

// signalOf is the signal that ended a process, 0 when none did. The shim of a sandbox
// exits with 128 and the signal's number.
func signalOf(err error) syscall.Signal {
	exit, ok := errors.AsType[*exec.ExitError](err)
	if !ok {
		return 0
	}
	status, ok := exit.Sys().(syscall.WaitStatus)
	switch {
	case !ok:
		return 0
	case status.Signaled():
		return status.Signal()
	case status.ExitStatus() > 128 && status.ExitStatus() < 128+32:
		return syscall.Signal(status.ExitStatus() - 128)
	}
	return 0
}

// tail keeps the last bytes written.
type tail struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	const keep = 8 << 10
	t.b.Write(p)
	if over := t.b.Len() - keep; over > 0 {
		t.b.Next(over)
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.TrimSpace(t.b.String())
}
