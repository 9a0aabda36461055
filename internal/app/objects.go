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
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/filewatch"
	"github.com/falaj-ml/falaj/internal/fsync"
	"github.com/falaj-ml/falaj/internal/governance/residency"
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
	if what == "" && exists(dir) {
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

// validateObjects looks at blob.s3, without asking the endpoint.
func (c Config) validateObjects() error {
	s3 := c.Blob.S3
	if s3.Endpoint == "" {
		if s3.Bucket != "" {
			return fault.New(fault.Invalid, "endpoint is needed with bucket")
		}
		return nil
	}
	if s3.Credentials == "" {
		return fault.New(fault.Invalid, "credentials is needed").WithHint("Name a file with the lines access_key = … and secret_key = ….")
	}
	if s3.Zone != string(residency.Home) {
		return fault.New(fault.Invalid, "zone: the bucket is in %q, but objects must be in %s", s3.Zone, residency.Home).
			WithHint("Data without labels must be in %s. If the bucket is in that zone, set zone: %s", residency.Home, residency.Home)
	}
	return s3blob.CheckConfig(s3blob.Config{Endpoint: s3.Endpoint, Bucket: s3.Bucket, Prefix: s3.Prefix})
}

// bucket reads what the configuration names.
func (c Config) bucket() (s3blob.Config, error) {
	s3 := c.Blob.S3
	out := s3blob.Config{Endpoint: s3.Endpoint, Bucket: s3.Bucket, Prefix: s3.Prefix, Region: s3.Region}
	pair, err := readCredentials(s3.Credentials)
	if err != nil {
		return out, err
	}
	out.AccessKey, out.SecretKey = pair[0], pair[1]
	if s3.CA != "" {
		if out.CA, err = os.ReadFile(s3.CA); err != nil {
			return out, fault.New(fault.Invalid, "blob.s3.ca: %w", err)
		}
	}
	return out, nil
}

// objectTime bounds a question whether the bucket is there.
const objectTime = 5 * time.Second

// bucket is Config's, whose files are read again when they change.
func (a *App) bucket() (s3blob.Config, error) {
	cfg, err := a.cfg.bucket()
	if err != nil {
		return cfg, err
	}
	path := a.cfg.Blob.S3.Credentials
	pair, err := filewatch.Open(func() ([2]string, error) { return readCredentials(path) }, path)
	if err != nil {
		return cfg, err
	}
	a.follow("blob.s3.credentials", pair)
	cfg.Keys = func() (access, secret string) { v := pair.Value(); return v[0], v[1] }
	if a.cfg.Blob.S3.CA != "" {
		roots, err := filewatch.Authorities(a.cfg.Blob.S3.CA)
		if err != nil {
			return cfg, fault.Wrap(err, "blob.s3.ca")
		}
		a.follow("blob.s3.ca", roots)
		cfg.Roots = roots.Value
	}
	return cfg, nil
}

// checkBucket asks for the bucket, for the doctor.
func (c Config) checkBucket(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	cfg, err := c.bucket()
	if err != nil {
		return err
	}
	return s3blob.Check(ctx, cfg)
}

// readCredentials reads the keys of a bucket: the access key and the secret key. No error
// has a line of the file.
func readCredentials(path string) (pair [2]string, err error) {
	const form = "Two lines: access_key = … and secret_key = …"
	text, err := filewatch.ReadPrivate(path)
	if err != nil {
		err = fault.Wrap(err, "blob.s3.credentials")
		if fault.HintOf(err) == "" {
			return pair, fault.New(fault.Invalid, "%w", err).WithHint(form)
		}
		return pair, err
	}
	for n, line := range strings.Split(text, "\n") {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		key, value, _ := strings.Cut(line, "=")
		switch strings.TrimSpace(key) {
		case "access_key":
			pair[0] = strings.TrimSpace(value)
		case "secret_key":
			pair[1] = strings.TrimSpace(value)
		default:
			return pair, fault.New(fault.Invalid, "blob.s3.credentials: line %d of %s is neither access_key nor secret_key", n+1, path).WithHint(form)
		}
	}
	if pair[0] == "" || pair[1] == "" {
		return pair, fault.New(fault.Invalid, "blob.s3.credentials: %s has no access_key or no secret_key", path).WithHint(form)
	}
	return pair, nil
}
