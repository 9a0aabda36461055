package compute

import (
	"os"
	"runtime"
	"strconv"
	"strings"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/resource"
)

// Machine is what this machine has for workloads: the processors that this
// process may run on, and the memory, or the memory limit of the process's own
// cgroup where that is smaller.
func Machine() (resource.Amount, error) {
	b, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return resource.Amount{}, fault.Wrap(err, "finding this machine's memory")
	}
	memory, err := memTotal(string(b))
	if err != nil {
		return resource.Amount{}, err
	}
	// Of cgroup v2; absent in the root group and where there is no limit.
	if limit, err := os.ReadFile("/sys/fs/cgroup/memory.max"); err == nil {
		if n, err := strconv.ParseInt(strings.TrimSpace(string(limit)), 10, 64); err == nil && n > 0 {
			memory = min(memory, resource.Bytes(n))
		}
	}
	return resource.Amount{CPU: resource.Cores(int64(runtime.NumCPU())), Memory: memory}, nil
}

// memTotal reads the line "MemTotal:  24576000 kB", cut to whole MiB so that
// the amount reads well.
func memTotal(meminfo string) (resource.Bytes, error) {
	for line := range strings.Lines(meminfo) {
		f := strings.Fields(line)
		if len(f) != 3 || f[0] != "MemTotal:" || f[2] != "kB" {
			continue
		}
		n, err := strconv.ParseInt(f[1], 10, 64)
		if err != nil || n <= 0 || n > 1<<50 {
			break
		}
		return resource.Bytes(n) * resource.KiB / resource.MiB * resource.MiB, nil
	}
	return 0, fault.New(fault.Internal, "/proc/meminfo has no readable MemTotal")
}
