package local

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"github.com/fsnotify/fsnotify"

	"github.com/falaj-ml/falaj/internal/fault"
)

// tail tells followers that a file of a workload's directory has changed. One
// watcher serves all: the kernel gives a user few of them.
type tail struct {
	watcher *fsnotify.Watcher

	mu   sync.Mutex
	dirs map[string]map[*follower]bool
}

// follower is one interest in one file.
type follower struct {
	file    string
	changed func()
}

func newTail(w *fsnotify.Watcher) *tail {
	t := &tail{watcher: w, dirs: map[string]map[*follower]bool{}}
	go t.run()
	return t
}

func (t *tail) close() error { return t.watcher.Close() }

func (t *tail) run() {
	for {
		select {
		case e, ok := <-t.watcher.Events:
			if !ok {
				return
			}
			t.wake(filepath.Dir(e.Name), filepath.Base(e.Name))
		case _, ok := <-t.watcher.Errors:
			if !ok {
				return
			}
			t.wakeAll() // the kernel's queue overflowed: everybody looks
		}
	}
}

func (t *tail) wake(dir, file string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for f := range t.dirs[dir] {
		if f.file == file {
			f.changed()
		}
	}
}

func (t *tail) wakeAll() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, followers := range t.dirs {
		for f := range followers {
			f.changed()
		}
	}
}

// notify calls changed, which must not block, at each change of the file until
// stop is called.
func (t *tail) notify(dir, file string, changed func()) (stop func()) {
	signal := make(chan struct{}, 1)
	quit := make(chan struct{})
	go func() {
		for {
			select {
			case <-signal:
				changed()
			case <-quit:
				return
			}
		}
	}()
	f := &follower{file: file, changed: func() {
		select {
		case signal <- struct{}{}:
		default:
		}
	}}
	t.add(dir, f)
	var once sync.Once
	return func() {
		once.Do(func() {
			t.remove(dir, f)
			close(quit)
		})
	}
}

func (t *tail) add(dir string, f *follower) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.dirs[dir] == nil {
		t.dirs[dir] = map[*follower]bool{}
		_ = t.watcher.Add(dir) // without it a follower still sees the end
	}
	t.dirs[dir][f] = true
}

func (t *tail) remove(dir string, f *follower) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.dirs[dir], f)
	if len(t.dirs[dir]) == 0 {
		t.drop(dir)
	}
}

// forget drops a directory that is about to be removed.
func (t *tail) forget(dir string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.dirs[dir] != nil {
		t.drop(dir)
	}
}

func (t *tail) drop(dir string) {
	delete(t.dirs, dir)
	_ = t.watcher.Remove(dir)
}

// open reads a log from an offset.
func (t *tail) open(ctx context.Context, path string, offset int64, follow bool, w *workload) (io.ReadCloser, error) {
	r := &reader{ctx: ctx, path: path, offset: offset, w: w, closed: make(chan struct{})}
	if !follow {
		if err := r.open(); err != nil {
			return nil, err
		}
		r.ended = true // what is there is all
		return r, nil
	}
	r.changed = make(chan struct{}, 1)
	f := &follower{file: filepath.Base(path), changed: func() {
		select {
		case r.changed <- struct{}{}:
		default:
		}
	}}
	t.add(filepath.Dir(path), f) // before the first read, so that no change is missed
	r.release = func() { t.remove(filepath.Dir(path), f) }
	if err := r.open(); err != nil {
		r.release()
		return nil, err
	}
	return r, nil
}

// reader reads a log. Read and Close may be called by two goroutines.
type reader struct {
	ctx     context.Context //nolint:containedctx // The life of the stream, given by its opener.
	path    string
	offset  int64
	w       *workload
	ended   bool
	changed chan struct{}
	release func()
	once    sync.Once
	closed  chan struct{}

	mu   sync.Mutex // for Close beside Read
	file *os.File
}

func (r *reader) open() error {
	f, err := os.Open(r.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // nothing was written yet
	}
	if err != nil {
		return fault.Wrap(err, "opening the log of %s", r.w.id)
	}
	if _, err := f.Seek(r.offset, io.SeekStart); err != nil {
		return errors.Join(err, f.Close())
	}
	r.file = f
	return nil
}

// Read returns io.EOF when the workload has ended and all was read, or at once
// without follow.
func (r *reader) Read(b []byte) (int, error) {
	for {
		over := r.ended || r.w.over() // before reading: nothing is written after that
		n, err := r.some(b)
		if n > 0 || err != nil {
			return n, err
		}
		if over {
			return 0, io.EOF
		}
		select {
		case <-r.changed:
		case <-r.w.done:
		case <-r.w.detached:
			return 0, fault.New(fault.Unavailable, "the local engine is shutting down")
		case <-r.ctx.Done():
			return 0, r.ctx.Err()
		case <-r.closed:
			return 0, fs.ErrClosed
		}
	}
}

// some reads what is there; nothing is no error.
func (r *reader) some(b []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	select {
	case <-r.closed:
		return 0, fs.ErrClosed
	default:
	}
	if r.file == nil {
		if err := r.open(); err != nil || r.file == nil {
			return 0, err
		}
	}
	n, err := r.file.Read(b)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return n, err
}

// Close ends a waiting Read.
func (r *reader) Close() error {
	r.once.Do(func() {
		close(r.closed)
		if r.release != nil {
			r.release()
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.file != nil {
			_ = r.file.Close()
		}
	})
	return nil
}
