package backup

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"hash"
	"io"
	"io/fs"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/fsync"
)

// Parts of a backup.
const (
	inFiles   = "files"
	inTables  = "tables"
	inObjects = "objects"
	inLedger  = "ledger"
)

// Kinds of entries.
const (
	aFile      = "file"
	aDirectory = "directory"
	aLink      = "link"
	anObject   = "object"
)

const (
	format   = 1
	name     = "manifest.jsonl"
	partName = name + ".part"
)

// header is the first line of a manifest.
type header struct {
	Format  int    `json:"format"`
	Version string `json:"version"`
	Owner   string `json:"owner,omitempty"`
	Tables  string `json:"tables,omitempty"` // where the open tables were
	// Time is the moment that the backup is of, and Sequence the place of the database's
	// last entry then, if the database was asked.
	Time     time.Time `json:"moment,omitzero"`
	Sequence string    `json:"sequence,omitempty"`
}

// entry is a line between.
type entry struct {
	In     string      `json:"in"`
	Kind   string      `json:"kind"`
	Path   string      `json:"path"`
	Mode   fs.FileMode `json:"mode,omitempty"`
	Time   int64       `json:"time,omitempty"` // Unix nanoseconds
	Size   int64       `json:"size,omitempty"`
	Digest string      `json:"sha256,omitempty"`
	Link   string      `json:"link,omitempty"`
	At     string      `json:"at,omitempty"` // of an object: its file in the backup
	// Those of which JSON would make something else, because they are not UTF-8.
	RawPath []byte `json:"raw_path,omitempty"`
	RawLink []byte `json:"raw_link,omitempty"`
}

// noted is an entry as JSON can hold it.
func (e entry) noted() entry {
	if !utf8.ValidString(e.Path) {
		e.RawPath = []byte(e.Path)
	}
	if !utf8.ValidString(e.Link) {
		e.RawLink = []byte(e.Link)
	}
	return e
}

// meant is an entry as it was before it was noted.
func (e entry) meant() entry {
	if e.RawPath != nil {
		e.Path = string(e.RawPath)
	}
	if e.RawLink != nil {
		e.Link = string(e.RawLink)
	}
	return e
}

// footer is the last line.
type footer struct {
	Entries int    `json:"entries"`
	Digest  string `json:"sha256"` // of all lines before
}

// manifest is a manifest that is being written. Safe for concurrent use.
type manifest struct {
	root *os.Root
	f    *os.File // locked, so that no other process makes a backup there
	hash hash.Hash

	mu      sync.Mutex
	w       *bufio.Writer
	n       int
	objects int // numbers that were given out
	r       Report
	tell    func(Report) // nil reports to none
}

// begin takes an empty directory, or removes what an interrupted backup left in it.
func begin(root *os.Root) (*manifest, error) {
	f, err := root.OpenFile(partName, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	m := &manifest{root: root, f: f, hash: sha256.New()}
	if err := m.clear(); err != nil {
		m.close()
		return nil, err
	}
	m.w = bufio.NewWriter(io.MultiWriter(f, m.hash))
	return m, nil
}

// undo removes what there is of the backup, its first line last: until then it is seen
// what the rest is.
func (m *manifest) undo() error {
	for _, part := range []string{name, inFiles, inTables, inObjects, inLedger, partName} {
		if err := m.root.RemoveAll(part); err != nil {
			return err
		}
	}
	return nil
}

// Discard removes an abandoned unfinished backup. Errors: fault.NotFound if there is none;
// fault.Conflict if the directory is something else, or the backup is still running.
func Discard(dir string) error {
	none := fault.New(fault.NotFound, "no unfinished backup in %s", dir)
	root, err := os.OpenRoot(dir)
	if err != nil {
		return none
	}
	defer func() { _ = root.Close() }()
	if info, err := root.Stat(partName); err != nil || info.Size() == 0 {
		return none
	}
	m, err := begin(root)
	if err != nil {
		return err
	}
	defer m.close()
	return errors.Join(m.undo(), os.Remove(dir))
}

// clear empties the directory, if there is nothing but an unfinished backup.
func (m *manifest) clear() error {
	if err := syscall.Flock(int(m.f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return fault.New(fault.Conflict, "another backup is in progress in %s", m.root.Name()).WithHint("Name another directory, or wait until it has finished.")
	}
	info, err := m.f.Stat()
	if err != nil {
		return err
	}
	there, err := fs.ReadDir(m.root.FS(), ".")
	if err != nil {
		return err
	}
	for _, e := range there {
		if !slices.Contains([]string{partName, inFiles, inTables, inObjects, inLedger}, e.Name()) {
			if info.Size() == 0 { // we have just made it
				_ = m.root.Remove(partName)
			}
			return fault.New(fault.Conflict, "%s is not empty: it contains %s", m.root.Name(), e.Name()).WithHint("Name another directory for each backup.")
		}
	}
	if len(there) > 1 && info.Size() == 0 {
		// What is there may be of a backup whose first line was not written yet, or of
		// somebody else.
		_ = m.root.Remove(partName)
		return fault.New(fault.Conflict, "%s is not empty", m.root.Name()).WithHint("Name another directory for each backup.")
	}
	for _, e := range there {
		if e.Name() == partName {
			continue
		}
		if err := m.root.RemoveAll(e.Name()); err != nil {
			return err
		}
	}
	return m.f.Truncate(0)
}

// header writes the first line. Nothing else is in the directory before.
func (m *manifest) header(h header) error {
	m.r.Sequence, m.r.Time = h.Sequence, h.Time
	if err := m.line(h); err != nil {
		return err
	}
	return m.w.Flush()
}

// number is that of an object in the backup.
func (m *manifest) number() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.objects++
	return m.objects - 1
}

func (m *manifest) report() Report {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.r
}

func (m *manifest) line(v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_, err = m.w.Write(append(b, '\n'))
	return err
}

func (m *manifest) add(e entry) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.n++
	m.r.Bytes += e.Size
	switch e.Kind {
	case anObject:
		m.r.Objects++
	case aFile:
		m.r.Files++
	}
	if m.tell != nil {
		m.tell(m.r)
	}
	return m.line(e.noted())
}

// finish ends the manifest, and gives it its name.
func (m *manifest) finish() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.w.Flush(); err != nil {
		return err
	}
	m.r.Digest = hex.EncodeToString(m.hash.Sum(nil))
	if err := m.line(footer{Entries: m.n, Digest: m.r.Digest}); err != nil {
		return err
	}
	if err := m.w.Flush(); err != nil {
		return err
	}
	if err := m.f.Sync(); err != nil {
		return err
	}
	if err := m.root.Rename(partName, name); err != nil {
		return err
	}
	return fsync.In(m.root, ".")
}

func (m *manifest) close() { _ = m.f.Close() }

// read gives the lines of a whole manifest. Error: fault.Invalid for one that is none,
// was changed, or is not there because the backup was not finished.
func read(root *os.Root, each func(h header, e entry) error) error {
	f, err := root.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		if _, err := root.Stat(partName); err == nil {
			return fault.New(fault.Invalid, "the backup in %s is incomplete", root.Name()).WithHint("Restore another backup, and remove this one.")
		}
		return fault.New(fault.Invalid, "no backup found in %s", root.Name()).WithHint("Name a directory that `falaj backup` created.")
	}
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	bad := func(why string) error {
		return fault.New(fault.Invalid, "the manifest of the backup in %s %s", root.Name(), why).WithHint("Restore another backup.")
	}
	// Before anything is done by it, it is known to be whole.
	for _, act := range []bool{false, true} {
		if _, err := f.Seek(0, io.SeekStart); err != nil {
			return err
		}
		in := bufio.NewReaderSize(f, 1<<20)
		sum := sha256.New()
		var h header
		n, ended := 0, false
		for line := 0; ; line++ {
			b, err := in.ReadSlice('\n')
			if errors.Is(err, io.EOF) && len(b) == 0 {
				break
			}
			if err != nil || ended {
				return bad("is damaged")
			}
			var l struct {
				header
				entry
				Entries *int `json:"entries"`
			}
			if json.Unmarshal(b, &l) != nil {
				return bad("is damaged")
			}
			switch {
			case line == 0:
				if h = l.header; h.Format != format {
					return bad("is of another release")
				}
			case l.Entries != nil:
				if ended = true; *l.Entries != n || l.Digest != hex.EncodeToString(sum.Sum(nil)) {
					return bad("is damaged")
				}
			default:
				l.entry = l.meant()
				if n++; !local(l.Path) || l.At != "" && !local(l.At) {
					return bad("refers to a path outside the backup")
				}
				if act {
					if err := each(h, l.entry); err != nil {
						return err
					}
				}
			}
			sum.Write(b)
		}
		if !ended {
			return bad("is truncated")
		}
	}
	return nil
}

// Summary is what a backup says of itself.
type Summary struct {
	Version  string
	Sequence string
	Time     time.Time
	Entries  int
	Digest   string // of the manifest; what it names is not looked at
}

// Look reads the first and the last line of a backup's manifest. Error: fault.NotFound
// when there is no whole backup.
func Look(dir string) (s Summary, err error) {
	none := fault.New(fault.NotFound, "no complete backup in %s", dir)
	root, err := os.OpenRoot(dir)
	if err != nil {
		return s, none
	}
	defer func() { _ = root.Close() }()
	f, err := root.Open(name)
	if err != nil {
		return s, none
	}
	defer func() { _ = f.Close() }()
	var h header
	if first, err := bufio.NewReader(io.LimitReader(f, 64<<10)).ReadBytes('\n'); err != nil || json.Unmarshal(first, &h) != nil {
		return s, none
	}
	info, err := f.Stat()
	if err != nil {
		return s, err
	}
	const last = 200 // a footer is shorter
	at := max(0, info.Size()-last)
	b, err := io.ReadAll(io.NewSectionReader(f, at, info.Size()-at))
	if err != nil {
		return s, err
	}
	b = bytes.TrimSuffix(b, []byte("\n"))
	var end footer
	if json.Unmarshal(b[bytes.LastIndexByte(b, '\n')+1:], &end) != nil || end.Digest == "" {
		return s, none
	}
	return Summary{Version: h.Version, Sequence: h.Sequence, Time: h.Time, Entries: end.Entries, Digest: end.Digest}, nil
}
