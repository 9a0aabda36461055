package inside

import (
	"slices"

	"golang.org/x/sys/unix"

	"github.com/falaj-ml/falaj/internal/sandbox/internal/seccomp"
)

// The filter is a list of the system calls that ordinary programs make: Python, NumPy and
// PyTorch, MPI, Java, Node and Go. Every other call, also one that a later
// kernel brings, answers ENOSYS, as on a kernel that lacks it, so that programs
// use what they used before. Calls that are known ways out of sandboxes answer
// EPERM. Opens and connects go to the observer. The walls are namespaces and
// Landlock; this makes the kernel's surface smaller.

// Short for what is written most.
const (
	allow  = seccomp.Allow
	notify = seccomp.Notify
	eperm  = seccomp.EPERM
	enosys = seccomp.ENOSYS
	family = unix.SECCOMP_RET_ERRNO | uint32(unix.EAFNOSUPPORT)
)

type block = seccomp.Block

func jump(test uint16, k uint32, yes, no uint8) unix.SockFilter {
	return seccomp.Jump(test, k, yes, no)
}
func ret(action uint32) unix.SockFilter { return seccomp.Return(action) }
func arg(i uint32) unix.SockFilter      { return seccomp.Arg(i) }

const (
	setIDBits  = unix.S_ISUID | unix.S_ISGID
	createBits = unix.O_CREAT | 0x400000 // and __O_TMPFILE
	namespaces = unix.CLONE_NEWNS | unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS | unix.CLONE_NEWCGROUP | unix.CLONE_NEWTIME
)

// refused answer EPERM.
var refused = slices.Concat([]uint32{
	// Mounts and roots.
	unix.SYS_MOUNT, unix.SYS_UMOUNT2, unix.SYS_PIVOT_ROOT, unix.SYS_CHROOT, unix.SYS_MOVE_MOUNT, unix.SYS_OPEN_TREE,
	unix.SYS_FSOPEN, unix.SYS_FSCONFIG, unix.SYS_FSMOUNT, unix.SYS_FSPICK, unix.SYS_MOUNT_SETATTR,
	// Other processes and namespaces.
	unix.SYS_PTRACE, unix.SYS_PROCESS_VM_READV, unix.SYS_SETNS, unix.SYS_SETHOSTNAME, unix.SYS_NAME_TO_HANDLE_AT,
}, seccomp.Kernel)

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

// filter is the program.
func filter(observe bool, lets ...uint32) []unix.SockFilter {
	return seccomp.Program(decisions(observe, lets...), block{ret(enosys)})
}

// installFilter confines this thread; with observe it returns the listener,
// else -1.
func installFilter(observe bool, lets ...uint32) (int, error) {
	flags := uintptr(0)
	if observe {
		// Signals that do not kill leave a call that the observer has received
		// alone; before Linux 5.19 they interrupt and restart it.
		flags = unix.SECCOMP_FILTER_FLAG_NEW_LISTENER | unix.SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV
	}
	return seccomp.Install(filter(observe, lets...), flags)
}
