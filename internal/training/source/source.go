// Package source keeps the source archives that jobs run: uploaded once per content, checked,
// sealed by a key of the project, and removed a week after their last use (source.go). unpack.go
// reads an archive, which is untrusted; blobs.go stores archives in a blob store.
package source

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"regexp"
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
)

// Archive is an uploaded source archive.
type Archive struct {
	Digest string `json:"digest"` // for Spec.Source
	Files  int    `json:"files"`
	Size   int64  `json:"size"` // unpacked bytes
}

// Stored is where a source archive is stored. Each upload that stores one gives it an
// object of its own, so that the deletion of an object never hits a later upload, not even one
// to another server on the same database. Releases before stored it under its digest alone.
type Stored struct {
	Digest string
	Object string // sar_ and a ULID; empty in those releases
}

const part = "sar"

// Store keeps the records of uploaded source archives.
type Store interface {
	// Sources gives those of source archives that are on record, by digest.
	Sources(ctx context.Context, tx *store.Tx, p project.Name, digests []string) (map[string]Stored, error)
	// UseSource notes that a source archive is named or uploaded again. Error: fault.NotFound
	// when it is not on record.
	UseSource(ctx context.Context, tx *store.Tx, p project.Name, digest string, at time.Time) error
	// PutSource puts a source archive on record, in place of another of its digest.
	PutSource(ctx context.Context, tx *store.Tx, p project.Name, a Stored, at time.Time) error
	// FoundSources notes those of source archives that are not on record, as used at a time.
	FoundSources(ctx context.Context, tx *store.Tx, p project.Name, found []Stored, at time.Time) error
	// UnusedSources gives the digests of source archives that no job names, that were used
	// before a time, and whose digests come after one, in order.
	UnusedSources(ctx context.Context, tx *store.Tx, p project.Name, before time.Time, after string, limit int) ([]string, error)
	// RemoveSource ends the record of one of them, and reports whether it still was one.
	RemoveSource(ctx context.Context, tx *store.Tx, p project.Name, digest string, before time.Time) (Stored, bool, error)
}

// Objects keeps the archives themselves. Blobs does.
type Objects interface {
	// Save's error is fault.Invalid for an archive of another digest.
	Save(ctx context.Context, p project.Name, a Stored, archive io.Reader) error
	// Open's error is fault.NotFound when there is none.
	Open(ctx context.Context, p project.Name, a Stored) (io.ReadCloser, error)
	// List gives those of a project.
	List(ctx context.Context, p project.Name, yield func(Stored) error) error
	// Delete removes one; what is not there is no error.
	Delete(ctx context.Context, p project.Name, a Stored) error
}

// Config is what Archives needs.
type Config struct {
	DB      *store.DB
	Store   Store
	Objects Objects
	Dir     string // where uploads are received
	Now     func() time.Time
	// MayUpload asks whether the caller may upload to a project; UploadAction is the permission,
	// as the audit log names it.
	MayUpload    func(ctx context.Context, p project.Name) error
	UploadAction string
	// Named gives those of archives that something beside jobs names.
	Named func(ctx context.Context, tx *store.Tx, p project.Name, digests []string) ([]string, error)
}

// Archives are the uploaded source of jobs. The API uploads archives, sweeps check them,
// and housekeeping removes unused ones. Safe for concurrent use.
type Archives struct{ cfg Config }

// New gives the archives of a configuration, which is complete.
func New(cfg Config) *Archives { return &Archives{cfg} }

var digestRE = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)

// ValidDigest reports the form of an archive's digest.
func ValidDigest(digest string) bool { return digestRE.MatchString(digest) }

// Upload keeps a gzipped tar archive that jobs may name. It holds plain
// files and directories only: links, devices and names that leave the archive
// are refused. Needs job.submit. Errors: fault.Invalid; fault.TooLarge.
func (s *Archives) Upload(ctx context.Context, p project.Name, archive io.Reader) (Archive, error) {
	if err := s.cfg.MayUpload(ctx, p); err != nil {
		return Archive{}, err
	}
	if err := os.MkdirAll(s.cfg.Dir, 0o700); err != nil {
		return Archive{}, err
	}
	f, err := os.CreateTemp(s.cfg.Dir, ".upload-*")
	if err != nil {
		return Archive{}, fault.Wrap(err, "receiving a source archive")
	}
	defer f.Close()
	defer os.Remove(f.Name())
	h := sha256.New()
	n, err := io.Copy(io.MultiWriter(f, h), io.LimitReader(archive, maxArchive+1))
	if err != nil {
		return Archive{}, fault.Wrap(err, "receiving a source archive")
	}
	if n > maxArchive {
		return Archive{}, fault.New(fault.TooLarge, "the source archive exceeds %d bytes", maxArchive).
			WithHint("Exclude data from the archive; pass data to the job by name in spec.data.")
	}
	src := Archive{Digest: "sha256:" + hex.EncodeToString(h.Sum(nil))}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return Archive{}, err
	}
	if src.Files, src.Size, err = Unpack(f, nil); err != nil {
		return Archive{}, err
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return Archive{}, err
	}
	return src, fault.Wrap(s.keep(ctx, p, src, f), "storing a source archive")
}

// keep stores an archive, unless it is stored already, and puts it on record.
func (s *Archives) keep(ctx context.Context, p project.Name, src Archive, archive io.Reader) error {
	ctx, cancel := context.WithTimeout(ctx, blob.RecordWithin)
	defer cancel()
	record := func(put func(ctx context.Context, tx *store.Tx) error) error {
		return s.cfg.DB.Update(ctx, string(p), func(ctx context.Context, tx *store.Tx) error {
			if err := put(ctx, tx); err != nil {
				return err
			}
			return audit.Append(ctx, tx, audit.Entry{
				Project: string(p), Action: s.cfg.UploadAction, Object: "source " + src.Digest, Detail: map[string]any{"act": "upload", "files": src.Files, "size": src.Size},
			})
		})
	}
	use := func(ctx context.Context, tx *store.Tx) error {
		return s.cfg.Store.UseSource(ctx, tx, p, src.Digest, s.cfg.Now())
	}
	old, err := s.stored(ctx, p, src.Digest)
	if err != nil {
		return err
	}
	if s.whole(ctx, p, old) {
		if err := record(use); !fault.Is(err, fault.NotFound) {
			return err
		}
	}
	ours := Stored{Digest: src.Digest, Object: id.New(part)}
	if err := s.cfg.Objects.Save(ctx, p, ours, archive); err != nil {
		return err
	}
	return record(func(ctx context.Context, tx *store.Tx) error {
		now, err := s.cfg.Store.Sources(ctx, tx, p, []string{src.Digest})
		if err != nil {
			return err
		}
		if other, ok := now[src.Digest]; ok && other != old { // uploaded at the same time
			return use(ctx, tx)
		}
		return s.cfg.Store.PutSource(ctx, tx, p, ours, s.cfg.Now())
	})
}

// whole reports whether an archive can be read to its end.
func (s *Archives) whole(ctx context.Context, p project.Name, a Stored) bool {
	r, err := s.cfg.Objects.Open(ctx, p, a)
	if err != nil {
		return false
	}
	_, err = io.Copy(io.Discard, r)
	return errors.Join(err, r.Close()) == nil
}

// stored is where an archive is stored. One that is not on record may be of a release
// that kept no record.
func (s *Archives) stored(ctx context.Context, p project.Name, digest string) (Stored, error) {
	a := Stored{Digest: digest}
	err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		recorded, err := s.cfg.Store.Sources(ctx, tx, p, []string{digest})
		if found, ok := recorded[digest]; ok {
			a = found
		}
		return err
	})
	return a, err
}

// Open opens an archive, also one that is uploaded again in the meantime.
func (s *Archives) Open(ctx context.Context, p project.Name, digest string) (a Stored, r io.ReadCloser, err error) {
	for tried := (Stored{}); ; tried = a {
		if a, err = s.stored(ctx, p, digest); err != nil {
			return a, nil, err
		}
		r, err = s.cfg.Objects.Open(ctx, p, a)
		if !fault.Is(err, fault.NotFound) || a == tried {
			return a, r, fault.Wrap(err, "opening the source archive")
		}
	}
}

// Find refuses a source archive that was not uploaded.
func (s *Archives) Find(ctx context.Context, p project.Name, digest string) (Stored, error) {
	a, r, err := s.Open(ctx, p, digest)
	if err != nil {
		return a, err
	}
	return a, r.Close()
}

// Check refuses a source archive that was not uploaded, and keeps it for another week. It
// checks no permission.
func (s *Archives) Check(ctx context.Context, p project.Name, digest string) error {
	a, err := s.Find(ctx, p, digest)
	if err != nil {
		return err
	}
	return s.cfg.DB.Update(ctx, string(p), func(ctx context.Context, tx *store.Tx) error { return s.Use(ctx, tx, p, a) })
}

// Use notes that something names an archive that was found.
func (s *Archives) Use(ctx context.Context, tx *store.Tx, p project.Name, a Stored) error {
	if a.Object == "" { // it may be of a release that kept no record
		if err := s.cfg.Store.FoundSources(ctx, tx, p, []Stored{a}, s.cfg.Now()); err != nil {
			return err
		}
	}
	return s.cfg.Store.UseSource(ctx, tx, p, a.Digest, s.cfg.Now())
}

const (
	// unusedFor is for how long a source archive is kept that no job and no sweep names: a
	// client uploads it before it submits.
	unusedFor = 7 * 24 * time.Hour
	batch     = 50
)

// Sweep removes source archives of a project that no job and no sweep names, and that
// were neither uploaded nor named for a week, until the pass is over. It gives their number.
//
// Several servers on one database may sweep and receive uploads at the same time. The record of
// an archive goes first; only the server that ends it deletes the object, which no later upload
// uses.
func (s *Archives) Sweep(ctx context.Context, p project.Name, pass lifecycle.Pass) (removed int, err error) {
	ctx = identity.With(ctx, identity.Loop("retention of source archives"))
	before, after := s.cfg.Now().Add(-unusedFor), ""
	var found []Stored
	if err := s.cfg.Objects.List(ctx, p, func(a Stored) error {
		if found = append(found, a); len(found) < 10*batch {
			return nil
		}
		defer func() { found = found[:0] }()
		return s.settle(ctx, p, found)
	}); err != nil {
		return 0, fault.Wrap(err, "listing the source archives of project %s", p)
	}
	if err := s.settle(ctx, p, found); err != nil {
		return 0, fault.Wrap(err, "listing the source archives of project %s", p)
	}
	err = pass.Repeat(ctx, func(ctx context.Context) (bool, error) {
		var unused []string
		if err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
			unused, err = s.cfg.Store.UnusedSources(ctx, tx, p, before, after, batch)
			return err
		}); err != nil || len(unused) == 0 {
			return false, err
		}
		after = unused[len(unused)-1]
		n, err := s.remove(ctx, p, unused, before)
		removed += n
		return len(unused) == batch, err
	})
	return removed, fault.Wrap(err, "removing source archives of project %s", p)
}

// settle puts archives on record that earlier releases stored, and deletes what a killed
// server, or an upload at the same time, left: objects that the record of their digest does not
// name, and that are too old to be recorded yet.
func (s *Archives) settle(ctx context.Context, p project.Name, found []Stored) error {
	if len(found) == 0 {
		return nil
	}
	digests := make([]string, len(found))
	for i, a := range found {
		digests[i] = a.Digest
	}
	var recorded map[string]Stored
	if err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		recorded, err = s.cfg.Store.Sources(ctx, tx, p, digests)
		return err
	}); err != nil {
		return err
	}
	before := s.cfg.Now().Add(-blob.Unrecorded)
	var fresh []Stored
	for _, a := range found {
		of, known := recorded[a.Digest]
		switch {
		case of == a:
		case a.Object == "" && !known:
			fresh = append(fresh, a)
		case a.Object == "" || begun(a).Before(before):
			if err := s.cfg.Objects.Delete(ctx, p, a); err != nil {
				return err
			}
		}
	}
	if len(fresh) == 0 {
		return nil
	}
	return s.cfg.DB.Update(ctx, string(p), func(ctx context.Context, tx *store.Tx) error {
		return s.cfg.Store.FoundSources(ctx, tx, p, fresh, s.cfg.Now())
	})
}

// begun is when the upload of an archive gave its object a name.
func begun(a Stored) time.Time {
	u, err := ulid.ParseStrict(strings.TrimPrefix(a.Object, part+"_"))
	if err != nil {
		return time.Time{}
	}
	return u.Timestamp()
}

// remove removes those of archives that nothing names. What a killed server does not
// delete any more, settle does.
func (s *Archives) remove(ctx context.Context, p project.Name, digests []string, before time.Time) (n int, err error) {
	var going []Stored
	err = s.cfg.DB.Update(ctx, string(p), func(ctx context.Context, tx *store.Tx) error {
		going = nil
		named, err := s.cfg.Named(ctx, tx, p, digests)
		if err != nil {
			return err
		}
		for _, d := range digests {
			if slices.Contains(named, d) {
				continue
			}
			a, ok, err := s.cfg.Store.RemoveSource(ctx, tx, p, d, before)
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
			Project: string(p), Action: "retention.forget", Object: "source archives", Detail: map[string]any{"removed": len(going), "kept_for": unusedFor.String()},
		})
	})
	if err != nil {
		return 0, err
	}
	for _, a := range going {
		if err := s.cfg.Objects.Delete(ctx, p, a); err != nil {
			return n, err
		}
		n++
	}
	return n, nil
}
