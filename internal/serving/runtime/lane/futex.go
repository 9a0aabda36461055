package lane

import (
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	futexWait = 0 // FUTEX_WAIT, between processes
	futexWake = 1 // FUTEX_WAKE
)

// waited is how a wait ended.
type waited int

const (
	changed waited = iota // the number is another one
	woken                 // somebody woke us, or a signal came; it may be the same
	late                  // the time was up
)

// wait waits while a number is v, for at most a time; 0 is for ever. The system call is one
// that the scheduler knows of: other goroutines go on meanwhile.
func wait(w *uint32, v uint32, most time.Duration) waited {
	return futex(syscall.Syscall6, w, v, most)
}

// waitHere is wait for a short time, in which this goroutine keeps its processor. To give
// it to another thread and get one back costs more than a short run takes.
func waitHere(w *uint32, v uint32, most time.Duration) waited {
	return futex(syscall.RawSyscall6, w, v, most)
}

type systemCall func(call, a1, a2, a3, a4, a5, a6 uintptr) (r1, r2 uintptr, err syscall.Errno)

func futex(call systemCall, w *uint32, v uint32, most time.Duration) waited {
	if atomic.LoadUint32(w) != v {
		return changed
	}
	var limit *unix.Timespec
	if most > 0 {
		t := unix.NsecToTimespec(int64(most))
		limit = &t
	}
	_, _, errno := call(unix.SYS_FUTEX, uintptr(unsafe.Pointer(w)), futexWait, uintptr(v), uintptr(unsafe.Pointer(limit)), 0, 0) //nolint:gosec // G103: the kernel's interface
	switch errno {
	case unix.EAGAIN:
		return changed
	case unix.ETIMEDOUT:
		return late
	default:
		return woken
	}
}

// wake wakes who waits for a number. It does not block, so the scheduler need not know.
func wake(w *uint32) {
	_, _, _ = syscall.RawSyscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(w)), futexWake, 1, 0, 0, 0) //nolint:gosec // G103: the kernel's interface
}
