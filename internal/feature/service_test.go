package feature_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/feature"
	"github.com/falaj-ml/falaj/internal/feature/featuresql"
	"github.com/falaj-ml/falaj/internal/feature/offline"
	"github.com/falaj-ml/falaj/internal/feature/online"
	"github.com/falaj-ml/falaj/internal/feature/online/onlinetest"
	"github.com/falaj-ml/falaj/internal/feature/value"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/store/storetest"
)

// gates is the authorizer, the residency door and the journal of a test.
type gates struct {
	mu      sync.Mutex
	refuse  map[policy.Action]bool
	asked   []string
	zones   []residency.Transfer
	entries []audit.Entry
	broken  error // of the journal
}

func (g *gates) Allow(_ context.Context, a policy.Action, o policy.Object) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.asked = append(g.asked, strings.TrimSpace(fmt.Sprintf("%s %s %s", a, o.Name, o.Classification)))
	if g.refuse[a] {
		return fault.New(fault.PermissionDenied, "%s is refused", a)
	}
	return nil
}

func (g *gates) Pass(_ context.Context, p residency.Transfer) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.zones = append(g.zones, p)
	return residency.Check(p.What, p.Label, p.Where, p.Zone)
}

func (g *gates) Record(_ context.Context, e audit.Entry) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.broken == nil {
		g.entries = append(g.entries, e)
	}
	return g.broken
}

// spy counts what reaches the online driver, and fails when told to.
type spy struct {
	online.Driver
	mu    sync.Mutex
	rows  int
	write func() error
	drops []online.TableKey
	drop  func() error
}

// ofSubkeys is how many tables a generation has: that of the first format, and that of
// the first subkey.
const ofSubkeys = 2

func (s *spy) Drop(ctx context.Context, table online.TableKey) error {
	s.mu.Lock()
	s.drops = append(s.drops, table)
	drop := s.drop
	s.mu.Unlock()
	if drop != nil {
		if err := drop(); err != nil {
			return err
		}
	}
	return s.Driver.Drop(ctx, table)
}

func (s *spy) Write(ctx context.Context, versions []online.Version) error {
	s.mu.Lock()
	write := s.write
	s.rows += len(versions)
	s.mu.Unlock()
	if write != nil {
		if err := write(); err != nil {
			return err
		}
	}
	return s.Driver.Write(ctx, versions)
}

// services are all that there are, so that a test calls each method on its world.
type services struct {
	*feature.Definitions
	*feature.OnlineRows
	*feature.Streams
	*feature.Materialisation
	*feature.OnlineReads
	*feature.OfflineReads
	*feature.Verification
	*feature.Erasure
}

func newServices(cfg feature.Config) services {
	s := feature.New(cfg)
	return services{s.Definitions, s.OnlineRows, s.Streams, s.Materialisation, s.OnlineReads, s.OfflineReads, s.Verification, s.Erasure}
}

type world struct {
	services
	t      testing.TB
	ctx    context.Context
	db     *store.DB
	data   *data
	gates  *gates
	driver *spy
	keys   *onlinetest.Keys
	online *online.Store
	now    time.Time
}

const nyc = project.Name("nyc")

var start = time.Date(2013, 1, 1, 0, 0, 0, 0, time.UTC)

func newWorld(t *testing.T) *world {
	t.Helper()
	return newWorldOn(t, storetest.SQLite(t, featuresql.Migrations))
}

func newWorldOn(tb testing.TB, db *store.DB) *world {
	tb.Helper()
	w := &world{
		t: tb, db: db, data: newData(), gates: &gates{refuse: map[policy.Action]bool{}},
		driver: &spy{Driver: &onlinetest.Memory{}}, keys: &onlinetest.Keys{}, now: start.Add(120 * 24 * time.Hour),
		ctx: identity.With(context.Background(), identity.Principal{Kind: identity.User, ID: "usr_test"}),
	}
	w.data.db = db
	clock := func() time.Time { return w.now }
	w.online = online.New(w.driver, w.keys, online.Options{Now: clock})
	w.configure(func(*feature.Config) {})
	return w
}

// configure makes the service anew with another configuration.
func (w *world) configure(change func(*feature.Config)) {
	w.t.Helper()
	cfg := feature.Config{
		DB: w.db, Store: featuresql.Store{}, Data: w.data, Online: w.online, Keys: w.keys, Authorizer: w.gates, Guard: w.gates, Journal: w.gates,
		Now: func() time.Time { return w.now }, ChunkRows: 10, Log: slog.New(slog.DiscardHandler), Join: offline.Options{Dir: w.t.TempDir()},
	}
	change(&cfg)
	w.services = newServices(cfg)
}

// Values, times as hours after start.
func str(s string) value.Value     { return value.OfString(s) }
func num(f float64) value.Value    { return value.OfFloat(f) }
func at(hours float64) time.Time   { return start.Add(time.Duration(hours * float64(time.Hour))) }
func ts(hours float64) value.Value { return value.OfTime(at(hours)) }

var null = value.Value{}

var weatherCols = []col{{"origin", value.String}, {"time", value.Timestamp}, {"temp", value.Float64}, {"humid", value.Float64}}

func weatherRows() table {
	return table{weatherCols, [][]value.Value{
		{str("EWR"), ts(0), num(10), num(50)},
		{str("EWR"), ts(1), num(11), null},
		{str("EWR"), ts(8), num(18), num(58)},
		{str("JFK"), ts(1), num(21), num(51)},
	}}
}

var weatherSpec = feature.ViewSpec{
	Source: feature.Source{Dataset: "weather"}, Entities: []string{"origin"}, Timestamp: "time", TTL: "3h",
	Features: []feature.FieldSpec{{Name: "temp", Type: "float64"}, {Name: "humid", Type: "float64"}},
}

func (w *world) entity(name, typ string) {
	w.t.Helper()
	if _, _, err := w.ApplyEntity(w.ctx, feature.ApplyRequest{Project: nyc, Name: name}, feature.EntitySpec{Type: typ}); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) view(name string, spec feature.ViewSpec) feature.View {
	w.t.Helper()
	v, _, err := w.ApplyView(w.ctx, feature.ApplyRequest{Project: nyc, Name: name}, spec)
	if err != nil {
		w.t.Fatal(err)
	}
	return v
}

// weather is a world with the weather by origin.
func weather(t *testing.T) *world {
	t.Helper()
	w := newWorld(t)
	w.data.put("weather", weatherRows())
	w.entity("origin", "string")
	w.view("weather", weatherSpec)
	return w
}

func (w *world) materialise(view string, until time.Time) feature.Run {
	w.t.Helper()
	r, err := w.Materialise(w.ctx, feature.MaterialiseRequest{Project: nyc, View: view, Until: until})
	if err != nil {
		w.t.Fatal(err)
	}
	if err := w.RunOnce(w.ctx); err != nil {
		w.t.Fatal(err)
	}
	if r, err = w.Run(w.ctx, nyc, r.ID); err != nil {
		w.t.Fatal(err)
	}
	return r
}

func (w *world) mustMaterialise(view string, until time.Time) feature.Run {
	w.t.Helper()
	r := w.materialise(view, until)
	if r.State != feature.Succeeded {
		w.t.Fatalf("materialisation is %s: %s", r.State, r.Error)
	}
	return r
}

// table is where the rows of a view that answer are.
func (w *world) table(view string) online.Table {
	w.t.Helper()
	f, err := w.Freshness(w.ctx, nyc, view)
	if err != nil || !f.Materialised {
		w.t.Fatalf("%s is not online: %v", view, err)
	}
	return online.Table{Project: string(nyc), View: f.View, Version: f.Version, Generation: string(f.Generation), Subkey: f.Subkey, Former: f.Former}
}

// ask reads features as "value/STATUS".
func (w *world) ask(asOf time.Time, features []string, entities ...map[string]any) []string {
	w.t.Helper()
	a, err := w.Online(w.ctx, feature.OnlineRequest{Project: nyc, Selection: feature.Selection{Features: features}, Entities: entities, AsOf: asOf})
	if err != nil {
		w.t.Fatal(err)
	}
	var out []string
	for n := range entities {
		var cells []string
		for _, c := range a.Columns {
			cells = append(cells, fmt.Sprintf("%s/%s", c.Values[n], c.Statuses[n]))
		}
		out = append(out, strings.Join(cells, " | "))
	}
	return out
}

func origin(names ...any) []map[string]any {
	var out []map[string]any
	for _, n := range names {
		out = append(out, map[string]any{"origin": n})
	}
	return out
}

func expect(tb testing.TB, got any, want any) {
	tb.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		tb.Errorf("(-want +got):\n%s", diff)
	}
}

// refused checks an error's kind and that message and hint together hold the
// words.
func refused(tb testing.TB, err error, kind fault.Kind, words ...string) {
	tb.Helper()
	if !fault.Is(err, kind) {
		tb.Errorf("error is %v (%s), want %s", err, fault.KindOf(err), kind)
		return
	}
	for _, word := range words {
		if !strings.Contains(err.Error()+" | "+fault.HintOf(err), word) {
			tb.Errorf("error %q with hint %q does not say %q", err, fault.HintOf(err), word)
		}
	}
}

func TestVersionsAreImmutableAndContentAddressed(t *testing.T) {
	w := weather(t)
	apply := func(spec feature.ViewSpec, dry bool) (feature.View, project.Change) {
		t.Helper()
		v, change, err := w.ApplyView(w.ctx, feature.ApplyRequest{Project: nyc, Name: "weather", DryRun: dry}, spec)
		if err != nil {
			t.Fatal(err)
		}
		return v, change
	}
	first, change := apply(weatherSpec, false)
	if first.Ref() != "weather@1" || change != project.Unchanged {
		t.Errorf("the same again: %s %s", first.Ref(), change)
	}
	longer := weatherSpec
	longer.TTL = "4h"
	if v, change := apply(longer, true); v.Version != 2 || change != project.Updated {
		t.Errorf("dry run: %s %s", v.Ref(), change)
	}
	if v, err := w.View(w.ctx, nyc, "weather"); err != nil || v.Ref() != "weather@1" {
		t.Errorf("after a dry run: %v %v", v.Ref(), err)
	}
	second, change := apply(longer, false)
	if second.Version != 2 || change != project.Updated || second.Digest == first.Digest {
		t.Errorf("other content: %s %s", second.Ref(), change)
	}
	// The old content again is the old version, and what unpinned names mean.
	if v, change := apply(weatherSpec, false); v.Version != 1 || change != project.Updated {
		t.Errorf("back: %s %s", v.Ref(), change)
	}
	for ref, want := range map[string]string{"weather": "weather@1", "weather@latest": "weather@1", "weather@2": "weather@2"} {
		if v, err := w.View(w.ctx, nyc, ref); err != nil || v.Ref() != want {
			t.Errorf("%s is %s %v, want %s", ref, v.Ref(), err, want)
		}
	}
	if _, err := w.Promote(w.ctx, nyc, feature.ViewKind, "weather@2", "prod"); err != nil {
		t.Fatal(err)
	}
	if v, err := w.View(w.ctx, nyc, "weather@prod"); err != nil || v.Version != 2 || v.TTL != "4h" {
		t.Errorf("weather@prod: %v %v", v, err)
	}
	_, err := w.Promote(w.ctx, nyc, feature.ViewKind, "weather@2", "latest")
	refused(t, err, fault.Invalid, "always names the newest version")
	_, err = w.View(w.ctx, nyc, "weather@beta")
	refused(t, err, fault.NotFound, "latest, prod")
	_, err = w.View(w.ctx, nyc, "weather@3")
	refused(t, err, fault.NotFound, "weather@3")

	versions, err := w.Versions(w.ctx, nyc, feature.ViewKind, "weather", 0, 0)
	if err != nil || len(versions) != 2 || versions[0].Version != 2 || versions[1].CreatedBy != "usr_test" {
		t.Errorf("versions %v %v", versions, err)
	}
	views, err := w.Views(w.ctx, nyc, "", 0)
	if err != nil || len(views) != 1 || views[0].Version != 1 {
		t.Errorf("views %v %v", views, err)
	}
}

// Every change is in the audit stream and the outbox, and nothing else is.
func TestChangesAreAuditedAndPublished(t *testing.T) {
	w := weather(t)
	w.mustMaterialise("weather", w.now)
	read := func(stream string) []string {
		records, _, err := w.db.ReadStream(w.ctx, stream, store.Position{}, 100)
		if err != nil {
			t.Fatal(err)
		}
		var out []string
		for _, r := range records {
			out = append(out, r.Kind)
		}
		return out
	}
	expect(t, read("audit"), []string{"feature.apply", "feature.apply", "feature.materialise", "feature.materialise"})
	expect(t, read("event"), []string{"feature.applied", "feature.applied", "feature.materialised"})
}

func TestApplyRefuses(t *testing.T) {
	w := weather(t)
	w.data.queries["SELECT 1"] = query{tables: []string{"weather"}, run: func(in map[string]table) table { return in["weather"] }}
	for name, c := range map[string]struct {
		change func(*feature.ViewSpec)
		words  []string
	}{
		"column":    {func(s *feature.ViewSpec) { s.Features[0].Name = "tempp" }, []string{`spec.features[0]`, `no column "tempp"`, `did you mean "temp"?`, "origin, time, temp, humid"}},
		"type":      {func(s *feature.ViewSpec) { s.Features[0].Type = "int64" }, []string{`column "temp" is float64, not int64`, "CAST"}},
		"no type":   {func(s *feature.ViewSpec) { s.Features[0].Type = "floot64" }, []string{`spec.features[0].type`, `did you mean "float64"?`}},
		"timestamp": {func(s *feature.ViewSpec) { s.Timestamp = "" }, []string{"spec.timestamp", "2000-01-01"}},
		"created":   {func(s *feature.ViewSpec) { s.CreatedTimestamp = "humidd" }, []string{"spec.created_timestamp", "humid"}},
		"entity":    {func(s *feature.ViewSpec) { s.Entities = []string{"airport"} }, []string{"spec.entities[0]", `"airport"`}},
		"no entity": {func(s *feature.ViewSpec) { s.Entities = nil }, []string{"spec.entities"}},
		"ttl":       {func(s *feature.ViewSpec) { s.TTL = "3 hours" }, []string{"spec.ttl", "3h or 7d"}},
		"dataset":   {func(s *feature.ViewSpec) { s.Source.Dataset = "wether" }, []string{`"wether"`}},
		"both":      {func(s *feature.ViewSpec) { s.Source.SQL = "SELECT 1" }, []string{"either dataset or sql, not both"}},
		"neither":   {func(s *feature.ViewSpec) { s.Source.Dataset = "" }, []string{"dataset or sql"}},
		"sql":       {func(s *feature.ViewSpec) { s.Source = feature.Source{SQL: "SELEC"} }, []string{"Parser Error"}},
		"input": {func(s *feature.ViewSpec) {
			s.Source = feature.Source{SQL: "SELECT 1", Inputs: map[string]string{"x": "weather"}}
		}, []string{`no table "weather"`}},
		"key twice":   {func(s *feature.ViewSpec) { s.Features[0].Name, s.Features[0].Type = "origin", "string" }, []string{"join key"}},
		"twice":       {func(s *feature.ViewSpec) { s.Features[0].Name = "humid" }, []string{`duplicate "humid"`}},
		"colon":       {func(s *feature.ViewSpec) { s.Features[0].Name = "a:b" }, []string{"':'"}},
		"no features": {func(s *feature.ViewSpec) { s.Features = nil }, []string{"spec.features"}},
	} {
		t.Run(name, func(t *testing.T) {
			spec := weatherSpec
			spec.Features = slices.Clone(spec.Features)
			c.change(&spec)
			_, _, err := w.ApplyView(w.ctx, feature.ApplyRequest{Project: nyc, Name: "other"}, spec)
			refused(t, err, fault.Invalid, c.words...)
		})
	}
	for _, name := range []string{"", "../x", "A", strings.Repeat("a", 64), "a@b", "a:b"} {
		_, _, err := w.ApplyView(w.ctx, feature.ApplyRequest{Project: nyc, Name: name}, weatherSpec)
		refused(t, err, fault.Invalid)
	}
	_, _, err := w.ApplyEntity(w.ctx, feature.ApplyRequest{Project: nyc, Name: "x"}, feature.EntitySpec{Type: "float64"})
	refused(t, err, fault.Invalid, "cannot be a join key")
	for _, f := range []string{"weather:none", "none:temp", "weather:", "weather@0:temp", ""} {
		_, _, err := w.ApplyServiceDefinition(w.ctx, feature.ApplyRequest{Project: nyc, Name: "s"}, feature.ServiceSpec{Features: []string{f}})
		refused(t, err, fault.Invalid)
	}
	if views, err := w.Views(w.ctx, nyc, "", 0); err != nil || len(views) != 1 {
		t.Errorf("after refusals: %v %v", views, err)
	}
}

func TestNothingHappensWithoutPermission(t *testing.T) {
	w := weather(t)
	w.mustMaterialise("weather", w.now)
	spine := feature.Source{Dataset: "weather"}
	for action, calls := range map[policy.Action]map[string]func() error{
		feature.ActionApply: {
			"entity": func() error {
				_, _, err := w.ApplyEntity(w.ctx, feature.ApplyRequest{Project: nyc, Name: "x"}, feature.EntitySpec{})
				return err
			},
			"view": func() error {
				_, _, err := w.ApplyView(w.ctx, feature.ApplyRequest{Project: nyc, Name: "x"}, weatherSpec)
				return err
			},
			"service": func() error {
				_, _, err := w.ApplyServiceDefinition(w.ctx, feature.ApplyRequest{Project: nyc, Name: "x"}, feature.ServiceSpec{Features: []string{"weather"}})
				return err
			},
			"promote": func() error { _, err := w.Promote(w.ctx, nyc, feature.ViewKind, "weather", "prod"); return err },
		},
		feature.ActionRead: {
			"view":      func() error { _, err := w.View(w.ctx, nyc, "weather"); return err },
			"views":     func() error { _, err := w.Views(w.ctx, nyc, "", 0); return err },
			"versions":  func() error { _, err := w.Versions(w.ctx, nyc, feature.ViewKind, "weather", 0, 0); return err },
			"runs":      func() error { _, err := w.Runs(w.ctx, nyc, "weather", "", 0); return err },
			"freshness": func() error { _, err := w.Freshness(w.ctx, nyc, "weather"); return err },
			"lineage":   func() error { _, err := w.Lineage(w.ctx, nyc, "weather"); return err },
			"training":  func() error { _, err := w.TrainingSet(w.ctx, nyc, "x@1"); return err },
		},
		feature.ActionMaterialise: {
			"run": func() error {
				_, err := w.Materialise(w.ctx, feature.MaterialiseRequest{Project: nyc, View: "weather"})
				return err
			},
			"cancel": func() error { _, err := w.CancelRun(w.ctx, nyc, "fmr_01J9Z6KQ0000000000000000"); return err },
			"clear":  func() error { return w.Clear(w.ctx, nyc, "weather") },
		},
		feature.ActionOnline: {
			"online": func() error {
				_, err := w.Online(w.ctx, feature.OnlineRequest{Project: nyc, Selection: feature.Selection{Features: []string{"weather"}}, Entities: origin("EWR")})
				return err
			},
		},
		feature.ActionHistory: {
			"as of": func() error {
				_, err := w.Online(w.ctx, feature.OnlineRequest{Project: nyc, Selection: feature.Selection{Features: []string{"weather"}}, Entities: origin("EWR"), AsOf: at(1)})
				return err
			},
			"training set": func() error {
				_, err := w.MakeTrainingSet(w.ctx, feature.TrainingSetRequest{Project: nyc, Name: "x", Spine: spine, Timestamp: "time", Selection: feature.Selection{Features: []string{"weather"}, FullNames: true}})
				return err
			},
		},
	} {
		w.gates.refuse = map[policy.Action]bool{action: true}
		for name, call := range calls {
			err := call()
			if !fault.Is(err, fault.PermissionDenied) || !strings.Contains(err.Error(), string(action)) {
				t.Errorf("%s without %s: %v", name, action, err)
			}
		}
	}
}

// spine is a table of flights with a label.
var spineCols = []col{{"origin", value.String}, {"departs", value.Timestamp}, {"late", value.Bool}}

func TestTrainingSetKnowsOnlyThePast(t *testing.T) {
	w := weather(t)
	w.data.put("flights", table{spineCols, [][]value.Value{
		{str("JFK"), ts(0.5), value.OfBool(true)},    // before JFK's first observation
		{str("EWR"), ts(1), value.OfBool(false)},     // at the second's very instant
		{str("EWR"), ts(4), value.OfBool(true)},      // at the end of the TTL
		{str("EWR"), ts(4.0001), value.OfBool(true)}, // past it
		{null, ts(1), value.OfBool(true)},
		{str("LGA"), ts(1), value.OfBool(true)},
		{str("EWR"), ts(0.9), value.OfBool(true)},
		{str("EWR"), ts(9), value.OfBool(true)},
	}})
	w.data.queries["SELECT origin, departs, late FROM flights"] = query{tables: []string{"flights"}, run: func(in map[string]table) table { return in["flights"] }}
	w.data.put("weather", weatherRows()) // a newer version, which is what unpinned views mean
	set, err := w.MakeTrainingSet(w.ctx, feature.TrainingSetRequest{
		Project: nyc, Name: "delays", Spine: feature.Source{SQL: "SELECT origin, departs, late FROM flights;\n"}, Timestamp: "departs", Labels: []string{"late"},
		Selection: feature.Selection{Features: []string{"weather:temp", "weather:humid"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	expect(t, w.data.show(t, set.Dataset), []string{
		"origin, departs, late, temp, humid",
		"JFK, 2013-01-01T00:30:00Z, true, NULL, NULL",
		"EWR, 2013-01-01T01:00:00Z, false, 11, NULL",
		"EWR, 2013-01-01T04:00:00Z, true, 11, NULL",
		"EWR, 2013-01-01T04:00:00.36Z, true, NULL, NULL",
		"NULL, 2013-01-01T01:00:00Z, true, NULL, NULL",
		"LGA, 2013-01-01T01:00:00Z, true, NULL, NULL",
		"EWR, 2013-01-01T00:54:00Z, true, 10, 50",
		"EWR, 2013-01-01T09:00:00Z, true, 18, 58",
	})
	v, err := w.data.find("delays")
	if err != nil {
		t.Fatal(err)
	}
	expect(t, v.derived.Parents, []string{"flights@1", "weather@2"})
	var text feature.TrainingSet
	if err := json.Unmarshal([]byte(v.derived.Text), &text); err != nil || text.Views[0].Digest == "" || v.derived.Digest == "" {
		t.Errorf("the definition says %+v, %v", text, err)
	}
	kept, err := w.TrainingSet(w.ctx, nyc, "delays@1")
	if err != nil {
		t.Fatal(err)
	}
	expect(t, kept, set)
	expect(t, kept.Views[0].Inputs[0].Dataset, "weather@2")
	expect(t, kept.Views[0].View, "weather@1")
	l, err := w.Lineage(w.ctx, nyc, "weather")
	if err != nil || len(l.TrainingSets) != 1 || l.TrainingSets[0].Dataset != "delays@1" || l.Sources["weather"] != "weather" {
		t.Errorf("lineage %+v, %v", l, err)
	}
}

func TestServiceKeepsItsVersions(t *testing.T) {
	w := weather(t)
	apply := func() (feature.ServiceDefinition, project.Change) {
		b, change, err := w.ApplyServiceDefinition(w.ctx, feature.ApplyRequest{Project: nyc, Name: "delay"}, feature.ServiceSpec{Features: []string{"weather:humid", "weather:temp"}})
		if err != nil {
			t.Fatal(err)
		}
		return b, change
	}
	b, _ := apply()
	expect(t, b.Selected, []string{"weather@1:humid", "weather@1:temp"})
	shorter := weatherSpec
	shorter.TTL = "1h"
	w.view("weather", shorter)
	w.mustMaterialise("weather@1", w.now)
	a, err := w.Online(w.ctx, feature.OnlineRequest{Project: nyc, Selection: feature.Selection{Service: "delay"}, Entities: origin("EWR"), AsOf: at(10)})
	if err != nil {
		t.Fatal(err)
	}
	expect(t, a.Views, []string{"weather@1"})
	expect(t, a.Service, "delay@1")
	expect(t, []string{a.Columns[0].Name, a.Columns[1].Name}, []string{"humid", "temp"})
	if b, change := apply(); b.Version != 2 || change != project.Updated || b.Selected[0] != "weather@2:humid" {
		t.Errorf("applied again: %v %s", b, change)
	}
	if b, change := apply(); b.Version != 2 || change != project.Unchanged {
		t.Errorf("and again: %v %s", b, change)
	}
}

func TestOnlineStatuses(t *testing.T) {
	w := weather(t)
	_, err := w.Online(w.ctx, feature.OnlineRequest{Project: nyc, Selection: feature.Selection{Features: []string{"weather"}}, Entities: origin("EWR")})
	refused(t, err, fault.Conflict, "not online", "falaj feature materialise weather@1")
	w.now = at(8)
	run := w.mustMaterialise("weather", w.now)
	if run.Rows != 4 || !run.Newest.Equal(at(8)) || run.Inputs[0].Dataset != "weather@1" {
		t.Errorf("run %+v", run)
	}

	features := []string{"weather:humid", "weather:temp"}
	w.now = at(11) // the end of the TTL
	expect(t, w.ask(time.Time{}, features, origin("EWR", "JFK", "LGA", nil, "EWR")...), []string{
		"58/PRESENT | 18/PRESENT", "NULL/OUTSIDE_MAX_AGE | NULL/OUTSIDE_MAX_AGE", "NULL/NOT_FOUND | NULL/NOT_FOUND",
		"NULL/NOT_FOUND | NULL/NOT_FOUND", "58/PRESENT | 18/PRESENT",
	})
	w.now = at(11).Add(time.Microsecond)
	expect(t, w.ask(time.Time{}, features, origin("EWR")...), []string{"NULL/OUTSIDE_MAX_AGE | NULL/OUTSIDE_MAX_AGE"})
	expect(t, w.ask(at(4), features, origin("EWR", "JFK")...), []string{"NULL/NULL_VALUE | 11/PRESENT", "51/PRESENT | 21/PRESENT"})
	expect(t, w.ask(at(0.5), features, origin("EWR", "JFK")...), []string{"50/PRESENT | 10/PRESENT", "NULL/NOT_FOUND | NULL/NOT_FOUND"})
	if got := w.ask(time.Time{}, features); len(got) != 0 {
		t.Errorf("no entities: %v", got)
	}
	// A row that is not there has no time.
	a, err := w.Online(w.ctx, feature.OnlineRequest{Project: nyc, Selection: feature.Selection{Features: features}, Entities: origin("EWR", "JFK", "LGA")})
	if err != nil {
		t.Fatal(err)
	}
	times, err := json.Marshal(a.Columns[0].EventTimes)
	if err != nil {
		t.Fatal(err)
	}
	expect(t, string(times), `["2013-01-01T08:00:00Z","2013-01-01T01:00:00Z",null]`)

	for name, c := range map[string]struct {
		req   feature.OnlineRequest
		kind  fault.Kind
		words string
	}{
		"unknown key":  {feature.OnlineRequest{Selection: feature.Selection{Features: features}, Entities: []map[string]any{{"origni": "EWR"}}}, fault.Invalid, `did you mean "origin"?`},
		"no key":       {feature.OnlineRequest{Selection: feature.Selection{Features: features}, Entities: []map[string]any{{}}}, fault.Invalid, `join key "origin"`},
		"wrong type":   {feature.OnlineRequest{Selection: feature.Selection{Features: features}, Entities: origin(7.0)}, fault.Invalid, "7 is not a string"},
		"no feature":   {feature.OnlineRequest{Selection: feature.Selection{Features: []string{"weather:tmp"}}}, fault.NotFound, `did you mean "temp"?`},
		"no service":   {feature.OnlineRequest{Selection: feature.Selection{Service: "x"}}, fault.NotFound, `"x"`},
		"nothing":      {feature.OnlineRequest{}, fault.Invalid, "no features"},
		"both":         {feature.OnlineRequest{Selection: feature.Selection{Service: "x", Features: features}}, fault.Invalid, "one of them"},
		"twice":        {feature.OnlineRequest{Selection: feature.Selection{Features: []string{"weather:temp", "weather"}}}, fault.Invalid, "duplicate feature"},
		"too many":     {feature.OnlineRequest{Selection: feature.Selection{Features: features}, Entities: make([]map[string]any, 10_001)}, fault.TooLarge, "10000"},
		"another's":    {feature.OnlineRequest{Project: "la", Selection: feature.Selection{Features: features}, Entities: origin("EWR")}, fault.NotFound, "project la"},
		"ragged":       {feature.OnlineRequest{Selection: feature.Selection{Features: features}, Columns: []feature.EntityColumn{{Name: "origin", Values: []any{"EWR"}}, {Name: "origin"}}}, fault.Invalid, "has 0 values"},
		"no column":    {feature.OnlineRequest{Selection: feature.Selection{Features: features}, Columns: []feature.EntityColumn{{Name: "origni", Values: []any{"EWR"}}}}, fault.Invalid, `did you mean "origin"?`},
		"many columns": {feature.OnlineRequest{Selection: feature.Selection{Features: features}, Columns: []feature.EntityColumn{{Name: "origin", Values: make([]any, 10_001)}}}, fault.TooLarge, "10000"},
		"bad ref":      {feature.OnlineRequest{Selection: feature.Selection{Features: []string{"../weather:temp"}}}, fault.Invalid, "is not a feature"},
		"no such view": {feature.OnlineRequest{Selection: feature.Selection{Features: []string{"weather@9:temp"}}}, fault.NotFound, "weather@9"},
	} {
		t.Run(name, func(t *testing.T) {
			if c.req.Project == "" {
				c.req.Project = nyc
			}
			_, err := w.Online(w.ctx, c.req)
			refused(t, err, c.kind, c.words)
		})
	}
}

// TestEntitiesInColumns: entities in columns are answered as those in rows.
func TestEntitiesInColumns(t *testing.T) {
	w := weather(t)
	w.mustMaterialise("weather", w.now)
	rapid.Check(t, func(t *rapid.T) {
		origins := rapid.SliceOfN(rapid.SampledFrom([]any{"EWR", "JFK", "LGA", nil}), 1, 20).Draw(t, "origins")
		r := feature.OnlineRequest{Project: nyc, Selection: feature.Selection{Features: []string{"weather"}}, AsOf: at(8), Entities: origin(origins...)}
		rows, err := w.Online(w.ctx, r)
		if err != nil {
			t.Fatal(err)
		}
		r.Entities, r.Columns = nil, []feature.EntityColumn{{Name: "other", Values: make([]any, len(origins))}, {Name: "origin", Values: origins}}
		r.Loose = true
		columns, err := w.Online(w.ctx, r)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(rows, columns); diff != "" {
			t.Fatalf("(-rows +columns):\n%s", diff)
		}
	})
}

// Keys of other types come as JSON and as text.
func TestKeysOfSeveralTypes(t *testing.T) {
	w := newWorld(t)
	cols := []col{{"route", value.Int64}, {"day", value.Timestamp}, {"time", value.Timestamp}, {"n", value.Int64}}
	w.data.put("counts", table{cols, [][]value.Value{{value.OfInt(7), ts(0), ts(0), value.OfInt(1)}, {value.OfInt(8), ts(0), ts(0), value.OfInt(2)}}})
	w.entity("route", "int64")
	w.entity("day", "timestamp")
	w.view("counts", feature.ViewSpec{Source: feature.Source{Dataset: "counts"}, Entities: []string{"route", "day"}, Timestamp: "time", Features: []feature.FieldSpec{{Name: "n", Type: "int64"}}})
	w.mustMaterialise("counts", w.now)
	day := "2013-01-01T00:00:00Z"
	expect(t, w.ask(time.Time{}, []string{"counts:n"},
		map[string]any{"route": 7.0, "day": day}, map[string]any{"route": json.Number("8"), "day": day},
		map[string]any{"route": "7", "day": "2013-01-01T02:00:00+02:00"}, map[string]any{"route": 7.0},
	), []string{"1/PRESENT", "2/PRESENT", "1/PRESENT", "NULL/NOT_FOUND"})
}

func TestClassifiedReadsAreJournaledFirst(t *testing.T) {
	w := newWorld(t)
	w.data.put("weather", weatherRows(), func(v *version) { v.Classification = project.Confidential })
	w.entity("origin", "string")
	w.view("weather", weatherSpec)
	w.mustMaterialise("weather", w.now)
	w.ask(at(9), []string{"weather"}, origin("EWR", "JFK")...)
	if len(w.gates.entries) != 1 || w.gates.entries[0].Action != "feature.history" || w.gates.entries[0].Detail["entities"] != 2 {
		t.Errorf("journal %+v", w.gates.entries)
	}
	for _, v := range w.gates.entries[0].Detail {
		if strings.Contains(fmt.Sprint(v), "EWR") {
			t.Error("the journal holds a key")
		}
	}
	// It is named by a digest that takes the project's key, the same in every entry.
	ewr, err := w.ReadDigest(w.ctx, nyc, "origin", []string{"EWR"})
	if err != nil {
		t.Fatal(err)
	}
	lga, err := w.ReadDigest(w.ctx, nyc, "origin", []string{"LGA"})
	if err != nil {
		t.Fatal(err)
	}
	digests, _ := w.gates.entries[0].Detail["keys_digest"].([]string)
	if len(digests) != 2 || !slices.Contains(digests, ewr) || slices.Contains(digests, lga) {
		t.Errorf("digests %v, and that of EWR is %s", digests, ewr)
	}
	other, err := w.ReadDigest(w.ctx, "other", "origin", []string{"EWR"})
	if err == nil && other == ewr {
		t.Error("the digest is the same in another project")
	}
	_, err = w.ReadDigest(w.ctx, nyc, "origin", []string{"EWR", "JFK"})
	refused(t, err, fault.Invalid, "has 1 join keys")
	if !slices.Contains(w.gates.asked, "feature.history weather@1 confidential") {
		t.Errorf("asked %v", w.gates.asked)
	}
	w.gates.broken = fault.New(fault.Unavailable, "disk full")
	_, err = w.Online(w.ctx, feature.OnlineRequest{Project: nyc, Selection: feature.Selection{Features: []string{"weather"}}, Entities: origin("EWR")})
	refused(t, err, fault.Unavailable, "disk full")
}

func TestResidencyFollowsTheSource(t *testing.T) {
	w := newWorld(t)
	in := func(zones ...residency.Zone) func(*version) {
		return func(v *version) { v.Residency = residency.Of(zones...) }
	}
	w.data.put("weather", weatherRows(), in("DE"))
	w.entity("origin", "string")
	w.view("weather", weatherSpec)
	_, err := w.Materialise(w.ctx, feature.MaterialiseRequest{Project: nyc, View: "weather"})
	refused(t, err, fault.PermissionDenied, "feature view weather@1 is allowed only in DE")

	w.data.put("weather", weatherRows(), in("home", "DE"))
	w.mustMaterialise("weather", w.now)
	w.data.put("weather", weatherRows(), in("home", "AE"))
	w.mustMaterialise("weather", w.now.Add(time.Minute))
	f, err := w.Freshness(w.ctx, nyc, "weather")
	if err != nil || f.Residency.String() != "home" {
		t.Errorf("label of rows from both: %v %v", f.Residency, err)
	}
	w.ask(time.Time{}, []string{"weather"}, origin("EWR")...)
	last := w.gates.zones[len(w.gates.zones)-1]
	if last.Action != "feature.online" || last.Label.String() != "home" || last.Zone != residency.Home {
		t.Errorf("the door saw %+v", last)
	}

	// The spine may be in AE only, the features in home and AE: fine; with
	// features from DE there is no zone.
	w.data.put("flights", table{spineCols, nil}, in("AE"))
	train := func() error {
		_, err := w.MakeTrainingSet(w.ctx, feature.TrainingSetRequest{Project: nyc, Name: "delays", Spine: feature.Source{Dataset: "flights"}, Timestamp: "departs", Selection: feature.Selection{Features: []string{"weather"}}})
		return err
	}
	if err := train(); err != nil {
		t.Error(err)
	}
	w.data.put("weather", weatherRows(), in("DE"))
	refused(t, train(), fault.PermissionDenied, "flights@1 (AE)", "weather@4 (DE)")
}

func TestRejectedDataDoesNotTrain(t *testing.T) {
	w := weather(t)
	pinned := weatherSpec
	pinned.Source.Dataset = "weather@2"
	w.data.put("weather", weatherRows(), func(v *version) { v.rejected = true })
	_, _, err := w.ApplyView(w.ctx, feature.ApplyRequest{Project: nyc, Name: "bad"}, pinned)
	refused(t, err, fault.Conflict, "rejected")
	set, err := w.MakeTrainingSet(w.ctx, feature.TrainingSetRequest{Project: nyc, Name: "x", Spine: feature.Source{Dataset: "weather"}, Timestamp: "time", Selection: feature.Selection{Features: []string{"weather"}, FullNames: true}})
	if err != nil || set.Views[0].Inputs[0].Dataset != "weather@1" {
		t.Errorf("with the accepted version: %+v %v", set, err)
	}
}

func TestTrainingSetRefuses(t *testing.T) {
	w := weather(t)
	w.data.put("flights", table{spineCols, nil})
	w.data.put("named", table{append(slices.Clone(spineCols), col{"temp", value.Float64}), nil})
	ok := feature.TrainingSetRequest{Project: nyc, Name: "delays", Spine: feature.Source{Dataset: "flights"}, Timestamp: "departs", Selection: feature.Selection{Features: []string{"weather:temp"}}}
	for name, c := range map[string]struct {
		change func(*feature.TrainingSetRequest)
		words  []string
	}{
		"timestamp":    {func(r *feature.TrainingSetRequest) { r.Timestamp = "depart" }, []string{`"depart"`, `did you mean "departs"?`}},
		"no timestamp": {func(r *feature.TrainingSetRequest) { r.Timestamp = "" }, []string{"origin, departs, late"}},
		"not a time":   {func(r *feature.TrainingSetRequest) { r.Timestamp = "late" }, []string{"is bool and not timestamp"}},
		"label":        {func(r *feature.TrainingSetRequest) { r.Labels = []string{"lated"} }, []string{"a label", `did you mean "late"?`}},
		"key": {func(r *feature.TrainingSetRequest) {
			r.Spine.Dataset = "weather"
			r.Timestamp = "time"
			r.Features = []string{"byrow:temp"}
		}, []string{`"byrow"`}},
		"name":       {func(r *feature.TrainingSetRequest) { r.Name = "../x" }, []string{"training set name"}},
		"taken":      {func(r *feature.TrainingSetRequest) { r.Spine.Dataset = "named" }, []string{`column "temp" is in the features and in the spine`, "full feature names"}},
		"no spine":   {func(r *feature.TrainingSetRequest) { r.Spine = feature.Source{} }, []string{"dataset or sql"}},
		"no dataset": {func(r *feature.TrainingSetRequest) { r.Spine.Dataset = "none" }, []string{`"none"`}},
	} {
		t.Run(name, func(t *testing.T) {
			r := ok
			c.change(&r)
			_, err := w.MakeTrainingSet(w.ctx, r)
			refused(t, err, fault.Invalid, c.words...)
		})
	}
}

// longRows is more than one chunk of rows.
func longRows(n int) table {
	tb := table{cols: weatherCols}
	for i := range n {
		tb.rows = append(tb.rows, []value.Value{str(fmt.Sprintf("A%02d", i%7)), ts(float64(i)), num(float64(i)), null})
	}
	return tb
}

func TestMaterialisationResumes(t *testing.T) {
	w := newWorld(t)
	w.data.put("weather", longRows(55))
	w.entity("origin", "string")
	w.view("weather", weatherSpec)
	queue := func() feature.Run {
		t.Helper()
		r, err := w.Materialise(w.ctx, feature.MaterialiseRequest{Project: nyc, View: "weather", Until: w.now})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	r := queue()
	if again := queue(); again.ID != r.ID {
		t.Error("asking again makes a second run")
	}
	_, err := w.Materialise(w.ctx, feature.MaterialiseRequest{Project: nyc, View: "weather", Until: at(1)})
	refused(t, err, fault.Conflict, string(r.ID))

	// The server ends after the third of six chunks.
	ctx, cancel := context.WithCancel(w.ctx)
	chunks := 0
	w.driver.write = func() error {
		if chunks++; chunks == 4 {
			cancel()
			return ctx.Err()
		}
		return nil
	}
	if err := w.RunOnce(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("interrupted: %v", err)
	}
	if got, err := w.Run(w.ctx, nyc, r.ID); err != nil || got.State != feature.Running || got.Rows != 30 {
		t.Errorf("after the interruption: %s, %d rows, %v", got.State, got.Rows, err)
	}
	// What is there is served meanwhile.
	if got := w.ask(at(0), []string{"weather:temp"}, origin("A00")...); got[0] != "0/PRESENT" {
		t.Errorf("during the materialisation: %v", got)
	}
	f, err := w.Freshness(w.ctx, nyc, "weather")
	if err != nil || !f.Materialised || !f.Watermark.IsZero() || f.Last.State != feature.Running {
		t.Errorf("freshness during it: %+v %v", f, err)
	}

	w.driver.write, w.driver.rows = nil, 0
	if err := w.RunOnce(w.ctx); err != nil {
		t.Fatal(err)
	}
	done, err := w.WaitRun(w.ctx, nyc, r.ID)
	if err != nil || done.State != feature.Succeeded || done.Rows != 55 || w.driver.rows != 25 {
		t.Errorf("resumed: %s, %d rows, %d of them now, %v", done.State, done.Rows, w.driver.rows, err)
	}
	f, err = w.Freshness(w.ctx, nyc, "weather")
	if err != nil || !f.Watermark.Equal(w.now) || !f.Newest.Equal(at(54)) || f.Lag != 0 {
		t.Errorf("freshness after it: %+v %v", f, err)
	}
	w.now = w.now.Add(time.Hour)
	if all, err := w.Freshnesses(w.ctx, nyc); err != nil || len(all) != 1 || all[0].Lag != time.Hour {
		t.Errorf("an hour later: %+v %v", all, err)
	}

	// Doing it again changes nothing.
	before := w.ask(at(30), []string{"weather:temp"}, origin("A00", "A01", "A02")...)
	w.mustMaterialise("weather", w.now)
	expect(t, w.ask(at(30), []string{"weather:temp"}, origin("A00", "A01", "A02")...), before)
}

// A source that gives other rows when it is read again is written from the
// beginning.
func TestMaterialisationNoticesAnotherSource(t *testing.T) {
	w := newWorld(t)
	w.data.put("weather", longRows(55))
	w.entity("origin", "string")
	rows := longRows(55)
	w.data.queries["SELECT random()"] = query{tables: []string{"weather"}, run: func(map[string]table) table { return rows }}
	spec := weatherSpec
	spec.Source = feature.Source{SQL: "SELECT random()"}
	w.view("weather", spec)
	chunks := 0
	w.driver.write = func() error {
		if chunks++; chunks == 4 {
			return fault.New(fault.Unavailable, "disk away")
		}
		return nil
	}
	r := w.materialise("weather", w.now)
	if r.State != feature.Queued || r.Rows != 30 || r.Failures != 1 || !strings.Contains(r.Error, "disk away") {
		t.Fatalf("a passing error: %+v", r)
	}
	rows.rows[0][2] = num(99)
	w.driver.rows = 0
	var err error
	for range 5 {
		w.now = w.now.Add(time.Minute)
		if err := w.RunOnce(w.ctx); err != nil {
			t.Fatal(err)
		}
		if r, err = w.Run(w.ctx, nyc, r.ID); err != nil {
			t.Fatal(err)
		}
	}
	if r.State != feature.Succeeded || r.Rows != 55 || w.driver.rows != 55 {
		t.Errorf("%s with %d rows, %d written: %s", r.State, r.Rows, w.driver.rows, r.Error)
	}
	if got := w.ask(at(0), []string{"weather:temp"}, origin("A00")...); got[0] != "99/PRESENT" {
		t.Errorf("the row that changed: %v", got)
	}
}

// A store that is away for minutes, or a disk that is full, holds a run up: what was
// written is not written again, and answers go on as far as the store has them.
func TestMaterialisationWaitsForTheStore(t *testing.T) {
	for name, away := range map[string]error{
		"Redis is gone": fault.New(fault.Unavailable, "Redis is unavailable"),
		"a full disk":   fault.New(fault.Exhausted, "the disk of the online feature store is full").WithHint("Free disk space."),
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.data.put("weather", longRows(55))
			w.entity("origin", "string")
			w.view("weather", weatherSpec)
			chunks, gone := 0, w.now
			w.driver.write = func() error {
				if chunks++; chunks > 3 && w.now.Sub(gone) < 5*time.Minute {
					return away
				}
				return nil
			}
			r, err := w.Materialise(w.ctx, feature.MaterialiseRequest{Project: nyc, View: "weather", Until: w.now})
			if err != nil {
				t.Fatal(err)
			}
			for range 600 { // seconds
				if err := w.RunOnce(w.ctx); err != nil {
					t.Fatal(err)
				}
				if r, err = w.Run(w.ctx, nyc, r.ID); err != nil {
					t.Fatal(err)
				}
				if r.State != feature.Queued {
					break
				}
				if r.Rows != 30 || !strings.Contains(r.Error, away.Error()) {
					t.Fatalf("meanwhile: %+v", r)
				}
				w.now = w.now.Add(time.Second)
			}
			if r.State != feature.Succeeded || r.Rows != 55 || w.now.Sub(gone) > 7*time.Minute {
				t.Errorf("after %v: %+v", w.now.Sub(gone), r)
			}
			// Three chunks of ten before, those of 25 rows after, and one that was refused, again and again.
			if tried := chunks - 6; w.driver.rows != 55+10*tried {
				t.Errorf("%d rows were sent to the store in %d chunks", w.driver.rows, chunks)
			}
			expect(t, w.ask(at(54), []string{"weather:temp"}, origin("A05")...), []string{"54/PRESENT"})
		})
	}
}

func TestMaterialisationFails(t *testing.T) {
	w := weather(t)
	w.driver.write = func() error { return fault.New(fault.Internal, "broken") }
	r := w.materialise("weather", w.now)
	if r.State != feature.Failed || !strings.Contains(r.Error, "broken") {
		t.Errorf("%+v", r)
	}
	// A passing error is tried twelve times.
	w.driver.write = func() error { return fault.New(fault.Unavailable, "busy") }
	r = w.materialise("weather", w.now)
	for n := 1; n < 12; n++ {
		if r.State != feature.Queued || r.Failures != n {
			t.Fatalf("failure %d: %+v", n, r)
		}
		w.now = w.now.Add(time.Hour)
		if err := w.RunOnce(w.ctx); err != nil {
			t.Fatal(err)
		}
		var err error
		if r, err = w.Run(w.ctx, nyc, r.ID); err != nil {
			t.Fatal(err)
		}
	}
	if r.State != feature.Failed {
		t.Errorf("after twelve failures: %+v", r)
	}
	w.driver.write = nil
	w.keys.Destroy("nyc", "feature/weather")
	if r := w.materialise("weather", w.now); r.State != feature.Failed || !strings.Contains(r.Error, "destroyed") {
		t.Errorf("with a destroyed key: %+v", r)
	}
	for _, req := range []feature.MaterialiseRequest{
		{Until: w.now.Add(time.Hour)}, {From: at(2), Until: at(1)},
	} {
		req.Project, req.View = nyc, "weather"
		_, err := w.Materialise(w.ctx, req)
		refused(t, err, fault.Invalid)
	}
}

func TestMaterialisationIsCancelled(t *testing.T) {
	w := newWorld(t)
	w.data.put("weather", longRows(55))
	w.entity("origin", "string")
	w.view("weather", weatherSpec)
	r, err := w.Materialise(w.ctx, feature.MaterialiseRequest{Project: nyc, View: "weather", Until: w.now})
	if err != nil {
		t.Fatal(err)
	}
	chunks := 0
	w.driver.write = func() error {
		if chunks++; chunks == 2 {
			if _, err := w.CancelRun(w.ctx, nyc, r.ID); err != nil {
				t.Error(err)
			}
			refused(t, w.Clear(w.ctx, nyc, "weather"), fault.Conflict, "being materialised")
		}
		return nil
	}
	if err := w.RunOnce(w.ctx); err != nil {
		t.Fatal(err)
	}
	r, err = w.Run(w.ctx, nyc, r.ID)
	if err != nil || r.State != feature.Cancelled || chunks != 2 {
		t.Errorf("%s after %d chunks, %v", r.State, chunks, err)
	}
	if err := w.Clear(w.ctx, nyc, "weather"); err != nil {
		t.Fatal(err)
	}
	_, err = w.Online(w.ctx, feature.OnlineRequest{Project: nyc, Selection: feature.Selection{Features: []string{"weather"}}, Entities: origin("A00")})
	refused(t, err, fault.Conflict, "not online")
	w.driver.write = nil
	w.mustMaterialise("weather", at(0)) // one row only: the others are really gone
	if got := w.ask(at(20), []string{"weather:temp"}, origin("A01")...); got[0] != "NULL/NOT_FOUND" {
		t.Errorf("after clearing: %v", got)
	}
}

// watched is data that tells what it is asked for.
type watched struct {
	feature.Data
	open func(ctx context.Context, ref string) error
}

func (d watched) Open(ctx context.Context, p project.Name, ref string, columns []string) (array.RecordReader, error) {
	if err := d.open(ctx, ref); err != nil {
		return nil, err
	}
	return d.Data.Open(ctx, p, ref, columns)
}

// Each attempt has a limit of its own: the next one's time begins with it.
func TestEachAttemptHasItsOwnTime(t *testing.T) {
	w := weather(t)
	w.data.put("wind", weatherRows())
	spec := weatherSpec
	spec.Source.Dataset = "wind"
	w.view("wind", spec)
	var opened []context.Context
	w.configure(func(c *feature.Config) {
		c.Data = watched{w.data, func(ctx context.Context, ref string) error {
			if len(opened) > 0 && opened[0].Err() == nil {
				t.Errorf("%s is read while the attempt at the other one goes on", ref)
			}
			opened = append(opened, ctx)
			return nil
		}}
	})
	if _, err := w.Materialise(w.ctx, feature.MaterialiseRequest{Project: nyc, View: "weather"}); err != nil {
		t.Fatal(err)
	}
	w.mustMaterialise("wind", w.now)
	if len(opened) != 2 {
		t.Fatalf("%d sources are read, want 2", len(opened))
	}
	first, ok1 := opened[0].Deadline()
	second, ok2 := opened[1].Deadline()
	if !ok1 || !ok2 || !second.After(first) {
		t.Errorf("attempts may last until %v (%t) and %v (%t)", first, ok1, second, ok2)
	}

	// What does not end in its time goes on in another attempt.
	w.configure(func(c *feature.Config) { c.AttemptTime = time.Nanosecond })
	r, err := w.Materialise(w.ctx, feature.MaterialiseRequest{Project: nyc, View: "weather", Until: at(200)})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.RunOnce(w.ctx); err != nil {
		t.Fatal(err)
	}
	if r, err = w.Run(w.ctx, nyc, r.ID); err != nil || r.State != feature.Queued || r.Failures != 1 || !strings.Contains(r.Error, "exceeded the time limit of 1ns") {
		t.Errorf("%+v %v", r, err)
	}
	w.configure(func(*feature.Config) {})
	w.now = w.now.Add(time.Minute)
	if err := w.RunOnce(w.ctx); err != nil {
		t.Fatal(err)
	}
	if r, err = w.Run(w.ctx, nyc, r.ID); err != nil || r.State != feature.Succeeded {
		t.Errorf("%+v %v", r, err)
	}
}

// Cancelling ends what is being read, too.
func TestCancellingEndsTheAttempt(t *testing.T) {
	w := weather(t)
	var r feature.Run
	w.configure(func(c *feature.Config) {
		c.Data = watched{w.data, func(ctx context.Context, _ string) error {
			if _, err := w.CancelRun(w.ctx, nyc, r.ID); err != nil {
				t.Error(err)
			}
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(time.Minute):
				return errors.New("the attempt goes on")
			}
		}}
	})
	var err error
	if r, err = w.Materialise(w.ctx, feature.MaterialiseRequest{Project: nyc, View: "weather"}); err != nil {
		t.Fatal(err)
	}
	if err := w.RunOnce(w.ctx); err != nil {
		t.Fatal(err)
	}
	if r, err = w.Run(w.ctx, nyc, r.ID); err != nil || r.State != feature.Cancelled || r.Error != "" {
		t.Errorf("%+v %v", r, err)
	}
}

// The background loop does it, and those who wait hear of it.
func TestBackground(t *testing.T) {
	w := weather(t)
	bg := w.Background()
	if err := bg.Start(w.ctx); err != nil {
		t.Fatal(err)
	}
	r, err := w.Materialise(w.ctx, feature.MaterialiseRequest{Project: nyc, View: "weather"})
	if err != nil {
		t.Fatal(err)
	}
	if r, err = w.WaitRun(w.ctx, nyc, r.ID); err != nil || r.State != feature.Succeeded {
		t.Errorf("%+v %v", r, err)
	}
	if err := bg.Stop(w.ctx); err != nil {
		t.Error(err)
	}
}

func TestVerifyFindsADifference(t *testing.T) {
	w := weather(t)
	w.data.put("flights", table{spineCols, [][]value.Value{
		{str("EWR"), ts(1), null}, {str("EWR"), ts(9), null}, {str("JFK"), ts(2), null}, {null, ts(2), null}, {str("JFK"), ts(9), null},
	}})
	if _, err := w.MakeTrainingSet(w.ctx, feature.TrainingSetRequest{Project: nyc, Name: "delays", Spine: feature.Source{Dataset: "flights"}, Timestamp: "departs", Selection: feature.Selection{Features: []string{"weather"}}}); err != nil {
		t.Fatal(err)
	}
	_, err := w.Verify(w.ctx, feature.VerifyRequest{Project: nyc, View: "weather"})
	refused(t, err, fault.Conflict, "not online")
	w.mustMaterialise("weather", at(8.5))
	_, err = w.Verify(w.ctx, feature.VerifyRequest{Project: nyc, TrainingSet: "delays@1"})
	refused(t, err, fault.Conflict, "up to 2013-01-01T08:30:00Z", "extends to 2013-01-01T09:00:00Z")
	w.mustMaterialise("weather", at(9))
	for _, req := range []feature.VerifyRequest{{View: "weather"}, {TrainingSet: "delays@1"}} {
		req.Project = nyc
		report, err := w.Verify(w.ctx, req)
		if err != nil {
			t.Fatal(err)
		}
		expect(t, report, feature.Report{TrainingSet: "delays@1", Views: []string{"weather@1"}, Rows: 5, Values: 10, Present: 5})
	}

	// Somebody writes a row that the training set has not seen.
	packed, err := value.AppendRow(nil, []value.Value{num(12), num(50)})
	if err != nil {
		t.Fatal(err)
	}
	forged := online.Row{Key: value.AppendKey(nil, str("EWR")), Event: at(1).UnixMicro(), Created: online.NoCreated, Packed: packed}
	if err := w.online.Write(w.ctx, w.table("weather"), []online.Row{forged}); err != nil {
		t.Fatal(err)
	}
	report, err := w.Verify(w.ctx, feature.VerifyRequest{Project: nyc, View: "weather"})
	if err != nil || report.Mismatches != 2 {
		t.Fatalf("%+v %v", report, err)
	}
	first := report.Examples[0]
	if first.Row != 1 || first.Feature != "weather@1:temp" || first.Offline.Float() != 11 || first.Online.Float() != 12 {
		t.Errorf("example %+v", first)
	}
	for _, req := range []feature.VerifyRequest{{}, {TrainingSet: "a@1", View: "weather"}} {
		req.Project = nyc
		_, err := w.Verify(w.ctx, req)
		refused(t, err, fault.Invalid)
	}
	_, err = w.Verify(w.ctx, feature.VerifyRequest{Project: nyc, TrainingSet: "none@1"})
	refused(t, err, fault.NotFound)
}

// For any view and any spine, every value of the training set is what the online
// store answers as of the row's time: promise 4, over the real path.
func TestTrainingIsServing(t *testing.T) {
	db := storetest.SQLite(t, featuresql.Migrations)
	round := 0
	rapid.Check(t, func(rt *rapid.T) {
		round++
		w := newWorldOn(t, db)
		suffix := strconv.Itoa(round)
		micro := func(n int) value.Value { return value.OfTime(start.Add(time.Duration(n) * time.Microsecond)) }
		small := func(what string) value.Value { return micro(rapid.IntRange(0, 9).Draw(rt, what)) }
		maybe := func(v value.Value) value.Value {
			if rapid.IntRange(0, 7).Draw(rt, "null") == 0 {
				return value.Value{}
			}
			return v
		}
		typ := rapid.SampledFrom(featureTypes).Draw(rt, "type")
		rows := table{cols: []col{{"k", value.String}, {"time", value.Timestamp}, {"created", value.Timestamp}, {"x", value.Float64}, {"s", typ}}}
		for range rapid.IntRange(0, 40).Draw(rt, "rows") {
			rows.rows = append(rows.rows, []value.Value{
				maybe(str(rapid.SampledFrom([]string{"a", "b", "c"}).Draw(rt, "k"))), maybe(small("time")), maybe(small("created")),
				maybe(num(float64(rapid.IntRange(0, 3).Draw(rt, "x")))), maybe(drawOf(rt, typ)),
			})
		}
		spine := table{cols: []col{{"k", value.String}, {"at", value.Timestamp}}}
		for range rapid.IntRange(1, 20).Draw(rt, "spine") {
			spine.rows = append(spine.rows, []value.Value{maybe(str(rapid.SampledFrom([]string{"a", "b", "c", "d"}).Draw(rt, "k"))), micro(rapid.IntRange(-1, 12).Draw(rt, "at"))})
		}
		w.data.put("rows", rows)
		w.data.put("spine", spine)
		if _, _, err := w.ApplyEntity(w.ctx, feature.ApplyRequest{Project: nyc, Name: "k"}, feature.EntitySpec{}); err != nil {
			rt.Fatal(err)
		}
		spec := feature.ViewSpec{
			Description: suffix, Source: feature.Source{Dataset: "rows"}, Entities: []string{"k"}, Timestamp: "time",
			Features: []feature.FieldSpec{{Name: "x", Type: "float64"}, {Name: "s", Type: typ.String()}},
		}
		if rapid.Bool().Draw(rt, "has created") {
			spec.CreatedTimestamp = "created"
		}
		name := "v" + suffix
		w.view(name, spec)
		set, err := w.MakeTrainingSet(w.ctx, feature.TrainingSetRequest{Project: nyc, Name: "set", Spine: feature.Source{Dataset: "spine"}, Timestamp: "at", Selection: feature.Selection{Features: []string{name + ":" + rapid.SampledFrom([]string{"x", "s", "*"}).Draw(rt, "feature")}}})
		if err != nil {
			rt.Fatal(err)
		}
		// In two steps, so that the second overlaps the first.
		w.mustMaterialise(name, start.Add(time.Duration(rapid.IntRange(0, 9).Draw(rt, "until"))*time.Microsecond))
		w.mustMaterialise(name, w.now)
		report, err := w.Verify(w.ctx, feature.VerifyRequest{Project: nyc, TrainingSet: set.Dataset})
		if err != nil {
			rt.Fatal(err)
		}
		if report.Rows != len(spine.rows) || report.Mismatches != 0 {
			rt.Fatalf("report %+v", report)
		}
	})
}

// cut is the weather without the row of EWR at 8, and with another time of JFK's.
func cut() table {
	return table{weatherCols, [][]value.Value{
		{str("EWR"), ts(0), num(10), num(50)},
		{str("EWR"), ts(1), num(11), null},
		{str("JFK"), ts(2), num(21), num(51)},
	}}
}

// A row that a source no longer has, or has at another time, does not stay online.
func TestOnlineRowsGoWithTheirSource(t *testing.T) {
	w := weather(t)
	temp := []string{"weather:temp"}
	w.mustMaterialise("weather", at(100))
	old := w.table("weather")
	expect(t, w.ask(at(9), temp, origin("EWR")...), []string{"18/PRESENT"})
	w.data.put("weather", cut())

	// A part of it cannot take the place of everything, nor can less.
	_, err := w.Materialise(w.ctx, feature.MaterialiseRequest{Project: nyc, View: "weather", From: at(5), Until: at(101)})
	refused(t, err, fault.Conflict, "weather@1 → weather@2", "without from")
	_, err = w.Materialise(w.ctx, feature.MaterialiseRequest{Project: nyc, View: "weather", Until: at(50)})
	refused(t, err, fault.Conflict, "reach 2013-01-05T04:00:00Z", "falaj feature clear weather@1")

	// Until the new rows are complete, the old ones answer.
	w.driver.write = func() error {
		expect(t, w.ask(at(9), temp, origin("EWR")...), []string{"18/PRESENT"})
		return nil
	}
	w.mustMaterialise("weather", at(100))
	w.driver.write = nil
	expect(t, w.ask(at(3), temp, origin("EWR", "JFK")...), []string{"11/PRESENT", "21/PRESENT"})
	expect(t, w.ask(at(9), temp, origin("EWR")...), []string{"NULL/OUTSIDE_MAX_AGE"})
	expect(t, w.ask(at(1), temp, origin("JFK")...), []string{"NULL/NOT_FOUND"})
	f, err := w.Freshness(w.ctx, nyc, "weather")
	if err != nil || f.Inputs[0].Dataset != "weather@2" || !f.Watermark.Equal(at(100)) || !f.Newest.Equal(at(2)) {
		t.Errorf("freshness %+v %v", f, err)
	}

	// Reads that began before may end; then the old rows go.
	left := func() online.Status {
		t.Helper()
		a, err := w.online.Read(w.ctx, old, online.Query{Keys: [][]byte{value.AppendKey(nil, str("EWR"))}, At: w.now})
		if err != nil {
			t.Fatal(err)
		}
		return a[0].Status
	}
	for _, c := range []struct {
		after time.Duration
		want  online.Status
	}{{59 * time.Second, online.Present}, {time.Second, online.NotFound}} {
		w.now = w.now.Add(c.after)
		if err := w.RunOnce(w.ctx); err != nil {
			t.Fatal(err)
		}
		if got := left(); got != c.want {
			t.Errorf("%s later, a row of the old generation is %s, want %s", c.after, got, c.want)
		}
	}
	drops := len(w.driver.drops)
	if err := w.RunOnce(w.ctx); err != nil || len(w.driver.drops) != drops {
		t.Errorf("swept twice: %v", err)
	}

	// The same content under another number adds to what is there.
	w.data.put("weather", cut())
	w.mustMaterialise("weather", at(101))
	f2, err := w.Freshness(w.ctx, nyc, "weather")
	if err != nil || f2.Generation != f.Generation || f2.Inputs[0].Dataset != "weather@3" || !f2.Watermark.Equal(at(101)) {
		t.Errorf("freshness %+v %v", f2, err)
	}
}

// What a materialisation over other inputs has written does not stay when it
// fails or is cancelled, and an interruption does not lose it.
func TestAbandonedGenerations(t *testing.T) {
	w := newWorld(t)
	w.data.put("weather", longRows(55))
	w.entity("origin", "string")
	w.view("weather", weatherSpec)
	w.mustMaterialise("weather", at(100))
	before := w.table("weather")
	ask := func() []string { return w.ask(at(54), []string{"weather:temp"}, origin("A05")...) }
	was := ask()
	other := longRows(55)
	for i := range other.rows {
		other.rows[i][2] = num(float64(1000 + i))
	}
	w.data.put("weather", other)

	// 1. It fails.
	chunks := 0
	w.driver.write = func() error {
		if chunks++; chunks == 3 {
			return fault.New(fault.Internal, "broken")
		}
		return nil
	}
	if r := w.materialise("weather", at(100)); r.State != feature.Failed {
		t.Fatalf("%+v", r)
	}
	expect(t, ask(), was)

	// 2. It is cancelled.
	r, err := w.Materialise(w.ctx, feature.MaterialiseRequest{Project: nyc, View: "weather", Until: at(100)})
	if err != nil {
		t.Fatal(err)
	}
	chunks = 0
	w.driver.write = func() error {
		if chunks++; chunks == 2 {
			_, err := w.CancelRun(w.ctx, nyc, r.ID)
			return err
		}
		return nil
	}
	if err := w.RunOnce(w.ctx); err != nil {
		t.Fatal(err)
	}
	w.driver.write = nil
	expect(t, ask(), was)
	w.now = w.now.Add(time.Minute)
	if err := w.RunOnce(w.ctx); err != nil || len(w.driver.drops) != 2*ofSubkeys {
		t.Errorf("%d tables are dropped, %v, want those of both generations", len(w.driver.drops), err)
	}
	expect(t, ask(), was)

	// 3. It is interrupted, and goes on in the same generation.
	ctx, cancel := context.WithCancel(w.ctx)
	chunks = 0
	w.driver.write = func() error {
		if chunks++; chunks == 4 {
			cancel()
			return ctx.Err()
		}
		return nil
	}
	if r, err = w.Materialise(w.ctx, feature.MaterialiseRequest{Project: nyc, View: "weather", Until: at(100)}); err != nil {
		t.Fatal(err)
	}
	if err := w.RunOnce(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("interrupted: %v", err)
	}
	expect(t, ask(), was)
	w.driver.write, w.driver.rows = nil, 0
	if err := w.RunOnce(w.ctx); err != nil {
		t.Fatal(err)
	}
	if r, err = w.Run(w.ctx, nyc, r.ID); err != nil || r.State != feature.Succeeded || r.Rows != 55 || w.driver.rows != 25 {
		t.Errorf("resumed: %+v, %d rows now, %v", r, w.driver.rows, err)
	}
	if got := ask(); got[0] != "1054/PRESENT" {
		t.Errorf("after it: %v", got)
	}
	if after := w.table("weather"); after == before {
		t.Error("the generation is the old one")
	}

	// Clearing removes what is read now, at once.
	current := w.table("weather")
	if err := w.Clear(w.ctx, nyc, "weather"); err != nil {
		t.Fatal(err)
	}
	a, err := w.online.Read(w.ctx, current, online.Query{Keys: [][]byte{value.AppendKey(nil, str("A05"))}, At: w.now})
	if err != nil || a[0].Status != online.NotFound {
		t.Errorf("after clearing: %v %v", a, err)
	}
}

// Old rows that cannot be removed hold up no materialisation, and no other old rows.
func TestOldRowsThatStayHoldUpNothing(t *testing.T) {
	w := weather(t)
	w.data.put("wind", weatherRows())
	spec := weatherSpec
	spec.Source.Dataset = "wind"
	w.view("wind", spec)
	for _, view := range []string{"weather", "wind"} {
		w.mustMaterialise(view, at(100))
		w.data.put(view, cut())
		w.mustMaterialise(view, at(100))
	}
	w.now = w.now.Add(time.Minute)
	stuck := errors.New("stuck")
	w.driver.drop = func() error {
		if len(w.driver.drops) == 1 {
			return stuck
		}
		return nil
	}
	r, err := w.Materialise(w.ctx, feature.MaterialiseRequest{Project: nyc, View: "weather", Until: at(101)})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.RunOnce(w.ctx); !errors.Is(err, stuck) {
		t.Errorf("the round says %v", err)
	}
	if len(w.driver.drops) != 1+ofSubkeys {
		t.Errorf("%d removals are tried, want the one that fails and the other", len(w.driver.drops))
	}
	if r, err = w.Run(w.ctx, nyc, r.ID); err != nil || r.State != feature.Succeeded {
		t.Errorf("%+v %v", r, err)
	}
	w.driver.drop = nil
	if err := w.RunOnce(w.ctx); err != nil || len(w.driver.drops) != 1+2*ofSubkeys {
		t.Errorf("later, %d removals, %v", len(w.driver.drops), err)
	}
}

func TestVerifyNamesInputsThatDiffer(t *testing.T) {
	w := weather(t)
	w.data.put("flights", table{spineCols, [][]value.Value{{str("EWR"), ts(9), null}, {str("JFK"), ts(3), null}}})
	train := func() {
		t.Helper()
		if _, err := w.MakeTrainingSet(w.ctx, feature.TrainingSetRequest{Project: nyc, Name: "delays", Spine: feature.Source{Dataset: "flights"}, Timestamp: "departs", Selection: feature.Selection{Features: []string{"weather:temp"}}}); err != nil {
			t.Fatal(err)
		}
	}
	verify := func(set string) feature.Report {
		t.Helper()
		r, err := w.Verify(w.ctx, feature.VerifyRequest{Project: nyc, TrainingSet: set})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	train()
	w.mustMaterialise("weather", at(100))
	if r := verify("delays@1"); r.Mismatches != 0 || len(r.Inputs) != 0 {
		t.Errorf("over the same version: %+v", r)
	}
	w.data.put("weather", cut())
	train()
	w.mustMaterialise("weather", at(100))
	if r := verify("delays@2"); r.Mismatches != 0 || len(r.Inputs) != 0 {
		t.Errorf("over the next version: %+v", r)
	}
	r := verify("delays@1")
	expect(t, r.Inputs, []feature.InputDifference{{View: "weather@1", Table: "weather", Offline: "weather@1", Online: "weather@2"}})
	if r.Mismatches != 1 {
		t.Errorf("against the older set: %+v", r)
	}
}

// The same on PostgreSQL, where the statements differ.
func TestOnPostgreSQL(t *testing.T) {
	w := newWorldOn(t, storetest.PostgreSQL(t, featuresql.Migrations))
	w.data.put("weather", weatherRows())
	w.entity("origin", "string")
	w.view("weather", weatherSpec)
	w.view("weather", weatherSpec)
	w.data.put("flights", table{spineCols, [][]value.Value{{str("EWR"), ts(1), null}}})
	set, err := w.MakeTrainingSet(w.ctx, feature.TrainingSetRequest{Project: nyc, Name: "delays", Spine: feature.Source{Dataset: "flights"}, Timestamp: "departs", Selection: feature.Selection{Features: []string{"weather"}}})
	if err != nil {
		t.Fatal(err)
	}
	w.mustMaterialise("weather", w.now)
	report, err := w.Verify(w.ctx, feature.VerifyRequest{Project: nyc, TrainingSet: set.Dataset})
	if err != nil || report.Mismatches != 0 || report.Present != 1 {
		t.Errorf("%+v %v", report, err)
	}
	if _, err := w.Promote(w.ctx, nyc, feature.ViewKind, "weather@1", "prod"); err != nil {
		t.Error(err)
	}
	if l, err := w.Lineage(w.ctx, nyc, "weather@prod"); err != nil || len(l.Materialised) != 1 || len(l.TrainingSets) != 1 {
		t.Errorf("lineage %+v %v", l, err)
	}
	w.data.put("weather", cut())
	w.mustMaterialise("weather", w.now)
	w.now = w.now.Add(time.Minute)
	if err := w.RunOnce(w.ctx); err != nil || len(w.driver.drops) != ofSubkeys {
		t.Errorf("%d tables are dropped, %v", len(w.driver.drops), err)
	}
	if err := w.Clear(w.ctx, nyc, "weather"); err != nil {
		t.Error(err)
	}
	if views, err := w.Views(w.ctx, nyc, "", 10); err != nil || len(views) != 1 {
		t.Errorf("views %v %v", views, err)
	}
	if all, err := w.Freshnesses(w.ctx, nyc); err != nil || len(all) != 0 {
		t.Errorf("after clearing: %v %v", all, err)
	}
}

// Who may no longer read the data, or not at all use the features, reads no further.
func TestHistoryAsksAgain(t *testing.T) {
	w := weather(t)
	w.data.put("flights", table{spineCols, nil})
	h, err := w.History(w.ctx, feature.HistoryRequest{
		Project: nyc, Rows: table{spineCols, nil}.reader(), Timestamp: "departs", Selection: feature.Selection{Features: []string{"weather:temp"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer h.Release()
	if err := h.Reauthorize(w.ctx); err != nil {
		t.Error(err)
	}
	w.data.closed = "weather@1"
	refused(t, h.Reauthorize(w.ctx), fault.PermissionDenied, "dataset.query")
}

// What a training set would be refused for is known before it is made.
func TestCheckHistory(t *testing.T) {
	w := weather(t)
	r := feature.HistoryRequest{Project: nyc, Timestamp: "departs", Selection: feature.Selection{Features: []string{"weather:temp"}}}
	if err := w.CheckHistory(w.ctx, r, table{spineCols, nil}.schema()); err != nil {
		t.Error(err)
	}
	refused(t, w.CheckHistory(w.ctx, r, table{spineCols[:1], nil}.schema()), fault.Invalid, "has no column")
	r.Features = []string{"wether:temp"}
	refused(t, w.CheckHistory(w.ctx, r, table{spineCols, nil}.schema()), fault.NotFound, "wether")
}
