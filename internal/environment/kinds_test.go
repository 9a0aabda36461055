package environment_test

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/falaj-ml/falaj/internal/compute"
	"github.com/falaj-ml/falaj/internal/compute/engine/enginetest"
	"github.com/falaj-ml/falaj/internal/environment"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/oci"
	"github.com/falaj-ml/falaj/internal/scheduler"
)

// registry pins tags.
type registry struct {
	mu   sync.Mutex
	tags map[string]string
	n    int // how often it was asked
}

func (r *registry) Inspect(_ context.Context, ref string) (oci.Info, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.n++
	if pinned, ok := r.tags[ref]; ok {
		return oci.Info{Ref: pinned, Platform: "linux/amd64"}, nil
	}
	return oci.Info{}, fault.New(fault.NotFound, "the registry has no %s", ref)
}

func (r *registry) Pull(context.Context, string) (oci.Image, func(), error) {
	return oci.Image{}, func() {}, nil
}

func (r *registry) Prune(context.Context, time.Time, func(oci.Image) bool, bool) ([]oci.Image, error) {
	return nil, nil
}

// kindsWorld has a registry, and a pool of an engine of each kind.
func kindsWorld(t *testing.T) (*world, *registry) {
	t.Helper()
	u, fake := &uv{fail: map[string]string{}}, enginetest.NewFake()
	fake.Behave(u.run)
	images := &registry{tags: map[string]string{}}
	w := newWorld(t, fake, func(c *environment.Config) {
		pretend(t)(c)
		c.Images, c.Kinds = images, map[string]string{"hpc": "slurm", "k8s": "kube"}
	})
	w.compute.Scheduling.Stop()
	for _, name := range []string{"hpc", "k8s"} {
		w.ccfg.Engines[name] = compute.Engine{Driver: enginetest.NewFake(), Isolation: scheduler.Container, Remote: true, Kind: w.cfg.Kinds[name]}
	}
	w.start(t)
	node := compute.Node{Name: "n1", CPU: 4000, Memory: 1 << 30, Labels: map[string]string{"arch": "aarch64"}}
	for _, name := range []compute.PoolName{"hpc", "k8s"} {
		if _, _, err := w.compute.Pools.ApplyPool(t.Context(), name, compute.PoolSpec{Engine: string(name), Nodes: []compute.Node{node}}); err != nil {
			t.Fatal(err)
		}
	}
	return w, images
}

func TestImages(t *testing.T) {
	w, images := kindsWorld(t)
	const one, two = "r.example/torch@sha256:11", "r.example/torch@sha256:22"
	images.tags["r.example/torch:1"] = one
	spec := environment.Spec{Image: "r.example/torch:1"}
	e, c, err := w.Apply(t.Context(), nyc, "img", spec)
	if err != nil || c != project.Created || e.State != environment.Ready || e.Image != one || e.Digest == "" {
		t.Fatalf("%+v, %s, %v", e, c, err)
	}
	use, err := w.Use(t.Context(), nyc, "img@"+string(e.Digest))
	if err != nil || use.Image != one || use.Python != "/usr/bin/python3" || len(use.Mounts) != 0 {
		t.Errorf("%+v, %v", use, err)
	}
	// A tag that moved changes nothing before somebody builds anew.
	images.tags["r.example/torch:1"] = two
	asked := images.n
	if _, c, err := w.Apply(t.Context(), nyc, "img", spec); err != nil || c != project.Unchanged || images.n != asked {
		t.Errorf("%s, %v; asked %d times", c, err, images.n-asked)
	}
	again, err := w.Build(t.Context(), nyc, "img")
	if err != nil || again.Image != two || again.Digest == e.Digest {
		t.Errorf("%+v, %v", again, err)
	}
	if old, err := w.Use(t.Context(), nyc, "img@"+string(e.Digest)); err != nil || old.Image != one {
		t.Errorf("what it was: %+v, %v", old, err)
	}
	if _, _, err := w.Apply(t.Context(), nyc, "none", environment.Spec{Image: "r.example/none:1"}); !fault.Is(err, fault.NotFound) {
		t.Errorf("an image that is not there: %v", err)
	}
	for name, bad := range map[string]environment.Spec{
		"both":      {Image: "a", Modules: []string{"b"}},
		"packages":  {Image: "a", Requirements: []string{"b"}},
		"site":      {Modules: []string{"a"}, SitePackages: true},
		"version":   {Image: "a", Python: "3.11"},
		"no module": {Modules: []string{"a b"}},
	} {
		if _, _, err := w.Apply(t.Context(), nyc, "bad", bad); !fault.Is(err, fault.Invalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestChecked(t *testing.T) {
	w, images := kindsWorld(t)
	images.tags["r.example/x:1"] = "r.example/x@sha256:11"
	w.built(t, "py", environment.Spec{Requirements: []string{"six"}})
	for name, spec := range map[string]environment.Spec{"img": {Image: "r.example/x:1"}, "mods": {Modules: []string{"cuda/12.4"}}} {
		if _, _, err := w.Apply(t.Context(), nyc, name, spec); err != nil {
			t.Fatal(err)
		}
	}
	for name, want := range map[string]map[string]bool{
		"py":   {"home": true, "hpc": false, "k8s": false}, // another architecture
		"img":  {"home": true, "hpc": false, "k8s": false}, // another architecture
		"mods": {"home": false, "hpc": true, "k8s": false},
	} {
		c, err := w.Fits(t.Context(), nyc, name)
		if err != nil || c.State != environment.Ready {
			t.Fatalf("%+v, %v", c, err)
		}
		got := map[string]bool{}
		for _, f := range c.Pools {
			got[f.Pool] = f.Fits
			if f.Fits == (len(f.Reasons) > 0) {
				t.Errorf("%s: %+v", name, f)
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
	if err := w.Admit(t.Context(), nyc, "py", []string{"hpc", "home"}); err != nil {
		t.Error(err)
	}
	if err := w.Admit(t.Context(), nyc, "py", nil); err != nil {
		t.Error(err)
	}
	err := w.Admit(t.Context(), nyc, "py", []string{"hpc", "k8s"})
	if !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), "pool hpc: its processors are aarch64") || !strings.Contains(err.Error(), "pool k8s:") {
		t.Errorf("%v", err)
	}
	use, err := w.Use(t.Context(), nyc, "mods")
	if err != nil || cmp.Diff([]string{"cuda/12.4"}, use.Modules) != "" {
		t.Errorf("%+v, %v", use, err)
	}
	if err := w.Check(use, compute.Pool{Name: "home", Engine: "local"}); !fault.Is(err, fault.Invalid) {
		t.Errorf("%v", err)
	}
}

func TestDifferences(t *testing.T) {
	w, _ := kindsWorld(t)
	a := w.built(t, "a", environment.Spec{Requirements: []string{"six", "numpy"}})
	w.built(t, "b", environment.Spec{Requirements: []string{"six", "scipy"}})
	d, err := w.Diff(t.Context(), nyc, "a@"+string(a.Digest), "b")
	want := []environment.Change{{What: "package", Name: "numpy", A: "1.0"}, {What: "package", Name: "scipy", B: "1.0"}}
	if diff := cmp.Diff(want, d.Changes); diff != "" || err != nil || d.Same {
		t.Errorf("%v %s", err, diff)
	}
	// A version of an environment is shown by its digest, when the name has another content too.
	w.built(t, "a", environment.Spec{Requirements: []string{"six"}})
	if old, err := w.One(t.Context(), nyc, "a@"+string(a.Digest)); err != nil || old.Digest != a.Digest {
		t.Errorf("%s, %v", old.Digest, err)
	}
	if now, err := w.One(t.Context(), nyc, "a"); err != nil || now.Digest == a.Digest {
		t.Errorf("%s, %v", now.Digest, err)
	}
	if _, err := w.One(t.Context(), nyc, "a@sha256:0"); !fault.Is(err, fault.NotFound) {
		t.Error(err)
	}
	if d, err := w.Diff(t.Context(), nyc, "a", "a"); err != nil || !d.Same || len(d.Changes) != 0 {
		t.Errorf("%+v, %v", d, err)
	}
}

func TestMaterials(t *testing.T) {
	w, images := kindsWorld(t)
	images.tags["r.example/x:1"] = "r.example/x@sha256:" + strings.Repeat("1", 64)
	w.built(t, "py", environment.Spec{Requirements: []string{"six"}})
	if _, _, err := w.Apply(t.Context(), nyc, "img", environment.Spec{Image: "r.example/x:1"}); err != nil {
		t.Fatal(err)
	}
	type bill struct {
		BOMFormat   string `json:"bomFormat"`
		SpecVersion string `json:"specVersion"`
		Components  []struct {
			Type, Name, Version, Purl string
			Hashes                    []struct{ Alg, Content string }
		}
	}
	for name, purl := range map[string]string{"py": "pkg:pypi/six@1.0", "img": "pkg:oci/x@sha256%3A" + strings.Repeat("1", 64) + "?repository_url=r.example/x"} {
		b, err := w.Materials(t.Context(), nyc, name)
		if err != nil {
			t.Fatal(err)
		}
		again, err := w.Materials(t.Context(), nyc, name)
		if err != nil || string(again) != string(b) {
			t.Errorf("%s differs the second time (%v)", name, err)
		}
		var got bill
		if err := json.Unmarshal(b, &got); err != nil || got.BOMFormat != "CycloneDX" || got.SpecVersion != "1.5" {
			t.Fatalf("%s: %v", b, err)
		}
		c := got.Components[len(got.Components)-1]
		if c.Purl != purl || len(c.Hashes) != 1 || c.Hashes[0].Alg != "SHA-256" || len(c.Hashes[0].Content) != 64 {
			t.Errorf("%+v", c)
		}
	}
}

func TestPrune(t *testing.T) {
	w, _ := kindsWorld(t)
	var held []environment.Digest
	w.Hold(func(context.Context) ([]environment.Digest, error) { return held, nil })
	used := w.built(t, "used", environment.Spec{Requirements: []string{"six"}})
	kept := w.built(t, "held", environment.Spec{Requirements: []string{"numpy"}})
	idle := w.built(t, "idle", environment.Spec{Requirements: []string{"scipy"}})
	held = []environment.Digest{kept.Digest}
	long := time.Now().Add(-48 * time.Hour)
	dir := func(d environment.Digest) string {
		return filepath.Join(w.cfg.Dir, strings.TrimPrefix(string(d), "sha256:"))
	}
	for _, e := range []environment.Environment{used, kept, idle} {
		if err := os.Chtimes(dir(e.Digest), long, long); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := w.Use(t.Context(), nyc, "used"); err != nil {
		t.Fatal(err)
	}
	for _, dry := range []bool{true, false} {
		pruned, err := w.Prune(t.Context(), 24*time.Hour, dry)
		if err != nil || len(pruned) != 1 || pruned[0].Digest != idle.Digest || pruned[0].Size == 0 || pruned[0].Names[0] != "nyc/idle" {
			t.Fatalf("dry %v: %+v, %v", dry, pruned, err)
		}
		if _, err := os.Stat(dir(idle.Digest)); (err == nil) != dry {
			t.Errorf("dry %v: %v", dry, err)
		}
	}
	if _, err := w.Use(t.Context(), nyc, "idle"); !fault.Is(err, fault.Gone) {
		t.Errorf("what was pruned: %v", err)
	}
	if e := w.built(t, "idle", environment.Spec{Requirements: []string{"scipy"}}); e.State != environment.Ready || e.Digest != idle.Digest {
		t.Errorf("built again: %+v", e)
	}
	if _, err := w.Prune(t.Context(), time.Minute, true); !fault.Is(err, fault.Invalid) {
		t.Errorf("what was used a minute ago: %v", err)
	}
	w.auth.denied = true
	if _, err := w.Prune(t.Context(), 24*time.Hour, true); !fault.Is(err, fault.PermissionDenied) {
		t.Errorf("%v", err)
	}
}

// TestPruneAndUse: whoever asks for an environment while it is pruned gets all of
// it, for good, or is told that it is gone.
func TestPruneAndUse(t *testing.T) {
	w, _ := kindsWorld(t)
	spec := environment.Spec{Requirements: []string{"six"}}
	e := w.built(t, "py", spec)
	dir := filepath.Join(w.cfg.Dir, strings.TrimPrefix(string(e.Digest), "sha256:"))
	long := time.Now().Add(-48 * time.Hour)
	gone := 0
	for range 8 {
		if err := os.Chtimes(dir, long, long); err != nil {
			t.Fatal(err)
		}
		var both sync.WaitGroup
		var usable error
		both.Go(func() { _, usable = w.Use(t.Context(), nyc, "py") })
		both.Go(func() {
			if _, err := w.Prune(t.Context(), 24*time.Hour, false); err != nil {
				t.Error(err)
			}
		})
		both.Wait()
		_, err := os.Stat(filepath.Join(dir, "bin", "python"))
		switch {
		case usable == nil && err != nil:
			t.Fatal("it was pruned while it was used")
		case usable != nil && !fault.Is(usable, fault.Gone):
			t.Fatal(usable)
		case usable != nil:
			gone++
			w.built(t, "py", spec)
		}
	}
	t.Logf("pruned first in %d of 8", gone)
}
