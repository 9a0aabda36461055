package local_test

import (
	"context"
	"io"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/compute/engine"
	"github.com/falaj-ml/falaj/internal/compute/engine/enginetest"
	"github.com/falaj-ml/falaj/internal/compute/engine/local"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/oci"
	"github.com/falaj-ml/falaj/internal/oci/ocitest"
	"github.com/falaj-ml/falaj/internal/resource"
	"github.com/falaj-ml/falaj/internal/sandbox"
	"github.com/falaj-ml/falaj/internal/sandbox/sandboxtest"
	"github.com/falaj-ml/falaj/internal/sandbox/shim"
	"github.com/falaj-ml/falaj/internal/worker/launch"
)

// imaged runs everything in one image.
type imaged struct {
	*local.Driver
	ref string
}

func (d imaged) Start(ctx context.Context, spec engine.Spec) (engine.Handle, error) {
	spec.Image = d.ref
	return d.Driver.Start(ctx, spec)
}

// busybox is a store and an image in a registry.
func busybox(t *testing.T, env ...string) (*oci.Store, *ocitest.Registry, string) {
	t.Helper()
	sandboxtest.Runc(t)
	r := ocitest.New(t)
	ref := r.Push(t, "busybox", ocitest.Image(t, env, ocitest.Busybox(t)))
	images, err := oci.New(oci.Config{Dir: filepath.Join(t.TempDir(), "images"), Registries: []string{r.Host}, Insecure: []string{r.Host}})
	check(t, err)
	return images, r, ref
}

// TestConformanceOfImages runs the suite in containers.
func TestConformanceOfImages(t *testing.T) {
	t.Parallel()
	worker := sandboxtest.Worker(t)
	images, _, ref := busybox(t)
	enginetest.Run(t, enginetest.Options{
		New: func(t *testing.T, dir string) engine.Driver {
			t.Helper()
			d, err := local.New(local.Config{Dir: dir, Worker: worker, Level: sandbox.Sandbox, Images: images})
			check(t, err)
			t.Cleanup(func() { _ = d.Close() })
			return imaged{d, ref}
		},
		Lose: func(t *testing.T, dir string, h engine.Handle) {
			t.Helper()
			st, err := shim.Read[shim.Status](filepath.Join(dir, string(h)), shim.StatusFile)
			check(t, err)
			check(t, st.Shim.Signal(syscall.SIGKILL))
		},
		Isolation: "container", Gangs: true, Record: shim.SpecFile,
	})
}

// TestImage: its variables are there, its limits hold, it is kept while in use,
// and gone or unknown images are refused in words.
func TestImage(t *testing.T) {
	t.Parallel()
	images, registry, ref := busybox(t, "PATH=/bin", "FROM_IMAGE=yes", "BOTH=image")
	d, err := local.New(local.Config{Dir: t.TempDir(), Worker: sandboxtest.Worker(t), Level: sandbox.Sandbox, Images: images})
	check(t, err)
	t.Cleanup(func() { _ = d.Close() })
	work := t.TempDir()
	spec := engine.Spec{
		ID: "att_image", Command: []string{"sh", "-c", `echo $FROM_IMAGE $BOTH $(nc 127.0.0.1 7070 </dev/null | wc -c) $(ls / | tr '\n' ' ')`},
		Env: map[string]string{"BOTH": "spec"}, Image: ref, Dir: work, Mounts: []engine.Mount{{Path: work, Writable: true}},
		Network: engine.Network{API: true},
	}
	st, log := run(t, d, spec)
	if st.Reason != engine.Exited || st.ExitCode != 0 || st.Isolated != "container" || !strings.HasPrefix(log, "yes spec 0 bin dev etc proc sys tmp usr") {
		t.Errorf("%+v %q", st, log)
	}
	registry.Stop() // it is here already

	spec.ID, spec.Resources.Memory = "att_memory", 128*resource.MiB
	spec.Command = []string{"sh", "-c", "x=$(head -c 300000000 /dev/zero | tr '\\0' x); echo survived"}
	if st, log := run(t, d, spec); st.Reason != engine.OutOfMemory {
		t.Errorf("%+v %q", st, log)
	}

	spec.ID, spec.Resources.Memory = "att_gang", 0
	spec.Workers, spec.Launch = 3, launch.Spec{Framework: launch.Plain}
	spec.Command = []string{"sh", "-c", "echo rank $RANK of $WORLD_SIZE at $MASTER_ADDR"}
	if st, log := run(t, d, spec); st.ExitCode != 0 || strings.Count(log, " of 3 at 127.0.0.1") != 3 {
		t.Errorf("%+v %q", st, log)
	}

	spec.Workers, spec.Launch = 0, launch.Spec{}
	spec.ID, spec.Command = "att_long", []string{"sleep", "100000"}
	h, err := d.Start(t.Context(), spec)
	check(t, err)
	later := time.Now().Add(time.Hour)
	if gone, err := images.Prune(t.Context(), later, nil, false); err != nil || len(gone) > 0 {
		t.Errorf("an image in use was removed: %v %v", gone, err)
	}
	check(t, d.Stop(t.Context(), h, 0))
	if _, err := d.Wait(t.Context(), h); err != nil {
		t.Error(err)
	}
	if gone, err := images.Prune(t.Context(), later, nil, false); err != nil || len(gone) != 1 {
		t.Errorf("an image that nobody uses was kept: %v %v", gone, err)
	}
	// What ran is found again without its image.
	if again, err := d.Start(t.Context(), spec); err != nil || again != h {
		t.Errorf("%s %v", again, err)
	}
	spec.ID = "att_away"
	if _, err := d.Start(t.Context(), spec); !fault.Is(err, fault.Unavailable) {
		t.Errorf("%v", err)
	}
	spec.Image = "registry.invalid/x@sha256:" + strings.Repeat("0", 64)
	if _, err := d.Start(t.Context(), spec); !fault.Is(err, fault.PermissionDenied) {
		t.Errorf("%v", err)
	}
	spec.Image = registry.Host + "/busybox:latest"
	if _, err := d.Start(t.Context(), spec); !fault.Is(err, fault.Invalid) {
		t.Errorf("%v", err)
	}
	if all, err := d.List(t.Context()); err != nil || len(all) != 4 {
		t.Errorf("%v %v", all, err)
	}
}

func run(t *testing.T, d *local.Driver, spec engine.Spec) (engine.Status, string) {
	t.Helper()
	h, err := d.Start(t.Context(), spec)
	check(t, err)
	st, err := d.Wait(t.Context(), h)
	check(t, err)
	r, err := d.Logs(t.Context(), h, 0, false)
	check(t, err)
	defer r.Close()
	log, err := io.ReadAll(r)
	check(t, err)
	return st, string(log)
}
