package training

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/falaj-ml/falaj/internal/blob"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/store"
	workarchive "github.com/falaj-ml/falaj/internal/worker/archive"
)

// Limits of a source archive.
const (
	maxArchive  = 256 << 20 // packed bytes
	maxUnpacked = 1 << 30
	maxFiles    = 20_000
	maxDepth    = 40
	maxName     = 1000
)

// Source is an uploaded source archive.
type Source struct {
	Digest string `json:"digest"` // for Spec.Source
	Files  int    `json:"files"`
	Size   int64  `json:"size"` // unpacked bytes
}

// UploadSource keeps a gzipped tar archive that jobs may name. It holds plain
// files and directories only: links, devices and names that leave the archive
// are refused. Needs job.submit. Errors: fault.Invalid; fault.TooLarge.
func (s *Service) UploadSource(ctx context.Context, p project.Name, archive io.Reader) (Source, error) {
	if err := s.allow(ctx, ActionSubmit, Job{Project: p}); err != nil {
		return Source{}, err
	}
	if err := os.MkdirAll(s.cfg.Dir, 0o700); err != nil {
		return Source{}, err
	}
	f, err := os.CreateTemp(s.cfg.Dir, ".upload-*")
	if err != nil {
		return Source{}, fault.Wrap(err, "receiving a source archive")
	}
	defer f.Close()
	defer os.Remove(f.Name())
	h := sha256.New()
	n, err := io.Copy(io.MultiWriter(f, h), io.LimitReader(archive, maxArchive+1))
	if err != nil {
		return Source{}, fault.Wrap(err, "receiving a source archive")
	}
	if n > maxArchive {
		return Source{}, fault.New(fault.TooLarge, "the source archive exceeds %d bytes", maxArchive).
			WithHint("Exclude data from the archive; pass data to the job by name in spec.data.")
	}
	src := Source{Digest: "sha256:" + hex.EncodeToString(h.Sum(nil))}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return Source{}, err
	}
	if src.Files, src.Size, err = unpack(f, nil); err != nil {
		return Source{}, err
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return Source{}, err
	}
	done, err := s.upload(ctx, p, src.Digest)
	if err != nil {
		return src, fault.Wrap(err, "storing a source archive")
	}
	defer done()
	if err := s.cfg.Sources.Save(ctx, p, src.Digest, f); err != nil {
		return src, fault.Wrap(err, "storing a source archive")
	}
	return src, s.cfg.DB.Update(ctx, string(p), func(ctx context.Context, tx *store.Tx) error {
		return audit.Append(ctx, tx, audit.Entry{
			Project: string(p), Action: string(ActionSubmit), Object: "source " + src.Digest, Detail: map[string]any{"act": "upload", "files": src.Files, "size": src.Size},
		})
	})
}

// unpack reads a gzipped tar archive and writes its files below root; with a
// nil root it only checks. It returns the number of files and their bytes.
func unpack(r io.Reader, root *os.Root) (files int, size int64, err error) {
	bad := func(format string, args ...any) (int, int64, error) {
		return files, size, fault.New(fault.Invalid, "source archive: "+format, args...).
			WithHint("Pack plain files and directories with relative names: tar czf source.tar.gz -C DIR .")
	}
	gz, err := gzip.NewReader(r)
	if err != nil {
		return bad("the archive is not gzip: %v", err)
	}
	t := tar.NewReader(gz)
	for entries := 0; ; entries++ {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			return files, size, nil
		}
		if err != nil {
			return bad("%v", err)
		}
		if entries >= maxFiles {
			return files, size, fault.New(fault.TooLarge, "the source archive has more than %d entries", maxFiles)
		}
		if h.Typeflag == tar.TypeXGlobalHeader {
			continue // git archive writes one
		}
		name := path.Clean(h.Name)
		if len(h.Name) > maxName || strings.ContainsAny(h.Name, "\\\x00") || !filepath.IsLocal(name) || strings.Count(name, "/") > maxDepth ||
			path.IsAbs(h.Name) || hasDotDot(h.Name) {
			return bad("%.200q is not a relative name below the archive's root", h.Name)
		}
		switch h.Typeflag {
		case tar.TypeDir:
			if root != nil && name != "." {
				if err := root.MkdirAll(name, 0o700); err != nil {
					return files, size, placing(name, err)
				}
			}
		case tar.TypeReg:
			if name == "." {
				return bad("%.200q is not a relative name below the archive's root", h.Name)
			}
			files++
			if size += h.Size; h.Size < 0 || size > maxUnpacked {
				return files, size, fault.New(fault.TooLarge, "the source archive exceeds %d bytes unpacked", maxUnpacked)
			}
			if err := place(root, name, h.FileInfo().Mode(), t); err != nil {
				return files, size, err
			}
		case tar.TypeSymlink, tar.TypeLink:
			return bad("%.200q is a link", h.Name)
		default:
			return bad("%.200q is neither a file nor a directory", h.Name)
		}
	}
}

func hasDotDot(name string) bool {
	for part := range strings.SplitSeq(name, "/") {
		if part == ".." {
			return true
		}
	}
	return false
}

// place writes one file of an archive; the owner's execute bit is kept.
func place(root *os.Root, name string, mode fs.FileMode, content io.Reader) error {
	if root == nil {
		if _, err := io.Copy(io.Discard, content); err != nil {
			return fault.New(fault.Invalid, "source archive: %.200q: %v", name, err)
		}
		return nil
	}
	if dir := path.Dir(name); dir != "." {
		if err := root.MkdirAll(dir, 0o700); err != nil {
			return placing(name, err)
		}
	}
	f, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600|mode&0o100)
	if err != nil {
		return placing(name, err)
	}
	sparse := workarchive.NewSparse(f)
	_, err = io.Copy(sparse, content)
	return placing(name, errors.Join(err, sparse.Finish(), f.Close()))
}

func placing(name string, err error) error {
	return fault.Wrap(err, "unpacking %.200s", name)
}

// BlobSources keeps source archives in a blob store, sealed by a key of the
// project.
type BlobSources struct{ Store *blob.Store }

var _ Sources = BlobSources{}

func (b BlobSources) ref(p project.Name, digest string) blob.Ref {
	return blob.Ref{
		Project: string(p), Owner: "sources",
		Key: sourcePrefix(p) + blob.Key(strings.ReplaceAll(digest, ":", "-")),
	}
}

// Save stores an archive. What does not have the digest is refused with
// fault.Invalid and not kept.
func (b BlobSources) Save(ctx context.Context, p project.Name, digest string, archive io.Reader) error {
	_, err := b.Store.Put(ctx, b.ref(p, digest), archive, blob.WithDigest(digest), blob.WithLimit(maxArchive))
	return err
}

// Open reads an archive back.
func (b BlobSources) Open(ctx context.Context, p project.Name, digest string) (io.ReadCloser, error) {
	return b.Store.Open(ctx, b.ref(p, digest))
}
