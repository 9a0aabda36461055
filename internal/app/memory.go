package app

import (
	"os"
	"runtime/debug"

	"github.com/falaj-ml/falaj/internal/config"
	"github.com/falaj-ml/falaj/internal/machine"
	"github.com/falaj-ml/falaj/internal/membudget"
	"github.com/falaj-ml/falaj/internal/resource"
)

// The default of limits.requests, of the memory that the server may use.
const (
	requestShare = 16
	leastBudget  = 256 * resource.MiB
	mostBudget   = 768 * resource.MiB
)

// requestBudget is the memory that requests share.
func (a *App) requestBudget(memory resource.Bytes) *membudget.Budget {
	if set := a.cfg.Limits.Requests; set != "" {
		return membudget.New(config.Bytes(set))
	}
	return membudget.New(int64(min(mostBudget, max(leastBudget, memory/requestShare))))
}

// limitMemory has the heap collected more often when it comes near the memory that the
// server may use, a quarter of which is for what is not Go's. GOMEMLIMIT in the environment
// is another limit, which then stays. It says how to end.
func limitMemory(memory resource.Bytes) (end func()) {
	if os.Getenv("GOMEMLIMIT") != "" || memory == 0 { //nolint:forbidigo // It is the Go runtime's own setting.
		return func() {}
	}
	before := debug.SetMemoryLimit(int64(memory - memory/4))
	return func() { debug.SetMemoryLimit(before) }
}

// memoryLimit is the memory that the server may use.
func memoryLimit() resource.Bytes { return machine.MemoryLimit("/") }
