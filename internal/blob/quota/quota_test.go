package quota_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/falaj-ml/falaj/internal/blob"
	"github.com/falaj-ml/falaj/internal/blob/blobtest"
	"github.com/falaj-ml/falaj/internal/blob/fileblob"
	"github.com/falaj-ml/falaj/internal/blob/quota"
	"github.com/falaj-ml/falaj/internal/fault"
)

// limits are quotas by project.
type limits struct {
	mu sync.Mutex
	of map[string]quota.Limit
}

func (l *limits) get(_ context.Context, project string) (quota.Limit, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.of[project], nil
}

func quotas(project string, l quota.Limit) *limits {
	return &limits{of: map[string]quota.Limit{project: l}}
}

func put(t *testing.T, d blob.Driver, key string, size int) error {
	t.Helper()
	return d.Put(t.Context(), blob.Key(key), bytes.NewReader(make([]byte, size)))
}

// used is "bytes/objects" of a project, then those of its kinds.
func used(t *testing.T, a *quota.Accounts, project string) string {
	t.Helper()
	sum, kinds, err := a.Used(t.Context(), project)
	if err != nil {
		t.Fatal(err)
	}
	out := []string{fmt.Sprintf("%d/%d", sum.Bytes, sum.Objects)}
	for _, k := range kinds {
		out = append(out, fmt.Sprintf("%s %d/%d", k.Kind, k.Bytes, k.Objects))
	}
	return strings.Join(out, " ")
}

func TestSuite(t *testing.T) {
	blobtest.Run(t, func(*testing.T) blob.Driver {
		return quota.New(quotas("p", quota.Limit{Bytes: 1 << 40}).get).Over(&blobtest.Memory{})
	})
}

// TestQuota walks through puts and deletes; each step says what is stored after it.
func TestQuota(t *testing.T) {
	of := quotas("p", quota.Limit{Bytes: 100, Objects: 3})
	a := quota.New(of.get)
	objects, tables := a.Over(&blobtest.Memory{}), a.Over(&blobtest.Memory{})
	for _, step := range []struct {
		on       blob.Driver
		key      string
		size     int // -1: delete
		full     bool
		want     string
		wantText string
	}{
		{objects, "projects/p/artifacts/a", 60, false, "60/1 artifacts 60/1", ""},
		{objects, "projects/p/models/m", 50, true, "60/1 artifacts 60/1", "has a quota of 100 bytes, and stores 60 bytes"},
		{tables, "projects/p/datasets/d", 40, false, "100/2 artifacts 60/1 datasets 40/1", ""},
		{objects, "projects/p/artifacts/b", 0, false, "100/3 artifacts 60/2 datasets 40/1", ""},
		{objects, "projects/p/artifacts/c", 0, true, "100/3 artifacts 60/2 datasets 40/1", "has a quota of 3 objects, and stores 3"},
		{objects, "projects/p/artifacts/a", 60, false, "100/3 artifacts 60/2 datasets 40/1", ""}, // replaced
		{objects, "projects/p/artifacts/a", 61, true, "100/3 artifacts 60/2 datasets 40/1", ""},
		{objects, "projects/p/artifacts/a", 1, false, "41/3 artifacts 1/2 datasets 40/1", ""},
		{objects, "projects/q/artifacts/a", 1000, false, "41/3 artifacts 1/2 datasets 40/1", ""}, // has no quota
		{objects, "gateway/x", 1000, false, "41/3 artifacts 1/2 datasets 40/1", ""},              // is of no project
		{tables, "projects/p/datasets/d", -1, false, "1/2 artifacts 1/2", ""},
		{tables, "projects/p/datasets/d", -1, false, "1/2 artifacts 1/2", ""},
		{objects, "projects/p/models/m", 99, false, "100/3 artifacts 1/2 models 99/1", ""},
	} {
		var err error
		if step.size < 0 {
			err = step.on.Delete(t.Context(), blob.Key(step.key))
		} else {
			err = put(t, step.on, step.key, step.size)
		}
		if full := fault.Full(err); full != step.full || err != nil && !full {
			t.Fatalf("%s of %d bytes: %v", step.key, step.size, err)
		}
		if step.wantText != "" && (!strings.Contains(err.Error(), step.wantText) || fault.HintOf(err) == "") {
			t.Errorf("%s: %v", step.key, err)
		}
		if got := used(t, a, "p"); got != step.want {
			t.Fatalf("after %s of %d bytes: %s, want %s", step.key, step.size, got, step.want)
		}
	}
	of.mu.Lock()
	of.of["p"] = quota.Limit{} // is taken away
	of.mu.Unlock()
	if err := put(t, objects, "projects/p/models/n", 1000); err != nil {
		t.Error(err)
	}
}

// TestTwoAtOnce: of objects that are written at once and do not fit together, some are
// refused, and never more is stored than the quota.
func TestTwoAtOnce(t *testing.T) {
	a := quota.New(quotas("p", quota.Limit{Bytes: 100}).get)
	d := a.Over(&blobtest.Memory{})
	// Both have written half before either goes on.
	var both sync.WaitGroup
	both.Add(2)
	errs := make([]error, 2)
	var all sync.WaitGroup
	for i := range 2 {
		all.Go(func() {
			r, w := io.Pipe()
			go func() {
				_, _ = w.Write(make([]byte, 40))
				both.Done()
				both.Wait()
				_, err := w.Write(make([]byte, 40))
				_ = w.CloseWithError(err)
			}()
			errs[i] = d.Put(context.Background(), blob.Key(fmt.Sprint("projects/p/models/", i)), r)
			_ = r.Close()
		})
	}
	all.Wait()
	if failed := errors.Join(errs...); !fault.Full(failed) {
		t.Errorf("two of 80 bytes in 100: %v", errs)
	}
	sum, _, err := a.Used(t.Context(), "p")
	if err != nil || sum.Bytes > 80 || sum.Objects > 1 {
		t.Errorf("%+v, %v", sum, err)
	}
}

// TestSameObjectAtOnce: writers and deleters of one object are counted one after the other.
func TestSameObjectAtOnce(t *testing.T) {
	a := quota.New(quotas("p", quota.Limit{}).get)
	memory := &blobtest.Memory{}
	d := a.Over(memory)
	var all sync.WaitGroup
	for i := range 40 {
		all.Go(func() {
			if i%4 == 3 {
				_ = d.Delete(context.Background(), "projects/p/models/m")
				return
			}
			_ = d.Put(context.Background(), "projects/p/models/m", bytes.NewReader(make([]byte, i)))
		})
	}
	all.Wait()
	fresh := quota.New(quotas("p", quota.Limit{}).get)
	fresh.Over(memory)
	if got, want := used(t, a, "p"), used(t, fresh, "p"); got != want {
		t.Errorf("counted %s, stored %s", got, want)
	}
}

// TestFailuresCountNothing: a body that ends early, and a store that fails.
func TestFailuresCountNothing(t *testing.T) {
	a := quota.New(quotas("p", quota.Limit{Bytes: 1000}).get)
	d, broken := a.Over(&blobtest.Memory{}), a.Over(blobtest.Failing{Driver: &blobtest.Memory{}, After: 10, Err: errors.New("the store broke")})
	body := io.MultiReader(strings.NewReader("half of it"), errReader{})
	if err := d.Put(t.Context(), "projects/p/models/m", body); err == nil {
		t.Error("half an object was stored")
	}
	if err := put(t, broken, "projects/p/models/n", 100); err == nil {
		t.Error("a failing store stored")
	}
	if got := used(t, a, "p"); got != "0/0" {
		t.Errorf("failures count %s", got)
	}
}

type errReader struct{}

func (errReader) Read([]byte) (int, error) { return 0, errors.New("the line broke") }

// TestCountedAnew: a process that is killed at any moment leaves a store that the next one
// counts exactly, also what other programs put there.
func TestCountedAnew(t *testing.T) {
	dir := t.TempDir()
	r := rand.New(rand.NewPCG(26, 4))
	want := map[string]int{}
	for range 5 {
		files, err := fileblob.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		a := quota.New(quotas("p", quota.Limit{}).get)
		d := a.Over(files)
		for range 40 {
			key := fmt.Sprint("projects/p/", []string{"models", "artifacts"}[r.IntN(2)], "/", r.IntN(12))
			if r.IntN(3) == 0 {
				delete(want, key)
				err = d.Delete(t.Context(), blob.Key(key))
			} else {
				want[key] = r.IntN(1000)
				err = put(t, d, key, want[key])
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		sum := 0
		for n := range maps.Values(want) {
			sum += n
		}
		got, _, err := a.Used(t.Context(), "p")
		if err != nil || got.Bytes != int64(sum) || got.Objects != int64(len(want)) {
			t.Fatalf("%+v, %v; stored %d bytes in %d objects", got, err, sum, len(want))
		}
		// It is killed: nothing is closed but its files.
		if err := files.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// listed is a driver whose listing a test goes along with.
type listed struct {
	*blobtest.Memory
	begin func(ctx context.Context) error // of a listing
	at    func(key blob.Key)              // before each object
}

func (l *listed) Sizes(ctx context.Context, prefix blob.Key, yield func(key blob.Key, stored int64) error) error {
	if l.begin != nil {
		if err := l.begin(ctx); err != nil {
			return err
		}
	}
	return l.List(ctx, prefix, func(key blob.Key) error {
		size, there, err := blob.SizeOf(ctx, l.Memory, key)
		if err != nil || !there {
			return err
		}
		if l.at != nil {
			l.at(key)
		}
		return yield(key, size)
	})
}

func (l *listed) Size(ctx context.Context, key blob.Key) (int64, error) {
	o, err := l.Open(ctx, key)
	if err != nil {
		return 0, err
	}
	return o.Size(), o.Close()
}

// TestNoClientEndsACount: a count outlives who asked first, is one for all who wait, and
// nothing of a project without a quota waits for it.
func TestNoClientEndsACount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		memory := &blobtest.Memory{}
		for i := range 3 {
			if err := memory.Put(t.Context(), blob.Key(fmt.Sprint("projects/p/models/", i)), strings.NewReader("12345")); err != nil {
				t.Fatal(err)
			}
		}
		listings, goOn := 0, make(chan struct{})
		of := &limits{of: map[string]quota.Limit{}}
		a := quota.New(of.get)
		d := a.Over(&listed{Memory: memory, begin: func(ctx context.Context) error {
			listings++
			select {
			case <-goOn:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}})
		// Without a quota.
		if err := errors.Join(put(t, d, "projects/p/models/3", 10), put(t, d, "projects/p/models/2", 1), d.Delete(t.Context(), "projects/p/models/0")); err != nil {
			t.Fatal(err)
		}
		a.Each(func(project string, kinds []quota.Used, _ quota.Limit) {
			t.Errorf("an unfinished count is reported: %s %v", project, kinds)
		})
		// With one, a write waits, as long as its client does.
		of.mu.Lock()
		of.of["p"] = quota.Limit{Bytes: 20}
		of.mu.Unlock()
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := d.Put(short, "projects/p/models/4", strings.NewReader("1")); !fault.Is(err, fault.Timeout) || fault.HintOf(err) == "" {
			t.Errorf("its client gave up: %v", err)
		}
		if err := d.Delete(t.Context(), "projects/p/models/1"); err != nil {
			t.Error(err)
		}
		errs := make([]error, 2)
		var all sync.WaitGroup
		for i := range errs {
			all.Go(func() { errs[i] = put(t, d, fmt.Sprint("projects/p/artifacts/", i), 7) })
		}
		close(goOn)
		all.Wait()
		if full := errors.Join(errs...); !fault.Full(full) || errs[0] != nil && errs[1] != nil {
			t.Errorf("two of 7 bytes where 9 are left: %v", errs)
		}
		if got := used(t, a, "p"); got != "18/3 artifacts 7/1 models 11/2" || listings != 1 {
			t.Errorf("%s after %d listings", got, listings)
		}
	})
}

// TestFailedCounts: of a project with a quota a count that failed is made again, of others not
// at each write.
func TestFailedCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		listings, broken := 0, errors.New("the bucket does not answer")
		of := quotas("p", quota.Limit{})
		a := quota.New(of.get)
		d := a.Over(&listed{Memory: &blobtest.Memory{}, begin: func(context.Context) error {
			listings++
			return broken
		}})
		for i := range 10 {
			if err := put(t, d, fmt.Sprint("projects/p/models/", i), 1); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		if listings != 1 {
			t.Errorf("%d listings", listings)
		}
		of.mu.Lock()
		of.of["p"] = quota.Limit{Bytes: 11}
		of.mu.Unlock()
		if err := put(t, d, "projects/p/models/x", 1); !errors.Is(err, broken) {
			t.Errorf("a quota without a count: %v", err)
		}
		broken = nil
		if err := put(t, d, "projects/p/models/x", 1); err != nil {
			t.Error(err)
		}
		if err := put(t, d, "projects/p/models/y", 1); !fault.Full(err) {
			t.Errorf("%v", err)
		}
	})
}

// TestChangesDuringACount: objects are written, replaced and deleted at any moment of a
// count, the first one and one after an hour, and are counted as they are stored at the end.
func TestChangesDuringACount(t *testing.T) {
	for seed := range uint64(200) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 3))
			a := quota.New(quotas("p", quota.Limit{}).get)
			stores := []*listed{{Memory: &blobtest.Memory{}}, {Memory: &blobtest.Memory{}}}
			drivers := []*quota.Driver{a.Over(stores[0]), a.Over(stores[1])}
			key := func() blob.Key {
				return blob.Key(fmt.Sprint("projects/p/", []string{"artifacts", "models"}[r.IntN(2)], "/", r.IntN(8)))
			}
			for range 12 { // there before
				if err := stores[r.IntN(2)].Put(t.Context(), key(), bytes.NewReader(make([]byte, r.IntN(100)))); err != nil {
					t.Fatal(err)
				}
			}
			change := func() {
				d, k := drivers[r.IntN(2)], key()
				if r.IntN(3) == 0 {
					if err := d.Delete(t.Context(), k); err != nil {
						t.Error(err)
					}
				} else if err := put(t, d, string(k), r.IntN(100)); err != nil {
					t.Error(err)
				}
			}
			for range 2 {
				for _, s := range stores {
					s.at = func(blob.Key) {
						for range r.IntN(3) {
							change()
						}
					}
				}
				// One is being written when the count begins, and is whole or given up after it.
				body, w := io.Pipe()
				written := make(chan error, 1)
				goesOn := blob.Key(fmt.Sprint("projects/p/models/slow", r.IntN(2)))
				go func() { written <- drivers[0].Put(context.Background(), goesOn, body) }()
				_, _ = w.Write(make([]byte, 50))
				_, _ = w.Write(make([]byte, 1))
				synctest.Wait()
				<-time.After(2 * time.Hour)
				change()
				synctest.Wait()
				var ends error
				if r.IntN(2) == 0 {
					ends = errors.New("the client left")
				}
				_ = w.CloseWithError(ends)
				if err := <-written; !errors.Is(err, ends) {
					t.Error(err)
				}
				for _, s := range stores {
					s.at = nil // the other account lists them
				}
				want := quota.New(quotas("p", quota.Limit{}).get)
				want.Over(stores[0].Memory)
				want.Over(stores[1].Memory)
				if got, want := used(t, a, "p"), used(t, want, "p"); got != want {
					t.Fatalf("seed %d: counted %s, stored %s", seed, got, want)
				}
			}
		})
	}
}

// TestExempt: what an erasure writes counts and is not refused; what others write is.
func TestExempt(t *testing.T) {
	a := quota.New(quotas("p", quota.Limit{Bytes: 100, Objects: 1}).get)
	d := a.Over(&blobtest.Memory{})
	if err := put(t, d, "projects/p/datasets/1", 100); err != nil {
		t.Fatal(err)
	}
	if err := d.Put(quota.Exempt(t.Context()), "projects/p/datasets/2", bytes.NewReader(make([]byte, 90))); err != nil {
		t.Fatal(err)
	}
	if got := used(t, a, "p"); got != "190/2 datasets 190/2" {
		t.Errorf("beside the old one: %s", got)
	}
	if err := put(t, d, "projects/p/datasets/3", 1); !fault.Full(err) {
		t.Errorf("another write: %v", err)
	}
	if err := d.Delete(t.Context(), "projects/p/datasets/1"); err != nil {
		t.Fatal(err)
	}
	if got := used(t, a, "p"); got != "90/1 datasets 90/1" {
		t.Errorf("at the end: %s", got)
	}
}

// TestWhoWaitsForAnObjectMayGiveUp: a write that takes long keeps the next one of its object
// no longer than that one's client waits.
func TestWhoWaitsForAnObjectMayGiveUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := quota.New(quotas("p", quota.Limit{}).get)
		d := a.Over(&blobtest.Memory{})
		body, w := io.Pipe()
		first := make(chan error)
		go func() { first <- d.Put(context.Background(), "projects/p/models/m", body) }()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := d.Delete(ctx, "projects/p/models/m"); !fault.Is(err, fault.Timeout) {
			t.Errorf("%v", err)
		}
		_ = w.Close()
		if err := <-first; err != nil {
			t.Error(err)
		}
		if got := used(t, a, "p"); got != "0/1 models 0/1" {
			t.Error(got)
		}
	})
}
