package registry_test

import (
	"context"
	"slices"
	"testing"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/registry"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/tracking"
)

// Versions whose producer could read rows of a person are named, and flagged once
// for each erasure; whose producer could not are neither.
func TestTrainedOn(t *testing.T) {
	w, ctx := open(t), as(t, "alice")
	v := w.registered(t)
	names, err := w.Erasure.TrainedOn(ctx, proj, []string{"weather@2", "planes@1"}, "ers_1")
	if err != nil || len(names) != 0 {
		t.Errorf("of other data: %v, %v", names, err)
	}
	for _, erasure := range []string{"", "ers_1", "ers_1", "ers_2"} {
		names, err := w.Erasure.TrainedOn(ctx, proj, []string{"weather@1"}, erasure)
		if err != nil || !slices.Equal(names, []string{"delay@1"}) {
			t.Errorf("erasure %q: %v, %v", erasure, names, err)
		}
	}
	found, _, err := w.Versions.SearchVersions(ctx, proj, registry.Search{Max: 10})
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
	// Nobody takes the flag away, or gives it.
	tag := tracking.Pair{Key: registry.ErasedTag, Value: ""}
	wantKind(t, w.Versions.SetVersionTag(ctx, proj, "delay", 1, tag), fault.PermissionDenied, "cannot be changed")
	wantKind(t, w.Versions.DeleteVersionTag(ctx, proj, "delay", 1, registry.ErasedTag), fault.PermissionDenied, "cannot be changed")
	copied, err := w.Versions.CreateVersion(ctx, proj, "delay", registry.VersionSpec{Source: "models:/delay/1", Tags: []tracking.Pair{tag, {Key: "a", Value: "b"}}})
	if err != nil || len(copied.Tags) != 1 {
		t.Errorf("a copy, by MLflow, with the tags of the original: %v, %v", copied.Tags, err)
	}
	if _, err := w.Files.OpenVerified(ctx, proj, "delay", "1"); err != nil {
		t.Errorf("a flagged version is still what was signed: %v", err)
	}
}

// What was trained on a person's rows is named also when it, or its model, was deleted.
func TestTrainedOnAndDeleted(t *testing.T) {
	w, ctx := open(t), as(t, "alice")
	w.registered(t)
	want := []string{"delay@1 (deleted)"}
	for what, remove := range map[string]func() error{
		"version": func() error { return w.Versions.DeleteVersion(ctx, proj, "delay", 1) }, "model": func() error { return w.Models.DeleteModel(ctx, proj, "delay") },
	} {
		if err := remove(); err != nil && !fault.Is(err, fault.NotFound) {
			t.Fatalf("%s: %v", what, err)
		}
		if got, err := w.Erasure.TrainedOn(ctx, proj, []string{"weather@1"}, "ers_1"); err != nil || !slices.Equal(got, want) {
			t.Errorf("without its %s: %v, %v", what, got, err)
		}
	}
}

// A model that is registered after the erasure is flagged, also when it is registered as
// a version of another one again; one that was trained on other data is not.
func TestRegisteredAfterAnErasure(t *testing.T) {
	w, ctx := open(t), as(t, "alice")
	var asked []string
	found := []string{"ers_1", "ers_2"}
	w.cfg.Erased = func(_ context.Context, _ *store.Tx, p project.Name, datasets []string) ([]string, error) {
		asked = datasets
		return found, nil
	}
	w.Services = registry.New(w.cfg)
	flags := func(v registry.Version) string {
		i := slices.IndexFunc(v.Tags, func(tag tracking.Pair) bool { return tag.Key == registry.ErasedTag })
		if i < 0 {
			return ""
		}
		return v.Tags[i].Value
	}
	v := w.registered(t)
	if got := flags(v); got != "ers_1,ers_2" || !slices.Equal(asked, []string{"weather@1"}) {
		t.Errorf("flagged by %q, asked about %v", got, asked)
	}
	again, err := w.Versions.CreateVersion(ctx, proj, "delay", registry.VersionSpec{Source: "models:/delay/1"})
	if err != nil || flags(again) != "ers_1,ers_2" {
		t.Errorf("a copy is flagged by %q, error %v", flags(again), err)
	}
	found = nil
	if got := flags(w.registered(t)); got != "" {
		t.Errorf("of other data, flagged by %q", got)
	}
}
