package app

import (
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

// memoryLimit is the memory that the server may use.
func memoryLimit() resource.Bytes { return machine.MemoryLimit("/") }
