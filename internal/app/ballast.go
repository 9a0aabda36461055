package app

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/lifecycle"
	"github.com/falaj-ml/falaj/internal/resource"
)

// ballast is space on the disk of the data directory that is taken so that it
// can be given back. A job in place can fill that disk faster than anybody can
// stop it; then its end could not be recorded, and what it wrote not be removed,
// because there is no space to record it in.
type ballast struct {
	path  string
	size  int64
	least int64 // free space that is to stay beside it
	log   *slog.Logger
}

const (
	ballastSize = 16 << 20
	ballastLow  = 4 << 20 // thrown when less is free
)

// holdBallast keeps space for a full disk, unless no reserve is wanted.
func (a *App) holdBallast(ctx context.Context) error {
	if bytes(a.cfg.Limits.Free) == 0 {
		return nil
	}
	b := &ballast{path: filepath.Join(a.cfg.Data, "ballast"), size: ballastSize, least: bytes(a.cfg.Limits.Free), log: a.log}
	loop := &lifecycle.Loop{Name: "ballast", Every: time.Second, Run: b.look, Logger: a.log}
	a.group.Add(loop.Service())
	return b.look(ctx)
}

// look throws the ballast when the disk is full, and takes it again when there
// is space.
func (b *ballast) look(ctx context.Context) error {
	var s unix.Statfs_t
	if err := unix.Statfs(filepath.Dir(b.path), &s); err != nil {
		return fault.Wrap(err, "disk of the data directory")
	}
	free := int64(s.Bavail) * s.Bsize //nolint:gosec // a disk's blocks fit
	_, err := os.Stat(b.path)
	held := err == nil
	switch {
	case held && free < ballastLow:
		b.log.WarnContext(ctx, "the disk of the data directory is full: the space kept for this is given back", slog.String("size", resource.Bytes(b.size).String()))
		return fault.Wrap(os.Remove(b.path), "giving space back")
	case !held && free > b.least+b.size+ballastLow:
		return fault.Wrap(b.take(), "keeping space")
	}
	return nil
}

func (b *ballast) take() error {
	f, err := os.OpenFile(b.path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	err = unix.Fallocate(int(f.Fd()), 0, 0, b.size)
	if errors.Is(err, unix.EOPNOTSUPP) {
		return nil // a file system that takes no space in advance: the empty file stays, and none is kept
	}
	if err != nil {
		_ = os.Remove(b.path)
	}
	return err
}
