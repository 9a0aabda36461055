package registry

import (
	"strings"
	"testing"
)

// TestLessInAPolicy: what takes a second person, and what does not.
func TestLessInAPolicy(t *testing.T) {
	yes, no := true, false
	asks := func(p Promotion) PolicySpec { return PolicySpec{Promotion: p} }
	two := asks(Promotion{Approvals: 2, Gates: []string{"metrics.auc >= 0.8"}})
	for _, c := range []struct {
		name     string
		was, now PolicySpec
		want     string // parts, in order; "" is no less
	}{
		{"nothing", PolicySpec{}, PolicySpec{}, ""},
		{"the same", two, two, ""},
		{"another description", PolicySpec{Description: "a"}, PolicySpec{Description: "b"}, ""},
		{"from nothing", PolicySpec{}, two, ""},
		{"to nothing", two, PolicySpec{}, "approvals decrease from 2 to 0; gate metrics.auc >= 0.8 is removed"},
		{"fewer approvals", two, asks(Promotion{Approvals: 1, Gates: two.Promotion.Gates}), "approvals decrease from 2 to 1"},
		{"more approvals", two, asks(Promotion{Approvals: 3, Gates: two.Promotion.Gates}), ""},
		{"another gate", two, asks(Promotion{Approvals: 2, Gates: []string{"metrics.auc >= 0.7"}}), "gate metrics.auc >= 0.8 is removed"},
		{"one more gate", two, asks(Promotion{Approvals: 2, Gates: append([]string{"metrics.f1 >= 0.5"}, two.Promotion.Gates...)}), ""},
		{"another alias", two, asks(Promotion{Approvals: 2, Gates: two.Promotion.Gates, Aliases: []string{"best"}}), "protected alias champion is removed"},
		{"another stage", two, asks(Promotion{Approvals: 2, Gates: two.Promotion.Gates, Stages: []string{"Staging"}}), "protected stage Production is removed"},
		{"no traffic", two, asks(Promotion{Approvals: 2, Gates: two.Promotion.Gates, Traffic: &no}), "deployments no longer require clearance"},
		{"traffic, said", two, asks(Promotion{Approvals: 2, Gates: two.Promotion.Gates, Traffic: &yes}), ""},
		{"content by default", PolicySpec{Content: "data"}, PolicySpec{}, "content changes from data to code"},
		{"any content", PolicySpec{}, PolicySpec{Content: "any"}, "content changes from code to any"},
		{"stricter content", PolicySpec{}, PolicySpec{Content: "data"}, ""},
		{"no signer", PolicySpec{Signers: []string{"a"}}, PolicySpec{}, "no signature"},
		{"one signer of two", PolicySpec{Signers: []string{"a", "b"}}, PolicySpec{Signers: []string{"b"}}, ""},
		{"another signer", PolicySpec{Signers: []string{"a"}}, PolicySpec{Signers: []string{"a", "b"}}, "signer 3e23e8160039594a is added"},
		{"another name", PolicySpec{Signers: []string{"a"}, SignedAs: "x"}, PolicySpec{Signers: []string{"a"}}, "signed_as changes from x to anything"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := strings.Join(c.was.less(c.now), "; "); c.want == "" && got != "" || !strings.HasPrefix(got, c.want) {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}
