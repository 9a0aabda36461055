package checkpoint

import (
	"context"
	"slices"
	"strings"
	"sync"

	"github.com/falaj-ml/falaj/internal/blob"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/store"
)

// pins keep chunks that a record is about to refer to, or that are being read,
// from the collector. Who holds a key before the collector marks it keeps it;
// who comes later waits until the collector is done with it, and stores the
// chunk again if it is gone.
type pins struct {
	mu      sync.Mutex
	held    map[string]int
	marked  map[string]bool
	changed chan struct{} // closed when marks go
}

func newPins() *pins {
	return &pins{held: map[string]int{}, marked: map[string]bool{}, changed: make(chan struct{})}
}

func (p *pins) hold(ctx context.Context, ref blob.Ref) error {
	key := string(ref.Key)
	for {
		p.mu.Lock()
		if !p.marked[key] {
			p.held[key]++
			p.mu.Unlock()
			return nil
		}
		changed := p.changed
		p.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (p *pins) release(keys []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, k := range keys {
		if p.held[k]--; p.held[k] == 0 {
			delete(p.held, k)
		}
	}
}

// mark returns the unreferenced chunks and locks them until unmark.
func (p *pins) mark(refs []blob.Ref) []blob.Ref {
	p.mu.Lock()
	defer p.mu.Unlock()
	var free []blob.Ref
	for _, r := range refs {
		if k := string(r.Key); p.held[k] == 0 && !p.marked[k] {
			p.marked[k] = true
			free = append(free, r)
		}
	}
	return free
}

func (p *pins) unmark(refs []blob.Ref) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, r := range refs {
		delete(p.marked, string(r.Key))
	}
	close(p.changed)
	p.changed = make(chan struct{})
}

// batch bounds one query and one round of the collector.
const batch = 500

// collect deletes those of the chunks that no record refers to. The order is
// what makes it safe: a record is committed while its chunks are held, so a
// chunk that is free after the mark and in no record then has no user, and gets
// none before its mark goes.
func (s *Service) collect(ctx context.Context, p project.Name, digests []string) error {
	for part := range slices.Chunk(digests, batch) {
		refs := make([]blob.Ref, len(part))
		for i, d := range part {
			refs[i] = Chunk{Digest: d}.ref(p)
		}
		if err := s.collectPart(ctx, p, s.pins.mark(refs)); err != nil {
			return err
		}
	}
	return nil
}

func (s *Service) collectPart(ctx context.Context, p project.Name, free []blob.Ref) error {
	defer s.pins.unmark(free)
	used, err := s.used(ctx, p, free)
	if err != nil {
		return err
	}
	for _, r := range free {
		if used[digestOf(r.Key)] {
			continue
		}
		if err := s.cfg.Blobs.Delete(ctx, r); err != nil {
			return fault.Wrap(err, "removing an unused chunk")
		}
	}
	return nil
}

func digestOf(k blob.Key) string { return string(k[strings.LastIndexByte(string(k), '/')+1:]) }

func (s *Service) used(ctx context.Context, p project.Name, refs []blob.Ref) (used map[string]bool, err error) {
	digests := make([]string, len(refs))
	for i, r := range refs {
		digests[i] = digestOf(r.Key)
	}
	err = s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		used, err = s.cfg.Store.Used(ctx, tx, p, digests)
		return err
	})
	return used, err
}

// CollectProject deletes all chunks of a project that no record refers to: what
// a crash left.
func (s *Service) CollectProject(ctx context.Context, p project.Name) error {
	var part []string
	flush := func() error {
		err := s.collect(ctx, p, part)
		part = part[:0]
		return err
	}
	err := s.cfg.Blobs.List(ctx, prefix(p), func(k blob.Key) error {
		part = append(part, digestOf(k))
		if len(part) < batch {
			return nil
		}
		return flush()
	})
	if err != nil {
		return err
	}
	return flush()
}

// retain drops the records of a job that its rules do not keep, and then their
// chunks. It may be called at any time.
func (s *Service) retain(ctx context.Context, job string) error {
	var dropped []Record
	var digests []string
	var p project.Name
	err := s.cfg.DB.Update(ctx, "", func(ctx context.Context, tx *store.Tx) error {
		dropped, digests = nil, nil
		j, err := s.cfg.Store.Job(ctx, tx, job)
		if err != nil {
			return err
		}
		p = j.Project
		all, err := s.cfg.Store.Checkpoints(ctx, tx, job)
		if err != nil {
			return err
		}
		why := kept(all, j.Rules, j.Ended, s.now())
		for _, r := range all {
			if why[r.ID] != "" {
				continue
			}
			ds, err := s.drop(ctx, tx, r, "expired by its job's retention rules")
			if err != nil {
				return err
			}
			dropped, digests = append(dropped, r), append(digests, ds...)
		}
		return nil
	})
	if err != nil || len(dropped) == 0 {
		return err
	}
	return s.collect(ctx, p, digests)
}
