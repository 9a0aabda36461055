package monitoring_test

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"math/rand/v2"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tink-crypto/tink-go/v2/tink"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/monitoring"
	"github.com/falaj-ml/falaj/internal/monitoring/alert"
	"github.com/falaj-ml/falaj/internal/monitoring/monitoringsql"
	"github.com/falaj-ml/falaj/internal/serving/prediction"
	"github.com/falaj-ml/falaj/internal/store"
)

// summer is warm from its eighth day to its fifteenth.
func summer(day int) float64 {
	if day >= 7 && day < 15 {
		return 6
	}
	return 0
}

func TestDriftIsFoundWithItsBeginAndItsEnd(t *testing.T) {
	w := newWorld(t)
	s := w.service(nil)
	w.apply(s, monitoring.Spec{Lateness: "2h", Detectors: []string{"adwin", "page_hinkley"}, Alerts: []alert.Target{{Webhook: "https://hooks.example.com/x"}}})
	w.days(rand.New(rand.NewPCG(8, 7)), begin, 19, 300, summer)
	w.run(s)

	windows := w.windows(s)
	if len(windows) != 18 { // the last day is open
		t.Fatalf("%d windows", len(windows))
	}
	changes := 0
	for i, win := range windows {
		if !win.From.Equal(date(i)) || !win.To.Equal(date(i+1)) || win.Rows != 300 || win.Answered != 300 || !win.Judged || !win.Replay || win.Version != 1 {
			t.Errorf("window %d is %+v", i, win)
		}
		warm := summer(i) > 0
		for _, d := range win.Streams { // the scores' mean moves when summer begins, and when it ends
			if after := (i - 7) % 8; i < 7 || after > 1 || d.Detector == "adwin" && after > 0 {
				t.Errorf("day %d: %+v", i, d)
			}
			changes++
		}
		if win.Drifted != warm || featureOf(t, win, "weather:temp").Drifted != warm || win.Score.Drifted != warm {
			t.Errorf("day %d: drifted %t, temp %+v, score %+v", i, win.Drifted, featureOf(t, win, "weather:temp"), *win.Score)
		}
		for _, name := range []string{"hour", "wind"} {
			if f := featureOf(t, win, name); f.Drifted || f.Statistic == nil || f.Mean == nil || f.BaselineMean == nil {
				t.Errorf("day %d: %+v", i, f)
			}
		}
		if win.Latency.P50 == nil || *win.Latency.P99 < *win.Latency.P50 {
			t.Errorf("latency %+v", win.Latency)
		}
	}
	if changes < 2 {
		t.Errorf("the detector found %d changes", changes)
	}
	names, findings := w.findings()
	want := "monitor.drifted 2013-06-11,monitor.drifted 2013-06-18,monitor.recovered 2013-06-19"
	if got := strings.Join(names, ","); got != want {
		t.Fatalf("told %s, want %s", got, want)
	}
	f := findings[0]
	if !f.Since.Equal(date(7)) || f.Repeated || !findings[1].Repeated || !findings[1].Since.Equal(date(7)) || findings[1].Windows != 8 ||
		len(f.Features) != 1 || f.Features[0].Name != "weather:temp" || f.Score == nil || !strings.Contains(f.Reason, "weather:temp") ||
		f.Version != 1 || f.Deployment != "delay" || f.Monitor != "delay" || !f.Window.From.Equal(date(7)) || f.Window.Rows != 300 {
		t.Errorf("%+v", f)
	}
	if len(w.queued) != 3 || w.queued[0].Type != monitoring.EventDrifted || len(w.queued[0].Targets) != 1 {
		t.Errorf("alerts %+v", w.queued)
	}
	m, err := s.One(t.Context(), "nyc", "delay")
	if err != nil || m.State != monitoring.OK || !m.Since.Equal(date(15)) || m.Windows != 18 || m.Version != 1 || m.Problem != "" {
		t.Errorf("%+v, %v", m.Status, err)
	}
	if w.opened != 1 {
		t.Errorf("the training set was read %d times", w.opened)
	}
}

func TestBaselineAndWindowForPictures(t *testing.T) {
	w := newWorld(t)
	s := w.service(nil)
	w.apply(s, monitoring.Spec{})
	w.days(rand.New(rand.NewPCG(1, 2)), begin, 2, 300, always(0))
	w.run(s)
	b, err := s.Baseline(t.Context(), "nyc", "delay", 0)
	if err != nil || b.Rows != 4000 || len(b.Columns) != 3 || b.Columns[0].Name != "weather:temp" || b.Score == nil || b.Source != "training set" || b.Ref != "delays@1" {
		t.Fatalf("%+v, %v", b, err)
	}
	if !strings.Contains(string(b.Columns[0].Summary), `"histogram"`) || !strings.Contains(b.ScoreSource, "4000 rows") {
		t.Errorf("%s, %s", b.Columns[0].Summary, b.ScoreSource)
	}
	id := w.windows(s)[0].ID
	one, err := s.Window(t.Context(), "nyc", "delay", id)
	if err != nil || len(one.Columns) != 3 || one.Scores == nil || one.Rows != 300 {
		t.Errorf("%+v, %v", one, err)
	}
	if len(w.reads) != 3 { // what comes of confidential data is in the journal
		t.Errorf("journal %+v", w.reads)
	}
	if _, err := s.Window(t.Context(), "nyc", "delay", "99-1"); !fault.Is(err, fault.NotFound) {
		t.Error(err)
	}
	w.denied = monitoring.ActionRead
	for _, err := range []error{
		second(s.One(t.Context(), "nyc", "delay")), second(s.List(t.Context(), "nyc", "", 10)), second(s.Baseline(t.Context(), "nyc", "delay", 1)),
		second(s.Window(t.Context(), "nyc", "delay", id)),
	} {
		if !fault.Is(err, fault.PermissionDenied) {
			t.Error(err)
		}
	}
}

// A manifest names data that its readers, or its author, may not see: neither gets
// it through a monitor.
func TestBaselineOfDataThatIsNotForAll(t *testing.T) {
	w := newWorld(t)
	s := w.service(nil)
	w.apply(s, monitoring.Spec{Baseline: "dataset:salaries@1"})
	w.origin.Classification, w.hidden = "restricted", "restricted"
	if _, err := s.Baseline(t.Context(), "nyc", "delay", 1); !fault.Is(err, fault.PermissionDenied) {
		t.Error(err)
	}
	w.failing = fault.New(fault.PermissionDenied, "no")
	for _, dry := range []bool{true, false} {
		_, _, err := s.Apply(t.Context(), "nyc", "other", monitoring.Spec{Deployment: "delay", Baseline: "dataset:salaries@1"}, dry)
		if !fault.Is(err, fault.PermissionDenied) {
			t.Error(err)
		}
	}
	if _, err := s.One(t.Context(), "nyc", "other"); !fault.Is(err, fault.NotFound) {
		t.Error(err)
	}
}

// What a window says in words of confidential data holds no value of it: it goes
// into findings, and with them to webhooks and the audit log.
func TestFindingsHoldNoValues(t *testing.T) {
	w := newWorld(t)
	s := w.service(nil)
	w.apply(s, monitoring.Spec{Baseline: "window:first", Drift: monitoring.DriftSpec{Features: []string{"name"}}})
	for n := range 900 {
		name := []string{"anna", "boris"}[n%2]
		if n >= 300 {
			name = "clara"
		}
		r := &prediction.Record{
			ID: strconv.Itoa(n), Project: "nyc", Deployment: "delay", Model: "delay", Version: 1, At: begin.Add(time.Duration(n/300)*24*time.Hour + time.Duration(n%300)*time.Minute),
			Received: w.now, Replay: true, Rows: 1, Scores: []float64{0.5}, Inputs: []prediction.Column{{Name: "name", Texts: []string{name}}},
		}
		if err := w.log.Append(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	w.days(rand.New(rand.NewPCG(1, 2)), begin.AddDate(0, 0, 3), 1, 300, always(0)) // closes the windows before
	w.run(s)
	all := w.windows(s)
	if len(all) < 2 || !all[1].Drifted || !strings.Contains(all[1].Features[0].Note, "1 categories are new") {
		t.Fatalf("%+v", all)
	}
	_, findings := w.findings()
	b, err := json.Marshal([]any{findings, all})
	if err != nil || len(findings) == 0 || strings.Contains(string(b), "clara") || strings.Contains(string(b), "anna") {
		t.Errorf("%s, %v", b, err)
	}
}

// What a deployment that was deleted saw is in no window of another one that has
// its name.
func TestRecordsOfAnother(t *testing.T) {
	w := newWorld(t)
	s := w.service(nil)
	w.apply(s, monitoring.Spec{})
	r := rand.New(rand.NewPCG(1, 2))
	for n := range 400 {
		w.predict(r, begin.Add(time.Duration(n)*time.Minute), 0, func(rec *prediction.Record) {
			rec.Owner = prediction.OwnerOf([]string{"dep_0", "dep_1"}[n%2])
		})
	}
	w.predict(r, begin.AddDate(0, 0, 2), 0, nil)
	w.run(s)
	if all := w.windows(s); len(all) != 1 || all[0].Rows != 200 {
		t.Errorf("%+v", all)
	}
}

func second[T any](_ T, err error) error { return err }

var errCrash = errors.New("the process dies here")

// dying ends the process at the nth write of progress: before it commits, or when
// it has.
type dying struct {
	monitoring.Store
	left  *int
	after bool
	dead  *bool
}

func (d dying) PutProgress(ctx context.Context, tx *store.Tx, m monitoring.ID, p monitoring.Progress) error {
	*d.left--
	if *d.left == 0 {
		*d.dead = true
		if !d.after {
			return errCrash
		}
	}
	return d.Store.PutProgress(ctx, tx, m, p)
}

func (d dying) Progress(ctx context.Context, tx *store.Tx, m monitoring.ID) (monitoring.Progress, error) {
	if *d.dead {
		return monitoring.Progress{}, errCrash
	}
	return d.Store.Progress(ctx, tx, m)
}

func TestCrashAtEveryCommitGivesTheSameWindows(t *testing.T) {
	specs := map[string]monitoring.Spec{
		"tumbling": {Window: monitoring.WindowSpec{Every: "1d"}, Drift: monitoring.DriftSpec{MinRows: 20}},
		"sliding":  {Window: monitoring.WindowSpec{Every: "2d", Slide: "12h"}, Drift: monitoring.DriftSpec{MinRows: 20}},
		"rows":     {Window: monitoring.WindowSpec{Rows: 60, Slide: "30"}, Drift: monitoring.DriftSpec{MinRows: 20}},
	}
	for name, spec := range specs {
		t.Run(name, func(t *testing.T) {
			fill := func(w *world) {
				r := rand.New(rand.NewPCG(3, 4))
				w.days(r, begin, 6, 40, func(day int) float64 { return float64(2 * day) })
				w.predict(r, begin.Add(time.Hour), 0, nil) // late
			}
			small := func(c *monitoring.Config) { c.Batch = 37 }
			reference := newWorld(t)
			s := reference.service(small)
			reference.apply(s, spec)
			fill(reference)
			reference.run(s)
			want, wantEvents := reference.windows(s), second2(reference.findings())
			if len(want) < 3 {
				t.Fatalf("%d windows", len(want))
			}

			for _, after := range []bool{false, true} {
				w := newWorld(t)
				s := w.service(small)
				w.apply(s, spec)
				fill(w)
				crashes := 0
				for dead := true; dead; {
					dead = false
					left := 2 // every second commit dies, until there is nothing left to do
					s = w.service(func(c *monitoring.Config) {
						small(c)
						c.Store = dying{Store: monitoringsql.Store{}, left: &left, after: after, dead: &dead}
					})
					if err := s.RunOnce(t.Context()); err != nil && !errors.Is(err, errCrash) {
						t.Fatal(err)
					}
					if dead {
						crashes++
					}
				}
				if crashes < 3 {
					t.Fatalf("%d crashes", crashes)
				}
				s = w.service(nil)
				if got := w.windows(s); !reflect.DeepEqual(got, want) {
					t.Errorf("after %d crashes: %d windows, want %d", crashes, len(got), len(want))
					for i := range min(len(got), len(want)) {
						if !reflect.DeepEqual(got[i], want[i]) {
							t.Errorf("window %d:\n%+v\n%+v", i, got[i], want[i])
							break
						}
					}
				}
				if got := second2(w.findings()); len(got) != len(wantEvents) {
					t.Errorf("%d findings, want %d", len(got), len(wantEvents))
				}
			}
		})
	}
}

func second2[A, B any](_ A, b B) B { return b }

func TestTwoProcessesWriteEachWindowOnce(t *testing.T) {
	w := newWorld(t)
	elect := func(c *monitoring.Config) { c.Elect = true }
	a, b := w.service(elect), w.service(elect)
	w.apply(a, monitoring.Spec{})
	r := rand.New(rand.NewPCG(5, 5))
	w.days(r, begin, 4, 250, always(8))
	w.run(a)
	w.run(b) // a holds the lease
	if n := len(w.windows(a)); n != 3 {
		t.Fatalf("%d windows", n)
	}
	w.days(r, date(4), 3, 250, always(0))
	w.run(b)
	if n := len(w.windows(a)); n != 3 {
		t.Fatalf("who is not elected wrote: %d windows", n)
	}
	if err := a.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.run(b)
	w.run(a)
	if n := len(w.windows(a)); n != 6 {
		t.Fatalf("%d windows", n)
	}
	names, _ := w.findings()
	if got := strings.Join(names, ","); got != "monitor.drifted 2013-06-04,monitor.recovered 2013-06-08" {
		t.Error(got)
	}

	// Two that do not know of each other: who comes second reads anew.
	c, d := w.service(nil), w.service(nil)
	for day := range 4 {
		w.days(r, date(7+day), 1, 250, always(0))
		w.run(c)
		w.run(d)
		w.run(d)
	}
	if n := len(w.windows(a)); n != 10 {
		t.Errorf("%d windows", n)
	}
}

func TestLateRecordsAndWrongClocks(t *testing.T) {
	w := newWorld(t)
	s := w.service(nil)
	w.apply(s, monitoring.Spec{Lateness: "2h"})
	r := rand.New(rand.NewPCG(9, 1))
	w.days(r, begin, 1, 250, always(0))
	w.predict(r, date(1).Add(time.Hour), 0, nil)   // not yet: the day may have more
	w.predict(r, date(0).Add(time.Hour), 0, nil)   // in time
	w.predict(r, date(1).Add(2*time.Hour), 0, nil) // closes it
	w.predict(r, date(0).Add(time.Hour), 0, nil)   // late
	w.predict(r, date(0).Add(-time.Hour), 0, nil)  // late, of a window that there is not
	w.run(s)
	w.now = w.now.Add(time.Minute)
	w.run(s)
	windows := w.windows(s)
	if len(windows) != 1 || windows[0].Rows != 251 || windows[0].Late != 1 {
		t.Errorf("%+v", windows)
	}
	// Live: the gateway's clock is ten minutes ahead; and the wall clock closes.
	live := func(rec *prediction.Record) { rec.Replay = false }
	w.predict(r, w.now.Add(10*time.Minute), 0, live)
	for range 250 {
		w.predict(r, w.now, 0, live)
	}
	w.run(s)
	m, err := s.One(t.Context(), "nyc", "delay")
	if err != nil || len(w.windows(s)) != 1 {
		t.Fatal(m, err)
	}
	w.now = w.now.Add(24 * time.Hour)
	w.run(s)
	windows = w.windows(s)
	if len(windows) != 2 || windows[1].Replay || windows[1].Rows != 250 {
		t.Errorf("%+v", windows)
	}
	if m, err = s.One(t.Context(), "nyc", "delay"); err != nil || m.Skewed != 1 || m.Late != 2 {
		t.Errorf("%+v, %v", m.Status, err)
	}
}

func TestOddBaselines(t *testing.T) {
	none := fault.New(fault.NotFound, "the run names no dataset")
	tests := []struct {
		name    string
		spec    monitoring.Spec
		world   func(w *world)
		record  func(rec *prediction.Record)
		drifted bool
		note    string // of some feature, or of the window
	}{
		{name: "one row", world: func(w *world) { w.train(1, 1) }, note: "one row"},
		{name: "no rows", world: func(w *world) { w.train(0, 1) }, note: "no rows"},
		{name: "window of rows too few", spec: monitoring.Spec{Drift: monitoring.DriftSpec{MinRows: 1000}}, note: "1000 are required"},
		{name: "all missing", record: func(rec *prediction.Record) { rec.Inputs[0].Numbers[0] = math.NaN() }, drifted: true, note: "100.00 % of the rows are missing"},
		{name: "constant", record: func(rec *prediction.Record) { rec.Inputs[0].Numbers[0] = 15 }, drifted: true, note: ""},
		{name: "wrong type", record: func(rec *prediction.Record) {
			rec.Inputs[0] = prediction.Column{Name: "weather:temp", Texts: []string{"warm"}}
		}, drifted: true, note: "the baseline is numeric and the window categorical"},
		{name: "infinite", record: func(rec *prediction.Record) { rec.Inputs[0].Numbers[0] = math.Inf(1) }, drifted: true, note: "infinite"},
		{name: "input gone", record: func(rec *prediction.Record) { rec.Inputs = rec.Inputs[1:] }, drifted: true, note: "not in the window"},
		{name: "input added", record: func(rec *prediction.Record) {
			rec.Inputs = append(rec.Inputs, prediction.Column{Name: "new", Numbers: []float64{1}})
		}, note: "not in the baseline"},
		{name: "no training set", world: func(w *world) { w.failing = none }, note: "this window is the baseline of later windows"},
		{name: "first window", spec: monitoring.Spec{Baseline: "window:first"}, note: "this window is the baseline"},
		{name: "no scores", world: func(w *world) { w.noScores, w.origin.Residency = true, residency.Of("home") }, note: "no scores of delays@1, which may be in home, today"},
		{name: "another method", spec: monitoring.Spec{Drift: monitoring.DriftSpec{Method: "ks"}}, note: "sample of"},
		{name: "a feature that is not there", spec: monitoring.Spec{Drift: monitoring.DriftSpec{Features: []string{"hour", "x"}}}, note: "in neither the window nor the baseline"},
		{name: "failures only", record: func(rec *prediction.Record) {
			rec.Failure, rec.Scores, rec.Inputs = "invalid", nil, nil
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t)
			if tt.world != nil {
				tt.world(w)
			}
			s := w.service(nil)
			w.apply(s, tt.spec)
			r := rand.New(rand.NewPCG(2, 2))
			for i := range 300 {
				w.predict(r, begin.Add(time.Duration(i)*time.Minute), 0, tt.record)
			}
			w.predict(r, date(2), 0, nil)
			w.run(s)
			windows := w.windows(s)
			if len(windows) != 1 {
				t.Fatalf("%d windows", len(windows))
			}
			all := []string{windows[0].Note}
			for _, f := range windows[0].Features {
				all = append(all, f.Note)
			}
			if windows[0].Score != nil {
				all = append(all, windows[0].Score.Note)
			}
			notes := strings.Join(all, "; ")
			if windows[0].Drifted != tt.drifted || !strings.Contains(notes, tt.note) {
				t.Errorf("drifted %t, notes %q", windows[0].Drifted, notes)
			}
		})
	}
}

func TestBaselineThatCannotBeReadNowIsTriedAgain(t *testing.T) {
	w := newWorld(t)
	s := w.service(nil)
	w.apply(s, monitoring.Spec{})
	w.days(rand.New(rand.NewPCG(2, 2)), begin, 2, 250, always(0))
	w.failing = fault.New(fault.Unavailable, "the disk is away")
	if err := s.RunOnce(t.Context()); !fault.Is(err, fault.Unavailable) {
		t.Fatal(err)
	}
	if m, err := s.One(t.Context(), "nyc", "delay"); err != nil || !strings.Contains(m.Problem, "the disk is away") {
		t.Errorf("%+v, %v", m.Status, err)
	}
	w.failing = nil
	w.run(s)
	if m, err := s.One(t.Context(), "nyc", "delay"); err != nil || m.Problem != "" || m.State != monitoring.OK || len(w.windows(s)) != 1 {
		t.Errorf("%+v, %v", m.Status, err)
	}
}

func TestBaselineFollowsTheDeploymentsManifest(t *testing.T) {
	w := newWorld(t)
	s := w.service(nil)
	w.apply(s, monitoring.Spec{})
	r := rand.New(rand.NewPCG(2, 2))
	w.days(r, begin, 2, 250, always(0))
	w.run(s)
	w.origin.Inputs, w.origin.Definition, w.revision = w.origin.Inputs[:2], "of two columns", 2
	w.origin.Scored = false
	w.days(r, date(2), 2, 250, always(0))
	w.run(s)
	windows := w.windows(s)
	if f := featureOf(t, windows[0], "wind"); f.BaselineMean == nil || f.Statistic == nil {
		t.Errorf("%+v", f)
	}
	if f := featureOf(t, windows[len(windows)-1], "wind"); f.Note != "it is not in the baseline" || w.opened != 2 {
		t.Errorf("%+v, read %d times", f, w.opened)
	}
}

func TestDestroyedKey(t *testing.T) {
	w := newWorld(t)
	s := w.service(func(c *monitoring.Config) { c.Sealer = destroyed{} })
	w.apply(s, monitoring.Spec{})
	w.days(rand.New(rand.NewPCG(2, 2)), begin, 2, 250, always(0))
	w.run(s) // no use in crying every two seconds
	if m, err := s.One(t.Context(), "nyc", "delay"); err != nil || !strings.Contains(m.Problem, "destroyed") {
		t.Errorf("%+v, %v", m.Status, err)
	}
}

type destroyed struct{}

func (destroyed) AEAD(context.Context, string, string) (tink.AEAD, error) {
	return nil, fault.New(fault.Gone, "the key of project nyc was destroyed")
}

func TestFirstWindowIsTheBaselineOfTheNext(t *testing.T) {
	w := newWorld(t)
	s := w.service(nil)
	w.apply(s, monitoring.Spec{Baseline: "window:first"})
	w.days(rand.New(rand.NewPCG(2, 2)), begin, 6, 400, func(day int) float64 { return []float64{10, 10, 10, 0, 0, 0}[day] })
	w.run(s)
	windows := w.windows(w.service(nil))
	var got []string
	for _, win := range windows {
		got = append(got, map[bool]string{true: "drifted", false: "same"}[win.Drifted])
	}
	if windows[0].Judged || strings.Join(got, ",") != "same,same,same,drifted,drifted" {
		t.Error(got, windows[0].Judged)
	}
}

func TestOnlyTheVersionThatAnswersIsTold(t *testing.T) {
	w := newWorld(t)
	s := w.service(nil)
	w.apply(s, monitoring.Spec{})
	r := rand.New(rand.NewPCG(2, 2))
	day := func(n int, shift float64, canary float64) {
		for i := range 250 {
			at := date(n).Add(time.Duration(i) * time.Minute)
			w.predict(r, at, shift, nil)
			w.predict(r, at, canary, func(rec *prediction.Record) { rec.Version = 2 })
		}
	}
	day(0, 0, 9)
	day(1, 9, 0)
	w.predict(r, date(3), 0, nil)
	w.run(s)
	names, _ := w.findings()
	if got := strings.Join(names, ","); got != "monitor.drifted 2013-06-05" || len(w.windows(s)) != 4 {
		t.Errorf("%s, %d windows", got, len(w.windows(s)))
	}
	w.version = 2 // promoted: version 1's drift is over with it
	w.days(r, date(4), 2, 250, always(0))
	w.run(s)
	names, findings := w.findings()
	m, err := s.One(t.Context(), "nyc", "delay")
	if len(names) != 2 || names[1] != "monitor.recovered 2013-06-08" || findings[1].Version != 2 || m.State != monitoring.OK || m.Version != 2 || err != nil {
		t.Errorf("%s, %+v, %v", names, m.Status, err)
	}
}

func TestMonitorOfADeployment(t *testing.T) {
	w := newWorld(t)
	s := w.service(nil)
	ctx := t.Context()
	ensure := func() {
		t.Helper()
		if err := w.db.Update(ctx, "nyc", func(ctx context.Context, tx *store.Tx) error { return s.Ensure(ctx, tx, "nyc", "delay") }); err != nil {
			t.Fatal(err)
		}
	}
	ensure()
	ensure()
	m, err := s.One(ctx, "nyc", "delay")
	if err != nil || !m.Automatic || m.Revision != 1 || m.Spec.Window.Every != "1d" || m.State != monitoring.Waiting || m.Reason == "" {
		t.Fatalf("%+v, %v", m, err)
	}
	w.days(rand.New(rand.NewPCG(2, 2)), begin, 2, 250, always(0))
	w.run(s)
	if m, change, err := s.Apply(ctx, "nyc", "delay", m.Spec, false); err != nil || change != project.Unchanged || !m.Automatic {
		t.Error("applied as it is:", change, err)
	}
	if _, change, err := s.Apply(ctx, "nyc", "delay", monitoring.Spec{Lateness: "3h"}, true); err != nil || change != project.Updated {
		t.Error(change, err)
	}
	if m, change, err := s.Apply(ctx, "nyc", "ResNet50.v2", monitoring.Spec{Deployment: "delay"}, true); err != nil || change != project.Created || m.Name != "ResNet50.v2" {
		t.Errorf("a name with capitals and a dot: %+v %v %v", m, change, err)
	}
	if m, change, err := s.Apply(ctx, "nyc", "delay", monitoring.Spec{Lateness: "3h"}, false); err != nil || change != project.Updated || m.Automatic {
		t.Error(change, err)
	}
	if _, change, err := s.Apply(ctx, "nyc", "delay", monitoring.Spec{Lateness: "3h"}, false); err != nil || change != project.Unchanged {
		t.Error(change, err)
	}
	w.run(s) // what it found stays
	if n := len(w.windows(s)); n != 1 {
		t.Errorf("%d windows", n)
	}
	if _, _, err := s.Apply(ctx, "nyc", "other", monitoring.Spec{}, false); !fault.Is(err, fault.NotFound) {
		t.Error("a monitor of no deployment:", err)
	}

	// A monitor that a person made waits when the deployment goes.
	w.gone = true
	w.run(s)
	forget := func() {
		t.Helper()
		if err := w.db.Update(ctx, "nyc", func(ctx context.Context, tx *store.Tx) error { return s.Forget(ctx, tx, "nyc", "delay") }); err != nil {
			t.Fatal(err)
		}
	}
	forget()
	if m, err := s.One(ctx, "nyc", "delay"); err != nil || m.State != monitoring.Waiting || !strings.Contains(m.Reason, "does not exist") {
		t.Errorf("%+v, %v", m.Status, err)
	}
	if err := s.Delete(ctx, "nyc", "delay"); err != nil {
		t.Fatal(err)
	}
	w.gone = false
	ensure()
	forget()
	if _, err := s.One(ctx, "nyc", "delay"); !fault.Is(err, fault.NotFound) {
		t.Error("the monitor stayed:", err)
	}
	w.run(s)
}

func TestSpecs(t *testing.T) {
	limit := 0.25
	good := &monitoring.RetrainSpec{Job: "train", Data: "train", TrainingSet: "delays", Spine: "SELECT {{from}}, {{to}}", Timestamp: "t", Window: "120d"}
	tests := []struct {
		name string
		spec monitoring.Spec
		want string // in the error; empty is none
	}{
		{"defaults", monitoring.Spec{}, ""},
		{"all", monitoring.Spec{
			Deployment: "delay", Window: monitoring.WindowSpec{Every: "7d", Slide: "1d"}, Lateness: "2h", Baseline: "dataset:delays@1",
			Drift:       monitoring.DriftSpec{Method: "ks", Alpha: .05, Correction: "bonferroni"},
			Performance: monitoring.PerformanceSpec{Metrics: []string{"auc"}, Segments: []string{"carrier"}, Alert: map[string]monitoring.Limit{"brier": {Above: &limit}}},
			Detectors:   []string{"adwin"}, Retrain: good,
		}, ""},
		{"rows", monitoring.Spec{Window: monitoring.WindowSpec{Rows: 5000}}, ""},
		{"both", monitoring.Spec{Window: monitoring.WindowSpec{Rows: 5, Every: "1d"}}, "either every or rows"},
		{"no duration", monitoring.Spec{Window: monitoring.WindowSpec{Every: "soon"}}, "spec.window.every"},
		{"short", monitoring.Spec{Window: monitoring.WindowSpec{Every: "1s"}}, "spec.window.every"},
		{"odd slide", monitoring.Spec{Window: monitoring.WindowSpec{Every: "1d", Slide: "5h"}}, "whole slides"},
		{"many slides", monitoring.Spec{Window: monitoring.WindowSpec{Every: "7d", Slide: "1h"}}, "1 to 64"},
		{"slide of time", monitoring.Spec{Window: monitoring.WindowSpec{Rows: 100, Slide: "1h"}}, "number of rows"},
		{"late", monitoring.Spec{Lateness: "366d"}, "spec.lateness"},
		{"baseline", monitoring.Spec{Baseline: "yesterday"}, "spec.baseline"},
		{"method", monitoring.Spec{Drift: monitoring.DriftSpec{Method: "guess"}}, "spec.drift.method"},
		{"correction", monitoring.Spec{Drift: monitoring.DriftSpec{Correction: "hope"}}, "spec.drift.correction"},
		{"alpha", monitoring.Spec{Drift: monitoring.DriftSpec{Alpha: 2}}, "alpha"},
		{"threshold", monitoring.Spec{Drift: monitoring.DriftSpec{Threshold: -1}}, "threshold"},
		{"share", monitoring.Spec{Drift: monitoring.DriftSpec{Share: 2}}, "share"},
		{"min rows", monitoring.Spec{Drift: monitoring.DriftSpec{MinRows: -1}}, "min_rows"},
		{"metric", monitoring.Spec{Performance: monitoring.PerformanceSpec{Metrics: []string{"luck"}}}, "spec.performance.metrics"},
		{"no limit", monitoring.Spec{Performance: monitoring.PerformanceSpec{Alert: map[string]monitoring.Limit{"brier": {}}}}, "a limit is required"},
		{"unknown limit", monitoring.Spec{Performance: monitoring.PerformanceSpec{Alert: map[string]monitoring.Limit{"luck": {Above: &limit}}}}, "luck"},
		{"task", monitoring.Spec{Performance: monitoring.PerformanceSpec{Task: "art"}}, "task"},
		{"detector", monitoring.Spec{Detectors: []string{"nose"}}, "spec.detectors"},
		{"alert", monitoring.Spec{Alerts: []alert.Target{{}}}, "spec.alerts[0]"},
		{"retrain without spine", monitoring.Spec{Retrain: &monitoring.RetrainSpec{Job: "j", Data: "d", TrainingSet: "t", Timestamp: "t", Window: "1d"}}, "spine"},
		{"retrain of everything", monitoring.Spec{Retrain: &monitoring.RetrainSpec{Job: "j", Data: "d", TrainingSet: "t", Timestamp: "t", Window: "1d", Spine: "SELECT 1"}}, "{{from}}"},
		{"repeat", monitoring.Spec{Repeat: -2}, "repeat"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			err := tt.spec.WithDefaults("delay").Validate()
			if tt.want == "" && err != nil || tt.want != "" && (!fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
}
