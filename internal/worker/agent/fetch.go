package agent

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/resource"
	"github.com/falaj-ml/falaj/internal/worker/archive"
	"github.com/falaj-ml/falaj/internal/worker/protocol"
)

// place is where a mount is on this node; an empty path has not come here.
type place struct {
	protocol.Mount
	here string
}

// mover replaces the server's paths of mounts in a text by the node's. A path
// counts where another name does not go on: /a/work is not in /a/workers.
func mover(places []place) func(string) string {
	var moved []place
	for _, p := range places {
		if p.here != "" && p.here != p.Path {
			moved = append(moved, p)
		}
	}
	slices.SortStableFunc(moved, func(a, b place) int { return len(b.Path) - len(a.Path) }) // the longest first
	return func(s string) string {
		var out strings.Builder
	next:
		for s != "" {
			for _, p := range moved {
				rest, ok := strings.CutPrefix(s, p.Path)
				if ok && (rest == "" || !partOfName(rest[0])) {
					out.WriteString(p.here)
					s = rest
					continue next
				}
			}
			out.WriteByte(s[0])
			s = s[1:]
		}
		return out.String()
	}
}

func partOfName(c byte) bool {
	return c == '.' || c == '_' || c == '-' || c >= '0' && c <= '9' || c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z' || c >= 0x80
}

// makeDir makes this agent's own directory, and removes those of agents that
// were killed.
func (a *agent) makeDir() error {
	base, err := a.private(protocol.EnvDir, "falaj-agent")
	if err != nil {
		return err
	}
	// One at a time: else one would sweep away what another is making.
	all, err := os.OpenFile(filepath.Join(base, ".lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer all.Close()
	if err := unix.Flock(int(all.Fd()), unix.LOCK_EX); err != nil {
		return fault.Wrap(err, "locking %s", base)
	}
	sweep(base)
	a.dir = filepath.Join(base, a.order.ID+"-"+strconv.Itoa(a.index)+"-"+a.c.start[:8])
	if err := os.Mkdir(a.dir, 0o700); err != nil {
		return fault.Wrap(err, "making the worker's directory")
	}
	// Held as long as we live, which is how others see that it is in use.
	f, err := os.OpenFile(a.dir+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	a.locks = append(a.locks, f)
	return unix.Flock(int(f.Fd()), unix.LOCK_EX)
}

// private is a directory for our user only, as a variable or below TMPDIR.
func (a *agent) private(variable, name string) (string, error) {
	dir := a.env[variable]
	if dir == "" {
		tmp := a.env["TMPDIR"]
		if tmp == "" {
			tmp = os.TempDir()
		}
		dir = filepath.Join(tmp, name+"-"+strconv.Itoa(os.Getuid()))
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fault.Wrap(err, "making %s", dir)
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return "", err
	}
	var st unix.Stat_t
	if err := unix.Lstat(dir, &st); err != nil || !info.IsDir() || int(st.Uid) != os.Getuid() {
		return "", fault.New(fault.PermissionDenied, "%s is not a directory of user %d", dir, os.Getuid()).WithHint("Set %s.", variable)
	}
	return dir, os.Chmod(dir, 0o700) //nolint:gosec // A directory.
}

// sweep removes directories whose agent is gone.
func sweep(base string) {
	locks, _ := filepath.Glob(filepath.Join(base, "[^.]*.lock"))
	for _, lock := range locks {
		f, err := os.OpenFile(lock, os.O_RDWR, 0)
		if err != nil {
			continue
		}
		if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
			remove(strings.TrimSuffix(lock, ".lock"))
			_ = os.Remove(lock)
		}
		_ = f.Close()
	}
}

// remove removes what it can.
func remove(dir string) {
	_ = archive.Remove(dir)
}

func (a *agent) clear() {
	remove(a.dir)
	_ = os.Remove(a.dir + ".lock")
}

// fetch brings the mounts here.
func (a *agent) fetch(ctx context.Context) error {
	for n, m := range a.order.Mounts {
		p := place{Mount: m}
		own := filepath.Join(a.dir, "m"+strconv.Itoa(n))
		var err error
		switch {
		case m.InPlace:
			p.here = m.Path
		case m.Role == protocol.RoleScratch, m.Role == protocol.RoleOutput:
			p.here, err = own, os.Mkdir(own, 0o700)
		case m.Role == protocol.RoleVenv, m.Role == protocol.RoleInterpreter: // venv does it
		case m.Digest != "" && !m.Writable:
			p.here, err = a.cached(ctx, m.Digest, func(tmp, _ string) error { return a.download(ctx, n, tmp) })
		default:
			p.here, err = own, a.download(ctx, n, own)
		}
		if err != nil {
			return fault.Wrap(err, "fetching %s", m.Path)
		}
		a.places = append(a.places, p)
	}
	for n, m := range a.order.Mounts {
		if m.Role == protocol.RoleVenv && !m.InPlace {
			if err := a.venv(ctx, n); err != nil {
				return fault.Wrap(err, "moving the environment to this node")
			}
		}
	}
	for n, m := range a.order.Mounts { // without an environment to say which it needs
		if m.Role == protocol.RoleInterpreter && a.places[n].here == "" {
			if err := a.interpreter(ctx, n); err != nil {
				return err
			}
		}
	}
	if err := a.checkSites(ctx); err != nil {
		return err
	}
	s, err := newSender(a)
	if err != nil {
		return err
	}
	a.mu.Lock()
	a.sender = s
	a.mu.Unlock()
	return nil
}

// download makes a mount's content at a path where nothing is.
func (a *agent) download(ctx context.Context, n int, to string) error {
	return a.c.retry(ctx, func(ctx context.Context) error {
		remove(to)
		err := a.c.mount(ctx, n, func(r io.Reader) error { return archive.Unpack(r, to, archive.Limits{}) })
		if errors.Is(err, unix.ENOSPC) {
			return fault.New(fault.TooLarge, "this node's disk is full: %w", err).WithHint("Free space, or set node_dir in the pool's options to another disk.")
		}
		return err
	})
}

// cacheName is the directory below TMPDIR of what stays between workloads.
const cacheName = "falaj-cache"

// cached is the content of a key, which fill makes when it is not in the cache.
// It stays there at least as long as this process lives.
func (a *agent) cached(ctx context.Context, key string, fill func(tmp, final string) error) (string, error) {
	cache, err := a.private(protocol.EnvCache, cacheName)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256([]byte(key))
	path := filepath.Join(cache, hex.EncodeToString(sum[:16]))
	lock, err := os.OpenFile(path+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return "", err
	}
	a.locks = append(a.locks, lock)
	for {
		if err := flock(ctx, lock, path); err != nil {
			return "", err
		}
		if _, err := os.Lstat(path); err != nil {
			a.evict(cache)
			tmp := path + ".part"
			remove(tmp)
			if err := fill(tmp, path); err != nil {
				remove(tmp)
				return "", err
			}
			if err := os.Rename(tmp, path); err != nil {
				return "", err
			}
		}
		now := time.Now()
		_ = os.Chtimes(path+".lock", now, now) // when it was last used
		// Shared from now on. One lock goes before the other comes: whoever was
		// quicker may have evicted it.
		if err := unix.Flock(int(lock.Fd()), unix.LOCK_SH); err != nil {
			return "", err
		}
		if _, err := os.Lstat(path); err == nil {
			return path, nil
		}
	}
}

// flock takes the lock of a path: for ourselves, or shared when the path is
// there. It gives up with the context.
func flock(ctx context.Context, f *os.File, path string) error {
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return err
		}
		if unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB) == nil {
			if _, err := os.Lstat(path); err == nil {
				return nil
			}
			if err := unix.Flock(int(f.Fd()), unix.LOCK_UN); err != nil { // two must not fill it
				return err
			}
		}
		t := time.NewTimer(100 * time.Millisecond)
		select {
		case <-t.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// evict removes what was not used for the longest time until the cache is within
// its bound; what is in use stays.
func (a *agent) evict(cache string) {
	bound := 20 * resource.GiB
	if s := a.env[protocol.EnvLimit]; s != "" {
		if b, err := resource.ParseBytes(s); err == nil {
			bound = b
		}
	}
	type entry struct {
		path string
		used time.Time
		size resource.Bytes
	}
	var all []entry
	total := resource.Bytes(0)
	locks, _ := filepath.Glob(filepath.Join(cache, "*.lock"))
	for _, lock := range locks {
		info, err := os.Stat(lock)
		if err != nil {
			continue
		}
		e := entry{path: strings.TrimSuffix(lock, ".lock"), used: info.ModTime()}
		e.size = size(e.path)
		total += e.size
		all = append(all, e)
	}
	slices.SortFunc(all, func(a, b entry) int { return a.used.Compare(b.used) })
	for _, e := range all {
		if total <= bound {
			return
		}
		f, err := os.OpenFile(e.path+".lock", os.O_RDWR, 0)
		if err != nil {
			continue
		}
		if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
			remove(e.path)
			total -= e.size
		}
		_ = f.Close()
	}
}

func size(dir string) (n resource.Bytes) {
	_ = filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if err == nil && e.Type().IsRegular() {
			if info, err := e.Info(); err == nil {
				n += resource.Bytes(info.Size())
			}
		}
		return nil
	})
	return n
}
