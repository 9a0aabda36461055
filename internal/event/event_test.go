package event_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/falaj-ml/falaj/internal/event"
	"github.com/falaj-ml/falaj/internal/lifecycle"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/store/storetest"
)

var schema = store.Migrations{Name: "seen", FS: fstest.MapFS{"00001_seen.sql": {Data: []byte(
	"-- +goose Up\nCREATE TABLE seen_event (name TEXT NOT NULL, at BIGINT NOT NULL);\n")}}}

// subject is a test and the database under it.
type subject struct {
	*testing.T
	db *store.DB
}

// onBoth runs a test on both databases.
func onBoth(t *testing.T, test func(t *subject)) {
	t.Helper()
	t.Run("SQLite", func(t *testing.T) { test(&subject{t, storetest.SQLite(t, schema)}) })
	t.Run("PostgreSQL", func(t *testing.T) { test(&subject{t, storetest.PostgreSQL(t, schema)}) })
}

func publish(tb testing.TB, db *store.DB, project string, names ...string) {
	tb.Helper()
	for _, n := range names {
		err := db.Update(tb.Context(), project, func(ctx context.Context, tx *store.Tx) error {
			return event.Publish(ctx, tx, project, n, map[string]string{"name": n})
		})
		if err != nil {
			tb.Fatal(err)
		}
	}
}

func start(tb testing.TB, db *store.DB, cfg event.Config) *event.Subscription {
	tb.Helper()
	cfg.Logger = slog.New(slog.DiscardHandler)
	s := event.Subscribe(db, cfg)
	if err := s.Start(tb.Context()); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { stop(tb, s) })
	return s
}

func stop(tb testing.TB, s *event.Subscription) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := s.Stop(ctx); err != nil {
		tb.Error(err)
	}
}

// next waits for what a handler sends.
func next[T any](tb testing.TB, ch <-chan T) T {
	tb.Helper()
	select {
	case v := <-ch:
		return v
	case <-time.After(20 * time.Second):
		tb.Fatal("the handler was not called")
		panic("unreachable")
	}
}

func send(ch chan<- string) func(context.Context, event.Event) error {
	return func(_ context.Context, e event.Event) error {
		var body struct{ Name string }
		if err := e.Decode(&body); err != nil {
			return err
		}
		if body.Name != e.Name {
			return fmt.Errorf("body %s of %s", e.Body, e.Name)
		}
		ch <- e.Name
		return nil
	}
}

func TestSubscriptionGoesOn(t *testing.T) {
	onBoth(t, func(t *subject) {
		db := t.db
		got := make(chan string, 1000)
		publish(t, db, "p", "a.1", "a.2") // before it ever ran
		s := start(t, db, event.Config{Name: "s", Handle: send(got)})
		for _, want := range []string{"a.1", "a.2"} {
			if name := next(t, got); name != want {
				t.Fatalf("got %s, want %s", name, want)
			}
		}
		publish(t, db, "p", "a.3")
		if name := next(t, got); name != "a.3" {
			t.Fatalf("got %s, want a.3", name)
		}
		stop(t, s)
		stop(t, s)
		var want []string
		for i := range 250 { // more than a page
			want = append(want, fmt.Sprint("b.", i))
		}
		publish(t, db, "p", want...)
		start(t, db, event.Config{Name: "s", Handle: send(got)})
		for _, w := range want {
			if name := next(t, got); name != w {
				t.Fatalf("after a restart got %s, want %s", name, w)
			}
		}
		select {
		case name := <-got:
			t.Errorf("got %s once more", name)
		default:
		}
	})
}

func TestHandlerFails(t *testing.T) {
	onBoth(t, func(t *subject) {
		db := t.db
		got := make(chan string, 100)
		failures := 0
		var s *event.Subscription
		began := make(chan struct{})
		s = start(t, db, event.Config{Name: "s", Handle: func(_ context.Context, e event.Event) error {
			<-began
			if st := s.Status(); failures > 0 && e.Name == "bad" && (st.Failures != failures || st.Err == nil || !strings.Contains(st.Err.Error(), "bad")) {
				t.Errorf("while it fails, the status is %+v", st)
			}
			got <- e.Name
			if e.Name == "bad" && failures < 3 {
				failures++
				if failures == 2 {
					panic("bad")
				}
				return errors.New("bad")
			}
			return nil
		}})
		close(began)
		publish(t, db, "", "good", "bad", "later")
		var names []string
		for range 6 {
			names = append(names, next(t, got))
		}
		if diff := cmp.Diff([]string{"good", "bad", "bad", "bad", "bad", "later"}, names); diff != "" {
			t.Error(diff)
		}
	})
}

func TestHandleTxTakesEffectOnce(t *testing.T) {
	onBoth(t, func(t *subject) {
		db := t.db
		done := make(chan struct{})
		calls := map[string]int{}
		s := start(t, db, event.Config{Name: "s", HandleTx: func(ctx context.Context, tx *store.Tx, e event.Event) error {
			_, err := tx.NewRaw(`INSERT INTO seen_event (name, at) VALUES (?, ?)`, e.Name, e.Position.Seq).Exec(ctx)
			if err != nil {
				return err
			}
			calls[e.Name]++
			if e.Name == "e.3" && calls[e.Name] < 3 {
				return errors.New("after the write")
			}
			if e.Name == "e.9" {
				tx.OnCommit(func() { close(done) })
			}
			return nil
		}})
		var want []string
		for i := range 10 {
			want = append(want, fmt.Sprint("e.", i))
		}
		publish(t, db, "p", want...)
		next(t, done)
		stop(t, s)
		var got []string
		err := db.View(t.Context(), func(ctx context.Context, tx *store.Tx) error {
			return tx.NewRaw(`SELECT name FROM seen_event ORDER BY at, name`).Scan(ctx, &got)
		})
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
		if calls["e.3"] < 3 {
			t.Errorf("e.3 was tried %d times", calls["e.3"])
		}
	})
}

func TestNamesAndFromNow(t *testing.T) {
	db := storetest.SQLite(t, schema)
	publish(t, db, "", "job.old")
	for _, c := range []struct {
		cfg  event.Config
		want []string
	}{
		{event.Config{Name: "all"}, []string{"job.old", "job.started", "jobs.x", "model.signed"}},
		{event.Config{Name: "one", Names: []string{"model.signed"}}, []string{"model.signed"}},
		{event.Config{Name: "domain", Names: []string{"job.*"}}, []string{"job.old", "job.started"}},
		{event.Config{Name: "now", Names: []string{"job.*"}, FromNow: true}, []string{"job.started"}},
	} {
		t.Run(c.cfg.Name, func(t *testing.T) {
			var got []string
			c.cfg.Handle = func(_ context.Context, e event.Event) error { got = append(got, e.Name); return nil }
			db := storetest.SQLite(t, schema)
			publish(t, db, "", "job.old")
			s := event.Subscribe(db, c.cfg)
			if c.cfg.FromNow {
				if err := s.RunOnce(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			publish(t, db, "", "job.started", "jobs.x", "model.signed")
			if err := s.RunOnce(t.Context()); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
	for name, cfg := range map[string]event.Config{
		"no handler": {Name: "x"}, "no name": {Handle: send(nil)},
		"two handlers": {Name: "x", Handle: send(nil), HandleTx: func(context.Context, *store.Tx, event.Event) error { return nil }},
	} {
		if err := event.Subscribe(db, cfg).Start(t.Context()); err == nil {
			t.Errorf("%s: started", name)
		}
	}
}

// TestOneProcessAtATime has two processes subscribe under one name.
func TestOneProcessAtATime(t *testing.T) {
	url := storetest.Postgres(t)
	seen := make(chan string, 100)
	subscribe := func(process string) *event.Subscription {
		db, err := store.Open(t.Context(), store.Config{URL: url})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = db.Close() })
		s := event.Subscribe(db, event.Config{
			Name: "s", Logger: slog.New(slog.DiscardHandler),
			Handle: func(_ context.Context, e event.Event) error { seen <- process + " " + e.Name; return nil },
		})
		s.SetLease(6 * time.Second)
		if err := s.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { stop(t, s) })
		return s
	}
	db, err := store.Open(t.Context(), store.Config{URL: url})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	a := subscribe("a")
	publish(t, db, "", "first")
	if got := next(t, seen); got != "a first" {
		t.Fatal(got)
	}
	subscribe("b")
	publish(t, db, "", "second")
	if got := next(t, seen); got != "a second" {
		t.Fatal(got)
	}
	stop(t, a)
	publish(t, db, "", "third")
	if got := next(t, seen); got != "b third" {
		t.Fatal(got)
	}
}

func TestWatch(t *testing.T) {
	onBoth(t, func(t *subject) {
		db := t.db
		publish(t, db, "mine", "old")
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		w := event.Watch(db, "mine", store.Position{})
		read := func(w *event.Watcher) string {
			t.Helper()
			e, err := w.Next(ctx)
			if err != nil {
				t.Fatal(err)
			}
			if e.Project != "mine" && e.Project != "theirs" || e.Time.IsZero() {
				t.Errorf("event %+v", e)
			}
			return e.Name
		}
		if got := read(w); got != "old" {
			t.Errorf("got %s", got)
		}
		now, err := event.Now(ctx, db)
		if err != nil {
			t.Fatal(err)
		}
		// A deadline does not end the watch.
		short, stop := context.WithTimeout(ctx, time.Millisecond)
		defer stop()
		if _, err := w.Next(short); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("nothing happens: %v", err)
		}
		publish(t, db, "theirs", "secret")
		go func() {
			_ = db.Update(ctx, "mine", func(ctx context.Context, tx *store.Tx) error {
				return errors.Join(event.Publish(ctx, tx, "mine", "new", 1), event.Publish(ctx, tx, "mine", "newer", 2))
			})
		}()
		if got := []string{read(w), read(w)}; !slices.Equal(got, []string{"new", "newer"}) {
			t.Errorf("got %v", got)
		}
		all := event.Watch(db, "", now)
		if got := []string{read(all), read(all), read(all)}; !slices.Equal(got, []string{"secret", "new", "newer"}) {
			t.Errorf("all projects after %v: %v", now, got)
		}
		again := event.Watch(db, "mine", store.Position{})
		read(again)
		position, err := store.ParsePosition(again.Position().String())
		if err != nil {
			t.Fatal(err)
		}
		if got := read(event.Watch(db, "mine", position)); got != "new" {
			t.Errorf("resumed at %s", got)
		}
	})
}

func TestTrim(t *testing.T) {
	onBoth(t, func(t *subject) {
		db := t.db
		ctx := t.Context()
		var names []string
		for i := range 230 {
			names = append(names, fmt.Sprint("e.", i))
		}
		publish(t, db, "", names...)
		left := func() int {
			records, _, err := db.ReadStream(ctx, "event", store.Position{}, 1000)
			if err != nil {
				t.Fatal(err)
			}
			return len(records)
		}
		for left() < len(names) { // PostgreSQL's watermark may lag for a moment
			<-db.Changed("event")
		}
		now := time.Now()
		over := lifecycle.NewPass(func() time.Time { now = now.Add(time.Hour); return now })
		if err := event.Trim(ctx, db, time.Now().Add(-time.Hour)); err != nil || left() != 230 {
			t.Errorf("nothing is old: %d left, %v", left(), err)
		}
		slow := event.Subscribe(db, event.Config{Name: "slow", Handle: func(_ context.Context, e event.Event) error {
			if e.Name == "e.150" {
				return errors.New("stuck")
			}
			return nil
		}})
		if err := slow.RunOnce(ctx); err == nil {
			t.Fatal("it is not stuck")
		}
		if err := event.Trim(ctx, db, time.Now().Add(time.Hour)); err != nil || left() != 80 {
			t.Errorf("a subscription has not seen 80: %d left, %v", left(), err)
		}
		if err := event.Unsubscribe(ctx, db, "slow"); err != nil {
			t.Fatal(err)
		}
		if err := event.Trim(ctx, db, time.Now().Add(time.Hour)); err != nil || left() != 0 {
			t.Errorf("nobody needs them: %d left, %v", left(), err)
		}
		var many []string
		for i := range 1100 {
			many = append(many, fmt.Sprintf("e.%d", i))
		}
		publish(t, db, "", many...)
		for left() < 1000 {
			<-db.Changed("event")
		}
		for _, want := range []int{100, 0} { // a pass that is over removes one page
			if err := event.TrimIn(ctx, db, time.Now().Add(time.Hour), over); err != nil || left() != want {
				t.Errorf("a pass: %d left, %v", left(), err)
			}
		}
	})
}
