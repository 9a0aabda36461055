package environment

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"syscall"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/id"
	"github.com/falaj-ml/falaj/internal/resource"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/worker/archive"
)

// Holder names the environments that something uses now, by digest, whenever
// they were last asked for.
type Holder func(ctx context.Context) ([]Digest, error)

// leastAge is how long what was just asked for stays: whoever asked may only be
// about to start with it.
const leastAge = time.Hour

// Hold adds a holder; before the service is used.
func (s *Service) Hold(h Holder) { s.holders = append(s.holders, h) }

// use notes that an environment's files are used now. The modification time of
// its directory is when it was last used: it survives restarts and costs no row.
// Error: fault.Gone.
func (s *Service) use(e Environment) error {
	s.pruning.RLock()
	defer s.pruning.RUnlock()
	if !s.built(e.Digest) {
		return fault.New(fault.Gone, "the files of environment %s are missing", e.Name).WithHint("Apply it again.")
	}
	now := s.now()
	return fault.Wrap(os.Chtimes(s.path(e.Digest), now, now), "noting the use of environment %s", e.Name)
}

// Pruned is an environment whose files were removed, or would be.
type Pruned struct {
	Digest Digest         `json:"digest"`          // of the content; of an image its own
	Image  string         `json:"image,omitempty"` // where it is one
	Names  []string       `json:"names,omitempty"` // "project/name" that the content has now
	Size   resource.Bytes `json:"size"`            // that is free then: files that other environments have, too, stay
	Used   time.Time      `json:"used_at"`         // last
}

var builtRE = regexp.MustCompile(`^[0-9a-f]{64}$`)

// Prune removes the files of environments that nothing uses and that nobody
// asked for within age, which is at least an hour; dry only says what it would
// remove. Applying an environment again builds it again. Needs
// environment.prune.
func (s *Service) Prune(ctx context.Context, age time.Duration, dry bool) ([]Pruned, error) {
	if err := s.cfg.Authorizer.Allow(ctx, ActionPrune, policy.Object{Kind: "environment"}); err != nil {
		return nil, err
	}
	if age < leastAge {
		return nil, fault.New(fault.Invalid, "environments that were used %s ago may be about to be used", age).WithHint("Give at least %s.", leastAge)
	}
	entries, err := os.ReadDir(s.cfg.Dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fault.Wrap(err, "listing environments")
	}
	names, err := s.names(ctx)
	if err != nil {
		return nil, err
	}
	// Whoever begins to use one from here on notes it, which makes it too young.
	var held []Digest
	for _, h := range s.holders {
		digests, err := h(ctx)
		if err != nil {
			return nil, fault.Wrap(err, "asking who uses environments")
		}
		held = append(held, digests...)
	}
	pruned := []Pruned{}
	counted, err := s.newCount()
	if err != nil {
		return nil, err
	}
	for _, entry := range entries {
		if !entry.IsDir() || !builtRE.MatchString(entry.Name()) {
			continue
		}
		d := Digest("sha256:" + entry.Name())
		if slices.Contains(held, d) {
			continue
		}
		p := Pruned{Digest: d, Names: names[d]}
		var at string
		if at, p.Used, err = s.take(d, age, dry); err != nil {
			return pruned, err
		}
		if !p.Used.IsZero() {
			p.Size = counted.add(at)
			pruned = append(pruned, p)
		}
	}
	images, failed := s.pruneImages(ctx, s.now().Add(-age), held, names, dry)
	pruned = append(pruned, images...)
	if dry || len(pruned) == 0 {
		return pruned, failed
	}
	err = s.cfg.DB.Update(ctx, "", func(ctx context.Context, tx *store.Tx) error {
		return audit.Append(ctx, tx, audit.Entry{Action: string(ActionPrune), Object: "environments", Detail: map[string]any{"pruned": pruned}})
	})
	if err != nil {
		return pruned, fault.Wrap(err, "recording what was pruned")
	}
	return pruned, errors.Join(failed, archive.Remove(s.trash()), s.sweepPackages(ctx))
}

func (s *Service) trash() string { return filepath.Join(s.cfg.Dir, ".pruned") }

// take moves an environment out of everybody's sight unless it was used within
// age, and gives where its files are; the zero time means that it was used. Whoever asks
// for it at the same time gets it whole or finds it gone.
func (s *Service) take(d Digest, age time.Duration, dry bool) (at string, used time.Time, err error) {
	s.pruning.Lock()
	defer s.pruning.Unlock()
	info, err := os.Stat(s.path(d))
	if err != nil {
		return "", time.Time{}, fault.Wrap(err, "inspecting an environment")
	}
	if s.now().Sub(info.ModTime()) < age {
		return "", time.Time{}, nil
	}
	if dry {
		return s.path(d), info.ModTime(), nil
	}
	at, err = s.discardEnvironment(d)
	return at, info.ModTime(), err
}

// discardEnvironment moves the files of an environment to where they are deleted. The caller
// holds pruning for writing.
func (s *Service) discardEnvironment(d Digest) (at string, err error) {
	if err := os.MkdirAll(s.trash(), 0o700); err != nil {
		return "", err
	}
	if err := os.Chmod(s.path(d), 0o700); err != nil { //nolint:gosec // a directory about to be moved
		return "", err
	}
	at = filepath.Join(s.trash(), id.New("env"))
	return at, fault.Wrap(os.Rename(s.path(d), at), "removing environment %s", d.Short())
}

// names of the contents that names have now.
func (s *Service) names(ctx context.Context) (map[Digest][]string, error) {
	names := map[Digest][]string{}
	err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		newest, err := s.cfg.Store.Newest(ctx, tx)
		for _, e := range newest {
			names[e.Digest] = append(names[e.Digest], string(e.Project)+"/"+e.Name)
		}
		return err
	})
	return names, err
}

// inode is a file, whatever names it has.
type inode struct{ device, number uint64 }

func inodeOf(info fs.FileInfo) (inode, bool) {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok || !info.Mode().IsRegular() {
		return inode{}, false
	}
	return inode{uint64(st.Dev), st.Ino}, true //nolint:unconvert // 32 bits on other platforms
}

// count adds up what is free once environments are deleted. A file that the package store
// has, too, goes with the last environment.
type count struct {
	stored map[inode]bool   // in the package store
	names  map[inode]uint64 // of files in the environments that were added
}

func (s *Service) newCount() (count, error) {
	c := count{stored: map[inode]bool{}, names: map[inode]uint64{}}
	err := walkFiles(s.packagesDir(), func(file inode, _ fs.FileInfo) { c.stored[file] = true })
	return c, fault.Wrap(err, "measuring the package store")
}

// add gives the bytes that are free without an environment and those that were added before.
// What cannot be read is not counted.
func (c count) add(dir string) (free resource.Bytes) {
	_ = walkFiles(dir, func(file inode, info fs.FileInfo) {
		c.names[file]++
		held := c.names[file]
		if c.stored[file] {
			held++
		}
		if held >= links(info) {
			free += resource.Bytes(info.Size())
		}
	})
	return free
}

// sizesOf gives the bytes of an environment's files, and of those that other environments
// have, too: their names are these, its own and one in the package store.
func sizesOf(dir string) (size, shared resource.Bytes, err error) {
	err = walkFiles(dir, func(_ inode, info fs.FileInfo) {
		size += resource.Bytes(info.Size())
		if links(info) > 2 {
			shared += resource.Bytes(info.Size())
		}
	})
	return size, shared, err
}

// walkFiles calls do for each plain file below a directory, which need not exist.
func walkFiles(dir string, do func(inode, fs.FileInfo)) error {
	return filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if err == nil && !e.IsDir() {
			var info fs.FileInfo
			if info, err = e.Info(); err == nil {
				if file, ok := inodeOf(info); ok {
					do(file, info)
				}
			}
		}
		if errors.Is(err, fs.ErrNotExist) { // deleted meanwhile
			return nil
		}
		return err
	})
}
