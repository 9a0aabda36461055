package sandbox_test

import (
	"flag"
	"testing"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/sandbox"
	"github.com/falaj-ml/falaj/internal/sandbox/sandboxtest"
)

var inner = flag.Bool("inner", false, "this is the test that runs inside a sandbox")

// TestForbiddenInner is TestForbidden's half inside.
func TestForbiddenInner(t *testing.T) {
	if !*inner {
		t.Skip("TestForbidden runs it")
	}
	worker := sandboxtest.Worker(t)
	err := sandbox.Check(t.Context(), worker, sandbox.Sandbox)
	if !fault.Is(err, fault.Unsupported) || fault.HintOf(err) == "" {
		t.Fatalf("not refused: %v", err)
	}
	report := sandbox.Probe(t.Context(), worker)
	if report.Level != sandbox.Process || len(report.Missing) == 0 {
		t.Fatalf("%+v", report)
	}
	t.Logf("refused as it should be: %v; %s; %s", err, fault.HintOf(err), report)
}
