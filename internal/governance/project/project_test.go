package project_test

import (
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/governance/residency"
)

func TestStrictest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		classes := rapid.SliceOf(rapid.SampledFrom(append(slices.Clone(project.Classifications), "", "cosmic"))).Draw(t, "classes")
		got := project.Strictest(classes...)
		if err := got.Validate(); err != nil {
			t.Fatal(err)
		}
		rank := func(c project.Classification) int {
			if i := slices.Index(project.Classifications, c); i >= 0 {
				return i
			}
			return len(project.Classifications) - 1
		}
		for _, c := range classes {
			if rank(c) > rank(got) {
				t.Fatalf("%s is stricter than %s", c, got)
			}
		}
		if len(classes) > 0 && !slices.ContainsFunc(classes, func(c project.Classification) bool { return rank(c) == rank(got) }) {
			t.Fatalf("%s is none of %v", got, classes)
		}
	})
	for c, want := range map[project.Classification]bool{"public": false, "internal": false, "confidential": true, "restricted": true, "": true, "cosmic": true} {
		if c.Journalled() != want {
			t.Errorf("%q is journalled: %v", c, !want)
		}
	}
}

func TestSpecs(t *testing.T) {
	for name, s := range map[string]project.Spec{
		"class": {Classification: "cosmic"}, "zone": {Residency: residency.Label{"the moon"}},
		"display": {DisplayName: strings.Repeat("x", 201)}, "description": {Description: strings.Repeat("x", 2001)},
	} {
		if err := s.Validate(); !fault.Is(err, fault.Invalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	full := project.Spec{}.Complete()
	if full.Classification != project.Internal || !full.Residency.Same(nil) || len(full.Residency) == 0 {
		t.Errorf("the defaults are %+v", full)
	}
}

func TestGrantSpec(t *testing.T) {
	for _, tt := range []struct {
		in   project.Name
		spec project.GrantSpec
		ok   bool
	}{
		{"flights", project.GrantSpec{Principal: "user/a", Role: project.Viewer}, true},
		{"flights", project.GrantSpec{Principal: "user/a", Role: project.Viewer, Object: "dataset/weather"}, true},
		{"", project.GrantSpec{Principal: "user/a", Role: project.Admin}, true},
		{"", project.GrantSpec{Principal: "user/a", Role: project.Auditor}, true},
		{"", project.GrantSpec{Principal: "user/a", Role: project.Engineer}, false},
		{"", project.GrantSpec{Principal: "user/a", Role: project.Admin, Object: "dataset/weather"}, false},
		{"flights", project.GrantSpec{Role: project.Viewer}, false},
		{"flights", project.GrantSpec{Principal: "user/a", Role: "root"}, false},
		{"flights", project.GrantSpec{Principal: "user/a", Role: project.Viewer, Object: "model/ResNet50.v2"}, true},
		{"flights", project.GrantSpec{Principal: "user/a", Role: project.Viewer, Object: "model/My model +1"}, true},
		{"flights", project.GrantSpec{Principal: "user/a", Role: project.Viewer, Object: "model/größe@home"}, true},
		{"flights", project.GrantSpec{Principal: "user/a", Role: project.Viewer, Object: "model/ResNet50:champion"}, false},
		{"flights", project.GrantSpec{Principal: "user/a", Role: project.Viewer, Object: "model/.."}, false},
		{"flights", project.GrantSpec{Principal: "user/a", Role: project.Viewer, Object: "model/ "}, false},
		{"flights", project.GrantSpec{Principal: "user/a", Role: project.Viewer, Object: "weather"}, false},
		{"flights", project.GrantSpec{Principal: "user/a", Role: project.Viewer, Object: "dataset/../x"}, false},
		{"flights", project.GrantSpec{Principal: "user/a", Role: project.Viewer, Object: "dataset/weather@1"}, false},
	} {
		if err := tt.spec.Validate(tt.in); (err == nil) != tt.ok || err != nil && !fault.Is(err, fault.Invalid) {
			t.Errorf("%+v in %q: %v", tt.spec, tt.in, err)
		}
	}
}

func TestGrantNames(t *testing.T) {
	g := project.Grant{Object: "dataset/weather"}
	for _, tt := range []struct {
		kind, name string
		want       bool
	}{
		{"dataset", "weather", true},
		{"dataset", "weather@3", true},
		{"dataset", "weather2", false},
		{"feature", "weather", false},
		{"dataset", "", false},
		{"", "", false},
	} {
		if got := g.Names(tt.kind, tt.name); got != tt.want {
			t.Errorf("%s %s: %v", tt.kind, tt.name, got)
		}
	}
	if (project.Grant{}).Names("", "") {
		t.Error("a grant on the whole project names the empty object")
	}
}
