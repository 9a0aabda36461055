// Package backups makes backups of the installation while its server runs, one at a time, and
// records each in the audit log.
package backups

import (
	"cmp"
	"context"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/falaj-ml/falaj/internal/backup"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/id"
	"github.com/falaj-ml/falaj/internal/store"
)

// Config is what backups are made of. All fields are required except where noted.
type Config struct {
	DB         *store.DB
	Authorizer policy.Authorizer
	Dir        string // of the backups; empty: the server makes none
	Version    string // of Falaj
	Data       string // data directory
	Scratch    string // directory of temporary files of a backup
	// Installation is what is backed up, with its owner; it may refuse.
	Installation func() (backup.Installation, error)
	Objects      *backup.Held
	Tables       *backup.Held
	Reads        *audit.FileJournal
	Online       func(to string) error // copies the online store; nil: it is elsewhere
	Checkpoints  bool                  // the data directory has the audit log's signed checkpoints
	Space        func() error          // refuses when the disk of Dir is nearly full
	Log          *slog.Logger
}

// Service makes backups and lists them.
type Service struct {
	Config

	mu      sync.Mutex
	now     backup.Backup           // the one that is being made, or the last one
	cancel  context.CancelCauseFunc // may be called after it ended
	ended   chan struct{}           // closed when it ended
	closing bool
}

var errStopped = errors.New("it was cancelled")

// maxStill bounds how long everybody waits for the moment of a backup.
const maxStill = 20 * time.Second

// maxRecord bounds how long the end of a backup may take to be on record, also while the
// server stops.
const maxRecord = 20 * time.Second

// Open removes what a killed backup left and records what was done while the server was
// stopped.
func Open(ctx context.Context, c Config) (*Service, error) {
	s := &Service{Config: c}
	if err := os.RemoveAll(c.Scratch); err != nil {
		return nil, err
	}
	return s, s.recordNotes(identity.With(ctx, identity.Loop("operator")))
}

// recordNotes makes entries of the audit log of what was done while the server was
// stopped. A crash in the middle repeats them.
func (b *Service) recordNotes(ctx context.Context) error {
	notes, done, err := backup.Notes(b.Data)
	if err != nil || len(notes) == 0 {
		return err
	}
	err = b.DB.Update(ctx, "", func(ctx context.Context, tx *store.Tx) error {
		for _, n := range notes {
			detail := map[string]any{"at": n.At, "offline": true}
			maps.Copy(detail, n.Detail)
			if err := audit.Append(ctx, tx, audit.Entry{Action: n.Act, Object: n.Object, Detail: detail}); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fault.Wrap(err, "record offline operations")
	}
	return done()
}

func (b *Service) allow(ctx context.Context, action policy.Action, name string) error {
	return b.Authorizer.Allow(ctx, action, policy.Object{Kind: "backup", Name: name})
}

// dir is where the backup of a name is.
func (b *Service) dir(name string) (string, error) {
	if b.Dir == "" {
		return "", fault.New(fault.Unsupported, "the configuration names no directory for backups").
			WithHint("Set backup.dir, best to another disk; or stop the server, and: falaj backup DIR.")
	}
	return filepath.Abs(filepath.Join(b.Dir, name))
}

// Make implements httpapi.Backups.
func (b *Service) Make(ctx context.Context, name string) (backup.Backup, error) {
	if err := b.allow(ctx, "backup.make", name); err != nil {
		return backup.Backup{}, err
	}
	if err := id.CheckName("backup name", name); err != nil {
		return backup.Backup{}, err
	}
	dir, err := b.dir(name)
	if err != nil {
		return backup.Backup{}, err
	}
	if _, err := backup.Look(dir); err == nil {
		return backup.Backup{}, fault.New(fault.Conflict, "backup %s already exists", name).WithHint("Use a unique name, such as the date.")
	}
	of, err := b.Installation()
	if err != nil {
		return backup.Backup{}, err
	}
	if err := b.checkSpace(); err != nil {
		return backup.Backup{}, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closing {
		return backup.Backup{}, fault.New(fault.Unavailable, "the server is stopping")
	}
	if b.now.State == backup.Making {
		return backup.Backup{}, fault.New(fault.Conflict, "backup %s is already running", b.now.Name).WithHint("Wait until it is done, or stop it: falaj backup stop %s.", b.now.Name)
	}
	who := identity.From(ctx)
	run, cancel := context.WithCancelCause(identity.With(context.Background(), who))
	b.now = backup.Backup{
		Name: name, State: backup.Making, Version: b.Version, By: cmp.Or(who.ID, string(who.Kind)), Begun: time.Now().UTC().Truncate(time.Microsecond),
	}
	b.cancel, b.ended = cancel, make(chan struct{})
	go b.run(run, b.ended, name, dir, of)
	go b.watchRoom(cancel, b.ended)
	return b.now, nil
}

// checkSpace refuses to fill the disk of the backups: it may be the server's own.
func (b *Service) checkSpace() error {
	if err := os.MkdirAll(b.Dir, 0o700); err != nil {
		return fault.New(fault.Unavailable, "the directory of backups: %w", err).WithHint("Is backup.dir right, and its disk there?")
	}
	return b.Space()
}

func (b *Service) watchRoom(cancel context.CancelCauseFunc, ended chan struct{}) {
	every := time.NewTicker(time.Second)
	defer every.Stop()
	for {
		select {
		case <-ended:
			return
		case <-every.C:
			if err := b.checkSpace(); err != nil {
				cancel(err)
				return
			}
		}
	}
}

// discard removes what backups left that were being made when a server was killed.
func (b *Service) discard(ctx context.Context, but string) {
	there, err := os.ReadDir(b.Dir)
	if err != nil {
		return // who makes one is told
	}
	for _, e := range there {
		dir := filepath.Join(b.Dir, e.Name())
		if !e.IsDir() || e.Name() == but || id.CheckName("backup name", e.Name()) != nil {
			continue
		}
		switch err := backup.Discard(dir); {
		case err == nil:
			b.Log.InfoContext(ctx, "removed an interrupted backup", slog.String("backup", e.Name()))
		case !fault.Is(err, fault.NotFound):
			b.Log.WarnContext(ctx, "cannot remove an interrupted backup", slog.String("backup", e.Name()), slog.Any("error", err))
		}
	}
}

// run makes a backup.
func (b *Service) run(ctx context.Context, ended chan struct{}, name, dir string, of backup.Installation) {
	defer close(ended)
	b.discard(ctx, name)
	r, err := b.make(ctx, name, dir, of)
	b.end(ctx, name, r, err)
}

// end records how a backup ended. Whoever stops it now stops nothing any more.
func (b *Service) end(ctx context.Context, name string, r backup.Report, err error) {
	state, detail := backup.Whole, map[string]any{
		"phase": "done", "sequence": r.Sequence, "of": r.Time, "digest": r.Digest, "files": r.Files, "objects": r.Objects, "bytes": r.Bytes,
	}
	if err != nil {
		state, detail, r.Digest = backup.Failed, map[string]any{"phase": "failed", "because": err.Error()}, ""
	}
	ctx = context.WithoutCancel(ctx)
	if rerr := b.record(ctx, name, detail); rerr != nil {
		err = errors.Join(err, fault.Wrap(rerr, "it is not in the audit log that it is %s", state))
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.take(r)
	b.now.State, b.now.Digest = state, r.Digest
	if err != nil {
		b.now.Error = err.Error()
		b.Log.WarnContext(ctx, "making a backup", slog.String("backup", name), slog.String("state", string(state)), slog.Any("error", err))
		return
	}
	b.Log.InfoContext(ctx, "backup completed", slog.String("backup", name), slog.String("sequence", r.Sequence), slog.Int64("bytes", r.Bytes))
}

// take notes how far it is.
func (b *Service) take(r backup.Report) {
	b.now.Sequence, b.now.Of, b.now.Files, b.now.Objects, b.now.Bytes = r.Sequence, r.Time, r.Files, r.Objects, r.Bytes
}

func (b *Service) make(ctx context.Context, name, dir string, of backup.Installation) (backup.Report, error) {
	of.Objects, of.Log = b.Objects, b.Log
	of.Live = &backup.Live{
		Database: of.Database, Parts: b.changing(), Objects: b.Objects, Tables: b.Tables, Scratch: b.Scratch,
		Tell: func(r backup.Report) {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.take(r)
		},
		Still: func(ctx context.Context, take func(ctx context.Context, sequence string) error) (*store.Snapshot, error) {
			return b.DB.Snapshot(ctx, func(ctx context.Context, tx *store.Tx) error {
				return audit.Append(ctx, tx, audit.Entry{Action: "backup.make", Object: "backup " + name, Detail: map[string]any{"phase": "began", "dir": dir}})
			}, func(ctx context.Context, sequence store.Position) error {
				ctx, cancel := context.WithTimeout(ctx, maxStill)
				defer cancel()
				if err := take(ctx, sequence.String()); err != nil {
					return err
				}
				return ctx.Err()
			})
		},
	}
	return backup.Make(ctx, dir, of, b.Version)
}

// changing are the parts of the data directory that change in place.
func (b *Service) changing() []backup.Part {
	parts := []backup.Part{{Path: "journal", Take: func(ctx context.Context, to string) error {
		return b.Reads.Still(ctx, func() error { return copyAll(ctx, filepath.Join(b.Data, "journal"), to) })
	}}}
	if b.Online != nil {
		parts = append(parts, backup.Part{Path: "online", Take: func(_ context.Context, to string) error { return b.Online(to) }})
	}
	if b.Checkpoints {
		parts = append(parts, backup.Part{Path: "checkpoints", Take: func(_ context.Context, to string) error {
			err := copyFile(filepath.Join(b.Data, "checkpoints"), to)
			if errors.Is(err, fs.ErrNotExist) {
				return nil // nothing was signed yet
			}
			return err
		}})
	}
	return parts
}

// copyAll copies the files of a directory that has nothing else. One that goes meanwhile
// is in the database already.
func copyAll(ctx context.Context, from, to string) error {
	if err := os.Mkdir(to, 0o700); err != nil {
		return err
	}
	there, err := os.ReadDir(from)
	if err != nil {
		return err
	}
	for _, e := range there {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		err := copyFile(filepath.Join(from, e.Name()), filepath.Join(to, e.Name()))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

// record puts what became of a backup into the audit log.
func (b *Service) record(ctx context.Context, name string, detail map[string]any) error {
	ctx, cancel := context.WithTimeout(ctx, maxRecord)
	defer cancel()
	return b.DB.Update(ctx, "", func(ctx context.Context, tx *store.Tx) error {
		return audit.Append(ctx, tx, audit.Entry{Action: "backup.make", Object: "backup " + name, Detail: detail})
	})
}

// List implements httpapi.Backups.
func (b *Service) List(ctx context.Context) ([]backup.Backup, error) {
	if err := b.allow(ctx, "backup.read", ""); err != nil {
		return nil, err
	}
	dir, err := b.dir("")
	if err != nil {
		return nil, err
	}
	b.mu.Lock()
	now := b.now
	b.mu.Unlock()
	all, err := In(dir, now.Name)
	if err != nil {
		return nil, err
	}
	if now.Name != "" {
		all = append(all, now)
	}
	slices.SortFunc(all, func(x, y backup.Backup) int { return cmp.Compare(x.Name, y.Name) })
	return all, nil
}

// In are the backups in a directory, except one.
func In(dir, but string) (all []backup.Backup, err error) {
	there, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, e := range there {
		if !e.IsDir() || e.Name() == but || id.CheckName("backup name", e.Name()) != nil {
			continue
		}
		one := backup.Backup{Name: e.Name(), State: backup.Interrupted}
		if s, err := backup.Look(filepath.Join(dir, e.Name())); err == nil {
			one.State, one.Of, one.Sequence, one.Version, one.Digest = backup.Whole, s.Time, s.Sequence, s.Version, s.Digest
		}
		all = append(all, one)
	}
	return all, nil
}

// One implements httpapi.Backups.
func (b *Service) One(ctx context.Context, name string) (backup.Backup, error) {
	all, err := b.List(ctx)
	if err != nil {
		return backup.Backup{}, err
	}
	if i := slices.IndexFunc(all, func(x backup.Backup) bool { return x.Name == name }); i >= 0 {
		return all[i], nil
	}
	return backup.Backup{}, fault.New(fault.NotFound, "backup %.63q not found", name)
}

// Stop implements httpapi.Backups.
func (b *Service) Stop(ctx context.Context, name string) (backup.Backup, error) {
	if err := b.allow(ctx, "backup.make", name); err != nil {
		return backup.Backup{}, err
	}
	b.mu.Lock()
	making, cancel, ended := b.now.Name == name && b.now.State == backup.Making, b.cancel, b.ended
	b.mu.Unlock()
	if !making {
		return backup.Backup{}, fault.New(fault.Conflict, "backup %.63q is not running", name)
	}
	if err := b.record(ctx, name, map[string]any{"phase": "stopped"}); err != nil {
		return backup.Backup{}, err
	}
	cancel(errStopped)
	select {
	case <-ended:
	case <-ctx.Done():
		return backup.Backup{}, ctx.Err()
	}
	return b.One(ctx, name)
}

// Close stops the backup that is being made, and waits for its end.
func (b *Service) Close(ctx context.Context) error {
	b.mu.Lock()
	b.closing = true
	cancel, ended := b.cancel, b.ended
	b.mu.Unlock()
	if cancel == nil {
		return nil
	}
	cancel(errors.New("the server stops"))
	select {
	case <-ended:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
