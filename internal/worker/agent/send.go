package agent

import (
	"compress/gzip"
	"context"
	"errors"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/worker/archive"
	"github.com/falaj-ml/falaj/internal/worker/protocol"
	"github.com/falaj-ml/falaj/internal/worker/settled"
)

// lookEvery is how often finished checkpoints are looked for.
const lookEvery = 500 * time.Millisecond

// A member that is asked for its part of a checkpoint says that it has none when
// it has had this long to give it its name; longer while it is writing one.
const (
	partTime    = 3 * time.Second
	writingTime = 30 * time.Second
)

// sender brings finished checkpoints to the server, each once.
type sender struct {
	a    *agent
	dirs []saves

	mu    sync.Mutex
	asked map[string]time.Time // since when
}

// saves is one mount for checkpoints.
type saves struct {
	n    int
	dir  string
	sent map[string]stamp
}

// stamp tells one state of a directory from another.
type stamp struct {
	inode    uint64
	modified int64
}

func newSender(a *agent) (*sender, error) {
	s := &sender{a: a, asked: map[string]time.Time{}}
	for n, m := range a.places {
		if m.Role != protocol.RoleCheckpoints || m.InPlace || !m.Writable {
			continue
		}
		there, err := finished(m.here) // what was fetched is not sent back
		if err != nil {
			return nil, err
		}
		s.dirs = append(s.dirs, saves{n: n, dir: m.here, sent: there})
	}
	return s, nil
}

// finished are the checkpoints in a directory.
func finished(dir string) (map[string]stamp, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	found := map[string]stamp{}
	for _, e := range entries {
		if !e.IsDir() || settled.Unfinished(e.Name()) {
			continue
		}
		var st unix.Stat_t
		if unix.Lstat(filepath.Join(dir, e.Name()), &st) == nil {
			found[e.Name()] = stamp{inode: st.Ino, modified: st.Mtim.Nano()}
		}
	}
	return found, nil
}

// watch sends what is finished until ctx is done.
func (s *sender) watch(ctx context.Context) {
	if len(s.dirs) == 0 {
		return
	}
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if err := s.send(ctx); err != nil && ctx.Err() == nil {
			s.a.note("checkpoints", err.Error())
		} else {
			s.a.note("checkpoints", "")
		}
	}
}

// send sends what is finished and was not sent.
func (s *sender) send(ctx context.Context) error {
	var errs []error
	for _, d := range s.dirs {
		now, err := finished(d.dir)
		if err != nil {
			return err
		}
		var names []string
		for name, st := range now {
			if d.sent[name] != st {
				names = append(names, name)
			}
		}
		slices.SortFunc(names, func(a, b string) int { return int(now[a].modified - now[b].modified) })
		for _, name := range names {
			err := s.a.sendTree(ctx, d.n, filepath.Join(d.dir, name), name)
			switch {
			case errors.Is(err, fs.ErrNotExist): // the worker has removed it
			case err != nil && !fault.Is(err, fault.Invalid) && !fault.Is(err, fault.TooLarge):
				errs = append(errs, fault.Wrap(err, "sending checkpoint %s", name))
				continue
			case err != nil: // never will be
				s.a.note("the last refused checkpoint", name+": "+err.Error())
			}
			s.mu.Lock()
			d.sent[name] = now[name]
			s.mu.Unlock()
		}
	}
	return errors.Join(errs...)
}

// none are those of the checkpoints asked for that this member has no part of.
func (s *sender) none(asked []string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	for name := range s.asked {
		if !slices.Contains(asked, name) {
			delete(s.asked, name)
		}
	}
	var out []string
	for _, name := range asked {
		since, known := s.asked[name]
		if !known {
			s.asked[name] = now
			continue
		}
		has, writing := s.state(name)
		if !has && (now.Sub(since) > writingTime || now.Sub(since) > partTime && !writing) {
			out = append(out, name)
		}
	}
	return out
}

// state reports whether a checkpoint is here, and whether one is being written.
func (s *sender) state(name string) (has, writing bool) {
	for _, d := range s.dirs {
		entries, err := os.ReadDir(d.dir)
		if err != nil {
			continue
		}
		for _, e := range entries {
			has = has || e.Name() == name && e.IsDir()
			writing = writing || settled.Unfinished(e.Name())
		}
	}
	return has, writing
}

// sendTree sends a directory: what the server has is not sent again.
func (a *agent) sendTree(ctx context.Context, n int, dir, name string) error {
	m, left, err := archive.Scan(dir, archive.Limits{Files: 100_000})
	if err != nil {
		return err
	}
	if len(left) > 0 {
		a.say("%d things in %s are no plain files and stay here: %.500s", len(left), dir, strings.Join(left, ", "))
	}
	m.Name = name
	needed, err := a.c.manifest(ctx, n, m)
	if err != nil || needed.Have {
		return err
	}
	files := make([]protocol.File, 0, len(needed.Files))
	for _, i := range needed.Files {
		if i < 0 || i >= len(m.Files) {
			return fault.New(fault.Unavailable, "the server wants file %d of %d", i, len(m.Files))
		}
		files = append(files, m.Files[i])
	}
	err = a.c.tree(ctx, n, name, needed.Manifest, func(w io.Writer) error { return archive.PackFiles(w, dir, files) })
	if fault.Is(err, fault.Conflict) { // the server has forgotten the manifest, or a file has changed: all over again
		return fault.New(fault.Unavailable, "%w", err)
	}
	return err
}

// tree streams a tree to the server.
func (c *client) tree(ctx context.Context, n int, name, manifest string, pack func(io.Writer) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	watch := newStall(cancel)
	defer watch.stop()
	r, w := io.Pipe()
	packed := make(chan struct{})
	header := http.Header{"Content-Type": {"application/x-tar"}}
	if c.zip {
		header.Set("Content-Encoding", "gzip")
	}
	go func() {
		defer close(packed)
		_ = w.CloseWithError(c.squeeze(w, pack))
	}()
	resp, err := c.request(ctx, http.MethodPut, "mounts/"+strconv.Itoa(n)+"/tree", url.Values{"name": {name}, "manifest": {manifest}}, watch.reader(r), header)
	_ = r.CloseWithError(errors.New("the server takes no more"))
	<-packed
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, io.LimitReader(resp.Body, 1<<20))
	return cut(ctx, err)
}

func (c *client) squeeze(w io.Writer, pack func(io.Writer) error) error {
	if !c.zip {
		return pack(w)
	}
	z, err := gzip.NewWriterLevel(w, gzip.BestSpeed)
	if err != nil {
		return err
	}
	return errors.Join(pack(z), z.Close())
}
