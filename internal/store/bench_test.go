package store

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"
)

// The cost of a commit beside that of a bare fsync of the same disk in the same
// run. Metrics: p50-µs, p99-µs per operation, and p50-fsyncs, p99-fsyncs, the
// same as multiples of the bare fsync's median.
func BenchmarkCommit(b *testing.B) {
	fsync := rawFsync(b)
	for _, writers := range []int{1, 64} {
		b.Run(strconv.Itoa(writers), func(b *testing.B) {
			db := openFile(b, filepath.Join(b.TempDir(), "a.db"))
			times := make([][]time.Duration, writers)
			var wg sync.WaitGroup
			b.ResetTimer()
			for w := range writers {
				n := b.N / writers
				if w < b.N%writers {
					n++
				}
				wg.Go(func() {
					for i := range n {
						began := time.Now()
						err := db.Update(context.Background(), strconv.Itoa(w%4), func(ctx context.Context, tx *Tx) error {
							if err := add(fmt.Sprint(w, "/", i))(ctx, tx); err != nil {
								return err
							}
							return tx.Append(ctx, "s", "", "row.added", []byte(`{"name":"a row"}`))
						})
						if err != nil {
							b.Error(err)
							return
						}
						times[w] = append(times[w], time.Since(began))
					}
				})
			}
			wg.Wait()
			b.StopTimer()
			p50, p99 := quantiles(slices.Concat(times...))
			b.ReportMetric(float64(p50.Microseconds()), "p50-µs")
			b.ReportMetric(float64(p99.Microseconds()), "p99-µs")
			b.ReportMetric(float64(p50)/float64(fsync), "p50-fsyncs")
			b.ReportMetric(float64(p99)/float64(fsync), "p99-fsyncs")
		})
	}
}

// BenchmarkFsync is the bare fsync: 4 KiB appended and synced.
func BenchmarkFsync(b *testing.B) {
	f := tempFile(b)
	page := make([]byte, 4096)
	var times []time.Duration
	for b.Loop() {
		times = append(times, appendSync(b, f, page))
	}
	p50, p99 := quantiles(times)
	b.ReportMetric(float64(p50.Microseconds()), "p50-µs")
	b.ReportMetric(float64(p99.Microseconds()), "p99-µs")
}

func rawFsync(b *testing.B) time.Duration {
	b.Helper()
	f := tempFile(b)
	var times []time.Duration
	for range 300 {
		times = append(times, appendSync(b, f, make([]byte, 4096)))
	}
	p50, _ := quantiles(times)
	return p50
}

func tempFile(b *testing.B) *os.File {
	b.Helper()
	f, err := os.Create(filepath.Join(b.TempDir(), "fsync"))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = f.Close() })
	return f
}

func appendSync(b *testing.B, f *os.File, page []byte) time.Duration {
	b.Helper()
	began := time.Now()
	if _, err := f.Write(page); err != nil {
		b.Fatal(err)
	}
	if err := f.Sync(); err != nil {
		b.Fatal(err)
	}
	return time.Since(began)
}

func quantiles(times []time.Duration) (p50, p99 time.Duration) {
	if len(times) == 0 {
		return 0, 0
	}
	slices.Sort(times)
	return times[len(times)/2], times[len(times)*99/100]
}
