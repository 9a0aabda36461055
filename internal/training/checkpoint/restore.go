package checkpoint

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/falaj-ml/falaj/internal/blob"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/fsync"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/worker/archive"
)

// broken is the error of a checkpoint that cannot be restored as it was.
type broken struct {
	chunk string // digest; empty where no single chunk is to blame
	err   error
}

func (b *broken) Error() string { return b.err.Error() }
func (b *broken) Unwrap() error { return b.err }

// Restored is what an attempt begins with.
type Restored struct {
	// Resumes is the newest complete checkpoint, a path below the job's directory; empty
	// where there is none.
	Resumes string
	Notes   []string // what was done, in words
}

// Restore brings the newest kept checkpoints of a job, and the best, into its
// directory where they are missing. A damaged one is passed over for the one
// before it, and noted in words. From then on a program runs in the directory.
func (s *Service) Restore(ctx context.Context, job string) (out Restored, err error) {
	defer s.lock(job)()
	j, all, err := s.both(ctx, job)
	if err != nil {
		return out, err
	}
	notes := s.begun(job)
	defer func() { out.Notes = notes }()
	if len(all) == 0 {
		return out, nil
	}
	rules, _, _ := j.Rules.complete()
	newest := good(all)
	done := map[string]bool{}
	there := map[string]bool{} // by identifier
	// bring goes from better to worse until want of them are there.
	bring := func(from []Record, want int) error {
		for _, r := range from {
			if want == 0 {
				return nil
			}
			if done[r.Name] {
				want--
				continue
			}
			note, err := s.restore(ctx, r)
			var b *broken
			switch {
			case errors.As(err, &b):
				notes = append(notes, fmt.Sprintf("checkpoint %s cannot be restored (%v); the previous one is used", r.Name, b))
				if err := s.blame(ctx, r, b); err != nil {
					return err
				}
				continue
			case err != nil:
				return fault.Wrap(err, "checkpoint %s", r.Name)
			case note != "":
				notes = append(notes, note)
			}
			there[r.ID] = true
			done[r.Name] = true
			want--
		}
		return nil
	}
	sorted := sorts(newest)
	want := rules.Restore
	if len(sorted[1]) > 0 { // a file beside them, such as DeepSpeed's latest, may name the one before
		want = max(want, 2)
	}
	err = bring(sorted[0], want)
	if err == nil {
		err = bring(sorted[1], 1)
	}
	if err == nil {
		err = bring(best(newest, rules), min(rules.KeepBest, 1))
	}
	resumes := first(slices.DeleteFunc(newest, func(r Record) bool { return !there[r.ID] }))
	if err != nil || len(resumes) == 0 {
		return out, err
	}
	r := resumes[0]
	if out.Resumes, err = s.path(ctx, r); err != nil {
		return out, err
	}
	notes = append(notes, fmt.Sprintf("the newest complete checkpoint is %s, taken at %s; passed as FALAJ_RESUME", out.Resumes, r.TakenAt.UTC().Format(time.RFC3339)))
	return out, nil
}

// path is what a program loads of a checkpoint: its directory, or of files that lie in the
// job's directory the one that was written last.
func (s *Service) path(ctx context.Context, r Record) (string, error) {
	m, release, err := s.manifest(ctx, r)
	defer release()
	if err != nil || !m.Loose {
		return r.Name, err
	}
	return newest(m.Files).Path, nil
}

// restore writes a checkpoint into its job's directory unless one of its name is
// there. The note says where it came from.
func (s *Service) restore(ctx context.Context, r Record) (note string, err error) {
	root, err := s.open(r.Job, "")
	if fault.Is(err, fault.Conflict) {
		if err := os.MkdirAll(s.dir(r.Job), 0o700); err != nil {
			return "", err
		}
		root, err = s.open(r.Job, "")
	}
	if err != nil {
		return "", err
	}
	defer root.Close()
	if _, err := root.Lstat(r.Name); err == nil {
		return "", nil
	}
	m, release, err := s.manifest(ctx, r)
	defer release()
	if err != nil {
		return "", err
	}
	missing := func(f File) bool {
		_, err := root.Lstat(f.Path)
		return errors.Is(err, fs.ErrNotExist)
	}
	if m.Loose && !slices.ContainsFunc(m.Files, missing) {
		return "", nil
	}
	if s.cfg.Room != nil {
		needs := int64(0)
		for _, c := range m.Chunks {
			if c.Digest != s.zeroDigest(c.Size) {
				needs += c.Size
			}
		}
		if err := s.cfg.Room(needs, int64(len(m.Files))); err != nil {
			return "", err
		}
	}
	tmp := ".restore-" + r.ID
	if err := root.RemoveAll(tmp); err != nil {
		return "", err
	}
	if err := s.write(ctx, r, m, root, tmp); err != nil {
		return "", errors.Join(err, root.RemoveAll(tmp))
	}
	if m.Loose {
		for _, f := range m.Files {
			if missing(f) {
				if err := root.Rename(path.Join(tmp, f.Path), f.Path); err != nil {
					return "", err
				}
			}
		}
		err = root.RemoveAll(tmp)
	} else {
		err = root.Rename(tmp, r.Name)
	}
	if err != nil {
		return "", err
	}
	from := ""
	if r.From != "" {
		from = " of " + r.From
	}
	return fmt.Sprintf("checkpoint %s%s was restored (%d files, %d bytes)", r.Name, from, r.Files, r.Bytes), fsync.In(root, ".")
}

// manifest reads what a record consists of, and holds its chunks.
func (s *Service) manifest(ctx context.Context, r Record) (m Manifest, release func(), err error) {
	var held []string
	release = func() { s.pins.release(held) }
	err = s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		m, err = s.cfg.Store.Manifest(ctx, tx, r.ID)
		return err
	})
	if err != nil {
		return m, release, err
	}
	if m.digest() != r.Digest || !m.whole() {
		return m, release, &broken{err: fault.New(fault.Internal, "its manifest differs from the recorded one")}
	}
	for _, c := range m.Chunks {
		if err := s.pins.hold(ctx, c.ref(r.Project)); err != nil {
			return m, release, err
		}
		held = append(held, string(c.ref(r.Project).Key))
	}
	return m, release, nil
}

// write makes the files of a checkpoint below a new directory, durably.
func (s *Service) write(ctx context.Context, r Record, m Manifest, root *os.Root, dir string) error {
	if err := root.Mkdir(dir, 0o700); err != nil {
		return err
	}
	files := make([]*os.File, len(m.Files))
	defer func() {
		for _, f := range files {
			if f != nil {
				_ = f.Close()
			}
		}
	}()
	dirs := map[string]bool{dir: true}
	for i, f := range m.Files {
		name := path.Join(dir, f.Path)
		parent := path.Dir(name)
		if strings.HasSuffix(f.Path, "/") {
			parent = name
		}
		if !dirs[parent] {
			if err := root.MkdirAll(parent, 0o700); err != nil {
				return err
			}
			for d := parent; !dirs[d]; d = path.Dir(d) {
				dirs[d] = true
			}
		}
		if parent == name {
			continue
		}
		mode := fs.FileMode(0o600)
		if f.Exec {
			mode = 0o700
		}
		file, err := root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
		if err != nil {
			return err
		}
		if files[i] = file; f.Size > 0 {
			if err := file.Truncate(f.Size); err != nil { // a hole, of which fill writes what is not zero
				return err
			}
		}
	}
	if err := s.fill(ctx, r, m, files); err != nil {
		return err
	}
	for i, f := range m.Files {
		if files[i] == nil {
			continue
		}
		err := errors.Join(files[i].Sync(), files[i].Close())
		files[i] = nil
		// The times are the files' own, so that the next look sees no change.
		if err = errors.Join(err, root.Chtimes(path.Join(dir, f.Path), f.Modified, f.Modified)); err != nil {
			return err
		}
	}
	for d := range dirs {
		if err := fsync.In(root, d); err != nil {
			return err
		}
	}
	return nil
}

// fill writes the chunks to where they belong in the files.
func (s *Service) fill(ctx context.Context, r Record, m Manifest, files []*os.File) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(writers)
	first, skip := 0, int64(0) // the chunk begins skip bytes into the first file
	for _, c := range m.Chunks {
		for first < len(m.Files) && skip >= m.Files[first].Size {
			skip -= m.Files[first].Size
			first++
		}
		from, offset := first, skip
		if c.Digest == s.zeroDigest(c.Size) { // a hole stays one
			skip += c.Size
			continue
		}
		g.Go(func() error {
			buf, err := s.buffers.take(ctx)
			if err != nil {
				return err
			}
			defer s.buffers.give(buf)
			if err := s.load(ctx, r, c, buf[:c.Size]); err != nil {
				return err
			}
			content := buf[:c.Size]
			for i := from; len(content) > 0; i, offset = i+1, 0 {
				n := min(int64(len(content)), m.Files[i].Size-offset)
				if n == 0 {
					continue
				}
				if err := archive.WriteSparse(files[i], content[:n], offset); err != nil {
					return err
				}
				content = content[n:]
			}
			return nil
		})
		skip += c.Size
	}
	return g.Wait()
}

// zeroDigest is the digest of a whole chunk of zeros; empty for other sizes.
func (s *Service) zeroDigest(size int64) string {
	if size != s.cfg.ChunkSize {
		return ""
	}
	s.zeros.Do(func() {
		sum := sha256.Sum256(make([]byte, size))
		s.zero = hex.EncodeToString(sum[:])
	})
	return s.zero
}

// load reads one chunk, and proves it.
func (s *Service) load(ctx context.Context, r Record, c Chunk, into []byte) error {
	blame := func(err error) error {
		return &broken{chunk: c.Digest, err: fault.Wrap(err, "chunk %.12s", c.Digest)}
	}
	o, err := s.cfg.Blobs.Open(ctx, c.ref(r.Project))
	if errors.Is(err, blob.ErrDamaged) || fault.Is(err, fault.NotFound) {
		return blame(err)
	}
	if err != nil {
		return err
	}
	defer o.Close()
	_, err = io.ReadFull(o, into)
	if err == nil {
		_, err = o.Read(make([]byte, 1)) // io.EOF says that the whole is right
		if errors.Is(err, io.EOF) {
			err = nil
		}
	}
	if sum := sha256.Sum256(into); err == nil && hex.EncodeToString(sum[:]) != c.Digest {
		err = blob.ErrDamaged
	}
	if errors.Is(err, blob.ErrDamaged) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return blame(err)
	}
	return err
}

// blame records that a checkpoint cannot be restored.
func (s *Service) blame(ctx context.Context, r Record, b *broken) error {
	if b.chunk != "" {
		s.mu.Lock()
		s.bad[string(Chunk{Digest: b.chunk}.ref(r.Project).Key)] = true
		s.mu.Unlock()
	}
	s.log.ErrorContext(ctx, "a checkpoint is damaged", slog.String("job", r.Job), slog.String("checkpoint", r.ID), slog.String("name", r.Name), slog.Any("error", b.err))
	return s.cfg.DB.Update(ctx, string(r.Project), func(ctx context.Context, tx *store.Tx) error {
		now, err := s.cfg.Store.Checkpoint(ctx, tx, r.ID)
		if err != nil {
			return err
		}
		now.Damaged, now.Chunk = b.Error(), b.chunk
		return s.cfg.Store.UpdateCheckpoint(ctx, tx, now)
	})
}

// healed takes the blame from checkpoints whose damaged chunk was stored anew.
func (s *Service) healed(ctx context.Context, r Record, digest string) error {
	key := string(Chunk{Digest: digest}.ref(r.Project).Key)
	s.mu.Lock()
	was := s.bad[key]
	s.mu.Unlock()
	if !was {
		return nil
	}
	err := s.cfg.DB.Update(ctx, string(r.Project), func(ctx context.Context, tx *store.Tx) error {
		damaged, err := s.cfg.Store.Damaged(ctx, tx)
		if err != nil {
			return err
		}
		for _, d := range damaged {
			if d.Project == r.Project && d.Chunk == digest {
				d.Damaged, d.Chunk = "", ""
				if err := s.cfg.Store.UpdateCheckpoint(ctx, tx, d); err != nil {
					return err
				}
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	s.mu.Lock()
	delete(s.bad, key)
	s.mu.Unlock()
	return nil
}

// archive writes a checkpoint as a tar stream.
func (s *Service) archive(ctx context.Context, r Record, m Manifest, to io.Writer) error {
	buf := make([]byte, chunkSize) // not of the common ones: the reader may be slow
	w := tar.NewWriter(to)
	chunks := slices.Clone(m.Chunks)
	var rest []byte
	for _, f := range m.Files {
		h := &tar.Header{Name: f.Path, Size: f.Size, Mode: 0o600, ModTime: f.Modified, Typeflag: tar.TypeReg, Format: tar.FormatPAX}
		if f.Exec {
			h.Mode = 0o700
		}
		if strings.HasSuffix(f.Path, "/") {
			h.Typeflag, h.Mode = tar.TypeDir, 0o700
		}
		if err := w.WriteHeader(h); err != nil {
			return err
		}
		for left := f.Size; left > 0; {
			if len(rest) == 0 {
				rest = buf[:chunks[0].Size]
				if err := s.load(ctx, r, chunks[0], rest); err != nil {
					return err
				}
				chunks = chunks[1:]
			}
			n := min(left, int64(len(rest)))
			if _, err := w.Write(rest[:n]); err != nil {
				return err
			}
			rest, left = rest[n:], left-n
		}
	}
	return w.Close()
}
