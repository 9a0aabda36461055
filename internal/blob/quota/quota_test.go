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
