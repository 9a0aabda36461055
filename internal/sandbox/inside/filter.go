package inside

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The filter is a list of the system calls that ordinary programs make: Python, NumPy and
// PyTorch, MPI, Java, Node and Go. Every other call, also one that a later
// kernel brings, answers ENOSYS, as on a kernel that lacks it, so that programs
// use what they used before. Calls that are known ways out of sandboxes answer
// EPERM. Opens and connects go to the observer. The walls are namespaces and
// Landlock; this makes the kernel's surface smaller.

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

// CLONE3 and OPENAT2 are among what answers ENOSYS, so that programs use the older
// call, whose arguments a filter can see.

// allowed are permitted whatever their arguments, on every architecture.
var allowed = []uint32{
	// Files.
	unix.SYS_READ, unix.SYS_WRITE, unix.SYS_READV, unix.SYS_WRITEV, unix.SYS_PREAD64, unix.SYS_PWRITE64, unix.SYS_PREADV, unix.SYS_PWRITEV,
	unix.SYS_PREADV2, unix.SYS_PWRITEV2, unix.SYS_CLOSE, unix.SYS_CLOSE_RANGE, unix.SYS_LSEEK, unix.SYS_DUP, unix.SYS_DUP3, unix.SYS_FCNTL, unix.SYS_FLOCK,
	unix.SYS_FSTAT, unix.SYS_NEWFSTATAT, unix.SYS_STATX, unix.SYS_STATFS, unix.SYS_FSTATFS, unix.SYS_FACCESSAT, unix.SYS_FACCESSAT2, unix.SYS_READLINKAT,
	unix.SYS_GETDENTS64, unix.SYS_GETCWD, unix.SYS_CHDIR, unix.SYS_FCHDIR, unix.SYS_UMASK, unix.SYS_MKDIRAT, unix.SYS_UNLINKAT, unix.SYS_LINKAT, unix.SYS_SYMLINKAT,
	unix.SYS_RENAMEAT, unix.SYS_RENAMEAT2, unix.SYS_TRUNCATE, unix.SYS_FTRUNCATE, unix.SYS_FALLOCATE, unix.SYS_FADVISE64, unix.SYS_READAHEAD,
	unix.SYS_FSYNC, unix.SYS_FDATASYNC, unix.SYS_SYNC, unix.SYS_SYNCFS, unix.SYS_SYNC_FILE_RANGE, unix.SYS_COPY_FILE_RANGE, unix.SYS_SENDFILE,
	unix.SYS_SPLICE, unix.SYS_TEE, unix.SYS_VMSPLICE, unix.SYS_UTIMENSAT, unix.SYS_FCHOWN, unix.SYS_FCHOWNAT, unix.SYS_CACHESTAT,
	unix.SYS_GETXATTR, unix.SYS_LGETXATTR, unix.SYS_FGETXATTR, unix.SYS_LISTXATTR, unix.SYS_LLISTXATTR, unix.SYS_FLISTXATTR,
	unix.SYS_SETXATTR, unix.SYS_LSETXATTR, unix.SYS_FSETXATTR, unix.SYS_REMOVEXATTR, unix.SYS_LREMOVEXATTR, unix.SYS_FREMOVEXATTR,
	unix.SYS_INOTIFY_INIT1, unix.SYS_INOTIFY_ADD_WATCH, unix.SYS_INOTIFY_RM_WATCH,
	unix.SYS_IO_SETUP, unix.SYS_IO_DESTROY, unix.SYS_IO_SUBMIT, unix.SYS_IO_CANCEL, unix.SYS_IO_GETEVENTS, unix.SYS_IO_PGETEVENTS,
	// Waiting.
	unix.SYS_EPOLL_CREATE1, unix.SYS_EPOLL_CTL, unix.SYS_EPOLL_PWAIT, unix.SYS_EPOLL_PWAIT2, unix.SYS_PPOLL, unix.SYS_PSELECT6, unix.SYS_PIPE2,
	unix.SYS_EVENTFD2, unix.SYS_SIGNALFD4, unix.SYS_TIMERFD_CREATE, unix.SYS_TIMERFD_SETTIME, unix.SYS_TIMERFD_GETTIME,
	unix.SYS_FUTEX, unix.SYS_FUTEX_WAITV, unix.SYS_FUTEX_WAKE, unix.SYS_FUTEX_WAIT, unix.SYS_FUTEX_REQUEUE, unix.SYS_SET_ROBUST_LIST, unix.SYS_GET_ROBUST_LIST, unix.SYS_RSEQ, unix.SYS_MEMBARRIER,
	// Memory.
	unix.SYS_BRK, unix.SYS_MMAP, unix.SYS_MUNMAP, unix.SYS_MREMAP, unix.SYS_MPROTECT, unix.SYS_MADVISE, unix.SYS_MSYNC, unix.SYS_MINCORE, unix.SYS_MSEAL, unix.SYS_REMAP_FILE_PAGES,
	unix.SYS_MLOCK, unix.SYS_MLOCK2, unix.SYS_MUNLOCK, unix.SYS_MLOCKALL, unix.SYS_MUNLOCKALL, unix.SYS_MEMFD_CREATE, unix.SYS_MAP_SHADOW_STACK,
	unix.SYS_PKEY_ALLOC, unix.SYS_PKEY_FREE, unix.SYS_PKEY_MPROTECT, unix.SYS_GET_MEMPOLICY, unix.SYS_SET_MEMPOLICY, unix.SYS_MBIND, unix.SYS_SET_MEMPOLICY_HOME_NODE, unix.SYS_MOVE_PAGES,
	// Processes and signals.
	unix.SYS_EXECVE, unix.SYS_EXECVEAT, unix.SYS_EXIT, unix.SYS_EXIT_GROUP, unix.SYS_WAIT4, unix.SYS_WAITID, unix.SYS_SET_TID_ADDRESS, unix.SYS_RESTART_SYSCALL,
	unix.SYS_KILL, unix.SYS_TKILL, unix.SYS_TGKILL, unix.SYS_RT_SIGACTION, unix.SYS_RT_SIGPROCMASK, unix.SYS_RT_SIGRETURN, unix.SYS_RT_SIGPENDING, unix.SYS_RT_SIGSUSPEND,
	unix.SYS_RT_SIGTIMEDWAIT, unix.SYS_RT_SIGQUEUEINFO, unix.SYS_RT_TGSIGQUEUEINFO, unix.SYS_SIGALTSTACK, unix.SYS_PIDFD_OPEN, unix.SYS_PIDFD_SEND_SIGNAL,
	unix.SYS_GETPID, unix.SYS_GETPPID, unix.SYS_GETTID, unix.SYS_GETPGID, unix.SYS_SETPGID, unix.SYS_GETSID, unix.SYS_SETSID, unix.SYS_GETPRIORITY, unix.SYS_SETPRIORITY,
	unix.SYS_IOPRIO_GET, unix.SYS_IOPRIO_SET, unix.SYS_PRCTL, unix.SYS_PRLIMIT64, unix.SYS_GETRLIMIT, unix.SYS_SETRLIMIT, unix.SYS_GETRUSAGE, unix.SYS_TIMES,
	unix.SYS_SCHED_YIELD, unix.SYS_SCHED_GETAFFINITY, unix.SYS_SCHED_SETAFFINITY, unix.SYS_SCHED_GETPARAM, unix.SYS_SCHED_SETPARAM, unix.SYS_SCHED_GETSCHEDULER, unix.SYS_SCHED_SETSCHEDULER,
	unix.SYS_SCHED_GETATTR, unix.SYS_SCHED_SETATTR, unix.SYS_SCHED_GET_PRIORITY_MAX, unix.SYS_SCHED_GET_PRIORITY_MIN, unix.SYS_SCHED_RR_GET_INTERVAL, unix.SYS_GETCPU,
	// Users: without a right none of these gains one.
	unix.SYS_GETUID, unix.SYS_GETEUID, unix.SYS_GETGID, unix.SYS_GETEGID, unix.SYS_GETRESUID, unix.SYS_GETRESGID, unix.SYS_GETGROUPS, unix.SYS_SETGROUPS,
	unix.SYS_SETUID, unix.SYS_SETGID, unix.SYS_SETREUID, unix.SYS_SETREGID, unix.SYS_SETRESUID, unix.SYS_SETRESGID, unix.SYS_SETFSUID, unix.SYS_SETFSGID, unix.SYS_CAPGET, unix.SYS_CAPSET,
	// Time and the machine.
	unix.SYS_CLOCK_GETTIME, unix.SYS_CLOCK_GETRES, unix.SYS_CLOCK_NANOSLEEP, unix.SYS_GETTIMEOFDAY, unix.SYS_NANOSLEEP, unix.SYS_GETITIMER, unix.SYS_SETITIMER,
	unix.SYS_TIMER_CREATE, unix.SYS_TIMER_SETTIME, unix.SYS_TIMER_GETTIME, unix.SYS_TIMER_GETOVERRUN, unix.SYS_TIMER_DELETE, unix.SYS_GETRANDOM, unix.SYS_UNAME, unix.SYS_SYSINFO,
	// Sockets; which families, and what connects where, is below.
	unix.SYS_SOCKETPAIR, unix.SYS_BIND, unix.SYS_LISTEN, unix.SYS_ACCEPT, unix.SYS_ACCEPT4, unix.SYS_GETSOCKNAME, unix.SYS_GETPEERNAME, unix.SYS_GETSOCKOPT, unix.SYS_SETSOCKOPT,
	unix.SYS_SENDMSG, unix.SYS_SENDMMSG, unix.SYS_RECVFROM, unix.SYS_RECVMSG, unix.SYS_RECVMMSG, unix.SYS_SHUTDOWN,
	// System V and POSIX communication, in an own namespace: MPI and data loaders.
	unix.SYS_SHMGET, unix.SYS_SHMAT, unix.SYS_SHMDT, unix.SYS_SHMCTL, unix.SYS_SEMGET, unix.SYS_SEMOP, unix.SYS_SEMTIMEDOP, unix.SYS_SEMCTL, unix.SYS_MSGGET, unix.SYS_MSGSND, unix.SYS_MSGRCV, unix.SYS_MSGCTL,
	unix.SYS_MQ_OPEN, unix.SYS_MQ_UNLINK, unix.SYS_MQ_TIMEDSEND, unix.SYS_MQ_TIMEDRECEIVE, unix.SYS_MQ_NOTIFY, unix.SYS_MQ_GETSETATTR,
	// A program may confine itself further.
	unix.SYS_SECCOMP, unix.SYS_LANDLOCK_CREATE_RULESET, unix.SYS_LANDLOCK_ADD_RULE, unix.SYS_LANDLOCK_RESTRICT_SELF,
}

// block decides about one system call by its arguments, and ends with a return.
type block []unix.SockFilter

func load(off uint32) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: off}
}

func jump(test uint16, k uint32, yes, no uint8) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_JMP | test | unix.BPF_K, Jt: yes, Jf: no, K: k}
}

// skip leaves out so many instructions.
func skip(n int) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JA, K: uint32(n)} //nolint:gosec // A program is short.
}

func ret(action uint32) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: action}
}

func arg(i uint32) unix.SockFilter { return load(offArgs + 8*i) }

// without refuses the call when the argument has one of the bits.
func without(i, bits uint32) block {
	return block{arg(i), jump(unix.BPF_JSET, bits, 0, 1), ret(eperm), ret(allow)}
}

// creating refuses set-id bits in a mode, which counts only when the flags
// create a file.
func creating(flags, mode, otherwise uint32) block {
	return block{
		arg(flags), jump(unix.BPF_JSET, createBits, 0, 3),
		arg(mode), jump(unix.BPF_JSET, setIDBits, 0, 1), ret(eperm),
		ret(otherwise),
	}
}

// oneOf permits the call when the argument is one of the values.
func oneOf(i uint32, values ...uint32) block {
	b := block{arg(i)}
	for _, v := range values {
		b = append(b, jump(unix.BPF_JEQ, v, 0, 1), ret(allow))
	}
	return append(b, ret(eperm))
}

// decisions says what becomes of each system call; what it does not name answers ENOSYS.
// What lets names is permitted all the same.
func decisions(observe bool, lets ...uint32) map[uint32]block {
	seen := uint32(allow)
	if observe {
		seen = notify
	}
	d := map[uint32]block{}
	for _, nr := range refused {
		d[nr] = block{ret(eperm)}
	}
	for _, nr := range slices.Concat(allowed, allowedHere, lets) {
		d[nr] = block{ret(allow)}
	}
	architecture(d, seen)
	d[unix.SYS_CLONE] = without(0, namespaces)
	d[unix.SYS_UNSHARE] = without(0, namespaces)
	// Files with set-id bits would be a danger outside, where mounts may be
	// owned by the server.
	d[unix.SYS_FCHMOD] = without(1, setIDBits)
	d[unix.SYS_FCHMODAT] = without(2, setIDBits)
	d[unix.SYS_FCHMODAT2] = without(2, setIDBits)
	d[unix.SYS_MKNODAT] = without(2, setIDBits)
	d[unix.SYS_OPENAT] = creating(2, 3, seen)
	// The personalities of Linux, without randomised addresses too (sanitizers), and the question.
	d[unix.SYS_PERSONALITY] = oneOf(0, 0, 0x8, 0x20000, 0x20008, 0x40000, 0xffffffff)
	// Typing into a terminal that we might share.
	d[unix.SYS_IOCTL] = block{arg(1), jump(unix.BPF_JEQ, unix.TIOCSTI, 1, 0), jump(unix.BPF_JEQ, unix.TIOCLINUX, 0, 1), ret(eperm), ret(allow)}
	// Families of sockets that namespaces do not separate (vsock reaches the
	// hypervisor) or that only widen the kernel's surface.
	d[unix.SYS_SOCKET] = block{
		arg(0),
		jump(unix.BPF_JEQ, unix.AF_UNIX, 3, 0), jump(unix.BPF_JEQ, unix.AF_INET, 2, 0), jump(unix.BPF_JEQ, unix.AF_INET6, 1, 0),
		jump(unix.BPF_JEQ, unix.AF_NETLINK, 0, 1), ret(allow), ret(family),
	}
	d[unix.SYS_CONNECT], d[unix.SYS_SENDTO] = block{ret(seen)}, block{ret(allow)}
	if observe {
		// An address is given when its length is not 0.
		d[unix.SYS_SENDTO] = block{arg(5), jump(unix.BPF_JEQ, 0, 0, 1), ret(allow), ret(notify)}
	}
	return d
}

// segment is a range of system calls, up to the next one, about which the same is decided.
type segment struct {
	from   uint32
	decide block
}

// filter is the program: a search among ranges of numbers, so that each call costs a few
// instructions.
func filter(observe bool, lets ...uint32) []unix.SockFilter {
	d := decisions(observe, lets...)
	none := block{ret(enosys)}
	segments := []segment{{0, none}}
	add := func(from uint32, b block) {
		if last := &segments[len(segments)-1]; last.from == from {
			last.decide = b
		} else if !slices.Equal(last.decide, b) {
			segments = append(segments, segment{from, b})
		}
	}
	for _, nr := range slices.Sorted(maps.Keys(d)) {
		add(nr, d[nr])
		segments = append(segments, segment{nr + 1, none}) // replaced by the next one's, if that follows
	}
	segments = joined(segments)
	code := []unix.SockFilter{load(offArch), jump(unix.BPF_JEQ, auditArch, 1, 0), ret(enosys), load(offNr)} // no second ABI, whose numbers differ
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
	code := []unix.SockFilter{jump(unix.BPF_JGE, segments[half].from, 0, 1), skip(len(lower))}
	return slices.Concat(code, lower, upper)
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
