package app

import (
	"path/filepath"

	"github.com/falaj-ml/falaj/internal/config"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/oci"
	"github.com/falaj-ml/falaj/internal/resource"
)

// openImages opens the store of OCI images. It asks no registry before somebody
// names an image.
func (a *App) openImages() (err error) {
	a.images, err = oci.New(oci.Config{
		Dir: filepath.Join(a.cfg.Data, "images"), Registries: a.cfg.Images.Registries, Insecure: a.cfg.Images.Insecure,
		CA: a.cfg.Images.CA, Auth: a.cfg.Images.Auth, MaxBytes: resource.Bytes(config.Bytes(a.cfg.Images.MaxBytes)), Log: a.log,
		Admit: a.cfg.CheckFree,
	})
	return fault.Wrap(err, "images")
}
