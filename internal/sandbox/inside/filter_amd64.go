package inside

import "golang.org/x/sys/unix"

const auditArch = unix.AUDIT_ARCH_X86_64

// architecture handles the calls that other architectures do not have.
func (a *assembler) architecture(seen uint32) {
	const x32 = 0x40000000
	a.add(jump(unix.BPF_JGE, x32, 0, 1), ret(enosys))
	a.on(unix.SYS_OPEN, creating(1, 2, seen)...)
	a.on(unix.SYS_CREAT, without(1, setIDBits)...)
	a.on(unix.SYS_CHMOD, without(1, setIDBits)...)
	a.on(unix.SYS_MKNOD, without(1, setIDBits)...)
	for _, nr := range []uint32{unix.SYS_IOPL, unix.SYS_IOPERM, unix.SYS_MODIFY_LDT, unix.SYS_USELIB, unix.SYS_USTAT, unix.SYS_SYSFS, unix.SYS__SYSCTL, unix.SYS_CREATE_MODULE, unix.SYS_GET_KERNEL_SYMS, unix.SYS_QUERY_MODULE} {
		a.on(nr, ret(eperm))
	}
}
