package main

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/falaj-ml/falaj/bench/harness"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/id"
	"github.com/falaj-ml/falaj/internal/store"
)

//go:embed migrations
var migrations embed.FS

// commits measures durable writes beside a bare append and fsync on the same
// disk, and what the audit entry adds to a write.
func (b *bench) commits(ctx context.Context) (err error) {
	dir, err := fs.Sub(migrations, "migrations")
	if err != nil {
		return err
	}
	db, err := store.Open(ctx, store.Config{
		URL: "sqlite://" + filepath.Join(b.Dir, "commit.db"), Migrations: []store.Migrations{{Name: "bench", FS: dir}},
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	f, err := os.Create(filepath.Join(b.Dir, "fsync"))
	if err != nil {
		return err
	}
	defer f.Close()
	ctx = identity.With(ctx, identity.Loop("bench"))
	each, many := 150, 100
	if b.Quick {
		each, many = 10, 2
	}
	var sync50, sync99, one50, one99, many50, many99, perSecond, plain, audited []float64
	for round := range b.Rounds {
		syncs, err := fsyncs(f, each)
		if err != nil {
			return err
		}
		base := harness.Quantile(syncs, 0.5)
		sync50, sync99 = append(sync50, base), append(sync99, harness.Quantile(syncs, 0.99))
		// The order of the two alternates: what runs second finds a longer WAL.
		for i := range 2 {
			withAudit := (round+i)%2 == 0
			times, _, err := writers(ctx, db, 1, each, withAudit)
			if err != nil {
				return err
			}
			if withAudit {
				audited = append(audited, harness.Quantile(times, 0.5))
				one50, one99 = append(one50, harness.Quantile(times, 0.5)/base), append(one99, harness.Quantile(times, 0.99)/base)
			} else {
				plain = append(plain, harness.Quantile(times, 0.5))
			}
		}
		times, took, err := writers(ctx, db, 64, many, true)
		if err != nil {
			return err
		}
		many50, many99 = append(many50, harness.Quantile(times, 0.5)/base), append(many99, harness.Quantile(times, 0.99)/base)
		perSecond = append(perSecond, float64(len(times))/took.Seconds()*base/1000)
	}
	fsync := fmt.Sprintf("4 KiB append and fsync in the same rounds: p50 %.3g ms, p99 %.3g ms", harness.Median(sync50), harness.Median(sync99))
	const unit, peer = "× p50 of fsync", "append and fsync of 4 KiB, one after the other"
	b.Add(harness.Row{
		Name: "commit p50, 1 writer", Unit: unit, Better: harness.Lower, Ours: harness.Value(harness.Median(one50)), Theirs: harness.Value(1), Peer: peer,
		Note: "a row, its audit entry, synced; " + fsync,
	})
	b.Add(harness.Row{Name: "commit p99, 1 writer", Unit: unit, Better: harness.Lower, Ours: harness.Value(harness.Median(one99)), Theirs: harness.Value(1), Peer: peer})
	b.Add(harness.Row{
		Name: "commit p50, 64 writers", Unit: unit, Better: harness.Lower, Ours: harness.Value(harness.Median(many50)), Theirs: harness.Value(1), Peer: peer,
		Note: "the wait of each of 64 closed loops; they share syncs by group commit",
	})
	b.Add(harness.Row{Name: "commit p99, 64 writers", Unit: unit, Better: harness.Lower, Ours: harness.Value(harness.Median(many99)), Theirs: harness.Value(1), Peer: peer})
	b.Add(harness.Row{
		Name: "commits in the time of one fsync, 64 writers", Unit: "commits", Better: harness.Higher, Ours: harness.Value(harness.Median(perSecond)), Theirs: harness.Value(1), Peer: peer,
	})
	b.Add(harness.Row{
		Name: "write with its audit entry, 1 writer, p50", Unit: "ms", Better: harness.Lower, Ours: harness.Value(harness.Median(audited)), Theirs: harness.Value(harness.Median(plain)),
		Peer: "the same write without audit.Append",
		Note: fmt.Sprintf("the entry costs %.2f times the write; the sequencer, which works later, is not in it", harness.Median(audited)/harness.Median(plain)),
	})
	return nil
}

// fsyncs appends pages and syncs each, in milliseconds.
func fsyncs(f *os.File, n int) ([]float64, error) {
	page := make([]byte, 4096)
	times := make([]time.Duration, n)
	for i := range times {
		began := time.Now()
		if _, err := f.Write(page); err != nil {
			return nil, err
		}
		if err := f.Sync(); err != nil {
			return nil, err
		}
		times[i] = time.Since(began)
	}
	return harness.AllMillis(times), nil
}

// writers commit each small transactions, in four lanes as of four projects.
func writers(ctx context.Context, db *store.DB, n, each int, withAudit bool) (times []float64, took time.Duration, err error) {
	all := make([][]time.Duration, n)
	failed := make([]error, n)
	var wg sync.WaitGroup
	start := time.Now()
	for w := range n {
		wg.Go(func() {
			for range each {
				began := time.Now()
				key := id.New("bench")
				err := db.Update(ctx, strconv.Itoa(w%4), func(ctx context.Context, tx *store.Tx) error {
					if _, err := tx.NewRaw(`INSERT INTO bench_row (id, name, at) VALUES (?, ?, ?)`, key, "a row", began.UnixMicro()).Exec(ctx); err != nil {
						return err
					}
					if !withAudit {
						return nil
					}
					return audit.Append(ctx, tx, audit.Entry{Project: "bench", Action: "bench.write", Object: "row " + key, Outcome: audit.Done})
				})
				if err != nil {
					failed[w] = err
					return
				}
				all[w] = append(all[w], time.Since(began))
			}
		})
	}
	wg.Wait()
	took = time.Since(start)
	for _, t := range all {
		times = append(times, harness.AllMillis(t)...)
	}
	return times, took, errors.Join(failed...)
}
