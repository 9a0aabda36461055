package local_test

import (
	"syscall"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/compute/engine"
	"github.com/falaj-ml/falaj/internal/compute/engine/local"
	"github.com/falaj-ml/falaj/internal/id"
	"github.com/falaj-ml/falaj/internal/resource"
	"github.com/falaj-ml/falaj/internal/sandbox"
	"github.com/falaj-ml/falaj/internal/sandbox/sandboxtest"
)

// BenchmarkNoOp runs a program that does nothing in a sandbox of its own, one
// after the other. What all of its processes took, and we for them, is the
// measure on a machine that others share: cpu-ms/op.
func BenchmarkNoOp(b *testing.B) {
	d, err := local.New(local.Config{Dir: b.TempDir(), Worker: sandboxtest.Worker(b), Level: sandbox.Sandbox})
	if err != nil {
		b.Fatal(err)
	}
	defer d.Close()
	work := b.TempDir()
	before := used(b)
	for b.Loop() {
		h, err := d.Start(b.Context(), engine.Spec{
			ID: id.New("att"), Command: []string{"/bin/true"}, Dir: work, Mounts: []engine.Mount{{Path: work, Writable: true}},
			Resources: resource.Amount{CPU: resource.Cores(1), Memory: 16 * resource.MiB},
		})
		if err != nil {
			b.Fatal(err)
		}
		if st, err := d.Wait(b.Context(), h); err != nil || st.Reason != engine.Exited || st.ExitCode != 0 {
			b.Fatalf("%+v, %v", st, err)
		}
		if err := d.Forget(b.Context(), h); err != nil {
			b.Fatal(err)
		}
	}
	if err := d.Close(); err != nil { // what a shim and its children took is known when it has ended
		b.Fatal(err)
	}
	b.ReportMetric(float64((used(b)-before).Microseconds())/1000/float64(b.N), "cpu-ms/op")
}

// used is what we and our children that have ended took of the processors.
func used(b *testing.B) (sum time.Duration) {
	b.Helper()
	for _, who := range []int{syscall.RUSAGE_SELF, syscall.RUSAGE_CHILDREN} {
		var r syscall.Rusage
		if err := syscall.Getrusage(who, &r); err != nil {
			b.Fatal(err)
		}
		sum += time.Duration(r.Utime.Nano() + r.Stime.Nano())
	}
	return sum
}
