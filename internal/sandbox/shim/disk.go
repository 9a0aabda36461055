package shim

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/falaj-ml/falaj/internal/resource"
)

// Disk bounds what a program keeps on disk. The shim measures it while the program
// runs, and ends a program that keeps more. Where the file system has project
// quotas, the kernel refuses the write first.
type Disk struct {
	Trees  []Tree  `json:"trees,omitempty"`
	Limits []Limit `json:"limits,omitempty"`
}

// Tree is a directory that the program writes to.
type Tree struct {
	Dir  string `json:"dir"`
	Kind string `json:"kind"`           // "scratch", "output", "checkpoints"
	Drop bool   `json:"drop,omitempty"` // empty it when the program was ended for its use of the disk
	// Others says that it held something before the program started, which does not count.
	Others bool `json:"others,omitempty"`
}

// Limit bounds one kind, or all kinds together when Kind is empty. Zero is no limit.
type Limit struct {
	Kind  string         `json:"kind,omitempty"`
	Bytes resource.Bytes `json:"bytes,omitempty"`
	Files int64          `json:"files,omitempty"`
	Why   string         `json:"why,omitempty"` // what made it smaller than what was asked for
}

// Use is what a program keeps on disk.
type Use struct {
	Bytes resource.Bytes `json:"bytes"` // allocated, so that holes do not count
	Files int64          `json:"files"` // files and directories
}

// Plus adds.
func (u Use) Plus(v Use) Use { return Use{u.Bytes + v.Bytes, u.Files + v.Files} }

// maxDepth bounds the directories below each other: each holds a descriptor
// while it is measured and while it is removed.
const maxDepth = 500

// errDeep ends a measurement.
var errDeep = fmt.Errorf("directories are nested deeper than %d levels", maxDepth)

// errEnough ends a measurement that is already beyond the limits.
var errEnough = errors.New("enough")

// Before gives what the places hold that does not count, by kind.
func (d Disk) Before() map[string]Use {
	others := slices.DeleteFunc(slices.Clone(d.Trees), func(p Tree) bool { return !p.Others })
	if len(others) == 0 {
		return nil
	}
	used, _ := Disk{Trees: others}.Measure(nil)
	return used
}

// Measure gives what the places hold, by kind, beyond what they held before. It follows
// no link, and stops as soon as a limit is exceeded, so its cost is bounded by
// the limits. The error says what cannot be measured because of what the
// program made.
func (d Disk) Measure(before map[string]Use) (map[string]Use, error) {
	m := meter{disk: d, used: map[string]Use{}, linked: map[inode]bool{}}
	for kind, u := range before {
		m.used[kind] = Use{Bytes: -u.Bytes, Files: -u.Files}
	}
	for _, p := range d.Trees {
		m.kind = p.Kind
		fd, err := unix.Open(p.Dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != nil {
			continue // it is not there
		}
		err = m.walk(fd, 1)
		switch {
		case errors.Is(err, errEnough):
			return m.used, nil
		case errors.Is(err, errDeep):
			return m.used, fmt.Errorf("%s: %w", p.Kind, err)
		}
	}
	return m.used, nil
}

type inode struct{ dev, ino uint64 }

type meter struct {
	disk   Disk
	kind   string
	used   map[string]Use
	linked map[inode]bool // files with several names
}

// walk measures a directory, and closes its descriptor.
func (m *meter) walk(fd, depth int) error {
	dir := os.NewFile(uintptr(fd), "")
	defer dir.Close()
	if depth > maxDepth {
		return errDeep
	}
	for {
		entries, err := dir.ReadDir(1024)
		for _, e := range entries {
			var st unix.Stat_t
			if unix.Fstatat(fd, e.Name(), &st, unix.AT_SYMLINK_NOFOLLOW) != nil {
				continue // it has gone
			}
			if err := m.add(&st); err != nil {
				return err
			}
			if st.Mode&unix.S_IFMT != unix.S_IFDIR {
				continue
			}
			if below, ok := enter(fd, e.Name()); ok {
				if err := m.walk(below, depth+1); err != nil {
					return err
				}
			}
		}
		if err != nil { // io.EOF, or a directory that has gone
			return nil
		}
	}
}

// enter opens a directory below another. A program without rights of its own may have
// closed it to its owner, who is also the shim's user.
func enter(fd int, name string) (int, bool) {
	const flags = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC
	below, err := unix.Openat(fd, name, flags, 0)
	if errors.Is(err, unix.EACCES) {
		if handle, err := unix.Openat(fd, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0); err == nil {
			_ = os.Chmod("/proc/self/fd/"+strconv.Itoa(handle), 0o700) //nolint:gosec // A directory; the descriptor is not a link.
			_ = unix.Close(handle)
		}
		below, err = unix.Openat(fd, name, flags, 0)
	}
	return below, err == nil
}

// add counts one inode; errEnough when that is more than is allowed.
func (m *meter) add(st *unix.Stat_t) error {
	if st.Nlink > 1 && st.Mode&unix.S_IFMT != unix.S_IFDIR {
		key := inode{st.Dev, st.Ino}
		if m.linked[key] {
			return nil
		}
		m.linked[key] = true
	}
	m.used[m.kind] = m.used[m.kind].Plus(Use{Bytes: resource.Bytes(st.Blocks) * 512, Files: 1})
	if _, over := m.disk.exceeded(m.used); over {
		return errEnough
	}
	return nil
}

// nameless adds the files that a process tree holds open or mapped and that no
// directory has any more. It counts as the kind of the first place.
func (d Disk) nameless(used map[string]Use, root int) {
	if len(d.Trees) == 0 {
		return
	}
	devices := map[uint64]bool{}
	for _, p := range d.Trees {
		var st unix.Stat_t
		if unix.Stat(p.Dir, &st) == nil {
			devices[st.Dev] = true
		}
	}
	kind, seen := d.Trees[0].Kind, map[inode]bool{}
	for _, pid := range descendants(root) {
		for _, table := range []string{"fd", "map_files"} {
			dir := "/proc/" + strconv.Itoa(pid) + "/" + table
			f, err := os.Open(dir)
			if err != nil {
				continue // it has ended, or we may not
			}
			names, _ := f.Readdirnames(maxTable)
			_ = f.Close()
			for _, name := range names {
				var st unix.Stat_t
				if unix.Stat(dir+"/"+name, &st) != nil || st.Nlink != 0 || st.Mode&unix.S_IFMT != unix.S_IFREG || !devices[st.Dev] || seen[inode{st.Dev, st.Ino}] {
					continue
				}
				seen[inode{st.Dev, st.Ino}] = true
				used[kind] = used[kind].Plus(Use{Bytes: resource.Bytes(st.Blocks) * 512, Files: 1})
			}
		}
	}
}

// maxTable bounds the descriptors and mappings that are inspected of one process.
const maxTable = 1 << 17

// Total adds up the kinds.
func Total(used map[string]Use) (sum Use) {
	for _, u := range used {
		sum = sum.Plus(u)
	}
	return sum
}

// exceeded gives the first limit that the use is beyond.
func (d Disk) exceeded(used map[string]Use) (Limit, bool) {
	for _, l := range d.Limits {
		u := used[l.Kind]
		if l.Kind == "" {
			u = Total(used)
		}
		if l.Bytes > 0 && u.Bytes > l.Bytes || l.Files > 0 && u.Files > l.Files {
			return l, true
		}
	}
	return Limit{}, false
}

// words says which limit the use is beyond, and by what.
func (d Disk) words(used map[string]Use, l Limit) string {
	what, u := l.Kind, used[l.Kind]
	if l.Kind == "" {
		u = Total(used)
		var kinds []string
		for _, k := range sortedKinds(used) {
			kinds = append(kinds, fmt.Sprintf("%s %s in %d files", k, round(used[k].Bytes), used[k].Files))
		}
		what = strings.Join(kinds, ", ")
	}
	s := fmt.Sprintf("used %d files of its limit of %d (%s)", u.Files, l.Files, what)
	if l.Bytes > 0 && u.Bytes > l.Bytes {
		s = fmt.Sprintf("used %s of its disk limit of %s (%s)", round(u.Bytes), round(l.Bytes), what)
	}
	if l.Why != "" {
		s += "; " + l.Why
	}
	return s
}

func sortedKinds(used map[string]Use) []string {
	var kinds []string
	for k := range used {
		kinds = append(kinds, k)
	}
	slices.Sort(kinds)
	return kinds
}

// round leaves out the digits that no reader needs.
func round(b resource.Bytes) resource.Bytes {
	if b >= 16*resource.MiB {
		return b / resource.MiB * resource.MiB
	}
	return b
}

// How often the disk is asked how much is free, which is one system call, and how
// often the places are measured, which is a walk over them.
const (
	freeEvery    = 200 * time.Millisecond
	measureEvery = 30 * time.Second
	leastRest    = time.Second // between two measurements
	dutyCycle    = 10          // a measurement rests this many times as long as it took, unless the disk fills
)

// diskWatch decides when to measure.
type diskWatch struct {
	disk   Disk
	before map[string]Use
	dir    string // on the file system of the places
	free   space  // at the last measurement
	at     time.Time
	took   time.Duration
	used   map[string]Use
}

// space is what a file system has left.
type space struct{ bytes, files int64 }

func freeSpace(dir string) (space, bool) {
	var s unix.Statfs_t
	if unix.Statfs(dir, &s) != nil {
		return space{}, false
	}
	r := space{bytes: int64(s.Bavail) * s.Bsize, files: int64(s.Ffree)} //nolint:gosec // A disk's blocks fit.
	if s.Files == 0 {                                                   // it makes inodes as they are needed
		r.files = 1 << 62
	}
	return r, true
}

// due reports whether the places are to be measured now: what the disk has lost since
// the last time could be the program's, and would take it beyond a limit.
func (w *diskWatch) due(now time.Time) bool {
	rest := now.Sub(w.at)
	if w.at.IsZero() || rest >= measureEvery && rest >= dutyCycle*w.took {
		return true
	}
	free, ok := freeSpace(w.dir)
	if !ok || rest < max(leastRest, w.took) {
		return false
	}
	lost := Use{Bytes: resource.Bytes(max(w.free.bytes-free.bytes, 0)), Files: max(w.free.files-free.files, 0)}
	for _, l := range w.disk.Limits {
		u := w.used[l.Kind]
		if l.Kind == "" {
			u = Total(w.used)
		}
		if l.Bytes > 0 && u.Bytes+lost.Bytes > l.Bytes || l.Files > 0 && u.Files+lost.Files > l.Files {
			return true
		}
	}
	return false
}

// measure measures and says which limit is exceeded; empty is none.
func (w *diskWatch) measure(root int) string {
	began := time.Now()
	w.free, _ = freeSpace(w.dir) // before: what is written meanwhile counts for the next
	used, err := w.disk.Measure(w.before)
	w.disk.nameless(used, root)
	w.used, w.at, w.took = used, time.Now(), time.Since(began)
	if err != nil {
		return err.Error()
	}
	if l, over := w.disk.exceeded(used); over {
		return w.disk.words(used, l)
	}
	return ""
}

// drop empties what the program wrote and nobody needs: the places marked so, and the
// output too when that alone is most of what it may keep.
func (d Disk) drop() {
	for _, p := range d.Trees {
		if p.Drop {
			empty(p.Dir)
		}
	}
	left, err := d.Measure(nil)
	for _, p := range d.Trees {
		if p.Kind != "output" {
			continue
		}
		most := resource.Bytes(1<<63 - 1)
		files := int64(1<<63 - 1)
		for _, l := range d.Limits {
			if l.Kind == "" && l.Bytes > 0 {
				most = l.Bytes
			}
			if l.Kind == "" && l.Files > 0 {
				files = l.Files
			}
		}
		if _, over := d.exceeded(left); err != nil || over || left[p.Kind].Bytes > most/2 || left[p.Kind].Files > files/2 {
			empty(p.Dir)
		}
	}
}

// empty removes what is in a directory, also below directories that the program
// has made read-only.
func empty(dir string) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		if !errors.Is(os.RemoveAll(path), fs.ErrPermission) {
			continue
		}
		_ = filepath.WalkDir(path, func(name string, e fs.DirEntry, _ error) error {
			if e != nil && e.IsDir() {
				_ = os.Chmod(name, 0o700) //nolint:gosec // A directory that goes away.
			}
			return nil
		})
		_ = os.RemoveAll(path)
	}
}

// descendants are the processes below one.
func descendants(root int) []int {
	children := map[int][]int{}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if f, ok := statFields(pid); ok {
			parent, _ := strconv.Atoi(f[1])
			children[parent] = append(children[parent], pid)
		}
	}
	var all []int
	for next := slices.Clone(children[root]); len(next) > 0; next = next[1:] {
		all = append(all, next[0])
		next = append(next, children[next[0]]...)
	}
	return all
}

// statFields are the fields of /proc/PID/stat from the third on.
func statFields(pid int) ([]string, bool) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return nil, false
	}
	s := string(b)
	f := strings.Fields(s[strings.LastIndexByte(s, ')')+1:])
	const least = 22
	return f, len(f) >= least
}

// spareSuffix names the file that is kept for a JSON file of a shim's directory, so
// that it can be replaced on a full disk. The next replacement has the room of the
// one that goes.
const spareSuffix = ".spare"

const spareSize = 16 << 10

// Spare takes the room for one later Write of a file.
func Spare(dir, name string) error {
	f, err := os.OpenFile(filepath.Join(dir, name+spareSuffix), os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600) //nolint:gosec // The names are constants.
	if err != nil {
		return err
	}
	_, err = f.Write(make([]byte, spareSize)) // not a hole
	return errors.Join(err, f.Close())
}

// placeSpare is Place on a full disk.
func placeSpare(dir, name string, b []byte) error {
	spare := filepath.Join(dir, name+spareSuffix)
	f, err := os.OpenFile(spare, os.O_WRONLY, 0) //nolint:gosec // The names are constants.
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err == nil {
		err = f.Truncate(int64(len(b)))
	}
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(spare, filepath.Join(dir, name)) //nolint:gosec // The names are constants.
}

// full reports whether a disk had no room for bytes or for files.
func full(err error) bool { return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) }
