package child

import (
	"context"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/falaj-ml/falaj/bench/harness"
	"github.com/falaj-ml/falaj/internal/serving/runtime"
	"github.com/falaj-ml/falaj/internal/serving/runtime/onnx"
)

// BenchmarkBorder is what a process of its own costs a run: the same models here and
// there, so many callers at a time. cpu-µs is of both processes together.
func BenchmarkBorder(b *testing.B) {
	library := library(b)
	const mlp = 128
	models := []struct {
		name    string
		file    []byte
		columns int
	}{
		{"linear", harness.Logistic(13, "x", "y"), 13},
		{"forest", harness.Forest(100, 5, 4), 4},
		{"mlp", harness.MLP(mlp, 512, 512, 256, 10), mlp},
		{"large", harness.Negative(1 << 18), 1 << 18},
	}
	for _, m := range models {
		for _, at := range []int{1, 8, 64} {
			for _, side := range []string{"here", "pipe", "lane"} {
				b.Run(fmt.Sprintf("%s/%d/%s", m.name, at, side), func(b *testing.B) {
					l := &launcher{what: library}
					var rt runtime.Runtime = onnx.New(library)
					pid := func() int { return 0 }
					if side != "here" {
						apart := New(l, nil)
						apart.piped = side == "pipe"
						defer apart.Close()
						rt = apart
						pid = func() int { cmd, _ := l.newest(); return cmd.Process.Pid }
					}
					s, err := rt.Load(b.Context(), m.file, runtime.Options{})
					if err != nil {
						b.Fatal(err)
					}
					defer s.Close()
					x := make([]float32, m.columns)
					for i := range x {
						x[i] = float32(i%7) / 7
					}
					in := []runtime.Tensor{{Name: "x", Datatype: runtime.FP32, Shape: []int64{1, int64(m.columns)}, Data: x}}
					measure(b, at, pid, func(ctx context.Context) error {
						_, err := s.Infer(ctx, in, []string{"y"})
						return err
					})
				})
			}
		}
	}
}

// measure has so many callers ask without pause.
func measure(b *testing.B, at int, pid func() int, ask func(context.Context) error) {
	b.Helper()
	for range 200 { // caches and pools warm up
		if err := ask(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
	took := make([]time.Duration, b.N)
	var next atomic.Int64
	both := func() time.Duration {
		used := cpu(b, os.Getpid())
		if p := pid(); p != 0 {
			used += cpu(b, p)
		}
		return used
	}
	before := both()
	b.ResetTimer()
	var all sync.WaitGroup
	for range at {
		all.Go(func() {
			for i := next.Add(1) - 1; i < int64(b.N); i = next.Add(1) - 1 {
				began := time.Now()
				if err := ask(b.Context()); err != nil {
					b.Error(err)
					return
				}
				took[i] = time.Since(began)
			}
		})
	}
	all.Wait()
	b.StopTimer()
	used := both() - before
	slices.Sort(took)
	micro := func(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }
	b.ReportMetric(micro(used)/float64(b.N), "cpu-µs/op")
	b.ReportMetric(micro(took[b.N/2]), "p50-µs")
	b.ReportMetric(micro(took[b.N*99/100]), "p99-µs")
}

// cpu is the CPU time of a process.
func cpu(b *testing.B, pid int) time.Duration {
	b.Helper()
	var t unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|2), &t); err != nil {
		b.Fatal(err)
	}
	return time.Duration(t.Nano())
}
