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
	"slices"
	"strings"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/falaj-ml/falaj/internal/blob"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/id"
	"github.com/falaj-ml/falaj/internal/lifecycle"
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

// StoredSource is where a source archive is stored. Each upload that stores one gives it an
// object of its own, so that the deletion of an object never hits a later upload, not even one
// to another server on the same database. Releases before stored it under its digest alone.
type StoredSource struct {
	Digest string
	Object string // sar_ and a ULID; empty in those releases
}

const sourcePart = "sar"

// SourceArchives keeps the uploaded source of jobs. The API uploads archives, sweeps check them,
// and housekeeping removes unused ones.
type SourceArchives struct {
	*core
	sourceStore SourceStore
}

// UploadSource keeps a gzipped tar archive that jobs may name. It holds plain
// files and directories only: links, devices and names that leave the archive
// are refused. Needs job.submit. Errors: fault.Invalid; fault.TooLarge.
func (s *SourceArchives) UploadSource(ctx context.Context, p project.Name, archive io.Reader) (Source, error) {
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
	return src, fault.Wrap(s.keepSource(ctx, p, src, f), "storing a source archive")
}

// keepSource stores an archive, unless it is stored already, and puts it on record.
func (s *SourceArchives) keepSource(ctx context.Context, p project.Name, src Source, archive io.Reader) error {
	ctx, cancel := context.WithTimeout(ctx, blob.RecordWithin)
	defer cancel()
	record := func(put func(ctx context.Context, tx *store.Tx) error) error {
		return s.cfg.DB.Update(ctx, string(p), func(ctx context.Context, tx *store.Tx) error {
			if err := put(ctx, tx); err != nil {
				return err
			}
			return audit.Append(ctx, tx, audit.Entry{
				Project: string(p), Action: string(ActionSubmit), Object: "source " + src.Digest, Detail: map[string]any{"act": "upload", "files": src.Files, "size": src.Size},
			})
		})
	}
	use := func(ctx context.Context, tx *store.Tx) error {
		return s.sourceStore.UseSource(ctx, tx, p, src.Digest, s.now())
	}
	old, err := s.storedSource(ctx, p, src.Digest)
	if err != nil {
		return err
	}
	if s.wholeSource(ctx, p, old) {
		if err := record(use); !fault.Is(err, fault.NotFound) {
			return err
		}
	}
	ours := StoredSource{Digest: src.Digest, Object: id.New(sourcePart)}
	if err := s.cfg.Sources.Save(ctx, p, ours, archive); err != nil {
		return err
	}
	return record(func(ctx context.Context, tx *store.Tx) error {
		now, err := s.sourceStore.Sources(ctx, tx, p, []string{src.Digest})
		if err != nil {
			return err
		}
		if other, ok := now[src.Digest]; ok && other != old { // uploaded at the same time
			return use(ctx, tx)
		}
		return s.sourceStore.PutSource(ctx, tx, p, ours, s.now())
	})
}

// wholeSource reports whether an archive can be read to its end.
func (s *SourceArchives) wholeSource(ctx context.Context, p project.Name, a StoredSource) bool {
	r, err := s.cfg.Sources.Open(ctx, p, a)
	if err != nil {
		return false
	}
	_, err = io.Copy(io.Discard, r)
	return errors.Join(err, r.Close()) == nil
}

// storedSource is where an archive is stored. One that is not on record may be of a release
// that kept no record.
func (s *SourceArchives) storedSource(ctx context.Context, p project.Name, digest string) (StoredSource, error) {
	a := StoredSource{Digest: digest}
	err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		recorded, err := s.sourceStore.Sources(ctx, tx, p, []string{digest})
		if found, ok := recorded[digest]; ok {
			a = found
		}
		return err
	})
	return a, err
}

// openSource opens an archive, also one that is uploaded again in the meantime.
func (s *SourceArchives) openSource(ctx context.Context, p project.Name, digest string) (a StoredSource, r io.ReadCloser, err error) {
	for tried := (StoredSource{}); ; tried = a {
		if a, err = s.storedSource(ctx, p, digest); err != nil {
			return a, nil, err
		}
		r, err = s.cfg.Sources.Open(ctx, p, a)
		if !fault.Is(err, fault.NotFound) || a == tried {
			return a, r, fault.Wrap(err, "opening the source archive")
		}
	}
}

// findSource refuses a source archive that was not uploaded.
func (s *SourceArchives) findSource(ctx context.Context, p project.Name, digest string) (StoredSource, error) {
	a, r, err := s.openSource(ctx, p, digest)
	if err != nil {
		return a, err
	}
	return a, r.Close()
}

// CheckSource refuses a source archive that was not uploaded, and keeps it for another week. It
// checks no permission.
func (s *SourceArchives) CheckSource(ctx context.Context, p project.Name, digest string) error {
	a, err := s.findSource(ctx, p, digest)
	if err != nil {
		return err
	}
	return s.cfg.DB.Update(ctx, string(p), func(ctx context.Context, tx *store.Tx) error { return s.useSource(ctx, tx, p, a) })
}

// useSource notes that something names an archive that was found.
func (s *SourceArchives) useSource(ctx context.Context, tx *store.Tx, p project.Name, a StoredSource) error {
	if a.Object == "" { // it may be of a release that kept no record
		if err := s.sourceStore.FoundSources(ctx, tx, p, []StoredSource{a}, s.now()); err != nil {
			return err
		}
	}
	return s.sourceStore.UseSource(ctx, tx, p, a.Digest, s.now())
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

// ref names the object of an archive: its digest and, of this release, a name that no other
// upload has.
func (b BlobSources) ref(p project.Name, a StoredSource) blob.Ref {
	name := strings.ReplaceAll(a.Digest, ":", "-")
	if a.Object != "" {
		name += "." + a.Object
	}
	return blob.Ref{Project: string(p), Owner: "sources", Key: sourcePrefix(p) + blob.Key(name)}
}

// Save stores an archive. What does not have the digest is refused with
// fault.Invalid and not kept.
func (b BlobSources) Save(ctx context.Context, p project.Name, a StoredSource, archive io.Reader) error {
	_, err := b.Store.Put(ctx, b.ref(p, a), archive, blob.WithDigest(a.Digest), blob.WithLimit(maxArchive))
	return err
}

// Open reads an archive back.
func (b BlobSources) Open(ctx context.Context, p project.Name, a StoredSource) (io.ReadCloser, error) {
	return b.Store.Open(ctx, b.ref(p, a))
}

// List gives the archives of a project.
func (b BlobSources) List(ctx context.Context, p project.Name, yield func(StoredSource) error) error {
	prefix := sourcePrefix(p)
	return b.Store.List(ctx, prefix, func(key blob.Key) error {
		name, object, _ := strings.Cut(strings.TrimPrefix(string(key), string(prefix)), ".")
		digest := strings.Replace(name, "-", ":", 1)
		if ours := object == "" || id.Check(sourcePart, object) == nil; !ours || !digestRE.MatchString(digest) {
			return nil
		}
		return yield(StoredSource{Digest: digest, Object: object})
	})
}

// Delete removes an archive.
func (b BlobSources) Delete(ctx context.Context, p project.Name, a StoredSource) error {
	return b.Store.Delete(ctx, b.ref(p, a))
}

func sourcePrefix(p project.Name) blob.Key { return blob.Key("projects/" + string(p) + "/sources/") }

const (
	// sourceUnused is for how long a source archive is kept that no job and no sweep names: a
	// client uploads it before it submits.
	sourceUnused = 7 * 24 * time.Hour
	sourceBatch  = 50
)

// SweepSources removes source archives of a project that no job and no sweep names, and that
// were neither uploaded nor named for a week, until the pass is over. It gives their number.
//
// Several servers on one database may sweep and receive uploads at the same time. The record of
// an archive goes first; only the server that ends it deletes the object, which no later upload
// uses.
func (s *SourceArchives) SweepSources(ctx context.Context, p project.Name, pass lifecycle.Pass) (removed int, err error) {
	ctx = identity.With(ctx, identity.Loop("retention of source archives"))
	before, after := s.now().Add(-sourceUnused), ""
	var found []StoredSource
	if err := s.cfg.Sources.List(ctx, p, func(a StoredSource) error {
		if found = append(found, a); len(found) < 10*sourceBatch {
			return nil
		}
		defer func() { found = found[:0] }()
		return s.settleSources(ctx, p, found)
	}); err != nil {
		return 0, fault.Wrap(err, "listing the source archives of project %s", p)
	}
	if err := s.settleSources(ctx, p, found); err != nil {
		return 0, fault.Wrap(err, "listing the source archives of project %s", p)
	}
	err = pass.Repeat(ctx, func(ctx context.Context) (bool, error) {
		var unused []string
		if err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
			unused, err = s.sourceStore.UnusedSources(ctx, tx, p, before, after, sourceBatch)
			return err
		}); err != nil || len(unused) == 0 {
			return false, err
		}
		after = unused[len(unused)-1]
		n, err := s.removeSources(ctx, p, unused, before)
		removed += n
		return len(unused) == sourceBatch, err
	})
	return removed, fault.Wrap(err, "removing source archives of project %s", p)
}

// settleSources puts archives on record that earlier releases stored, and deletes what a killed
// server, or an upload at the same time, left: objects that the record of their digest does not
// name, and that are too old to be recorded yet.
func (s *SourceArchives) settleSources(ctx context.Context, p project.Name, found []StoredSource) error {
	if len(found) == 0 {
		return nil
	}
	digests := make([]string, len(found))
	for i, a := range found {
		digests[i] = a.Digest
	}
	var recorded map[string]StoredSource
	if err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		recorded, err = s.sourceStore.Sources(ctx, tx, p, digests)
		return err
	}); err != nil {
		return err
	}
	before := s.now().Add(-blob.Unrecorded)
	var fresh []StoredSource
	for _, a := range found {
		of, known := recorded[a.Digest]
		switch {
		case of == a:
		case a.Object == "" && !known:
			fresh = append(fresh, a)
		case a.Object == "" || begun(a).Before(before):
			if err := s.cfg.Sources.Delete(ctx, p, a); err != nil {
				return err
			}
		}
	}
	if len(fresh) == 0 {
		return nil
	}
	return s.cfg.DB.Update(ctx, string(p), func(ctx context.Context, tx *store.Tx) error {
		return s.sourceStore.FoundSources(ctx, tx, p, fresh, s.now())
	})
}

// begun is when the upload of an archive gave its object a name.
func begun(a StoredSource) time.Time {
	u, err := ulid.ParseStrict(strings.TrimPrefix(a.Object, sourcePart+"_"))
	if err != nil {
		return time.Time{}
	}
	return u.Timestamp()
}

// removeSources removes those of archives that nothing names. What a killed server does not
// delete any more, settleSources does.
func (s *SourceArchives) removeSources(ctx context.Context, p project.Name, digests []string, before time.Time) (n int, err error) {
	var going []StoredSource
	err = s.cfg.DB.Update(ctx, string(p), func(ctx context.Context, tx *store.Tx) error {
		going = nil
		var named []string // by sweeps
		if s.cfg.Traces != nil {
			var err error
			if named, err = s.cfg.Traces.Sources(ctx, tx, p, digests); err != nil {
				return err
			}
		}
		for _, d := range digests {
			if slices.Contains(named, d) {
				continue
			}
			a, ok, err := s.sourceStore.RemoveSource(ctx, tx, p, d, before)
			if err != nil {
				return err
			}
			if ok {
				going = append(going, a)
			}
		}
		if len(going) == 0 {
			return nil
		}
		return audit.Append(ctx, tx, audit.Entry{
			Project: string(p), Action: "retention.forget", Object: "source archives", Detail: map[string]any{"removed": len(going), "kept_for": sourceUnused.String()},
		})
	})
	if err != nil {
		return 0, err
	}
	for _, a := range going {
		if err := s.cfg.Sources.Delete(ctx, p, a); err != nil {
			return n, err
		}
		n++
	}
	return n, nil
}
