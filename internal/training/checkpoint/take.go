package checkpoint

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unicode"
	"unicode/utf8"

	"golang.org/x/sync/errgroup"

	"github.com/falaj-ml/falaj/internal/blob"
	"github.com/falaj-ml/falaj/internal/event"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/id"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/worker/settled"
)

const (
	// chunkSize is large enough that syncing each chunk costs little, and small
	// enough that a checkpoint in which some tensors changed shares the others.
	chunkSize = 4 << 20
	// writers store chunks at the same time: while one waits for the disk,
	// others hash and seal.
	writers = 4
	// buffered chunks of all checkpoints that are being taken or restored.
	buffered = 8
)

// keyScope is whose key seals chunks.
const keyScope = "checkpoints"

func prefix(p project.Name) blob.Key { return blob.Key("projects/" + string(p) + "/checkpoints/") }

func (c Chunk) ref(p project.Name) blob.Ref {
	return blob.Ref{Project: string(p), Owner: keyScope, Key: prefix(p) + blob.Key(c.Digest)}
}

// take keeps the checkpoint of a name as it is now; one that is kept already is
// no change. Errors: fault.Conflict when it changed meanwhile, fault.Invalid and
// fault.TooLarge for what cannot be kept, fault.Exhausted on a full disk. incomplete says why
// it may be half written.
func (s *Service) take(ctx context.Context, j Job, name, incomplete string) error {
	if len(name) > maxName {
		return fault.New(fault.Invalid, "its name has %d bytes; the limit is %d", len(name), maxName)
	}
	if !utf8.ValidString(name) || strings.ContainsFunc(name, unicode.IsControl) {
		return fault.New(fault.Invalid, "its name %q contains control characters", name)
	}
	within, loose := name, s.isLoose(j.ID, name)
	if loose {
		within = ""
	}
	root, err := s.open(j.ID, within)
	if err != nil {
		return err
	}
	defer root.Close()
	survey := func() (tree, error) { return survey(ctx, root, s.cfg.MaxBytes) }
	if loose {
		files, err := s.looseComplete(root, j.ID, incomplete != "")
		if err != nil || len(files) == 0 {
			return err
		}
		survey = func() (tree, error) { return surveyLoose(root, files, s.cfg.MaxBytes) }
	}
	t, err := survey()
	if err != nil {
		return err
	}
	state := t.state()
	if known, err := s.known(ctx, j.ID, name, state, incomplete); err != nil || known {
		return err
	}

	if s.cfg.Room != nil { // before anything is written: half of it would fill the disk for all
		if err := s.cfg.Room(t.allocated, int64(len(t.files))); err != nil {
			return err
		}
	}
	m, stored, held, err := s.keep(ctx, j.Project, root, t)
	m.Loose = loose
	defer func() { s.pins.release(held) }()
	if err != nil {
		return err
	}
	after, err := survey()
	if err != nil {
		return err
	}
	if after.state() != state {
		return errChanged
	}

	r := Record{
		ID: id.New("ckp"), Project: j.Project, Job: j.ID, Name: name, Files: len(m.Files), Bytes: t.bytes, Stored: stored,
		Digest: m.digest(), Residency: j.Residency, Classification: j.Classification, TakenAt: s.now().UTC(), Revision: 1,
		Incomplete: incomplete, Loose: loose,
	}
	s.describe(&r, root, m, j.Rules.Best.Metric)
	named, err := changed(root)
	if err != nil {
		return err
	}
	if loose {
		if named, err = changedLoose(root, m); err != nil {
			return err
		}
	}
	return fault.Wrap(s.commit(ctx, r, m, state, named), "recording it")
}

// known reports that a checkpoint was taken in this state: then it is kept, or
// was dropped since and is not to come back. One that turned out to be damaged is
// taken again.
func (s *Service) known(ctx context.Context, job, name, state, incomplete string) (known bool, err error) {
	err = s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		seen, err := s.cfg.Store.Seen(ctx, tx, job, name)
		if err != nil || seen != state {
			return err
		}
		all, err := s.cfg.Store.Checkpoints(ctx, tx, job)
		i := lastNamed(all, name)
		known = i < 0 || all[i].Damaged == "" && (all[i].Incomplete == "" || all[i].Incomplete == incomplete)
		return err
	})
	return known, err
}

// open opens a job's directory, or with a name a checkpoint in it; nothing that
// user code puts there leads out of it.
func (s *Service) open(job, name string) (*os.Root, error) {
	dir, err := os.OpenRoot(filepath.Join(s.cfg.Dir, job))
	if err != nil || name == "" {
		return dir, gone(err)
	}
	defer dir.Close()
	root, err := dir.OpenRoot(name)
	return root, gone(err)
}

// number is what names such as step-000100 end in.
var number = regexp.MustCompile(`[0-9]{1,18}$`)

// describe reads the label, if there is one; without, the name may tell the step.
func (s *Service) describe(r *Record, root *os.Root, m Manifest, metric string) {
	digits := number.FindString(r.Name)
	if m.Loose { // such as epoch=1-step=250.ckpt
		newest := newest(m.Files).Path
		digits = number.FindString(strings.TrimSuffix(newest, path.Ext(newest)))
	}
	if digits != "" {
		if n, err := strconv.ParseInt(digits, 10, 64); err == nil {
			r.Step = &n
		}
	}
	i := slices.IndexFunc(m.Files, func(f File) bool { return f.Path == labelFile })
	if i < 0 {
		return
	}
	b, err := func() ([]byte, error) {
		f, err := m.Files[i].open(root)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		return io.ReadAll(io.LimitReader(f, maxLabel))
	}()
	var step *int64
	if err == nil {
		step, r.Metric, err = label(b, metric)
	}
	if step != nil {
		r.Step = step
	}
	if err != nil {
		r.Note = err.Error()
	}
}

// changed is when a directory got its name, or was changed after that: the
// kernel's word, which a program cannot set.
func changed(root *os.Root) (time.Time, error) {
	info, err := root.Stat(".")
	if err != nil {
		return time.Time{}, err
	}
	if sys, ok := info.Sys().(*syscall.Stat_t); ok {
		return time.Unix(sys.Ctim.Unix()), nil
	}
	return info.ModTime(), nil
}

// changedLoose is when the last of the files that lie directly in the job's directory changed.
func changedLoose(root *os.Root, m Manifest) (last time.Time, err error) {
	for _, f := range m.Files {
		st, err := settled.Look(root, f.Path)
		if err != nil {
			return last, gone(err)
		}
		if st.Changed.After(last) {
			last = st.Changed
		}
	}
	return last, nil
}

// newest is the file that was written last.
func newest(files []File) File {
	return slices.MaxFunc(files, func(a, b File) int { return a.Modified.Compare(b.Modified) })
}

// commit records a checkpoint whose chunks are all there and held.
func (s *Service) commit(ctx context.Context, r Record, m Manifest, state string, named time.Time) error {
	return s.cfg.DB.Update(ctx, string(r.Project), func(ctx context.Context, tx *store.Tx) (err error) {
		// Not the one under way: it may have been left by the one before.
		if r.Attempt, err = s.cfg.Store.AttemptAt(ctx, tx, r.Job, named); err != nil {
			return err
		}
		if err := s.cfg.Store.See(ctx, tx, r.Job, r.Name, state); err != nil {
			return err
		}
		all, err := s.cfg.Store.Checkpoints(ctx, tx, r.Job)
		if err != nil {
			return err
		}
		r.Number = 1
		for _, other := range all {
			r.Number = max(r.Number, other.Number+1)
		}
		// Restored, or written again with the same content: no new one.
		if i := lastNamed(all, r.Name); i >= 0 && all[i].Digest == r.Digest && all[i].Damaged == "" && all[i].Incomplete == r.Incomplete {
			return nil
		}
		if err := s.cfg.Store.InsertCheckpoint(ctx, tx, r, m); err != nil {
			return err
		}
		if s.cfg.Saved != nil && r.Attempt != "" {
			if err := s.cfg.Saved(ctx, tx, r.Attempt, named); err != nil {
				return err
			}
		}
		err = audit.Append(ctx, tx, audit.Entry{
			Project: string(r.Project), Action: "checkpoint.take", Object: "job " + r.Job,
			Detail: map[string]any{"checkpoint": r.ID, "name": r.Name, "digest": r.Digest, "bytes": r.Bytes},
		})
		if err != nil {
			return err
		}
		return event.Publish(ctx, tx, string(r.Project), Taken, r)
	})
}

func lastNamed(records []Record, name string) int {
	for i, r := range slices.Backward(records) {
		if r.Name == name {
			return i
		}
	}
	return -1
}

// keep stores the chunks of a surveyed directory. stored is how many of its
// bytes were not there yet; held are the chunks that the collector leaves alone
// until they are released, also after an error.
func (s *Service) keep(ctx context.Context, p project.Name, root *os.Root, t tree) (m Manifest, stored int64, held []string, err error) {
	m = Manifest{Cut: s.cfg.ChunkSize, Files: slices.Clone(t.files), Chunks: cut(t.files, s.cfg.ChunkSize)}
	var (
		mu    sync.Mutex // of held
		mine  = map[string]bool{}
		fresh atomic.Int64
	)
	store := func(ctx context.Context, c *Chunk, content []byte) error {
		if c.Digest = s.zeroDigest(c.Size); c.Digest == "" || slices.ContainsFunc(content, func(b byte) bool { return b != 0 }) {
			sum := sha256.Sum256(content)
			c.Digest = hex.EncodeToString(sum[:])
		}
		mu.Lock()
		known := mine[c.Digest]
		mine[c.Digest] = true
		mu.Unlock()
		if known {
			return nil // another writer has it
		}
		if err := s.pins.hold(ctx, c.ref(p)); err != nil {
			return err
		}
		mu.Lock()
		held = append(held, string(c.ref(p).Key))
		mu.Unlock()
		put, err := s.put(ctx, p, *c, content)
		if put {
			fresh.Add(c.Size)
		}
		return err
	}
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(writers)
	files := &stream{root: root, files: m.Files}
	defer files.Close()
	for i := range m.Chunks {
		c := &m.Chunks[i]
		buf, err := s.buffers.take(gctx)
		if err != nil {
			break // the group has the reason
		}
		if _, err := io.ReadFull(files, buf[:c.Size]); err != nil {
			s.buffers.give(buf)
			g.Go(func() error { return err })
			break
		}
		g.Go(func() error {
			defer s.buffers.give(buf)
			return store(gctx, c, buf[:c.Size])
		})
	}
	err = g.Wait()
	return m, fresh.Load(), held, err
}

// cut says where the stream of files is cut: a large file begins and ends a
// chunk, so that a change of the size of another one does not move its cuts;
// small ones share chunks.
func cut(files []File, size int64) []Chunk {
	var chunks []Chunk
	n := int64(0)
	flush := func() {
		if n > 0 {
			chunks = append(chunks, Chunk{Size: n})
			n = 0
		}
	}
	for _, f := range files {
		if f.Size >= size || n+f.Size > size {
			flush()
		}
		n += f.Size
		large := f.Size >= size
		for n > size {
			chunks = append(chunks, Chunk{Size: size})
			n -= size
		}
		if large {
			flush()
		}
	}
	flush()
	return chunks
}

// stream reads surveyed files one after the other.
type stream struct {
	root  *os.Root
	files []File
	next  int // of files, to open
	file  *os.File
	left  int64
}

func (s *stream) Read(p []byte) (int, error) {
	for s.file == nil || s.left == 0 {
		if err := s.advance(); err != nil {
			return 0, err
		}
	}
	n, err := s.file.Read(p[:min(int64(len(p)), s.left)])
	s.left -= int64(n)
	if errors.Is(err, io.EOF) {
		err = errChanged // shorter than surveyed
	}
	return n, gone(err)
}

// advance opens the next file that has bytes.
func (s *stream) advance() error {
	s.Close()
	for ; s.next < len(s.files); s.next++ {
		f := s.files[s.next]
		if f.Size == 0 {
			continue
		}
		file, err := f.open(s.root)
		if err != nil {
			return err
		}
		s.file, s.left = file, f.Size
		s.next++
		return nil
	}
	return io.EOF
}

// Close closes the file that is being read.
func (s *stream) Close() {
	if s.file != nil {
		_ = s.file.Close()
		s.file = nil
	}
}

// put stores a chunk unless it is there and whole.
func (s *Service) put(ctx context.Context, p project.Name, c Chunk, content []byte) (fresh bool, err error) {
	ref := c.ref(p)
	if !s.isBad(p, c.Digest) {
		info, err := s.cfg.Blobs.Stat(ctx, ref)
		if err == nil && info.Size == c.Size && info.Digest == "sha256:"+c.Digest {
			return false, nil
		}
		if err != nil && !fault.Is(err, fault.NotFound) && !errors.Is(err, blob.ErrDamaged) {
			return false, err
		}
	}
	if _, err := s.cfg.Blobs.Put(ctx, ref, bytes.NewReader(content), blob.WithHashed("sha256:"+c.Digest), blob.WithLimit(chunkSize)); err != nil {
		return false, err
	}
	return true, s.healed(ctx, Record{Project: p}, c.Digest)
}
