package redis

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/feature/online"
	"github.com/falaj-ml/falaj/internal/feature/online/onlinetest"
	"github.com/falaj-ml/falaj/internal/feature/value"
)

// server is a real Redis on a socket of its own.
type server struct {
	dir  string
	args []string
	cmd  *exec.Cmd
}

var durable = []string{"--appendonly", "yes", "--appendfsync", "always"}

func startServer(t *testing.T, args ...string) *server {
	t.Helper()
	if _, err := exec.LookPath("redis-server"); err != nil {
		if os.Getenv("CI") == "true" { //nolint:forbidigo // The rule of every engine's tests.
			t.Fatal("redis-server is not installed")
		}
		t.Skip("redis-server is not installed; run: make engines")
	}
	dir, err := os.MkdirTemp("", "redis") //nolint:usetesting // A socket's path must be short.
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	s := &server{dir: dir, args: args}
	s.start(t)
	t.Cleanup(func() { s.kill(t) })
	return s
}

func (s *server) url() string { return "unix://" + filepath.Join(s.dir, "s") }

func (s *server) start(t *testing.T) {
	t.Helper()
	s.cmd = exec.Command("redis-server", append([]string{"--port", "0", "--unixsocket", filepath.Join(s.dir, "s"), "--dir", s.dir, "--save", ""}, s.args...)...)
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var log strings.Builder
	b := make([]byte, 4096)
	for !strings.Contains(log.String(), "ready to accept connections") && !strings.Contains(log.String(), "now ready to accept") {
		n, err := out.Read(b)
		if err != nil {
			t.Fatalf("Redis does not start: %s", log.String())
		}
		log.Write(b[:n])
	}
	go func() { // it must not wait for its log to be read
		for {
			if _, err := out.Read(b); err != nil {
				return
			}
		}
	}()
}

func (s *server) kill(t *testing.T) {
	t.Helper()
	if s.cmd == nil {
		return
	}
	_ = s.cmd.Process.Kill() // it may have ended
	_ = s.cmd.Wait()
	s.cmd = nil
}

func open(tb testing.TB, s *server, prefix string) *DB {
	tb.Helper()
	db, err := Open(tb.Context(), Config{URL: s.url(), Prefix: prefix})
	if err != nil {
		tb.Fatal(err)
	}
	return db
}

func TestDriver(t *testing.T) {
	s := startServer(t, durable...)
	var n atomic.Int64
	onlinetest.Run(t, func(tb testing.TB) online.Driver {
		tb.Helper()
		return open(tb, s, fmt.Sprintf("test%d:", n.Add(1)))
	})
}

func row(entity string, event time.Time, text string) online.Row {
	return online.Row{Key: value.AppendKey(nil, value.OfString(entity)), Event: event.UnixMicro(), Created: online.NoCreated, Packed: []byte(text)}
}

var (
	table = online.Table{Project: "nyc", View: "weather", Version: 1}
	clock = online.Options{Now: func() time.Time { return onlinetest.Clock }}
)

// What was acknowledged is there after kill -9; while Redis is away calls fail with
// words, and go on by themselves when it is back.
func TestKilled(t *testing.T) {
	s := startServer(t, durable...)
	db := open(t, s, "")
	defer db.Close()
	store := online.New(db, &onlinetest.Keys{}, clock)
	for round := range 3 {
		for n := range 20 {
			at := onlinetest.Clock.Add(-time.Hour + time.Duration(round*20+n)*time.Second)
			if err := store.Write(t.Context(), table, []online.Row{row("EWR", at, strconv.Itoa(round*20+n))}); err != nil {
				t.Fatal(err)
			}
		}
		s.kill(t)
		q := online.Query{Keys: [][]byte{row("EWR", onlinetest.Clock, "").Key}, At: onlinetest.Clock}
		if _, err := store.Read(t.Context(), table, q); !fault.Is(err, fault.Unavailable) {
			t.Errorf("without Redis: %v", err)
		}
		if err := store.Write(t.Context(), table, []online.Row{row("EWR", onlinetest.Clock, "lost")}); !fault.Is(err, fault.Unavailable) {
			t.Errorf("without Redis: %v", err)
		}
		s.start(t)
		answers, err := store.Read(t.Context(), table, q)
		if err != nil || string(answers[0].Packed) != strconv.Itoa(round*20+19) {
			t.Errorf("after round %d: %v, %v", round, answers, err)
		}
	}
}

func TestRefuses(t *testing.T) {
	s := startServer(t)
	_, err := Open(t.Context(), Config{URL: s.url()})
	if !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), "appendonly is no") {
		t.Errorf("a server that does not sync: %v", err)
	}
	db, err := Open(t.Context(), Config{URL: s.url(), Loses: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Error(err)
	}
	for _, c := range []struct {
		url  string
		kind fault.Kind
		says string
	}{
		{"redis://features.example:6379", fault.Invalid, "would not use TLS"},
		{"redis://10.0.0.7", fault.Invalid, "would not use TLS"},
		{"http://localhost", fault.Invalid, "is invalid"},
		{"redis://:secret@local host", fault.Invalid, "is invalid"},
		{"unix://" + filepath.Join(t.TempDir(), "none"), fault.Unavailable, "is unavailable"},
	} {
		_, err := Open(t.Context(), Config{URL: c.url})
		if !fault.Is(err, c.kind) || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v, want %v %q", c.url, err, c.kind, c.says)
		}
	}
}

// What Redis holds says nothing about entities and values.
func TestSaysNothing(t *testing.T) {
	s := startServer(t, durable...)
	db := open(t, s, "")
	defer db.Close()
	store := online.New(db, &onlinetest.Keys{}, clock)
	if err := store.Write(t.Context(), table, []online.Row{row("canary-entity", onlinetest.Clock, "canary-value")}); err != nil {
		t.Fatal(err)
	}
	found := false
	err := filepath.WalkDir(s.dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		text, err := os.ReadFile(path)
		found = found || strings.Contains(string(text), "falaj:r:")
		if strings.Contains(string(text), "canary") {
			t.Errorf("%s has what was to be hidden", filepath.Base(path))
		}
		return err
	})
	if err != nil || !found {
		t.Errorf("the file of writes was not found: %v", err)
	}
}

// One that was emptied neither takes rows nor says that nothing is known, until its owner
// knows of it.
func TestEmptied(t *testing.T) {
	s := startServer(t, durable...)
	db := open(t, s, "")
	defer db.Close()
	store := online.New(db, &onlinetest.Keys{}, clock)
	rows := []online.Row{row("EWR", onlinetest.Clock, "a")}
	q := online.Query{Keys: [][]byte{rows[0].Key}, At: onlinetest.Clock}
	if err := store.Write(t.Context(), table, rows); err != nil {
		t.Fatal(err)
	}
	empty := func() {
		t.Helper()
		if err := db.client.Do(t.Context(), db.client.B().Flushall().Build()).Error(); err != nil {
			t.Fatal(err)
		}
	}
	refused := func(when string) {
		t.Helper()
		err := store.Write(t.Context(), table, rows)
		_, rerr := store.Read(t.Context(), table, q)
		_, ferr := db.WriteIf(t.Context(), online.Version{}, []online.Version{{}})
		for _, err := range []error{err, rerr, ferr} {
			if !fault.Is(err, fault.Unavailable) || !strings.Contains(err.Error(), "was flushed") {
				t.Errorf("%s: %v", when, err)
			}
		}
	}
	empty()
	refused("emptied")
	if n, err := db.client.Do(t.Context(), db.client.B().Dbsize().Build()).AsInt64(); err != nil || n != 0 {
		t.Errorf("what was refused left %d keys, %v", n, err)
	}
	id, err := db.ID(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	refused("before its owner knows")
	db.Expect(id)
	if answers, err := store.Read(t.Context(), table, q); err != nil || answers[0].Status != online.NotFound {
		t.Errorf("it has %v, %v", answers, err)
	}
	if err := store.Write(t.Context(), table, rows); err != nil {
		t.Error(err)
	}
}

// Two installations do not share a prefix, such as one and what was restored of it.
func TestOwner(t *testing.T) {
	s := startServer(t, durable...)
	for _, c := range []struct {
		owner, prefix string
		ok            bool
	}{{"ours", "p:", true}, {"ours", "p:", true}, {"theirs", "p:", false}, {"theirs", "q:", true}, {"", "p:", true}} {
		db, err := Open(t.Context(), Config{URL: s.url(), Prefix: c.prefix, Owner: c.owner})
		if err == nil {
			_ = db.Close()
		}
		if c.ok != (err == nil) || !c.ok && (!fault.Is(err, fault.Conflict) || !strings.Contains(fault.HintOf(err), "p:owner")) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}
