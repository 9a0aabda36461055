package registry_test

import (
	"slices"
	"testing"

	"github.com/falaj-ml/falaj/internal/registry"
)

// Versions whose producer could read rows of a person are named, and flagged once
// for each erasure; whose producer could not are neither.
func TestTrainedOn(t *testing.T) {
	w, ctx := open(t), as(t, "alice")
	v := w.registered(t)
	names, err := w.TrainedOn(ctx, proj, []string{"weather@2", "planes@1"}, "ers_1")
	if err != nil || len(names) != 0 {
		t.Errorf("of other data: %v, %v", names, err)
	}
	for _, erasure := range []string{"", "ers_1", "ers_1", "ers_2"} {
		names, err := w.TrainedOn(ctx, proj, []string{"weather@1"}, erasure)
		if err != nil || !slices.Equal(names, []string{"delay@1"}) {
			t.Errorf("erasure %q: %v, %v", erasure, names, err)
		}
	}
	found, _, err := w.SearchVersions(ctx, proj, registry.Search{Max: 10})
	if err != nil || len(found) != 1 || found[0].Number != v.Number {
		t.Fatal(found, err)
	}
	flags := []string{}
	for _, tag := range found[0].Tags {
		if tag.Key == registry.ErasedTag {
			flags = append(flags, tag.Value)
		}
	}
	if !slices.Equal(flags, []string{"ers_1,ers_2"}) {
		t.Errorf("the version is flagged by %v", flags)
	}
	if _, err := w.OpenVerified(ctx, proj, "delay", "1"); err != nil {
		t.Errorf("a flagged version is still what was signed: %v", err)
	}
}
