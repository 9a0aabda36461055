package agent

import (
	"cmp"
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
	n     int
	dir   string
	rules settled.Rules
	seen  *settled.Seen
	sent  map[string]string // by name: the state that the server has
}

func newSender(a *agent) (*sender, error) {
	s := &sender{a: a, asked: map[string]time.Time{}}
	for n, m := range a.places {
		if m.Role != protocol.RoleCheckpoints || m.InPlace || !m.Writable {
			continue
		}
		d := saves{n: n, dir: m.here, rules: settled.Rules{Settle: cmp.Or(m.Settle, settled.Default), Ready: m.Ready}, seen: &settled.Seen{}, sent: map[string]string{}}
		there, err := d.complete(&settled.End{InOrder: true}) // what was fetched is not sent back
		if err != nil {
			return nil, err
		}
		for name, c := range there {
			d.sent[name] = c.state
		}
		s.dirs = append(s.dirs, d)
	}
	return s, nil
}

// candidate is a checkpoint that can be sent.
type candidate struct {
	state    string
	modified time.Time
	files    []string // of those that lie beside directories
}

// complete are the complete checkpoints in a directory: while its program runs, or, with
// end, after that.
func (d saves) complete(end *settled.End) (map[string]candidate, error) {
	entries, err := os.ReadDir(d.dir)
	if err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(d.dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	now := time.Now()
	look := func(name string, rules settled.Rules) (st settled.State, whole bool) {
		st, err := settled.Look(root, name)
		switch {
		case err != nil: // its worker has removed it
			return st, false
		case end != nil:
			return st, rules.Left(st, *end)
		}
		return st, rules.Complete(st, d.seen.Since(name, st, now), now)
	}
	found := map[string]candidate{}
	for _, e := range entries {
		if !e.IsDir() || settled.Unfinished(e.Name()) || e.Name() == settled.LooseName { // the name is that of the files
			continue
		}
		if st, whole := look(e.Name(), d.rules); whole {
			found[e.Name()] = candidate{state: st.Signature, modified: st.Changed}
		}
	}
	var loose candidate
	var rest []string
	for _, name := range settled.Loose(entries) {
		st, whole := look(name, settled.Rules{Settle: d.rules.Settle})
		if !whole {
			rest = append(rest, name)
			continue
		}
		loose.files = append(loose.files, name)
		loose.state += name + " " + st.Signature + "\n"
		if st.Changed.After(loose.modified) {
			loose.modified = st.Changed
		}
	}
	if len(loose.files) > 0 && settled.Covers(loose.files, rest) {
		found[settled.LooseName] = loose
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
		if err := s.send(ctx, nil); err != nil && ctx.Err() == nil {
			s.a.note("checkpoints", err.Error())
		} else {
			s.a.note("checkpoints", "")
		}
	}
}

// send sends what is complete and was not sent; end is how the worker ended.
func (s *sender) send(ctx context.Context, end *settled.End) error {
	var errs []error
	for _, d := range s.dirs {
		now, err := d.complete(end)
		if err != nil {
			return err
		}
		var names []string
		for name, c := range now {
			if d.sent[name] != c.state {
				names = append(names, name)
			}
		}
		slices.SortFunc(names, func(a, b string) int { return now[a].modified.Compare(now[b].modified) })
		for _, name := range names {
			dir, files := filepath.Join(d.dir, name), now[name].files
			if files != nil {
				dir = d.dir
			}
			err := s.a.sendTree(ctx, d.n, dir, name, files)
			switch {
			case errors.Is(err, fs.ErrNotExist): // the worker has removed it
			case err != nil && !fault.Is(err, fault.Invalid) && !fault.Is(err, fault.TooLarge):
				errs = append(errs, fault.Wrap(err, "sending checkpoint %s", name))
				continue
			case err != nil: // never will be
				s.a.note("the last refused checkpoint", name+": "+err.Error())
			}
			s.mu.Lock()
			d.sent[name] = now[name].state
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
			has = has || e.Name() == name && e.IsDir() || name == settled.LooseName && e.Type().IsRegular() && !settled.Unfinished(e.Name())
			writing = writing || settled.Unfinished(e.Name())
		}
	}
	return has, writing
}

// sendTree sends a directory, or only some of the files in it: what the server has is not
// sent again.
func (a *agent) sendTree(ctx context.Context, n int, dir, name string, only []string) error {
	m, left, err := archive.Scan(dir, archive.Limits{Files: 100_000})
	if err != nil {
		return err
	}
	if only != nil {
		m.Dirs, left = nil, nil
		m.Files = slices.DeleteFunc(m.Files, func(f protocol.File) bool { return !slices.Contains(only, f.Path) })
	}
	if len(left) > 0 {
		a.say("%d entries of %s are not regular files and are not sent: %.500s", len(left), dir, strings.Join(left, ", "))
	}
	m.Name = name
	needed, err := a.c.manifest(ctx, n, m)
	if err != nil || needed.Have {
		return err
	}
	files := make([]protocol.File, 0, len(needed.Files))
	for _, i := range needed.Files {
		if i < 0 || i >= len(m.Files) {
			return fault.New(fault.Unavailable, "the server requests file %d of %d", i, len(m.Files))
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
	_ = r.CloseWithError(errors.New("the server accepts no more"))
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
