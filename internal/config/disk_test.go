package config

import (
	"math"
	"testing"

	"github.com/falaj-ml/falaj/internal/fault"
)

// TestSpaceFor: what a job leaves fits above half of the reserve.
func TestSpaceFor(t *testing.T) {
	t.Parallel()
	cfg := Config{Data: t.TempDir()}
	cfg.Limits.Free, cfg.Limits.FreeFiles = "1MiB", 10
	if err := cfg.SpaceFor(1<<10, 1); err != nil {
		t.Error(err)
	}
	if err := cfg.SpaceFor(math.MaxInt64/2, 1); !fault.NoSpace(err) || !fault.Is(err, fault.Exhausted) {
		t.Errorf("%v", err)
	}
}
