// Package filewatch keeps what files of certificates and credentials say, and reads them
// again when they change, so that a renewed one needs no restart.
//
// A File looks at its files whenever it is asked for their value, which costs a stat of
// each. Files that cannot be used any more, such as half of one that is being written, do
// not take the former value away: Refresh says what is wrong with them.
package filewatch

import (
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"
)

// File is the value that files have. Make it with Open; safe for concurrent use.
type File[T any] struct {
	read  func() (T, error)
	paths []string

	mu      sync.Mutex
	stamp   string // of the files that were read last
	value   T
	failure error     // of the last read; nil when it succeeded
	failed  string    // stamp of the files that it read
	tried   time.Time // when
}

// pause is how long files that could not be used, and have not changed since, are not read
// again: a value is asked for at every connection.
const pause = time.Second

// Open reads the files by read, which is called again when one of paths is another file
// or another version of it.
func Open[T any](read func() (T, error), paths ...string) (*File[T], error) {
	f := &File[T]{read: read, paths: paths, stamp: stampOf(paths)}
	var err error
	if f.value, err = read(); err != nil {
		return nil, err
	}
	return f, nil
}

// Value is what the files say now, or said when they could last be used.
func (f *File[T]) Value() T {
	v, _, _ := f.refresh(false)
	return v
}

// Changed reports whether the files are others than those that were read last.
func (f *File[T]) Changed() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return stampOf(f.paths) != f.stamp
}

// Refresh reads the files again if they changed, or always when it is forced. After an
// error the former value stays; the files are read again when they change, or after a pause.
func (f *File[T]) Refresh(force bool) (again bool, err error) {
	_, again, err = f.refresh(force)
	return again, err
}

func (f *File[T]) refresh(force bool) (value T, again bool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	stamp := stampOf(f.paths) // before it is read: what is written meanwhile is read the next time
	if stamp == f.stamp && !force {
		return f.value, false, nil
	}
	if f.failure != nil && stamp == f.failed && !force && time.Since(f.tried) < pause {
		return f.value, false, f.failure
	}
	next, err := f.read()
	f.failure, f.failed, f.tried = err, stamp, time.Now()
	if err != nil {
		return f.value, false, err
	}
	f.stamp, f.value = stamp, next
	return next, true, nil
}

// stampOf tells files from others that were put in their place.
func stampOf(paths []string) string {
	stamp := ""
	for _, path := range paths {
		info, err := os.Stat(path) // through links, as those of mounted secrets are
		if err != nil {
			return stamp + path + ": " + err.Error()
		}
		stamp += fmt.Sprintf("%s %d %d", path, info.ModTime().UnixNano(), info.Size())
		if s, ok := info.Sys().(*syscall.Stat_t); ok { // another file may have the time and the size of the one before it
			stamp += fmt.Sprintf(" %d %d %d", s.Dev, s.Ino, s.Ctim.Nano())
		}
		stamp += "\n"
	}
	return stamp
}
