// Package settled decides whether a checkpoint was written to its end. The server asks for
// what lies in its own directories, an agent for what lies on its node.
//
// A program that renames a checkpoint to its final name says so itself: the kernel changes
// the time of an inode's last change (ctime) with the rename, and not the time of its last
// modification (mtime), which in-place writing sets together. Everything else is complete
// once nothing of it has changed for the settle time while the program ran, or when the
// program ended by itself with 0 or 75. What changed shortly before a program was killed
// may be half written, whatever it looks like.
//
// Everything here is pure but Look and Loose, which read a directory.
package settled

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
	"unicode/utf8"
)

// Default is the settle time where a job says none.
const Default = 5 * time.Second

// LooseName names the files that lie directly in a checkpoint directory: together they are
// one checkpoint, since a program may need several of them.
const LooseName = "files"

// readyFor is how long a checkpoint with a ready file has to stay unchanged: the file itself
// may be written in several pieces.
const readyFor = time.Second

// tick is the coarsest clock that file systems take their times from.
const tick = 10 * time.Millisecond

// maxEntries bounds what Look reads of one checkpoint.
const maxEntries = 100_000

// Unfinished reports a name that says that its content is still being written: the one
// convention for programs, the agent and the server.
func Unfinished(name string) bool {
	return strings.HasPrefix(name, ".") || temporary(name)
}

// temporary is Unfinished for files inside of a checkpoint, where a leading dot means
// nothing: torch.distributed.checkpoint has its index in .metadata.
func temporary(name string) bool {
	for _, suffix := range []string{".tmp", ".partial", ".part", ".incomplete"} {
		if strings.HasSuffix(name, suffix) {
			return true
		}
	}
	// Some versions of transformers write to tmp-checkpoint-N, Orbax to N.orbax-checkpoint-tmp-M.
	return strings.HasPrefix(name, "tmp-") || strings.Contains(name, ".orbax-checkpoint-tmp")
}

// State is what lies at one name now.
type State struct {
	Signature string    // of paths, sizes, inodes and times
	Changed   time.Time // when any of it changed last, by the kernel
	Modified  time.Time // when any content was written last
	Renamed   bool      // it got its name after its last byte
	Quick     bool      // all of it was written within one tick of the clock: a rename shows in no time
	Temporary string    // a file in it that is still being written, by its name
	Files     map[string]int64
}

// Look reads the state of a file or directory below a root.
func Look(root *os.Root, name string) (State, error) {
	s := State{Files: map[string]int64{}}
	sum := sha256.New()
	var top times
	var oldest time.Time
	entries := 0
	err := fs.WalkDir(root.FS(), name, func(p string, e fs.DirEntry, err error) error {
		var info fs.FileInfo
		if err == nil {
			info, err = root.Lstat(p)
		}
		switch {
		case err != nil && p == name:
			return err
		case errors.Is(err, fs.ErrNotExist):
			return nil
		case err != nil: // such as a name that is no UTF-8: whoever takes it says why not
			_, _ = fmt.Fprintf(sum, "%q %v\n", p, err)
			return nil
		}
		t := timesOf(info)
		rel := strings.TrimPrefix(strings.TrimPrefix(p, name), "/")
		if p == name {
			top = t
		} else if temporary(path.Base(p)) {
			s.Temporary = rel
		}
		if oldest.IsZero() || t.modified.Before(oldest) {
			oldest = t.modified
		}
		if t.changed.After(s.Changed) {
			s.Changed = t.changed
		}
		if t.modified.After(s.Modified) {
			s.Modified = t.modified
		}
		if info.Mode().IsRegular() {
			s.Files[rel] = info.Size()
		}
		if entries++; entries > maxEntries {
			return fs.SkipAll // it is refused for its size anyway
		}
		_, _ = fmt.Fprintf(sum, "%q %d %d %d %d\n", rel, info.Mode().Type(), info.Size(), t.inode, t.modified.UnixNano())
		return nil
	})
	s.Signature = hex.EncodeToString(sum.Sum(nil)[:16])
	s.Quick = s.Changed.Sub(oldest) <= tick
	s.Renamed = top.changed.After(top.modified) && !s.Changed.After(top.changed)
	return s, err
}

// Loose lists the plain files with a final name directly in a checkpoint directory.
func Loose(entries []fs.DirEntry) (names []string) {
	for _, e := range entries {
		if e.Type().IsRegular() && !Unfinished(e.Name()) && utf8.ValidString(e.Name()) {
			names = append(names, e.Name())
		}
		if e.IsDir() && e.Name() == LooseName {
			return nil // a directory has the name: files beside it have none
		}
	}
	return names
}

var digits = regexp.MustCompile(`[0-9]+`)

// Kind is a name without its numbers: checkpoint-100 and checkpoint-150 are of one kind.
func Kind(name string) string { return digits.ReplaceAllString(name, "#") }

// Covers reports that of each kind in rest a file is complete: then what is written now is
// one more of them, and not a part that the complete ones lack.
func Covers(complete, rest []string) bool {
	have := map[string]bool{}
	for _, name := range complete {
		have[Kind(name)] = true
	}
	return !slices.ContainsFunc(rest, func(name string) bool { return !have[Kind(name)] })
}

type times struct {
	inode             uint64
	modified, changed time.Time
}

func timesOf(info fs.FileInfo) times {
	t := times{modified: info.ModTime(), changed: info.ModTime()}
	if sys, ok := info.Sys().(*syscall.Stat_t); ok {
		t.inode, t.changed = sys.Ino, time.Unix(sys.Ctim.Unix())
	}
	return t
}

// Rules say when a checkpoint counts as complete.
type Rules struct {
	Settle time.Duration // unchanged for so long; negative asks for nothing
	Ready  string        // pattern of a file that the program writes last; empty has none
}

// Validate refuses a pattern that cannot be one.
func (r Rules) Validate() error {
	_, err := path.Match(r.Ready, "")
	if err != nil || path.IsAbs(r.Ready) || strings.Contains(r.Ready, "..") {
		return errors.New("it is not a pattern of a path inside of a checkpoint, such as trainer_state.json or */done")
	}
	return nil
}

// after is how long the state has to stay as it is; false when a file is missing that the
// program writes last.
func (r Rules) after(s State) (time.Duration, bool) {
	if r.Ready == "" {
		return r.Settle, true
	}
	for p, size := range s.Files {
		if ok, _ := path.Match(r.Ready, p); ok && size > 0 {
			return min(readyFor, max(r.Settle, 0)), true
		}
	}
	return 0, false
}

// End is how a program ended.
type End struct {
	At time.Time
	// InOrder says that it ended by itself with 0, or with 75: it was in the middle of
	// nothing.
	InOrder bool
}

// Complete reports a state that a program left behind whole. since is when the state was
// seen first, of a program that still ran at the given time.
func (r Rules) Complete(s State, since, now time.Time) bool {
	after, ready := r.after(s)
	switch {
	case s.Temporary != "" || !ready:
		return false
	case r.Settle < 0 || s.Renamed && r.Ready == "":
		return true
	}
	return now.Sub(since) >= after
}

// Left reports a state that an ended program left behind whole.
func (r Rules) Left(s State, e End) bool {
	after, ready := r.after(s)
	switch {
	case s.Temporary != "":
		return false
	case r.Settle < 0 || e.InOrder:
		return true
	case !ready:
		return false
	case s.Renamed && r.Ready == "":
		return true
	}
	return e.At.Sub(s.Changed) >= after
}

// Seen remembers since when names have their state. Safe for concurrent use.
type Seen struct {
	mu    sync.Mutex
	names map[string]sight
}

type sight struct {
	signature string
	since     time.Time
}

// Since notes a state and gives when it was seen first.
func (s *Seen) Since(name string, st State, now time.Time) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.names == nil {
		s.names = map[string]sight{}
	}
	was, known := s.names[name]
	if !known || was.signature != st.Signature {
		was = sight{st.Signature, now}
		s.names[name] = was
	}
	return was.since
}

// Forget forgets the names that have a prefix.
func (s *Seen) Forget(prefix string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name := range s.names {
		if strings.HasPrefix(name, prefix) {
			delete(s.names, name)
		}
	}
}
