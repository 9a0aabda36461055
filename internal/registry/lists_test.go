package registry_test

import (
	"context"
	"testing"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/id"
	"github.com/falaj-ml/falaj/internal/registry"
)

// closedTo forbids what is of some names.
type closedTo struct {
	registry.Authorizer
	names map[string]bool
}

func (c closedTo) Allow(ctx context.Context, a policy.Action, o policy.Object) error {
	if c.names[o.Name] {
		return fault.New(fault.PermissionDenied, "a policy forbids %s", o.Name)
	}
	return c.Authorizer.Allow(ctx, a, o)
}

// TestListsAreWhatMayBeRead: a model or version that a policy forbids to read is in no list,
// whatever is beside it.
func TestListsAreWhatMayBeRead(t *testing.T) {
	w := open(t)
	for range 3 {
		w.registered(t)
	}
	ctx := as(t, "alice")
	if _, err := w.Models.CreateModel(ctx, proj, "secret", "", nil); err != nil {
		t.Fatal(err)
	}
	c := w.cfg
	c.Authz = closedTo{c.Authz, map[string]bool{"secret": true, "delay@3": true}}
	s := registry.New(c)
	models, _, err := s.Models.SearchModels(ctx, proj, registry.Search{Max: 100})
	if err != nil || len(models) != 1 || models[0].Name != "delay" || len(models[0].Latest) != 0 {
		t.Errorf("models: %+v, %v", models, err)
	}
	versions, _, err := s.Versions.SearchVersions(ctx, proj, registry.Search{Max: 100})
	if err != nil || len(versions) != 2 {
		t.Errorf("versions: %+v, %v", versions, err)
	}
	for _, v := range versions {
		if v.Number == 3 {
			t.Error("a version that may not be read is listed")
		}
	}
	if m, err := s.Models.Model(ctx, proj, "delay"); err != nil || len(m.Latest) != 0 {
		t.Errorf("the latest of a model: %+v, %v", m.Latest, err)
	}
	if latest, err := s.Versions.LatestVersions(ctx, proj, "delay", nil); err != nil || len(latest) != 0 {
		t.Errorf("the latest: %+v, %v", latest, err)
	}
}

// TestAddressUnderANarrowGrant: whoever may read one model reads it by its address, too, and
// hears of no other whether it is there.
func TestAddressUnderANarrowGrant(t *testing.T) {
	w, ctx := open(t), as(t, "alice")
	v := w.registered(t)
	secret, err := w.Models.CreateModel(ctx, proj, "secret", "", nil)
	if err != nil {
		t.Fatal(err)
	}
	c := w.cfg
	c.Authz = closedTo{c.Authz, map[string]bool{"secret": true, "": true}} // of the collection nothing
	s := registry.New(c)
	if got, err := s.Versions.Version(ctx, proj, "id:"+string(v.ModelID), "1"); err != nil || got.String() != v.String() {
		t.Errorf("its own: %s, %v", got, err)
	}
	there := errOf(s.Versions.Version(ctx, proj, "id:"+string(secret.ID), "1"))
	wantKind(t, there, fault.PermissionDenied, "")
	absent := errOf(s.Versions.Version(ctx, proj, "id:"+id.New("mdl"), "1"))
	if absent == nil || there.Error() != absent.Error() {
		t.Errorf("one that is there: %v; one that is not: %v", there, absent)
	}
}
