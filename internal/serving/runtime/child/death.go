package child

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/falaj-ml/falaj/internal/serving/runtime"
)

// death says why the process ended, when it is gone and nobody had asked it to end.
func (p *process) death(o runtime.Options) runtime.Death {
	return runtime.Death{At: time.Now().UTC(), Reason: p.cause(o)}
}

// cause is the reason in words of ours. What is certain comes first: what this server
// did, what the kernel says, and only then what the process printed.
func (p *process) cause(o runtime.Options) string {
	why, signal := p.ended(), signalOf(p.exit)
	switch {
	case errors.Is(why, errSlow):
		return fmt.Sprintf("killed: it did not load the model within %s", o.Time)
	case errors.Is(why, errStubborn):
		return "killed: it did not end a run that timed out"
	case errors.Is(why, errDeaf):
		return fmt.Sprintf("killed: it read no request for %s", stuck)
	case p.outOfMemory():
		return fmt.Sprintf("out of memory: its limit is %s (spec.runtime.memory)", o.Memory)
	case signal != 0 && signal != syscall.SIGKILL:
		return "killed by " + name(signal)
	case !hungUp(why):
		return "killed: it violated the protocol"
	case signal != 0:
		return "killed by " + name(signal) + " from outside"
	}
	for _, s := range symptoms {
		if strings.Contains(p.stderr.String(), s) {
			if strings.HasPrefix(s, "SIG") { // the Go runtime reports the signal and exits
				return "killed by " + name(unix.SignalNum(s))
			}
			return "it crashed: " + strings.TrimSuffix(s, ":")
		}
	}
	if exit, ok := errors.AsType[*exec.ExitError](p.exit); ok {
		return fmt.Sprintf("it exited with status %d", exit.ExitCode())
	}
	return "it exited"
}

// late keeps that the load took too long, for a process that says so itself.
func (p *process) late() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.why = errSlow
}

// hungUp reports whether an error of reading or writing only means that the other end
// is gone.
func hungUp(err error) bool {
	for _, gone := range []error{io.EOF, io.ErrUnexpectedEOF, io.ErrClosedPipe, os.ErrClosed, syscall.EPIPE, syscall.ECONNRESET, errEnded} {
		if errors.Is(err, gone) {
			return true
		}
	}
	return err == nil
}

// signalOf is the signal that ended a process; 0: none did. A sandbox reports the
// signal of what runs inside as a shell does, by 128 and its number.
func signalOf(exit error) syscall.Signal {
	e, ok := errors.AsType[*exec.ExitError](exit)
	if !ok {
		return 0
	}
	if status, ok := e.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return status.Signal()
	}
	if n := e.ExitCode() - 128; n > 0 && n <= 64 {
		return syscall.Signal(n)
	}
	return 0
}

// name is a signal as the manual pages have it, and in words.
func name(s syscall.Signal) string {
	if n := unix.SignalName(s); n != "" {
		return fmt.Sprintf("%s (%s)", n, s)
	}
	return s.String()
}
