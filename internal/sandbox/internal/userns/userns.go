// Package userns makes the user namespaces that show the owners of mounts as
// somebody else.
package userns

import (
	"errors"
	"os"
	"runtime"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/falaj-ml/falaj/internal/sandbox/internal/wire"
)

// Hold makes a user namespace in which user 0 is uid, by a process of the
// worker that is gone when it returns.
func Hold(worker string, uid int) (*os.File, error) {
	// The process's death signal, and who traces it, are this thread's.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	pipe := make([]int, 2)
	if err := unix.Pipe2(pipe, unix.O_CLOEXEC); err != nil {
		return nil, err
	}
	defer unix.Close(pipe[0])
	defer unix.Close(pipe[1])
	ids := []syscall.SysProcIDMap{{ContainerID: 0, HostID: uid, Size: 1}}
	sys := &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWUSER, UidMappings: ids, GidMappings: ids, Pdeathsig: syscall.SIGKILL,
		Ptrace: true, // it is not to run, only to be: it stops before its first instruction
	}
	hold := func() (int, error) {
		return syscall.ForkExec(worker, []string{"falaj-worker", wire.ModeHold}, &syscall.ProcAttr{Files: []uintptr{uintptr(pipe[0])}, Sys: sys})
	}
	pid, err := hold()
	if err != nil { // some systems forbid to trace
		sys.Ptrace = false
		if pid, err = hold(); err != nil {
			return nil, err
		}
	}
	defer func() {
		_ = syscall.Kill(pid, syscall.SIGKILL)
		for ws := syscall.WaitStatus(0); ; { // the first news of it may be that it has stopped
			if _, err := syscall.Wait4(pid, &ws, 0, nil); !errors.Is(err, unix.EINTR) && (err != nil || !ws.Stopped()) {
				return
			}
		}
	}()
	return os.Open("/proc/" + strconv.Itoa(pid) + "/ns/user")
}
