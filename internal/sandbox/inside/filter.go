package inside

import (
	"errors"
	"fmt"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The filter refuses system calls that have no use in a program that computes
// and have been ways out of sandboxes, and hands opens and connects to the
// observer. It is a list of what is refused, not of what is allowed: the walls
// are namespaces and Landlock; this makes the kernel's surface smaller.

// Offsets in struct seccomp_data. Arguments are 64 bits, low half first on the
// architectures that we build for.
const (
	offNr   = 0
	offArch = 4
	offArgs = 16
)

const (
	allow  = unix.SECCOMP_RET_ALLOW
	notify = unix.SECCOMP_RET_USER_NOTIF
	eperm  = unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)
	enosys = unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)
	family = unix.SECCOMP_RET_ERRNO | uint32(unix.EAFNOSUPPORT)
)

const (
	setIDBits  = unix.S_ISUID | unix.S_ISGID
	createBits = unix.O_CREAT | 0x400000 // and __O_TMPFILE
	namespaces = unix.CLONE_NEWNS | unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS | unix.CLONE_NEWCGROUP | unix.CLONE_NEWTIME
)

// refused answer EPERM.
var refused = []uint32{
	// Mounts and roots.
	unix.SYS_MOUNT, unix.SYS_UMOUNT2, unix.SYS_PIVOT_ROOT, unix.SYS_CHROOT, unix.SYS_MOVE_MOUNT, unix.SYS_OPEN_TREE,
	unix.SYS_FSOPEN, unix.SYS_FSCONFIG, unix.SYS_FSMOUNT, unix.SYS_FSPICK, unix.SYS_MOUNT_SETATTR, unix.SYS_SWAPON, unix.SYS_SWAPOFF,
	// Other processes and namespaces.
	unix.SYS_PTRACE, unix.SYS_PROCESS_VM_READV, unix.SYS_PROCESS_VM_WRITEV, unix.SYS_PIDFD_GETFD, unix.SYS_KCMP, unix.SYS_SETNS, unix.SYS_PROCESS_MADVISE,
	// The kernel itself.
	unix.SYS_BPF, unix.SYS_PERF_EVENT_OPEN, unix.SYS_USERFAULTFD, unix.SYS_IO_URING_SETUP, unix.SYS_IO_URING_ENTER, unix.SYS_IO_URING_REGISTER,
	unix.SYS_KEXEC_LOAD, unix.SYS_KEXEC_FILE_LOAD, unix.SYS_INIT_MODULE, unix.SYS_FINIT_MODULE, unix.SYS_DELETE_MODULE,
	unix.SYS_REBOOT, unix.SYS_SYSLOG, unix.SYS_ACCT, unix.SYS_QUOTACTL, unix.SYS_QUOTACTL_FD, unix.SYS_LOOKUP_DCOOKIE,
	unix.SYS_SETTIMEOFDAY, unix.SYS_CLOCK_SETTIME, unix.SYS_CLOCK_ADJTIME, unix.SYS_ADJTIMEX, unix.SYS_VHANGUP,
	unix.SYS_SETHOSTNAME, unix.SYS_SETDOMAINNAME, unix.SYS_NFSSERVCTL,
	// Keys and files by handle.
	unix.SYS_ADD_KEY, unix.SYS_REQUEST_KEY, unix.SYS_KEYCTL, unix.SYS_NAME_TO_HANDLE_AT, unix.SYS_OPEN_BY_HANDLE_AT, unix.SYS_FANOTIFY_INIT,
}

// absent answer ENOSYS, so that programs use the older call, whose arguments a
// filter can see.
var absent = []uint32{unix.SYS_CLONE3, unix.SYS_OPENAT2}

// assembler builds a program of blocks; a block handles one system call and
// ends with a return.
type assembler struct{ code []unix.SockFilter }

func (a *assembler) add(f ...unix.SockFilter) { a.code = append(a.code, f...) }

func load(off uint32) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: off}
}

func jump(test uint16, k uint32, yes, no uint8) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_JMP | test | unix.BPF_K, Jt: yes, Jf: no, K: k}
}

func ret(action uint32) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: action}
}

func arg(i uint32) unix.SockFilter { return load(offArgs + 8*i) }

// on handles one system call with a block that ends with a return.
func (a *assembler) on(nr uint32, block ...unix.SockFilter) {
	a.add(jump(unix.BPF_JEQ, nr, 0, uint8(len(block)))) //nolint:gosec // Blocks are short.
	a.add(block...)
}

// without refuses the call when the argument has one of the bits.
func without(i, bits uint32) []unix.SockFilter {
	return []unix.SockFilter{arg(i), jump(unix.BPF_JSET, bits, 0, 1), ret(eperm), ret(allow)}
}

// creating refuses set-id bits in a mode, which counts only when the flags
// create a file.
func creating(flags, mode, otherwise uint32) []unix.SockFilter {
	return []unix.SockFilter{
		arg(flags), jump(unix.BPF_JSET, createBits, 0, 3),
		arg(mode), jump(unix.BPF_JSET, setIDBits, 0, 1), ret(eperm),
		ret(otherwise),
	}
}

// filter is the program. What lets names is not refused.
func filter(observe bool, lets ...uint32) []unix.SockFilter {
	seen := uint32(allow)
	if observe {
		seen = notify
	}
	a := &assembler{}
	a.add(load(offArch), jump(unix.BPF_JEQ, auditArch, 1, 0), ret(enosys)) // no second ABI, whose numbers differ
	a.add(load(offNr))
	a.architecture(seen)
	for _, nr := range refused {
		if !slices.Contains(lets, nr) {
			a.on(nr, ret(eperm))
		}
	}
	for _, nr := range absent {
		a.on(nr, ret(enosys))
	}
	a.on(unix.SYS_CLONE, without(0, namespaces)...)
	a.on(unix.SYS_UNSHARE, without(0, namespaces)...)
	// Files with set-id bits would be a danger outside, where mounts may be
	// owned by the server.
	a.on(unix.SYS_FCHMOD, without(1, setIDBits)...)
	a.on(unix.SYS_FCHMODAT, without(2, setIDBits)...)
	a.on(unix.SYS_FCHMODAT2, without(2, setIDBits)...)
	a.on(unix.SYS_MKNODAT, without(2, setIDBits)...)
	a.on(unix.SYS_OPENAT, creating(2, 3, seen)...)
	// Typing into a terminal that we might share.
	a.on(unix.SYS_IOCTL, arg(1), jump(unix.BPF_JEQ, unix.TIOCSTI, 1, 0), jump(unix.BPF_JEQ, unix.TIOCLINUX, 0, 1), ret(eperm), ret(allow))
	// Families of sockets that namespaces do not separate (vsock reaches the
	// hypervisor) or that only widen the kernel's surface.
	a.on(unix.SYS_SOCKET, arg(0),
		jump(unix.BPF_JEQ, unix.AF_UNIX, 3, 0), jump(unix.BPF_JEQ, unix.AF_INET, 2, 0), jump(unix.BPF_JEQ, unix.AF_INET6, 1, 0),
		jump(unix.BPF_JEQ, unix.AF_NETLINK, 0, 1), ret(allow), ret(family))
	if observe {
		a.on(unix.SYS_CONNECT, ret(notify))
		// An address is given when its length is not 0.
		a.on(unix.SYS_SENDTO, arg(5), jump(unix.BPF_JEQ, 0, 0, 1), ret(allow), ret(notify))
	}
	a.add(ret(allow))
	return a.code
}

// installFilter confines this thread; with observe it returns the listener,
// else -1.
func installFilter(observe bool, lets ...uint32) (int, error) {
	code := filter(observe, lets...)
	if len(code) > 4096 {
		return -1, fmt.Errorf("the filter has %d instructions", len(code))
	}
	prog := unix.SockFprog{Len: uint16(len(code)), Filter: &code[0]} //nolint:gosec // Checked above.
	flags := uintptr(0)
	if observe {
		// Signals that do not kill leave a call that the observer has received
		// alone; before Linux 5.19 they interrupt and restart it.
		flags = unix.SECCOMP_FILTER_FLAG_NEW_LISTENER | unix.SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV
	}
	for {
		fd, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, flags, uintptr(unsafe.Pointer(&prog))) //nolint:gosec // The kernel's structure.
		if errno == 0 {
			if observe {
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
