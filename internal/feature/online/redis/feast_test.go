package redis

import (
	"bytes"
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
	Project: "flights", View: "weather", JoinKeys: []string{"slot", "origin"}, Features: []string{"temp", "count", "note", "busy", "seen"},
	Types: []value.Type{value.Float64, value.Int64, value.String, value.Bool, value.Timestamp},
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
		return []value.Value{value.OfFloat(float64(n) / 2), value.OfInt(9007199254740993 + n), value.OfString(fmt.Sprintf("note %d ☃", n)), value.OfBool(busy), value.OfTime(seen)}
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
	put(now, weather(2, "EWR", day, value.Null(value.Float64), value.OfInt(0), value.Null(value.String), value.OfBool(false), value.Null(value.Timestamp)))

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
	read := func() string {
		t.Helper()
		if _, err := fmt.Fprintln(in, `[{"origin":"EWR","slot":1},{"origin":"EWR","slot":2},{"origin":"JFK","slot":3},{"origin":"LGA","slot":1}]`); err != nil {
			t.Fatal(err)
		}
		var got map[string][]any
		if err := answers.Decode(&got); err != nil {
			_ = in.Close()
			_ = cmd.Wait()
			t.Fatalf("%v\n%s", err, &log)
		}
		var text strings.Builder
		for _, f := range shape.Features {
			fmt.Fprintf(&text, "%s %v; ", f, got[f])
		}
		return text.String()
	}
	first := "temp [5.0 <nil> 1.5 <nil>]; count [9007199254741003 0 9007199254740996 <nil>]; note [note 10 ☃ <nil> note 3 ☃ <nil>]; busy [false false true <nil>]; seen [2025-12-31 23:00:00+00:00 <nil> 2025-12-31 23:00:00+00:00 <nil>]; "
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
	second := "temp [<nil> <nil> <nil> <nil>]; count [<nil> 0 <nil> <nil>]; note [<nil> <nil> <nil> <nil>]; busy [<nil> false <nil> <nil>]; seen [<nil> <nil> <nil> <nil>]; "
	if got := read(); got != second {
		t.Errorf("Feast reads\n%s\nwant\n%s", got, second)
	}
	// A version with other features takes the place of a copy, and leaves nothing of it.
	next, less := online.Table{Project: "flights", View: "weather", Version: 2}, shape
	less.Features, less.Types, less.Hidden = []string{"temp", "count"}, shape.Types[:2], []bool{true, false}
	row := weather(2, "EWR", day.Add(time.Minute), value.OfFloat(7), value.OfInt(7))
	if err := errors.Join(store.Write(t.Context(), next, []online.Row{row}), store.Copy(t.Context(), next, less, []online.Row{row})); err != nil {
		t.Fatal(err)
	}
	third := "temp [<nil> <nil> <nil> <nil>]; count [<nil> 7 <nil> <nil>]; note [<nil> <nil> <nil> <nil>]; busy [<nil> <nil> <nil> <nil>]; seen [<nil> <nil> <nil> <nil>]; "
	if got := read(); got != third {
		t.Errorf("Feast reads\n%s\nwant\n%s", got, third)
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

func mustAbs(t *testing.T, path string) string {
	t.Helper()
	path, err := filepath.Abs(path)
	if err != nil {
		t.Fatal(err)
	}
	return path
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
