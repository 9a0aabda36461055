package training

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/falaj-ml/falaj/internal/blob"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/lifecycle"
	"github.com/falaj-ml/falaj/internal/store"
)

const (
	// sourceUnused is for how long a source archive is kept that no job and no sweep names: a
	// client uploads it before it submits.
	sourceUnused = 7 * 24 * time.Hour
	sourceBatch  = 50
)

// SweepSources removes source archives of a project that no job and no sweep names, and that
// were neither uploaded nor named for a week, until the pass is over. It gives their number.
func (s *Service) SweepSources(ctx context.Context, p project.Name, pass lifecycle.Pass) (removed int, err error) {
	ctx = identity.With(ctx, identity.Loop("retention of source archives"))
	// Archives of before there was a record of them, and of a server that was killed.
	var found []string
	note := func() error {
		err := s.cfg.DB.Update(ctx, string(p), func(ctx context.Context, tx *store.Tx) error {
			return s.cfg.Store.FoundSources(ctx, tx, p, found, s.now())
		})
		found = found[:0]
		return err
	}
	if err := s.cfg.Sources.List(ctx, p, func(digest string) error {
		if found = append(found, digest); len(found) < 10*sourceBatch {
			return nil
		}
		return note()
	}); err != nil {
		return 0, fault.Wrap(err, "listing the source archives of project %s", p)
	}
	if len(found) > 0 {
		if err := note(); err != nil {
			return 0, err
		}
	}
	before, after := s.now().Add(-sourceUnused), ""
	err = pass.Repeat(ctx, func(ctx context.Context) (bool, error) {
		var unused []string
		if err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
			unused, err = s.cfg.Store.UnusedSources(ctx, tx, p, before, after, sourceBatch)
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

// removeSources removes those of archives that nothing names: first they are marked, then each
// is deleted while no upload of it is under way.
//
// Of several servers on one database each sweeps, and none knows of the uploads of another.
// An archive that is uploaded to one server while another deletes it may be gone though it is
// on record: its jobs are refused, until it is uploaded again.
func (s *Service) removeSources(ctx context.Context, p project.Name, digests []string, before time.Time) (n int, err error) {
	s.uploads.Lock()
	digests = slices.DeleteFunc(slices.Clone(digests), func(d string) bool { return s.uploading[sourceOf{p, d}] > 0 })
	s.uploads.Unlock()
	var going, named []string
	err = s.cfg.DB.Update(ctx, string(p), func(ctx context.Context, tx *store.Tx) error {
		going, named = nil, nil
		var of []string // sweeps
		if s.cfg.Traces != nil {
			var err error
			if of, err = s.cfg.Traces.Sources(ctx, tx, p, digests); err != nil {
				return err
			}
			if named, err = s.cfg.Store.GoingSources(ctx, tx, p, of); err != nil {
				return err
			}
		}
		for _, d := range digests {
			if slices.Contains(of, d) {
				continue
			}
			ok, err := s.cfg.Store.RemoveSource(ctx, tx, p, d, before)
			if err != nil {
				return err
			}
			if ok {
				going = append(going, d)
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
	for _, d := range named {
		if err := s.staySource(ctx, p, d); err != nil {
			return 0, err
		}
	}
	for _, d := range going {
		removed, err := s.removeSource(ctx, p, d)
		if err != nil {
			return n, err
		}
		if removed {
			n++
		}
	}
	return n, nil
}

// staySource keeps an archive whose removal was cut off and that a sweep names now. If the
// archive is gone already, it is refused until it is uploaded again.
func (s *Service) staySource(ctx context.Context, p project.Name, digest string) error {
	err := s.CheckSource(ctx, p, digest)
	if fault.Is(err, fault.NotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	return s.cfg.DB.Update(ctx, string(p), func(ctx context.Context, tx *store.Tx) error {
		return s.cfg.Store.StaySource(ctx, tx, p, digest)
	})
}

// removeSource deletes an archive that is marked, unless it is or was uploaded meanwhile.
func (s *Service) removeSource(ctx context.Context, p project.Name, digest string) (bool, error) {
	of := sourceOf{p, digest}
	s.uploads.Lock()
	if s.uploading[of] > 0 || s.removing[of] != nil {
		s.uploads.Unlock()
		return false, nil
	}
	if s.removing == nil {
		s.removing = map[sourceOf]chan struct{}{}
	}
	gone := make(chan struct{})
	s.removing[of] = gone
	s.uploads.Unlock()
	defer func() {
		s.uploads.Lock()
		defer s.uploads.Unlock()
		delete(s.removing, of)
		close(gone)
	}()
	var still []string
	err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		still, err = s.cfg.Store.GoingSources(ctx, tx, p, []string{digest})
		return err
	})
	if err != nil || len(still) == 0 {
		return false, err
	}
	if err := s.cfg.Sources.Delete(ctx, p, digest); err != nil {
		return false, err
	}
	return true, s.cfg.DB.Update(ctx, string(p), func(ctx context.Context, tx *store.Tx) error {
		return s.cfg.Store.DropSource(ctx, tx, p, digest)
	})
}

// sourceOf is a source archive of a project.
type sourceOf struct {
	project project.Name
	digest  string
}

// upload notes that an archive is being uploaded, until done is called. It waits while that
// archive is removed.
func (s *Service) upload(ctx context.Context, p project.Name, digest string) (done func(), err error) {
	of := sourceOf{p, digest}
	s.uploads.Lock()
	for gone := s.removing[of]; gone != nil; gone = s.removing[of] {
		s.uploads.Unlock()
		select {
		case <-gone:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		s.uploads.Lock()
	}
	if s.uploading == nil {
		s.uploading = map[sourceOf]int{}
	}
	s.uploading[of]++
	s.uploads.Unlock()
	done = func() {
		s.uploads.Lock()
		defer s.uploads.Unlock()
		if s.uploading[of]--; s.uploading[of] == 0 {
			delete(s.uploading, of)
		}
	}
	err = s.cfg.DB.Update(ctx, string(p), func(ctx context.Context, tx *store.Tx) error {
		return s.cfg.Store.KeepSource(ctx, tx, p, digest, s.now())
	})
	if err != nil {
		done()
	}
	return done, err
}

// List gives the digests of the archives of a project.
func (b BlobSources) List(ctx context.Context, p project.Name, yield func(digest string) error) error {
	prefix := sourcePrefix(p)
	return b.Store.List(ctx, prefix, func(key blob.Key) error {
		if digest := strings.Replace(strings.TrimPrefix(string(key), string(prefix)), "-", ":", 1); digestRE.MatchString(digest) {
			return yield(digest)
		}
		return nil
	})
}

// Delete removes an archive.
func (b BlobSources) Delete(ctx context.Context, p project.Name, digest string) error {
	return b.Store.Delete(ctx, b.ref(p, digest))
}

func sourcePrefix(p project.Name) blob.Key { return blob.Key("projects/" + string(p) + "/sources/") }
