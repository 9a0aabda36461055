package blob_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/tink-crypto/tink-go/v2/tink"
	"pgregory.net/rapid"

	"github.com/falaj-ml/falaj/internal/blob"
	"github.com/falaj-ml/falaj/internal/blob/blobtest"
	"github.com/falaj-ml/falaj/internal/fault"
)

var ref = blob.Ref{Project: "wind", Owner: "dataset/weather", Key: "projects/wind/a.bin"}

func digest(b []byte) string {
	h := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(h[:])
}

func newStore() (*blob.Store, *blobtest.Memory) {
	m := &blobtest.Memory{}
	return blob.New(m, blobtest.NewSealer()), m
}

func read(t *testing.T, s *blob.Store, ref blob.Ref) ([]byte, error) {
	t.Helper()
	r, err := s.Open(t.Context(), ref)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return io.ReadAll(r)
}

func stored(t *testing.T, d blob.Driver, k blob.Key) []byte {
	t.Helper()
	o, err := d.Open(t.Context(), k)
	if err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	b, err := io.ReadAll(o)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestRoundTrip(t *testing.T) {
	sizes := []int{0, 1, 63, 64 << 10, 1<<20 - 72, 1 << 20, 1<<20 + 1, 3<<20 + 17}
	for _, sealed := range []bool{false, true} {
		s, m := newStore()
		var opts []blob.Option
		if sealed {
			opts = append(opts, blob.WithSealed())
		}
		for _, n := range sizes {
			body := bytes.Repeat([]byte("sovereign"), n/9+1)[:n]
			info, err := s.Put(t.Context(), ref, bytes.NewReader(body), opts...)
			if err != nil {
				t.Fatal(err)
			}
			want := blob.Info{Size: int64(n), Digest: digest(body), Sealed: sealed}
			if info != want {
				t.Errorf("put: %+v, want %+v", info, want)
			}
			if got, err := s.Stat(t.Context(), ref); err != nil || got != want {
				t.Errorf("stat: %+v, %v", got, err)
			}
			if got, err := read(t, s, ref); err != nil || !bytes.Equal(got, body) {
				t.Errorf("%d bytes, sealed %v: %d, %v", n, sealed, len(got), err)
			}
			at, err := s.OpenAt(t.Context(), ref)
			if err != nil {
				t.Fatal(err)
			}
			if got, err := io.ReadAll(io.NewSectionReader(at, 0, at.Size())); err != nil || !bytes.Equal(got, body) {
				t.Errorf("at: %d bytes, %v", len(got), err)
			}
			if err := at.Close(); err != nil {
				t.Error(err)
			}
			if inClear := n > 63 && bytes.Contains(stored(t, m, ref.Key), body[:32]); inClear != (sealed && n > 63) {
				t.Errorf("sealed %v, in clear %v", sealed, inClear)
			}
		}
	}
}

func TestReadersOfEveryShape(t *testing.T) {
	s, _ := newStore()
	body := bytes.Repeat([]byte("abc"), 500_000)
	if _, err := s.Put(t.Context(), ref, iotest.OneByteReader(bytes.NewReader(body[:1000]))); err != nil {
		t.Fatal(err)
	}
	r, err := s.Open(t.Context(), ref)
	if err != nil {
		t.Fatal(err)
	}
	if err := iotest.TestReader(r, body[:1000]); err != nil {
		t.Error(err)
	}
	if _, err := s.Put(t.Context(), ref, iotest.HalfReader(bytes.NewReader(body))); err != nil {
		t.Fatal(err)
	}
	if got, err := read(t, s, ref); err != nil || !bytes.Equal(got, body) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
}

// Any change of the stored bytes is refused before the reader sees io.EOF.
func TestEveryChangeIsFound(t *testing.T) {
	for _, sealed := range []bool{false, true} {
		s, m := newStore()
		var opts []blob.Option
		if sealed {
			opts = append(opts, blob.WithSealed())
		}
		body := bytes.Repeat([]byte("0123456789"), 120_000) // two segments
		if _, err := s.Put(t.Context(), ref, bytes.NewReader(body), opts...); err != nil {
			t.Fatal(err)
		}
		whole := stored(t, m, ref.Key)
		rapid.Check(t, func(rt *rapid.T) {
			b := bytes.Clone(whole)
			switch rapid.IntRange(0, 3).Draw(rt, "kind") {
			case 0:
				b[rapid.IntRange(0, len(b)-1).Draw(rt, "at")] ^= byte(rapid.IntRange(1, 255).Draw(rt, "flip"))
			case 1:
				b = b[:rapid.IntRange(0, len(b)-1).Draw(rt, "keep")]
			case 2:
				b = append(b, rapid.SliceOfN(rapid.Byte(), 1, 64).Draw(rt, "more")...)
			case 3:
				at := rapid.IntRange(0, len(b)-1).Draw(rt, "at")
				b = append(b[:at:at], b[min(len(b), at+rapid.IntRange(1, 5000).Draw(rt, "cut")):]...)
			}
			if err := m.Put(t.Context(), ref.Key, bytes.NewReader(b)); err != nil {
				rt.Fatal(err)
			}
			if _, err := read(t, s, ref); !errors.Is(err, blob.ErrDamaged) {
				rt.Fatalf("read: %v", err)
			}
		})
	}
}

// Whoever watches over the store hears of every damaged object that somebody read.
func TestDamageIsTold(t *testing.T) {
	s, m := newStore()
	var told []blob.Key
	s.OnDamaged(func(_ context.Context, ref blob.Ref, err error) {
		if !errors.Is(err, blob.ErrDamaged) {
			t.Error(err)
		}
		told = append(told, ref.Key)
	})
	for i, change := range []func(b []byte) []byte{
		func(b []byte) []byte { b[0] ^= 1; return b },
		func(b []byte) []byte { b[len(b)-1] ^= 1; return b },
		func(b []byte) []byte { return b[:len(b)-1] },
		func(b []byte) []byte { return b },
	} {
		ref := blob.Ref{Key: blob.Key(fmt.Sprintf("told/%d", i)), Project: "p", Owner: "o"}
		if _, err := s.Put(t.Context(), ref, strings.NewReader("what was written")); err != nil {
			t.Fatal(err)
		}
		if err := m.Put(t.Context(), ref.Key, bytes.NewReader(change(stored(t, m, ref.Key)))); err != nil {
			t.Fatal(err)
		}
		if _, err := read(t, s, ref); (err != nil) != (i < 3) {
			t.Errorf("%s: %v", ref.Key, err)
		}
	}
	if len(told) != 3 {
		t.Errorf("told of %v", told)
	}
}

func TestBytesOpenOnlyAtTheirPlace(t *testing.T) {
	s, m := newStore()
	for _, opts := range [][]blob.Option{nil, {blob.WithSealed()}} {
		if _, err := s.Put(t.Context(), ref, strings.NewReader("mine"), opts...); err != nil {
			t.Fatal(err)
		}
		b := stored(t, m, ref.Key)
		for _, other := range []blob.Ref{
			{Project: "sun", Owner: ref.Owner, Key: ref.Key},
			{Project: ref.Project, Owner: "artifacts", Key: ref.Key},
			{Project: ref.Project, Owner: ref.Owner, Key: "projects/wind/b.bin"},
		} {
			if err := m.Put(t.Context(), other.Key, bytes.NewReader(b)); err != nil {
				t.Fatal(err)
			}
			if _, err := read(t, s, other); !errors.Is(err, blob.ErrDamaged) {
				t.Errorf("%+v: %v", other, err)
			}
			if _, err := s.Stat(t.Context(), other); !errors.Is(err, blob.ErrDamaged) {
				t.Errorf("stat %+v: %v", other, err)
			}
		}
	}
}

// A body and a trailer of two versions of one object do not fit together.
func TestVersionsDoNotMix(t *testing.T) {
	s, m := newStore()
	if _, err := s.Put(t.Context(), ref, strings.NewReader("pay 100")); err != nil {
		t.Fatal(err)
	}
	one := stored(t, m, ref.Key)
	if _, err := s.Put(t.Context(), ref, strings.NewReader("pay 999")); err != nil {
		t.Fatal(err)
	}
	two := stored(t, m, ref.Key)
	const body = 1 + 32 + 7 + 7 + 16 // header, plaintext, tag
	if err := m.Put(t.Context(), ref.Key, bytes.NewReader(append(bytes.Clone(one[:body]), two[body:]...))); err != nil {
		t.Fatal(err)
	}
	if _, err := read(t, s, ref); !errors.Is(err, blob.ErrDamaged) || !strings.Contains(err.Error(), "digest") {
		t.Errorf("mixed: %v", err)
	}
}

func TestOptions(t *testing.T) {
	s, m := newStore()
	body := []byte("0123456789")
	if _, err := s.Put(t.Context(), ref, bytes.NewReader(body), blob.WithLimit(10), blob.WithDigest(digest(body))); err != nil {
		t.Errorf("at the limit: %v", err)
	}
	other := ref
	other.Key = "projects/wind/other"
	_, err := s.Put(t.Context(), other, bytes.NewReader(body), blob.WithLimit(9))
	if !fault.Is(err, fault.TooLarge) || fault.HintOf(err) == "" {
		t.Errorf("over the limit: %v", err)
	}
	_, err = s.Put(t.Context(), other, bytes.NewReader(body), blob.WithDigest(digest(nil)))
	if !fault.Is(err, fault.Invalid) || fault.HintOf(err) == "" {
		t.Errorf("another digest: %v", err)
	}
	if _, err := m.Open(t.Context(), other.Key); !fault.Is(err, fault.NotFound) {
		t.Errorf("something was stored: %v", err)
	}
}

func TestWriter(t *testing.T) {
	s, m := newStore()
	w, err := s.Create(t.Context(), ref)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(w, "part one, "); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Stat(t.Context(), ref); !fault.Is(err, fault.NotFound) {
		t.Errorf("visible before Commit: %v", err)
	}
	if _, err := io.WriteString(w, "part two"); err != nil {
		t.Fatal(err)
	}
	info, err := w.Commit()
	if err != nil || info.Digest != digest([]byte("part one, part two")) {
		t.Errorf("%+v, %v", info, err)
	}
	w.Abort() // does nothing
	if got, err := read(t, s, ref); err != nil || string(got) != "part one, part two" {
		t.Errorf("%q, %v", got, err)
	}
	if _, err := w.Commit(); err == nil {
		t.Error("a second Commit")
	}
	if _, err := w.Write([]byte("x")); err == nil {
		t.Error("Write after Commit")
	}

	w, err = s.Create(t.Context(), blob.Ref{Project: "wind", Key: "given/up"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(make([]byte, 3<<20)); err != nil {
		t.Fatal(err)
	}
	w.Abort()
	w.Abort()
	if _, err := m.Open(t.Context(), "given/up"); !fault.Is(err, fault.NotFound) {
		t.Errorf("an aborted object: %v", err)
	}
	if _, err := w.Commit(); err == nil {
		t.Error("Commit after Abort")
	}
}

func TestWriterEndsWithItsContext(t *testing.T) {
	s, m := newStore()
	ctx, cancel := context.WithCancel(t.Context())
	w, err := s.Create(ctx, ref)
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	for range 100 { // until the pipe is cut
		if _, err = w.Write(make([]byte, 1<<20)); err != nil {
			break
		}
	}
	if !fault.Is(err, fault.Timeout) {
		t.Errorf("write: %v", err)
	}
	if _, err := w.Commit(); !fault.Is(err, fault.Timeout) {
		t.Errorf("commit: %v", err)
	}
	if _, err := m.Open(t.Context(), ref.Key); !fault.Is(err, fault.NotFound) {
		t.Errorf("something was stored: %v", err)
	}

	if _, err := s.Put(t.Context(), ref, strings.NewReader("x")); err != nil {
		t.Fatal(err)
	}
	ctx, cancel = context.WithCancel(t.Context())
	r, err := s.Open(ctx, ref)
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	if _, err := io.ReadAll(r); !fault.Is(err, fault.Timeout) {
		t.Errorf("read: %v", err)
	}
}

func TestErrorsKeepTheirKind(t *testing.T) {
	m := &blobtest.Memory{}
	full := fault.New(fault.Exhausted, "the disk is full").WithHint("Free some.")
	for _, after := range []int64{0, 100, 2 << 20} {
		s := blob.New(blobtest.Failing{Driver: m, After: after, Err: full}, blobtest.NewSealer())
		_, err := s.Put(t.Context(), ref, bytes.NewReader(make([]byte, 4<<20)))
		if !fault.Is(err, fault.Exhausted) || fault.HintOf(err) == "" {
			t.Errorf("after %d: %v", after, err)
		}
		_, err = s.Put(t.Context(), ref, strings.NewReader("small"))
		if after < 1000 && !fault.Is(err, fault.Exhausted) {
			t.Errorf("small, after %d: %v", after, err)
		}
	}
	s := blob.New(m, blobtest.NewSealer())
	cause := errors.New("the client hung up")
	if _, err := s.Put(t.Context(), ref, iotest.ErrReader(cause)); !errors.Is(err, cause) {
		t.Errorf("source: %v", err)
	}
	s = blob.New(m, gone{})
	if _, err := s.Put(t.Context(), ref, strings.NewReader("x")); !fault.Is(err, fault.Gone) {
		t.Errorf("destroyed key: %v", err)
	}
}

type gone struct{}

func (gone) AEAD(context.Context, string, string) (tink.AEAD, error) {
	return nil, fault.New(fault.Gone, "destroyed")
}

func (gone) StreamingAEAD(context.Context, string, string) (tink.StreamingAEAD, error) {
	return nil, fault.New(fault.Gone, "destroyed")
}

// failingAt breaks in the middle of a read, which is not damage.
type failingAt struct{ blob.Driver }

type failingObject struct{ blob.Object }

func (d failingAt) Open(ctx context.Context, k blob.Key) (blob.Object, error) {
	o, err := d.Driver.Open(ctx, k)
	return failingObject{o}, err
}

func (o failingObject) ReadAt(p []byte, off int64) (int, error) {
	if off < o.Size()/2 {
		return 0, fault.New(fault.Unavailable, "the network is down")
	}
	return o.Object.ReadAt(p, off)
}

func TestAFailingReadIsNotDamage(t *testing.T) {
	m, sealer := &blobtest.Memory{}, blobtest.NewSealer()
	if _, err := blob.New(m, sealer).Put(t.Context(), ref, bytes.NewReader(make([]byte, 3<<20))); err != nil {
		t.Fatal(err)
	}
	_, err := read(t, blob.New(failingAt{m}, sealer), ref)
	if !fault.Is(err, fault.Unavailable) || errors.Is(err, blob.ErrDamaged) {
		t.Errorf("read: %v", err)
	}
}

func TestBadRefs(t *testing.T) {
	s, _ := newStore()
	bad := []blob.Ref{
		{Project: "wind", Key: "../x"},
		{Project: "wind\x00", Key: "x"},
		{Project: "wind", Owner: strings.Repeat("a", 300), Key: "x"},
	}
	for _, r := range bad {
		if _, err := s.Put(t.Context(), r, strings.NewReader("x")); !fault.Is(err, fault.Invalid) {
			t.Errorf("put %+v: %v", r, err)
		}
		if _, err := s.Open(t.Context(), r); !fault.Is(err, fault.Invalid) {
			t.Errorf("open %+v: %v", r, err)
		}
		if err := s.Delete(t.Context(), r); !fault.Is(err, fault.Invalid) {
			t.Errorf("delete %+v: %v", r, err)
		}
	}
	if err := s.List(t.Context(), "../", func(blob.Key) error { return nil }); !fault.Is(err, fault.Invalid) {
		t.Errorf("list: %v", err)
	}
	if err := s.Delete(t.Context(), ref); err != nil {
		t.Errorf("delete of nothing: %v", err)
	}
}

func TestMemory(t *testing.T) {
	blobtest.Run(t, func(*testing.T) blob.Driver { return &blobtest.Memory{} })
}

func BenchmarkPut(b *testing.B) {
	for name, n := range map[string]int{"4KiB": 4 << 10, "16MiB": 16 << 20} {
		b.Run(name, func(b *testing.B) {
			s, _ := newStore()
			body := make([]byte, n)
			b.SetBytes(int64(n))
			for b.Loop() {
				if _, err := s.Put(b.Context(), ref, bytes.NewReader(body)); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func TestHashedByTheCaller(t *testing.T) {
	s, _ := newStore()
	content := bytes.Repeat([]byte("wind"), 1000)
	info, err := s.Put(t.Context(), ref, bytes.NewReader(content), blob.WithHashed(digest(content)))
	if err != nil || info.Digest != digest(content) {
		t.Fatal(info, err)
	}
	if got, err := read(t, s, ref); err != nil || !bytes.Equal(got, content) {
		t.Error(err)
	}
	// A caller that is wrong is found out by the reader.
	if _, err := s.Put(t.Context(), ref, bytes.NewReader(content[1:]), blob.WithHashed(digest(content))); err != nil {
		t.Fatal(err)
	}
	if _, err := read(t, s, ref); !errors.Is(err, blob.ErrDamaged) {
		t.Errorf("a wrong digest: %v", err)
	}
}
