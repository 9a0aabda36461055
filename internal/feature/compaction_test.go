package feature_test

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/feature"
	"github.com/falaj-ml/falaj/internal/feature/online"
	"github.com/falaj-ml/falaj/internal/feature/online/onlinetest"
	"github.com/falaj-ml/falaj/internal/feature/value"
	"github.com/falaj-ml/falaj/internal/store"
)

const day = 24 * time.Hour

// tidy puts the world on a store whose rows can be gone through, in small steps.
func (w *world) tidy(driver online.Driver, tidy feature.Compaction) {
	w.t.Helper()
	w.online = online.New(driver, w.keys, online.Options{Now: func() time.Time { return w.now }, Step: 2})
	tidy.Rate = 1 << 30
	w.configure(func(cfg *feature.Config) { cfg.Compaction = tidy })
}

func (w *world) tidyOnce() {
	w.t.Helper()
	if err := w.CompactOnce(w.ctx); err != nil {
		w.t.Fatal(err)
	}
}

// subkeys are a view's.
func (w *world) subkeys(view string) string {
	w.t.Helper()
	f, err := w.Freshness(w.ctx, nyc, view)
	if err != nil {
		w.t.Fatal(err)
	}
	return fmt.Sprintf("%d %d", f.Former, f.Subkey)
}

// TestSubkeys: rows come under the next subkey when theirs is old, whoever is
// interrupted at whatever step, and answer all the time as they did: those that were
// materialised, that were pushed, and the records of windows.
func TestSubkeys(t *testing.T) {
	w := shop(t)
	w.data.put("weather", weatherRows())
	w.view("weather", weatherSpec)
	driver := &onlinetest.Memory{}
	rotate := feature.Compaction{Rotate: 90 * day}
	w.tidy(driver, rotate)
	w.mustMaterialise("purchases", w.now)
	w.mustMaterialise("weather", at(24))
	if err := w.push(pushed(8.5, "EWR", 18.5)); err != nil {
		t.Fatal(err)
	}
	ask := func() (out []string) {
		for _, hours := range []float64{1, 2, 4, 5, 6, 8, 8.5, 9, 30} {
			out = append(out, w.ask(at(hours), []string{"weather", "purchases"}, origin("EWR", "JFK", "LGA")...)...)
		}
		return out
	}
	want := ask()
	is := func(what, subkeys string) {
		t.Helper()
		if diff := cmp.Diff(want, ask()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
		for _, view := range []string{"weather", "purchases"} {
			if got := w.subkeys(view); got != subkeys {
				t.Errorf("%s: %s has subkeys %s, want %s", what, view, got, subkeys)
			}
		}
	}
	w.tidyOnce()
	is("young", "1 1")
	w.now = w.now.Add(91 * day)
	w.tidyOnce()
	is("old", "1 2")
	if err := w.push(pushed(8.75, "EWR", 18.75)); err != nil {
		t.Fatal(err)
	}
	want = ask()
	w.tidyOnce()
	if n := w.CompactionStats().Moved; n != 0 {
		t.Errorf("%d rows are moved while reads may not know of it", n)
	}
	w.now = w.now.Add(2 * time.Minute)
	// A server that ends after each step of the way.
	for rounds := 0; w.subkeys("weather") != "2 2" || w.subkeys("purchases") != "2 2"; rounds++ {
		if rounds > 100 {
			t.Fatal("it does not come to an end")
		}
		steps := 0
		w.tidy(interrupted{driver, func() error {
			if steps++; steps > 1 {
				return context.Canceled
			}
			return nil
		}}, rotate)
		_ = w.CompactOnce(w.ctx) // interrupted
		if diff := cmp.Diff(want, ask()); diff != "" {
			t.Fatalf("in round %d (-want +got):\n%s", rounds, diff)
		}
	}
	w.tidy(driver, rotate)
	is("moved", "2 2")
	left, err := driver.Tables(t.Context(), online.TableKey{}, 100)
	if err != nil || len(left) != 3 { // of purchases, of weather, and what was pushed to it
		t.Errorf("%d tables are left, error %v", len(left), err)
	}
	// With the key all of it goes, and nobody has to know its names.
	w.keys.Destroy(string(nyc), "feature/weather")
	_, err = w.Online(w.ctx, feature.OnlineRequest{Project: nyc, Selection: feature.Selection{Features: []string{"weather"}}, Entities: origin("EWR")})
	refused(t, err, fault.Gone)
	for _, c := range []struct {
		after time.Duration
		want  int
	}{{0, 3}, {23 * time.Hour, 3}} { // as it is when it runs on the wrong database
		w.now = w.now.Add(c.after)
		w.tidyOnce()
		if left, err = driver.Tables(t.Context(), online.TableKey{}, 100); err != nil || len(left) != c.want {
			t.Errorf("%s later %d tables are left, error %v", c.after, len(left), err)
		}
	}
	w.now = w.now.Add(time.Hour)
	w.tidyOnce()
	if left, err = driver.Tables(t.Context(), online.TableKey{}, 100); err != nil || len(left) != 1 || w.CompactionStats().Orphans != 2 {
		t.Errorf("%d tables are left of a destroyed key, error %v, %+v", len(left), err, w.CompactionStats())
	}
	if got := w.ask(at(4), []string{"purchases:spent"}, origin("EWR")...); got[0] == "NULL/NOT_FOUND" {
		t.Error("the rows of another view went, too")
	}
	records, _, err := w.db.ReadStream(w.ctx, "audit", store.Position{}, 1000)
	if err != nil {
		t.Fatal(err)
	}
	phases := 0
	for _, r := range records {
		if bytes.Contains(r.Body, []byte("subkey")) {
			phases++
		}
	}
	if phases != 4 {
		t.Errorf("%d changes of subkeys are on record of 4", phases)
	}
}

// interrupted fails when told to, as a server does that is killed.
type interrupted struct {
	*onlinetest.Memory
	step func() error
}

func (i interrupted) Replace(ctx context.Context, changes []online.Change) (int, error) {
	n, err := i.Memory.Replace(ctx, changes)
	if err == nil && len(changes) > 0 {
		err = i.step()
	}
	return n, err
}

// A materialisation writes under one subkey from its beginning to its end.
func TestSubkeyWaitsForMaterialisations(t *testing.T) {
	w := weather(t)
	w.tidy(&onlinetest.Memory{}, feature.Compaction{Rotate: 90 * day})
	w.mustMaterialise("weather", at(24))
	w.now = w.now.Add(91 * day)
	if _, err := w.Materialise(w.ctx, feature.MaterialiseRequest{Project: nyc, View: "weather", Until: at(48)}); err != nil {
		t.Fatal(err)
	}
	w.tidyOnce()
	expect(t, w.subkeys("weather"), "1 1")
	if err := w.RunOnce(w.ctx); err != nil {
		t.Fatal(err)
	}
	w.tidyOnce()
	expect(t, w.subkeys("weather"), "1 2")
	// What is materialised meanwhile is under the new one, also in place of other rows.
	w.data.put("weather", cut())
	w.mustMaterialise("weather", at(72))
	got := w.temps(1)
	w.now = w.now.Add(2 * time.Minute)
	for range 2 {
		w.tidyOnce()
		expect(t, w.temps(1), got)
	}
	expect(t, w.subkeys("weather"), "2 2")
}

// pausing holds a write until the test goes on.
type pausing struct {
	*onlinetest.Memory
	before func()
}

func (p *pausing) Write(ctx context.Context, versions []online.Version) error {
	if do := p.before; do != nil {
		p.before = nil
		do()
	}
	return p.Memory.Write(ctx, versions)
}

// A push that takes longer than all of a change of subkeys is there afterwards.
func TestPushDuringChangeOfSubkey(t *testing.T) {
	w := weather(t)
	driver := &pausing{Memory: &onlinetest.Memory{}}
	w.tidy(driver, feature.Compaction{Rotate: 90 * day})
	if err := w.push(pushed(2, "EWR", 12)); err != nil {
		t.Fatal(err)
	}
	w.now = w.now.Add(91 * day)
	driver.before = func() {
		for range 3 {
			w.tidyOnce()
			w.now = w.now.Add(2 * time.Minute)
		}
		expect(t, w.subkeys("weather"), "2 2")
	}
	if err := w.push(pushed(2.5, "EWR", 12.5)); err != nil {
		t.Fatal(err)
	}
	expect(t, w.temps(2, 3), []string{"12/PRESENT", "12.5/PRESENT"})
}

// Rows of older releases are read, and stay where they are until others take their
// place.
func TestSubkeyOfOlderReleases(t *testing.T) {
	w := weather(t)
	driver := &onlinetest.Memory{}
	w.tidy(driver, feature.Compaction{Rotate: 90 * day})
	w.mustMaterialise("weather", at(24))
	now := w.table("weather")
	if err := w.online.Drop(w.ctx, now); err != nil {
		t.Fatal(err)
	}
	if err := w.db.Update(w.ctx, string(nyc), func(ctx context.Context, tx *store.Tx) error {
		_, err := tx.NewRaw("UPDATE feature_online SET subkey = 0, former = 0, rotated_at = 0").Exec(ctx)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	w.data.put("weather", weatherRows())
	w.tidy(driver, feature.Compaction{Rotate: 90 * day})
	w.mustMaterialise("weather", at(25))
	want := w.temps(1, 8)
	expect(t, want, []string{"11/PRESENT", "18/PRESENT"})
	for _, c := range []struct {
		after   time.Duration
		subkeys string
	}{{0, "0 0"}, {89 * day, "0 0"}, {2 * day, "0 1"}, {time.Hour, "0 1"}, {time.Hour, "0 1"}} {
		w.now = w.now.Add(c.after)
		w.tidyOnce()
		expect(t, w.subkeys("weather"), c.subkeys)
		expect(t, w.temps(1, 8), want)
	}
	w.data.put("weather", cut())
	w.mustMaterialise("weather", at(26))
	w.now = w.now.Add(time.Hour)
	w.tidyOnce()
	expect(t, w.subkeys("weather"), "1 1")
	if err := w.RunOnce(w.ctx); err != nil { // the generation before goes, of whatever format
		t.Fatal(err)
	}
	left, err := driver.Tables(t.Context(), online.TableKey{}, 10)
	if err != nil || len(left) != 1 {
		t.Errorf("%d tables are left, error %v", len(left), err)
	}
}

// TestHistory: rows that answer nobody go, what reads are answered does not change, and
// who asks for a time before is told.
func TestHistory(t *testing.T) {
	w := weather(t)
	forever := weatherSpec
	forever.TTL = ""
	w.view("forever", forever)
	w.data.put("flights", table{spineCols, [][]value.Value{{str("EWR"), ts(1.5), value.OfBool(true)}}})
	driver := &onlinetest.Memory{}
	w.tidy(driver, feature.Compaction{})
	w.mustMaterialise("weather", at(24))
	w.mustMaterialise("forever", at(24))
	set, err := w.MakeTrainingSet(w.ctx, feature.TrainingSetRequest{Project: nyc, Name: "delays", Spine: feature.Source{Dataset: "flights"}, Timestamp: "departs", Selection: feature.Selection{Features: []string{"weather"}}})
	if err != nil {
		t.Fatal(err)
	}
	w.now = at(10)
	if err := w.push(pushed(9, "LGA", 9)); err != nil {
		t.Fatal(err)
	}
	ask := func(hours float64) []string {
		return w.ask(at(hours), []string{"weather:temp", "forever:humid"}, origin("EWR", "JFK", "LGA")...)
	}
	w.tidyOnce()
	if n := w.CompactionStats().Swept; n != 0 {
		t.Errorf("%d rows are removed though all history is kept", n)
	}
	want := [][]string{ask(8), ask(9), ask(10), ask(11)}
	w.tidy(driver, feature.Compaction{History: 2 * time.Hour})
	w.tidyOnce()
	if n := w.CompactionStats().Swept; n != 0 {
		t.Errorf("%d rows are removed at once: reads of before may want them", n)
	}
	w.tidyOnce()
	// Of weather those of 0, 1 and 1 o'clock, of forever that of EWR at 0 and at 1.
	if n := w.CompactionStats().Swept; n != 5 {
		t.Errorf("%d rows are removed, want 5", n)
	}
	for i, hours := range []float64{8, 9, 10, 11} {
		for n, is := range ask(hours) {
			if was := want[i][n]; is != was && is != strings.Replace(was, "OUTSIDE_MAX_AGE", "NOT_FOUND", 1) {
				t.Errorf("as of %v: %s, before %s", hours, is, was)
			}
		}
	}
	for _, view := range []string{"weather", "forever"} {
		_, err := w.Online(w.ctx, feature.OnlineRequest{Project: nyc, Selection: feature.Selection{Features: []string{view}}, Entities: origin("EWR"), AsOf: at(8).Add(-time.Microsecond)})
		refused(t, err, fault.Gone, view+"@1", "2013-01-01T08:00:00Z", "online.history")
	}
	_, err = w.Verify(w.ctx, feature.VerifyRequest{Project: nyc, TrainingSet: set.Dataset})
	refused(t, err, fault.Gone, "weather@1", "online.history")
	w.now = at(9.5) // a clock that goes back takes nothing back
	w.tidyOnce()
	_, err = w.Online(w.ctx, feature.OnlineRequest{Project: nyc, Selection: feature.Selection{Features: []string{"weather"}}, Entities: origin("EWR"), AsOf: at(7.9)})
	refused(t, err, fault.Gone)
	if err := w.WatchOnce(w.ctx); err != nil {
		t.Fatal(err)
	}
	for _, c := range w.Checks() {
		if c.Mismatches > 0 {
			t.Errorf("what was removed is taken for a mistake: %+v", c)
		}
	}
	w.now = at(200)
	w.tidyOnce()
	w.tidyOnce()
	if got := w.ask(time.Time{}, []string{"weather:temp", "forever:humid"}, origin("EWR", "JFK", "LGA")...); !slices.Equal(got, []string{"NULL/NOT_FOUND | 58/PRESENT", "NULL/NOT_FOUND | 51/PRESENT", "NULL/NOT_FOUND | NULL/NOT_FOUND"}) {
		t.Errorf("in the end: %v", got)
	}
}

// TestHistoryOfWindows: what windows of a time that is kept count stays.
func TestHistoryOfWindows(t *testing.T) {
	w := shop(t)
	driver := &onlinetest.Memory{}
	w.tidy(driver, feature.Compaction{})
	w.mustMaterialise("purchases", w.now)
	ask := func() (out [][]string) {
		for _, hours := range []float64{4, 4.5, 5, 5.5, 6, 6.9, 7, 8} {
			out = append(out, w.ask(at(hours), []string{"purchases"}, origin("EWR", "JFK")...))
		}
		return out
	}
	want := ask()
	w.now = at(8)
	w.tidy(driver, feature.Compaction{History: 4 * time.Hour})
	w.tidyOnce()
	w.tidyOnce()
	expect(t, ask(), want)
	w.now = at(8 + 24)
	w.tidyOnce()
	w.tidyOnce()
	if w.CompactionStats().Swept == 0 {
		t.Error("nothing is removed")
	}
	left, err := driver.Tables(t.Context(), online.TableKey{}, 10)
	if err != nil || len(left) != 0 {
		t.Errorf("%d tables have rows that are older than the longest window and the TTL: %v", len(left), err)
	}
}

// scanning does something before the first read.
type scanning struct {
	*onlinetest.Memory
	before func()
}

func (s *scanning) Scan(ctx context.Context, rows []online.RowKey, from online.Stamp, visit func(int, online.Stamp, []byte) bool) error {
	if do := s.before; do != nil {
		s.before = nil
		do()
	}
	return s.Memory.Scan(ctx, rows, from, visit)
}

// TestHistoryGoesDuringReads: a read that was admitted is answered as it was asked, and a
// verification takes what goes meanwhile for no mistake.
func TestHistoryGoesDuringReads(t *testing.T) {
	w := weather(t)
	w.data.put("flights", table{spineCols, [][]value.Value{{str("EWR"), ts(1.5), value.OfBool(true)}}})
	driver := &scanning{Memory: &onlinetest.Memory{}}
	w.tidy(driver, feature.Compaction{History: 2 * time.Hour})
	w.mustMaterialise("weather", at(24))
	for _, hours := range []float64{8.25, 8.75} {
		if err := w.push(pushed(hours, "EWR", hours)); err != nil {
			t.Fatal(err)
		}
	}
	set, err := w.MakeTrainingSet(w.ctx, feature.TrainingSetRequest{Project: nyc, Name: "delays", Spine: feature.Source{Dataset: "flights"}, Timestamp: "departs", Selection: feature.Selection{Features: []string{"weather"}}})
	if err != nil {
		t.Fatal(err)
	}
	w.now = at(3)
	w.tidyOnce()
	verify := feature.VerifyRequest{Project: nyc, TrainingSet: set.Dataset}
	if r, err := w.Verify(w.ctx, verify); err != nil || r.Mismatches > 0 || r.Rows == 0 {
		t.Fatalf("before: %+v, %v", r, err)
	}
	driver.before = func() {
		w.now = at(10)
		w.tidyOnce()
		w.tidyOnce()
	}
	r, err := w.Verify(w.ctx, verify)
	if !fault.Is(err, fault.Conflict) {
		t.Errorf("verified: %+v, %v", r, err)
	}
	driver.before = func() {
		w.now = at(11)
		w.tidyOnce()
	}
	if got := w.temps(8.5); got[0] != "8.25/PRESENT" {
		t.Errorf("as of 8:30: %v", got)
	}
	w.tidyOnce()
	_, err = w.Online(w.ctx, feature.OnlineRequest{Project: nyc, Selection: feature.Selection{Features: []string{"weather"}}, Entities: origin("EWR"), AsOf: at(8.5)})
	refused(t, err, fault.Gone)
}
