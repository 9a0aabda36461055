package machine

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
)

// The measurement: a triad like STREAM's (a = b + s·c) by every thread at once
// over arrays beyond the caches; the best of the rounds that fit in the time.
const (
	triadLength = 4 << 20 // numbers in each of three arrays, of each thread: 96 MiB
	triadMost   = 16      // threads; more do not make memory faster
	triadTime   = 300 * time.Millisecond
)

// Bandwidth measures how many bytes a second the machine's memory moves. It
// takes about a third of a second and at most 1.5 GiB; less memory where that
// much is not free.
func Bandwidth(ctx context.Context) float64 {
	threads, length := min(runtime.NumCPU(), triadMost), triadLength
	if available := memAvailable(); available > 0 {
		for int64(threads)*int64(length)*24 > available/4 && length > 1<<16 {
			length /= 2
		}
	}
	type arrays struct{ a, b, c []float64 }
	all := make([]arrays, threads)
	var ready sync.WaitGroup
	for i := range all {
		ready.Go(func() { // the thread that writes first has it near
			x := arrays{make([]float64, length), make([]float64, length), make([]float64, length)}
			for k := range x.b {
				x.a[k], x.b[k], x.c[k] = 0, 1, 2
			}
			all[i] = x
		})
	}
	ready.Wait()
	best, end := 0.0, time.Now().Add(triadTime)
	for time.Now().Before(end) && ctx.Err() == nil {
		began := time.Now()
		var round sync.WaitGroup
		for i := range all {
			round.Go(func() { triad(all[i].a, all[i].b, all[i].c, 3) })
		}
		round.Wait()
		best = max(best, float64(threads)*float64(length)*24/time.Since(began).Seconds())
	}
	return best
}

func triad(a, b, c []float64, s float64) {
	b, c = b[:len(a)], c[:len(a)]
	for i := range a {
		a[i] = b[i] + s*c[i]
	}
}

func memAvailable() int64 { return meminfo("/proc/meminfo", "MemAvailable:") }

// measured is what a measurement left for the next start.
type measured struct {
	CPU       string  `json:"cpu"`
	Threads   int     `json:"threads"`
	Bandwidth float64 `json:"memory_bandwidth"`
}

// Measured fills in the bandwidth: what an earlier measurement of this machine
// left in the file, else, when told to, measured now and left there.
func (f *Facts) Measured(ctx context.Context, file string, now bool) error {
	var m measured
	if b, err := os.ReadFile(file); err == nil && json.Unmarshal(b, &m) == nil && m.CPU == f.CPU.Model && m.Threads == f.CPU.Threads && m.Bandwidth > 0 {
		f.Bandwidth = m.Bandwidth
		return nil
	}
	if !now {
		return nil
	}
	f.Bandwidth = Bandwidth(ctx)
	b, err := json.Marshal(measured{f.CPU.Model, f.CPU.Threads, f.Bandwidth})
	if err != nil {
		return err
	}
	temporary := filepath.Join(filepath.Dir(file), "."+filepath.Base(file))
	if err := os.WriteFile(temporary, b, 0o600); err != nil {
		return fault.Wrap(err, "keeping the measurement")
	}
	return fault.Wrap(os.Rename(temporary, file), "keeping the measurement")
}
