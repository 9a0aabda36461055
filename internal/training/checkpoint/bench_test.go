package checkpoint_test

import (
	"os"
	"testing"

	"github.com/falaj-ml/falaj/internal/blob"
	"github.com/falaj-ml/falaj/internal/blob/blobtest"
	"github.com/falaj-ml/falaj/internal/blob/fileblob"
	"github.com/falaj-ml/falaj/internal/training/checkpoint"
)

// BenchmarkTake takes a checkpoint of one large file, all of it new; the bytes
// go encrypted and synced to the disk of TMPDIR.
func BenchmarkTake(b *testing.B) {
	const size = 256 << 20
	w := newWorld(b)
	driver, err := fileblob.Open(b.TempDir())
	if err != nil {
		b.Fatal(err)
	}
	defer driver.Close()
	w.cfg.Blobs, w.cfg.ChunkSize, w.cfg.MaxBytes, w.cfg.Log = blob.New(driver, blobtest.NewSealer()), 0, size, nil
	w.restart()
	job := w.job(b, "job_a", checkpoint.Rules{KeepLast: 1})
	b.SetBytes(size)
	b.ResetTimer()
	for i := range b.N {
		b.StopTimer()
		w.write(b, job, "step", files{"model": noise(uint64(i), size)})
		if err := syncFile(w.path(job, "step", "model")); err != nil { // its own way to the disk is not ours
			b.Fatal(err)
		}
		b.StartTimer()
		if err := w.Settle(b.Context(), job); err != nil {
			b.Fatal(err)
		}
	}
	b.StopTimer()
	_ = os.RemoveAll(w.path(job))
}

func syncFile(name string) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}
