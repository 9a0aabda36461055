package environment_test

import (
	"context"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/falaj-ml/falaj/internal/compute"
	"github.com/falaj-ml/falaj/internal/compute/engine/enginetest"
	"github.com/falaj-ml/falaj/internal/environment"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/oci"
	"github.com/falaj-ml/falaj/internal/oci/ocitest"
)

var home = compute.Pool{Name: "home", Engine: "local"}

// imagesWorld keeps images of a registry on loopback.
func imagesWorld(t *testing.T, containers func() error) (*world, *oci.Store, *ocitest.Registry, *atomic.Int64) {
	t.Helper()
	r, late := ocitest.New(t), &atomic.Int64{}
	images, err := oci.New(oci.Config{
		Dir: t.TempDir(), Registries: []string{r.Host}, Insecure: []string{r.Host},
		Now: func() time.Time { return time.Now().Add(time.Duration(late.Load())) },
	})
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, enginetest.NewFake(), func(c *environment.Config) {
		pretend(t)(c)
		c.Images, c.Containers, c.Now = images, containers, func() time.Time { return time.Now().Add(time.Duration(late.Load())) }
	})
	t.Cleanup(func() { _ = w.Close() })
	return w, images, r, late
}

func (w *world) image(t *testing.T, name, ref string) environment.Environment {
	t.Helper()
	e, _, err := w.Apply(t.Context(), nyc, name, environment.Spec{Image: ref})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// here waits for an image that is being pulled ahead.
func here(t *testing.T, images *oci.Store, ref string) {
	t.Helper()
	for {
		if _, err := images.Find(ref); err == nil {
			return
		} else if !fault.Is(err, fault.NotFound) || t.Context().Err() != nil {
			t.Fatal(err)
		}
		select {
		case <-time.After(5 * time.Millisecond):
		case <-t.Context().Done():
		}
	}
}

// TestImagesArePulledAhead: what is applied is here soon, without a job; the
// first job finds it although the registry is away by then.
func TestImagesArePulledAhead(t *testing.T) {
	w, images, r, _ := imagesWorld(t, nil)
	e := w.image(t, "img", r.Push(t, "x/y", ocitest.Image(t, nil, ocitest.Tar(t, ocitest.File("f", "x", 0o644)))))
	here(t, images, e.Image)
	r.Stop()
	use, err := w.Use(t.Context(), nyc, "img")
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Fetch(t.Context(), use, home); err != nil {
		t.Error(err)
	}
}

// TestFetch pulls what nobody pulled ahead, on this machine only.
func TestFetch(t *testing.T) {
	away := fault.New(fault.Unsupported, "it runs no images: runc is not installed there")
	w, images, r, _ := imagesWorld(t, func() error { return away })
	e := w.image(t, "img", r.Push(t, "x/y", ocitest.Image(t, nil, ocitest.Tar(t, ocitest.File("f", "x", 0o644)))))
	use, err := w.Use(t.Context(), nyc, "img")
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Fetch(t.Context(), use, compute.Pool{Name: "k", Engine: "kube"}); err != nil {
		t.Error(err)
	}
	if _, err := images.Find(e.Image); !fault.Is(err, fault.NotFound) {
		t.Errorf("it was pulled for nobody: %v", err)
	}
	c, err := w.Fits(t.Context(), nyc, "img")
	if err != nil || c.Pools[0].Fits || !slices.Contains(c.Pools[0].Reasons, away.Error()) {
		t.Errorf("%+v, %v", c, err)
	}
	if err := w.Fetch(t.Context(), use, home); err != nil {
		t.Fatal(err)
	}
	here(t, images, e.Image)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	use.Image = r.Host + "/x/y@sha256:" + strings.Repeat("0", 64)
	if err := w.Fetch(ctx, use, home); err == nil {
		t.Error("a cancelled fetch is no error")
	}
}

// TestPruneImages removes those that nobody used for long, and no other.
func TestPruneImages(t *testing.T) {
	w, images, r, late := imagesWorld(t, nil)
	all := map[string]environment.Environment{}
	for _, name := range []string{"idle", "held", "running", "used"} {
		all[name] = w.image(t, name, r.Push(t, "x/"+name, ocitest.Image(t, nil, ocitest.Tar(t, ocitest.File(name, name, 0o644)))))
		here(t, images, all[name].Image)
	}
	w.Hold(func(context.Context) ([]environment.Digest, error) {
		return []environment.Digest{all["held"].Digest}, nil
	})
	defer images.Hold(all["running"].Image)() // as the engine does
	late.Store(int64(48 * time.Hour))
	use, err := w.Use(t.Context(), nyc, "used")
	if err == nil {
		err = w.Fetch(t.Context(), use, home)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, dry := range []bool{true, false} {
		pruned, err := w.Prune(t.Context(), 24*time.Hour, dry)
		if err != nil || len(pruned) != 1 || pruned[0].Image != all["idle"].Image || cmp.Diff([]string{"nyc/idle"}, pruned[0].Names) != "" || pruned[0].Size == 0 {
			t.Fatalf("dry %v: %+v, %v", dry, pruned, err)
		}
		if _, err := images.Find(all["idle"].Image); (err == nil) != dry {
			t.Errorf("dry %v: %v", dry, err)
		}
	}
	for _, name := range []string{"held", "running", "used"} {
		if _, err := images.Find(all[name].Image); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	// What was pruned comes back with the next job.
	use, err = w.Use(t.Context(), nyc, "idle")
	if err == nil {
		err = w.Fetch(t.Context(), use, home)
	}
	if err != nil {
		t.Error(err)
	}
}

// TestImageTells: what an image's variables say counts as what it brings.
func TestImageTells(t *testing.T) {
	w, _, r, _ := imagesWorld(t, nil)
	e := w.image(t, "cuda", r.Push(t, "x/cuda", ocitest.Image(t, []string{
		"PATH=/bin", "CUDA_VERSION=12.4.1.003", "NV_CUDNN_VERSION=9.1.0.70-1", "PYTORCH_VERSION=2.4.0a0+3bcc3cddb5", "NVIDIA_VISIBLE_DEVICES=all",
	}, ocitest.Tar(t, ocitest.File("f", "x", 0o644)))))
	want := []environment.Package{
		{Name: "cuda", Version: "12.4.1.003", From: "image"}, {Name: "cudnn", Version: "9.1.0.70", From: "image"}, {Name: "torch", Version: "2.4.0a0+3bcc3cddb5", From: "image"},
	}
	if diff := cmp.Diff(want, e.SBOM); diff != "" {
		t.Error(diff)
	}
	gpu := compute.PoolSpec{Nodes: []compute.Node{{
		Name: "g1", CPU: 4000, Memory: 1 << 30, Accelerators: map[string]int64{"nvidia.com/gpu": 1},
		Labels: map[string]string{"arch": "x86_64", "nvidia.driver": "470.57.02", "gpu.compute": "3.7"},
	}}}
	if _, _, err := w.compute.Pools.ApplyPool(t.Context(), "gpus", gpu); err != nil {
		t.Fatal(err)
	}
	c, err := w.Fits(t.Context(), nyc, "cuda")
	if err != nil || c.Needs.CUDA != "12.4" || c.Needs.CUDNN != "9.1.0" || c.Needs.Framework != "torch 2.4.0a0+3bcc3cddb5" {
		t.Fatalf("%+v, %v", c, err)
	}
	f := c.Pools[slices.IndexFunc(c.Pools, func(f environment.Fit) bool { return f.Pool == "gpus" })]
	wantReasons := []string{
		"its GPUs have compute capability 3.7, and CUDA 12.4 and cuDNN 9.1.0 (of the image's CUDA_VERSION) has no code below 5.0",
		"its NVIDIA driver is 470.57.02, and CUDA 12.4 and cuDNN 9.1.0 (of the image's CUDA_VERSION) needs 525 or newer",
	}
	if diff := cmp.Diff(wantReasons, f.Reasons); diff != "" {
		t.Error(diff)
	}
}
