package mlflow

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/falaj-ml/falaj/internal/fault"
)

// roots are the directories that the user named. Files are read below them only,
// also through links: what a source says of where its artifacts are is what
// somebody wrote into it.
type roots []root

type root struct {
	name string // absolute
	dir  *os.Root
}

func openRoots(names []string) (out roots, err error) {
	for _, name := range names {
		abs, err := filepath.Abs(name)
		var dir *os.Root
		if err == nil {
			dir, err = os.OpenRoot(abs)
		}
		if err != nil {
			out.close()
			return nil, fault.New(fault.Invalid, "--artifacts %s: %w", name, err).WithHint("Name the directory in which the MLflow server keeps its artifacts.")
		}
		out = append(out, root{abs, dir})
	}
	return out, nil
}

func (r roots) close() {
	for _, x := range r {
		_ = x.dir.Close()
	}
}

// find is where a URI of artifacts points, below a root. A server's own artifacts,
// mlflow-artifacts:/…, are in the first root that has them.
func (r roots) find(uri string) (*os.Root, string, error) {
	unreachable := func(why, hint string) (*os.Root, string, error) {
		return nil, "", fault.New(fault.Unavailable, "%s", why).WithHint("%s", hint)
	}
	u, err := url.Parse(uri)
	if err != nil {
		return unreachable("its artifacts are at no address that can be read", "Import from the address of the server.")
	}
	switch u.Scheme {
	case "mlflow-artifacts":
		rel := path.Clean("/" + u.Path)[1:]
		if !fs.ValidPath(rel) {
			break
		}
		for _, x := range r {
			if _, err := x.dir.Stat(rel); err == nil {
				return x.dir, rel, nil
			}
		}
		if len(r) > 0 {
			return r[0].dir, rel, nil // it has no artifacts
		}
		return unreachable("the server keeps its artifacts (mlflow-artifacts:)", "Name the directory of --artifacts-destination with --artifacts, or import from the address of the server.")
	case "", "file":
		if u.Scheme == "file" && u.Host != "" && u.Host != "localhost" || !filepath.IsAbs(u.Path) {
			break
		}
		for _, x := range r {
			rel, err := filepath.Rel(x.name, filepath.Clean(u.Path))
			if err == nil && filepath.IsLocal(rel) {
				return x.dir, rel, nil
			}
		}
		return unreachable("its artifacts are in a directory that --artifacts does not name", "Name it, or one that it is in, with --artifacts.")
	}
	return unreachable("its artifacts are at "+u.Scheme+"://, which is not read", "Import from the address of the server, which fetches them.")
}

func (r roots) list(ctx context.Context, p Place, yield func(File) error, refused func(string, error)) error {
	dir, at, err := r.find(p.URI)
	if err != nil {
		return err
	}
	_, err = dir.Stat(at)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fault.New(fault.Unavailable, "its artifacts cannot be read: %w", err)
	}
	return fs.WalkDir(dir.FS(), at, func(name string, e fs.DirEntry, err error) error {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		rel := strings.TrimPrefix(strings.TrimPrefix(name, at), "/")
		if at == "." {
			rel = name
		}
		switch {
		case err != nil:
			refused(rel, err)
			return nil
		case e.IsDir():
			return nil
		case !e.Type().IsRegular():
			refused(rel, errors.New("it is a link or no plain file"))
			return nil
		}
		f, err := fileOf(dir, name)
		if err != nil {
			refused(rel, err)
			return nil
		}
		f.Path = rel
		return yield(f)
	})
}

// fileOf is a file's size and digest.
func fileOf(dir *os.Root, name string) (File, error) {
	f, err := dir.Open(name)
	if err != nil {
		return File{}, err
	}
	defer f.Close()
	h := sha256.New()
	n, err := io.Copy(h, f)
	return File{Size: n, Digest: "sha256:" + hex.EncodeToString(h.Sum(nil))}, err
}

func (r roots) fetch(p Place, name string) (io.ReadCloser, error) {
	dir, at, err := r.find(p.URI)
	if err != nil {
		return nil, err
	}
	return dir.Open(path.Join(at, name))
}
