package feature_test

import (
	"context"
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/feature"
	"github.com/falaj-ml/falaj/internal/feature/featuresql"
	"github.com/falaj-ml/falaj/internal/feature/online"
	"github.com/falaj-ml/falaj/internal/feature/online/redis"
	"github.com/falaj-ml/falaj/internal/feature/value"
	"github.com/falaj-ml/falaj/internal/store/storetest"
)

// TestRedisGoneForAMinute: Redis is killed in the middle of a materialisation and stays
// away. Reads and pushes say so, and that it is Redis; the materialisation waits and
// goes on where it was, and nothing is lost or there twice.
func TestRedisGoneForAMinute(t *testing.T) {
	r := newRedis(t)
	d, err := redis.Open(t.Context(), redis.Config{URL: r.url()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	w := newWorld(t)
	w.driver = &spy{Driver: d}
	w.online = online.New(w.driver, w.keys, online.Options{Now: func() time.Time { return w.now }})
	w.configure(func(*feature.Config) {})
	w.entity("origin", "string")
	w.data.put("weather", weatherRows())
	w.view("weather", weatherSpec)
	w.mustMaterialise("weather", at(24))
	if err := w.push(pushed(8.5, "EWR", 18.5)); err != nil {
		t.Fatal(err)
	}
	before := w.ask(at(9), []string{"weather"}, origin("EWR", "JFK")...)

	w.data.put("long", longRows(55))
	spec := weatherSpec
	spec.Source.Dataset = "long"
	w.view("long", spec)
	run, err := w.Materialise(w.ctx, feature.MaterialiseRequest{Project: nyc, View: "long", Until: w.now})
	if err != nil {
		t.Fatal(err)
	}
	chunks := 0
	w.driver.rows = 0
	w.driver.write = func() error {
		if chunks++; chunks == 4 {
			r.kill()
		}
		return nil
	}
	away := func() {
		t.Helper()
		if err := w.RunOnce(w.ctx); err != nil {
			t.Fatal(err)
		}
		got, err := w.Run(w.ctx, nyc, run.ID)
		if err != nil || got.State != feature.Queued || got.Rows != 30 || !strings.Contains(got.Error, "Redis") {
			t.Fatalf("it is %s with %d rows (%s), %v", got.State, got.Rows, got.Error, err)
		}
	}
	away()
	_, err = w.Online(w.ctx, feature.OnlineRequest{Project: nyc, Selection: feature.Selection{Features: []string{"weather"}}, Entities: origin("EWR"), AsOf: at(9)})
	refused(t, err, fault.Unavailable, "Redis")
	refused(t, w.push(pushed(8.75, "EWR", 18.75)), fault.Unavailable, "Redis")
	for began := w.now; w.now.Sub(began) < time.Minute; {
		w.now = w.now.Add(10 * time.Second)
		away()
	}
	r.start(t)
	if got := w.ask(at(9), []string{"weather"}, origin("EWR", "JFK")...); fmt.Sprint(got) != fmt.Sprint(before) {
		t.Errorf("after the minute %v, before %v", got, before)
	}
	w.now = w.now.Add(time.Minute)
	if err := w.RunOnce(w.ctx); err != nil {
		t.Fatal(err)
	}
	got, err := w.Run(w.ctx, nyc, run.ID)
	if err != nil || got.State != feature.Succeeded || got.Rows != 55 {
		t.Fatalf("it is %s with %d rows (%s), %v", got.State, got.Rows, got.Error, err)
	}
	if again := w.driver.rows - 55; again < 10 || again > 100 { // chunks that were tried, and none that was there
		t.Errorf("%d rows of 55 were written more than once", again)
	}
	var all [][]byte
	for _, row := range longRows(55).rows {
		all = append(all, value.AppendKey(nil, row[0]))
	}
	rows, err := w.online.Rows(w.ctx, w.table("long"), all)
	if err != nil {
		t.Fatal(err)
	}
	if n, err := w.online.Count(w.ctx, rows); err != nil || n != 55 {
		t.Errorf("%d versions of rows are there, of 55: %v", n, err)
	}
	if err := w.push(pushed(8.75, "EWR", 18.75)); err != nil {
		t.Fatal(err)
	}
	if got := w.ask(at(9), []string{"weather:temp"}, origin("EWR")...); got[0] != "18.75/PRESENT" {
		t.Errorf("pushed again: %v", got)
	}
}

// TestMaterialiseAtOnce: many ask for the same view at once, and two servers run what is
// asked for. One materialisation comes of it, and each row is there as it is.
func TestMaterialiseAtOnce(t *testing.T) {
	w := newWorldOn(t, storetest.SQLite(t, featuresql.Migrations))
	w.entity("origin", "string")
	w.data.put("long", longRows(55))
	spec := weatherSpec
	spec.Source.Dataset = "long"
	w.view("long", spec)
	first := w.services
	w.configure(func(*feature.Config) {})
	servers := []services{first, w.services}

	const many = 16
	ids, fails := make([]feature.RunID, many), make([]error, many)
	var all sync.WaitGroup
	for i := range many {
		all.Go(func() {
			until := w.now
			if i%4 == 3 {
				until = until.Add(-time.Duration(i) * time.Second)
			}
			r, err := servers[i%2].Materialise(w.ctx, feature.MaterialiseRequest{Project: nyc, View: "long", Until: until})
			ids[i], fails[i] = r.ID, err
		})
	}
	all.Wait()
	runs := map[feature.RunID]int{}
	for i, err := range fails {
		switch {
		case err == nil:
			runs[ids[i]]++
		case !fault.Is(err, fault.Conflict) || !strings.Contains(err.Error(), "is in progress"):
			t.Errorf("asking for it: %v", err)
		}
	}
	if len(runs) != 1 {
		t.Fatalf("%d materialisations are under way", len(runs))
	}
	for i := range many {
		all.Go(func() {
			if err := servers[i%2].RunOnce(w.ctx); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if err := w.RunOnce(w.ctx); err != nil { // one who was kept out may have been the last to look
		t.Fatal(err)
	}
	for id := range runs {
		r, err := w.Run(w.ctx, nyc, id)
		if err != nil || r.State != feature.Succeeded || r.Rows != 55 {
			t.Errorf("%s with %d rows (%s): %v", r.State, r.Rows, r.Error, err)
		}
	}
	for i, row := range longRows(55).rows {
		if got := w.ask(row[1].Time(), []string{"long:temp"}, origin(row[0].Str())...); got[0] != row[2].String()+"/PRESENT" {
			t.Errorf("row %d answers %v, want %s", i, got, row[2])
		}
	}
}

// TestPushedNonsense: what is pushed is a row of the view or refused as a whole, with
// its place; an entity that is asked for in a wrong type is named.
func TestPushedNonsense(t *testing.T) {
	w := weather(t)
	ok := func() map[string][]any {
		return map[string][]any{"origin": {"EWR", "JFK"}, "time": {at(8), at(8)}, "temp": {1.5, nil}, "humid": {nil, 2}}
	}
	for name, c := range map[string]struct {
		change func(c map[string][]any)
		words  []string
	}{
		"text for a number":   {func(c map[string][]any) { c["temp"][1] = "warm" }, []string{"row 2", `"temp"`, `"warm"`}},
		"bool for a number":   {func(c map[string][]any) { c["temp"][0] = true }, []string{"row 1", `"temp"`}},
		"a list for a number": {func(c map[string][]any) { c["temp"][0] = []any{1.0} }, []string{"row 1", "a list"}},
		"a number for a key":  {func(c map[string][]any) { c["origin"][1] = 7 }, []string{"row 2", `"origin"`}},
		"a null key":          {func(c map[string][]any) { c["origin"][1] = nil }, []string{"row 2", `"origin" is null`}},
		"a null time":         {func(c map[string][]any) { c["time"][0] = nil }, []string{"row 1", `"time" is null`}},
		"a time that is none": {func(c map[string][]any) { c["time"][0] = "2013-02-30T00:00:00Z" }, []string{"row 1", `"time"`}},
		"a number for a time": {func(c map[string][]any) { c["time"][0] = 1.4e18 }, []string{"row 1", `"time"`}},
		"the future":          {func(c map[string][]any) { c["time"][1] = w.now.Add(time.Hour) }, []string{"row 2", "future"}},
		"a column too many":   {func(c map[string][]any) { c["temmp"] = []any{1.0, 2.0} }, []string{`"temmp"`, `"temp"`}},
		"a column too few":    {func(c map[string][]any) { delete(c, "humid") }, []string{`"humid"`}},
		"a column too short":  {func(c map[string][]any) { c["humid"] = c["humid"][:1] }, []string{`"humid"`}},
		"no time":             {func(c map[string][]any) { delete(c, "time") }, []string{`"time"`}},
	} {
		columns := ok()
		c.change(columns)
		t.Run(name, func(t *testing.T) {
			refused(t, w.push(columns), fault.Invalid, c.words...)
		})
	}
	if got := w.driver.rows; got != 0 {
		t.Errorf("%d rows of what was refused are there", got)
	}
	many := map[string][]any{"origin": nil, "time": nil, "temp": nil, "humid": nil}
	for range 100_001 {
		many["origin"], many["time"], many["temp"], many["humid"] = append(many["origin"], "EWR"), append(many["time"], at(8)), append(many["temp"], 1.0), append(many["humid"], nil)
	}
	refused(t, w.push(many), fault.TooLarge, "100001")

	// A row that is there twice in a push is the last one; NaN is a value.
	if err := w.push(map[string][]any{"origin": {"EWR", "EWR", "JFK"}, "time": {at(8), at(8), at(8)}, "temp": {1.0, 2.0, math.NaN()}, "humid": {nil, nil, "-Infinity"}}); err != nil {
		t.Fatal(err)
	}
	expect(t, w.ask(at(9), []string{"weather"}, origin("EWR", "JFK", "EWR", nil, "")...), []string{
		"2/PRESENT | NULL/NULL_VALUE", "NaN/PRESENT | -Inf/PRESENT", "2/PRESENT | NULL/NULL_VALUE", "NULL/NOT_FOUND | NULL/NOT_FOUND", "NULL/NOT_FOUND | NULL/NOT_FOUND",
	})

	for name, c := range map[string]struct {
		entities []map[string]any
		kind     fault.Kind
		words    []string
	}{
		"a number for text": {origin("EWR", 7), fault.Invalid, []string{"entity 2", "origin"}},
		"an object":         {origin(map[string]any{"a": 1}), fault.Invalid, []string{"entity 1", "an object"}},
		"another key":       {[]map[string]any{{"origin": "EWR"}, {"origins": "EWR"}}, fault.Invalid, []string{"entity 2", `"origins"`, `"origin"`}},
		"no key at all":     {[]map[string]any{{}}, fault.Invalid, []string{`"origin"`}},
		"too many":          {make([]map[string]any, 10_001), fault.TooLarge, []string{"10001"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := w.Online(context.WithoutCancel(w.ctx), feature.OnlineRequest{Project: nyc, Selection: feature.Selection{Features: []string{"weather"}}, Entities: c.entities})
			refused(t, err, c.kind, c.words...)
		})
	}
	a, err := w.Online(w.ctx, feature.OnlineRequest{Project: nyc, Selection: feature.Selection{Features: []string{"weather"}}})
	if err != nil || len(a.Columns) != 2 || len(a.Columns[0].Values) != 0 {
		t.Errorf("for nobody: %+v, %v", a, err)
	}
}
