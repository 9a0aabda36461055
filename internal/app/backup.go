package app

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/falaj-ml/falaj/internal/app/schema"
	"github.com/falaj-ml/falaj/internal/backup"
	"github.com/falaj-ml/falaj/internal/blob/s3blob"
	"github.com/falaj-ml/falaj/internal/config"
	"github.com/falaj-ml/falaj/internal/diskspace"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/id"
	"github.com/falaj-ml/falaj/internal/lifecycle"
	"github.com/falaj-ml/falaj/internal/resource"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/usecase/backups"
)

// openBackups opens what makes backups while the server runs.
func (a *App) openBackups(ctx context.Context) (err error) {
	c := backups.Config{
		DB: a.db, Authorizer: a.authorizer, Dir: a.cfg.Backup.Dir, Version: a.world.Version, Data: a.cfg.Data, Scratch: filepath.Join(a.cfg.Data, "tmp", "backup"),
		Installation: func() (backup.Installation, error) {
			of, err := a.installation()
			if err != nil {
				return of, err
			}
			_, of.Owner, err = readHome(filepath.Join(a.cfg.Data, backup.ObjectsHome))
			return of, err
		},
		Objects: a.objects, Tables: a.tables, Reads: a.reads, Checkpoints: a.cfg.Audit.Checkpoints == "", Log: a.log,
		Space: func() error { return diskspace.Check("the backups (backup.dir)", a.cfg.Backup.Dir, a.cfg.Reserve()) },
	}
	if a.pebble != nil {
		c.Online = a.pebble.Checkpoint
	}
	if a.backups, err = backups.Open(ctx, c); err != nil {
		return err
	}
	a.group.Add(lifecycle.Service{Name: "backups", Stop: a.backups.Close, StopTimeout: time.Minute})
	return nil
}

// installation is what the configuration names, but for the objects.
func (a *App) installation() (backup.Installation, error) {
	var err error
	if !filepath.IsAbs(a.cfg.Data) { // that of a server is
		if a.cfg.Data, err = filepath.Abs(a.cfg.Data); err != nil {
			return backup.Installation{}, err
		}
	}
	path, ok := strings.CutPrefix(a.cfg.StoreURL(), "sqlite://")
	if path, err = filepath.Abs(path); err != nil {
		return backup.Installation{}, err
	}
	rel, err := filepath.Rel(a.cfg.Data, path)
	if !ok || err != nil || !filepath.IsLocal(rel) {
		return backup.Installation{}, fault.New(fault.Unsupported, "the database is not in the data directory (store.url)").
			WithHint("Stop the server, back up the database with its own tools, and then the data directory.")
	}
	of := backup.Installation{Data: a.cfg.Data, Database: rel, Tables: a.cfg.TablesDir()}
	of.Ledger, err = filepath.Abs(a.cfg.LedgerPath())
	return of, err
}

// Backup copies an installation whose server is stopped into a directory, and says
// what it did. Errors: fault.Conflict while the server runs, or when the directory is
// not empty; fault.NotFound for a directory without an installation.
func Backup(ctx context.Context, cfg config.Config, w World, dir string) (said string, err error) {
	if _, err := os.Stat(filepath.Join(cfg.Data, "master.key")); err != nil {
		return "", fault.New(fault.NotFound, "no installation found in %s: %w", cfg.Data, err).
			WithHint("Name the server's data directory with --data, or its configuration with --config.")
	}
	a := newApp(cfg, w)
	defer func() { _ = a.Stop(context.WithoutCancel(ctx)) }()
	of, err := a.installation()
	if err != nil {
		return "", err
	}
	if err := ownUser(a.cfg.Data); err != nil {
		return "", err
	}
	if a.lock, err = lifecycle.LockDir(a.cfg.Data); err != nil {
		if fault.Is(err, fault.Conflict) {
			err = fault.New(fault.Conflict, "%w", err).WithHint("A server that runs makes its backup itself: falaj backup make NAME")
		}
		return "", err
	}
	if err := backup.Unfinished(a.cfg.Data); err != nil {
		return "", err
	}
	if of.Objects, err = a.openObjects(ctx); err != nil {
		return "", fault.Wrap(err, "open the object store")
	}
	if _, of.Owner, err = readHome(filepath.Join(a.cfg.Data, backup.ObjectsHome)); err != nil {
		return "", err
	}
	of.Log = a.log
	r, err := backup.Make(ctx, dir, of, w.Version)
	if err != nil {
		return "", err
	}
	if err := backup.AddNote(a.cfg.Data, backup.Note{Act: "backup.make", Object: "backup " + filepath.Base(dir), At: time.Now().UTC(), Detail: map[string]any{
		"dir": dir, "digest": r.Digest, "files": r.Files, "objects": r.Objects, "bytes": r.Bytes,
	}}); err != nil {
		return "", fault.Wrap(err, "the backup is whole, and is not noted for the audit log")
	}
	said = fmt.Sprintf("Backed up %d files and %d objects, %s, into %s\nIts digest, for falaj restore --digest: %s", r.Files, r.Objects, resource.Bytes(r.Bytes).Words(), dir, r.Digest)
	if a.cfg.Keys.PassphraseFile == "" {
		said += "\nThe backup contains the master key without a passphrase: protect it like the key."
	}
	return said, nil
}

// Restore puts a backup into an empty data directory, and the objects where the
// configuration says; where that is the bucket of the installation that was backed up,
// only with takeBucket. Errors: fault.Conflict when something is there; fault.Invalid
// for a backup that is not whole.
func Restore(ctx context.Context, cfg config.Config, w World, dir, digest string, takeBucket bool) (said string, err error) {
	a := newApp(cfg, w)
	defer func() { _ = a.Stop(context.WithoutCancel(ctx)) }()
	to, err := a.installation()
	if err != nil {
		return "", err
	}
	if err := ownUser(a.cfg.Data); err != nil {
		return "", err
	}
	if err := private(a.cfg.Data, a.log); err != nil {
		return "", err
	}
	if a.lock, err = lifecycle.LockDir(a.cfg.Data); err != nil {
		return "", err
	}
	if err := store.NotNewer(ctx, to.DatabaseIn(dir), schema.Migrations); err != nil { // before anything is put there
		return "", fault.Wrap(err, "the backup in %s", dir)
	}
	owner, err := backup.Prepare(dir, to, digest)
	if err != nil {
		return "", err
	}
	if err := a.settleBucket(ctx, owner, takeBucket); err != nil {
		return "", err
	}
	if to.Objects, err = a.openObjects(ctx); err != nil {
		return "", fault.Wrap(err, "open the object store")
	}
	r, err := backup.Restore(ctx, dir, to)
	if err != nil {
		return "", err
	}
	said = fmt.Sprintf("Restored %d files and %d objects, %s, into %s", r.Files, r.Objects, resource.Bytes(r.Bytes).Words(), a.cfg.Data)
	if r.Sequence != "" {
		said += fmt.Sprintf("\nAs it was at %s, sequence %s", r.Time.Format(time.RFC3339), r.Sequence)
	}
	if r.Ledger {
		said += fmt.Sprintf("\nNo erasure ledger newer than the backup was found: persons erased since the backup are restored. If you have a newer copy, copy it to %s before you start the server.", to.Ledger)
	}
	return said, nil
}

// ownUser refuses to work on the files of another user: the server, which runs as that
// one, could not read what we make.
func ownUser(dir string) error {
	info, err := os.Stat(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok && int(st.Uid) != os.Geteuid() {
		return fault.New(fault.Invalid, "%s belongs to another user, with the id %d", dir, st.Uid).WithHint("Run it as that user: sudo -u '#%d' falaj …", st.Uid)
	}
	return nil
}

// settleBucket refuses the bucket of the installation that was backed up, whose server
// may be running, or takes it from that one for good.
func (a *App) settleBucket(ctx context.Context, owner string, take bool) error {
	if owner == "" || a.cfg.Blob.S3.Endpoint == "" {
		return nil
	}
	cfg, err := a.cfg.Bucket()
	if err != nil {
		return err
	}
	d, err := s3blob.Look(ctx, cfg)
	if err != nil {
		return err
	}
	defer func() { _ = d.Close() }()
	if now, err := d.Owner(ctx); err != nil || now != owner {
		return err // nobody's, or another's, which openObjects refuses
	}
	if !take {
		return fault.New(fault.Conflict, "the bucket %s has the objects of the installation that was backed up", cfg.Bucket).
			WithHint("Name another bucket or prefix. If the old server is gone and will never run again, take its bucket: --take-bucket")
	}
	home := filepath.Join(a.cfg.Data, backup.ObjectsHome)
	what, ours, err := readHome(home)
	if err != nil {
		return err
	}
	if what == "" {
		ours = id.New("obj")
		if err := writeHome(home, "bucket", ours); err != nil {
			return err
		}
	}
	return d.Take(ctx, ours)
}
