package live

import (
	"os"
	"os/exec"
	"testing"
)

// Python is the interpreter of the distribution, which brings PyTorch.
const Python = "/usr/bin/python3.11"

// Torch skips where the machine has no PyTorch; with CI=true that is a failure.
func Torch(tb testing.TB) {
	tb.Helper()
	const absent = "import importlib.util, sys; sys.exit([m for m in ('torch', 'sklearn') if not importlib.util.find_spec(m)] or None)" // to import them takes seconds
	out, err := exec.CommandContext(tb.Context(), Python, "-c", absent).CombinedOutput()
	if err == nil {
		return
	}
	Absent(tb, "%s has no PyTorch and scikit-learn; run `make engines`: %v\n%s", Python, err, out)
}

// Absent ends a test for which something of the machine is missing: it is skipped, and
// fails where nothing may be.
func Absent(tb testing.TB, format string, args ...any) {
	tb.Helper()
	if os.Getenv("CI") == "true" {
		tb.Fatalf(format, args...)
	}
	tb.Skipf(format, args...)
}
