package pebble

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/feature/online"
	"github.com/falaj-ml/falaj/internal/feature/online/onlinetest"
	"github.com/falaj-ml/falaj/internal/feature/value"
	"github.com/falaj-ml/falaj/internal/feature/window"
)

func TestDriver(t *testing.T) {
	onlinetest.Run(t, func(tb testing.TB) online.Driver {
		tb.Helper()
		db, err := Open(Config{Dir: "db", fs: vfs.NewMem()})
		if err != nil {
			tb.Fatal(err)
		}
		return db
	})
}

func row(entity string, event time.Time, text string) online.Row {
	return online.Row{Key: value.AppendKey(nil, value.OfString(entity)), Event: event.UnixMicro(), Created: online.NoCreated, Packed: []byte(text)}
}

var (
	table = online.Table{Project: "nyc", View: "weather", Version: 1}
	clock = online.Options{Now: func() time.Time { return onlinetest.Clock }}
)

// A write that returned is there after the power is cut at once: the clone holds
// only what was synced.
func TestPowerLoss(t *testing.T) {
	fs := vfs.NewCrashableMem()
	db, err := Open(Config{Dir: "db", fs: fs})
	if err != nil {
		t.Fatal(err)
	}
	s := online.New(db, &onlinetest.Keys{}, clock)
	for n := range 50 {
		at := onlinetest.Clock.Add(-time.Hour + time.Duration(n)*time.Second)
		if err := s.Write(t.Context(), table, []online.Row{row("EWR", at, strconv.Itoa(n))}); err != nil {
			t.Fatal(err)
		}
		if n%10 != 9 {
			continue
		}
		after, err := Open(Config{Dir: "db", fs: fs.CrashClone(vfs.CrashCloneCfg{})})
		if err != nil {
			t.Fatal(err)
		}
		answers, err := online.New(after, &onlinetest.Keys{}, clock).Read(t.Context(), table, online.Query{Keys: [][]byte{row("EWR", at, "").Key}, At: onlinetest.Clock})
		if err != nil || string(answers[0].Packed) != strconv.Itoa(n) {
			t.Errorf("after the power loss: %v %v, want %d", answers, err, n)
		}
		if err := after.Close(); err != nil {
			t.Error(err)
		}
	}
	if err := db.Close(); err != nil {
		t.Error(err)
	}
}

func TestFilesSayNothing(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new", "online")
	db, err := Open(Config{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the directory is open to others: %v, %v", info.Mode(), err)
	}
	s := online.New(db, &onlinetest.Keys{}, clock)
	for range 3 {
		if err := s.Write(t.Context(), table, []online.Row{row("ENTITY-KEY", onlinetest.Clock, "FEATURE-VALUE")}); err != nil {
			t.Fatal(err)
		}
		if err := db.db.Flush(); err != nil {
			t.Fatal(err)
		}
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	files := 0
	err = filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		files++
		b, err := os.ReadFile(path)
		for _, secret := range []string{"ENTITY-KEY", "FEATURE-VALUE", "weather", "nyc"} {
			if bytes.Contains(b, []byte(secret)) {
				t.Errorf("%s holds %q", path, secret)
			}
		}
		return err
	})
	if err != nil || files == 0 {
		t.Errorf("%d files read, error %v", files, err)
	}
}

func TestCloseWaitsAndRefuses(t *testing.T) {
	dir := t.TempDir()
	db, err := Open(Config{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if err := db.Write(t.Context(), nil); !fault.Is(err, fault.Unavailable) {
		t.Errorf("write after close: %v", err)
	}
	if _, err := Open(Config{Dir: filepath.Join(dir, "CURRENT-is-no-directory", "\x00")}); err == nil {
		t.Error("an impossible directory opens")
	}
}

// cpuTime is what this process has used, which other load does not change.
func cpuTime(b *testing.B) time.Duration {
	b.Helper()
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		b.Fatal(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

// BenchmarkRead reads batches of random entities out of 100,000 with 400-byte
// rows of 50 float64.
func BenchmarkRead(b *testing.B) {
	db, err := Open(Config{Dir: b.TempDir(), Cache: 256 << 20})
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	s := online.New(db, &onlinetest.Keys{}, clock)
	features := make([]value.Value, 50)
	types := make([]value.Type, 50)
	for i := range features {
		features[i], types[i] = value.OfFloat(rand.Float64()), value.Float64
	}
	packed, err := value.AppendRow(nil, features)
	if err != nil {
		b.Fatal(err)
	}
	const entities = 100_000
	key := func(n int) []byte { return value.AppendKey(nil, value.OfInt(int64(n))) }
	rows := make([]online.Row, 0, 5000)
	for n := range entities {
		rows = append(rows, online.Row{Key: key(n), Event: onlinetest.Clock.UnixMicro(), Created: online.NoCreated, Packed: packed})
		if len(rows) == cap(rows) {
			if err := s.Write(b.Context(), table, rows); err != nil {
				b.Fatal(err)
			}
			rows = rows[:0]
		}
	}
	if err := db.db.Compact(b.Context(), nil, bytes.Repeat([]byte{0xff}, keySize), true); err != nil {
		b.Fatal(err)
	}
	for _, size := range []int{1, 10, 100, 500} {
		b.Run(strconv.Itoa(size), func(b *testing.B) {
			q := online.Query{Keys: make([][]byte, size), At: onlinetest.Clock, TTL: time.Hour}
			before, n := cpuTime(b), 0
			for b.Loop() {
				n++
				for i := range q.Keys {
					q.Keys[i] = key(rand.IntN(entities))
				}
				answers, err := s.Read(b.Context(), table, q)
				if err != nil {
					b.Fatal(err)
				}
				for i := range answers {
					if err := value.DecodeRow(answers[i].Packed, types, features); err != nil {
						b.Fatal(err)
					}
				}
			}
			b.ReportMetric(float64(cpuTime(b)-before)/float64(n), "cpu-ns/op")
		})
	}
}

// entity is the records of an entity.
type entity struct {
	reader *online.Reader
	key    []byte
}

func (e entity) Span(ctx context.Context, level int, from, to int64, visit func(event, created int64, state []byte) (bool, error)) error {
	return e.reader.Span(ctx, window.LevelKey(e.key, level), from, to, visit)
}

// BenchmarkWindows reads five aggregations of random entities over the hour, the day
// and the week before; each entity has some events spread over a month.
func BenchmarkWindows(b *testing.B) {
	const day = 24 * time.Hour
	f := func(fn window.Function, w time.Duration) window.Feature {
		return window.Feature{Name: string(fn), Column: "x", Type: value.Float64, Function: fn, Window: w}
	}
	plan, err := window.NewPlan([]window.Feature{f(window.Sum, time.Hour), f(window.Count, day), f(window.Mean, day), f(window.Max, 7*day), f(window.Std, 7*day)})
	if err != nil {
		b.Fatal(err)
	}
	for _, events := range []int{10, 1000, 100_000} {
		db, err := Open(Config{Dir: b.TempDir(), Cache: 256 << 20})
		if err != nil {
			b.Fatal(err)
		}
		s := online.New(db, &onlinetest.Keys{}, clock)
		entities := min(10_000, 1_000_000/events)
		key := func(n int) []byte { return value.AppendKey(nil, value.OfInt(int64(n))) }
		month := (30 * day).Microseconds()
		var rows []online.Row
		flush := func(most int) {
			if len(rows) < most {
				return
			}
			if err := s.Write(b.Context(), table, rows); err != nil {
				b.Fatal(err)
			}
			rows = rows[:0]
		}
		for n := range entities {
			k := key(n)
			t := plan.NewTiler(func(r window.Record) error {
				rows = append(rows, online.Row{Key: window.LevelKey(k, r.Level), Event: r.Event, Created: r.Created, Packed: bytes.Clone(r.State)})
				flush(10_000)
				return nil
			})
			for i := range int64(events) {
				packed, err := value.AppendRow(nil, []value.Value{value.OfFloat(rand.Float64())})
				if err != nil {
					b.Fatal(err)
				}
				if err := t.Add(onlinetest.Clock.UnixMicro()-month+(i+1)*(month/int64(events)), online.NoCreated, packed); err != nil {
					b.Fatal(err)
				}
			}
			if err := t.End(); err != nil {
				b.Fatal(err)
			}
		}
		flush(1)
		if err := db.db.Compact(b.Context(), nil, bytes.Repeat([]byte{0xff}, keySize), true); err != nil {
			b.Fatal(err)
		}
		for _, size := range []int{1, 100} {
			b.Run(fmt.Sprintf("events=%d/batch=%d", events, size), func(b *testing.B) {
				from, out := plan.NewReader(), make([]value.Value, 5)
				before, n := cpuTime(b), 0
				for b.Loop() {
					n++
					reader, err := s.Reader(b.Context(), table)
					if err != nil {
						b.Fatal(err)
					}
					for range size {
						_, found, err := from.At(b.Context(), entity{reader, key(rand.IntN(entities))}, onlinetest.Clock.UnixMicro(), 0, out)
						if err != nil || !found {
							b.Fatal(found, err)
						}
					}
				}
				b.ReportMetric(float64(cpuTime(b)-before)/float64(n), "cpu-ns/op")
			})
		}
		if err := db.Close(); err != nil {
			b.Fatal(err)
		}
	}
}

// Rows that are moved to another subkey, or swept, are there once and whole wherever the
// power is cut.
func TestPowerLossWhileTidying(t *testing.T) {
	fs := vfs.NewCrashableMem()
	db, err := Open(Config{Dir: "db", fs: fs})
	if err != nil {
		t.Fatal(err)
	}
	opts := clock
	opts.Step = 3
	s := online.New(db, &onlinetest.Keys{}, opts)
	first, both := table, table
	first.Subkey, first.Former, both.Subkey, both.Former = 1, 1, 2, 1
	var keys [][]byte
	for n := range 20 {
		r := row(strconv.Itoa(n), onlinetest.Clock.Add(-time.Minute), "x")
		older := row(strconv.Itoa(n), onlinetest.Clock.Add(-time.Hour), "y")
		keys = append(keys, r.Key)
		if err := s.Write(t.Context(), first, []online.Row{older, r}); err != nil {
			t.Fatal(err)
		}
	}
	// look is on a copy of the disk as it would be after a loss of power.
	look := func(versions int64) {
		t.Helper()
		after, err := Open(Config{Dir: "db", fs: fs.CrashClone(vfs.CrashCloneCfg{})})
		if err != nil {
			t.Fatal(err)
		}
		s := online.New(after, &onlinetest.Keys{}, opts)
		answers, err := s.Read(t.Context(), both, online.Query{Keys: keys, At: onlinetest.Clock})
		if err != nil {
			t.Fatal(err)
		}
		for n, a := range answers {
			if string(a.Packed) != "x" {
				t.Errorf("row %d answers %+v", n, a)
			}
		}
		rows, err := s.Rows(t.Context(), both, keys)
		if err != nil {
			t.Fatal(err)
		}
		if n, err := s.Count(t.Context(), rows); err != nil || n != versions {
			t.Errorf("%d versions of %d are there: %v", n, versions, err)
		}
		if err := after.Close(); err != nil {
			t.Error(err)
		}
	}
	for at, done := (online.Mark{}), false; !done; {
		step, _, err := s.Move(t.Context(), both, at)
		if err != nil {
			t.Fatal(err)
		}
		at, done = step.Next, step.Done
		look(40)
	}
	left := int64(40)
	for at, done := (online.Mark{}), false; !done; {
		step, err := s.Sweep(t.Context(), both, online.Rule{Since: onlinetest.Clock.UnixMicro()}, at)
		if err != nil {
			t.Fatal(err)
		}
		at, done, left = step.Next, step.Done, left-int64(step.Changed)
		look(left)
	}
	if left != 20 {
		t.Errorf("%d versions are left of 20", left)
	}
	if err := db.Close(); err != nil {
		t.Error(err)
	}
}
