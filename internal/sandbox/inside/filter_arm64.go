package inside

import "golang.org/x/sys/unix"

const auditArch = unix.AUDIT_ARCH_AARCH64

// architecture handles the calls that other architectures do not have.
func (a *assembler) architecture(uint32) {}
