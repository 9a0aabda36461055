package prediction_test

import (
	"context"
	"crypto/sha256"
	"fmt"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/serving/prediction"
)

// ring derives keys of names; destroyed makes it refuse.
type ring struct{ destroyed atomic.Bool }

func (r *ring) DataKey(_ context.Context, project, owner, use string) ([]byte, error) {
	if r.destroyed.Load() {
		return nil, fault.New(fault.Gone, "the key was destroyed")
	}
	sum := sha256.Sum256([]byte(project + "|" + owner + "|" + use))
	return sum[:], nil
}

var begin = time.Date(2013, 5, 1, 12, 0, 0, 0, time.UTC)

// clock is a wall clock that a test moves.
type clock struct{ us atomic.Int64 }

func newClock() *clock {
	c := &clock{}
	c.us.Store(time.Date(2026, 11, 21, 0, 0, 0, 0, time.UTC).UnixMicro())
	return c
}
func (c *clock) now() time.Time        { return time.UnixMicro(c.us.Load()).UTC() }
func (c *clock) add(d time.Duration)   { c.us.Add(d.Microseconds()) }
func quiet() *slog.Logger              { return slog.New(slog.DiscardHandler) }
func flights(n int) *prediction.Record { return flightsOf("delay", n) }

func open(tb testing.TB, dir string, c *clock) *prediction.Log {
	tb.Helper()
	l, err := prediction.Open(prediction.Config{Dir: dir, Keys: &ring{}, Now: c.now, Logger: quiet()})
	if err != nil {
		tb.Fatal(err)
	}
	return l
}

// flightsOf is the nth record of a deployment.
func flightsOf(deployment string, n int) *prediction.Record {
	names := []string{
		"minute_of_day", "weekday", "distance", "weather:temp", "weather:dewp", "weather:humid", "weather:wind_dir",
		"weather:wind_speed", "weather:precip", "weather:pressure", "weather:visib", "plane:built", "plane:seats",
	}
	at := begin.Add(time.Duration(n) * time.Minute)
	r := &prediction.Record{
		ID: fmt.Sprintf("prd_%08d", n), Project: "nyc", Deployment: deployment, Model: "delay", Version: int64(1 + n%2), Rollout: "rol_1",
		At: at, Received: at.Add(time.Second), Replay: true, Latency: 300 * time.Microsecond, Rows: 1,
		Keys: []prediction.Column{{Name: "origin", Texts: []string{"JFK"}}}, Scores: []float64{float64(n) / 7},
	}
	for i, name := range names {
		r.Inputs = append(r.Inputs, prediction.Column{Name: name, Numbers: []float64{float64(n + i)}})
	}
	return r
}

func ids(tb testing.TB, l *prediction.Log, deployment string, after prediction.Cursor) (out []string, last prediction.Cursor) {
	tb.Helper()
	last = after
	err := l.Read(tb.Context(), "nyc", deployment, after, func(c prediction.Cursor, r *prediction.Record) error {
		if !last.Before(c) {
			tb.Errorf("cursor %s does not rise above %s", c, last)
		}
		out, last = append(out, r.ID), c
		return nil
	})
	if err != nil {
		tb.Fatal(err)
	}
	return out, last
}

func appendAll(tb testing.TB, l *prediction.Log, from, to int) {
	tb.Helper()
	for i := from; i < to; i++ {
		if err := l.Append(tb.Context(), flights(i)); err != nil {
			tb.Fatal(err)
		}
	}
}

// drawRecord draws a record that the log keeps exactly.
func drawRecord(t *rapid.T) *prediction.Record {
	when := rapid.Custom(func(t *rapid.T) time.Time {
		return time.UnixMicro(rapid.Int64Range(-1<<50, 1<<50).Filter(func(x int64) bool { return x != 0 }).Draw(t, "us")).UTC()
	})
	number := rapid.OneOf(rapid.Float64(), rapid.Map(rapid.Float32(), func(x float32) float64 { return float64(x) }),
		rapid.SampledFrom([]float64{0, 1, math.NaN(), math.Inf(1), math.Inf(-1), math.MaxFloat64}))
	rows := rapid.IntRange(0, 4).Draw(t, "rows")
	columns := func(name string) (out []prediction.Column) {
		for i := range rapid.IntRange(0, 5).Draw(t, name) {
			c := prediction.Column{Name: fmt.Sprint(name, i)}
			if rows > 0 {
				if rapid.Bool().Draw(t, "text") {
					c.Texts = rapid.SliceOfN(rapid.String(), rows, rows).Draw(t, "texts")
				} else {
					c.Numbers = rapid.SliceOfN(number, rows, rows).Draw(t, "numbers")
				}
			}
			out = append(out, c)
		}
		return out
	}
	r := &prediction.Record{
		ID: rapid.String().Draw(t, "id"), Model: rapid.String().Draw(t, "model"), Version: rapid.Int64().Draw(t, "version"),
		Rollout: rapid.String().Draw(t, "rollout"), Shadow: rapid.Bool().Draw(t, "shadow"), Replay: rapid.Bool().Draw(t, "replay"),
		At: when.Draw(t, "at"), Received: when.Draw(t, "received"), Latency: time.Duration(rapid.Int64().Draw(t, "latency")),
		Failure: rapid.String().Draw(t, "failure"), Rows: rows, Keys: columns("key"), Inputs: columns("input"),
		Bucket: rapid.Uint32().Draw(t, "bucket"), Owner: rapid.Uint64().Draw(t, "owner"),
	}
	if r.Remote = rapid.String().Draw(t, "remote"); r.Remote != "" {
		r.Zone = rapid.String().Draw(t, "zone")
	}
	if n := rapid.IntRange(0, 3).Draw(t, "scores"); n > 0 {
		r.Scores = rapid.SliceOfN(number, n, n).Draw(t, "score")
	}
	r.Task = rapid.SampledFrom([]prediction.Task{"", prediction.Regression, prediction.Binary, prediction.Multiclass}).Draw(t, "task")
	if r.Task == prediction.Multiclass && rows > 0 {
		r.Predicted = rapid.SliceOfN(rapid.String(), rows, rows).Draw(t, "predicted")
		n := rows * rapid.IntRange(1, 3).Draw(t, "classes")
		r.Probabilities = rapid.SliceOfN(number, n, n).Draw(t, "probabilities")
	}
	return r
}

// show writes a record so that NaN equals NaN.
func show(r *prediction.Record) string { return fmt.Sprintf("%+v", *r) }

func TestRecordRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := drawRecord(t)
		b, err := prediction.AppendRecord(nil, r)
		if err != nil {
			t.Fatal(err)
		}
		var got prediction.Record
		if err := prediction.DecodeRecord(b, &got); err != nil {
			t.Fatal(err)
		}
		if show(&got) != show(r) {
			t.Fatalf("wrote %s\nread  %s", show(r), show(&got))
		}
		for n := range b {
			if prediction.DecodeRecord(b[:n], &prediction.Record{}) == nil {
				t.Fatalf("%d of %d bytes are a record", n, len(b))
			}
		}
	})
}

func TestRecordLimits(t *testing.T) {
	for name, r := range map[string]*prediction.Record{
		"rows":    {Rows: 2, Inputs: []prediction.Column{{Name: "a", Numbers: []float64{1}}}},
		"both":    {Rows: 1, Inputs: []prediction.Column{{Name: "a", Numbers: []float64{1}, Texts: []string{"x"}}}},
		"text":    {ID: string(make([]byte, 2<<20))},
		"columns": {Inputs: make([]prediction.Column, 1<<17)},
	} {
		if _, err := prediction.AppendRecord(nil, r); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func FuzzDecodeRecord(f *testing.F) {
	b, _ := prediction.AppendRecord(nil, flights(3))
	f.Add(b)
	f.Add([]byte{1, 0})
	several := flights(3)
	several.Task, several.Predicted, several.Probabilities = prediction.Multiclass, make([]string, several.Rows), make([]float64, 3*several.Rows)
	if b, err := prediction.AppendRecord(nil, several); err == nil {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var r prediction.Record
		if prediction.DecodeRecord(b, &r) != nil {
			return
		}
		again, err := prediction.AppendRecord(nil, &r)
		if err != nil {
			return // a record that nobody could have written
		}
		var s prediction.Record
		if err := prediction.DecodeRecord(again, &s); err != nil || show(&r) != show(&s) {
			t.Errorf("%s\n%s\n%v", show(&r), show(&s), err)
		}
	})
}

func FuzzParseCursor(f *testing.F) {
	f.Add("7-40-12-0")
	f.Add("")
	f.Fuzz(func(t *testing.T, s string) {
		c, err := prediction.ParseCursor(s)
		if err == nil && c.String() != s {
			t.Errorf("%q became %q", s, c)
		}
	})
}

// What was appended is there, also after the process ended without a word, and a
// cursor goes on where it was.
func TestLogKeepsWhatItAcknowledged(t *testing.T) {
	dir, c := t.TempDir(), newClock()
	l := open(t, dir, c)
	appendAll(t, l, 0, 50)
	first, middle := ids(t, l, "delay", prediction.Cursor{})
	if len(first) != 50 || first[49] != "prd_00000049" {
		t.Fatalf("read %v", first)
	}
	appendAll(t, l, 50, 60)
	l = open(t, dir, c) // without Close: as after kill -9
	rest, _ := ids(t, l, "delay", middle)
	if len(rest) != 10 || rest[0] != "prd_00000050" {
		t.Fatalf("after %s: %v", middle, rest)
	}
	appendAll(t, l, 60, 70)
	var got *prediction.Record
	if err := l.Read(t.Context(), "nyc", "delay", prediction.Cursor{}, func(_ prediction.Cursor, r *prediction.Record) error {
		got = r
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, flights(69)) {
		t.Errorf("got  %+v\nwant %+v", got, flights(69))
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if err := l.Append(t.Context(), flights(1)); !fault.Is(err, fault.Unavailable) {
		t.Errorf("append after close: %v", err)
	}
	l = open(t, dir, c)
	if all, _ := ids(t, l, "delay", prediction.Cursor{}); len(all) != 70 {
		t.Errorf("%d records after a clean end", len(all))
	}
	if none, _ := ids(t, l, "other", prediction.Cursor{}); len(none) != 0 {
		t.Errorf("%v", none)
	}
}

// A file cut anywhere is read up to its last whole record, and written on.
func TestTornTail(t *testing.T) {
	source, c := t.TempDir(), newClock()
	l := open(t, source, c)
	var ends []int64 // the file's size after each record
	file := func(dir string) string {
		all, err := filepath.Glob(filepath.Join(dir, "nyc", "delay", "*.seg"))
		if err != nil || len(all) != 1 {
			t.Fatal(all, err)
		}
		return all[0]
	}
	small := func(i int) *prediction.Record {
		return &prediction.Record{ID: fmt.Sprintf("prd_%08d", i), Project: "nyc", Deployment: "delay", At: begin, Received: c.now()}
	}
	for i := range 4 {
		if err := l.Append(t.Context(), small(i)); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(file(source))
		if err != nil {
			t.Fatal(err)
		}
		ends = append(ends, info.Size())
	}
	if err := l.Close(); err != nil { // with the footer, which is cut, too
		t.Fatal(err)
	}
	whole, err := os.ReadFile(file(source))
	if err != nil {
		t.Fatal(err)
	}
	for n := range len(whole) + 1 {
		want := 0
		for want < len(ends) && ends[want] <= int64(n) {
			want++
		}
		dir := t.TempDir()
		path := filepath.Join(dir, "nyc", "delay", filepath.Base(file(source)))
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, whole[:n], 0o600); err != nil {
			t.Fatal(err)
		}
		l := open(t, dir, c)
		if err := l.Append(t.Context(), small(9)); err != nil {
			t.Fatal(err)
		}
		got, _ := ids(t, l, "delay", prediction.Cursor{})
		if len(got) != want+1 || got[want] != "prd_00000009" {
			t.Fatalf("cut at %d of %d: %v, want %d and the new one", n, len(whole), got, want)
		}
		for i := range want {
			if got[i] != fmt.Sprintf("prd_%08d", i) {
				t.Fatalf("cut at %d: %v", n, got)
			}
		}
	}
}

// A byte that changed is never a wrong record.
func TestFlippedByte(t *testing.T) {
	source, c := t.TempDir(), newClock()
	l := open(t, source, c)
	appendAll(t, l, 0, 3)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	all, _ := filepath.Glob(filepath.Join(source, "nyc", "delay", "*.seg"))
	whole, err := os.ReadFile(all[0])
	if err != nil {
		t.Fatal(err)
	}
	for n := 0; n < len(whole); n += 7 {
		bad := append([]byte{}, whole...)
		bad[n] ^= 0x40
		if err := os.WriteFile(all[0], bad, 0o600); err != nil {
			t.Fatal(err)
		}
		l := open(t, source, c)
		got, _ := ids(t, l, "delay", prediction.Cursor{})
		for i, id := range got {
			if id != fmt.Sprintf("prd_%08d", i) {
				t.Fatalf("byte %d changed: %v", n, got)
			}
		}
		// Mending may have removed or cut the file: put it back.
		if err := os.WriteFile(all[0], whole, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// A damaged frame in a sealed segment is counted, and what comes after is read.
func TestDamageIsCounted(t *testing.T) {
	dir, c := t.TempDir(), newClock()
	l := open(t, dir, c)
	appendAll(t, l, 0, 3)
	_ = l.Close()
	all, _ := filepath.Glob(filepath.Join(dir, "nyc", "delay", "*.seg"))
	b, err := os.ReadFile(all[0])
	if err != nil {
		t.Fatal(err)
	}
	b[60] ^= 1
	if err := os.WriteFile(all[0], b, 0o600); err != nil {
		t.Fatal(err)
	}
	l = open(t, dir, c)
	appendAll(t, l, 3, 4)
	got, _ := ids(t, l, "delay", prediction.Cursor{})
	if len(got) != 1 || got[0] != "prd_00000003" {
		t.Errorf("read %v", got)
	}
	if s, err := l.Stats(t.Context(), "nyc", "delay"); err != nil || s.Damaged != 1 {
		t.Errorf("%+v %v", s, err)
	}
}

func TestManyAppendAtOnce(t *testing.T) {
	dir, c := t.TempDir(), newClock()
	l := open(t, dir, c)
	const writers, each = 8, 500
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for i := range each {
				r := flights(w*each + i)
				if err := l.Append(context.Background(), r); err != nil {
					t.Error(err)
				}
				if i%100 == 0 {
					if err := l.RunOnce(context.Background()); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	wg.Wait()
	l = open(t, dir, c)
	got, _ := ids(t, l, "delay", prediction.Cursor{})
	seen := map[string]int{}
	next := make([]string, writers)
	for _, id := range got {
		seen[id]++
		var n int
		if _, err := fmt.Sscanf(id, "prd_%d", &n); err != nil {
			t.Fatal(err)
		}
		if next[n/each] >= id && next[n/each] != "" {
			t.Errorf("%s after %s of the same writer", id, next[n/each])
		}
		next[n/each] = id
	}
	if len(got) != writers*each || len(seen) != writers*each {
		t.Errorf("%d records, %d of them distinct", len(got), len(seen))
	}
}

func TestRollTrimAndFetch(t *testing.T) {
	dir, c := t.TempDir(), newClock()
	l := open(t, dir, c)
	var cursors []prediction.Cursor
	received := c.now()
	for i := range 5 {
		r := flights(i)
		r.Received = c.now()
		if err := l.Append(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		c.add(11 * time.Minute)
		if err := l.RunOnce(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Read(t.Context(), "nyc", "delay", prediction.Cursor{}, func(at prediction.Cursor, _ *prediction.Record) error {
		cursors = append(cursors, at)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	s, err := l.Stats(t.Context(), "nyc", "delay")
	if err != nil || s.Segments != 5 || s.Records != 5 || !s.From.Equal(flights(0).At) || !s.To.Equal(flights(4).At) {
		t.Fatalf("%+v %v", s, err)
	}
	since, err := l.Since(t.Context(), "nyc", "delay", received.Add(12*time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	if got, _ := ids(t, l, "delay", since); len(got) != 3 {
		t.Errorf("since the third: %v", got)
	}
	if err := l.Trim(t.Context(), received.Add(12*time.Minute)); err != nil {
		t.Fatal(err)
	}
	var fetched []string
	if err := l.Fetch(t.Context(), "nyc", "delay", []prediction.Cursor{cursors[4], cursors[0], cursors[3], {}}, func(_ int, r *prediction.Record) error {
		if r == nil {
			fetched = append(fetched, "")
			return nil
		}
		fetched = append(fetched, r.ID)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if fmt.Sprint(fetched) != "[prd_00000004  prd_00000003 ]" {
		t.Errorf("fetched %q", fetched)
	}
	c.add(91 * 24 * time.Hour)
	if err := l.RunOnce(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got, _ := ids(t, l, "delay", prediction.Cursor{}); len(got) != 0 {
		t.Errorf("after ninety days: %v", got)
	}
	appendAll(t, l, 7, 8)
	if got, _ := ids(t, l, "delay", cursors[4]); len(got) != 1 {
		t.Errorf("%v", got)
	}
	if err := l.Drop("nyc", "delay"); err != nil {
		t.Fatal(err)
	}
	if left, _ := os.ReadDir(dir); len(left) != 0 {
		t.Errorf("%v are left", left)
	}
	appendAll(t, l, 8, 9) // a deployment of the same name
	if got, _ := ids(t, l, "delay", cursors[4]); len(got) != 1 {
		t.Errorf("%v", got)
	}
}

func TestMaxBytes(t *testing.T) {
	dir, c := t.TempDir(), newClock()
	l, err := prediction.Open(prediction.Config{Dir: dir, Keys: &ring{}, Now: c.now, Logger: quiet(), MaxBytes: 5000, Retention: -1})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 30 {
		if err := l.Append(t.Context(), flightsOf([]string{"a", "b"}[i%2], i)); err != nil {
			t.Fatal(err)
		}
		c.add(11 * time.Minute)
		if err := l.RunOnce(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	total := int64(0)
	for _, d := range []string{"a", "b"} {
		s, err := l.Stats(t.Context(), "nyc", d)
		if err != nil || s.Records == 0 {
			t.Errorf("%s: %+v %v", d, s, err)
		}
		total += s.Bytes
	}
	if total > 6000 {
		t.Errorf("%d bytes are left", total)
	}
}

func TestDestroyedKey(t *testing.T) {
	dir, c, keys := t.TempDir(), newClock(), &ring{}
	l, err := prediction.Open(prediction.Config{Dir: dir, Keys: keys, Now: c.now, Logger: quiet()})
	if err != nil {
		t.Fatal(err)
	}
	appendAll(t, l, 0, 3)
	all, _ := filepath.Glob(filepath.Join(dir, "nyc", "delay", "*.seg"))
	if b, err := os.ReadFile(all[0]); err != nil || len(b) < 100 || containsText(b, "prd_") || containsText(b, "JFK") {
		t.Errorf("the file is readable: %v", err)
	}
	keys.destroyed.Store(true)
	c.add(2 * time.Second)
	if err := l.Append(t.Context(), flights(3)); !fault.Is(err, fault.Gone) {
		t.Errorf("append: %v", err)
	}
	err = l.Read(t.Context(), "nyc", "delay", prediction.Cursor{}, func(prediction.Cursor, *prediction.Record) error { return nil })
	if !fault.Is(err, fault.Gone) {
		t.Errorf("read: %v", err)
	}
	if l.Lost() != 1 {
		t.Errorf("%d lost", l.Lost())
	}
	if err := l.Retain(t.Context()); err != nil {
		t.Error(err)
	}
	if left, _ := os.ReadDir(dir); len(left) != 0 {
		t.Errorf("noise is left: %v", left)
	}
}

func containsText(b []byte, s string) bool {
	for i := 0; i+len(s) <= len(b); i++ {
		if string(b[i:i+len(s)]) == s {
			return true
		}
	}
	return false
}

// With another key nothing is read, and nothing is deleted.
func TestWrongKey(t *testing.T) {
	dir, c := t.TempDir(), newClock()
	l := open(t, dir, c)
	appendAll(t, l, 0, 3)
	wrong, err := prediction.Open(prediction.Config{Dir: dir, Keys: otherRing{}, Now: c.now, Logger: quiet()})
	if err != nil {
		t.Fatal(err)
	}
	if got, _ := ids(t, wrong, "delay", prediction.Cursor{}); len(got) != 0 {
		t.Errorf("read %v", got)
	}
	torn, _ := filepath.Glob(filepath.Join(dir, "nyc", "delay", "*.torn"))
	if len(torn) != 1 {
		t.Fatalf("set aside: %v", torn)
	}
	if err := os.Rename(torn[0], torn[0][:len(torn[0])-len(".torn")]); err != nil {
		t.Fatal(err)
	}
	if got, _ := ids(t, open(t, dir, c), "delay", prediction.Cursor{}); len(got) != 3 {
		t.Errorf("with the right key: %v", got)
	}
}

type otherRing struct{}

func (otherRing) DataKey(context.Context, string, string, string) ([]byte, error) {
	return make([]byte, 32), nil
}

// A disk without room loses records aloud, and goes on when there is room.
func TestWriteFails(t *testing.T) {
	dir, c := t.TempDir(), newClock()
	l, err := prediction.Open(prediction.Config{Dir: dir, Keys: &ring{}, Now: c.now, Logger: quiet(), Retention: -1})
	if err != nil {
		t.Fatal(err)
	}
	appendAll(t, l, 0, 2)
	c.add(11 * time.Minute)
	if err := l.RunOnce(t.Context()); err != nil {
		t.Fatal(err)
	}
	// The next segment cannot be made: a file stands where its directory was.
	place := filepath.Join(dir, "nyc", "delay")
	if err := os.Rename(place, place+".away"); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(place, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := l.Append(t.Context(), flights(2)); err == nil {
		t.Fatal("it was appended to nothing")
	}
	s, err := l.Stats(t.Context(), "nyc", "delay")
	if err != nil || s.Lost != 1 || s.Trouble == "" {
		t.Errorf("%+v %v", s, err)
	}
	if err := os.Remove(place); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(place+".away", place); err != nil {
		t.Fatal(err)
	}
	c.add(2 * time.Second)
	appendAll(t, l, 3, 4)
	if got, _ := ids(t, l, "delay", prediction.Cursor{}); len(got) != 3 {
		t.Errorf("%v", got)
	}
}

func TestNames(t *testing.T) {
	l := open(t, t.TempDir(), newClock())
	r := flights(1)
	r.Deployment = "../other"
	if err := l.Append(t.Context(), r); !fault.Is(err, fault.Invalid) {
		t.Errorf("%v", err)
	}
}

func BenchmarkAppend(b *testing.B) {
	l, err := prediction.Open(prediction.Config{Dir: b.TempDir(), Keys: &ring{}, Logger: quiet()})
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	if err := l.Service().Start(context.Background()); err != nil {
		b.Fatal(err)
	}
	defer func() { _ = l.Service().Stop(context.Background()) }()
	r := flights(3)
	b.Run("one", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if err := l.Append(context.Background(), r); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("eight", func(b *testing.B) {
		b.ReportAllocs()
		b.SetParallelism(4)
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				if err := l.Append(context.Background(), r); err != nil {
					b.Error(err)
				}
			}
		})
	})
}

func BenchmarkRead(b *testing.B) {
	l, err := prediction.Open(prediction.Config{Dir: b.TempDir(), Keys: &ring{}, Logger: quiet()})
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	appendAll(b, l, 0, 10_000)
	b.ReportAllocs()
	for b.Loop() {
		n := 0
		if err := l.Read(context.Background(), "nyc", "delay", prediction.Cursor{}, func(prediction.Cursor, *prediction.Record) error {
			n++
			return nil
		}); err != nil || n != 10_000 {
			b.Fatal(n, err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/10_000, "ns/record")
}

// What is behind the end of a log is what was appended later, also after a restart;
// what was handed over is forgotten by segments.
func TestEndAndForget(t *testing.T) {
	dir, c := t.TempDir(), newClock()
	l := open(t, dir, c)
	ctx := t.Context()
	end, err := l.End(ctx, "nyc", "delay")
	if err != nil || end != (prediction.Cursor{}) {
		t.Fatal(end, err)
	}
	appendAll(t, l, 0, 5)
	for round := range 3 {
		if end, err = l.End(ctx, "nyc", "delay"); err != nil {
			t.Fatal(err)
		}
		from := 5 + 5*round
		appendAll(t, l, from, from+5)
		later, _ := ids(t, l, "delay", end)
		if len(later) != 5 || later[0] != fmt.Sprintf("prd_%08d", from) {
			t.Fatalf("round %d: %v", round, later)
		}
		if round == 1 { // a new segment, by a new process
			_ = l.Close()
			c.add(time.Minute)
			l = open(t, dir, c)
		}
	}
	_, last := ids(t, l, "delay", prediction.Cursor{})
	if n, err := l.Behind(ctx, "nyc", "delay", prediction.Cursor{}); err != nil || n == 0 {
		t.Error(n, err)
	}
	all, _ := ids(t, l, "delay", prediction.Cursor{})
	appendAll(t, l, 100, 102)
	if err := l.Forget(ctx, "nyc", "delay", last); err != nil {
		t.Fatal(err)
	}
	left, last := ids(t, l, "delay", prediction.Cursor{})
	if n := len(left); n < 2 || left[n-2] != "prd_00000100" || n >= len(all) {
		t.Errorf("%v are left", left)
	}
	if err := l.Forget(ctx, "nyc", "delay", last); err != nil {
		t.Fatal(err)
	}
	if left, _ := ids(t, l, "delay", prediction.Cursor{}); len(left) != 0 {
		t.Errorf("%v are left", left)
	}
	appendAll(t, l, 200, 202)
	if left, _ := ids(t, l, "delay", last); len(left) != 2 {
		t.Errorf("behind the last there are %v", left)
	}
}

func FuzzDecodeRecords(f *testing.F) {
	b, _ := prediction.AppendRecords(nil, flights(3))
	b, _ = prediction.AppendRecords(b, flights(4))
	f.Add(b)
	f.Add([]byte{1, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		all, err := prediction.DecodeRecords(b)
		if err != nil {
			return
		}
		var again []byte
		for _, r := range all {
			if again, err = prediction.AppendRecords(again, r); err != nil {
				return // nobody could have written it
			}
		}
		if same, err := prediction.DecodeRecords(again); err != nil || len(same) != len(all) {
			t.Errorf("%d, %v", len(same), err)
		}
	})
}

// TestNamesWithCapitals: the logs of deployments whose names differ only in case are two, on
// every disk, and are found again.
func TestNamesWithCapitals(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir, newClock())
	for i, name := range []string{"Delay", "delay", "ResNet50.v2"} {
		if err := l.Append(t.Context(), flightsOf(name, i)); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	l = open(t, dir, newClock())
	defer l.Close()
	want := []prediction.Place{{Project: "nyc", Deployment: "Delay"}, {Project: "nyc", Deployment: "ResNet50.v2"}, {Project: "nyc", Deployment: "delay"}}
	if got, err := l.Places(); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("places %v, %v, want %v", got, err, want)
	}
	for i, name := range []string{"Delay", "delay", "ResNet50.v2"} {
		if got, _ := ids(t, l, name, prediction.Cursor{}); len(got) != 1 || got[0] != flightsOf(name, i).ID {
			t.Errorf("the log of %s has %v", name, got)
		}
	}
}
