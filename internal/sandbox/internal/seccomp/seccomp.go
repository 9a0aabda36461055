// Package seccomp assembles and installs filters of system calls. Two use it: the
// allow-list of jobs (inside) and the list of what the server refuses to itself
// (harden).
package seccomp

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Offsets in struct seccomp_data. Arguments are 64 bits, low half first on the
// architectures that we build for.
const (
	OffNr   = 0
	OffArch = 4
	OffArgs = 16
)

// What becomes of a call.
const (
	Allow  = unix.SECCOMP_RET_ALLOW
	Notify = unix.SECCOMP_RET_USER_NOTIF
	EPERM  = unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)
	ENOSYS = unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)
)

// Kernel are calls that change or look into the kernel or the machine. Nothing of
// Falaj, and nothing that it starts, makes one.
var Kernel = slices.Concat([]uint32{
	unix.SYS_KEXEC_LOAD, unix.SYS_KEXEC_FILE_LOAD, unix.SYS_INIT_MODULE, unix.SYS_FINIT_MODULE, unix.SYS_DELETE_MODULE,
	unix.SYS_REBOOT, unix.SYS_SWAPON, unix.SYS_SWAPOFF, unix.SYS_ACCT, unix.SYS_SYSLOG, unix.SYS_QUOTACTL, unix.SYS_QUOTACTL_FD, unix.SYS_LOOKUP_DCOOKIE,
	unix.SYS_SETTIMEOFDAY, unix.SYS_CLOCK_SETTIME, unix.SYS_CLOCK_ADJTIME, unix.SYS_ADJTIMEX, unix.SYS_VHANGUP, unix.SYS_SETDOMAINNAME, unix.SYS_NFSSERVCTL,
	// Large surfaces.
	unix.SYS_BPF, unix.SYS_PERF_EVENT_OPEN, unix.SYS_USERFAULTFD, unix.SYS_IO_URING_SETUP, unix.SYS_IO_URING_ENTER, unix.SYS_IO_URING_REGISTER,
	// Other processes: tracing and reading stay, for profiles and namespaces.
	unix.SYS_PROCESS_VM_WRITEV, unix.SYS_PIDFD_GETFD, unix.SYS_KCMP, unix.SYS_PROCESS_MADVISE,
	// Keys, and files by handle.
	unix.SYS_ADD_KEY, unix.SYS_REQUEST_KEY, unix.SYS_KEYCTL, unix.SYS_OPEN_BY_HANDLE_AT, unix.SYS_FANOTIFY_INIT,
}, kernelHere)

// Block decides about one system call by its arguments, and ends with a return.
type Block []unix.SockFilter

// Load reads a word of the call.
func Load(off uint32) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: off}
}

// Jump goes on by a comparison with what was read.
func Jump(test uint16, k uint32, yes, no uint8) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_JMP | test | unix.BPF_K, Jt: yes, Jf: no, K: k}
}

// skip leaves out so many instructions.
func skip(n int) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JA, K: uint32(n)} //nolint:gosec // A program is short.
}

// Return ends with an action.
func Return(action uint32) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: action}
}

// Arg reads the lower half of an argument.
func Arg(i uint32) unix.SockFilter { return Load(OffArgs + 8*i) }

// segment is a range of system calls, up to the next one, about which the same is decided.
type segment struct {
	from   uint32
	decide Block
}

// Program decides as d says, and otherwise about every call that it does not name. Calls
// by another ABI, whose numbers differ, answer ENOSYS.
func Program(d map[uint32]Block, otherwise Block) []unix.SockFilter {
	segments := []segment{{0, otherwise}}
	add := func(from uint32, b Block) {
		if last := &segments[len(segments)-1]; last.from == from {
			last.decide = b
		} else if !slices.Equal(last.decide, b) {
			segments = append(segments, segment{from, b})
		}
	}
	for _, nr := range slices.Sorted(maps.Keys(d)) {
		add(nr, d[nr])
		segments = append(segments, segment{nr + 1, otherwise}) // replaced by the next one's, if that follows
	}
	segments = joined(segments)
	code := []unix.SockFilter{Load(OffArch), Jump(unix.BPF_JEQ, AuditArch, 1, 0), Return(ENOSYS), Load(OffNr)}
	return append(code, search(segments)...)
}

// joined makes one of neighbours that decide the same.
func joined(segments []segment) []segment {
	var out []segment
	for _, s := range segments {
		if len(out) > 0 && slices.Equal(out[len(out)-1].decide, s.decide) {
			continue
		}
		out = append(out, s)
	}
	return out
}

// search finds the segment of the number that is loaded.
func search(segments []segment) []unix.SockFilter {
	if len(segments) == 1 {
		return segments[0].decide
	}
	half := len(segments) / 2
	lower, upper := search(segments[:half]), search(segments[half:])
	code := []unix.SockFilter{Jump(unix.BPF_JGE, segments[half].from, 0, 1), skip(len(lower))}
	return slices.Concat(code, lower, upper)
}

// Install confines this thread and what it starts or becomes; with Notify among the
// actions it returns the listener, else -1. flags are the kernel's.
func Install(code []unix.SockFilter, flags uintptr) (int, error) {
	if len(code) > 4096 {
		return -1, fmt.Errorf("the filter has %d instructions", len(code))
	}
	prog := unix.SockFprog{Len: uint16(len(code)), Filter: &code[0]} //nolint:gosec // Checked above.
	for {
		fd, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, flags, uintptr(unsafe.Pointer(&prog))) //nolint:gosec // The kernel's structure.
		if errno == 0 {
			if flags&unix.SECCOMP_FILTER_FLAG_NEW_LISTENER != 0 {
				return int(fd), nil
			}
			return -1, nil
		}
		if errors.Is(errno, unix.EINVAL) && flags&unix.SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV != 0 {
			flags &^= unix.SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV
			continue
		}
		return -1, errno
	}
}
