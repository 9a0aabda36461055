package redis

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/falaj-ml/falaj/internal/feature/online"
	"github.com/falaj-ml/falaj/internal/feature/online/onlinetest"
	"github.com/falaj-ml/falaj/internal/feature/value"
)

// The hashes are those of Feast's own mmh3.
func TestMurmur(t *testing.T) {
	for text, want := range map[string]string{"weather:temp": "4f2b7879", "a:b": "436844a2", "weather:t": "986dc933", "weather:te": "6c5ad3e4", "weather:tem": "94514d36", "ж:☃": "e8e64e96"} {
		if got := hex.EncodeToString([]byte(hashed(text))); got != want {
			t.Errorf("%q: %s, want %s", text, got, want)
		}
	}
}

var shape = online.Shape{
	Project: "flights", View: "weather", Version: 1, JoinKeys: []string{"slot", "origin"},
	Features: []string{"temp", "count", "note", "busy", "seen", "small", "ratio", "smalls", "counts", "ratios", "temps", "notes", "flags", "times", "vector"},
	Types: []value.Type{
		value.Float64, value.Int64, value.String, value.Bool, value.Timestamp, value.Int32, value.Float32,
		value.ListOf(value.Int32, 5), value.ListOf(value.Int64, 5), value.ListOf(value.Float32, 5), value.ListOf(value.Float64, 5), value.ListOf(value.String, 5),
		value.ListOf(value.Bool, 5), value.ListOf(value.Timestamp, 5), value.VectorOf(3),
	},
}

// nulls are the rest of a row from a feature on.
func nulls(values ...value.Value) []value.Value {
	for _, t := range shape.Types[len(values):] {
		values = append(values, value.Null(t))
	}
	return values
}

func list(feature int, elements ...value.Value) value.Value {
	v, err := value.OfList(shape.Types[feature], elements)
	if err != nil {
		panic(err)
	}
	return v
}

func weather(slot int64, origin string, event time.Time, values ...value.Value) online.Row {
	key := value.AppendKey(value.AppendKey(nil, value.OfInt(slot)), value.OfString(origin))
	packed, err := value.AppendRow(nil, values)
	if err != nil {
		panic(err)
	}
	return online.Row{Key: key, Event: event.UnixMicro(), Created: online.NoCreated, Packed: packed}
}

func onTCP(t *testing.T) (s *server, port string, db *DB) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port = strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	s = startServer(t, append([]string{"--port", port, "--bind", "127.0.0.1"}, durable...)...)
	db, err = Open(t.Context(), Config{URL: s.url(), Feast: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return s, port, db
}

// The unmodified Feast SDK reads what Falaj wrote: the newest row of each entity, also
// when an older one comes late; and nothing of what was removed.
func TestFeastReadsCopies(t *testing.T) {
	if testing.Short() {
		t.Skip("Feast takes ten seconds to begin")
	}
	python, err := filepath.Abs("../../../../.tmp/venv/feast-redis/bin/python")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(python); err != nil {
		const how = "the Feast SDK with Redis is not installed: make engines"
		if os.Getenv("CI") == "true" { //nolint:forbidigo // The rule of every engine's tests.
			t.Fatal(how)
		}
		t.Skip(how)
	}
	_, port, db := onTCP(t)
	store := online.New(db, &onlinetest.Keys{}, online.Options{})
	day := time.Date(2026, 1, 1, 0, 0, 0, 123456000, time.UTC)
	seen := time.Date(2025, 12, 31, 23, 0, 0, 0, time.UTC)
	full := func(n int64, busy bool) []value.Value {
		return nulls(value.OfFloat(float64(n)/2), value.OfInt(9007199254740993+n), value.OfString(fmt.Sprintf("note %d ☃", n)), value.OfBool(busy), value.OfTime(seen),
			value.OfInt32(int32(-n)), value.OfFloat32(0.5), list(7, value.OfInt32(-1), value.OfInt32(1<<30)), list(8, value.OfInt(-1), value.OfInt(1<<62)), list(9, value.OfFloat32(-1.25)),
			list(10, value.OfFloat(0.1), value.OfFloat(-2)), list(11, value.OfString(""), value.OfString("☃")), list(12, value.OfBool(true), value.OfBool(false)), list(13, value.OfTime(seen)),
			list(14, value.OfFloat32(1), value.OfFloat32(0), value.OfFloat32(-0.5)))
	}
	old, now := online.Table{Project: "flights", View: "weather", Version: 1, Generation: "a"}, online.Table{Project: "flights", View: "weather", Version: 1, Generation: "b"}
	put := func(table online.Table, rows ...online.Row) {
		t.Helper()
		if err := store.Write(t.Context(), table, rows); err != nil {
			t.Fatal(err)
		}
		if err := store.Copy(t.Context(), table, shape, rows); err != nil {
			t.Fatal(err)
		}
	}
	put(old, weather(1, "EWR", day, full(1, true)...), weather(2, "EWR", day, full(2, false)...), weather(3, "JFK", day, full(3, true)...))
	put(now, weather(1, "EWR", day.Add(time.Hour), full(10, false)...))
	put(now, weather(1, "EWR", day.Add(-time.Hour), full(-1, true)...)) // late
	put(now, weather(2, "EWR", day, nulls(value.Null(value.Float64), value.OfInt(0), value.Null(value.String), value.OfBool(false), value.Null(value.Timestamp), value.OfInt32(0), value.OfFloat32(0), list(7))...))

	cmd := exec.CommandContext(t.Context(), python, mustAbs(t, "testdata/read.py"), port)
	cmd.Dir = t.TempDir()
	cmd.Env = append(os.Environ(), "TZ=UTC", "FEAST_USAGE=False", "HOME="+cmd.Dir)
	var log bytes.Buffer
	cmd.Stderr = &log
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = in.Close(); _ = cmd.Wait() })
	answers := json.NewDecoder(out)
	answers.UseNumber()
	ask := func(entities string) map[string][]any {
		t.Helper()
		if _, err := fmt.Fprintln(in, entities); err != nil {
			t.Fatal(err)
		}
		var got map[string][]any
		if err := answers.Decode(&got); err != nil {
			_ = in.Close()
			_ = cmd.Wait()
			t.Fatalf("%v\n%s", err, &log)
		}
		return got
	}
	read := func() string {
		t.Helper()
		got := ask(`[{"origin":"EWR","slot":1},{"origin":"EWR","slot":2},{"origin":"JFK","slot":3},{"origin":"LGA","slot":1}]`)
		var text strings.Builder
		for _, f := range shape.Features {
			fmt.Fprintf(&text, "%s %v; ", f, got[f])
		}
		return text.String()
	}
	first := "temp [5.0 <nil> 1.5 <nil>]; count [9007199254741003 0 9007199254740996 <nil>]; note [note 10 ☃ <nil> note 3 ☃ <nil>]; busy [false false true <nil>]; seen [2025-12-31 23:00:00+00:00 <nil> 2025-12-31 23:00:00+00:00 <nil>]; small [-10 0 -3 <nil>]; ratio [0.5 0.0 0.5 <nil>]; " +
		"smalls [[-1 1073741824] [] [-1 1073741824] <nil>]; " + twice("counts", "[-1 4611686018427387904]") + twice("ratios", "[-1.25]") + twice("temps", "[0.1 -2.0]") +
		twice("notes", "[ ☃]") + twice("flags", "[true false]") + twice("times", "[2025-12-31 23:00:00+00:00]") + twice("vector", "[1.0 0.0 -0.5]")
	if got := read(); got != first {
		t.Errorf("Feast reads\n%s\nwant\n%s", got, first)
	}

	// The generation before goes: what the one after wrote stays. A person is erased.
	if err := store.Drop(t.Context(), old); err != nil {
		t.Fatal(err)
	}
	rows, err := store.Rows(t.Context(), now, [][]byte{weather(1, "EWR", day, full(0, true)...).Key})
	if err != nil {
		t.Fatal(err)
	}
	if err := store.Forget(t.Context(), rows); err != nil {
		t.Fatal(err)
	}
	second := "temp [<nil> <nil> <nil> <nil>]; count [<nil> 0 <nil> <nil>]; note [<nil> <nil> <nil> <nil>]; busy [<nil> false <nil> <nil>]; seen [<nil> <nil> <nil> <nil>]; small [<nil> 0 <nil> <nil>]; ratio [<nil> 0.0 <nil> <nil>]; smalls [<nil> [] <nil> <nil>]; " +
		none("counts", "ratios", "temps", "notes", "flags", "times", "vector")
	if got := read(); got != second {
		t.Errorf("Feast reads\n%s\nwant\n%s", got, second)
	}
	// A version with other features takes the place of a copy, and leaves nothing of it.
	next, less := online.Table{Project: "flights", View: "weather", Version: 2}, shape
	less.Version, less.Features, less.Types, less.Hidden = 2, []string{"temp", "count"}, shape.Types[:2], []bool{true, false}
	row := weather(2, "EWR", day.Add(time.Minute), value.OfFloat(7), value.OfInt(7))
	if err := errors.Join(store.Write(t.Context(), next, []online.Row{row}), store.Copy(t.Context(), next, less, []online.Row{row})); err != nil {
		t.Fatal(err)
	}
	third := "temp [<nil> <nil> <nil> <nil>]; count [<nil> 7 <nil> <nil>]; " + none(shape.Features[2:]...)
	if got := read(); got != third {
		t.Errorf("Feast reads\n%s\nwant\n%s", got, third)
	}
	// A key of 32 bits.
	delays, gates := online.Table{Project: "flights", View: "delays", Version: 1}, online.Shape{
		Project: "flights", View: "delays", Version: 1, JoinKeys: []string{"gate"}, Features: []string{"late"}, Types: []value.Type{value.Int32},
	}
	packed, err := value.AppendRow(nil, []value.Value{value.OfInt32(7)})
	if err != nil {
		t.Fatal(err)
	}
	row = online.Row{Key: value.AppendKey(nil, value.OfInt32(-5)), Event: day.UnixMicro(), Created: online.NoCreated, Packed: packed}
	if err := errors.Join(store.Write(t.Context(), delays, []online.Row{row}), store.Copy(t.Context(), delays, gates, []online.Row{row})); err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(ask(`[{"gate":-5},{"gate":5}]`)["late"]); got != "[7 <nil>]" {
		t.Errorf("of a key of 32 bits Feast reads %s", got)
	}
	// As when the key of the view is destroyed, which names the rows.
	if err := store.DropCopiesOf(t.Context(), "flights", ""); err != nil {
		t.Fatal(err)
	}
	keys, err := db.client.Do(t.Context(), db.client.B().Keys().Pattern("*flights").Build()).AsStrSlice()
	if err != nil || len(keys) > 0 {
		t.Errorf("left over: %q %v", keys, err)
	}
	if got, err := store.Read(t.Context(), now, online.Query{Keys: [][]byte{weather(2, "EWR", day, full(0, true)...).Key}, At: day}); err != nil || got[0].Status != online.Present {
		t.Errorf("with its copies the row went, too: %v %v", got, err)
	}
}

// twice is a feature that is the same in the first and the third row of four, and
// nowhere else.
func twice(feature, v string) string { return fmt.Sprintf("%s [%s <nil> %s <nil>]; ", feature, v, v) }

// none are features without values.
func none(features ...string) string {
	return strings.Join(features, " [<nil> <nil> <nil> <nil>]; ") + " [<nil> <nil> <nil> <nil>]; "
}

func mustAbs(t *testing.T, path string) string {
	t.Helper()
	path, err := filepath.Abs(path)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// shown is all that the hashes of copies hold.
func shown(t *testing.T, db *DB) string {
	t.Helper()
	keys, err := db.client.Do(t.Context(), db.client.B().Keys().Pattern("*flights").Build()).AsStrSlice()
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	for _, key := range keys {
		fields, err := db.client.Do(t.Context(), db.client.B().Hvals().Key(key).Build()).AsStrSlice()
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintln(&out, fields)
	}
	return out.String()
}

func noted(t *testing.T, slot int64, event time.Time, note string) online.Row {
	t.Helper()
	return weather(slot, "EWR", event, nulls(value.OfFloat(1), value.OfInt(1), value.OfString(note), value.OfBool(true), value.OfTime(event))...)
}

var (
	noon     = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	tableOne = online.Table{Project: "flights", View: "weather", Version: 1, Generation: "a"}
	tableTwo = online.Table{Project: "flights", View: "weather", Version: 1, Generation: "b"}
)

// Another version's copies go before one is written, whatever their stamps.
func TestVersionsOfCopies(t *testing.T) {
	db := openFeast(t, startServer(t, durable...))
	store := online.New(db, &onlinetest.Keys{}, online.Options{})
	if err := store.Copy(t.Context(), tableOne, shape, []online.Row{noted(t, 1, noon, "canary"), noted(t, 2, noon, "canary")}); err != nil {
		t.Fatal(err)
	}
	hiding, next := shape, tableOne
	hiding.Version, hiding.Hidden, next.Version = 2, []bool{false, false, true, false, false}, 2
	if err := store.Copy(t.Context(), next, hiding, []online.Row{noted(t, 1, noon.Add(-time.Hour), "canary")}); err != nil {
		t.Fatal(err)
	}
	if got := shown(t, db); strings.Contains(got, "canary") || strings.Count(got, "\n") != 1 {
		t.Errorf("shown: %q", got)
	}
	if views, err := store.CopiedViews(t.Context()); err != nil || len(views) != 1 || views[0] != (online.CopiedView{Project: "flights", View: "weather", Version: 2}) {
		t.Errorf("%v %v", views, err)
	}
}

func openFeast(t *testing.T, s *server) *DB {
	t.Helper()
	db, err := Open(t.Context(), Config{URL: s.url(), Feast: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

// What a table that goes had later is followed by what the others have.
func TestRecopy(t *testing.T) {
	db := openFeast(t, startServer(t, durable...))
	store := online.New(db, &onlinetest.Keys{}, online.Options{})
	put := func(table online.Table, rows ...online.Row) {
		t.Helper()
		if err := errors.Join(store.Copy(t.Context(), table, shape, rows), store.Write(t.Context(), table, rows)); err != nil {
			t.Fatal(err)
		}
	}
	put(tableOne, noted(t, 1, noon, "withdrawn"), noted(t, 2, noon, "only there"))
	put(tableTwo, noted(t, 1, noon.Add(-2*time.Hour), "older"), noted(t, 1, noon.Add(-time.Hour), "answers"))
	if got := shown(t, db); !strings.Contains(got, "withdrawn") || strings.Contains(got, "answers") {
		t.Fatalf("shown: %q", got)
	}
	for range 2 { // also again
		if err := errors.Join(store.Recopy(t.Context(), tableOne, []online.Table{tableTwo}, shape), store.Drop(t.Context(), tableOne)); err != nil {
			t.Fatal(err)
		}
		if got := shown(t, db); !strings.Contains(got, "answers") || strings.Contains(got, "withdrawn") || strings.Contains(got, "only there") {
			t.Errorf("shown: %q", got)
		}
	}
}

// between is a client that does something before the first commands of a kind.
type between struct {
	rueidis.Client
	what string
	do   func()
}

func (b *between) DoMulti(ctx context.Context, multi ...rueidis.Completed) []rueidis.RedisResult {
	if c := multi[0].Commands(); strings.HasPrefix(c[0], b.what) && b.do != nil {
		do := b.do
		b.do = nil
		do()
	}
	return b.Client.DoMulti(ctx, multi...)
}

// Whoever removes rows while they are copied leaves no copy that nothing names.
func TestCopyOfWhatIsRemoved(t *testing.T) {
	s := startServer(t, durable...)
	for name, remove := range map[string]func(store *online.Store, rows []online.RowKey) error{
		"row":   func(store *online.Store, rows []online.RowKey) error { return store.Forget(t.Context(), rows) },
		"table": func(store *online.Store, _ []online.RowKey) error { return store.Drop(t.Context(), tableOne) },
		"view": func(store *online.Store, _ []online.RowKey) error {
			return store.DropCopiesOf(t.Context(), "flights", "weather")
		},
	} {
		db, other := openFeast(t, s), openFeast(t, s)
		store, remover := online.New(db, &onlinetest.Keys{}, online.Options{}), online.New(other, &onlinetest.Keys{}, online.Options{})
		row := noted(t, 1, noon, "canary")
		rows, err := store.Rows(t.Context(), tableOne, [][]byte{row.Key})
		if err != nil {
			t.Fatal(err)
		}
		db.client = &between{Client: db.client, what: "EVAL", do: func() {
			if err := remove(remover, rows); err != nil {
				t.Error(err)
			}
		}}
		if err := store.Copy(t.Context(), tableOne, shape, []online.Row{row}); err != nil {
			t.Fatal(err)
		}
		if got := shown(t, other); strings.Contains(got, "canary") {
			t.Errorf("%s: left: %q", name, got)
		}

		// And the other way round: it is copied before the index goes.
		if err := store.Copy(t.Context(), tableOne, shape, []online.Row{row}); err != nil {
			t.Fatal(err)
		}
		other.client = &between{Client: other.client, what: "SREM", do: func() {
			if err := store.Copy(t.Context(), tableOne, shape, []online.Row{row}); err != nil {
				t.Error(err)
			}
		}}
		if err := remove(remover, rows); err != nil {
			t.Fatal(err)
		}
		if got := shown(t, db); strings.Contains(got, "canary") {
			t.Errorf("%s: left while it was copied: %q", name, got)
		}
	}
}

// A rewriting of the append-only file that began before a removal does not count, nor
// does one that was cut short.
func TestFilesWithoutCopies(t *testing.T) {
	s := startServer(t, durable...)
	db := openFeast(t, s)
	store := online.New(db, &onlinetest.Keys{}, online.Options{})
	rows := []online.Row{noted(t, 1, noon, "canary one"), noted(t, 2, noon, "canary two")}
	if err := store.Copy(t.Context(), tableOne, shape, rows); err != nil {
		t.Fatal(err)
	}
	files := func() (found bool) {
		t.Helper()
		names, err := filepath.Glob(filepath.Join(s.dir, "appendonlydir", "*"))
		if err != nil || len(names) == 0 {
			t.Fatal(names, err)
		}
		for _, name := range names {
			b, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			found = found || bytes.Contains(b, []byte("canary"))
		}
		return found
	}
	slow := func(micros string) {
		t.Helper()
		if err := db.client.Do(t.Context(), db.client.B().ConfigSet().ParameterValue().ParameterValue("rdb-key-save-delay", micros).Build()).Error(); err != nil {
			t.Fatal(err)
		}
	}
	slow("50000") // of each key
	if err := db.client.Do(t.Context(), db.client.B().Bgrewriteaof().Build()).Error(); err != nil {
		t.Fatal(err)
	}
	slow("0")
	for _, r := range rows {
		keys, err := store.Rows(t.Context(), tableOne, [][]byte{r.Key})
		if err != nil {
			t.Fatal(err)
		}
		if err := store.Forget(t.Context(), keys); err != nil {
			t.Fatal(err)
		}
	}
	if settled, err := store.Settle(t.Context(), 0); err != nil || settled {
		t.Errorf("settled while the file is being written: %t %v", settled, err)
	}
	if settled, err := store.Settle(t.Context(), time.Minute); err != nil || !settled || files() {
		t.Errorf("settled %t %v, in a file: %t", settled, err, files())
	}

	// The server is killed while it writes.
	if err := store.Copy(t.Context(), tableOne, shape, rows); err != nil {
		t.Fatal(err)
	}
	if err := store.DropCopiesOf(t.Context(), "flights", ""); err != nil {
		t.Fatal(err)
	}
	slow("1000000")
	if settled, err := store.Settle(t.Context(), 0); err != nil || settled {
		t.Fatalf("settled at once: %t %v", settled, err)
	}
	s.kill(t)
	s.start(t)
	if !files() {
		t.Fatal("it was not killed while it wrote")
	}
	db = openFeast(t, s) // as a process that has asked nothing
	if settled, err := online.New(db, &onlinetest.Keys{}, online.Options{}).Settle(t.Context(), time.Minute); err != nil || !settled || files() {
		t.Errorf("settled %t %v, in a file: %t", settled, err, files())
	}
}

// The driver is the same with copies.
func TestConformanceWithCopies(t *testing.T) {
	s := startServer(t, durable...)
	var n atomic.Int64
	onlinetest.Run(t, func(tb testing.TB) online.Driver {
		tb.Helper()
		db, err := Open(tb.Context(), Config{URL: s.url(), Prefix: fmt.Sprintf("test%d:", n.Add(1)), Feast: true})
		if err != nil {
			tb.Fatal(err)
		}
		return db
	})
}
