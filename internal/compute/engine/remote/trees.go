//nolint:gosec // Paths: names are checked by returned and archive.Check, and stay below the mounts and the directory of the workload.
package remote

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/falaj-ml/falaj/internal/compute/engine"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/fsync"
	"github.com/falaj-ml/falaj/internal/sandbox/shim"
	"github.com/falaj-ml/falaj/internal/worker/archive"
	"github.com/falaj-ml/falaj/internal/worker/protocol"
	"github.com/falaj-ml/falaj/internal/worker/settled"
)

// maxTrees bounds the checkpoints that one workload may be in the middle of.
const maxTrees = 10_000

// tree is a directory that a member sends back: its part of a checkpoint, or its
// output. Its files arrive in a staging directory. A file gets its name only when it is complete
// and matches the manifest, so an interrupted transfer resumes.
type tree struct {
	Key      string            `json:"key"` // names the record and the stage
	Mount    int               `json:"mount"`
	Index    int               `json:"index"`
	Name     string            `json:"name,omitempty"`
	Digest   string            `json:"digest"`
	Manifest protocol.Manifest `json:"manifest"`
	Done     bool              `json:"done,omitempty"`  // all of it is in the stage
	Taken    bool              `json:"taken,omitempty"` // and has its final place

	busy   bool // a stream of it is being read
	weight int  // of the record, in bytes
}

// stage is where a tree's files come to be. A checkpoint's is beside its final
// place, hidden, so that one rename completes it.
func (w *work) stage(t *tree) string {
	if t.Name == "" {
		return filepath.Join(w.dir, treesDir, t.Key)
	}
	return filepath.Join(w.spec.Mounts[t.Mount].Path, ".falaj-"+w.id+"-"+t.Key)
}

func treeKey(mount, index int, name string) string {
	sum := sha256.Sum256([]byte(name))
	return strconv.Itoa(mount) + "-" + strconv.Itoa(index) + "-" + hex.EncodeToString(sum[:8])
}

func (w *work) saveTree(t *tree) error {
	return fault.Wrap(shim.Write(filepath.Join(w.dir, treesDir), t.Key+".json", t), "recording the data of worker %d of %s", t.Index, w.id)
}

func (w *work) loadTrees() error {
	dir := filepath.Join(w.dir, treesDir)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if filepath.Ext(e.Name()) != ".json" {
			continue
		}
		b, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return err
		}
		t := &tree{}
		if json.Unmarshal(b, t) != nil || t.Mount < 0 || t.Mount >= len(w.spec.Mounts) {
			continue
		}
		t.weight = len(b)
		w.trees[t.Key] = t
	}
	return nil
}

// weight is what the records of all trees take. The caller holds mu.
func (w *work) weight() (n int) {
	for _, t := range w.trees {
		n += t.weight
	}
	return n
}

// slim forgets what a member's checkpoints consist of, but for the last: only
// that one is compared with the next. The caller holds mu.
func (w *work) slim(mount, index int) error {
	last := w.latest(mount, index)
	for _, t := range w.trees {
		if t.Mount != mount || t.Index != index || !t.Taken || t == last || t.weight == 0 {
			continue
		}
		t.Manifest, t.weight = protocol.Manifest{}, 0
		if err := w.saveTree(t); err != nil {
			return err
		}
	}
	return nil
}

// returned is the mount that a tree may be for.
func (w *work) returned(n int, name string) error {
	m, err := w.mirrored(n)
	switch {
	case err != nil:
		return err
	case m.Role == engine.Output && name == "":
		return nil
	case m.Role != engine.Checkpoints || !m.Writable:
		return fault.New(fault.Invalid, "mount %d of %s accepts no data as %.100q", n, w.id, name)
	case name == "" || len(name) > 200 || strings.ContainsAny(name, "/\x00") || settled.Unfinished(name):
		return fault.New(fault.Invalid, "%.100q is not the name of a finished checkpoint", name)
	}
	return nil
}

// manifest takes what a member is about to send, and says which of it is needed.
func (h *Hub) manifest(id string, s sender, n int, m protocol.Manifest) (protocol.Needed, error) {
	none := protocol.Needed{}
	w, err := h.open(id, s)
	if err != nil {
		return none, err
	}
	if err := w.returned(n, m.Name); err != nil {
		return none, err
	}
	if err := archive.Check(m, archive.Limits{Files: 100_000, Bytes: w.c.MaxTree}); err != nil {
		return none, err
	}
	b, err := json.Marshal(m)
	if err != nil {
		return none, err
	}
	sum := sha256.Sum256(b)
	digest := hex.EncodeToString(sum[:])

	written, err := h.d.writing()
	if err != nil {
		return none, err
	}
	defer written()
	w.mu.Lock()
	key := treeKey(n, s.index, m.Name)
	t := w.trees[key]
	switch {
	case t != nil && t.busy:
		w.mu.Unlock()
		return none, fault.New(fault.Unavailable, "it is already being sent")
	case t != nil && t.Digest == digest && t.Done:
		w.mu.Unlock()
		return protocol.Needed{Manifest: digest, Have: true}, nil
	case t == nil && len(w.trees) >= maxTrees:
		w.mu.Unlock()
		return none, fault.New(fault.TooLarge, "workload %s has more than %d checkpoints in one attempt", id, maxTrees)
	}
	if w.weight()+len(b) > w.c.MaxManifests {
		w.mu.Unlock()
		return none, fault.New(fault.Exhausted, "the checkpoints of workload %s that are on their way have too many files", id).
			WithHint("Write fewer, larger files; those of a gang count together.")
	}
	before := w.latest(n, s.index)
	fresh := t == nil || t.Digest != digest
	t = &tree{Key: key, Mount: n, Index: s.index, Name: m.Name, Digest: digest, Manifest: m, busy: true, weight: len(b)}
	err = w.saveTree(t)
	if err == nil {
		w.trees[key] = t
	}
	w.mu.Unlock()
	if err != nil {
		return none, err
	}
	defer func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		t.busy = false
	}()
	if fresh { // the stage of another content, or of another attempt
		if err := os.RemoveAll(w.stage(t)); err != nil {
			return none, err
		}
	}
	root, err := w.openStage(t)
	if err != nil {
		return none, full(err)
	}
	defer root.Close()
	if before != nil {
		if err := w.reuse(root, t, before); err != nil {
			return none, full(err)
		}
	}
	return protocol.Needed{Manifest: digest, Files: absent(root, m)}, nil
}

func (w *work) openStage(t *tree) (*os.Root, error) {
	if err := os.MkdirAll(w.stage(t), 0o700); err != nil {
		return nil, err
	}
	return os.OpenRoot(w.stage(t))
}

// full makes an error of the disk one that the agent waits for.
func full(err error) error {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return fault.New(fault.Exhausted, "the server's disk is full: %w", err)
	}
	return err
}

// latest is the member's last checkpoint that has its place. The caller holds mu.
func (w *work) latest(mount, index int) *tree {
	var last *tree
	for _, t := range w.trees {
		if t.Mount == mount && t.Index == index && t.Taken && (last == nil || t.Name > last.Name) {
			last = t
		}
	}
	return last
}

// reuse copies files that the previous checkpoint has, too. It makes no links, because a write to
// one would change both.
func (w *work) reuse(into *os.Root, t, before *tree) error {
	have := map[string]protocol.File{}
	for _, f := range before.Manifest.Files {
		have[f.SHA256] = f
	}
	from, err := os.OpenRoot(w.final(before.Mount, before.Name))
	if err != nil {
		return nil // it was removed meanwhile: all of it is sent
	}
	defer from.Close()
	for _, i := range absent(into, t.Manifest) {
		f := t.Manifest.Files[i]
		old, ok := have[f.SHA256]
		if !ok || old.Size != f.Size {
			continue
		}
		src, err := from.Open(old.Path)
		if err != nil {
			continue
		}
		err = archive.Place(into, f, src)
		_ = src.Close()
		if err = full(err); fault.Is(err, fault.Exhausted) {
			return err
		}
	}
	return nil
}

// absent lists the files of a manifest that a directory has not.
func absent(root *os.Root, m protocol.Manifest) []int {
	out := []int{}
	for i, f := range m.Files {
		if info, err := root.Lstat(f.Path); err != nil || !info.Mode().IsRegular() || info.Size() != f.Size {
			out = append(out, i)
		}
	}
	return out
}

// tree takes the files that were needed.
func (h *Hub) tree(ctx context.Context, id string, s sender, n int, name, digest string, r io.Reader) error {
	w, err := h.open(id, s)
	if err != nil {
		return err
	}
	if err := w.returned(n, name); err != nil {
		return err
	}
	w.mu.Lock()
	t := w.trees[treeKey(n, s.index, name)]
	switch {
	case t == nil || t.Digest != digest:
		err = fault.New(fault.Conflict, "the manifest of this tree is missing").WithHint("Send the manifest first.")
	case t.busy:
		err = fault.New(fault.Unavailable, "it is already being sent")
	case !t.Done:
		t.busy = true
	}
	done := t != nil && t.Done
	w.mu.Unlock()
	if err != nil || done {
		return err
	}
	err = w.receive(t, r)
	w.mu.Lock()
	t.busy = false
	w.mu.Unlock()
	if err != nil {
		return full(err)
	}
	written, err := h.d.writing()
	if err != nil {
		return err
	}
	defer written()
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.state.Final != nil || w.finish { // meanwhile: another attempt may have begun
		return fault.New(fault.Gone, "workload %s has ended", id)
	}
	t.Done = true
	if err := w.saveTree(t); err != nil {
		t.Done = false
		return full(err)
	}
	w.members[s.index].heard = h.d.c.Now()
	delete(w.members[s.index].none, name)
	h.complete(ctx, w)
	w.notify()
	return nil
}

// receive reads a stream into a tree's stage until that is complete and synced.
func (w *work) receive(t *tree, r io.Reader) error {
	root, err := w.openStage(t)
	if err != nil {
		return err
	}
	defer root.Close()
	want := map[string]protocol.File{}
	for _, i := range absent(root, t.Manifest) {
		want[t.Manifest.Files[i].Path] = t.Manifest.Files[i]
	}
	if err := archive.Receive(r, root, want); err != nil {
		return err
	}
	if len(want) > 0 {
		return fault.New(fault.Invalid, "the stream lacks %d of its files", len(want))
	}
	for _, d := range t.Manifest.Dirs {
		if err := root.MkdirAll(d.Path, 0o700); err != nil {
			return err
		}
	}
	return syncDirs(w.stage(t))
}

// syncDirs makes the names below a directory survive a power loss.
func syncDirs(dir string) error {
	return filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.IsDir() {
			return err
		}
		return fsync.Dir(path)
	})
}

// checkpoint names a checkpoint of a workload.
type checkpoint struct {
	mount int
	name  string
}

// parts are the delivered parts of checkpoints that have not got their place,
// by member. The caller holds mu.
func (w *work) parts() map[checkpoint]map[int]*tree {
	out := map[checkpoint]map[int]*tree{}
	for _, t := range w.trees {
		if t.Name == "" || !t.Done || t.Taken {
			continue
		}
		c := checkpoint{t.Mount, t.Name}
		if out[c] == nil {
			out[c] = map[int]*tree{}
		}
		out[c][t.Index] = t
	}
	return out
}

// asked are the checkpoints that a member is asked for: other members have delivered their parts, and this
// one has neither delivered its own nor said that it has none.
func (w *work) asked(index int) []string {
	var names []string
	for c, parts := range w.parts() {
		if parts[index] == nil && !w.members[index].none[c.name] {
			names = append(names, c.name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// complete gives checkpoints their place that have all their parts. The caller
// holds mu.
func (h *Hub) complete(ctx context.Context, w *work) {
	for c, parts := range w.parts() {
		if !w.whole(c.name, parts) {
			continue
		}
		if err := w.takeCheckpoint(c, parts); err != nil {
			h.d.c.Log.WarnContext(ctx, "a checkpoint cannot be stored yet", slog.String("workload", w.id), slog.String("checkpoint", c.name), slog.Any("error", err))
			continue
		}
		h.d.c.Log.InfoContext(ctx, "a checkpoint is complete", slog.String("workload", w.id), slog.String("checkpoint", c.name), slog.Int("parts", len(parts)))
	}
}

// whole reports whether a checkpoint has all its parts: each member has
// delivered its own, or has said that it has none, or has ended without ever
// delivering one. One that delivered before and failed was to deliver this, too.
func (w *work) whole(name string, parts map[int]*tree) bool {
	for i, m := range w.members {
		if parts[i] != nil || m.none[name] {
			continue
		}
		if !m.over() {
			return false
		}
		failed := m.End == nil || !fine(m.End) && m.End.ExitCode != tempFail && engine.Reason(m.End.Reason) != engine.Stopped
		if failed && slices.ContainsFunc(slices.Collect(maps.Values(w.trees)), func(t *tree) bool { return t.Index == i && t.Name != "" && t.Done }) {
			return false
		}
	}
	return true
}

// takeCheckpoint merges the parts, the first member's winning, and renames the
// whole to its name.
func (w *work) takeCheckpoint(c checkpoint, parts map[int]*tree) error {
	order := slices.Sorted(maps.Keys(parts))
	base := parts[order[0]]
	for _, i := range order[1:] {
		if err := merge(w.stage(parts[i]), w.stage(base)); err != nil {
			return err
		}
	}
	if err := syncDirs(w.stage(base)); err != nil {
		return err
	}
	final := w.final(c.mount, c.name)
	var err error
	if c.name == settled.LooseName { // each file by its own rename: they stand beside others
		err = replaceFiles(w.stage(base), final)
	} else {
		err = os.Rename(w.stage(base), final)
	}
	if errors.Is(err, fs.ErrExist) || errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.ENOTDIR) {
		// One of that name is there: it is replaced by one step.
		if err = unix.Renameat2(unix.AT_FDCWD, w.stage(base), unix.AT_FDCWD, final, unix.RENAME_EXCHANGE); err == nil {
			err = os.RemoveAll(w.stage(base))
		}
	}
	if errors.Is(err, fs.ErrNotExist) && taken(final, base.Manifest) {
		err = nil // renamed before a crash
	}
	if err == nil {
		err = fsync.Dir(w.spec.Mounts[c.mount].Path)
	}
	if err != nil {
		return err
	}
	for _, t := range parts {
		t.Taken = true
		if err := w.saveTree(t); err != nil {
			return err
		}
		_ = os.RemoveAll(w.stage(t))
		if err := w.slim(t.Mount, t.Index); err != nil {
			return err
		}
	}
	for _, m := range w.members {
		delete(m.none, c.name)
	}
	return nil
}

// final is where a checkpoint has its place: files that stand beside others have theirs in the
// mount itself.
func (w *work) final(mount int, name string) string {
	if name == settled.LooseName {
		return w.spec.Mounts[mount].Path
	}
	return filepath.Join(w.spec.Mounts[mount].Path, name)
}

// replaceFiles moves the plain files of a directory into another. It may be repeated.
func replaceFiles(from, into string) error {
	entries, err := os.ReadDir(from)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !e.Type().IsRegular() || settled.Unfinished(e.Name()) {
			continue // no agent sends that
		}
		if err := os.Rename(filepath.Join(from, e.Name()), filepath.Join(into, e.Name())); err != nil {
			return err
		}
	}
	return os.RemoveAll(from)
}

func taken(dir string, m protocol.Manifest) bool {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return false
	}
	defer root.Close()
	return len(absent(root, m)) == 0
}

// merge moves files from one directory into another, where they do not replace
// any; what is a file there is no directory. It may be repeated.
func merge(from, into string) error {
	err := filepath.WalkDir(from, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		to := filepath.Join(into, rel)
		if e.IsDir() {
			err := os.Mkdir(to, 0o700)
			if !errors.Is(err, fs.ErrExist) {
				return err
			}
			if info, err := os.Lstat(to); err != nil || info.IsDir() {
				return err
			}
			if err := os.RemoveAll(path); err != nil {
				return err
			}
			return fs.SkipDir
		}
		if _, err := os.Lstat(to); err == nil {
			return os.Remove(path)
		}
		err = os.Rename(path, to)
		if errors.Is(err, syscall.EXDEV) {
			err = copyFile(path, to)
		}
		return err
	})
	if errors.Is(err, fs.ErrNotExist) {
		return nil // it was merged before a crash
	}
	return err
}

// copyFile copies to another file system, where the name is there only when all
// of it is.
func copyFile(from, to string) error {
	src, err := os.Open(from)
	if err != nil {
		return err
	}
	defer src.Close()
	tmp, err := os.CreateTemp(filepath.Dir(to), ".falaj-*")
	if err != nil {
		return err
	}
	_, err = io.Copy(tmp, src)
	if err = errors.Join(err, tmp.Sync(), tmp.Close()); err == nil {
		err = os.Rename(tmp.Name(), to)
	}
	if err != nil {
		return errors.Join(err, os.Remove(tmp.Name()))
	}
	return os.Remove(from)
}

// takeOutputs merges what the members left, the first member's winning.
func (w *work) takeOutputs() error {
	w.mu.Lock()
	var outputs []*tree
	for _, t := range w.trees {
		if t.Name == "" && t.Done {
			outputs = append(outputs, t)
		}
	}
	w.mu.Unlock()
	slices.SortFunc(outputs, func(a, b *tree) int { return a.Index - b.Index })
	for _, t := range outputs {
		if err := merge(w.stage(t), w.spec.Mounts[t.Mount].Path); err != nil {
			return full(err)
		}
	}
	return nil
}

// clearTrees removes the rest of stages, which can no longer be completed.
func (w *work) clearTrees() {
	for _, t := range w.trees {
		_ = os.RemoveAll(w.stage(t))
		_ = os.Remove(filepath.Join(w.dir, treesDir, t.Key+".json"))
	}
	w.trees = map[string]*tree{}
}
