package local

import (
	"context"
	"maps"
	"os/exec"

	"github.com/falaj-ml/falaj/internal/compute/engine"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/oci"
	"github.com/falaj-ml/falaj/internal/sandbox"
)

// Images holds unpacked images; *oci.Store is one.
type Images interface {
	Pull(ctx context.Context, ref string) (oci.Image, func(), error)
	Hold(ref string) (release func())
}

// container gives the image that a spec asks for, and adds the image's variables
// to those of the spec, which win. It is nil for a spec without an image and for
// a workload that was started before, whatever became of its image since. Until
// release, which is never nil, the image stays.
//
// Pulling may take minutes: an environment does it when it is built, so that
// here the image is found.
func (d *Driver) container(ctx context.Context, spec *engine.Spec) (*sandbox.Image, func(), error) {
	none := func() {}
	if spec.Image == "" {
		return nil, none, nil
	}
	d.mu.Lock()
	known := d.workloads[engine.Handle(spec.ID)]
	d.mu.Unlock()
	if known != nil && !known.unborn() {
		return nil, none, nil
	}
	if d.c.Images == nil {
		return nil, none, fault.New(fault.Unsupported, "this server keeps no images").WithHint("List registries under images.registries.")
	}
	runtime, err := exec.LookPath(d.c.Runtime)
	if err != nil {
		return nil, none, fault.New(fault.Unsupported, "running images needs %s, which is not installed", d.c.Runtime).
			WithHint("Install it (Debian: apt-get install runc).")
	}
	image, release, err := d.c.Images.Pull(ctx, spec.Image)
	if err != nil {
		return nil, none, err
	}
	env := image.Variables()
	maps.Copy(env, spec.Env)
	spec.Env = env
	return &sandbox.Image{Root: image.Root, Runtime: runtime}, release, nil
}
