package label_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tink-crypto/tink-go/v2/tink"

	"github.com/falaj-ml/falaj/internal/blob/blobtest"
	"github.com/falaj-ml/falaj/internal/event/eventtest"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/monitoring/label"
	"github.com/falaj-ml/falaj/internal/monitoring/label/labelsql"
	"github.com/falaj-ml/falaj/internal/serving/prediction"
	"github.com/falaj-ml/falaj/internal/serving/rollout"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/store/storetest"
)

type ring struct{}

func (ring) DataKey(_ context.Context, project, owner, use string) ([]byte, error) {
	sum := sha256.Sum256([]byte(project + "|" + owner + "|" + use))
	return sum[:], nil
}

// world is what is around the service.
type world struct {
	t       testing.TB
	url     string
	dir     string
	db      *store.DB
	log     *prediction.Log
	sealer  *blobtest.Sealer
	service *label.Service
	denied  policy.Action
	now     atomic.Int64
	max     int
	owner   uint64

	mu       sync.Mutex
	rollouts []label.Rollout

	waiting []label.Label // to be sent
}

func (w *world) Allow(_ context.Context, a policy.Action, _ policy.Object) error {
	if a == w.denied {
		return fault.New(fault.PermissionDenied, "no")
	}
	return nil
}

func (w *world) Facts(_ context.Context, _, deployment string) (label.Facts, error) {
	if deployment != "delay" && deployment != "other" {
		return label.Facts{}, fault.New(fault.NotFound, "no deployment %q", deployment)
	}
	return label.Facts{Classification: "internal", Owner: w.owner}, nil
}

func (w *world) Running(context.Context) ([]label.Rollout, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.rollouts), nil
}

func (w *world) Began(_ context.Context, _, rollout string, at time.Time) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range w.rollouts {
		if w.rollouts[i].ID == rollout && w.rollouts[i].StartedAt.IsZero() {
			w.rollouts[i].StartedAt = at
		}
	}
	return nil
}

func (w *world) clock() time.Time { return time.UnixMicro(w.now.Load()).UTC() }

var (
	wall  = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	begin = time.Date(2013, 6, 1, 0, 0, 0, 0, time.UTC)
)

// schema lists the migrations of the database.
var schema = []store.Migrations{labelsql.Migrations}

func newWorld(tb testing.TB) *world {
	tb.Helper()
	dir := tb.TempDir()
	return newWorldOn(tb, dir, storetest.SQLiteURL(tb, dir, schema...))
}

func newWorldOn(tb testing.TB, dir, url string) *world {
	tb.Helper()
	w := &world{t: tb, dir: dir, url: url, max: 100_000, sealer: blobtest.NewSealer()}
	w.now.Store(wall.UnixMicro())
	w.open()
	return w
}

// open opens everything, also again as after a crash.
func (w *world) open() {
	w.t.Helper()
	db, err := store.Open(w.t.Context(), store.Config{URL: w.url, Migrations: schema})
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = db.Close() })
	quiet := slog.New(slog.DiscardHandler)
	log, err := prediction.Open(prediction.Config{Dir: filepath.Join(w.dir, "predictions"), Keys: ring{}, Now: w.clock, Logger: quiet})
	if err != nil {
		w.t.Fatal(err)
	}
	w.db, w.log = db, log
	w.service = label.New(label.Config{
		DB: db, Store: labelsql.Store{}, Authorizer: w, Sealer: w.sealer, Predictions: log, Deployments: w, MaxIndex: w.max, Now: w.clock, Logger: quiet,
	})
}

func id(n int) string { return fmt.Sprintf("prd_%06d", n) }

// predict logs the nth prediction, an hour after the one before.
func (w *world) predict(n int, change func(r *prediction.Record)) {
	w.t.Helper()
	r := &prediction.Record{
		ID: id(n), Project: "nyc", Deployment: "delay", Model: "delay", Version: 1, At: begin.Add(time.Duration(n) * time.Hour),
		Received: w.clock(), Replay: true, Latency: time.Millisecond, Rows: 1, Scores: []float64{.5},
	}
	if change != nil {
		change(r)
	}
	if err := w.log.Append(w.t.Context(), r); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) add(labels ...label.Label) label.Answer {
	w.t.Helper()
	a, err := w.service.Add(w.t.Context(), "nyc", "delay", labels)
	if err != nil {
		w.t.Fatal(err)
	}
	return a
}

func one(n int, v float64) label.Label { return label.Label{ID: id(n), Values: []float64{v}} }

func (w *world) pairs(after int64) (out []string, next int64) {
	w.t.Helper()
	last := after
	next, err := w.service.Pairs(w.t.Context(), "nyc", "delay", after, func(p label.Pair) error {
		if p.Seq <= last {
			w.t.Errorf("seq %d after %d", p.Seq, last)
		}
		last = p.Seq
		out = append(out, fmt.Sprintf("%s=%v", p.Record.ID, p.Labels))
		return nil
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return out, next
}

func statuses(a label.Answer) string {
	var out []string
	for _, r := range a.Results {
		out = append(out, string(r.Status))
	}
	return strings.Join(out, " ")
}

func eachDatabase(t *testing.T, test func(t *testing.T, w *world)) {
	t.Helper()
	t.Run("SQLite", func(t *testing.T) { test(t, newWorld(t)) })
	t.Run("PostgreSQL", func(t *testing.T) { test(t, newWorldOn(t, t.TempDir(), storetest.Postgres(t, schema...))) })
}

func TestLabels(t *testing.T) {
	eachDatabase(t, func(t *testing.T, w *world) {
		t.Helper()
		w.t = t
		for n := range 5 {
			w.predict(n, nil)
		}
		w.predict(5, func(r *prediction.Record) { r.Rows, r.Scores = 2, []float64{.1, .2} })
		w.predict(8, func(r *prediction.Record) { r.Rows, r.Scores = 2, []float64{.1, .2} })
		w.predict(0, func(r *prediction.Record) { r.Version = 9 })                 // an ID again: the first counts
		w.predict(1, func(r *prediction.Record) { r.Version, r.Shadow = 2, true }) // a shadow

		got := statuses(w.add(one(0, 1), one(1, 0), one(0, 1), one(1, 1), one(7, 1), one(5, 1)))
		if want := strings.Repeat("accepted ", 2) + "duplicate contradicts unknown wrong_rows"; got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
		if got := statuses(w.add(one(0, 1), one(0, 0), one(7, 1), one(7, 0))); got != "duplicate contradicts duplicate contradicts" {
			t.Errorf("again: %s", got)
		}
		part := label.Label{ID: "prd_000008", Values: []float64{math.NaN(), 1}}
		other := label.Label{ID: "prd_000008", Values: []float64{0, 1}}
		if got := statuses(w.add(part, part, other)); got != "accepted duplicate contradicts" {
			t.Errorf("of one row of two: %s", got)
		}
		if got, _ := w.pairs(0); fmt.Sprint(got) != "[prd_000000=[1] prd_000001=[0] prd_000008=[NaN 1]]" {
			t.Errorf("pairs %v", got)
		}
		_, next := w.pairs(0)

		// A label that waited is joined when its prediction comes, behind the others.
		if err := w.service.RunOnce(t.Context()); err != nil {
			t.Fatal(err)
		}
		w.add(one(2, 1))
		w.predict(7, nil)
		if err := w.service.RunOnce(t.Context()); err != nil {
			t.Fatal(err)
		}
		w.open() // the index is made anew from the log
		if got, _ := w.pairs(next); fmt.Sprint(got) != "[prd_000002=[1] prd_000007=[1]]" {
			t.Errorf("later pairs %v", got)
		}
		c, err := w.service.Counts(t.Context(), "nyc", "delay")
		if want := (label.Counts{Joined: 5, Duplicates: 4, Contradicts: 4, WrongRows: 1}); err != nil || c != want {
			t.Errorf("counts %+v, want %+v, %v", c, want, err)
		}
		if got := statuses(w.add(one(3, 1))); got != "accepted" {
			t.Errorf("after a start: %s", got)
		}
		if c, _ := w.service.Counts(t.Context(), "nyc", "delay"); c.Repeated != 1 {
			t.Errorf("%d repeated", c.Repeated)
		}
		if err := w.service.Forget(t.Context(), "nyc", "delay"); err != nil {
			t.Fatal(err)
		}
		if got, _ := w.pairs(0); len(got) != 0 {
			t.Errorf("forgotten, but %v", got)
		}
	})
}

func TestLateAndExpired(t *testing.T) {
	w := newWorld(t)
	w.predict(0, nil)
	w.predict(31*24, nil) // the newest: a month later
	if got := statuses(w.add(one(0, 1), one(31*24, 1), one(5, 1))); got != "too_late accepted unknown" {
		t.Errorf("got %s", got)
	}
	w.now.Add((31 * 24 * time.Hour).Microseconds())
	if err := w.service.RunOnce(t.Context()); err != nil {
		t.Fatal(err)
	}
	c, err := w.service.Counts(t.Context(), "nyc", "delay")
	if want := (label.Counts{Joined: 1, TooLate: 1, Expired: 1}); err != nil || c != want {
		t.Errorf("counts %+v, want %+v, %v", c, want, err)
	}
}

// A live request and a replay are on clocks of their own: one of today makes
// those of old times neither late nor long.
func TestClocksAreApart(t *testing.T) {
	w := newWorld(t)
	w.trial(rollout.Spec{MaxDuration: "10h"})
	today := func(n int) {
		w.predict(n, func(r *prediction.Record) { r.At, r.Replay, r.Rollout = w.clock(), false, "rol_1" })
	}
	today(100)
	for n := range 5 {
		w.predict(n, func(r *prediction.Record) { r.Rollout = "rol_1" })
	}
	today(101)
	if got := statuses(w.add(one(0, 1), one(100, 1))); got != strings.TrimSpace(strings.Repeat("accepted ", 2)) {
		t.Errorf("got %s", got)
	}
	if err := w.judge().RunOnce(t.Context()); err != nil {
		t.Fatal(err)
	}
	if p := w.progress(); p.Concluded || p.Elapsed != 4*time.Hour {
		t.Errorf("%+v", p)
	}
}

func TestIndexIsBounded(t *testing.T) {
	w := newWorld(t)
	w.max = 50
	w.open()
	for n := range 120 {
		w.predict(n, nil)
	}
	if got := statuses(w.add(one(119, 1), one(0, 1), one(110, 1))); got != "accepted unknown accepted" {
		t.Errorf("got %s", got)
	}
}

// What waits is bounded: a client that sends the wrong ids hears of it.
func TestWaitingIsBounded(t *testing.T) {
	w := newWorld(t)
	service := label.New(label.Config{
		DB: w.db, Store: labelsql.Store{}, Authorizer: w, Sealer: w.sealer, Predictions: w.log, Deployments: w, MaxWaiting: 3, Now: w.clock,
	})
	w.predict(0, nil)
	add := func(labels ...label.Label) error {
		_, err := service.Add(t.Context(), "nyc", "delay", labels)
		return err
	}
	if err := add(one(1, 1), one(2, 1), one(3, 1)); err != nil {
		t.Fatal(err)
	}
	if err := add(one(1, 1), one(4, 1)); !fault.Is(err, fault.Exhausted) || !strings.Contains(fault.HintOf(err), "720h") {
		t.Errorf("%v", err)
	}
	if err := add(one(0, 1), one(1, 1)); err != nil { // neither is another one that waits
		t.Error(err)
	}
	w.predict(2, nil) // one finds its prediction
	for range 2 {
		if err := service.RunOnce(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	c, err := service.Counts(t.Context(), "nyc", "delay")
	if want := (label.Counts{Joined: 2, Waiting: 2, Duplicates: 1}); err != nil || c != want {
		t.Errorf("counts %+v, want %+v, %v", c, want, err)
	}
	if err := add(one(4, 1)); err != nil {
		t.Error(err)
	}
}

func TestBadLabels(t *testing.T) {
	w := newWorld(t)
	nan := 0.0
	nan /= nan
	many := make([]label.Label, label.MaxLabels+1)
	for i := range many {
		many[i] = one(i, 1)
	}
	for name, labels := range map[string][]label.Label{
		"none": nil, "no id": {{Values: []float64{1}}}, "no value": {{ID: "a"}}, "not a number": {{ID: "a", Values: []float64{nan}}},
		"long": {{ID: strings.Repeat("a", 300), Values: []float64{1}}}, "not text": {{ID: "\xff", Values: []float64{1}}}, "many": many,
	} {
		if _, err := w.service.Add(t.Context(), "nyc", "delay", labels); !fault.Is(err, fault.Invalid) && !fault.Is(err, fault.TooLarge) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := w.service.Add(t.Context(), "nyc", "nothing", []label.Label{one(1, 1)}); !fault.Is(err, fault.NotFound) {
		t.Errorf("another deployment: %v", err)
	}
	w.denied = label.ActionWrite
	if _, err := w.service.Add(t.Context(), "nyc", "delay", []label.Label{one(1, 1)}); !fault.Is(err, fault.PermissionDenied) {
		t.Errorf("denied: %v", err)
	}
}

// A hundred thousand labels are kept in ten calls, each once, in one order.
func TestManyLabels(t *testing.T) {
	w := newWorld(t)
	const n, each = 20_000, 5_000
	for i := range n {
		w.predict(i/100, func(r *prediction.Record) { r.ID = id(i) })
	}
	for from := 0; from < n; from += each {
		labels := make([]label.Label, each)
		for i := range labels {
			labels[i] = one(from+i, float64(i%2))
		}
		if a := w.add(labels...); a.Accepted != each {
			t.Fatalf("%d accepted", a.Accepted)
		}
	}
	got, _ := w.pairs(0)
	for i, p := range got {
		if want := fmt.Sprintf("%s=[%d]", id(i), i%2); p != want {
			t.Fatalf("pair %d is %s, want %s", i, p, want)
		}
	}
	if len(got) != n {
		t.Errorf("%d pairs", len(got))
	}
}

// trial makes a rollout of version 2 against 1.
func (w *world) trial(spec rollout.Spec) label.Rollout {
	r := label.Rollout{
		ID: "rol_1", Project: "nyc", Deployment: "delay", Stable: 1, Candidate: 2, Weight: 50, Spec: spec.WithDefaults(), Started: w.clock(),
	}
	w.mu.Lock()
	w.rollouts = []label.Rollout{r}
	w.mu.Unlock()
	return r
}

// play logs a request of the trial that the version answers with a score.
func (w *world) play(n int, version int64, score float64) {
	w.predict(n, func(r *prediction.Record) {
		r.At = begin.Add(time.Duration(n) * time.Minute)
		r.Rollout, r.Version, r.Scores = "rol_1", version, []float64{score}
	})
}

func (w *world) judge() *label.Judge { return label.NewJudge(w.service, w) }

func (w *world) progress() label.Progress {
	w.t.Helper()
	p, err := w.service.Progress(w.t.Context(), "nyc", "delay")
	if err != nil {
		w.t.Fatal(err)
	}
	return p
}

// concluded are the events that say so.
func (w *world) concluded() (out []label.Concluded) {
	w.t.Helper()
	for _, e := range eventtest.All(w.t, w.db, label.EventConcluded) {
		var c label.Concluded
		if err := e.Decode(&c); err != nil {
			w.t.Fatal(err)
		}
		out = append(out, c)
	}
	return out
}

// A candidate that is clearly worse is rolled back, once, and one that is as good
// is promoted.
func TestJudgeDecides(t *testing.T) {
	for _, test := range []struct {
		name string
		bias float64
		want rollout.Outcome
	}{{"worse", .5, rollout.Rollback}, {"alike", 0, rollout.Promote}} {
		t.Run(test.name, func(t *testing.T) {
			w := newWorld(t)
			w.trial(rollout.Spec{MinLabels: 100, Margin: .05})
			rnd := rand.New(rand.NewPCG(1, 2))
			judge := w.judge()
			for n := range 4000 {
				version, truth := int64(1+rnd.IntN(2)), float64(rnd.IntN(2))
				score := .2 + .6*truth
				if version == 2 {
					score += test.bias * (1 - 2*truth)
				}
				w.play(n, version, min(max(score, 0), 1))
				w.predictedLabel(n, truth)
				if n%500 == 499 {
					w.flush()
					if err := judge.RunOnce(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
			}
			p := w.progress()
			if !p.Concluded || p.Decision.Outcome != test.want || len(p.Trajectory) == 0 || p.Candidate.Loss.N < 100 {
				t.Errorf("%+v", p.Decision)
			}
			all := w.concluded()
			if len(all) != 1 || all[0].Outcome != test.want || all[0].Rollout != "rol_1" || all[0].Reason == "" || len(all[0].Evidence) == 0 ||
				all[0].At.Year() != 2013 {
				t.Errorf("concluded %+v", all)
			}
		})
	}
}

func (w *world) predictedLabel(n int, truth float64) { w.waiting = append(w.waiting, one(n, truth)) }

func (w *world) flush() {
	w.t.Helper()
	if len(w.waiting) > 0 {
		w.add(w.waiting...)
	}
	w.waiting = nil
}

// Whenever the judge is killed, it goes on to the same sums.
func TestJudgeResumes(t *testing.T) {
	run := func(crash *rand.Rand) label.Progress {
		w := newWorld(t)
		w.trial(rollout.Spec{MinLabels: 5000})
		rnd := rand.New(rand.NewPCG(7, 7))
		for n := range 150 {
			w.play(n, int64(1+rnd.IntN(2)), rnd.Float64())
			w.predictedLabel(n, float64(rnd.IntN(2)))
			if crash != nil && crash.IntN(30) == 0 {
				if crash.IntN(2) == 0 {
					w.flush()
				}
				if err := w.judge().RunOnce(t.Context()); err != nil {
					t.Fatal(err)
				}
				w.open()
			}
		}
		w.flush()
		if err := w.judge().RunOnce(t.Context()); err != nil {
			t.Fatal(err)
		}
		return w.progress()
	}
	want := run(nil)
	for seed := range uint64(8) {
		got := run(rand.New(rand.NewPCG(seed, 0)))
		if !reflect.DeepEqual(got.Stable, want.Stable) || !reflect.DeepEqual(got.Candidate, want.Candidate) || got.Labels != 150 {
			t.Fatalf("seed %d: with crashes    %+v\nwithout crashes %+v", seed, got, want)
		}
	}
}

// Two judges on one database: each label and each record counts once, and the
// end is told once.
func TestTwoJudges(t *testing.T) {
	eachDatabase(t, func(t *testing.T, w *world) {
		t.Helper()
		w.t = t
		w.trial(rollout.Spec{MinLabels: 50, Margin: .2})
		rnd := rand.New(rand.NewPCG(3, 4))
		for n := range 1200 {
			truth := float64(rnd.IntN(2))
			w.play(n, int64(1+n%2), .3+.4*truth)
			w.predictedLabel(n, truth)
		}
		w.flush()
		a, b := w.judge(), w.judge()
		var wg sync.WaitGroup
		for _, j := range []*label.Judge{a, b, a, b} {
			wg.Go(func() {
				if err := j.RunOnce(t.Context()); err != nil && !fault.Is(err, fault.Conflict) {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if p := w.progress(); !p.Concluded || p.Decision.Outcome != rollout.Promote || p.Stable.Requests != 600 {
			t.Errorf("%+v", p)
		}
		if all := w.concluded(); len(all) != 1 {
			t.Errorf("%d conclusions", len(all))
		}
	})
}

// A canary that nobody asks ends by the wall's clock; in a replay the records'
// clock says when.
func TestNoTraffic(t *testing.T) {
	w := newWorld(t)
	w.trial(rollout.Spec{MaxDuration: "1h"})
	judge := w.judge()
	if err := judge.RunOnce(t.Context()); err != nil {
		t.Fatal(err)
	}
	if p := w.progress(); p.Concluded || p.Decision.Reason == "" {
		t.Errorf("%+v", p.Decision)
	}
	w.now.Add((2 * time.Hour).Microseconds())
	if err := judge.RunOnce(t.Context()); err != nil {
		t.Fatal(err)
	}
	if all := w.concluded(); len(all) != 1 || all[0].Outcome != rollout.Rollback || !strings.Contains(all[0].Reason, "inconclusive") {
		t.Errorf("%+v", all)
	}
}

func TestReplayHasItsOwnClock(t *testing.T) {
	w := newWorld(t)
	w.trial(rollout.Spec{MaxDuration: "10h"})
	judge := w.judge()
	for n := range 9 {
		w.predict(n, func(r *prediction.Record) { r.Rollout = "rol_1" })
	}
	w.now.Add((100 * time.Hour).Microseconds()) // the replay is slow
	if err := judge.RunOnce(t.Context()); err != nil {
		t.Fatal(err)
	}
	if p := w.progress(); p.Concluded || p.Elapsed != 8*time.Hour || !w.rollouts[0].StartedAt.Equal(begin) {
		t.Errorf("%+v", p)
	}
	w.predict(11, func(r *prediction.Record) { r.Rollout = "rol_1" })
	if err := judge.RunOnce(t.Context()); err != nil {
		t.Fatal(err)
	}
	if p := w.progress(); !p.Concluded || p.Decision.Outcome != rollout.Rollback {
		t.Errorf("%+v", p)
	}
}

// A replay that ends before its rollout stops the records' clock: the rollout says so
// after a minute, and ends by the wall's after a week, or its own duration if that is
// longer. A request begins the wait anew, and so does a label.
func TestReplayThatStops(t *testing.T) {
	for name, test := range map[string]struct {
		duration string
		wait     time.Duration
	}{"a week": {"10h", 7 * 24 * time.Hour}, "longer": {"60d", 60 * 24 * time.Hour}} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.trial(rollout.Spec{MaxDuration: test.duration})
			judge := w.judge()
			look := func(after time.Duration) label.Progress {
				t.Helper()
				w.now.Add(after.Microseconds())
				for range 2 { // the second finds nothing new
					if err := judge.RunOnce(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
				return w.progress()
			}
			for n := range 9 {
				w.predict(n, func(r *prediction.Record) { r.Rollout = "rol_1" })
			}
			if p := look(0); p.Concluded || strings.Contains(p.Decision.Reason, "replay") {
				t.Errorf("%+v", p.Decision)
			}
			ends := w.clock().Add(test.wait)
			p := look(2 * time.Minute)
			if want := "its replay has had no request or label since " + wall.Format(time.RFC3339) + ", and the rollout ends at " + ends.Format(time.RFC3339) + " unless one arrives"; p.Concluded || !strings.Contains(p.Decision.Reason, want) {
				t.Errorf("%q, want %q", p.Decision.Reason, want)
			}
			w.now.Add((test.wait - 3*time.Minute).Microseconds())
			w.predict(9, func(r *prediction.Record) { r.Rollout = "rol_1" })
			if p := look(test.wait - time.Second); p.Concluded || p.Elapsed != 9*time.Hour {
				t.Errorf("%+v", p)
			}
			w.add(one(8, 1))
			if p := look(test.wait - time.Second); p.Concluded || p.Elapsed != 9*time.Hour {
				t.Errorf("%+v", p)
			}
			if p := look(time.Second); !p.Concluded || p.Decision.Outcome != rollout.Rollback || !strings.Contains(p.Decision.Reason, "inconclusive after "+test.duration) ||
				!strings.Contains(p.Decision.Reason, "its replay has had no request or label since") {
				t.Errorf("%+v", p)
			}
			if all := w.concluded(); len(all) != 1 || !all[0].At.Equal(begin.Add(9*time.Hour)) {
				t.Errorf("%+v", all)
			}
		})
	}
}

// locked is a log whose key cannot be had for a while.
type locked struct {
	label.Predictions
	err error
}

func (l *locked) Since(ctx context.Context, project, deployment string, received time.Time) (prediction.Cursor, error) {
	if l.err != nil {
		return prediction.Cursor{}, l.err
	}
	return l.Predictions.Since(ctx, project, deployment, received)
}

func (l *locked) Read(ctx context.Context, project, deployment string, after prediction.Cursor, visit func(prediction.Cursor, *prediction.Record) error) error {
	if l.err != nil {
		return l.err
	}
	return l.Predictions.Read(ctx, project, deployment, after, visit)
}

// A rollout that cannot be judged says why, from its first moment, and goes on to the
// same sums when the cause has gone.
func TestRolloutThatCannotBeJudged(t *testing.T) {
	for name, cause := range map[string]error{
		"for now":  fault.New(fault.Unavailable, "the keys are away"),
		"for ever": fault.New(fault.Gone, "the key was destroyed"),
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			log := &locked{Predictions: w.log}
			w.service = label.New(label.Config{
				DB: w.db, Store: labelsql.Store{}, Authorizer: w, Sealer: w.sealer, Predictions: log, Deployments: w, Now: w.clock, Logger: slog.New(slog.DiscardHandler),
			})
			w.trial(rollout.Spec{MinLabels: 1_000_000})
			judge := w.judge()
			for n := range 30 {
				w.play(n, int64(1+n%2), .5)
				w.predictedLabel(n, 1)
			}
			w.flush()
			for range 2 { // before the first look, and in the middle
				log.err = cause
				for range 2 {
					if err := judge.RunOnce(t.Context()); fault.Is(cause, fault.Gone) != (err == nil) {
						t.Errorf("%v", err)
					}
				}
				if p := w.progress(); !strings.Contains(p.Problem, cause.Error()) || p.Concluded {
					t.Errorf("%+v", p)
				}
				log.err = nil
				if err := judge.RunOnce(t.Context()); err != nil {
					t.Fatal(err)
				}
				if p := w.progress(); p.Problem != "" || p.Labels != 30 || p.Stable.Requests != 15 || p.Candidate.Requests != 15 {
					t.Errorf("%+v", p)
				}
			}
		})
	}
}

// What an asker did wrong is no error of a version; what sticks to a version is
// one assignment.
func TestWhatCounts(t *testing.T) {
	w := newWorld(t)
	w.trial(rollout.Spec{})
	for n := range 20 {
		w.predict(n, func(r *prediction.Record) {
			r.Rollout, r.Version = "rol_1", int64(1+n%2)
			r.Bucket = uint32(1 + n%4)
			switch n % 10 {
			case 0:
				r.Failure, r.Scores = "invalid", nil
			case 2:
				r.Failure, r.Scores = "internal", nil
			}
		})
	}
	if err := w.judge().RunOnce(t.Context()); err != nil {
		t.Fatal(err)
	}
	p := w.progress()
	if p.Stable.Assigned != 2 || p.Candidate.Assigned != 2 || p.Stable.Requests != 8 || p.Stable.Errors != 2 || p.Candidate.Requests != 10 || p.Candidate.Errors != 0 {
		t.Errorf("stable %+v\ncandidate %+v", p.Stable, p.Candidate)
	}
}

// Who gives up says something about a version when answers of the stable one take less
// time than that, and nothing before.
func TestWhoGivesUp(t *testing.T) {
	for name, c := range map[string]struct {
		after  time.Duration
		errors int64
		known  bool // how long answers take
	}{
		"soon": {5 * time.Millisecond, 0, true}, "long after others were answered": {time.Second, 10, true}, "when nothing is known": {time.Second, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.trial(rollout.Spec{})
			for n := range 220 {
				w.predict(n, func(r *prediction.Record) {
					r.Rollout, r.Version, r.Latency = "rol_1", 1, 20*time.Millisecond
					if !c.known && n < 200 {
						r.Failure, r.Scores = "invalid", nil
					}
					if n >= 200 {
						r.Version = int64(1 + n%2)
						r.Failure, r.Scores, r.Latency = prediction.GaveUp, nil, c.after
					}
				})
			}
			if err := w.judge().RunOnce(t.Context()); err != nil {
				t.Fatal(err)
			}
			if p := w.progress(); p.Candidate.Errors != c.errors || p.Candidate.Requests != c.errors || p.Stable.Errors != c.errors {
				t.Errorf("stable %+v\ncandidate %+v", p.Stable, p.Candidate)
			}
		})
	}
}

// Labels of few keys decide nothing, however many there are: the requests of a
// key meet one version, and cost alike.
func TestFewKeysDecideNothing(t *testing.T) {
	w := newWorld(t)
	w.trial(rollout.Spec{MinLabels: 50, Margin: 0.05, MaxDuration: "60d"})
	judge := w.judge()
	of := func(from, keys int) label.Progress {
		for n := from; n < from+400; n++ {
			key := n % keys
			w.predict(n, func(r *prediction.Record) {
				r.Rollout, r.Version, r.Bucket = "rol_1", int64(1+key%2), uint32(1+key)
				r.Scores = []float64{0.1 + 0.8*float64(1-key%2)} // the stable version answers 0.9
			})
			w.add(one(n, 0))
		}
		if err := judge.RunOnce(t.Context()); err != nil {
			t.Fatal(err)
		}
		return w.progress()
	}
	p := of(0, 20)
	if p.Decision.Outcome != rollout.Continue || p.Stable.Loss.N != 200 || p.Stable.Groups != 10 || p.Candidate.Assigned != 10 || p.Candidate.Labelled != 10 ||
		!strings.Contains(p.Decision.Reason, "from 10 keys") {
		t.Errorf("%+v", p)
	}
	if p = of(400, 200); p.Decision.Outcome != rollout.Promote || p.Stable.Groups < 50 {
		t.Errorf("%+v", p)
	}
}

// A judge that was away finds records and labels of more than the trial's time:
// what the labels say comes before that the time is over.
func TestTimeDoesNotOvertakeLabels(t *testing.T) {
	w := newWorld(t)
	w.trial(rollout.Spec{MinLabels: 50, Margin: 0.05, MaxDuration: "1d"})
	for n := range 400 {
		w.predict(n, func(r *prediction.Record) {
			r.Rollout, r.Version = "rol_1", int64(1+n%2)
			r.Scores = []float64{0.1 + 0.8*float64(1-n%2)}
		})
		w.add(one(n, 0))
	}
	if err := w.judge().RunOnce(t.Context()); err != nil {
		t.Fatal(err)
	}
	if p := w.progress(); p.Decision.Outcome != rollout.Promote || p.Labels < 100 {
		t.Errorf("%+v", p)
	}
}

func BenchmarkAdd(b *testing.B) {
	w := newWorld(b)
	w.max = 5_000_000
	w.open()
	n := 0
	for b.Loop() {
		b.StopTimer()
		labels := make([]label.Label, label.MaxLabels)
		for i := range labels {
			w.predict(0, func(r *prediction.Record) { r.ID = id(n) })
			labels[i] = one(n, 1)
			n++
		}
		b.StartTimer()
		w.add(labels...)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(n), "ns/label")
}

// The bound of the index is of all deployments: one that comes takes from those
// that are there.
func TestIndexIsShared(t *testing.T) {
	w := newWorld(t)
	w.max = 1000
	w.open()
	for n := range 900 {
		w.predict(n, func(r *prediction.Record) { r.At = begin })
	}
	if a := w.add(one(0, 1)); a.Accepted != 1 {
		t.Fatalf("%+v", a)
	}
	w.predict(900, func(r *prediction.Record) { r.Deployment = "other" })
	if a, err := w.service.Add(t.Context(), "nyc", "other", []label.Label{one(900, 1)}); err != nil || a.Accepted != 1 {
		t.Fatalf("%+v, %v", a, err)
	}
	if err := w.service.RunOnce(t.Context()); err != nil {
		t.Fatal(err)
	}
	if a := w.add(one(1, 1), one(899, 1)); a.Unknown != 1 || a.Accepted != 1 {
		t.Errorf("%+v", a)
	}
}

// Labels are deleted when the predictions that they are of are.
func TestOldLabelsAreDeleted(t *testing.T) {
	w := newWorld(t)
	w.service = label.New(label.Config{
		DB: w.db, Store: labelsql.Store{}, Authorizer: w, Sealer: w.sealer, Predictions: w.log, Deployments: w, Now: w.clock, Keep: 10 * 24 * time.Hour,
	})
	for n := range 3 {
		w.predict(n, nil)
		w.add(one(n, 1))
		w.now.Add((5 * 24 * time.Hour).Microseconds())
		if err := w.service.RunOnce(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	var ids []string
	if _, err := w.service.Pairs(t.Context(), "nyc", "delay", 0, func(p label.Pair) error {
		ids = append(ids, p.Record.ID)
		return nil
	}); err != nil || !slices.Equal(ids, []string{id(1), id(2)}) {
		t.Errorf("%v, %v", ids, err)
	}
	if c, err := w.service.Counts(t.Context(), "nyc", "delay"); err != nil || c.Joined != 3 {
		t.Errorf("%+v, %v", c, err)
	}
}

// What turns out badly is known two weeks later than what does not: a version that
// never expects it looks best by the labels that come first. With a delay the
// judge waits for both.
func TestLabelsThatComeByWhatTheySay(t *testing.T) {
	for delay, want := range map[string]rollout.Outcome{"": rollout.Promote, "17d": rollout.Rollback} {
		w := newWorld(t)
		w.trial(rollout.Spec{MinLabels: 50, Margin: 0.02, MaxDuration: "300d", LabelDelay: delay})
		judge := w.judge()
		const late = 400 // hours
		for n := range 3000 {
			w.predict(n, func(r *prediction.Record) {
				r.Rollout, r.Version, r.Scores = "rol_1", int64(1+n%2), []float64{[]float64{0.25, 0}[n%2]}
			})
			if bad := n/2%4 == 0; !bad {
				w.add(one(n, 0))
			}
			if m := n - late; m >= 0 && m/2%4 == 0 {
				w.add(one(m, 1))
			}
			if n%60 == 0 {
				if err := judge.RunOnce(t.Context()); err != nil {
					t.Fatal(err)
				}
				p := w.progress()
				if delay != "" && n == 60 && (p.Labels != 0 || p.Waiting == 0) {
					t.Errorf("%d labels, %d wait", p.Labels, p.Waiting)
				}
				if p.Concluded {
					break
				}
			}
		}
		if p := w.progress(); p.Decision.Outcome != want {
			t.Errorf("%q: %s: %s", delay, p.Decision.Outcome, p.Decision.Reason)
		}
	}
}

// A deployment that was deleted may have left predictions to another one of its
// name: its labels are not theirs.
func TestPredictionsOfAnother(t *testing.T) {
	w := newWorld(t)
	w.owner = prediction.OwnerOf("dep_1")
	w.predict(0, func(r *prediction.Record) { r.Owner = w.owner })
	if got := statuses(w.add(one(0, 1))); got != "accepted" {
		t.Errorf("got %s", got)
	}
	w.owner = prediction.OwnerOf("dep_2")
	w.predict(1, func(r *prediction.Record) { r.Owner = prediction.OwnerOf("dep_1") })
	w.predict(2, func(r *prediction.Record) { r.Owner = w.owner })
	w.predict(3, nil) // nobody knows
	if a := w.add(one(1, 1), one(2, 1), one(3, 1)); a.Unknown != 1 || a.Accepted != 2 || a.Results[0].Status != label.Unknown {
		t.Errorf("%+v", a)
	}
	if err := w.service.RunOnce(t.Context()); err != nil {
		t.Fatal(err)
	}
	if c, err := w.service.Counts(t.Context(), "nyc", "delay"); err != nil || c.Waiting != 1 {
		t.Errorf("%+v, %v", c, err)
	}
}

// Values lie sealed, each bound to its prediction.
func TestLabelsAreSealed(t *testing.T) {
	w := newWorld(t)
	for n := range 2 {
		w.predict(n, nil)
		w.add(one(n, float64(n)))
	}
	var texts []string
	if err := w.db.Update(t.Context(), "nyc", func(ctx context.Context, tx *store.Tx) error {
		if err := tx.NewRaw("SELECT label_values FROM label_label ORDER BY id").Scan(ctx, &texts); err != nil {
			return err
		}
		_, err := tx.NewRaw("UPDATE label_label SET label_values = ? WHERE id = ?", texts[1], id(0)).Exec(ctx)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if len(texts) != 2 || len(texts[0]) < 40 {
		t.Errorf("%q", texts)
	}
	none := func(label.Pair) error { return errors.New("a pair") }
	if _, err := w.service.Pairs(t.Context(), "nyc", "delay", 0, none); !fault.Is(err, fault.Conflict) {
		t.Errorf("a value of another label: %v", err)
	}
	w.service = label.New(label.Config{
		DB: w.db, Store: labelsql.Store{}, Authorizer: w, Sealer: gone{}, Predictions: w.log, Deployments: w, Now: w.clock,
	})
	if _, err := w.service.Add(t.Context(), "nyc", "delay", []label.Label{one(0, 1)}); !fault.Is(err, fault.Gone) {
		t.Errorf("without a key: %v", err)
	}
}

// gone has no keys any more.
type gone struct{}

func (gone) AEAD(context.Context, string, string) (tink.AEAD, error) {
	return nil, fault.New(fault.Gone, "the key was destroyed")
}
