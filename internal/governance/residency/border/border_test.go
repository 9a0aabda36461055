package border_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/policy/policytest"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/governance/residency/border"
	"github.com/falaj-ml/falaj/internal/governance/residency/residencysql"
	"github.com/falaj-ml/falaj/internal/store"
)

func zone(tb testing.TB, w *policytest.World, z residency.Zone, s residency.ZoneSpec) {
	tb.Helper()
	if _, _, err := w.Border.Apply(w.AsAdmin(tb.Context()), border.ZoneRequest{Zone: z, Spec: s}); err != nil {
		tb.Fatal(err)
	}
}

func TestZones(t *testing.T) {
	w := policytest.Open(t)
	w.Project(t, "flights")
	admin := w.AsAdmin(t.Context())
	viewer := identity.With(t.Context(), w.User(t, "vera", "flights", project.Viewer))
	local := identity.With(t.Context(), w.User(t, "lara", "flights", project.Admin))

	places, err := w.Border.Zones(viewer)
	if err != nil || len(places) != 1 || places[0].Zone != residency.Home || places[0].Trust != residency.Owned {
		t.Fatalf("at first there are %+v, %v", places, err)
	}
	spec := residency.ZoneSpec{Jurisdiction: "DE", Provider: "cloud"}
	if _, change, err := w.Border.Apply(admin, border.ZoneRequest{Zone: "DE", Spec: spec, DryRun: true}); err != nil || change != project.Created {
		t.Fatal(change, err)
	}
	if places, err := w.Border.Zones(viewer); err != nil || len(places) != 1 {
		t.Errorf("a dry run makes a zone: %+v, %v", places, err)
	}
	if _, _, err := w.Border.Apply(local, border.ZoneRequest{Zone: "DE", Spec: spec}); !fault.Is(err, fault.PermissionDenied) {
		t.Errorf("a project's admin makes a zone: %v", err)
	}
	p, change, err := w.Border.Apply(admin, border.ZoneRequest{Zone: "DE", Spec: spec})
	if err != nil || change != project.Created || p.Trust != residency.Shared || p.Revision != 1 {
		t.Fatalf("%+v, %v, %v", p, change, err)
	}
	if _, change, err := w.Border.Apply(admin, border.ZoneRequest{Zone: "DE", Spec: spec}); err != nil || change != project.Unchanged {
		t.Error(change, err)
	}
	spec.Trust = residency.Dedicated
	if p, change, err := w.Border.Apply(admin, border.ZoneRequest{Zone: "DE", Spec: spec}); err != nil || change != project.Updated || p.Revision != 2 {
		t.Error(p, change, err)
	}
	spec.Jurisdiction = "US"
	if _, _, err := w.Border.Apply(admin, border.ZoneRequest{Zone: "DE", Spec: spec}); !fault.Is(err, fault.Conflict) {
		t.Errorf("a zone moves to another jurisdiction: %v", err)
	}
	if _, _, err := w.Border.Apply(admin, border.ZoneRequest{Zone: "de"}); !fault.Is(err, fault.Conflict) {
		t.Errorf("zones that differ in case only: %v", err)
	}
	if _, _, err := w.Border.Apply(admin, border.ZoneRequest{Zone: "../DE"}); !fault.Is(err, fault.Invalid) {
		t.Error(err)
	}
	// home's jurisdiction is not known at first and can be said once.
	zone(t, w, residency.Home, residency.ZoneSpec{Jurisdiction: "AE", Trust: residency.Owned})
	if _, _, err := w.Border.Apply(admin, border.ZoneRequest{Zone: residency.Home, Spec: residency.ZoneSpec{Jurisdiction: "DE"}}); !fault.Is(err, fault.Conflict) {
		t.Error(err)
	}
	places, err = w.Border.Zones(viewer)
	if i := slices.IndexFunc(places, func(p residency.Place) bool { return p.Zone == residency.Home }); err != nil || i < 0 || places[i].Jurisdiction != "AE" {
		t.Error(places, err)
	}
	if _, err := w.Border.Zones(identity.With(t.Context(), w.User(t, "stranger", ""))); !fault.Is(err, fault.PermissionDenied) {
		t.Errorf("a stranger sees zones: %v", err)
	}
}

// shelf is a domain with labelled objects, kept in a table of its own so that
// the test sees what a rollback does.
type shelf struct{}

func newShelf(tb testing.TB, w *policytest.World) *shelf {
	tb.Helper()
	err := w.DB.Update(tb.Context(), "", func(ctx context.Context, tx *store.Tx) error {
		_, err := tx.NewRaw("CREATE TABLE test_shelf (name TEXT PRIMARY KEY, zones TEXT NOT NULL)").Exec(ctx)
		return err
	})
	if err != nil {
		tb.Fatal(err)
	}
	s := &shelf{}
	w.Border.Register("dataset", s)
	return s
}

func (s *shelf) put(tb testing.TB, w *policytest.World, name string, l residency.Label) {
	tb.Helper()
	err := w.DB.Update(tb.Context(), "flights", func(ctx context.Context, tx *store.Tx) error {
		return s.Relabel(ctx, tx, "flights", name, l)
	})
	if err != nil {
		tb.Fatal(err)
	}
}

func (s *shelf) label(tb testing.TB, w *policytest.World, name string) (l residency.Label) {
	tb.Helper()
	err := w.DB.View(tb.Context(), func(ctx context.Context, tx *store.Tx) (err error) {
		l, err = s.Label(ctx, tx, "flights", name)
		return err
	})
	if err != nil {
		tb.Fatal(err)
	}
	return l
}

func (s *shelf) Label(ctx context.Context, tx *store.Tx, _ project.Name, name string) (residency.Label, error) {
	var zones []string
	if err := tx.NewRaw("SELECT zones FROM test_shelf WHERE name = ?", name).Scan(ctx, &zones); err != nil {
		return nil, err
	}
	if len(zones) == 0 {
		return nil, fault.New(fault.NotFound, "dataset %s does not exist", name)
	}
	var l residency.Label
	for z := range strings.SplitSeq(zones[0], " ") {
		l = append(l, residency.Zone(z))
	}
	return l, nil
}

func (s *shelf) Relabel(ctx context.Context, tx *store.Tx, _ project.Name, name string, to residency.Label) error {
	var zones []string
	for _, z := range to.Zones() {
		zones = append(zones, string(z))
	}
	_, err := tx.NewRaw("INSERT INTO test_shelf (name, zones) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET zones = excluded.zones", name, strings.Join(zones, " ")).Exec(ctx)
	return err
}

const reason = "the auditors in Berlin need it"

func TestWideningTakesTwoPeople(t *testing.T) {
	w := policytest.Open(t)
	w.Project(t, "flights")
	zone(t, w, "DE", residency.ZoneSpec{Jurisdiction: "DE"})
	shelf := newShelf(t, w)
	shelf.put(t, w, "weather@1", residency.Of("home"))
	ann, bob := w.User(t, "ann", "flights", project.Admin), w.User(t, "bob", "flights", project.Admin)
	asAnn, asBob := identity.With(t.Context(), ann), identity.With(t.Context(), bob)
	wide := border.Relabelling{Project: "flights", Kind: "dataset", Name: "weather@1", Label: residency.Of("home", "DE"), Reason: reason}

	wish, err := w.Border.Relabel(asAnn, wide)
	if err != nil || wish.State != border.Requested || wish.RequestedBy != ann.ID {
		t.Fatalf("%+v, %v", wish, err)
	}
	if l := shelf.label(t, w, "weather@1"); !l.Same(nil) {
		t.Fatalf("one person widened the label to %v", l)
	}
	if _, err := w.Border.Approve(asAnn, wish.ID); !fault.Is(err, fault.PermissionDenied) {
		t.Errorf("the same person approves: %v", err)
	}
	// Another token of hers is still her, and a service or a loop is nobody.
	tokenOfAnn := ann
	tokenOfAnn.Token = "tok_2"
	service := identity.Principal{Kind: identity.Service, ID: bob.ID}
	for name, p := range map[string]identity.Principal{"another token": tokenOfAnn, "service": service, "loop": identity.Loop("x")} {
		if _, err := w.Border.Approve(identity.With(t.Context(), p), wish.ID); !fault.Is(err, fault.PermissionDenied) {
			t.Errorf("%s approves: %v", name, err)
		}
	}
	engineer := identity.With(t.Context(), w.User(t, "eve", "flights", project.Engineer))
	if _, err := w.Border.Approve(engineer, wish.ID); !fault.Is(err, fault.PermissionDenied) {
		t.Errorf("an engineer approves: %v", err)
	}
	stranger := identity.With(t.Context(), w.User(t, "mallory", ""))
	_, hidden := w.Border.Approve(stranger, wish.ID)
	_, absent := w.Border.Approve(stranger, "wid_01J00000000000000000000000")
	if !fault.Is(hidden, fault.NotFound) || !fault.Is(absent, fault.NotFound) || strings.ReplaceAll(hidden.Error(), wish.ID, "") != strings.ReplaceAll(absent.Error(), "wid_01J00000000000000000000000", "") {
		t.Errorf("a stranger learns of it: %v, %v", hidden, absent)
	}
	if l := shelf.label(t, w, "weather@1"); !l.Same(nil) {
		t.Fatalf("refused approvals widened the label to %v", l)
	}

	got, err := w.Border.Approve(asBob, wish.ID)
	if err != nil || got.State != border.Approved || got.DecidedBy != bob.ID {
		t.Fatalf("%+v, %v", got, err)
	}
	if l := shelf.label(t, w, "weather@1"); !l.Same(wide.Label) {
		t.Errorf("approved, and the label is %v", l)
	}
	if _, err := w.Border.Approve(asBob, wish.ID); !fault.Is(err, fault.Conflict) {
		t.Errorf("approved twice: %v", err)
	}
	records, _, err := w.DB.ReadStream(t.Context(), "audit", store.Position{}, 1000)
	if err != nil {
		t.Fatal(err)
	}
	last := string(records[len(records)-1].Body)
	for _, want := range []string{ann.ID, bob.ID, reason, "weather@1", "approved"} {
		if !strings.Contains(last, want) {
			t.Errorf("the audit row lacks %q: %s", want, last)
		}
	}
	list, _, err := w.Border.Widenings(engineer, "flights", border.Approved, "")
	if err != nil || len(list) != 1 || list[0].ID != wish.ID {
		t.Errorf("%+v, %v", list, err)
	}
}

func TestNarrowingIsImmediate(t *testing.T) {
	w := policytest.Open(t)
	w.Project(t, "flights")
	zone(t, w, "DE", residency.ZoneSpec{})
	shelf := newShelf(t, w)
	shelf.put(t, w, "weather@1", residency.Of("home", "DE"))
	r := border.Relabelling{Project: "flights", Kind: "dataset", Name: "weather@1", Label: residency.Of("home"), Reason: "the contract has ended"}
	got, err := w.Border.Relabel(w.AsAdmin(t.Context()), r)
	if err != nil || got.State != border.Approved {
		t.Fatalf("%+v, %v", got, err)
	}
	if l := shelf.label(t, w, "weather@1"); !l.Same(nil) {
		t.Errorf("the label is %v", l)
	}
	if _, err := w.Border.Relabel(w.AsAdmin(t.Context()), r); !fault.Is(err, fault.Conflict) {
		t.Errorf("the same label again: %v", err)
	}
	// A swap adds a zone, however many it drops.
	r.Label = residency.Of("DE")
	if got, err := w.Border.Relabel(w.AsAdmin(t.Context()), r); err != nil || got.State != border.Requested {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestBadRelabellings(t *testing.T) {
	w := policytest.Open(t)
	w.Project(t, "flights")
	shelf := newShelf(t, w)
	shelf.put(t, w, "weather@1", nil)
	good := border.Relabelling{Project: "flights", Kind: "dataset", Name: "weather@1", Label: residency.Of("home", "DE"), Reason: reason}
	for name, tt := range map[string]struct {
		change func(*border.Relabelling)
		want   fault.Kind
	}{
		"unknown zone":   {func(*border.Relabelling) {}, fault.Invalid},
		"no label":       {func(r *border.Relabelling) { r.Label = nil }, fault.Invalid},
		"no reason":      {func(r *border.Relabelling) { r.Reason = "because" }, fault.Invalid},
		"long reason":    {func(r *border.Relabelling) { r.Reason = strings.Repeat("x", 2001) }, fault.Invalid},
		"unknown kind":   {func(r *border.Relabelling) { r.Kind = "model" }, fault.Invalid},
		"unknown object": {func(r *border.Relabelling) { r.Name = "planes@1" }, fault.NotFound},
		"no project":     {func(r *border.Relabelling) { r.Project = "" }, fault.Invalid},
	} {
		r := good
		tt.change(&r)
		if _, err := w.Border.Relabel(w.AsAdmin(t.Context()), r); !fault.Is(err, tt.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	zone(t, w, "DE", residency.ZoneSpec{})
	if _, err := w.Border.Relabel(identity.With(t.Context(), w.User(t, "eve", "flights", project.Engineer)), good); !fault.Is(err, fault.PermissionDenied) {
		t.Errorf("an engineer relabels: %v", err)
	}
	if _, err := w.Border.Approve(w.AsAdmin(t.Context()), "../../x"); !fault.Is(err, fault.Invalid) {
		t.Error(err)
	}
}

// TestLabelChangedMeanwhile: what the second person approves is what the first
// one saw, or nothing.
func TestLabelChangedMeanwhile(t *testing.T) {
	w := policytest.Open(t)
	w.Project(t, "flights")
	for _, z := range []residency.Zone{"DE", "IN"} {
		zone(t, w, z, residency.ZoneSpec{})
	}
	shelf := newShelf(t, w)
	shelf.put(t, w, "weather@1", residency.Of("home", "IN"))
	asBob := identity.With(t.Context(), w.User(t, "bob", "flights", project.Admin))
	wish, err := w.Border.Relabel(w.AsAdmin(t.Context()), border.Relabelling{Project: "flights", Kind: "dataset", Name: "weather@1", Label: residency.Of("home", "IN", "DE"), Reason: reason})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Border.Relabel(asBob, border.Relabelling{Project: "flights", Kind: "dataset", Name: "weather@1", Label: residency.Of("home"), Reason: "India is out"}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Border.Approve(asBob, wish.ID); !fault.Is(err, fault.Conflict) {
		t.Errorf("an outdated widening is approved: %v", err)
	}
	if l := shelf.label(t, w, "weather@1"); !l.Same(nil) {
		t.Errorf("the label is %v", l)
	}
}

func TestRejectWithdrawExpire(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	w := policytest.Open(t)
	w.Project(t, "flights")
	w.Border = border.New(border.Config{DB: w.DB, Store: residencysql.Store{}, Authorizer: w.Authority, Now: func() time.Time { return now }})
	zone(t, w, "DE", residency.ZoneSpec{})
	shelf := newShelf(t, w)
	shelf.put(t, w, "weather@1", nil)
	asAnn := identity.With(t.Context(), w.User(t, "ann", "flights", project.Admin))
	asBob := identity.With(t.Context(), w.User(t, "bob", "flights", project.Admin))
	ask := func() border.Widening {
		t.Helper()
		wish, err := w.Border.Relabel(asAnn, border.Relabelling{Project: "flights", Kind: "dataset", Name: "weather@1", Label: residency.Of("home", "DE"), Reason: reason})
		if err != nil {
			t.Fatal(err)
		}
		return wish
	}
	if got, err := w.Border.Reject(asBob, ask().ID); err != nil || got.State != border.Rejected {
		t.Error(got, err)
	}
	if got, err := w.Border.Reject(asAnn, ask().ID); err != nil || got.State != border.Withdrawn {
		t.Error(got, err)
	}
	late := ask()
	now = now.Add(7 * 24 * time.Hour)
	if _, err := w.Border.Approve(asBob, late.ID); !fault.Is(err, fault.Conflict) {
		t.Errorf("approved too late: %v", err)
	}
	list, _, err := w.Border.Widenings(asAnn, "flights", "", "")
	if err != nil || len(list) != 3 || list[0].State != border.Expired || list[1].State != border.Withdrawn || list[2].State != border.Rejected {
		t.Errorf("%+v, %v", list, err)
	}
	if l := shelf.label(t, w, "weather@1"); !l.Same(nil) {
		t.Errorf("the label is %v", l)
	}
}

// TestOneApprovalWins: many people at once carry a widening out once.
func TestOneApprovalWins(t *testing.T) {
	w := policytest.Open(t)
	w.Project(t, "flights")
	zone(t, w, "DE", residency.ZoneSpec{})
	shelf := newShelf(t, w)
	shelf.put(t, w, "weather@1", nil)
	wish, err := w.Border.Relabel(w.AsAdmin(t.Context()), border.Relabelling{Project: "flights", Kind: "dataset", Name: "weather@1", Label: residency.Of("home", "DE"), Reason: reason})
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var wg sync.WaitGroup
	won := 0
	for _, name := range []string{"a", "b", "c", "d"} {
		ctx := identity.With(t.Context(), w.User(t, name, "flights", project.Admin))
		wg.Go(func() {
			_, err := w.Border.Approve(ctx, wish.ID)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				won++
			case !fault.Is(err, fault.Conflict):
				t.Error(err)
			}
		})
	}
	if wg.Wait(); won != 1 {
		t.Errorf("%d approvals carried it out", won)
	}
}

func TestGuard(t *testing.T) {
	w := policytest.Open(t)
	p := residency.Transfer{Project: "flights", What: "dataset weather@1", Label: residency.Of("home"), Where: "pool cloud", Zone: "DE", Action: "job.submit"}
	ctx, hangUp := context.WithCancel(identity.With(t.Context(), w.Admin))
	hangUp()
	err := w.Guard.Pass(ctx, p)
	if !fault.Is(err, fault.PermissionDenied) || !strings.Contains(err.Error(), "weather@1 is allowed only in home, and pool cloud is in DE") {
		t.Error(err)
	}
	e := w.Journal.Take()
	if len(e) != 1 || e[0].Outcome != audit.Refused || e[0].Actor.ID != w.Admin.ID || e[0].Project != "flights" || e[0].Action != "job.submit" || e[0].Object != "dataset weather@1" || e[0].Reason != err.Error() {
		t.Errorf("recorded %+v", e)
	}
	w.Journal.Fail(errors.New("disk full"))
	if err := w.Guard.Pass(t.Context(), p); !fault.Is(err, fault.Unavailable) {
		t.Errorf("unrecorded: %v", err)
	}
	p.Zone = "home"
	if err := w.Guard.Pass(t.Context(), p); err != nil {
		t.Errorf("what is allowed needs no record: %v", err)
	}
}
