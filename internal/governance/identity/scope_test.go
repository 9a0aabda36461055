package identity_test

import (
	"testing"

	"github.com/falaj-ml/falaj/internal/governance/identity"
)

func TestAdmits(t *testing.T) {
	p := identity.Principal{Kind: identity.Service, ID: "svc_1", Scopes: []string{
		"run.read", "dataset.query:weather", "dataset.query:planes@2",
	}}
	for _, tt := range []struct {
		action, object string
		ok, named      bool
	}{
		{"run.read", "run_1", true, false},
		{"run.read", "", true, false},
		{"run.write", "run_1", false, false},
		{"dataset.query", "weather", true, true},
		{"dataset.query", "weather@7", true, true},
		{"dataset.query", "weather2", false, false},
		{"dataset.query", "planes@2", true, true},
		{"dataset.query", "planes@21", false, false},
		{"dataset.query", "planes", false, false},
		{"dataset.query", "", false, false},
		{"", "", false, false},
	} {
		if ok, named := p.Admits(tt.action, tt.object); ok != tt.ok || named != tt.named {
			t.Errorf("%s on %q: %v, %v, want %v, %v", tt.action, tt.object, ok, named, tt.ok, tt.named)
		}
	}
	if !p.Touches("dataset.query") || p.Touches("dataset.import") {
		t.Error("Touches")
	}
	if names, every := p.Objects("dataset.query"); every || len(names) != 2 {
		t.Errorf("Objects: %v, %v", names, every)
	}
	if names, every := p.Objects("run.read"); !every || names != nil {
		t.Errorf("Objects: %v, %v", names, every)
	}
}

func TestNarrowed(t *testing.T) {
	for _, tt := range []struct {
		p    identity.Principal
		want bool
	}{
		{identity.Principal{Kind: identity.User, ID: "usr_1"}, false},
		{identity.Principal{Kind: identity.User, ID: "usr_1", Scopes: []string{"run.read"}}, true},
		{identity.Principal{Kind: identity.Attempt, ID: "att_1"}, true}, // without scopes it may do nothing
	} {
		if got := tt.p.Narrowed(); got != tt.want {
			t.Errorf("%+v: %v", tt.p, got)
		}
	}
}
