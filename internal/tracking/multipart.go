package tracking

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/falaj-ml/falaj/internal/blob"
	"github.com/falaj-ml/falaj/internal/blob/quota"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/id"
	"github.com/falaj-ml/falaj/internal/share"
	"github.com/falaj-ml/falaj/internal/store"
)

// Limits of files that come in parts.
const (
	MaxParts    = 10_000
	maxUploads  = 1000           // unfinished ones of a project
	uploadRetry = time.Minute    // Retry-After of those beyond
	uploadLasts = 24 * time.Hour // from its begin until Sweep removes it
)

// UploadID names a file that comes in parts: "upl_01J…".
type UploadID string

// Upload is a file that comes in parts, in any order and beside each other.
type Upload struct {
	Project project.Name
	ID      UploadID
	Place   Place
	Path    string
	Parts   int // numbered from 1
	Created time.Time
	Done    bool // its file was made: finishing it again changes nothing
}

// Part is a part that was stored.
type Part struct {
	Number int
	Object string // blob key
	Size   int64
	Digest string
}

// Parted names a part that the client believes to be stored.
type Parted struct {
	Number int
	Digest string
}

// Uploads takes files that come in parts. Its caller is MLflow's protocol.
type Uploads struct {
	*core
	artifacts *Artifacts
}

// BeginUpload begins a file of so many parts at a path. Nothing is there until
// FinishUpload. Errors are those of PutArtifact.
func (s *Uploads) BeginUpload(ctx context.Context, p project.Name, place Place, name string, parts int) (Upload, error) {
	if err := s.artifacts.artifactPlace(ctx, p, place, ActionWrite, false); err != nil {
		return Upload{}, err
	}
	if err := checkFilePath(name); err != nil {
		return Upload{}, err
	}
	if parts < 1 || parts > MaxParts {
		return Upload{}, fault.New(fault.Invalid, "Invalid value %d for parameter 'num_parts' supplied: it must be between 1 and %d.", parts, MaxParts)
	}
	u := Upload{Project: p, ID: UploadID(id.New("upl")), Place: place, Path: name, Parts: parts, Created: s.now()}
	err := s.db.Update(ctx, string(p), func(ctx context.Context, tx *store.Tx) error {
		if err := s.artifacts.placeActive(ctx, tx, p, place); err != nil {
			return err
		}
		if err := s.artifacts.pathFree(ctx, tx, place, name); err != nil {
			return err
		}
		n, err := s.store.CountUploads(ctx, tx, p)
		if err != nil {
			return err
		}
		if n >= maxUploads {
			return share.Refused("unfinished_uploads", fmt.Sprintf("project %s has %d unfinished uploads", p, n), "Complete or abort some uploads. Uploads are removed after a day.", uploadRetry)
		}
		if err := s.store.PutUpload(ctx, tx, u); err != nil {
			return err
		}
		return s.audit(ctx, tx, p, place.String(), map[string]any{"act": "begin_upload", "path": name, "upload": string(u.ID), "parts": parts})
	})
	return u, err
}

// PutPart stores a part, replacing the one of its number. It gives the part's
// digest, which FinishUpload asks for. Error: fault.Conflict when the file is made.
func (s *Uploads) PutPart(ctx context.Context, p project.Name, upload UploadID, number int, body io.Reader) (string, error) {
	u, err := s.upload(ctx, p, upload)
	if err != nil {
		return "", err
	}
	if number < 1 || number > u.Parts {
		return "", fault.New(fault.Invalid, "upload %s has parts 1 to %d, not %d", upload, u.Parts, number)
	}
	ctx, cancel := context.WithTimeout(ctx, blob.RecordWithin)
	defer cancel()
	ref := s.partRef(p, blob.Key(u.Place.ID()+"/"+id.New("art")))
	replacing := quota.Replacing(ctx, func(ctx context.Context) (objects []blob.Key, err error) {
		parts, err := s.parts(ctx, upload)
		for _, old := range parts {
			if old.Number == number {
				objects = append(objects, blob.Key(old.Object))
			}
		}
		return objects, err
	})
	info, err := s.objects.Put(replacing, ref, body, blob.WithLimit(s.maxFile))
	if err != nil {
		return "", fault.Wrap(err, "storing part %d of upload %s", number, upload)
	}
	replaced := ""
	err = s.db.Update(ctx, string(p), func(ctx context.Context, tx *store.Tx) error {
		replaced = ""
		u, err := s.store.Upload(ctx, tx, p, upload)
		if err != nil {
			return err
		}
		if u.Done {
			return fault.New(fault.Conflict, "upload %s is already complete", upload)
		}
		parts, err := s.store.Parts(ctx, tx, upload)
		if err != nil {
			return err
		}
		for _, old := range parts {
			if old.Number == number {
				replaced = old.Object
			}
		}
		return s.store.PutPart(ctx, tx, p, upload, Part{Number: number, Object: string(ref.Key), Size: info.Size, Digest: info.Digest})
	})
	if err != nil {
		s.drop(ctx, ref)
		return "", err
	}
	if replaced != "" {
		s.dropPart(ctx, p, replaced)
	}
	return info.Digest, nil
}

// FinishUpload makes the file of its parts; it is there, whole and synced, when it
// returns. named are the parts as the client knows them: all, each once, with its
// digest. Errors: fault.Invalid when they are not what was stored, fault.TooLarge,
// and those of PutArtifact.
func (s *Uploads) FinishUpload(ctx context.Context, p project.Name, place Place, name string, upload UploadID, named []Parted) error {
	u, err := s.upload(ctx, p, upload)
	if err != nil {
		return err
	}
	if u.Place != place || u.Path != name {
		return fault.New(fault.Invalid, "upload %s is of %s of %s, not of %s of %s", upload, clip(u.Path), u.Place, clip(name), place)
	}
	if u.Done {
		return nil
	}
	parts, err := s.parts(ctx, upload)
	if err != nil {
		return err
	}
	if err := u.complete(parts, named); err != nil {
		return err
	}
	if _, err := s.artifacts.putArtifact(ctx, p, place, name, &partsReader{ctx: ctx, s: s, p: p, parts: parts}, ActionWrite, parts); err != nil {
		return err
	}
	u.Done = true
	err = s.db.Update(ctx, string(p), func(ctx context.Context, tx *store.Tx) error {
		if err := s.store.DeleteParts(ctx, tx, upload); err != nil {
			return err
		}
		return s.store.PutUpload(ctx, tx, u)
	})
	if err != nil {
		return err
	}
	for _, part := range parts {
		s.dropPart(ctx, p, part.Object)
	}
	return nil
}

// complete refuses parts that are not all there or not those that are named.
func (u Upload) complete(parts []Part, named []Parted) error {
	if len(parts) != u.Parts {
		return fault.New(fault.Invalid, "upload %s has %d of its %d parts", u.ID, len(parts), u.Parts).WithHint("Upload the missing parts first.")
	}
	named = slices.Clone(named)
	slices.SortFunc(named, func(a, b Parted) int { return a.Number - b.Number })
	same := slices.EqualFunc(parts, named, func(a Part, b Parted) bool {
		return a.Number == b.Number && a.Digest == strings.Trim(b.Digest, `"`)
	})
	if !same {
		return fault.New(fault.Invalid, "the listed parts do not match upload %s", u.ID).
			WithHint("List each part once, with the ETag returned by its upload.")
	}
	return nil
}

// AbortUpload forgets an upload and its parts; that it is gone is no error.
func (s *Uploads) AbortUpload(ctx context.Context, p project.Name, upload UploadID) error {
	u, err := s.upload(ctx, p, upload)
	if fault.Is(err, fault.NotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	return s.forgetUpload(ctx, u)
}

func (s *Uploads) forgetUpload(ctx context.Context, u Upload) error {
	var parts []Part
	err := s.db.Update(ctx, string(u.Project), func(ctx context.Context, tx *store.Tx) error {
		var err error
		if parts, err = s.store.Parts(ctx, tx, u.ID); err != nil {
			return err
		}
		if err := errors.Join(s.store.DeleteParts(ctx, tx, u.ID), s.store.DeleteUpload(ctx, tx, u.ID)); err != nil {
			return err
		}
		return s.audit(ctx, tx, u.Project, u.Place.String(), map[string]any{"act": "forget_upload", "upload": string(u.ID)})
	})
	if err != nil {
		return err
	}
	for _, part := range parts {
		s.dropPart(ctx, u.Project, part.Object)
	}
	return nil
}

// sweepUploads forgets what was begun too long ago.
func (s *Uploads) sweepUploads(ctx context.Context, p project.Name) error {
	var stale []Upload
	err := s.db.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		var err error
		stale, err = s.store.StaleUploads(ctx, tx, p, s.now().Add(-uploadLasts))
		return err
	})
	for _, u := range stale {
		err = errors.Join(err, s.forgetUpload(ctx, u))
	}
	return err
}

func (s *Uploads) upload(ctx context.Context, p project.Name, upload UploadID) (Upload, error) {
	if err := s.allow(ctx, ActionWrite, p, "run", ""); err != nil {
		return Upload{}, err
	}
	var u Upload
	err := s.db.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		var err error
		u, err = s.store.Upload(ctx, tx, p, upload)
		return err
	})
	if err != nil {
		return Upload{}, err
	}
	return u, s.artifacts.artifactPlace(ctx, p, u.Place, ActionWrite, false)
}

// parts are those of an upload that are stored.
func (s *Uploads) parts(ctx context.Context, upload UploadID) (parts []Part, err error) {
	err = s.db.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		parts, err = s.store.Parts(ctx, tx, upload)
		return err
	})
	return parts, err
}

func (s *Uploads) partRef(p project.Name, key blob.Key) blob.Ref {
	return blob.Ref{Project: string(p), Owner: artifactKeys, Key: artifactPrefix(p) + key}
}

func (s *Uploads) dropPart(ctx context.Context, p project.Name, object string) {
	s.drop(ctx, blob.Ref{Project: string(p), Owner: artifactKeys, Key: blob.Key(object)})
}

// partsReader reads parts one after the other.
type partsReader struct {
	ctx   context.Context //nolint:containedctx // of one read of the whole
	s     *Uploads
	p     project.Name
	parts []Part
	open  *blob.Reader
}

func (r *partsReader) Read(b []byte) (int, error) {
	for {
		if r.open == nil {
			if len(r.parts) == 0 {
				return 0, io.EOF
			}
			var err error
			if r.open, err = r.s.objects.Open(r.ctx, blob.Ref{Project: string(r.p), Owner: artifactKeys, Key: blob.Key(r.parts[0].Object)}); err != nil {
				return 0, err
			}
			r.parts = r.parts[1:]
		}
		n, err := r.open.Read(b)
		if errors.Is(err, io.EOF) {
			err = r.open.Close()
			r.open = nil
		} else if err != nil {
			_ = r.open.Close()
		}
		if n > 0 || err != nil {
			return n, err
		}
	}
}
