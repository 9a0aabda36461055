package inside

import "golang.org/x/sys/unix"

// allowedHere are permitted beside allowed: what newer architectures have in another form only.
var allowedHere = []uint32{
	unix.SYS_STAT, unix.SYS_LSTAT, unix.SYS_ACCESS, unix.SYS_READLINK, unix.SYS_GETDENTS, unix.SYS_MKDIR, unix.SYS_RMDIR, unix.SYS_RENAME, unix.SYS_LINK, unix.SYS_UNLINK, unix.SYS_SYMLINK,
	unix.SYS_CHOWN, unix.SYS_LCHOWN, unix.SYS_UTIME, unix.SYS_UTIMES, unix.SYS_FUTIMESAT, unix.SYS_DUP2, unix.SYS_PIPE,
	unix.SYS_POLL, unix.SYS_SELECT, unix.SYS_EPOLL_CREATE, unix.SYS_EPOLL_WAIT, unix.SYS_EVENTFD, unix.SYS_SIGNALFD, unix.SYS_INOTIFY_INIT,
	unix.SYS_FORK, unix.SYS_VFORK, unix.SYS_GETPGRP, unix.SYS_PAUSE, unix.SYS_ALARM, unix.SYS_TIME, unix.SYS_ARCH_PRCTL,
}

// architecture decides about the calls that other architectures do not have. Numbers of the
// x32 ABI are beyond all that are named.
func architecture(d map[uint32]block, seen uint32) {
	d[unix.SYS_OPEN] = creating(1, 2, seen)
	d[unix.SYS_CREAT] = without(1, setIDBits)
	d[unix.SYS_CHMOD] = without(1, setIDBits)
	d[unix.SYS_MKNOD] = without(1, setIDBits)
	for _, nr := range []uint32{unix.SYS_MODIFY_LDT, unix.SYS_USELIB, unix.SYS_USTAT, unix.SYS_SYSFS, unix.SYS__SYSCTL, unix.SYS_CREATE_MODULE, unix.SYS_GET_KERNEL_SYMS, unix.SYS_QUERY_MODULE} {
		d[nr] = block{ret(eperm)}
	}
}
