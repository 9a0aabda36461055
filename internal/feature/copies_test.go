package feature_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/feature"
	"github.com/falaj-ml/falaj/internal/feature/online"
	"github.com/falaj-ml/falaj/internal/feature/online/redis"
	"github.com/falaj-ml/falaj/internal/feature/value"
	"github.com/falaj-ml/falaj/internal/governance/project"
)

// copier keeps the copies that it is given, by view.
type copier struct {
	online.Driver
	held     map[string]string
	versions map[string]int
}

var _ online.Copier = (*copier)(nil)

func (c *copier) Copies() bool { return true }

func (c *copier) Copy(_ context.Context, s online.Shape, copies []online.Copy) error {
	c.versions[s.View] = s.Version
	for _, r := range copies {
		c.held[s.View] += fmt.Sprintf("%s %v %v; ", strings.Join(s.JoinKeys, ","), r.Key, r.Values)
	}
	return nil
}

func (c *copier) DropCopiesOf(_ context.Context, _, view string) error {
	if view == "" {
		clear(c.held)
		clear(c.versions)
	}
	delete(c.held, view)
	delete(c.versions, view)
	return nil
}

func (c *copier) CopiedViews(context.Context) (views []online.CopiedView, err error) {
	for view, version := range c.versions {
		views = append(views, online.CopiedView{Project: string(nyc), View: view, Version: version})
	}
	return views, nil
}

func (c *copier) CopiedKeys(context.Context, online.TableKey, func([][]byte) error) error { return nil }

func (c *copier) Settled(context.Context) (bool, error) { return true, nil }

// What everybody may read unasked is copied, and nothing else.
func TestCopies(t *testing.T) {
	w := weather(t)
	c := &copier{Driver: w.driver, held: map[string]string{}, versions: map[string]int{}}
	w.online = online.New(c, w.keys, online.Options{Now: func() time.Time { return w.now }})
	w.configure(func(*feature.Config) {})
	tidy := func() {
		t.Helper()
		if err := w.RemoveStaleCopies(w.ctx); err != nil {
			t.Fatal(err)
		}
	}
	has := func(want map[string]string) {
		t.Helper()
		expect(t, maps.Collect(maps.All(c.held)), want)
		clear(c.held)
	}

	w.mustMaterialise("weather", w.now)
	all := "origin [EWR] [10 50]; origin [EWR] [11 NULL]; origin [EWR] [18 58]; origin [JFK] [21 51]; "
	has(map[string]string{"weather": all})
	if err := w.push(pushed(2, "EWR", 12)); err != nil {
		t.Fatal(err)
	}
	has(map[string]string{"weather": "origin [EWR] [12 NULL]; "})

	c.held["weather"] = "current"
	tidy()
	has(map[string]string{"weather": "current"})

	hidden := weatherSpec
	hidden.Features = slices.Clone(hidden.Features)
	hidden.Features[0].Protect = feature.Mask
	w.view("weather", hidden) // the version before gets no copies any more
	c.held["weather"] = "before"
	tidy()
	has(map[string]string{})
	if _, err := w.Push(w.ctx, feature.PushRequest{Project: nyc, View: "weather@1", Columns: pushed(3, "EWR", 13)}); err != nil {
		t.Fatal(err)
	}
	has(map[string]string{})
	w.mustMaterialise("weather", w.now)
	has(map[string]string{"weather": "origin [EWR] [NULL 50]; origin [EWR] [NULL NULL]; origin [EWR] [NULL 58]; origin [JFK] [NULL 51]; "})
	other := hidden
	other.Aggregations, other.Features = []feature.AggregationSpec{{Name: "mean", Function: "mean", Column: "temp", Type: "float64", Window: "2h"}}, nil
	other.TTL = ""
	w.view("weather", other) // it has none at all
	c.held["weather"] = "before"
	w.mustMaterialise("weather", w.now)
	has(map[string]string{})

	// What was copied before goes, whatever makes it so.
	w.view("weather", weatherSpec)
	w.mustMaterialise("weather", w.now)
	w.data.put("weather", weatherRows(), func(v *version) { v.Classification = project.Confidential })
	w.online = online.New(w.driver, w.keys, online.Options{Now: func() time.Time { return w.now }})
	w.configure(func(*feature.Config) {})
	w.mustMaterialise("weather", w.now) // by a server without copies
	w.online = online.New(c, w.keys, online.Options{Now: func() time.Time { return w.now }})
	w.configure(func(*feature.Config) {})
	tidy()
	has(map[string]string{})
	w.data.put("weather", weatherRows())
	purposed := weatherSpec
	purposed.Purpose = []string{"care"}
	w.view("weather", purposed)
	c.held["weather"] = "before"
	w.mustMaterialise("weather", w.now)
	has(map[string]string{})
	longer := weatherSpec
	longer.TTL = "4h"
	w.view("weather", longer)
	w.data.put("weather", weatherRows(), func(v *version) { v.Classification = project.Confidential })
	c.held["weather"] = "before"
	w.mustMaterialise("weather", w.now)
	has(map[string]string{})

	// Rows of windows are not features.
	w.data.declared["purchases"] = purchaseCols
	w.view("spending", spending)
	w.mustPush(purchase("EWR", 1, 10))
	w.mustMaterialise("spending", time.Time{})
	w.mustPush(purchase("EWR", 2, 10))
	w.follow()
	has(map[string]string{})

	// What a stream brings is copied as it comes.
	bought := feature.ViewSpec{Source: spending.Source, Entities: spending.Entities, Timestamp: "time", Features: []feature.FieldSpec{{Name: "amount", Type: "float64"}}}
	w.view("bought", bought)
	w.mustMaterialise("bought", time.Time{})
	clear(c.held)
	w.mustPush(purchase("JFK", 3, 7))
	w.follow()
	has(map[string]string{"bought": "origin [JFK] [7]; "})

	c.held["bought"], c.held["weather"] = "before", "before"
	if err := w.KeyDestroyed(w.ctx, nyc, "dataset/weather"); err != nil {
		t.Fatal(err)
	}
	if err := w.KeyDestroyed(w.ctx, nyc, "feature/weather"); err != nil {
		t.Fatal(err)
	}
	has(map[string]string{"bought": "before"})
	c.held["bought"] = "before"
	if err := w.KeyDestroyed(w.ctx, nyc, ""); err != nil {
		t.Fatal(err)
	}
	has(map[string]string{})
}

// staff is a world with a Redis in Feast's layout, and a view whose feature is a text.
func staff(t *testing.T) (w *world, r *redisProcess, d *stopping) {
	t.Helper()
	r = newRedis(t)
	db, err := redis.Open(t.Context(), redis.Config{URL: r.url(), Feast: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	w, d = newWorld(t), &stopping{DB: db}
	w.online = online.New(d, w.keys, online.Options{Now: func() time.Time { return w.now }})
	w.configure(func(*feature.Config) {})
	w.entity("origin", "string")
	w.data.declared["staff"] = staffCols
	return w, r, d
}

var (
	staffCols = []col{{"origin", value.String}, {"time", value.Timestamp}, {"salary", value.String}}
	staffSpec = feature.ViewSpec{
		Source: feature.Source{Dataset: "staff"}, Entities: []string{"origin"}, Timestamp: "time", Features: []feature.FieldSpec{{Name: "salary", Type: "string"}},
	}
)

// stopping is a driver that stops writing when it is told to.
type stopping struct {
	*redis.DB
	fail bool
}

func (f *stopping) WriteIf(ctx context.Context, was online.Version, versions []online.Version) (bool, error) {
	if f.fail {
		return false, errGone
	}
	return f.DB.WriteIf(ctx, was, versions)
}

// shown is all that hashes of Redis hold, which copies are.
func (r *redisProcess) shown(t *testing.T) string {
	t.Helper()
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "unix", strings.TrimPrefix(r.url(), "unix://"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	const script = `local out = {} for _, k in ipairs(redis.call('KEYS', '*')) do if redis.call('TYPE', k).ok == 'hash' then for _, v in ipairs(redis.call('HGETALL', k)) do out[#out + 1] = v end end end return table.concat(out, ' ')`
	if _, err := fmt.Fprintf(conn, "*3\r\n$4\r\nEVAL\r\n$%d\r\n%s\r\n$1\r\n0\r\n", len(script), script); err != nil {
		t.Fatal(err)
	}
	in, size := bufio.NewReader(conn), 0
	if _, err := fmt.Fscanf(in, "$%d\r\n", &size); err != nil {
		t.Fatal(err)
	}
	text := make([]byte, size)
	if _, err := io.ReadFull(in, text); err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// A newer version hides what the one before showed, also of entities that it has not, and
// of rows that are later than its own.
func TestCopiesOfTheVersionBefore(t *testing.T) {
	for _, how := range []string{"when it is applied", "when it is written"} {
		t.Run(how, func(t *testing.T) {
			w, r, _ := staff(t)
			w.data.put("staff", table{staffCols, [][]value.Value{{str("EWR"), ts(1), str("canary")}, {str("JFK"), ts(1), str("canary")}}})
			w.view("staff", staffSpec)
			w.mustMaterialise("staff", w.now)
			if _, err := w.Push(w.ctx, feature.PushRequest{Project: nyc, View: "staff", Columns: map[string][]any{"origin": {"EWR"}, "time": {at(9)}, "salary": {"canary"}}}); err != nil {
				t.Fatal(err)
			}
			if n := strings.Count(r.shown(t), "canary"); n != 2 {
				t.Fatalf("%d copies before", n)
			}
			hidden := staffSpec
			hidden.Features = []feature.FieldSpec{{Name: "salary", Type: "string", Protect: feature.Mask}}
			w.view("staff", hidden)
			w.data.put("staff", table{staffCols, [][]value.Value{{str("EWR"), ts(2), str("canary")}}})
			if how == "when it is written" {
				w.mustMaterialise("staff", w.now)
			} else if err := w.RemoveStaleCopies(w.ctx); err != nil {
				t.Fatal(err)
			}
			if got := r.shown(t); strings.Contains(got, "canary") {
				t.Errorf("still there: %q", got)
			}
		})
	}
}

// A row that a later materialisation has no more is followed by the one that answers.
func TestCopiesAfterACorrection(t *testing.T) {
	w, r, _ := staff(t)
	w.data.put("staff", table{staffCols, [][]value.Value{{str("EWR"), ts(1), str("right")}, {str("EWR"), ts(3), str("wrong")}, {str("JFK"), ts(3), str("gone")}}})
	w.view("staff", staffSpec)
	w.mustMaterialise("staff", w.now)
	w.data.put("staff", table{staffCols, [][]value.Value{{str("EWR"), ts(1), str("right")}}})
	w.mustMaterialise("staff", w.now)
	w.now = w.now.Add(2 * time.Minute) // reads of before have ended
	if err := w.RunOnce(w.ctx); err != nil {
		t.Fatal(err)
	}
	if got := r.shown(t); !strings.Contains(got, "right") || strings.Contains(got, "wrong") || strings.Contains(got, "gone") {
		t.Errorf("Feast reads %q", got)
	}
}

// A copy whose row was never written is found by who erases the person, and is in no file
// afterwards.
func TestCopiesOfAPersonWithoutRows(t *testing.T) {
	w, r, d := staff(t)
	spec := staffSpec
	spec.Source.Stream = &feature.StreamSpec{Push: &struct{}{}}
	w.view("staff", spec)
	push := func(origin, salary string) {
		t.Helper()
		if _, err := w.PushEvents(w.ctx, feature.EventsRequest{Project: nyc, View: "staff", Events: []feature.Event{{"origin": origin, "time": at(1), "salary": salary}}}); err != nil {
			t.Fatal(err)
		}
	}
	push("JFK", "other")
	w.mustMaterialise("staff", time.Time{})
	push("EWR", "canary")
	d.fail = true
	if err := w.ProcessStreamsOnce(w.ctx); !errors.Is(err, errGone) {
		t.Fatalf("it went on: %v", err)
	}
	d.fail = false
	if !strings.Contains(r.shown(t), "canary") {
		t.Fatal("nothing was copied")
	}
	keys, err := w.PersonKeys(w.ctx, ewr(true))
	if err != nil {
		t.Fatal(err)
	}
	if gone, err := w.ForgetEvents(w.ctx, "erasure.apply", ewr(true), "staff", []string{"origin"}, false); err != nil || gone.Events != 1 {
		t.Fatalf("%+v %v", gone, err)
	}
	if err := w.ForgetOnline(w.ctx, ewr(true), keys, nil, func(feature.PersonRows) error { return nil }); err != nil {
		t.Fatal(err)
	}
	if got := r.shown(t); strings.Contains(got, "canary") || !strings.Contains(got, "other") {
		t.Errorf("still there: %q", got)
	}
	files, err := filepath.Glob(filepath.Join(r.dir, "appendonlydir", "*"))
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, f := range files {
		if b, err := os.ReadFile(f); err != nil || bytes.Contains(b, []byte("canary")) {
			t.Errorf("%s has the person: %v", filepath.Base(f), err)
		}
	}
}

// Who configures no copies any more has none, and destroyed keys take along what is left.
func TestCopiesOfBefore(t *testing.T) {
	for how, remove := range map[string]func(w *world) error{
		"by the loop":             func(w *world) error { return w.RemoveStaleCopies(w.ctx) },
		"when a key is destroyed": func(w *world) error { return w.KeyDestroyed(w.ctx, nyc, "") },
	} {
		t.Run(how, func(t *testing.T) {
			w, r, _ := staff(t)
			w.data.put("staff", table{staffCols, [][]value.Value{{str("EWR"), ts(1), str("canary")}}})
			w.view("staff", staffSpec)
			w.mustMaterialise("staff", w.now)
			db, err := redis.Open(t.Context(), redis.Config{URL: r.url()})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = db.Close() })
			w.online = online.New(db, w.keys, online.Options{Now: func() time.Time { return w.now }})
			w.configure(func(*feature.Config) {})
			if !strings.Contains(r.shown(t), "canary") {
				t.Fatal("nothing was copied")
			}
			if err := remove(w); err != nil {
				t.Fatal(err)
			}
			if got := r.shown(t); strings.Contains(got, "canary") {
				t.Errorf("still there: %q", got)
			}
		})
	}
}
