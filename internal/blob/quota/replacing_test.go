package quota_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/falaj-ml/falaj/internal/blob"
	"github.com/falaj-ml/falaj/internal/blob/blobtest"
	"github.com/falaj-ml/falaj/internal/blob/quota"
	"github.com/falaj-ml/falaj/internal/fault"
)

// TestLoweredQuota: a project that stores more than its quota may replace an object by one
// that is not larger, and stores nothing new.
func TestLoweredQuota(t *testing.T) {
	of := quotas("p", quota.Limit{})
	a := quota.New(of.get)
	d := a.Over(&blobtest.Memory{})
	for _, key := range []string{"projects/p/models/a", "projects/p/models/b"} {
		if err := put(t, d, key, 100); err != nil {
			t.Fatal(err)
		}
	}
	of.of["p"] = quota.Limit{Bytes: 50, Objects: 1, Kinds: map[string]quota.Amount{"models": {Bytes: 40, Objects: 1}}}
	for _, step := range []struct {
		key  string
		size int // -1: delete
		full bool
		want string
	}{
		{"projects/p/models/a", 101, true, "200/2 models 200/2"},
		{"projects/p/models/a", 100, false, "200/2 models 200/2"},
		{"projects/p/models/a", 30, false, "130/2 models 130/2"},
		{"projects/p/models/a", 31, true, "130/2 models 130/2"},
		{"projects/p/models/c", 0, true, "130/2 models 130/2"},
		{"projects/p/models/b", 0, false, "30/2 models 30/2"},
		{"projects/p/models/b", 10, false, "40/2 models 40/2"},
		{"projects/p/models/b", -1, false, "30/1 models 30/1"},
		{"projects/p/models/a", 41, true, "30/1 models 30/1"},
		{"projects/p/models/a", 40, false, "40/1 models 40/1"},
	} {
		var err error
		if step.size < 0 {
			err = d.Delete(t.Context(), blob.Key(step.key))
		} else {
			err = put(t, d, step.key, step.size)
		}
		if fault.Full(err) != step.full || err != nil && !step.full {
			t.Fatalf("%s of %d bytes: %v", step.key, step.size, err)
		}
		if got := used(t, a, "p"); got != step.want {
			t.Fatalf("after %s of %d bytes: %s, want %s", step.key, step.size, got, step.want)
		}
	}
}

// TestKinds: the quota of a kind refuses that kind only, names its field, and leaves what is
// left of the whole to the others.
func TestKinds(t *testing.T) {
	a := quota.New(quotas("p", quota.Limit{Bytes: 100, Kinds: map[string]quota.Amount{"checkpoints": {Bytes: 40}, "models": {Objects: 1}}}).get)
	d := a.Over(&blobtest.Memory{})
	for _, step := range []struct {
		key   string
		size  int
		wants []string // in the refusal
	}{
		{"projects/p/checkpoints/a", 40, nil},
		{"projects/p/checkpoints/b", 1, []string{"a quota of 40 bytes for checkpoints, and stores 40 bytes", "spec.quota.kinds.checkpoints"}},
		{"projects/p/models/a", 1, nil},
		{"projects/p/models/b", 0, []string{"a quota of 1 objects for models, and stores 1", "spec.quota.kinds.models"}},
		{"projects/p/artifacts/a", 59, nil},
		{"projects/p/artifacts/b", 1, []string{"a quota of 100 bytes, and stores 100 bytes", "spec.quota of"}},
	} {
		err := put(t, d, step.key, step.size)
		if fault.Full(err) != (step.wants != nil) {
			t.Fatalf("%s: %v", step.key, err)
		}
		for _, want := range step.wants {
			if text := err.Error() + "\n" + fault.HintOf(err); !strings.Contains(text, want) {
				t.Errorf("%s: %s; want %q", step.key, text, want)
			}
		}
	}
	if got := used(t, a, "p"); got != "100/3 artifacts 59/1 checkpoints 40/1 models 1/1" {
		t.Error(got)
	}
}

func keys(all ...blob.Key) func(context.Context) ([]blob.Key, error) {
	return func(context.Context) ([]blob.Key, error) { return all, nil }
}

// TestReplacing: what is stored instead of others may be as large as they are, at the quota;
// of another project or kind, of what is gone, and of what another write replaces it is not.
func TestReplacing(t *testing.T) {
	for name, c := range map[string]struct {
		others []blob.Key
		size   int
		full   bool
	}{
		"smaller":          {[]blob.Key{"projects/p/artifacts/a"}, 30, false},
		"as large":         {[]blob.Key{"projects/p/artifacts/a"}, 40, false},
		"larger":           {[]blob.Key{"projects/p/artifacts/a"}, 41, true},
		"several":          {[]blob.Key{"projects/p/artifacts/a", "projects/p/artifacts/b"}, 90, false},
		"larger than both": {[]blob.Key{"projects/p/artifacts/a", "projects/p/artifacts/b"}, 91, true},
		"twice the same":   {[]blob.Key{"projects/p/artifacts/a", "projects/p/artifacts/a"}, 41, true},
		"another kind":     {[]blob.Key{"projects/p/models/m"}, 1, true},
		"another project":  {[]blob.Key{"projects/q/artifacts/a"}, 1, true},
		"of no project":    {[]blob.Key{"gateway/a"}, 1, true},
		"absent":           {[]blob.Key{"projects/p/artifacts/none"}, 1, true},
		"nothing":          {nil, 1, true},
	} {
		t.Run(name, func(t *testing.T) {
			a := quota.New(quotas("p", quota.Limit{Bytes: 100, Objects: 3}).get)
			d := a.Over(&blobtest.Memory{})
			for key, size := range map[string]int{"projects/p/artifacts/a": 40, "projects/p/artifacts/b": 50, "projects/p/models/m": 10, "projects/q/artifacts/a": 90, "gateway/a": 90} {
				if err := put(t, d, key, size); err != nil {
					t.Fatal(err)
				}
			}
			err := d.Put(quota.Replacing(t.Context(), keys(c.others...)), "projects/p/artifacts/new", strings.NewReader(strings.Repeat("x", c.size)))
			if fault.Full(err) != c.full || err != nil && !c.full {
				t.Fatal(err)
			}
			if err == nil {
				for _, key := range c.others {
					if err := d.Delete(t.Context(), key); err != nil {
						t.Fatal(err)
					}
				}
			}
			sum, _, err := a.Used(t.Context(), "p")
			if err != nil || sum.Bytes > 100 || sum.Objects > 3 || c.full && (sum.Bytes != 100 || sum.Objects != 3) {
				t.Errorf("%+v, %v", sum, err)
			}
		})
	}
}

// TestReplacedOnce: of several writes that replace one object at once, one is stored; none is
// when the object goes meanwhile and others take its room.
func TestReplacedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := quota.New(quotas("p", quota.Limit{Bytes: 100}).get)
		d := a.Over(&blobtest.Memory{})
		const old = "projects/p/artifacts/old"
		if err := put(t, d, old, 100); err != nil {
			t.Fatal(err)
		}
		begin := func(n int) (*io.PipeWriter, chan error) {
			body, w := io.Pipe()
			result := make(chan error, 1)
			go func() {
				err := d.Put(quota.Replacing(context.Background(), keys(old)), blob.Key(fmt.Sprint("projects/p/artifacts/", n)), body)
				_ = body.CloseWithError(err)
				result <- err
			}()
			_, _ = w.Write(make([]byte, 60))
			synctest.Wait()
			return w, result
		}
		first, stored := begin(1)
		_, refused := begin(2)
		if err := <-refused; !fault.Full(err) {
			t.Errorf("the second one: %v", err)
		}
		// The object is deleted, and another one takes what is left beside the first one's 60.
		if err := d.Delete(t.Context(), old); err != nil {
			t.Fatal(err)
		}
		if err := put(t, d, "projects/p/models/m", 40); err != nil {
			t.Fatal(err)
		}
		_, _ = first.Write(make([]byte, 1))
		_ = first.Close()
		if err := <-stored; !fault.Full(err) {
			t.Errorf("the first one goes on: %v", err)
		}
		if got := used(t, a, "p"); got != "40/1 models 40/1" {
			t.Error(got)
		}
		// Nothing is left of the claims: an object of the same name may be replaced.
		if err := put(t, d, old, 60); err != nil {
			t.Fatal(err)
		}
		if err := d.Put(quota.Replacing(t.Context(), keys(old)), "projects/p/artifacts/1", strings.NewReader(strings.Repeat("x", 60))); err != nil {
			t.Error(err)
		}
	})
}

// TestReplacingKeepsTheQuota: writers and deleters of many objects at once, each replacing
// some, never leave more than the quota once what was replaced is deleted.
func TestReplacingKeepsTheQuota(t *testing.T) {
	a := quota.New(quotas("p", quota.Limit{Bytes: 300, Objects: 6}).get)
	d := a.Over(&blobtest.Memory{})
	var all sync.WaitGroup
	for i := range uint64(8) {
		all.Go(func() {
			r := rand.New(rand.NewPCG(i, 104))
			last := blob.Key("projects/p/artifacts/none")
			for n := range 100 {
				key := blob.Key(fmt.Sprintf("projects/p/artifacts/%d-%d", i, n))
				body := strings.NewReader(strings.Repeat("x", r.IntN(120)))
				var err error
				if r.IntN(4) == 0 {
					err = d.Put(context.Background(), key, io.MultiReader(body, errReader{}))
				} else {
					err = d.Put(quota.Replacing(context.Background(), keys(last)), key, body)
				}
				if err == nil || r.IntN(10) == 0 {
					if err := d.Delete(context.Background(), last); err != nil {
						t.Error(err)
					}
				}
				if err == nil {
					last = key
				}
			}
		})
	}
	all.Wait()
	sum, _, err := a.Used(t.Context(), "p")
	if err != nil || sum.Bytes > 300 || sum.Objects > 6 {
		t.Errorf("%+v, %v", sum, err)
	}
}

// TestReached: a quota is told of once when something is refused, and again after a tenth of
// it was made free or filled, or when it was changed.
func TestReached(t *testing.T) {
	of := quotas("p", quota.Limit{Bytes: 1000, Kinds: map[string]quota.Amount{"models": {Objects: 2}}})
	a := quota.New(of.get)
	woken := 0
	a.OnReached(func() { woken++ })
	d := a.Over(&blobtest.Memory{})
	told := func() string {
		var out []string
		if err := a.Tell(t.Context(), func(_ context.Context, r quota.Reached) error {
			out = append(out, fmt.Sprintf("%s %q %d/%d of %d/%d", r.Project, r.Kind, r.Stored.Bytes, r.Stored.Objects, r.Limit.Bytes, r.Limit.Objects))
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		return strings.Join(out, ", ")
	}
	for i, step := range []struct {
		key  string
		size int // -1: delete
		want string
	}{
		{"artifacts/a", 900, ""},
		{"artifacts/b", 200, `p "" 900/1 of 1000/0`},
		{"artifacts/b", 200, ""}, // the same event
		{"artifacts/c", 50, ""},
		{"artifacts/b", 200, ""},
		{"artifacts/c", -1, ""},
		{"artifacts/b", 200, ""}, // 50 bytes were stored and deleted: no tenth
		{"artifacts/a", -1, ""},
		{"artifacts/a", 900, ""},
		{"artifacts/b", 200, `p "" 900/1 of 1000/0`},
		{"models/a", 0, ""},
		{"models/b", 0, ""},
		{"models/c", 0, `p "models" 0/2 of 0/2`},
		{"models/c", 0, ""},
		{"models/b", -1, ""},
		{"models/b", 0, ""},
		{"models/c", 0, `p "models" 0/2 of 0/2`},
		{"artifacts/b", 200, ""},
	} {
		key := blob.Key("projects/p/" + step.key)
		if step.size < 0 {
			if err := d.Delete(t.Context(), key); err != nil {
				t.Fatal(err)
			}
		} else if err := put(t, d, string(key), step.size); err != nil && !fault.Full(err) {
			t.Fatal(err)
		}
		if got := told(); got != step.want {
			t.Errorf("step %d, %s: told %q, want %q", i, step.key, got, step.want)
		}
	}
	of.of["p"] = quota.Limit{Bytes: 1001}
	if err := put(t, d, "projects/p/artifacts/b", 200); !fault.Full(err) {
		t.Error(err)
	}
	if got := told(); got != `p "" 900/3 of 1001/0` || woken != 5 {
		t.Errorf("of another quota %q; woken %d times", got, woken)
	}
}

// TestReachedIsKept: what could not be told is told with the next call.
func TestReachedIsKept(t *testing.T) {
	a := quota.New(func(context.Context, string) (quota.Limit, error) { return quota.Limit{Bytes: 1}, nil })
	d := a.Over(&blobtest.Memory{})
	for _, p := range []string{"a", "b"} {
		if err := put(t, d, "projects/"+p+"/models/m", 2); !fault.Full(err) {
			t.Fatal(err)
		}
	}
	var told []string
	broken := errors.New("the database is away")
	tell := func(_ context.Context, r quota.Reached) error {
		if r.Project == "b" && broken != nil {
			return broken
		}
		told = append(told, r.Project)
		return nil
	}
	if err := a.Tell(t.Context(), tell); !errors.Is(err, broken) {
		t.Fatal(err)
	}
	broken = nil
	if err := errors.Join(a.Tell(t.Context(), tell), a.Tell(t.Context(), tell)); err != nil || strings.Join(told, " ") != "a b" {
		t.Errorf("told of %v, %v", told, err)
	}
}
