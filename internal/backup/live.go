package backup

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/falaj-ml/falaj/internal/blob"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/store"
)

// Live is how an installation that is in use is held still.
type Live struct {
	// Still takes a snapshot of the database. take runs while nothing is committed to it;
	// its ctx says until when.
	Still func(ctx context.Context, take func(ctx context.Context, sequence string) error) (*store.Snapshot, error)
	// Database is its file, as seen from the data directory.
	Database string
	// Parts are what else changes in place.
	Parts []Part
	// Objects and Tables are the drivers that everybody uses.
	Objects, Tables *Held
	// Scratch is a directory that is made, and removed, on the data directory's disk.
	Scratch string
	// Tell hears how far it is; it must not block.
	Tell func(Report)
}

// Part is a file or directory of the data directory that changes in place.
type Part struct {
	Path string // as seen from the data directory
	// Take copies or links it to another path, quickly: everybody waits, until ctx ends.
	Take func(ctx context.Context, to string) error
}

// leaves are the files that are not copied as they are.
func (l *Live) leaves() []string {
	var out []string
	for _, end := range []string{"", "-wal", "-shm", "-journal"} {
		out = append(out, l.Database+end)
	}
	for _, p := range l.Parts {
		out = append(out, p.Path)
	}
	return out
}

// take fixes the moment and copies what changes in place. Until end is called the
// objects of the moment are kept.
func (l *Live) take(ctx context.Context, cancel context.CancelFunc, m *manifest, h *header, files copying, tables *copying, objects *saving) (end func(), err error) {
	var closes []func()
	tables.keeper = newKeeper(ctx, false, func(k blob.Key) error { return tables.early(k) }) // which knows later from where
	objects.keeper = newKeeper(ctx, true, objects.one)
	release := func() {
		l.Objects.keeps.Store(nil)
		l.Tables.keeps.Store(nil)
		cancel()
		_ = errors.Join(tables.keeper.end(), objects.keeper.end()) // of a whole backup they have ended
		for _, f := range closes {
			f()
		}
	}
	defer func() {
		if err != nil {
			release()
		}
	}()
	m.tell = l.Tell
	if err := errors.Join(os.RemoveAll(l.Scratch), os.MkdirAll(l.Scratch, 0o700)); err != nil {
		return nil, err
	}
	closes = append(closes, func() { _ = os.RemoveAll(l.Scratch) })
	if tables.from, err = os.OpenRoot(h.Tables); err != nil {
		return nil, err
	}
	closes = append(closes, func() { _ = tables.from.Close() })
	var parts sync.WaitGroup
	closes = append(closes, parts.Wait)
	slices.Reverse(closes) // what takes too long goes on in the scratch directory
	snapshot, err := l.Still(ctx, func(ctx context.Context, sequence string) error {
		taken := make(chan error, 1)
		parts.Go(func() { taken <- l.takeParts(ctx, m, h, sequence) })
		select {
		case err := <-taken:
			if err != nil {
				return err
			}
		case <-ctx.Done():
			return fault.New(fault.Timeout, "the backup would block writes for too long: %w", context.Cause(ctx)).
				WithHint("Back up when the server is less busy, or while it is stopped.")
		}
		l.Tables.keeps.Store(tables.keeper)
		l.Objects.keeps.Store(objects.keeper)
		return nil
	})
	if err != nil {
		return nil, err
	}
	err = l.copyDatabase(ctx, m, files, snapshot)
	if err := errors.Join(err, snapshot.Close()); err != nil {
		return nil, err
	}
	if err := files.save(l.Scratch, nil); err != nil {
		return nil, err
	}
	// What was linked keeps rows of persons on the disk who are erased meanwhile.
	return release, os.RemoveAll(l.Scratch)
}

// takeParts takes what changes in place, and says of which moment it is.
func (l *Live) takeParts(ctx context.Context, m *manifest, h *header, sequence string) error {
	for _, p := range l.Parts {
		if err := p.Take(ctx, filepath.Join(l.Scratch, p.Path)); err != nil {
			return err
		}
	}
	h.Sequence, h.Time = sequence, time.Now().UTC().Truncate(time.Microsecond)
	return m.header(*h)
}

func (l *Live) copyDatabase(ctx context.Context, m *manifest, files copying, s *store.Snapshot) error {
	at := filepath.Join(inFiles, l.Database)
	if err := files.to.MkdirAll(filepath.Dir(at), 0o700); err != nil {
		return err
	}
	if err := s.CopyTo(ctx, filepath.Join(files.to.Name(), at)); err != nil {
		return err
	}
	f, err := files.to.Open(at)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	e := entry{In: inFiles, Kind: aFile, Path: l.Database, Mode: 0o600, Time: time.Now().UnixNano()}
	if e.Size, e.Digest, err = digestOf(ctx, f); err != nil {
		return err
	}
	return m.add(e)
}
