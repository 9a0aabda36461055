package blobtest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/falaj-ml/falaj/internal/blob"
	"github.com/falaj-ml/falaj/internal/fault"
)

// Run is the suite for drivers. open gives an empty driver of the test.
func Run(t *testing.T, open func(t *testing.T) blob.Driver) {
	t.Helper()
	t.Run("an object is what was put last", func(t *testing.T) {
		d := open(t)
		for _, body := range [][]byte{nil, []byte("one"), bytes.Repeat([]byte("0123456789abcdef"), 320<<10), []byte("last")} {
			put(t, d, "a/b.bin", body)
			if got := get(t, d, "a/b.bin"); !bytes.Equal(got, body) {
				t.Fatalf("got %d bytes, put %d", len(got), len(body))
			}
		}
	})
	t.Run("ReadAt and Size", func(t *testing.T) {
		d := open(t)
		put(t, d, "k", []byte("0123456789"))
		o, err := d.Open(t.Context(), "k")
		if err != nil {
			t.Fatal(err)
		}
		defer o.Close()
		b := make([]byte, 4)
		if n, err := o.ReadAt(b, 3); n != 4 || err != nil || string(b) != "3456" {
			t.Errorf("ReadAt: %d, %v, %q", n, err, b)
		}
		if n, err := o.ReadAt(b, 8); n != 2 || !errors.Is(err, io.EOF) {
			t.Errorf("ReadAt over the end: %d, %v", n, err)
		}
		if o.Size() != 10 {
			t.Errorf("Size: %d", o.Size())
		}
	})
	t.Run("absent", func(t *testing.T) {
		d := open(t)
		for _, k := range []blob.Key{"a", "a/b", "a/b/c"} {
			if _, err := d.Open(t.Context(), k); !fault.Is(err, fault.NotFound) {
				t.Errorf("open %s: %v", k, err)
			}
			if err := d.Delete(t.Context(), k); err != nil {
				t.Errorf("delete %s: %v", k, err)
			}
		}
	})
	t.Run("delete", func(t *testing.T) {
		d := open(t)
		put(t, d, "a/b/c", []byte("1"))
		put(t, d, "a/b/d", []byte("2"))
		if err := d.Delete(t.Context(), "a/b/c"); err != nil {
			t.Fatal(err)
		}
		if _, err := d.Open(t.Context(), "a/b/c"); !fault.Is(err, fault.NotFound) {
			t.Errorf("still there: %v", err)
		}
		if got := get(t, d, "a/b/d"); string(got) != "2" {
			t.Errorf("the neighbour is %q", got)
		}
		if err := d.Delete(t.Context(), "a/b/d"); err != nil {
			t.Fatal(err)
		}
		put(t, d, "a/b/c", []byte("3"))
		if got := get(t, d, "a/b/c"); string(got) != "3" {
			t.Errorf("put after delete: %q", got)
		}
	})
	t.Run("a key may be a directory of another", func(t *testing.T) {
		d := open(t)
		for _, k := range []blob.Key{"a", "a/b", "a/b/c", "a.o", "a.o/b"} {
			put(t, d, k, []byte(k))
		}
		if err := d.Delete(t.Context(), "a/b"); err != nil {
			t.Fatal(err)
		}
		for _, k := range []blob.Key{"a", "a/b/c", "a.o", "a.o/b"} {
			if got := get(t, d, k); string(got) != string(k) {
				t.Errorf("%s is %q", k, got)
			}
		}
	})
	t.Run("list", func(t *testing.T) { list(t, open(t)) })
	t.Run("a broken body stores nothing", func(t *testing.T) {
		d := open(t)
		put(t, d, "old", []byte("old"))
		broken := fault.New(fault.TooLarge, "enough")
		for _, k := range []blob.Key{"old", "new/one"} {
			body := io.MultiReader(strings.NewReader("half"), failing{broken})
			if err := d.Put(t.Context(), k, body); !fault.Is(err, fault.TooLarge) {
				t.Errorf("put %s: %v", k, err)
			}
		}
		if got := get(t, d, "old"); string(got) != "old" {
			t.Errorf("the old object is %q", got)
		}
		if all := keysOf(t, d, ""); !slices.Equal(all, []blob.Key{"old"}) {
			t.Errorf("there is %v", all)
		}
	})
	t.Run("an ended context stores nothing", func(t *testing.T) {
		d := open(t)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := d.Put(ctx, "k", strings.NewReader("x")); err == nil {
			t.Error("put")
		}
		if all := keysOf(t, d, ""); len(all) != 0 {
			t.Errorf("there is %v", all)
		}
	})
	t.Run("puts at once", func(t *testing.T) {
		d := open(t)
		var wg sync.WaitGroup
		for _, name := range []string{"a", "b", "c", "d", "e", "f", "g", "h"} {
			wg.Go(func() {
				body := bytes.Repeat([]byte(name), 100_000)
				for range 5 {
					if err := d.Put(t.Context(), "deep/er/shared", bytes.NewReader(body)); err != nil {
						t.Error(err)
					}
					own := blob.Key("own/" + name + "/x")
					if err := d.Put(t.Context(), own, bytes.NewReader(body)); err != nil {
						t.Error(err)
					}
					if err := d.Delete(t.Context(), own); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		got := get(t, d, "deep/er/shared")
		if len(got) != 100_000 || len(bytes.Trim(got, string(got[:1]))) != 0 {
			t.Errorf("%d bytes, mixed", len(got))
		}
		if all := keysOf(t, d, ""); !slices.Equal(all, []blob.Key{"deep/er/shared"}) {
			t.Errorf("there is %v", all)
		}
	})
}

func list(t *testing.T, d blob.Driver) {
	t.Helper()
	all := []blob.Key{"a", "a+b", "a-b", "a.b", "a/b", "a/b/c", "a/bc", "a0", "a=b", "b/x", "c"}
	for _, k := range slices.Backward(all) {
		put(t, d, k, []byte("x"))
	}
	for _, prefix := range []blob.Key{"", "a", "a/", "a/b", "a/b/", "b", "b/x", "b/xx", "nothing/", "c/"} {
		var want []blob.Key
		for _, k := range all {
			if strings.HasPrefix(string(k), string(prefix)) {
				want = append(want, k)
			}
		}
		if got := keysOf(t, d, prefix); !slices.Equal(got, want) {
			t.Errorf("list %q: %v, want %v", prefix, got, want)
		}
	}
	stop := errors.New("stop")
	n := 0
	err := d.List(t.Context(), "", func(blob.Key) error {
		n++
		if n == 3 {
			return stop
		}
		return nil
	})
	if !errors.Is(err, stop) || n != 3 {
		t.Errorf("stopped after %d: %v", n, err)
	}
	if err := d.List(t.Context(), "a", func(k blob.Key) error { return d.Delete(t.Context(), k) }); err != nil {
		t.Errorf("delete while listing: %v", err)
	}
	if got := keysOf(t, d, ""); !slices.Equal(got, []blob.Key{"b/x", "c"}) {
		t.Errorf("left: %v", got)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := d.List(ctx, "", func(blob.Key) error { return nil }); err == nil {
		t.Error("an ended context listed")
	}
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

func put(t *testing.T, d blob.Driver, k blob.Key, body []byte) {
	t.Helper()
	if err := d.Put(t.Context(), k, bytes.NewReader(body)); err != nil {
		t.Fatalf("put %s: %v", k, err)
	}
}

func get(t *testing.T, d blob.Driver, k blob.Key) []byte {
	t.Helper()
	o, err := d.Open(t.Context(), k)
	if err != nil {
		t.Fatalf("open %s: %v", k, err)
	}
	defer o.Close()
	b, err := io.ReadAll(o)
	if err != nil {
		t.Fatalf("read %s: %v", k, err)
	}
	return b
}

func keysOf(t *testing.T, d blob.Driver, prefix blob.Key) []blob.Key {
	t.Helper()
	var all []blob.Key
	if err := d.List(t.Context(), prefix, func(k blob.Key) error { all = append(all, k); return nil }); err != nil {
		t.Fatalf("list %q: %v", prefix, err)
	}
	return all
}
