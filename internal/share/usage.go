package share

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"
)

// Usage is how much of a limit is used, summed over all that have its name.
type Usage struct {
	Name             string
	Slots            int64 // 0 where the limit is a rate
	Held, Waiting    int64
	Granted, Refused int64 // since the start
}

type usage struct{ slots, held, waiting, granted, refused atomic.Int64 }

var (
	usageMu sync.Mutex
	usages  = map[string]*usage{} // names are constants of the code: they are few
)

func usageOf(name string) *usage {
	usageMu.Lock()
	defer usageMu.Unlock()
	u := usages[name]
	if u == nil {
		u = &usage{}
		usages[name] = u
	}
	return u
}

// Measured lists the limits of this process by name.
func Measured() []Usage {
	usageMu.Lock()
	defer usageMu.Unlock()
	out := make([]Usage, 0, len(usages))
	for _, name := range slices.Sorted(maps.Keys(usages)) {
		u := usages[name]
		out = append(out, Usage{name, u.slots.Load(), u.held.Load(), u.waiting.Load(), u.granted.Load(), u.refused.Load()})
	}
	return out
}
