package audit

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/fsync"
)

const maxNote = 8 << 10

// Checkpoint is a signed statement about the log at a size. Its text follows
// the tlog-checkpoint convention: origin, size, root, then lines of ours.
type Checkpoint struct {
	Origin string
	Size   int64
	Root   tlog.Hash
	Time   time.Time
	// Supersedes is a tree that was signed before and is not a beginning of this
	// one: the log was restored from an older copy, and a person said so.
	Supersedes *tlog.Tree
}

func (c Checkpoint) text() string {
	s := fmt.Sprintf("%s\n%d\n%s\ntime %s\n", c.Origin, c.Size, c.Root, formatTime(c.Time))
	if c.Supersedes != nil {
		s += fmt.Sprintf("supersedes %d %s\n", c.Supersedes.N, c.Supersedes.Hash)
	}
	return s
}

const timeLayout = "2006-01-02T15:04:05.000000Z"

func formatTime(t time.Time) string { return t.UTC().Format(timeLayout) }

func (c Checkpoint) sign(s note.Signer) ([]byte, error) {
	return note.Sign(&note.Note{Text: c.text()}, s)
}

var errNotOurs = errors.New("it is not in the format that the log writes")

// openNote verifies a note that has exactly one signature, by v, and is byte for
// byte what signing gives.
func openNote(msg []byte, v note.Verifier) (text string, err error) {
	if len(msg) > maxNote {
		return "", errNotOurs
	}
	n, err := note.Open(msg, note.VerifierList(v))
	if err != nil {
		return "", err
	}
	if len(n.Sigs) != 1 || len(n.UnverifiedSigs) != 0 {
		return "", errNotOurs
	}
	raw, err := base64.StdEncoding.DecodeString(n.Sigs[0].Base64)
	if err != nil {
		return "", errNotOurs
	}
	again := fmt.Sprintf("%s\n— %s %s\n", n.Text, n.Sigs[0].Name, base64.StdEncoding.EncodeToString(raw))
	if string(msg) != again {
		return "", errNotOurs
	}
	return n.Text, nil
}

// openCheckpoint verifies and reads a signed checkpoint.
func openCheckpoint(msg []byte, v note.Verifier) (Checkpoint, error) {
	text, err := openNote(msg, v)
	if err != nil {
		return Checkpoint{}, err
	}
	return parseCheckpoint(text)
}

func parseCheckpoint(text string) (Checkpoint, error) {
	lines := strings.Split(text, "\n")
	if len(lines) < 5 || len(lines) > 6 {
		return Checkpoint{}, errNotOurs
	}
	tree, err := parseTree(lines[1], lines[2])
	if err != nil {
		return Checkpoint{}, err
	}
	c := Checkpoint{Origin: lines[0], Size: tree.N, Root: tree.Hash}
	at, ok := strings.CutPrefix(lines[3], "time ")
	if c.Time, err = time.Parse(timeLayout, at); err != nil || !ok {
		return Checkpoint{}, errNotOurs
	}
	if len(lines) == 6 {
		words := strings.Split(lines[4], " ")
		if len(words) != 3 || words[0] != "supersedes" {
			return Checkpoint{}, errNotOurs
		}
		old, err := parseTree(words[1], words[2])
		if err != nil {
			return Checkpoint{}, err
		}
		c.Supersedes = &old
	}
	if c.text() != text {
		return Checkpoint{}, errNotOurs
	}
	return c, nil
}

func parseTree(size, root string) (tlog.Tree, error) {
	n, err := strconv.ParseInt(size, 10, 64)
	if err != nil || n < 1 {
		return tlog.Tree{}, errNotOurs
	}
	h, err := tlog.ParseHash(root)
	if err != nil {
		return tlog.Tree{}, errNotOurs
	}
	return tlog.Tree{N: n, Hash: h}, nil
}

// Witness keeps a second copy of the signed checkpoints, out of reach of users
// who can change the database: another disk, another host. Safe for concurrent use.
type Witness interface {
	// Append keeps a checkpoint; durable when it returns nil.
	Append(ctx context.Context, checkpoint []byte) error
	// Last is the newest checkpoint, nil when there is none.
	Last(ctx context.Context) ([]byte, error)
}

// CheckpointFile is a Witness in a file, a JSON line each. Only this one process
// appends to it. Once it has grown by a bound, it is written anew with one line for
// each hour: see thin.
type CheckpointFile struct {
	path  string
	mu    sync.Mutex
	thins int64 // size in bytes from which on it is thinned
}

// thinAfter is by how much a checkpoint file grows before it is thinned: some
// 20,000 checkpoints.
const thinAfter = 8 << 20

var _ Witness = (*CheckpointFile)(nil)

// NewCheckpointFile keeps checkpoints in the file, which Append makes (mode
// 0600). Its directory exists or is made.
func NewCheckpointFile(path string) *CheckpointFile {
	return &CheckpointFile{path: path, thins: thinAfter}
}

type checkpointLine struct {
	Checkpoint string `json:"checkpoint"`
}

// Append adds a line and syncs it.
func (c *CheckpointFile) Append(_ context.Context, checkpoint []byte) error {
	line, err := json.Marshal(checkpointLine{string(checkpoint)})
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	size, err := c.append(append(line, '\n'))
	if err != nil {
		return journalFault(err, "store the checkpoint in "+c.path)
	}
	if size >= c.thins {
		// A place that only takes more lines, or has no space for a copy, grows on.
		if left, err := c.thin(); err == nil {
			size = left
		}
		c.thins = size + thinAfter
	}
	return nil
}

// thin writes the file anew without what adds nothing: a checkpoint before a
// longer one of the same hour. What a person accepted stays, and what cannot be
// read, and whatever comes before a shorter one: that is evidence.
func (c *CheckpointFile) thin() (size int64, err error) {
	b, err := os.ReadFile(c.path)
	if err != nil {
		return 0, err
	}
	var kept bytes.Buffer
	var before []byte // a line that the next one decides about
	var last *Checkpoint
	for line := range bytes.Lines(b) {
		next := readLine(line)
		if before != nil && (next == nil || last == nil || last.Supersedes != nil || next.Size <= last.Size || !sameHour(last.Time, next.Time)) {
			kept.Write(before)
		}
		before, last = line, next
	}
	kept.Write(before)
	f, err := os.OpenFile(c.path+".new", os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return 0, err
	}
	_, err = f.Write(kept.Bytes())
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(c.path+".new", c.path)
	}
	if err != nil {
		return 0, errors.Join(err, os.Remove(c.path+".new"))
	}
	return int64(kept.Len()), fsync.Dir(filepath.Dir(c.path))
}

// readLine reads a line of a checkpoint file without asking who signed it, nil
// when it is none.
func readLine(line []byte) *Checkpoint {
	var l checkpointLine
	if json.Unmarshal(line, &l) != nil {
		return nil
	}
	text, _, ok := strings.Cut(l.Checkpoint, "\n\n")
	if !ok {
		return nil
	}
	c, err := parseCheckpoint(text + "\n")
	if err != nil {
		return nil
	}
	return &c
}

// append adds a line, and gives the size of the file with it.
func (c *CheckpointFile) append(line []byte) (size int64, err error) {
	dir := filepath.Dir(c.path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return 0, err
	}
	f, err := os.OpenFile(c.path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	size, err = f.Seek(0, io.SeekEnd)
	if err != nil {
		return 0, err
	}
	// A line that a crash cut short is ended, so that it stays alone in its damage.
	if size > 0 {
		last := make([]byte, 1)
		if _, err := f.ReadAt(last, size-1); err != nil {
			return 0, err
		}
		if last[0] != '\n' {
			line = append([]byte{'\n'}, line...)
		}
	}
	if _, err := f.Write(line); err != nil {
		return 0, err
	}
	if err := f.Sync(); err != nil {
		return 0, err
	}
	if size == 0 {
		err = fsync.Dir(dir)
	}
	return size + int64(len(line)), err
}

// Last reads the newest whole line.
func (c *CheckpointFile) Last(context.Context) ([]byte, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f, err := os.Open(c.path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fault.Wrap(err, "open the checkpoints of the witness")
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	const tail = 8 * maxNote
	from := max(0, info.Size()-tail)
	b, err := io.ReadAll(io.NewSectionReader(f, from, tail))
	if err != nil {
		return nil, err
	}
	lines := bytes.Split(b, []byte("\n"))
	for _, line := range slices.Backward(lines) {
		var l checkpointLine
		if len(line) > 0 && json.Unmarshal(line, &l) == nil && l.Checkpoint != "" {
			return []byte(l.Checkpoint), nil
		}
	}
	if info.Size() > tail {
		return nil, fault.New(fault.Conflict, "the end of %s holds no checkpoint", c.path).
			WithHint("The witness was damaged or changed: restore it from its own backup.")
	}
	return nil, nil
}

// All gives all checkpoints, in the order in which they were appended.
func (c *CheckpointFile) All(context.Context) ([][]byte, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f, err := os.Open(c.path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return ReadCheckpoints(f)
}

// ReadCheckpoints reads the checkpoints of a CheckpointFile for Verify; lines
// that a crash cut short are left out. Error: fault.TooLarge for a line over the
// bound.
func ReadCheckpoints(r io.Reader) ([][]byte, error) {
	var all [][]byte
	s := bufio.NewScanner(r)
	s.Buffer(nil, 2*maxNote)
	for s.Scan() {
		var l checkpointLine
		if json.Unmarshal(s.Bytes(), &l) == nil && l.Checkpoint != "" {
			all = append(all, []byte(l.Checkpoint))
		}
	}
	if errors.Is(s.Err(), bufio.ErrTooLong) {
		return nil, fault.New(fault.TooLarge, "a checkpoint line is over %d bytes", 2*maxNote)
	}
	return all, s.Err()
}
