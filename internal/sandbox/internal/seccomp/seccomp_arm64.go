package seccomp

import "golang.org/x/sys/unix"

// AuditArch is how the kernel names this architecture's calls.
const AuditArch = unix.AUDIT_ARCH_AARCH64

// kernelHere is the part of Kernel that other architectures do not have.
var kernelHere []uint32
