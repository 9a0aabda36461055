package lifecycle

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/falaj-ml/falaj/internal/fault"
)

const lockName = "falaj.lock"

// A child that a killed server was just starting has the server's lock until it
// has become its program.
const (
	orphanTime  = 10 * time.Second
	orphanRetry = 20 * time.Millisecond
)

// DirLock is the ownership of a data directory. The kernel ends it with the
// process, however that ends.
type DirLock struct{ file *os.File }

// LockDir takes the directory for this process. Error: fault.Conflict, with the
// process id of the owner, while another process has it.
func LockDir(dir string) (*DirLock, error) {
	patience := time.NewTimer(orphanTime)
	defer patience.Stop()
	for {
		lock, owner, err := tryLock(dir)
		if lock != nil || err != nil {
			return lock, err
		}
		if !gone(owner) {
			return nil, held(dir, owner)
		}
		select {
		case <-patience.C:
			return nil, held(dir, owner)
		case <-time.After(orphanRetry):
		}
	}
}

// tryLock gives the lock, or who has it, or an error that no waiting helps with.
func tryLock(dir string) (lock *DirLock, owner string, err error) {
	path := filepath.Join(dir, lockName)
	for {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			return nil, "", fault.New(fault.Unavailable, "lock data directory: %w", err).
				WithHint("Check that %s exists and that the server may write there.", dir)
		}
		if err := flock(f); err != nil {
			defer f.Close()
			if !errors.Is(err, unix.EWOULDBLOCK) {
				return nil, "", fault.New(fault.Unsupported, "lock data directory %s: %w", dir, err).
					WithHint("Put the data directory on a local file system.")
			}
			return nil, ownerOf(f), nil
		}
		// The file that we locked may have been removed meanwhile: then another
		// process may lock a new one.
		if !sameFile(f, path) {
			f.Close()
			continue
		}
		if err := errors.Join(f.Truncate(0), note(f)); err != nil {
			f.Close()
			return nil, "", fault.New(fault.Exhausted, "note the owner in %s: %w", path, err).WithHint("Free disk space.")
		}
		return &DirLock{file: f}, "", nil
	}
}

// Unlock gives the directory back. It may be called twice.
func (l *DirLock) Unlock() error {
	err := l.file.Close()
	if errors.Is(err, os.ErrClosed) {
		return nil
	}
	return err
}

func flock(f *os.File) error {
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

func sameFile(f *os.File, path string) bool {
	a, err1 := f.Stat()
	b, err2 := os.Stat(path)
	return err1 == nil && err2 == nil && os.SameFile(a, b)
}

func note(f *os.File) error {
	_, err := fmt.Fprintf(f, "%d\n", os.Getpid())
	return err
}

// ownerOf is what the owner of the lock wrote down.
func ownerOf(f *os.File) string {
	b, err := io.ReadAll(io.LimitReader(f, 32))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// Owner is the process that has the directory, 0 if none has, or one that is not
// ours to see. It takes no lock.
func Owner(dir string) int {
	path := filepath.Join(dir, lockName)
	b, err := os.ReadFile(path)
	if err != nil {
		return 0
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil || pid <= 0 {
		return 0
	}
	// The number may be another process's by now: the owner has the file open.
	files := filepath.Join("/proc", strconv.Itoa(pid), "fd")
	entries, err := os.ReadDir(files)
	if err != nil {
		return 0
	}
	lock, err := os.Stat(path)
	if err != nil {
		return 0
	}
	for _, e := range entries {
		if open, err := os.Stat(filepath.Join(files, e.Name())); err == nil && os.SameFile(open, lock) {
			return pid
		}
	}
	return 0
}

// gone reports whether the process that took the lock is known not to exist.
func gone(owner string) bool {
	pid, err := strconv.Atoi(owner)
	return err == nil && pid > 0 && errors.Is(unix.Kill(pid, 0), unix.ESRCH)
}

func held(dir, owner string) error {
	who := "another process"
	if owner != "" {
		who = "process " + owner
	}
	return fault.New(fault.Conflict, "the data directory %s is in use by %s", dir, who).
		WithHint("Stop that server first, or give this one another directory with --data.")
}
