package sandbox

import (
	"errors"
	"os"
	"runtime"
	"strconv"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/falaj-ml/falaj/internal/sandbox/internal/wire"
)

// owners are user namespaces in which user 0 is another one, by that user: mounts
// show through them what is ours as the child's. To make one takes a process, so
// they are kept for the next child of that user; nothing runs in them.
var owners struct {
	sync.Mutex
	of map[int]*os.File
}

// maxOwners bounds the descriptors that are kept.
const maxOwners = 64

// ownersOf is a descriptor of such a namespace; the caller closes it.
func ownersOf(worker string, uid int) (*os.File, error) {
	owners.Lock()
	defer owners.Unlock()
	f := owners.of[uid]
	if f == nil {
		var err error
		if f, err = holdUserNamespace(worker, uid); err != nil {
			return nil, err
		}
		if owners.of == nil || len(owners.of) == maxOwners {
			for _, old := range owners.of {
				_ = old.Close()
			}
			owners.of = map[int]*os.File{}
		}
		owners.of[uid] = f
	}
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
}

// holdUserNamespace makes a user namespace in which user 0 is uid.
func holdUserNamespace(worker string, uid int) (*os.File, error) {
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
