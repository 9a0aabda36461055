package training

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/store"
)

// Limits of what is listed of an output.
const (
	MaxListedFiles = 10_000 // files
	maxWalked      = 50_000 // entries that are looked at
)

// OutputFile is a file below the output directory of an attempt that runs.
type OutputFile struct {
	Path    string    `json:"path"`
	Size    int64     `json:"bytes"` // as now: it may grow
	Changed time.Time `json:"changed_at"`
}

// Output is what an attempt has written below its output directory so far.
type Output struct {
	Attempt AttemptID    `json:"attempt"`
	Number  int          `json:"number"`
	Files   []OutputFile `json:"items"`
	More    bool         `json:"more"` // there are more than MaxListedFiles
}

// OutputFiles lists what the attempt that runs has written below its output directory, at and
// below a path. It takes what reading the job's log takes. Only plain files are listed. Errors:
// fault.NotFound; fault.Gone when the job has ended, and what it left are the run's artifacts;
// fault.Unsupported where the files are on other machines.
func (s *Service) OutputFiles(ctx context.Context, p project.Name, jid JobID, below string) (Output, error) {
	a, root, err := s.outputOf(ctx, p, jid)
	if err != nil {
		return Output{}, err
	}
	defer func() { _ = root.Close() }()
	out := Output{Attempt: a.ID, Number: a.Number, Files: []OutputFile{}}
	below, err = outputPath(below)
	if err != nil {
		return out, err
	}
	walked := 0
	err = fs.WalkDir(root.FS(), below, func(name string, e fs.DirEntry, err error) error {
		if walked++; walked > maxWalked || len(out.Files) == MaxListedFiles {
			out.More = true
			return fs.SkipAll
		}
		if err != nil {
			if name == below && errors.Is(err, fs.ErrNotExist) {
				return fault.New(fault.NotFound, "attempt %d of job %s has written no %q yet", a.Number, jid, below).WithHint("See `falaj job files %s`.", jid)
			}
			return nil // it was removed, or may not be read; the others are there
		}
		info, err := e.Info()
		if err != nil || !info.Mode().IsRegular() || !utf8.ValidString(name) {
			return nil //nolint:nilerr // the same
		}
		out.Files = append(out.Files, OutputFile{Path: name, Size: info.Size(), Changed: info.ModTime().UTC()})
		return nil
	})
	return out, err
}

// OpenOutput opens a file below the output directory of the attempt that runs: as many bytes as
// it has now, whatever the job goes on to write. Errors as of OutputFiles; fault.TooLarge of
// one that is larger than an output may be, as a sparse file can be.
func (s *Service) OpenOutput(ctx context.Context, p project.Name, jid JobID, file string) (io.ReadCloser, error) {
	j, err := s.one(ctx, p, jid, ActionLogs)
	if err != nil {
		return nil, err
	}
	a, root, err := s.outputOf(ctx, p, jid)
	if err != nil {
		return nil, err
	}
	defer func() { _ = root.Close() }()
	name, err := outputPath(file)
	if err != nil {
		return nil, err
	}
	missing := fault.New(fault.NotFound, "attempt %d of job %s has no plain file %q", a.Number, jid, name).WithHint("See `falaj job files %s`; links out of it are not followed.", jid)
	// A link could be put in its place: neither it nor a pipe, which nobody may write, is waited for.
	f, err := root.OpenFile(filepath.FromSlash(name), os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, missing
	}
	info, err := f.Stat()
	most := int64(j.Spec.Disk.Output)
	if most == 0 {
		most = s.cfg.MaxOutput
	}
	switch {
	case err != nil || !info.Mode().IsRegular():
		_ = f.Close()
		return nil, missing
	case info.Size() > most:
		_ = f.Close()
		return nil, fault.New(fault.TooLarge, "%q has %d bytes; an output may have %d", name, info.Size(), most).WithHint("Write less of it, or raise spec.disk.output.")
	}
	return limited{io.LimitReader(f, info.Size()), f}, nil
}

type limited struct {
	io.Reader
	io.Closer
}

// outputPath is a path below the output directory.
func outputPath(p string) (string, error) {
	p = path.Clean("/" + p)[1:]
	if p == "" {
		p = "."
	}
	if !fs.ValidPath(p) {
		return "", fault.New(fault.Invalid, "%.200q is no path below the output directory", p)
	}
	return p, nil
}

// outputOf is the output directory of the attempt that runs, for whoever may read the job's log.
func (s *Service) outputOf(ctx context.Context, p project.Name, jid JobID) (a Attempt, root *os.Root, err error) {
	j, err := s.one(ctx, p, jid, ActionLogs)
	if err != nil {
		return a, nil, err
	}
	if j.Classification.Journalled() {
		err := s.cfg.Journal.Record(ctx, audit.Entry{
			Actor: identity.From(ctx), Project: string(p), Action: string(ActionLogs), Object: "job " + string(jid), Outcome: audit.Done,
		})
		if err != nil {
			return a, nil, fault.Wrap(err, "recording the read")
		}
	}
	if j.Attempt == "" {
		if j.State.Ended() {
			return a, nil, fault.New(fault.Gone, "job %s has ended; what it left are artifacts of its run %s", jid, j.Run).WithHint("See `falaj run files %s`, and `falaj run download`.", j.Run)
		}
		return a, nil, fault.New(fault.NotFound, "job %s has not written anything yet: no attempt of it runs", jid).WithHint("`falaj job why %s` says what it waits for.", jid)
	}
	err = s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		a, err = s.cfg.Store.Attempt(ctx, tx, j.Attempt)
		return err
	})
	if err != nil {
		return a, nil, err
	}
	pools, _, err := s.cfg.Compute.Offers(ctx)
	if err != nil {
		return a, nil, err
	}
	for _, pool := range pools {
		if pool.Name == a.Pool && pool.Remote {
			return a, nil, fault.New(fault.Unsupported, "the files of job %s are on the nodes of pool %s until its attempt ends", jid, a.Pool).
				WithHint("Log what you want to see before with mlflow.log_artifact: it is an artifact of run %s at once.", a.Run)
		}
	}
	root, err = os.OpenRoot(s.dirs(jid, a.ID).output)
	if errors.Is(err, fs.ErrNotExist) {
		return a, nil, fault.New(fault.NotFound, "job %s has not written anything yet", jid).WithHint("`falaj job why %s` says what it is at.", jid)
	}
	return a, root, err
}
