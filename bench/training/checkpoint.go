package main

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/tink-crypto/tink-go/v2/aead"
	"github.com/tink-crypto/tink-go/v2/keyset"
	"github.com/tink-crypto/tink-go/v2/streamingaead"
	"github.com/tink-crypto/tink-go/v2/tink"
	"golang.org/x/sync/errgroup"

	"github.com/falaj-ml/falaj/bench/harness"
	"github.com/falaj-ml/falaj/internal/blob"
	"github.com/falaj-ml/falaj/internal/blob/fileblob"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/training"
	"github.com/falaj-ml/falaj/internal/training/checkpoint"
	"github.com/falaj-ml/falaj/internal/training/trainingsql"
	"github.com/falaj-ml/falaj/internal/worker/settled"
)

const piece = 4 << 20

// keeper is the service that keeps checkpoints, with a database and an object
// directory of its own, and one job.
type keeper struct {
	*checkpoint.Service
	dir string // of the job's checkpoints
}

const keeperJob = "job_bench"

// oneKey seals everything with one key.
type oneKey struct {
	aead      tink.AEAD
	streaming tink.StreamingAEAD
}

func (k oneKey) AEAD(context.Context, string, string) (tink.AEAD, error) { return k.aead, nil }

func (k oneKey) StreamingAEAD(context.Context, string, string) (tink.StreamingAEAD, error) {
	return k.streaming, nil
}

func newKey() (k oneKey, err error) {
	h, err := keyset.NewHandle(aead.AES256GCMKeyTemplate())
	if err != nil {
		return k, err
	}
	if k.aead, err = aead.New(h); err != nil {
		return k, err
	}
	if h, err = keyset.NewHandle(streamingaead.AES256GCMHKDF1MBKeyTemplate()); err != nil {
		return k, err
	}
	k.streaming, err = streamingaead.New(h)
	return k, err
}

func newKeeper(ctx context.Context, dir string) (*keeper, func() error, error) {
	db, err := store.Open(ctx, store.Config{URL: "sqlite://" + filepath.Join(dir, "falaj.db"), Migrations: []store.Migrations{trainingsql.Migrations}})
	if err != nil {
		return nil, nil, err
	}
	driver, err := fileblob.Open(filepath.Join(dir, "objects"))
	if err != nil {
		return nil, nil, errors.Join(err, db.Close())
	}
	closed := func() error { return errors.Join(driver.Close(), db.Close()) }
	key, err := newKey()
	if err == nil {
		err = db.Update(ctx, "", func(ctx context.Context, tx *store.Tx) error {
			return trainingsql.Store{}.InsertJob(ctx, tx, training.Job{
				ID: keeperJob, Project: project, Name: "bench", State: training.Running, Revision: 1,
				Spec: training.Spec{Checkpoints: checkpoint.Rules{KeepLast: 1}},
			})
		})
	}
	if err != nil {
		return nil, nil, errors.Join(err, closed())
	}
	k := &keeper{dir: filepath.Join(dir, "checkpoints", keeperJob), Service: checkpoint.New(checkpoint.Config{
		DB: db, Store: trainingsql.Checkpoints{}, Blobs: blob.New(driver, key), Dir: filepath.Join(dir, "checkpoints"),
	})}
	return k, closed, os.MkdirAll(k.dir, 0o750)
}

// checkpoints measures how fast a checkpoint gets from a job's directory into
// the store, beside what the disk and AES allow in the same minute.
func (b *bench) checkpoints(ctx context.Context) error {
	size := int64(1 << 30)
	if b.Quick {
		size = 20 << 20
	}
	k, closed, err := newKeeper(ctx, b.Dir)
	if err != nil {
		return err
	}
	var ours, limit, again, back []float64
	rate := func(began time.Time) float64 { return float64(size) / (1 << 20) / time.Since(began).Seconds() }
	for round := range b.Rounds {
		name := fmt.Sprintf("step-%d", round)
		tmp := filepath.Join(k.dir, name+".tmp")
		model := filepath.Join(tmp, "model.bin")
		if err := errors.Join(os.Mkdir(tmp, 0o750), writeNoise(model, size)); err != nil {
			return errors.Join(err, closed())
		}
		began := time.Now()
		if err := sealAndSync(model, filepath.Join(b.Dir, "limit.bin")); err != nil {
			return errors.Join(err, closed())
		}
		limit = append(limit, rate(began))
		if err := os.Rename(tmp, filepath.Join(k.dir, name)); err != nil {
			return errors.Join(err, closed())
		}
		began = time.Now()
		if err := k.Halted(ctx, keeperJob, settled.End{InOrder: true, At: time.Now()}, false); err != nil {
			return errors.Join(err, closed())
		}
		ours = append(ours, rate(began))

		// The same content under the next name, as of frozen weights.
		if err := os.Rename(filepath.Join(k.dir, name), filepath.Join(k.dir, name+"-frozen")); err != nil {
			return errors.Join(err, closed())
		}
		began = time.Now()
		if err := k.Halted(ctx, keeperJob, settled.End{InOrder: true, At: time.Now()}, false); err != nil {
			return errors.Join(err, closed())
		}
		again = append(again, rate(began))

		if err := os.RemoveAll(k.dir); err != nil {
			return errors.Join(err, closed())
		}
		began = time.Now()
		if got, err := k.Restore(ctx, keeperJob); err != nil || got.Resumes != name+"-frozen" {
			return errors.Join(err, fmt.Errorf("restored: %v", got.Notes), closed())
		}
		back = append(back, rate(began))
	}
	what := fmt.Sprintf("one file of %d MiB of noise, synced before", size>>20)
	b.Add(harness.Row{
		Name: "checkpoint kept, all of it new", Unit: "MiB/s", Better: harness.Higher,
		Ours: harness.Value(harness.Median(ours)), Theirs: harness.Value(harness.Median(limit)),
		Peer: fmt.Sprintf("the same file read, sealed by AES-256-GCM on %d cores and written to one file with one fsync: no digests, no database", runtime.NumCPU()),
		Aim:  &harness.Aim{Ratio: harness.Value(0.8)},
		Note: what + "; chunks of 4 MiB hashed, sealed, each synced and published, then one transaction",
	})
	b.Add(harness.Row{
		Name: "checkpoint kept, all of it known", Unit: "MiB/s", Better: harness.Higher, Ours: harness.Value(harness.Median(again)),
		Note: "the same content under another name: read and hashed, nothing stored",
	})
	b.Add(harness.Row{
		Name: "checkpoint restored", Unit: "MiB/s", Better: harness.Higher, Ours: harness.Value(harness.Median(back)),
		Note: "opened, every digest compared, written and synced",
	})
	return closed()
}

func writeNoise(name string, size int64) (err error) {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if _, err := io.CopyN(f, rand.Reader, size); err != nil {
		return err
	}
	return f.Sync()
}

// sealAndSync is what no implementation can do without: the disk and AES.
func sealAndSync(from, to string) (err error) {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, in.Close(), os.Remove(to)) }()
	out, err := os.Create(to)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	info, err := in.Stat()
	if err != nil {
		return err
	}
	block, err := aes.NewCipher(make([]byte, 32))
	if err != nil {
		return err
	}
	seal, err := cipher.NewGCM(block)
	if err != nil {
		return err
	}
	var g errgroup.Group
	cores := runtime.NumCPU()
	for core := range cores {
		g.Go(func() error {
			buf, sealed := make([]byte, piece), make([]byte, 0, piece+seal.Overhead())
			nonce := make([]byte, seal.NonceSize())
			for i := int64(core); i*piece < info.Size(); i += int64(cores) {
				n, err := in.ReadAt(buf, i*piece)
				if err != nil && !errors.Is(err, io.EOF) {
					return err
				}
				sealed = seal.Seal(sealed[:0], nonce, buf[:n], nil) //nolint:gosec // G407: nobody opens it; only the time counts
				if _, err := out.WriteAt(sealed, i*(piece+int64(seal.Overhead()))); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	return out.Sync()
}
