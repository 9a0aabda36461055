package agent

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/falaj-ml/falaj/internal/worker/protocol"
)

func onNode(t *testing.T) *agent {
	t.Helper()
	dir := t.TempDir()
	return &agent{
		env:    map[string]string{protocol.EnvDir: filepath.Join(dir, "work"), protocol.EnvCache: filepath.Join(dir, "cache")},
		stderr: io.Discard, c: &client{start: "0123456789"}, order: protocol.Order{ID: "att_1"},
	}
}

// TestLocksAreHeld: what an agent uses is swept and evicted by nobody for as
// long as it lives, also after the collector ran.
func TestLocksAreHeld(t *testing.T) {
	a := onNode(t)
	if err := a.makeDir(); err != nil {
		t.Fatal(err)
	}
	path, err := a.cached(t.Context(), "key", func(tmp, _ string) error { return os.Mkdir(tmp, 0o700) })
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		runtime.GC()
	}
	for _, lock := range []string{a.dir + ".lock", path + ".lock"} {
		if !held(t, lock) {
			t.Errorf("%s is free", lock)
		}
	}
	runtime.KeepAlive(a)
}

// TestCacheIsFilledOnce: of several agents that want the same, one fills it.
func TestCacheIsFilledOnce(t *testing.T) {
	first := onNode(t)
	var fills, inside atomic.Int32
	var all sync.WaitGroup
	for range 8 {
		a := &agent{env: first.env, stderr: io.Discard}
		all.Go(func() {
			path, err := a.cached(context.WithoutCancel(t.Context()), "key", func(tmp, _ string) error {
				fills.Add(1)
				if inside.Add(1) > 1 {
					t.Error("two fill it at the same time")
				}
				defer inside.Add(-1)
				runtime.Gosched()
				return os.Mkdir(tmp, 0o700)
			})
			if _, gone := os.Stat(path); err != nil || gone != nil {
				t.Errorf("%v %v", err, gone)
			}
		})
	}
	all.Wait()
	if n := fills.Load(); n != 1 {
		t.Errorf("filled %d times", n)
	}
	runtime.KeepAlive(first)
}

// TestInterpreterIsHeld: an environment that an earlier agent has moved to an
// interpreter in the cache keeps that from being evicted.
func TestInterpreterIsHeld(t *testing.T) {
	before := onNode(t)
	var python string
	prefix, err := before.cached(t.Context(), "interpreter sha256:1", func(tmp, final string) error {
		python = filepath.Join(final, "python3")
		return errors.Join(os.Mkdir(tmp, 0o700), os.WriteFile(filepath.Join(tmp, "python3"), nil, 0o600))
	})
	if err != nil {
		t.Fatal(err)
	}
	_, err = before.cached(t.Context(), "venv sha256:2 of /env", func(tmp, _ string) error {
		return errors.Join(os.Mkdir(tmp, 0o700), os.WriteFile(filepath.Join(tmp, pythonFile), []byte(python), 0o600))
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range before.locks {
		_ = f.Close()
	}
	a := &agent{env: before.env, stderr: io.Discard, places: []place{
		{Mount: protocol.Mount{Path: "/env", Role: protocol.RoleVenv, Digest: "sha256:2"}},
		{Mount: protocol.Mount{Path: "/opt/python", Role: protocol.RoleInterpreter, Digest: "sha256:1"}},
	}}
	if err := a.venv(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	if !held(t, prefix+".lock") {
		t.Error("the interpreter may be evicted")
	}
	runtime.KeepAlive(a)
}

// held reports that somebody has a lock.
func held(t *testing.T, lock string) bool {
	t.Helper()
	f, err := os.Open(lock)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == unix.EWOULDBLOCK
}
