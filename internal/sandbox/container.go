package sandbox

import (
	"os"

	"github.com/falaj-ml/falaj/internal/fault"
)

// containable tells before anything starts that a container cannot.
func containable(i Image) error {
	if os.Geteuid() != 0 {
		return fault.New(fault.Unsupported, "only root can run images: their mounts need it").
			WithHint("Run falaj as root, or use an environment of packages instead of an image.")
	}
	if _, err := os.Stat(i.Runtime); err != nil {
		return fault.New(fault.Unsupported, "the container runtime is not at %s", i.Runtime).
			WithHint("Install runc (Debian: apt-get install runc).")
	}
	if fi, err := os.Stat(i.Root); err != nil || !fi.IsDir() {
		return fault.New(fault.Unavailable, "the unpacked image is not at %s", i.Root).
			WithHint("Pull it again.")
	}
	return nil
}
