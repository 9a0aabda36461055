package backup

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"hash"
	"io"
	"io/fs"
	"os"

	"github.com/falaj-ml/falaj/internal/fault"
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
}

// footer is the last line.
type footer struct {
	Entries int    `json:"entries"`
	Digest  string `json:"sha256"` // of all lines before
}

// manifest is one that is being written.
type manifest struct {
	root *os.Root
	f    *os.File
	w    *bufio.Writer
	hash hash.Hash
	n    int
	r    Report
}

func begin(root *os.Root, h header) (*manifest, error) {
	f, err := root.OpenFile(partName, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	m := &manifest{root: root, f: f, hash: sha256.New()}
	m.w = bufio.NewWriter(io.MultiWriter(f, m.hash))
	if err := m.line(h); err != nil {
		return m, err
	}
	return m, m.w.Flush()
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
	m.n++
	m.r.Bytes += e.Size
	switch e.Kind {
	case anObject:
		m.r.Objects++
	case aFile:
		m.r.Files++
	}
	return m.line(e)
}

// finish ends the manifest, and gives it its name.
func (m *manifest) finish() error {
	if err := m.w.Flush(); err != nil {
		return err
	}
	if err := m.line(footer{Entries: m.n, Digest: hex.EncodeToString(m.hash.Sum(nil))}); err != nil {
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
	d, err := m.root.Open(".")
	if err != nil {
		return err
	}
	defer func() { _ = d.Close() }()
	return d.Sync()
}

func (m *manifest) close() { _ = m.f.Close() }

// read gives the lines of a whole manifest. Error: fault.Invalid for one that is none,
// was changed, or is not there because the backup was not finished.
func read(root *os.Root, each func(h header, e entry) error) error {
	f, err := root.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		if _, err := root.Stat(partName); err == nil {
			return fault.New(fault.Invalid, "the backup in %s was not finished", root.Name()).WithHint("Restore another one, and remove this.")
		}
		return fault.New(fault.Invalid, "there is no backup in %s", root.Name()).WithHint("Name the directory that `falaj backup` made.")
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
				if n++; !local(l.Path) || l.At != "" && !local(l.At) {
					return bad("names a place outside of it")
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
			return bad("ends too early")
		}
	}
	return nil
}
