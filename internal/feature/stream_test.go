package feature_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/feature"
	"github.com/falaj-ml/falaj/internal/feature/featuresql"
	"github.com/falaj-ml/falaj/internal/feature/online"
	"github.com/falaj-ml/falaj/internal/feature/online/onlinetest"
	"github.com/falaj-ml/falaj/internal/feature/online/pebble"
	"github.com/falaj-ml/falaj/internal/feature/online/redis"
	"github.com/falaj-ml/falaj/internal/feature/value"
	"github.com/falaj-ml/falaj/internal/feature/window"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/store/storetest"
)

var spending = feature.ViewSpec{
	Source: feature.Source{Dataset: "purchases", Stream: &feature.StreamSpec{Push: &struct{}{}}}, Entities: []string{"origin"}, Timestamp: "time",
	Aggregations: []feature.AggregationSpec{
		{Name: "spent", Function: window.Sum, Column: "amount", Type: "float64", Window: "2h"},
		{Name: "bought", Function: window.Count, Window: "4h"},
	},
}

// till is a world with a stream of purchases that nobody has pushed to.
func till(t *testing.T) *world {
	t.Helper()
	w := newWorld(t)
	w.data.declared["purchases"] = purchaseCols
	w.entity("origin", "string")
	w.view("spending", spending)
	return w
}

func purchase(origin any, hours, amount float64) feature.Event {
	return feature.Event{"origin": origin, "time": at(hours).Format(time.RFC3339Nano), "amount": amount}
}

func (w *world) pushEvents(events ...feature.Event) (feature.EventsAnswer, error) {
	return w.PushEvents(w.ctx, feature.EventsRequest{Project: nyc, View: "spending", Events: events})
}

func (w *world) mustPush(events ...feature.Event) {
	w.t.Helper()
	if _, err := w.pushEvents(events...); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) follow() {
	w.t.Helper()
	if err := w.ProcessStreamsOnce(w.ctx); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) spent(hours float64) string {
	w.t.Helper()
	return w.ask(at(hours), []string{"spending:spent", "spending:bought"}, origin("EWR")...)[0]
}

func TestStream(t *testing.T) {
	w := till(t)
	w.mustPush(purchase("EWR", 1, 10)) // before it is online
	w.mustMaterialise("spending", time.Time{})
	expect(t, w.spent(2), "10/PRESENT | 1/PRESENT")
	w.mustPush(purchase("EWR", 2, 5), purchase("JFK", 2, 7))
	w.mustPush(purchase("EWR", 1.5, 1)) // late
	w.follow()
	w.follow() // nothing is there
	expect(t, w.spent(2), "16/PRESENT | 3/PRESENT")
	w.mustMaterialise("spending", time.Time{}) // again, of everything
	expect(t, w.spent(2), "16/PRESENT | 3/PRESENT")
	w.mustPush(purchase("EWR", 2, 100))
	w.follow()
	expect(t, w.spent(2), "116/PRESENT | 4/PRESENT")

	// A training set has what was acknowledged before it, and agrees with what is online.
	w.data.put("spine", table{[]col{{"origin", value.String}, {"at", value.Timestamp}}, [][]value.Value{{str("EWR"), ts(2)}, {str("JFK"), ts(2)}, {str("EWR"), ts(3.2)}}})
	w.mustPush(purchase("EWR", 3, 1000))
	set, err := w.MakeTrainingSet(w.ctx, feature.TrainingSetRequest{Project: nyc, Name: "set", Spine: feature.Source{Dataset: "spine"}, Timestamp: "at", Selection: feature.Selection{Features: []string{"spending"}}})
	if err != nil {
		t.Fatal(err)
	}
	expect(t, w.data.show(t, set.Dataset)[1:], []string{
		"EWR, 2013-01-01T02:00:00Z, 116, 4", "JFK, 2013-01-01T02:00:00Z, 7, 1", "EWR, 2013-01-01T03:12:00Z, 1106, 5",
	})
	w.follow()
	report, err := w.Verify(w.ctx, feature.VerifyRequest{Project: nyc, TrainingSet: set.Dataset})
	if err != nil || report.Mismatches != 0 || report.Values != 6 {
		t.Errorf("%+v %v", report, err)
	}
	st, err := w.StreamStatus(w.ctx, nyc, "spending")
	if err != nil || st.Waiting != 0 || st.PendingSnapshot != 0 || st.Bytes != 0 || st.Events != 6 || st.Trouble != "" {
		t.Errorf("%+v %v", st, err)
	}
}

var errGone = errors.New("the process ended here")

// dying is a driver that takes so many more rows, and then none.
type dying struct {
	online.Driver
	left  int // −1: all
	whole bool
}

func (d *dying) Write(ctx context.Context, versions []online.Version) error {
	if d.whole {
		if d.left == 0 {
			return errGone
		}
		d.left--
		return d.Driver.Write(ctx, versions)
	}
	for len(versions) > 0 {
		if d.left == 0 {
			return errGone
		}
		d.left--
		row := versions[0].Row
		var rest, one []online.Version
		for _, v := range versions {
			if v.Row == row {
				one = append(one, v)
			} else {
				rest = append(rest, v)
			}
		}
		if err := d.Driver.Write(ctx, one); err != nil {
			return err
		}
		versions = rest
	}
	return nil
}

// atomically writes all or none, as drivers do that are fenced.
type atomically struct {
	online.Driver
	mu     sync.Mutex
	before func()        // each write
	own    online.Fenced // the fence of a real driver, instead of mu
	left   *int          // of dying
}

func (a *atomically) WriteIf(ctx context.Context, was online.Version, versions []online.Version) (bool, error) {
	if a.before != nil {
		a.before()
	}
	if a.own != nil {
		if *a.left == 0 {
			return false, errGone
		}
		*a.left--
		return a.own.WriteIf(ctx, was, versions)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	var have []byte
	err := a.Scan(ctx, []online.RowKey{was.Row}, was.Stamp, func(_ int, at online.Stamp, sealed []byte) bool {
		if at == was.Stamp {
			have = bytes.Clone(sealed)
		}
		return false
	})
	if err != nil || !bytes.Equal(have, was.Sealed) {
		return false, err
	}
	err = a.Write(ctx, versions)
	return err == nil, err
}

// TestTwoServersFold: a server that was held up while another took its place, and
// believes that it is still the one, changes nothing.
func TestTwoServersFold(t *testing.T) {
	w := till(t)
	held, release := make(chan struct{}), make(chan struct{})
	driver := &atomically{Driver: w.driver}
	w.online = online.New(driver, w.keys, online.Options{Now: func() time.Time { return w.now }})
	w.configure(func(*feature.Config) {})
	w.mustMaterialise("spending", time.Time{})
	w.mustPush(purchase("EWR", 1, 1))
	first := w.services
	w.configure(func(*feature.Config) {}) // another server
	var once sync.Once
	driver.before = func() {
		hold := false
		once.Do(func() { hold = true })
		if hold {
			close(held)
			<-release
		}
	}
	failed := make(chan error)
	go func() { failed <- first.ProcessStreamsOnce(w.ctx) }()
	<-held // it has made its rows, and not written them
	w.mustPush(purchase("EWR", 1, 2), purchase("EWR", 1.5, 4))
	w.follow()
	expect(t, w.spent(2), "7/PRESENT | 3/PRESENT")
	close(release)
	refused(t, <-failed, fault.Conflict, "another server")
	expect(t, w.spent(2), "7/PRESENT | 3/PRESENT")
	if err := first.ProcessStreamsOnce(w.ctx); err != nil { // it goes on from where the table is
		t.Error(err)
	}
	w.mustPush(purchase("EWR", 1, 8))
	w.follow()
	expect(t, w.spent(2), "15/PRESENT | 4/PRESENT")
}

var (
	streamRounds = flag.Int("streams", 25, "rounds of streams that are killed")
	streamSeed   = flag.Uint64("streamseed", 0, "seed of streams that are killed")
)

// Whatever is cut off at whatever step, and begun again by another process, online
// rows, training sets and the dataset have each acknowledged event once: with a
// driver that writes all or nothing, and with one that writes row by row.
func TestStreamIsBackfillOverKills(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	if *streamSeed != 0 {
		seed = *streamSeed
	}
	sqlite := func(tb testing.TB) *store.DB {
		tb.Helper()
		return storetest.SQLite(tb, featuresql.Migrations)
	}
	memory := func(testing.TB, int) online.Driver { return &onlinetest.Memory{} }
	t.Run("SQLite", func(t *testing.T) { killStreams(t, seed, *streamRounds, sqlite, memory) })
	t.Run("PostgreSQL", func(t *testing.T) {
		killStreams(t, seed, *streamRounds/5, func(tb testing.TB) *store.DB {
			tb.Helper()
			return storetest.PostgreSQL(tb, featuresql.Migrations)
		}, memory)
	})
	t.Run("Pebble", func(t *testing.T) {
		killStreams(t, seed, *streamRounds/5, sqlite, func(tb testing.TB, _ int) online.Driver {
			tb.Helper()
			d, err := pebble.Open(pebble.Config{Dir: tb.TempDir()})
			if err != nil {
				tb.Fatal(err)
			}
			tb.Cleanup(func() { _ = d.Close() })
			return d
		})
	})
	t.Run("Redis", func(t *testing.T) {
		url := redisServer(t)
		killStreams(t, seed, *streamRounds/5, sqlite, func(tb testing.TB, round int) online.Driver {
			tb.Helper()
			d, err := redis.Open(tb.Context(), redis.Config{URL: url, Prefix: fmt.Sprintf("round%d:", round)})
			if err != nil {
				tb.Fatal(err)
			}
			tb.Cleanup(func() { _ = d.Close() })
			return d
		})
	})
}

func killStreams(t *testing.T, seed uint64, rounds int, open func(tb testing.TB) *store.DB, drive func(tb testing.TB, round int) online.Driver) {
	t.Helper()
	for round := range rounds {
		t.Logf("round %d of seed %d", round, seed)
		w := newWorldOn(t, open(t))
		draw := rand.New(rand.NewPCG(seed, uint64(round)))
		coin := func() bool { return draw.IntN(2) == 0 }
		name, ds := "kills", "events"
		broken := &dying{Driver: drive(t, round), left: -1}
		w.driver.Driver = broken
		w.online = online.New(w.driver, w.keys, online.Options{Now: func() time.Time { return w.now }})
		if coin() {
			broken.whole = true
			whole := &atomically{Driver: w.driver, left: &broken.left}
			whole.own, _ = broken.Driver.(online.Fenced)
			w.online = online.New(whole, w.keys, online.Options{Now: func() time.Time { return w.now }})
		}
		restart := func() { w.configure(func(c *feature.Config) { c.SnapshotInterval = time.Nanosecond }) }
		restart()
		w.data.declared[ds] = purchaseCols
		w.entity("origin", "string")
		spec := spending
		spec.Source.Dataset = ds
		if coin() {
			spec.Aggregations, spec.Features = nil, []feature.FieldSpec{{Name: "amount", Type: "float64"}, {Name: "shop", Type: "string"}}
		}
		if draw.IntN(4) == 0 && len(spec.Aggregations) > 0 {
			spec.Aggregations = spec.Aggregations[1:] // only a count: of no column
		}
		if coin() {
			spec.CreatedTimestamp = "known"
		}
		w.view(name, spec)
		pushed := 0
		die := func() { broken.left = draw.IntN(11) - 1 } // so many rows from now on
		for range 1 + draw.IntN(25) {
			switch []string{"push", "push", "fold", "fold", "materialise", "cut"}[draw.IntN(6)] {
			case "push":
				var r feature.EventsRequest
				for range 1 + draw.IntN(5) {
					e := purchase([]string{"a", "b"}[draw.IntN(2)], float64((0 + draw.IntN(10))), float64((0 + draw.IntN(4))))
					e["shop"] = []any{nil, "x", "y"}[draw.IntN(3)]
					r.Events, r.IDs = append(r.Events, e), append(r.IDs, strconv.Itoa(pushed))
					pushed++
				}
				r.Project, r.View = nyc, name
				w.now = w.now.Add(time.Microsecond)
				for range 1 + draw.IntN(2) { // its answer was lost
					if _, err := w.PushEvents(w.ctx, r); err != nil {
						t.Fatal(err)
					}
				}
			case "fold":
				die()
				_ = w.ProcessStreamsOnce(w.ctx)
			case "materialise":
				die()
				_, _ = w.Materialise(w.ctx, feature.MaterialiseRequest{Project: nyc, View: name})
				_ = w.RunOnce(w.ctx)
			case "cut":
				w.data.appending = func() error { return errGone }
				_ = w.ProcessStreamsOnce(w.ctx)
				w.data.appending = nil
			}
			broken.left = -1
			restart()
		}
		// What was cut off goes on.
		w.now = w.now.Add(time.Hour)
		if err := w.RunOnce(w.ctx); err != nil {
			t.Fatal(err)
		}
		f, err := w.Freshness(w.ctx, nyc, name)
		if err != nil {
			t.Fatal(err)
		}
		if f.Last == nil || f.Last.State != feature.Succeeded {
			w.mustMaterialise(name, time.Time{})
		}
		if err := w.ProcessStreamsOnce(w.ctx); err != nil {
			t.Fatal(err)
		}
		spine := table{cols: []col{{"origin", value.String}, {"at", value.Timestamp}}}
		for hour := range 11 {
			spine.rows = append(spine.rows, []value.Value{str("a"), ts(float64(hour))}, []value.Value{str("b"), value.OfTime(w.now)})
		}
		w.data.put("spine", spine)
		set, err := w.MakeTrainingSet(w.ctx, feature.TrainingSetRequest{Project: nyc, Name: "set", Spine: feature.Source{Dataset: "spine"}, Timestamp: "at", Selection: feature.Selection{Features: []string{name}}})
		if err != nil {
			t.Fatal(err)
		}
		report, err := w.Verify(w.ctx, feature.VerifyRequest{Project: nyc, TrainingSet: set.Dataset})
		if err != nil || report.Mismatches != 0 || report.Rows != 22 {
			t.Fatalf("%+v %v", report, err)
		}
		if rows := len(w.data.show(t, ds)) - 1; rows != pushed {
			t.Fatalf("%d events were acknowledged, the dataset has %d", pushed, rows)
		}
		st, err := w.StreamStatus(w.ctx, nyc, name)
		if err != nil || st.Events != int64(pushed) || st.Waiting != 0 || st.PendingSnapshot != 0 {
			t.Fatalf("%d events: %+v %v", pushed, st, err)
		}
	}
}

func TestEventsRefused(t *testing.T) {
	w := till(t)
	good := purchase("EWR", 1, 1)
	for words, e := range map[string]feature.Event{
		`no column "amont"; did you mean "amount"?`: {"origin": "EWR", "time": at(1), "amont": 1},
		`column "amount": "1" is not a float64`:     {"origin": "EWR", "time": at(1), "amount": "1"},
		`join key "origin" is null`:                 {"time": at(1)},
		`the time "time" is null`:                   {"origin": "EWR"},
		"is in the future":                          {"origin": "EWR", "time": w.now.Add(time.Hour)},
		"over the limit":                            {"origin": "EWR", "time": at(1), "shop": string(make([]byte, 70_000))},
	} {
		_, err := w.pushEvents(good, e)
		refused(t, err, fault.Invalid, "event 2", words, "No event was accepted")
	}
	w.gates.refuse[feature.ActionPush] = true
	_, err := w.pushEvents(good)
	refused(t, err, fault.PermissionDenied)
	delete(w.gates.refuse, feature.ActionPush)
	if st, err := w.StreamStatus(w.ctx, nyc, "spending"); err != nil || st.Events != 0 || st.DeadLetters != 0 {
		t.Errorf("%+v %v", st, err)
	}
	w.view("still", func() feature.ViewSpec { s := spending; s.Source.Stream = nil; return s }())
	_, err = w.PushEvents(w.ctx, feature.EventsRequest{Project: nyc, View: "still", Events: []feature.Event{good}})
	refused(t, err, fault.Conflict, "has no stream source", "stream: {push: {}}")
}

// The log takes events while the online store is away, until it is full; then it
// refuses them until the store is back.
func TestStreamBackPressure(t *testing.T) {
	w := till(t)
	w.mustMaterialise("spending", time.Time{})
	w.configure(func(c *feature.Config) { c.StreamBytes = 5000 })
	w.driver.write = func() error { return fault.New(fault.Unavailable, "the store is away") }
	accepted := 0
	var err error
	for accepted < 100 {
		if _, err = w.pushEvents(purchase("EWR", 1, 1)); err != nil {
			break
		}
		accepted++
		if err := w.ProcessStreamsOnce(w.ctx); !fault.Is(err, fault.Unavailable) {
			t.Fatal(err)
		}
	}
	refused(t, err, fault.Exhausted, "feature stream spending")
	if accepted < 2 {
		t.Fatalf("%d were accepted", accepted)
	}
	st, err := w.StreamStatus(w.ctx, nyc, "spending")
	if err != nil || st.Trouble == "" || st.Waiting == 0 {
		t.Errorf("%+v %v", st, err)
	}
	w.driver.write = nil
	w.follow()
	w.follow() // what the first has cut
	w.mustPush(purchase("EWR", 1, 1))
	w.follow()
	expect(t, w.spent(1), fmt.Sprintf("%d/PRESENT | %d/PRESENT", accepted+1, accepted+1))
}

// Poison becomes dead letters, which are events when what was wrong has changed.
func TestDeadLetters(t *testing.T) {
	w := till(t)
	soon := feature.Event{"origin": "EWR", "time": w.now.Add(time.Hour).Format(time.RFC3339), "amount": 2}
	a, err := w.PushEvents(w.ctx, feature.EventsRequest{Project: nyc, View: "spending", Keep: true, Events: []feature.Event{
		purchase("EWR", 1, 1), soon, {"origin": "EWR", "time": at(1), "amount": "much"},
	}})
	if err != nil || a.Accepted != 1 || a.Dead != 2 {
		t.Fatalf("%+v %v", a, err)
	}
	list := func(want ...string) []feature.DeadLetter {
		t.Helper()
		dead, err := w.DeadLetters(w.ctx, nyc, "spending", "", 0)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, d := range dead {
			got = append(got, d.Reason)
		}
		expect(t, got, want)
		return dead
	}
	much := `column "amount": "much" is not a float64`
	list("the event timestamp is in the future: 2013-05-01T01:00:00Z", much)
	w.now = w.now.Add(time.Hour)
	if r, err := w.ReplayDeadLetters(w.ctx, nyc, "spending", nil); err != nil || r.Accepted != 1 || r.StillDead != 1 {
		t.Errorf("%+v %v", r, err)
	}
	left := list(much)
	if _, err := w.ReplayDeadLetters(w.ctx, nyc, "spending", []string{"fdl_none"}); !fault.Is(err, fault.NotFound) {
		t.Error(err)
	}
	if n, err := w.DropDeadLetters(w.ctx, nyc, "spending", []string{left[0].ID}); err != nil || n != 1 {
		t.Error(n, err)
	}
	list()
	if st, err := w.StreamStatus(w.ctx, nyc, "spending"); err != nil || st.Events != 2 || st.DeadLetters != 0 {
		t.Errorf("%+v %v", st, err)
	}
}

// A person's events are gone from the log, before they are anywhere else.
func TestForgetEvents(t *testing.T) {
	w := till(t)
	w.mustMaterialise("spending", time.Time{})
	w.mustPush(purchase("EWR", 1, 1), purchase("JFK", 1, 2), purchase("EWR", 1, 4), purchase("LGA", 1, 8))
	w.mustPush(purchase("EWR", 1, 16))
	if _, err := w.PushEvents(w.ctx, feature.EventsRequest{Project: nyc, View: "spending", Keep: true, Events: []feature.Event{{"origin": "EWR"}, {"origin": "JFK"}}}); err != nil {
		t.Fatal(err)
	}
	for _, dry := range []bool{true, false} {
		gone, err := w.ForgetEvents(w.ctx, "erasure.apply", ewr(dry), "purchases", []string{"origin"}, dry) // known by the key, and by Is only
		if err != nil || gone.Events != 3 || gone.Letters != 1 {
			t.Fatalf("%+v %v", gone, err)
		}
	}
	if gone, err := w.ForgetEvents(w.ctx, "erasure.apply", ewr(true), "purchases", []string{"origin"}, true); err != nil || gone != (feature.Forgotten{}) {
		t.Errorf("left: %+v %v", gone, err)
	}
	w.follow()
	w.mustMaterialise("spending", time.Time{})
	expect(t, w.ask(at(1), []string{"spending:spent"}, origin("EWR", "JFK", "LGA")...), []string{"NULL/NOT_FOUND", "2/PRESENT", "8/PRESENT"})
	expect(t, len(w.data.show(t, "purchases"))-1, 2)
}

// A log that nobody can read any more holds up no erasure, and its numbers go on.
func TestForgetUnreadableEvents(t *testing.T) {
	w := till(t)
	w.mustMaterialise("spending", time.Time{})
	w.mustPush(purchase("EWR", 1, 1))
	if _, err := w.PushEvents(w.ctx, feature.EventsRequest{Project: nyc, View: "spending", Keep: true, Events: []feature.Event{{"origin": "EWR"}}}); err != nil {
		t.Fatal(err)
	}
	if got, err := w.Streamed(w.ctx, nyc); err != nil || fmt.Sprint(got) != "[purchases]" {
		t.Errorf("%v %v", got, err)
	}
	before, err := w.StreamStatus(w.ctx, nyc, "spending")
	if err != nil {
		t.Fatal(err)
	}
	w.keys.Destroy(string(nyc), "dataset/purchases")
	for _, dry := range []bool{true, false, true} {
		if gone, err := w.ForgetEvents(w.ctx, "erasure.apply", ewr(true), "purchases", []string{"origin"}, dry); err != nil || gone != (feature.Forgotten{}) {
			t.Fatalf("%+v %v", gone, err)
		}
	}
	if err := w.db.View(w.ctx, func(ctx context.Context, tx *store.Tx) error {
		s := featuresql.Store{}
		st, err := s.Stream(ctx, tx, nyc, "purchases")
		if err != nil || st.Head != before.Head || st.First != st.Head+1 || st.SnapshotSeq != st.Head || st.Bytes != 0 {
			t.Errorf("%+v %v", st, err)
		}
		records, err := s.Records(ctx, tx, nyc, "purchases", 0, st.Head, 10)
		if err != nil || len(records) != 0 {
			t.Errorf("%d records are left, error %v", len(records), err)
		}
		n, err := s.CountDeadLetters(ctx, tx, nyc, "purchases")
		if n != 0 {
			t.Errorf("%d dead letters are left", n)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
}

// sources is messages in memory: a position is how many were read.
type sources struct {
	log      int // which one the source reads
	messages []string
	tail     int // how much is behind them that is no message
	batch    int
	fail     error
}

func (s *sources) reading() string { return fmt.Sprint("topic@", s.log) }

func (s *sources) Check(_ context.Context, _ project.Name, source, _ string) (string, error) {
	if source != "topic" {
		return "", fault.New(fault.NotFound, "there is no source %q", source)
	}
	return s.reading(), nil
}

func (s *sources) Messages(_ context.Context, _ project.Name, reading string, after json.RawMessage, take func([][]byte, json.RawMessage) error) error {
	if reading != s.reading() {
		return fault.New(fault.Conflict, "%s is not there", reading)
	}
	at := 0
	if after != nil {
		if err := json.Unmarshal(after, &at); err != nil {
			return err
		}
	}
	for part := range slices.Chunk(s.messages[min(at, len(s.messages)):], s.batch) {
		var out [][]byte
		for _, m := range part {
			out = append(out, []byte(m))
		}
		at += len(part)
		if err := take(out, json.RawMessage(strconv.Itoa(at))); err != nil {
			return err
		}
		if s.fail != nil {
			return s.fail
		}
	}
	if end := len(s.messages) + s.tail; end > at {
		return take(nil, json.RawMessage(strconv.Itoa(end)))
	}
	return nil
}

// Messages are events, each once wherever a reading ends; what is none is kept, and
// does not hold up the rest.
func TestStreamFromSource(t *testing.T) {
	w := till(t)
	from := &sources{batch: 2, fail: fault.New(fault.Unavailable, "the topic is away")}
	w.configure(func(c *feature.Config) { c.Sources = from })
	spec := spending
	spec.Source.Stream = &feature.StreamSpec{Source: "nix"}
	_, _, err := w.ApplyView(w.ctx, feature.ApplyRequest{Project: nyc, Name: "spending"}, spec)
	refused(t, err, fault.Invalid, "no source")
	spec.Source.Stream.Source = "topic"
	w.view("spending", spec)
	w.mustMaterialise("spending", time.Time{})
	for i := range 7 {
		from.messages = append(from.messages, fmt.Sprintf(`{"origin": "EWR", "time": %q, "amount": %d}`, at(1).Format(time.RFC3339), i))
	}
	from.messages[3] = `{"origin": "EWR", "time": ` // poison
	from.messages[5] = `[1]`
	for range 4 { // each reading ends after a batch
		if err := w.FeedOnce(w.ctx); !fault.Is(err, fault.Unavailable) {
			t.Fatal(err)
		}
	}
	if st, err := w.StreamStatus(w.ctx, nyc, "spending"); err != nil || st.Trouble != "source topic: the topic is away" {
		t.Errorf("%+v %v", st, err)
	}
	from.fail = nil
	if err := w.FeedOnce(w.ctx); err != nil {
		t.Fatal(err)
	}
	w.follow()
	expect(t, w.spent(1), "13/PRESENT | 5/PRESENT")
	dead, err := w.DeadLetters(w.ctx, nyc, "spending", "", 0)
	if err != nil || len(dead) != 2 || dead[0].Body != from.messages[3] || !strings.Contains(dead[1].Reason, "not a JSON object") || !strings.HasPrefix(dead[0].From, "source topic") {
		t.Errorf("%+v %v", dead, err)
	}
	if st, err := w.StreamStatus(w.ctx, nyc, "spending"); err != nil || st.Trouble != "" || st.Events != 5 || string(st.Offsets["topic@0"]) != "7" {
		t.Errorf("%+v %v", st, err)
	}
}

// Where a log ends without a message the position goes on, and the log of events does
// not. A source that becomes another is read from its beginning; the one before goes
// on where it was.
func TestStreamFromAnotherLog(t *testing.T) {
	w := till(t)
	message := fmt.Sprintf(`{"origin": "EWR", "time": %q, "amount": 1}`, at(1).Format(time.RFC3339))
	first, second := &sources{batch: 10, tail: 3}, &sources{log: 1, batch: 10}
	for range 10 {
		first.messages = append(first.messages, message)
	}
	for range 5 {
		second.messages = append(second.messages, message)
	}
	spec := spending
	spec.Source.Stream = &feature.StreamSpec{Source: "topic"}
	check := func(from *sources, events int64, offsets string) {
		t.Helper()
		w.configure(func(c *feature.Config) { c.Sources = from })
		if err := w.FeedOnce(w.ctx); err != nil {
			t.Fatal(err)
		}
		st, err := w.StreamStatus(w.ctx, nyc, "spending")
		got, _ := json.Marshal(st.Offsets)
		if err != nil || st.Events != events || string(got) != offsets {
			t.Errorf("%d events, offsets %s, %v; want %d and %s", st.Events, got, err, events, offsets)
		}
	}
	w.configure(func(c *feature.Config) { c.Sources = first })
	w.view("spending", spec)
	check(first, 10, `{"topic@0":13}`)
	first.tail = 5
	check(first, 10, `{"topic@0":15}`)
	check(second, 15, `{"topic@0":15,"topic@1":5}`)
	second.messages = append(second.messages, message)
	check(second, 16, `{"topic@0":15,"topic@1":6}`)
	check(first, 16, `{"topic@0":15,"topic@1":6}`)
	// As it was kept at first.
	if err := w.db.Update(w.ctx, string(nyc), func(ctx context.Context, tx *store.Tx) error {
		st, err := featuresql.Store{}.Stream(ctx, tx, nyc, "purchases")
		if err != nil {
			return err
		}
		st.Offsets = map[string]json.RawMessage{"topic": json.RawMessage("3")}
		return featuresql.Store{}.PutStream(ctx, tx, st)
	}); err != nil {
		t.Fatal(err)
	}
	check(second, 19, `{"topic@1":6}`)
}

// slow are sources of which one does not answer until the other was looked at twice.
type slow struct {
	mu     sync.Mutex
	looked int
	twice  chan struct{}
}

func (s *slow) Check(_ context.Context, _ project.Name, source, _ string) (string, error) {
	return source + "@1", nil
}

func (s *slow) Messages(ctx context.Context, _ project.Name, reading string, _ json.RawMessage, _ func([][]byte, json.RawMessage) error) error {
	if reading == "slow@1" {
		select {
		case <-s.twice:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.looked++; s.looked == 2 {
		close(s.twice)
	}
	return nil
}

// A source that takes its time holds up no other.
func TestSlowSource(t *testing.T) {
	w := till(t)
	from := &slow{twice: make(chan struct{})}
	w.configure(func(c *feature.Config) { c.Sources = from })
	w.data.declared["clicks"] = purchaseCols
	for name, source := range map[string]string{"clicks": "slow", "purchases": "quick"} {
		spec := spending
		spec.Source = feature.Source{Dataset: name, Stream: &feature.StreamSpec{Source: source}}
		w.view("from-"+source, spec)
	}
	ctx, cancel := context.WithTimeout(w.ctx, time.Minute)
	defer cancel()
	if err := w.FeedOnce(ctx); err != nil || from.looked < 2 {
		t.Errorf("the other was looked at %d times: %v", from.looked, err)
	}
}

// A look folds so much of a log, and the others have their turn.
func TestFoldsInTurn(t *testing.T) {
	w := till(t)
	w.mustMaterialise("spending", time.Time{})
	const look = 512 // records, a push each
	for range look + 1 {
		w.mustPush(purchase("EWR", 1, 1))
	}
	for _, waiting := range []int64{1, 0} {
		w.follow()
		if st, err := w.StreamStatus(w.ctx, nyc, "spending"); err != nil || st.Waiting != waiting {
			t.Fatalf("%d records wait, want %d: %v", st.Waiting, waiting, err)
		}
	}
	expect(t, w.spent(1), "513/PRESENT | 513/PRESENT")
}

// BenchmarkPush measures what pushing takes, each push synced, and how long after it
// reads find what was pushed: on SQLite and Pebble, as `falaj up` has them.
func BenchmarkPush(b *testing.B) {
	for _, size := range []int{1, 100, 1000} {
		b.Run(strconv.Itoa(size), func(b *testing.B) {
			w := newWorldOn(b, storetest.SQLite(b, featuresql.Migrations))
			d, err := pebble.Open(pebble.Config{Dir: b.TempDir()})
			if err != nil {
				b.Fatal(err)
			}
			defer d.Close()
			w.driver.Driver = d
			w.online = online.New(d, w.keys, online.Options{Now: func() time.Time { return w.now }})
			w.configure(func(*feature.Config) {})
			w.data.declared["purchases"] = purchaseCols
			w.entity("origin", "string")
			w.view("spending", spending)
			r, err := w.Materialise(w.ctx, feature.MaterialiseRequest{Project: nyc, View: "spending"})
			if err != nil {
				b.Fatal(err)
			}
			if err := w.RunOnce(w.ctx); err != nil {
				b.Fatal(err)
			}
			if r, err = w.Run(w.ctx, nyc, r.ID); err != nil || r.State != feature.Succeeded {
				b.Fatal(r.Error, err)
			}
			events := make([]feature.Event, size)
			var pushed, folded time.Duration
			n := 0
			for b.Loop() {
				for i := range events {
					n++
					events[i] = purchase(fmt.Sprint("A", n%1000), float64(n%100), 1)
				}
				began := time.Now()
				w.mustPush(events...)
				done := time.Now()
				w.follow()
				pushed, folded = pushed+done.Sub(began), folded+time.Since(done)
			}
			b.ReportMetric(float64(n)/pushed.Seconds(), "pushed/s")
			b.ReportMetric(float64(n)/folded.Seconds(), "folded/s")
			b.ReportMetric(float64(pushed.Microseconds())/float64(b.N), "µs/push")
			b.ReportMetric(float64(folded.Microseconds())/float64(b.N), "µs/fresh")
		})
	}
}
