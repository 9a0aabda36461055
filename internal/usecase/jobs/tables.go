package jobs

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"

	"github.com/falaj-ml/falaj/internal/compute/engine"
	"github.com/falaj-ml/falaj/internal/dataset"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/training"
)

// Tables are the open datasets that jobs write; dir is where their files
// are.
type Tables struct {
	Data
	Dir string // of the tables
}

// Pin implements training.Tables.
func (t Tables) Pin(ctx context.Context, p project.Name, name string) (training.Input, error) {
	d, err := t.Datasets.Tables.Writable(ctx, p, name)
	if err != nil || d.Accepted == 0 {
		return training.Input{}, err
	}
	return t.Resolve(ctx, p, dataset.Ref{Name: name, Number: d.Accepted}.String())
}

// Place implements training.Tables.
func (t Tables) Place(ctx context.Context, j training.Job, attempt training.AttemptID, name string) ([]engine.Mount, error) {
	// What the attempt may read it is asked as itself: the files go round the catalog.
	ctx = identity.With(ctx, identity.Principal{Kind: identity.Attempt, ID: string(attempt), Name: string(j.ID), Project: j.Project, Behalf: submitter(j.Project, j.By.ID).ID, Scopes: scopesOf(j)})
	rooms, versions, err := t.Datasets.Tables.Directories(ctx, j.Project, name)
	if err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(t.Dir)
	if err != nil {
		return nil, err
	}
	defer func() { _ = root.Close() }()
	key := dataset.TableKey(j.Project, name)
	var mounts []engine.Mount
	for _, part := range slices.Concat(dataset.ForeignParts, rooms) {
		if err := hold(root, path.Join(key, part)); err != nil {
			return nil, err
		}
		mounts = append(mounts, engine.Mount{Path: filepath.Join(t.Dir, key, part), Writable: slices.Contains(dataset.ForeignParts, part)})
	}
	for _, v := range versions {
		if _, err := root.Stat(path.Join(key, v)); err != nil { // it went away, or is where versions were before
			continue
		}
		mounts = append(mounts, engine.Mount{Path: filepath.Join(t.Dir, key, v)})
	}
	return mounts, nil
}

// hold makes a directory that stays when it is empty: one that vanished with its
// last file would do so under a job that goes on. What jobs left there is neither
// followed nor written to.
func hold(root *os.Root, dir string) error {
	if err := root.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	f, err := root.OpenFile(path.Join(dir, dataset.HeldFile), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return f.Close()
}
