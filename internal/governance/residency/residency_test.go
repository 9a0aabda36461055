package residency_test

import (
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/residency"
)

var zones = []residency.Zone{"home", "AE", "AE-DIFC", "DE", "IN"}

func label() *rapid.Generator[residency.Label] {
	return rapid.Custom(func(t *rapid.T) residency.Label {
		// As callers write it: unsorted, with repetitions, or none at all.
		return rapid.SliceOfN(rapid.SampledFrom(zones), 0, 6).Draw(t, "zones")
	})
}

func parents() *rapid.Generator[[]residency.Parent] {
	return rapid.Custom(func(t *rapid.T) []residency.Parent {
		list := make([]residency.Parent, rapid.IntRange(1, 5).Draw(t, "parents"))
		for i := range list {
			list[i] = residency.Parent{Name: "dataset " + string(rune('a'+i)), Label: label().Draw(t, "label")}
		}
		return list
	})
}

// TestDerive: what is derived may be only where each parent may be, and
// everywhere where all may be; the order of parents and repeating them is nothing.
func TestDerive(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		of := parents().Draw(t, "of")
		got, err := residency.Derive(of...)
		shared := slices.DeleteFunc(slices.Clone(zones), func(z residency.Zone) bool {
			return slices.ContainsFunc(of, func(p residency.Parent) bool { return !p.Label.Allows(z) })
		})
		if len(shared) == 0 {
			if !fault.Is(err, fault.PermissionDenied) {
				t.Fatalf("%v shares no zone, and derives %v, %v", of, got, err)
			}
			for _, p := range of {
				if !strings.Contains(err.Error(), p.Name) {
					t.Fatalf("%q does not name %s", err, p.Name)
				}
			}
		} else if err != nil {
			t.Fatal(err)
		}
		if err == nil && !got.Same(residency.Of(shared...)) {
			t.Fatalf("%v derives %v, want %v", of, got, shared)
		}
		for _, p := range of {
			if err == nil && !got.Within(p.Label) {
				t.Fatalf("%v is wider than %v", got, p)
			}
		}
		again, err2 := residency.Derive(rapid.Permutation(of).Draw(t, "order")...)
		if (err == nil) != (err2 == nil) || !slices.Equal(again, got) {
			t.Fatalf("the order matters: %v, %v and %v, %v", got, err, again, err2)
		}
		twice, err3 := residency.Derive(append(slices.Clone(of), of...)...)
		if (err == nil) != (err3 == nil) || !slices.Equal(twice, got) {
			t.Fatalf("repetition matters: %v, %v and %v, %v", got, err, twice, err3)
		}
		if err == nil {
			chain, err := residency.Derive(append(slices.Clone(of), residency.Parent{Name: "child", Label: got})...)
			if err != nil || !slices.Equal(chain, got) {
				t.Fatalf("deriving again from the result changes it: %v, %v", chain, err)
			}
		}
	})
}

// TestWithin: it is the subset of what labels allow, unlabelled being home.
func TestWithin(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := label().Draw(t, "a"), label().Draw(t, "b")
		within, same := true, true
		for _, z := range zones {
			within = within && (!a.Allows(z) || b.Allows(z))
			same = same && a.Allows(z) == b.Allows(z)
		}
		if a.Within(b) != within || a.Same(b) != same {
			t.Fatalf("%v in %v: %v, %v", a, b, a.Within(b), a.Same(b))
		}
	})
	var unlabelled residency.Label
	if !unlabelled.Same(residency.Of("home")) || unlabelled.Within(residency.Of("AE")) {
		t.Error("unlabelled is not home")
	}
	if l, err := residency.Derive(); err != nil || !l.Same(unlabelled) {
		t.Errorf("derived from nothing: %v, %v", l, err)
	}
}

func TestCheck(t *testing.T) {
	if err := residency.Check("dataset weather@1", residency.Of("AE", "home"), "pool cloud", "AE"); err != nil {
		t.Error(err)
	}
	err := residency.Check("dataset weather@1", nil, "pool cloud", "DE")
	if !fault.Is(err, fault.PermissionDenied) || err.Error() != "dataset weather@1 is allowed only in home, and pool cloud is in DE" || !strings.Contains(fault.HintOf(err), "home") {
		t.Errorf("%v (%s)", err, fault.HintOf(err))
	}
	if residency.Of("home").Allows("") {
		t.Error("a place without a zone is allowed")
	}
}

func TestNames(t *testing.T) {
	for _, z := range []residency.Zone{"home", "AE", "AE-DIFC", "de-1", "x", residency.Zone(strings.Repeat("x", 32))} {
		if err := z.Validate(); err != nil {
			t.Error(err)
		}
	}
	for _, z := range []residency.Zone{"", "-AE", "AE-", "A E", "../AE", "AE/x", "é", residency.Zone(strings.Repeat("x", 33)), "AE\n"} {
		if err := (residency.Label{"home", z}).Validate(); !fault.Is(err, fault.Invalid) {
			t.Errorf("%q: %v", z, err)
		}
	}
	if err := make(residency.Label, 65).Validate(); !fault.Is(err, fault.Invalid) {
		t.Error("a label of 65 zones is valid")
	}
}

func TestZoneSpec(t *testing.T) {
	for name, s := range map[string]residency.ZoneSpec{
		"trust":        {Trust: "blind"},
		"jurisdiction": {Jurisdiction: "the moon"},
		"provider":     {Provider: strings.Repeat("x", 201)},
		"description":  {Description: strings.Repeat("x", 2001)},
	} {
		if err := s.Validate(); !fault.Is(err, fault.Invalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := (residency.ZoneSpec{Jurisdiction: "AE-DIFC", Provider: "us", Trust: residency.Owned}).Validate(); err != nil {
		t.Error(err)
	}
}
