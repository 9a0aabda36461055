package checkpoint_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/blob"
	"github.com/falaj-ml/falaj/internal/blob/blobtest"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/training"
	"github.com/falaj-ml/falaj/internal/training/checkpoint"
	"github.com/falaj-ml/falaj/internal/training/trainingsql"
	"github.com/falaj-ml/falaj/internal/worker/settled"
)

const nyc project.Name = "nyc"

// authorizer allows everything but what is denied.
type authorizer map[policy.Action]bool

func (a authorizer) Allow(_ context.Context, action policy.Action, _ policy.Object) error {
	if a[action] {
		return fault.New(fault.PermissionDenied, "%s is not allowed", action)
	}
	return nil
}

type journal struct {
	mu      sync.Mutex
	entries []audit.Entry
}

func (j *journal) Record(_ context.Context, e audit.Entry) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.entries = append(j.entries, e)
	return nil
}

// blobs can fail, and lets a test act while chunks are stored.
type blobs struct {
	*blob.Store
	mu  sync.Mutex
	put func(blob.Ref) error // asked before each Put
}

func (b *blobs) before(f func(blob.Ref) error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.put = f
}

func (b *blobs) Put(ctx context.Context, ref blob.Ref, body io.Reader, opts ...blob.Option) (blob.Info, error) {
	b.mu.Lock()
	put := b.put
	b.mu.Unlock()
	if put != nil {
		if err := put(ref); err != nil {
			return blob.Info{}, err
		}
	}
	return b.Store.Put(ctx, ref, body, opts...)
}

type world struct {
	*checkpoint.Service
	cfg     checkpoint.Config
	db      *store.DB
	objects *blobtest.Memory
	blobs   *blobs
	auth    authorizer
	journal *journal
	clock   time.Time
}

func newWorld(tb testing.TB) *world {
	tb.Helper()
	dir := tb.TempDir()
	db := database(tb, trainingsql.Migrations)
	w := &world{db: db, objects: &blobtest.Memory{}, auth: authorizer{}, journal: &journal{}, clock: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
	w.blobs = &blobs{Store: blob.New(w.objects, blobtest.NewSealer())}
	w.cfg = checkpoint.Config{
		Settle: -1,
		DB:     db, Store: trainingsql.Checkpoints{}, Authorizer: w.auth, Journal: w.journal, Blobs: w.blobs,
		Dir: filepath.Join(dir, "checkpoints"), ChunkSize: 1 << 10, MaxBytes: 1 << 20,
		Log: slog.New(slog.NewTextHandler(tb.Output(), nil)), Now: func() time.Time { return w.clock },
	}
	w.restart()
	return w
}

// restart is the end of one process and the start of the next.
func (w *world) restart() { w.Service = checkpoint.New(w.cfg) }

// job makes a job under way.
func (w *world) job(tb testing.TB, id string, rules checkpoint.Rules) string {
	tb.Helper()
	err := w.db.Update(tb.Context(), "", func(ctx context.Context, tx *store.Tx) error {
		err := trainingsql.Store{}.InsertJob(ctx, tx, training.Job{
			ID: training.JobID(id), Project: nyc, Name: "train", State: training.Running, Revision: 1,
			Spec: training.Spec{Checkpoints: rules}, Residency: residency.Of("home"), Classification: project.Confidential,
		})
		if err != nil {
			return err
		}
		return trainingsql.Store{}.InsertAttempt(ctx, tx, training.Attempt{ID: training.AttemptID(id + ".1"), Job: training.JobID(id), Number: 1})
	})
	if err != nil {
		tb.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(w.cfg.Dir, id), 0o700); err != nil {
		tb.Fatal(err)
	}
	return id
}

// end ends a job, and lets go of its directory.
func (w *world) end(tb testing.TB, id string) {
	tb.Helper()
	err := w.db.Update(tb.Context(), "", func(ctx context.Context, tx *store.Tx) error {
		j, err := trainingsql.Store{}.Job(ctx, tx, training.JobID(id))
		if err != nil {
			return err
		}
		j.State, j.EndedAt = training.Succeeded, w.clock
		return trainingsql.Store{}.UpdateJob(ctx, tx, j)
	})
	if err == nil {
		err = w.Release(tb.Context(), id)
	}
	if err != nil {
		tb.Fatal(err)
	}
}

// Settle takes what a program left that ended in order, and has it run again.
func (w *world) Settle(ctx context.Context, job string) error {
	defer w.Resume(job)
	return w.Halted(ctx, job, settled.End{At: w.clock, InOrder: true}, false)
}

// Restore gives the notes of what was done.
func (w *world) Restore(ctx context.Context, job string) ([]string, error) {
	r, err := w.Service.Restore(ctx, job)
	return slices.DeleteFunc(r.Notes, func(n string) bool { return strings.Contains(n, "FALAJ_RESUME") }), err
}

func alice(ctx context.Context) context.Context {
	return identity.With(ctx, identity.Principal{Kind: identity.User, ID: "usr_alice", Name: "alice"})
}

func (w *world) path(job string, parts ...string) string {
	return filepath.Join(append([]string{w.cfg.Dir, job}, parts...)...)
}

// files are what a checkpoint is made of: content by path; "x/" is an empty
// directory, "!x" an executable.
type files map[string]string

// write makes a checkpoint as programs do: aside, then renamed.
func (w *world) write(tb testing.TB, job, name string, fs files) {
	tb.Helper()
	tmp := w.path(job, name+".tmp")
	if err := os.MkdirAll(tmp, 0o700); err != nil {
		tb.Fatal(err)
	}
	for p, content := range fs {
		mode := os.FileMode(0o600)
		if rest, ok := strings.CutPrefix(p, "!"); ok {
			p, mode = rest, 0o700
		}
		full := filepath.Join(tmp, p)
		var err error
		if strings.HasSuffix(p, "/") {
			err = os.MkdirAll(full, 0o700)
		} else if err = os.MkdirAll(filepath.Dir(full), 0o700); err == nil {
			err = os.WriteFile(full, []byte(content), mode)
		}
		if err != nil {
			tb.Fatal(err)
		}
	}
	if err := os.RemoveAll(w.path(job, name)); err != nil {
		tb.Fatal(err)
	}
	if err := os.Rename(tmp, w.path(job, name)); err != nil {
		tb.Fatal(err)
	}
}

// read gives what lies below a directory, as write takes it.
func read(tb testing.TB, dir string) files {
	tb.Helper()
	out := files{}
	err := filepath.WalkDir(dir, func(p string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(dir, p)
		if e.IsDir() {
			if inside, err := os.ReadDir(p); err != nil || len(inside) > 0 {
				return err
			}
			out[rel+"/"] = ""
			return nil
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		if info.Mode()&0o100 != 0 {
			rel = "!" + rel
		}
		b, err := os.ReadFile(p)
		out[rel] = string(b)
		return err
	})
	if err != nil {
		tb.Fatal(err)
	}
	return out
}

func (w *world) lose(tb testing.TB, job, name string) {
	tb.Helper()
	if err := os.RemoveAll(w.path(job, name)); err != nil {
		tb.Fatal(err)
	}
}

func (w *world) runOnce(tb testing.TB) {
	tb.Helper()
	if err := w.RunOnce(tb.Context()); err != nil {
		tb.Fatal(err)
	}
}

func (w *world) list(tb testing.TB, job string) []checkpoint.Record {
	tb.Helper()
	all, err := w.List(alice(tb.Context()), nyc, job)
	if err != nil {
		tb.Fatal(err)
	}
	return all
}

func names(all []checkpoint.Record) []string {
	out := make([]string, len(all))
	for i, r := range all {
		out[i] = r.Name
	}
	return out
}

func (w *world) keys(tb testing.TB) []blob.Key {
	tb.Helper()
	var keys []blob.Key
	err := w.blobs.List(tb.Context(), "", func(k blob.Key) error {
		keys = append(keys, k)
		return nil
	})
	if err != nil {
		tb.Fatal(err)
	}
	return keys
}

// damage changes a stored object.
func (w *world) damage(tb testing.TB, key string) {
	tb.Helper()
	o, err := w.objects.Open(tb.Context(), blob.Key(key))
	if err != nil {
		tb.Fatal(err)
	}
	b, err := io.ReadAll(o)
	if err != nil {
		tb.Fatal(err)
	}
	b = slices.Clone(b)
	b[len(b)/3] ^= 1
	if err := w.objects.Put(tb.Context(), blob.Key(key), strings.NewReader(string(b))); err != nil {
		tb.Fatal(err)
	}
}

func (w *world) manifest(tb testing.TB, r checkpoint.Record) (m checkpoint.Manifest) {
	tb.Helper()
	err := w.db.View(tb.Context(), func(ctx context.Context, tx *store.Tx) (err error) {
		m, err = trainingsql.Checkpoints{}.Manifest(ctx, tx, r.ID)
		return err
	})
	if err != nil {
		tb.Fatal(err)
	}
	return m
}

// noise is content that no two seeds share.
func noise(seed uint64, n int) string {
	sum := sha256.Sum256(fmt.Append(nil, seed))
	b := make([]byte, n)
	_, _ = rand.NewChaCha8(sum).Read(b)
	return string(b)
}

var errKilled = errors.New("the process was killed here")
