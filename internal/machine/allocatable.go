package machine

import (
	"os"
	"runtime"
	"strconv"
	"strings"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/resource"
)

// Allocatable is what this machine has for workloads: the processors that this
// process may run on, the memory, or the memory limit of the process's own
// cgroup where that is smaller, and the accelerators that its drivers list.
func (f *Facts) Allocatable() (resource.Amount, error) {
	// Of cgroup v2; absent in the root group and where there is no limit.
	limit, err := os.ReadFile("/sys/fs/cgroup/memory.max")
	if err != nil {
		limit = nil
	}
	return f.allocatable(runtime.NumCPU(), string(limit))
}

func (f *Facts) allocatable(cpus int, limit string) (resource.Amount, error) {
	a := f.Amount()
	if a.Memory <= 0 {
		return a, fault.New(fault.Internal, "/proc/meminfo has no readable MemTotal")
	}
	a.CPU = resource.Cores(int64(cpus))
	a.Memory = a.Memory / resource.MiB * resource.MiB // so that it reads well
	if n, err := strconv.ParseInt(strings.TrimSpace(limit), 10, 64); err == nil && n > 0 {
		a.Memory = min(a.Memory, resource.Bytes(n))
	}
	return a, nil
}
