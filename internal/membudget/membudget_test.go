package membudget

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
)

func TestTake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		b := New(100)
		alice, other := b.Share("alice"), b.Share("bob")
		if err := alice.Take(ctx, 51); !fault.Is(err, fault.TooLarge) || !strings.Contains(err.Error(), Setting) {
			t.Errorf("more than half: %v", err)
		}
		if err := alice.Take(ctx, 50); err != nil {
			t.Fatal(err)
		}
		if err := b.Share("alice").Try(1); !fault.Is(err, fault.Exhausted) {
			t.Errorf("another request of the same principal: %v", err)
		}
		if err := other.Take(ctx, 50); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		err := b.Share("carol").Take(ctx, 1)
		if !fault.Is(err, fault.Exhausted) || fault.RetryOf(err) <= 0 || !strings.Contains(err.Error(), Setting) {
			t.Errorf("full: %v", err)
		}
		if waited := time.Since(start); waited != Patience {
			t.Errorf("waited %s", waited)
		}
		go func() {
			<-time.After(Patience / 2)
			alice.Free()
			alice.Free()
		}()
		carol := b.Share("carol")
		if err := carol.Take(ctx, 40); err != nil {
			t.Errorf("after alice: %v", err)
		}
		if b.Used() != 90 {
			t.Errorf("used %d", b.Used())
		}
		canceled, cancel := context.WithCancel(ctx)
		cancel()
		if err := b.Share("dave").Take(canceled, 20); err != context.Canceled { //nolint:errorlint // itself
			t.Errorf("canceled: %v", err)
		}
		carol.Hold(1000)
		if err := b.Share("dave").Try(1); !fault.Is(err, fault.Exhausted) {
			t.Errorf("after Hold: %v", err)
		}
		carol.Free()
		other.Give(50)
		if b.Used() != 0 || len(b.by) != 0 {
			t.Errorf("used %d, by %v", b.Used(), b.by)
		}
	})
}

// TestWeights: what JSON takes when it is decoded is no more than what is held for it.
func TestWeights(t *testing.T) {
	const size = 1 << 20
	texts := map[string]string{
		"numbers": `0,`, "fractions": `1.5,`, "empty objects": `{},`, "objects": `{"a":0},`, "lists": `[],`, "lists of one": `[0],`, "strings": `"",`,
		"nested": strings.Repeat("[", 100) + strings.Repeat("]", 100) + ",", "objects of two": `{"a":0,"b":1},`,
	}
	for name, item := range texts {
		text := "[" + strings.TrimSuffix(strings.Repeat(item, size/len(item)), ",") + "]"
		var s scanner
		weight, err := s.weigh([]byte(text), JSON)
		if err != nil {
			t.Fatal(name, err)
		}
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		var v any
		if err := json.Unmarshal([]byte(text), &v); err != nil {
			t.Fatal(name, err)
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		if took := int64(after.HeapAlloc) - int64(before.HeapAlloc); took > weight {
			t.Errorf("%s: %d bytes of memory, %d are held", name, took, weight)
		}
		runtime.KeepAlive(v)
	}
}

func TestMeter(t *testing.T) {
	read := func(text string, most int64) error {
		s := New(most).Share("alice")
		defer s.Free()
		m := NewMeter(t.Context(), io.NopCloser(&slow{text}), s, JSON)
		_, err := io.Copy(io.Discard, m)
		return err
	}
	deep := strings.Repeat("[", MaxDepth)
	for text, want := range map[string]fault.Kind{
		deep + "[":                          fault.TooLarge,
		strings.Repeat(`{"a":`, 70_000):     fault.TooLarge,
		strings.Repeat("x", 1<<20):          fault.TooLarge, // more than the budget
		`{"a":"` + strings.Repeat("[", 500): fault.Internal,
		`{"a":"\"` + deep + `\\",` + deep:   fault.TooLarge,
		deep + strings.Repeat("]", 128):     fault.Internal,
	} {
		err := read(text, 1<<20)
		if want == fault.Internal && err != nil || want != fault.Internal && !fault.Is(err, want) {
			t.Errorf("%.20q: %v", text, err)
		}
	}
	if err := CheckJSON(t.Context(), []byte(deep+"[")); !fault.Is(err, fault.TooLarge) {
		t.Error(err)
	}
}

// slow gives a few bytes at a time.
type slow struct{ text string }

func (s *slow) Read(p []byte) (int, error) {
	if s.text == "" {
		return 0, io.EOF
	}
	n := copy(p, s.text[:min(7, len(s.text))])
	s.text = s.text[n:]
	return n, nil
}

// FuzzMeter: valid JSON is refused for its depth alone, wherever it is cut into pieces.
func FuzzMeter(f *testing.F) {
	for _, text := range []string{`{"a":[1,2,{"b":"[\"{"}]}`, `[[[[`, `"\\"`, `{"a":"\\\""}`} {
		f.Add([]byte(text), 3)
	}
	f.Fuzz(func(t *testing.T, text []byte, cut int) {
		if len(text) == 0 {
			return
		}
		cut = max(0, min(cut, len(text)))
		var whole, parts scanner
		w, err := whole.weigh(text, JSON)
		a, err1 := parts.weigh(text[:cut], JSON)
		b, err2 := parts.weigh(text[cut:], JSON)
		if (err == nil) != (err1 == nil && err2 == nil) || err == nil && w != a+b {
			t.Errorf("%d, %v is not %d + %d, %v %v", w, err, a, b, err1, err2)
		}
		if json.Valid(text) {
			depth := 0
			d := json.NewDecoder(bytes.NewReader(text))
			for most := 0; ; {
				token, terr := d.Token()
				if terr != nil {
					if (most > MaxDepth) != (err != nil) {
						t.Errorf("depth %d: %v", most, err)
					}
					return
				}
				switch token {
				case json.Delim('['), json.Delim('{'):
					depth++
					most = max(most, depth)
				case json.Delim(']'), json.Delim('}'):
					depth--
				}
			}
		}
	})
}
