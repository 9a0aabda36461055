package checkpoint_test

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/falaj-ml/falaj/internal/blob"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/training/checkpoint"
)

// killer ends a process at one of its acts: that one and all later ones fail.
type killer struct {
	mu    sync.Mutex
	armed bool
	left  int
}

func (k *killer) arm(left int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.armed, k.left = left >= 0, left
}

func (k *killer) act() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.armed {
		return nil
	}
	if k.left > 0 {
		k.left--
		return nil
	}
	return errKilled
}

type killBlobs struct {
	checkpoint.Blobs
	*killer
}

func (k killBlobs) Put(ctx context.Context, ref blob.Ref, body io.Reader, opts ...blob.Option) (blob.Info, error) {
	if err := k.act(); err != nil {
		return blob.Info{}, err
	}
	return k.Blobs.Put(ctx, ref, body, opts...)
}

func (k killBlobs) Delete(ctx context.Context, ref blob.Ref) error {
	if err := k.act(); err != nil {
		return err
	}
	return k.Blobs.Delete(ctx, ref)
}

type killStore struct {
	checkpoint.Store
	*killer
}

func (k killStore) InsertCheckpoint(ctx context.Context, tx *store.Tx, r checkpoint.Record, m checkpoint.Manifest) error {
	return errors.Join(k.act(), k.Store.InsertCheckpoint(ctx, tx, r, m), k.act())
}

func (k killStore) UpdateCheckpoint(ctx context.Context, tx *store.Tx, r checkpoint.Record) error {
	return errors.Join(k.act(), k.Store.UpdateCheckpoint(ctx, tx, r))
}

func (k killStore) DeleteCheckpoint(ctx context.Context, tx *store.Tx, r checkpoint.Record) error {
	return errors.Join(k.act(), k.Store.DeleteCheckpoint(ctx, tx, r), k.act())
}

// TestLastGoodOneIsAlwaysRestorable: whatever is written, taken, killed,
// damaged, restored, deleted, collected and gone on from, every record that is
// not known to be damaged can be read bit for bit, and the newest good one of a
// job that may run again is among them.
func TestLastGoodOneIsAlwaysRestorable(t *testing.T) {
	ctx := t.Context()
	rapid.Check(t, func(rt *rapid.T) {
		w := newWorld(t)
		k := &killer{}
		w.cfg.Blobs, w.cfg.Store, w.cfg.Log = killBlobs{w.blobs, k}, killStore{w.cfg.Store, k}, nil
		w.restart()
		jobs := []string{"job_a", "job_b"}
		for _, j := range jobs {
			w.job(t, j, checkpoint.Rules{KeepLast: rapid.IntRange(1, 3).Draw(rt, "keep last")})
		}
		content := map[string]files{} // by record
		onDisk := map[string]files{}  // by job/name
		highest := map[string]int{}   // number, by job
		damaged := map[string]bool{}  // chunks

		// note takes what is new into the model, and holds all against it.
		note := func() {
			for _, job := range jobs {
				all, err := w.List(alice(ctx), nyc, job)
				if err != nil {
					rt.Fatal(err)
				}
				var good []checkpoint.Record
				for _, r := range all {
					if content[r.ID] == nil {
						content[r.ID] = onDisk[job+"/"+r.Name]
						highest[job] = max(highest[job], r.Number)
					}
					hurt := slices.ContainsFunc(checkpoint.ChunkKeys(r, w.manifest(t, r)), func(key string) bool { return damaged[key] })
					got, err := untar(ctx, w, job, r.ID)
					switch {
					case hurt && errors.Is(err, blob.ErrDamaged):
					case err != nil:
						rt.Fatalf("%s of %s cannot be read: %v", r.Name, job, err)
					case !cmp.Equal(content[r.ID], got):
						rt.Fatalf("%s of %s is another one: %s", r.Name, job, cmp.Diff(content[r.ID], got))
					}
					if r.Damaged == "" {
						good = append(good, r)
					}
				}
				if len(damaged) == 0 && highest[job] > 0 && (len(good) == 0 || good[len(good)-1].Number != highest[job]) {
					rt.Fatalf("number %d, the newest of %s, is gone: %v", highest[job], job, names(all))
				}
			}
		}
		allowed := func(what string, err error, kinds ...fault.Kind) {
			if err != nil && !errors.Is(err, errKilled) && !slices.Contains(kinds, fault.KindOf(err)) {
				rt.Fatalf("%s: %v", what, err)
			}
		}
		job := rapid.SampledFrom(jobs)
		acts := map[string]func(*rapid.T){
			"write": func(rt *rapid.T) {
				j, name := job.Draw(rt, "job"), fmt.Sprintf("step-%d", rapid.IntRange(1, 4).Draw(rt, "step"))
				fs := files{}
				for i := range rapid.IntRange(1, 3).Draw(rt, "files") {
					fs[fmt.Sprintf("f%d", i)] = noise(uint64(rapid.IntRange(0, 4).Draw(rt, "content")), rapid.SampledFrom([]int{0, 10, 1024, 2500}).Draw(rt, "size"))
				}
				// The time is part of the state of a file: two writes differ in it.
				w.write(t, j, name, fs)
				onDisk[j+"/"+name] = fs
			},
			"take": func(*rapid.T) { allowed("take", w.RunOnce(ctx)) },
			"settle": func(rt *rapid.T) {
				j := job.Draw(rt, "job")
				allowed("settle", w.Settle(ctx, j))
			},
			"restore": func(rt *rapid.T) {
				j := job.Draw(rt, "job")
				if rapid.Bool().Draw(rt, "after a loss") {
					w.lose(t, j, "")
					for key := range onDisk {
						if key[:len(j)] == j {
							delete(onDisk, key)
						}
					}
				}
				_, err := w.Restore(ctx, j)
				allowed("restore", err)
				found, err := os.ReadDir(w.path(j))
				if err != nil && !errors.Is(err, os.ErrNotExist) {
					rt.Fatal(err)
				}
				for _, e := range found {
					if key := j + "/" + e.Name(); onDisk[key] == nil && e.Name()[0] != '.' {
						onDisk[key] = read(t, w.path(j, e.Name()))
						all := w.list(t, j)
						if !slices.ContainsFunc(all, func(r checkpoint.Record) bool { return r.Name == e.Name() && cmp.Equal(content[r.ID], onDisk[key]) }) {
							rt.Fatalf("restored %s as something that was never taken", key)
						}
					}
				}
			},
			"delete": func(rt *rapid.T) {
				j := job.Draw(rt, "job")
				allowed("delete", w.Delete(alice(ctx), nyc, j, fmt.Sprintf("step-%d", rapid.IntRange(1, 4).Draw(rt, "step"))), fault.NotFound, fault.Conflict)
			},
			"sweep":   func(*rapid.T) { allowed("sweep", w.Sweep(ctx)) },
			"collect": func(*rapid.T) { allowed("collect", w.CollectProject(ctx, nyc)) },
			"go on": func(rt *rapid.T) {
				from := job.Draw(rt, "from")
				to := jobs[0]
				if from == to {
					to = jobs[1]
				}
				r, err := w.Resolve(alice(ctx), nyc, from)
				if err != nil || len(w.list(t, to)) > 0 {
					return // nothing there, or not a new job
				}
				err = w.db.Update(ctx, "", func(ctx context.Context, tx *store.Tx) error {
					return w.Adopt(ctx, tx, r, checkpoint.Job{ID: to})
				})
				allowed("go on", err)
				if err == nil {
					mine := w.list(t, to)[0]
					content[mine.ID], highest[to] = content[r.ID], mine.Number
				}
			},
			"kill soon": func(rt *rapid.T) { k.arm(rapid.IntRange(0, 6).Draw(rt, "acts")) },
			"start again": func(*rapid.T) {
				k.arm(-1)
				w.restart()
				if err := w.Start(ctx); err != nil {
					rt.Fatal(err)
				}
				w.Stop()
			},
			"time": func(rt *rapid.T) {
				w.clock = w.clock.Add(time.Duration(rapid.IntRange(1, 120).Draw(rt, "minutes")) * time.Minute)
			},
			"damage": func(rt *rapid.T) {
				keys := w.keys(t)
				if len(keys) == 0 || rapid.IntRange(0, 4).Draw(rt, "seldom") > 0 {
					return
				}
				key := string(rapid.SampledFrom(keys).Draw(rt, "chunk"))
				if !damaged[key] {
					damaged[key] = true
					w.damage(t, key)
				}
			},
			"": func(*rapid.T) { note() },
		}
		rt.Repeat(acts)
	})
}

func untar(ctx context.Context, w *world, job, id string) (files, error) {
	_, write, err := w.Archive(alice(ctx), nyc, job, id)
	if err != nil {
		return nil, err
	}
	pr, pw := io.Pipe()
	go func() { _ = pw.CloseWithError(write(ctx, pw)) }()
	defer pr.Close()
	got := files{}
	for tr := tar.NewReader(pr); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return got, nil
		}
		if err != nil {
			return nil, err
		}
		b, err := io.ReadAll(tr)
		if err != nil {
			return nil, err
		}
		got[h.Name] = string(b)
	}
}
