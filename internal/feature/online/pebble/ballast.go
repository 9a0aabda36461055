package pebble

import (
	"errors"
	"log/slog"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/falaj-ml/falaj/internal/fault"
)

// ballast is space on the disk that is taken so that it can be given back. Pebble
// ends the process when its log does not take what was begun, as on a full disk. With
// the space that is given back at that moment the write is repeated and succeeds;
// from then on writes are refused until there is space to take again.
type ballast struct {
	path string
	log  *slog.Logger

	mu   sync.Mutex
	held bool
	none bool // the file system takes no space in advance
}

// ballastSize fits a memtable, its log and the next log.
const ballastSize = 24 << 20

// give gives the space back, when the disk is full.
func (b *ballast) give() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.held = false
	if err := os.Remove(b.path); err == nil {
		b.log.Warn("the disk of the online feature store is full: the reserved space was released")
	}
}

// ready sees to it that there is space to give back. Error: fault.Exhausted.
func (b *ballast) ready() error {
	if b == nil {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.held || b.none {
		return nil
	}
	f, err := os.OpenFile(b.path, os.O_CREATE|os.O_WRONLY, 0o600)
	if err == nil {
		err = errors.Join(unix.Fallocate(int(f.Fd()), 0, 0, ballastSize), f.Close())
	}
	switch {
	case err == nil:
		b.held = true
		return nil
	case errors.Is(err, unix.EOPNOTSUPP):
		b.none = true
		return nil
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		_ = os.Remove(b.path)
		return fault.New(fault.Exhausted, "the disk of the online feature store is full").
			WithHint("Free disk space. Pending writes then resume.").WithCause(err)
	}
	return fault.Wrap(err, "the disk of the online feature store")
}
