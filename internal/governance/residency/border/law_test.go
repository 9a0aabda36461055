package border_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/policy/policytest"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/governance/residency/border"
	"github.com/falaj-ml/falaj/internal/store"
)

// law is that of zone DE now.
func law(t *testing.T, w *policytest.World) residency.Law {
	t.Helper()
	places, err := w.Border.Zones(w.AsAdmin(t.Context()))
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range places {
		if p.Zone == "DE" {
			return p.Law()
		}
	}
	t.Fatal("zone DE does not exist")
	return residency.Law{}
}

// TestLawByManifest: a manifest changes no law that labels rely on, and what it leaves out
// of the law stays.
func TestLawByManifest(t *testing.T) {
	was := residency.ZoneSpec{Jurisdiction: "DE", Provider: "example", Trust: residency.Dedicated}
	for name, c := range map[string]struct {
		was, spec residency.ZoneSpec
		want      residency.Law
		command   string // of the hint; empty: it is applied
	}{
		"the same":                     {was, was, was.Law(), ""},
		"described":                    {was, residency.ZoneSpec{Description: "in Frankfurt"}, was.Law(), ""},
		"more trust":                   {was, residency.ZoneSpec{Trust: residency.Owned}, residency.Law{Jurisdiction: "DE", Provider: "example", Trust: residency.Owned}, ""},
		"said for the first time":      {residency.ZoneSpec{}, was, was.Law(), ""},
		"another jurisdiction":         {was, residency.ZoneSpec{Jurisdiction: "US"}, was.Law(), "falaj zone change DE --jurisdiction US --reason 'WHY'"},
		"another provider":             {was, residency.ZoneSpec{Provider: "elsewhere"}, was.Law(), "falaj zone change DE --provider elsewhere --reason 'WHY'"},
		"a provider of any text":       {was, residency.ZoneSpec{Provider: "it's;id"}, was.Law(), `falaj zone change DE --provider 'it'\''s;id' --reason 'WHY'`},
		"less trust":                   {was, residency.ZoneSpec{Trust: residency.Shared}, was.Law(), "falaj zone change DE --trust shared --reason 'WHY'"},
		"more trust under another law": {was, residency.ZoneSpec{Jurisdiction: "US", Trust: residency.Owned}, was.Law(), "falaj zone change DE --jurisdiction US --trust owned --reason 'WHY'"},
	} {
		t.Run(name, func(t *testing.T) {
			w := policytest.Open(t)
			zone(t, w, "DE", c.was)
			for _, dry := range []bool{true, false} {
				_, _, err := w.Border.Apply(w.AsAdmin(t.Context()), border.ZoneRequest{Zone: "DE", Spec: c.spec, DryRun: dry})
				if refused := fault.Is(err, fault.Conflict); refused != (c.command != "") || !refused && err != nil || refused && !strings.Contains(fault.HintOf(err), c.command) {
					t.Errorf("dry run %v: %v, %q", dry, err, fault.HintOf(err))
				}
			}
			if got := law(t, w); got != c.want {
				t.Errorf("%+v, not %+v", got, c.want)
			}
		})
	}
}

// TestLawTakesTwoPeople: another law is asked for by one admin of the installation, with a
// reason, and takes another one, whether a label names the zone or not.
func TestLawTakesTwoPeople(t *testing.T) {
	w := policytest.Open(t)
	w.Project(t, "flights")
	zone(t, w, "DE", residency.ZoneSpec{Jurisdiction: "DE"})
	ann, bob := w.User(t, "ann", "", project.Admin), w.User(t, "bob", "", project.Admin)
	asAnn, asBob := identity.With(t.Context(), ann), identity.With(t.Context(), bob)
	local := identity.With(t.Context(), w.User(t, "lara", "flights", project.Admin))
	de, us := residency.Law{Jurisdiction: "DE", Trust: residency.Shared}, residency.Law{Jurisdiction: "US", Trust: residency.Shared}
	change := border.LawChange{Zone: "DE", Law: residency.Law{Jurisdiction: "US"}, Reason: reason}

	for name, c := range map[string]struct {
		change border.LawChange
		kind   fault.Kind
	}{
		"no reason":    {border.LawChange{Zone: "DE", Law: change.Law, Reason: "why"}, fault.Invalid},
		"nothing":      {border.LawChange{Zone: "DE", Reason: reason}, fault.Invalid},
		"no such zone": {border.LawChange{Zone: "FR", Law: change.Law, Reason: reason}, fault.NotFound},
		"no name":      {border.LawChange{Zone: "../DE", Law: change.Law, Reason: reason}, fault.Invalid},
		"unknown hand": {border.LawChange{Zone: "DE", Law: residency.Law{Trust: "mine"}, Reason: reason}, fault.Invalid},
		"the same":     {border.LawChange{Zone: "DE", Law: residency.Law{Jurisdiction: "DE"}, Reason: reason}, fault.Conflict},
	} {
		if _, err := w.Border.ChangeLaw(asAnn, c.change); !fault.Is(err, c.kind) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := w.Border.ChangeLaw(local, change); !fault.Is(err, fault.PermissionDenied) {
		t.Errorf("an admin of a project asks: %v", err)
	}
	if _, err := w.Border.ChangeLaw(identity.With(t.Context(), identity.Principal{Kind: identity.Service, ID: bob.ID}), change); !fault.Is(err, fault.PermissionDenied) {
		t.Errorf("a service asks: %v", err)
	}

	wish, err := w.Border.ChangeLaw(asAnn, change)
	if err != nil || wish.State != border.Requested || wish.Kind != "zone" || wish.Name != "DE" || *wish.FromLaw != de || *wish.ToLaw != us {
		t.Fatalf("%+v, %v", wish, err)
	}
	if _, err := w.Border.Approve(asAnn, wish.ID); !fault.Is(err, fault.PermissionDenied) || !strings.Contains(fault.HintOf(err), "admin of the installation") {
		t.Errorf("the same person approves: %v", err)
	}
	if _, err := w.Border.Approve(local, wish.ID); !fault.Is(err, fault.PermissionDenied) {
		t.Errorf("an admin of a project approves: %v", err)
	}
	if got := law(t, w); got != de {
		t.Fatalf("fewer than two people made it %+v", got)
	}
	if list, _, err := w.Border.Widenings(asBob, "", border.Requested, ""); err != nil || len(list) != 1 || *list[0].ToLaw != us {
		t.Errorf("%+v, %v", list, err)
	}
	if _, _, err := w.Border.Widenings(local, "", "", ""); !fault.Is(err, fault.PermissionDenied) {
		t.Errorf("an admin of a project lists the changes of zones: %v", err)
	}
	if got, err := w.Border.Approve(asBob, wish.ID); err != nil || got.State != border.Approved || got.DecidedBy != bob.ID {
		t.Fatalf("%+v, %v", got, err)
	}
	if got := law(t, w); got != us {
		t.Errorf("approved, and it is %+v", got)
	}
	if _, err := w.Border.Approve(asBob, wish.ID); !fault.Is(err, fault.Conflict) {
		t.Errorf("approved twice: %v", err)
	}
	records, _, err := w.DB.ReadStream(t.Context(), "audit", store.Position{}, 1000)
	if err != nil {
		t.Fatal(err)
	}
	var entry struct {
		Action, Object, Reason string
		Detail                 struct {
			From  residency.Law `json:"from_law"`
			To    residency.Law `json:"to_law"`
			By    string        `json:"requested_by"`
			State border.State
		}
	}
	if err := json.Unmarshal(records[len(records)-1].Body, &entry); err != nil {
		t.Fatal(err)
	}
	if d := entry.Detail; entry.Action != "zone.apply" || entry.Object != "zone DE" || entry.Reason != reason || d.From != de || d.To != us || d.By != ann.ID || d.State != border.Approved {
		t.Errorf("on record is %s", records[len(records)-1].Body)
	}
}

// TestLawOfOneLook: what both people looked at is what is changed.
func TestLawOfOneLook(t *testing.T) {
	w := policytest.Open(t)
	w.Project(t, "flights")
	shelf := newShelf(t, w)
	shelf.put(t, w, "weather@1", residency.Of("home"))
	zone(t, w, "DE", residency.ZoneSpec{Jurisdiction: "DE", Trust: residency.Owned})
	ann, bob := w.User(t, "ann", "", project.Admin), w.User(t, "bob", "", project.Admin)
	asAnn, asBob := identity.With(t.Context(), ann), identity.With(t.Context(), bob)
	ask := func(l residency.Law) string {
		t.Helper()
		wish, err := w.Border.ChangeLaw(asAnn, border.LawChange{Zone: "DE", Law: l, Reason: reason})
		if err != nil || wish.State != border.Requested {
			t.Fatal(wish, err)
		}
		return wish.ID
	}
	lower, away := ask(residency.Law{Trust: residency.Shared}), ask(residency.Law{Jurisdiction: "US"})
	wish, err := w.Border.Relabel(asAnn, border.Relabelling{Project: "flights", Kind: "dataset", Name: "weather@1", Label: residency.Of("home", "DE"), Reason: reason})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Border.Approve(asBob, away); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Border.Approve(asBob, lower); !fault.Is(err, fault.Conflict) {
		t.Errorf("its law is another one since: %v", err)
	}
	if _, err := w.Border.Approve(asBob, wish.ID); !fault.Is(err, fault.Conflict) || !strings.Contains(err.Error(), "jurisdiction US") {
		t.Errorf("a label is widened into a zone whose law is another one since: %v", err)
	}
	if got, err := w.Border.Reject(asAnn, lower); err != nil || got.State != border.Withdrawn {
		t.Errorf("%+v, %v", got, err)
	}
	// More trust widens nothing, and takes one person.
	zone(t, w, "FR", residency.ZoneSpec{})
	if got, err := w.Border.ChangeLaw(asAnn, border.LawChange{Zone: "FR", Law: residency.Law{Jurisdiction: "FR", Trust: residency.Owned}, Reason: reason}); err != nil || got.State != border.Approved {
		t.Errorf("%+v, %v", got, err)
	}
}
