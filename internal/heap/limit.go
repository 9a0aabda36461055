package heap

import (
	"os"
	"runtime/debug"

	"github.com/falaj-ml/falaj/internal/resource"
)

// Limit has the heap collected more often when it comes near the memory that the
// server may use, a quarter of which is for what is not Go's. GOMEMLIMIT in the environment
// is another limit, which then stays. It says how to end.
func Limit(memory resource.Bytes) (end func()) {
	if os.Getenv("GOMEMLIMIT") != "" || memory == 0 { //nolint:forbidigo // It is the Go runtime's own setting.
		return func() {}
	}
	before := debug.SetMemoryLimit(int64(memory - memory/4))
	return func() { debug.SetMemoryLimit(before) }
}
