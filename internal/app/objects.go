package app

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/falaj-ml/falaj/internal/backup"
	"github.com/falaj-ml/falaj/internal/blob"
	"github.com/falaj-ml/falaj/internal/blob/fileblob"
	"github.com/falaj-ml/falaj/internal/blob/s3blob"
	"github.com/falaj-ml/falaj/internal/config"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/filewatch"
	"github.com/falaj-ml/falaj/internal/fsync"
	"github.com/falaj-ml/falaj/internal/id"
)

// openObjects opens the store of objects that the configuration names, and refuses
// another one than that of the last start: nothing would be found in it. The file
// objects.id says "bucket ID", where ID is what the bucket says too; "claiming ID" is
// of a bucket that may not say it yet, because nothing was ever put there.
func (a *App) openObjects(ctx context.Context) (blob.Driver, error) {
	dir, home := filepath.Join(a.cfg.Data, "objects"), filepath.Join(a.cfg.Data, backup.ObjectsHome)
	what, owner, err := readHome(home)
	if err != nil {
		return nil, err
	}
	if what == "" && config.Exists(dir) {
		what = "directory" // from before the file was
	}
	const move = "To move objects, create a backup with the previous configuration (`falaj backup`), and restore it with the new one (`falaj restore`)."
	if a.cfg.Blob.S3.Endpoint == "" {
		if what == "bucket" || what == "claiming" {
			return nil, fault.New(fault.Invalid, "the objects of this installation are in a bucket, but blob.s3 is not set").WithHint("Set blob.s3 as it was. %s", move)
		}
		d, err := fileblob.Open(dir)
		if err != nil {
			return nil, err
		}
		a.onClose(d.Close)
		return d, nil
	}
	if what == "directory" {
		return nil, fault.New(fault.Invalid, "the objects of this installation are in %s, and blob.s3 names a bucket", dir).WithHint("Remove blob.s3. %s", move)
	}
	cfg, err := a.bucket()
	if err != nil {
		return nil, err
	}
	d, err := s3blob.Open(ctx, cfg)
	if err != nil {
		return nil, err
	}
	a.onClose(d.Close)
	a.watchStore(objectStore, 10*time.Second, objectTime, d.Ask)
	if what == "" {
		what, owner = "claiming", id.New("obj")
		if err := writeHome(home, what, owner); err != nil {
			return nil, err
		}
	}
	if what == "claiming" {
		if err := d.Claim(ctx, owner); err != nil {
			return nil, err
		}
		return d, writeHome(home, "bucket", owner)
	}
	switch said, err := d.Owner(ctx); {
	case err != nil:
		return nil, err
	case said != owner:
		return nil, fault.New(fault.Invalid, "the bucket %s with the prefix %q is not the one that has the objects of this installation", cfg.Bucket, cfg.Prefix).
			WithHint("Set blob.s3 as it was. " + move)
	}
	return d, nil
}

func readHome(path string) (what, owner string, err error) {
	b, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", "", err
	}
	what, owner, _ = strings.Cut(strings.TrimSpace(string(b)), " ")
	return what, owner, nil
}

func writeHome(path, what, owner string) error {
	f, err := os.OpenFile(path+".new", os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	if _, err := f.WriteString(what + " " + owner + "\n"); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if err := os.Rename(path+".new", path); err != nil {
		return err
	}
	return fsync.Dir(filepath.Dir(path))
}

// objectTime bounds a question whether the bucket is there.
const objectTime = 5 * time.Second

// bucket is config.Config's, whose files are read again when they change.
func (a *App) bucket() (s3blob.Config, error) {
	cfg, err := a.cfg.Bucket()
	if err != nil {
		return cfg, err
	}
	path := a.cfg.Blob.S3.Credentials
	pair, err := filewatch.Open(func() ([2]string, error) { return config.ReadCredentials(path) }, path)
	if err != nil {
		return cfg, err
	}
	a.follow("blob.s3.credentials", pair)
	cfg.Keys = func() (access, secret string) { v := pair.Value(); return v[0], v[1] }
	cfg.Roots, err = a.authorities("blob.s3.ca", a.cfg.Blob.S3.CA)
	return cfg, err
}
