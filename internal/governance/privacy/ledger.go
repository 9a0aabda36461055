package privacy

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/fsync"
)

// Line is a line of the ledger: who was erased, by pseudonym.
type Line struct {
	Number    int64     `json:"n"` // from 1
	ID        ID        `json:"id"`
	Project   string    `json:"project"`
	Entity    string    `json:"entity"`
	Pseudonym string    `json:"pseudonym"`
	Tokens    []string  `json:"tokens,omitempty"`
	Where     Where     `json:"where,omitzero"` // else a backup of before the entity could not be searched
	Reason    string    `json:"reason"`
	By        string    `json:"by"`
	At        time.Time `json:"at"`
	Deadline  time.Time `json:"deadline"`
	Previous  string    `json:"previous"` // hash of the line before; empty in the first
	MAC       string    `json:"mac,omitempty"`

	hash string // of the line as it is in the file
}

// Ledger is an append-only file: a line of JSON for each erasure, each with the
// hash of the line before and a MAC under a key of the installation. Whoever changes,
// adds or takes out a line without the key is noticed; lines missing at the end are,
// when the database knows of them. Safe for concurrent use; all processes that share a
// database share one file, too.
type Ledger struct {
	path string
	key  []byte

	mu    sync.Mutex
	lines []Line
	size  int64 // of the file that they are in
}

// maxLedger bounds the file.
const maxLedger = 1 << 30

// OpenLedger reads and verifies a ledger; a file that is not there is an empty one.
// What a crash left of a line that was being written is cut off. Error:
// fault.Invalid for a ledger that was changed, or is of another installation.
func OpenLedger(path string, key []byte) (*Ledger, error) {
	l := &Ledger{path: path, key: key}
	f, err := os.OpenFile(path, os.O_RDWR, 0o600)
	if errors.Is(err, fs.ErrNotExist) {
		return l, nil
	}
	if err != nil {
		return nil, fault.Wrap(err, "opening the erasure ledger")
	}
	defer func() { _ = f.Close() }()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		return nil, fault.Wrap(err, "locking the erasure ledger")
	}
	return l, l.catchUp(f)
}

// catchUp takes the lines that others have added to the file, which is locked.
func (l *Ledger) catchUp(f *os.File) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if info.Size() > maxLedger {
		return fault.New(fault.TooLarge, "the erasure ledger %s has %d bytes", l.path, info.Size())
	}
	if info.Size() < l.size {
		return fault.New(fault.Invalid, "the erasure ledger %s was truncated", l.path).WithHint("Restore the newest copy of the ledger, and restart the server.")
	}
	b := make([]byte, info.Size()-l.size)
	if _, err := f.ReadAt(b, l.size); err != nil && !errors.Is(err, io.EOF) {
		return fault.Wrap(err, "reading the erasure ledger")
	}
	for len(b) > 0 {
		n := bytes.IndexByte(b, '\n') + 1
		if n == 0 { // what a crash left of a line
			return fault.Wrap(f.Truncate(l.size), "repairing the erasure ledger")
		}
		if err := l.take(b[:n]); err != nil {
			return err
		}
		b, l.size = b[n:], l.size+int64(n)
	}
	return nil
}

// take verifies a line of the file.
func (l *Ledger) take(text []byte) error {
	var line Line
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	err := d.Decode(&line)
	switch {
	case err != nil, line.Number != int64(len(l.lines))+1, line.Previous != l.head():
	case !hmac.Equal([]byte(line.MAC), []byte(l.mac(line))):
	default:
		line.hash = hashOf(text)
		l.lines = append(l.lines, line)
		return nil
	}
	return fault.New(fault.Invalid, "line %d of the erasure ledger %s was changed, or is of another installation", len(l.lines)+1, l.path).
		WithHint("Erased persons may exist again. Restore the newest copy of the ledger.")
}

func (l *Ledger) head() string {
	if len(l.lines) == 0 {
		return ""
	}
	return l.lines[len(l.lines)-1].hash
}

func (l *Ledger) mac(line Line) string {
	line.MAC = ""
	b, err := json.Marshal(line)
	if err != nil {
		panic("privacy: a line of the ledger cannot be marshalled: " + err.Error())
	}
	m := hmac.New(sha256.New, l.key)
	m.Write(b)
	return hex.EncodeToString(m.Sum(nil))
}

func hashOf(text []byte) string {
	h := sha256.Sum256(text)
	return "sha256:" + hex.EncodeToString(h[:])
}

// Lines are all of the ledger.
func (l *Ledger) Lines() []Line {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.lines)
}

// Append adds a line, unless the erasure has one, and returns when it survives a
// loss of power.
func (l *Ledger) Append(line Line) (_ Line, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	dir := filepath.Dir(l.path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return Line{}, fault.Wrap(err, "making the folder of the erasure ledger")
	}
	f, err := os.OpenFile(l.path, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return Line{}, fault.Wrap(err, "opening the erasure ledger")
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		return Line{}, fault.Wrap(err, "locking the erasure ledger")
	}
	if err := l.catchUp(f); err != nil {
		return Line{}, err
	}
	if i := slices.IndexFunc(l.lines, func(x Line) bool { return x.ID == line.ID }); i >= 0 {
		return l.lines[i], nil
	}
	line.Number, line.Previous, line.At, line.Deadline = int64(len(l.lines))+1, l.head(), line.At.UTC(), line.Deadline.UTC()
	line.MAC = l.mac(line)
	text, err := json.Marshal(line)
	if err != nil {
		return Line{}, err
	}
	text = append(text, '\n')
	if err := l.write(f, text); err != nil {
		return Line{}, fault.Wrap(err, "writing the erasure ledger %s", l.path)
	}
	line.hash = hashOf(text)
	l.lines, l.size = append(l.lines, line), l.size+int64(len(text))
	return line, nil
}

// write appends to the file. What is there in part only is taken back: the next
// line would be joined to it.
func (l *Ledger) write(f *os.File, text []byte) error {
	if l.size+int64(len(text)) > maxLedger { // else it could not be opened again
		return fault.New(fault.Exhausted, "it has %d bytes", l.size)
	}
	if _, err := f.Write(text); err != nil {
		return errors.Join(err, f.Truncate(l.size))
	}
	if err := f.Sync(); err != nil {
		return errors.Join(err, f.Truncate(l.size))
	}
	if l.size > 0 {
		return nil
	}
	return fsync.Dir(filepath.Dir(l.path))
}
