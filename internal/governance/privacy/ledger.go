package privacy

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
)

// Line is a line of the ledger: who was erased, by pseudonym.
type Line struct {
	Number    int64     `json:"n"` // from 1
	ID        ID        `json:"id"`
	Project   string    `json:"project"`
	Entity    string    `json:"entity"`
	Pseudonym string    `json:"pseudonym"`
	Tokens    []string  `json:"tokens,omitempty"`
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
// when the database knows of them. Safe for concurrent use by one process.
type Ledger struct {
	path string
	key  []byte

	mu    sync.Mutex
	lines []Line
}

// maxLedger bounds the file.
const maxLedger = 1 << 30

// OpenLedger reads and verifies a ledger; a file that is not there is an empty one.
// What a crash left of a line that was being written is cut off. Error:
// fault.Invalid for a ledger that was changed, or is of another installation.
func OpenLedger(path string, key []byte) (*Ledger, error) {
	l := &Ledger{path: path, key: key}
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return l, nil
	}
	if err != nil {
		return nil, fault.Wrap(err, "reading the erasure ledger")
	}
	if len(b) > maxLedger {
		return nil, fault.New(fault.TooLarge, "the erasure ledger %s has %d bytes", path, len(b))
	}
	whole := bytes.LastIndexByte(b, '\n') + 1
	for text := range bytes.Lines(b[:whole]) {
		if err := l.take(text); err != nil {
			return nil, err
		}
	}
	if whole < len(b) {
		if err := os.Truncate(path, int64(whole)); err != nil {
			return nil, fault.Wrap(err, "mending the erasure ledger")
		}
	}
	return l, nil
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
		WithHint("Persons who were erased may be there again. Put the newest copy of the ledger in its place.")
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
		panic("privacy: a line of the ledger does not marshal: " + err.Error())
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

// find is the line of an erasure.
func (l *Ledger) find(id ID) (Line, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	i := slices.IndexFunc(l.lines, func(x Line) bool { return x.ID == id })
	if i < 0 {
		return Line{}, false
	}
	return l.lines[i], true
}

// Append adds a line, unless the erasure has one, and returns when it survives a
// loss of power.
func (l *Ledger) Append(line Line) (Line, error) {
	if had, ok := l.find(line.ID); ok {
		return had, nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	line.Number, line.Previous, line.At, line.Deadline = int64(len(l.lines))+1, l.head(), line.At.UTC(), line.Deadline.UTC()
	line.MAC = l.mac(line)
	text, err := json.Marshal(line)
	if err != nil {
		return Line{}, err
	}
	text = append(text, '\n')
	if err := l.write(text, line.Number == 1); err != nil {
		return Line{}, fault.Wrap(err, "writing the erasure ledger %s", l.path)
	}
	line.hash = hashOf(text)
	l.lines = append(l.lines, line)
	return line, nil
}

// write appends to the file. What is there in part only is taken back: the next
// line would be joined to it.
func (l *Ledger) write(text []byte, first bool) (err error) {
	dir := filepath.Dir(l.path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	f, err := os.OpenFile(l.path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	before, err := f.Stat()
	if err != nil {
		return err
	}
	if _, err := f.Write(text); err != nil {
		return errors.Join(err, f.Truncate(before.Size()))
	}
	if err := f.Sync(); err != nil {
		return errors.Join(err, f.Truncate(before.Size()))
	}
	if !first {
		return nil
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
