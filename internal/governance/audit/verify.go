package audit

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"maps"
	"slices"
	"time"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"

	"github.com/falaj-ml/falaj/internal/fault"
)

const maxLine = 4 * maxEntry

// VerifyOptions are what the verifier knows from elsewhere than the export.
type VerifyOptions struct {
	// PublicKey of the log, "origin+hash+key". Empty: the one in the export is
	// believed, and the report states it: any program could have written it.
	PublicKey string
	// Checkpoints from the witness (ReadCheckpoints), in the order in which
	// it got them. They expose an export of a log that was rolled back or forked.
	Checkpoints [][]byte
}

// Report is what Verify found.
type Report struct {
	Origin      string
	PublicKey   string
	KeyGiven    bool // the public key did not come from the export itself
	Size        int64
	Project     string // of an export of one project's entries; empty: of the whole log
	Entries     int64  // in the export
	Erased      int64  // entries of which the commitment is left, and what Erasures say
	Erasures    []ErasureReport
	Unnamed     []int64 // blank entries that no entry of an erasure names
	Root        string
	Checkpoints int       // in the export, all verified
	First, Last time.Time // of those checkpoints
	Created     time.Time // of the export

	Witnessed  int // checkpoints of the witness that this log agrees with
	Newer      int // those signed after the export
	Superseded int // those that a person gave up after a rollback

	// Of the first problem; Problem is empty when all is well.
	Problem  string
	BadLine  int   // from 1; 0 when it is not about a line
	BadEntry int64 // index; -1 when it is not about one entry
}

// ErasureReport is an entry of the log that says which entries were erased.
type ErasureReport struct {
	Index   int64
	Reason  string
	Lost    bool // their content was destroyed, and an operator accepted that
	Entries []Erased
}

// Verify proves an export without any server: every leaf, every root, every
// signature, and every byte. Its error is fault.Invalid and says what is wrong,
// where; the report has what was proven up to there.
func Verify(r io.Reader, opts VerifyOptions) (Report, error) {
	v := &verification{
		in: bufio.NewReaderSize(r, 64<<10), opts: opts, hash: sha256.New(),
		blank: map[int64][]byte{}, erased: map[int64]Erased{}, report: Report{BadEntry: -1, KeyGiven: opts.PublicKey != ""},
	}
	err := v.run()
	var p *problem
	switch {
	case err == nil:
		return v.report, nil
	case !errors.As(err, &p):
		return v.report, fault.Wrap(err, "read the audit export")
	}
	v.report.Problem, v.report.BadLine, v.report.BadEntry = p.what, p.line, p.entry
	return v.report, fault.New(fault.Invalid, "the audit export is not intact: %s", p.Error()).
		WithHint("Get the export again from the server. If it fails again, the log was changed: keep both as evidence.")
}

// problem is why an export does not verify.
type problem struct {
	line  int
	entry int64
	what  string
}

func (p *problem) Error() string {
	switch {
	case p.entry >= 0:
		return fmt.Sprintf("line %d (entry %d): %s", p.line, p.entry, p.what)
	case p.line > 0:
		return fmt.Sprintf("line %d: %s", p.line, p.what)
	}
	return p.what
}

type verification struct {
	in       *bufio.Reader
	opts     VerifyOptions
	verifier note.Verifier
	hash     hash.Hash // of all whole lines read so far
	lines    int
	header   headerLine
	tree     tree
	lastSize int64 // of the last checkpoint
	lastRoot tlog.Hash
	witness  map[int64][]witnessed // by size
	ahead    []Checkpoint          // of the witness, longer than the export
	accepted []Checkpoint          // that supersede others
	blank    map[int64][]byte      // leaves of entries without content
	erased   map[int64]Erased      // as entries of the export say
	report   Report
}

type witnessed struct {
	Checkpoint
	agree bool
}

func (v *verification) bad(format string, args ...any) error {
	return &problem{line: v.lines, entry: -1, what: fmt.Sprintf(format, args...)}
}

func (v *verification) badEntry(format string, args ...any) error {
	return &problem{line: v.lines, entry: v.tree.size, what: fmt.Sprintf(format, args...)}
}

func (v *verification) run() error {
	line, err := v.next()
	if err != nil {
		return err
	}
	if bytes.HasPrefix(line, []byte(projectPrefix)) {
		return v.runProject(line)
	}
	if err := v.readHeader(line); err != nil {
		return err
	}
	if err := v.readWitness(); err != nil {
		return err
	}
	v.hash.Write(line)
	for {
		line, err := v.next()
		if err != nil {
			return err
		}
		switch {
		case bytes.HasPrefix(line, []byte(`{"index":`)):
			err = v.readEntry(line)
		case bytes.HasPrefix(line, []byte(`{"checkpoint":`)):
			err = v.readCheckpoint(line)
		case bytes.HasPrefix(line, []byte(`{"trailer":`)):
			if err := v.readTrailer(line); err != nil {
				return err
			}
			return v.finish()
		default:
			err = v.bad("it is neither an entry, nor a checkpoint, nor the trailer")
		}
		if err != nil {
			return err
		}
		v.hash.Write(line)
	}
}

// next gives the next line with its line break.
func (v *verification) next() ([]byte, error) {
	var line []byte
	for {
		part, err := v.in.ReadSlice('\n')
		line = append(line, part...)
		switch {
		case err == nil:
			v.lines++
			return line, nil
		case len(line) > maxLine:
			v.lines++
			return nil, v.bad("it is over %d bytes", maxLine)
		case errors.Is(err, bufio.ErrBufferFull):
		case errors.Is(err, io.EOF):
			v.lines++
			if len(line) > 0 {
				return nil, v.bad("it is truncated, and the trailer is missing")
			}
			return nil, v.bad("the trailer is missing: the export is truncated after %d entries", v.tree.size)
		default:
			return nil, err
		}
	}
}

// decode reads a line that must be byte for byte what encoding gives.
func decode(line []byte, to any) bool {
	if json.Unmarshal(line, to) != nil {
		return false
	}
	again, err := json.Marshal(to)
	return err == nil && bytes.Equal(append(again, '\n'), line)
}

func (v *verification) readHeader(line []byte) error {
	h := &v.header
	if !decode(line, h) || h.Version != exportVersion || h.Size < 0 {
		return v.bad("it is not the header of an audit export")
	}
	return v.readKey(h.Origin, h.Key, h.Created)
}

// readKey opens the public key that the header names.
func (v *verification) readKey(origin, key, at string) error {
	if v.opts.PublicKey != "" && v.opts.PublicKey != key {
		return v.bad("the log's public key differs from the given one")
	}
	var err error
	if v.verifier, err = note.NewVerifier(key); err != nil || v.verifier.Name() != origin {
		return v.bad("the log's public key and origin do not match")
	}
	created, err := time.Parse(timeLayout, at)
	if err != nil {
		return v.bad("the time of the export cannot be read")
	}
	v.report.Origin, v.report.PublicKey, v.report.Created = origin, key, created
	return nil
}

// readWitness opens the checkpoints of the witness.
func (v *verification) readWitness() error {
	v.witness = map[int64][]witnessed{}
	for i, b := range v.opts.Checkpoints {
		c, err := openCheckpoint(b, v.verifier)
		if err != nil || c.Origin != v.header.Origin {
			return &problem{entry: -1, what: fmt.Sprintf("checkpoint %d of the witness is not signed by this log", i+1)}
		}
		if c.Supersedes != nil {
			v.accepted = append(v.accepted, c)
		}
		if c.Size > v.header.Size {
			v.ahead = append(v.ahead, c)
			continue
		}
		v.witness[c.Size] = append(v.witness[c.Size], witnessed{Checkpoint: c})
	}
	return nil
}

func (v *verification) readEntry(line []byte) error {
	var e entryLine
	if !decode(line, &e) {
		return v.badEntry("it is not in the format of an export")
	}
	if e.Index != v.tree.size {
		return v.badEntry("it has the index %d", e.Index)
	}
	if e.Index >= v.header.Size {
		return v.badEntry("the export declares only %d entries", v.header.Size)
	}
	if err := v.content(e); err != nil {
		return err
	}
	v.tree.add(e.Leaf)
	root := v.tree.root()
	for i, w := range v.witness[v.tree.size] {
		v.witness[v.tree.size][i].agree = w.Root == root
	}
	return nil
}

// content proves that salt and record give the leaf, and notes what is blank and what
// erasures say.
func (v *verification) content(e entryLine) error {
	bad := func(format string, args ...any) error {
		return &problem{line: v.lines, entry: e.Index, what: fmt.Sprintf(format, args...)}
	}
	switch {
	case len(e.Leaf) != sha256.Size:
		return bad("its leaf does not have %d bytes", sha256.Size)
	case e.Salt == nil && e.Record == nil:
		v.blank[e.Index] = e.Leaf
	case len(e.Salt) != saltBytes || e.Record == nil:
		return bad("its salt or record is incomplete")
	case !bytes.Equal(commit(e.Salt, e.Record), e.Leaf):
		return bad("salt and record do not match its leaf: it was changed")
	default:
		for _, one := range erasedIn(e.Index, e.Record) {
			v.erased[one.Index] = one
		}
	}
	v.report.Entries++
	return nil
}

// nameBlanks finds the erasure of each blank entry.
func (v *verification) nameBlanks() error {
	by := map[int64]*ErasureReport{}
	for _, index := range slices.Sorted(maps.Keys(v.blank)) {
		one, ok := v.erased[index]
		if !ok || one.By <= index || one.Leaf != nil && !bytes.Equal(one.Leaf, v.blank[index]) {
			v.report.Unnamed = append(v.report.Unnamed, index)
			continue
		}
		v.report.Erased++
		if by[one.By] == nil {
			by[one.By] = &ErasureReport{Index: one.By, Reason: one.Reason, Lost: one.Lost}
		}
		by[one.By].Entries = append(by[one.By].Entries, one)
	}
	for _, index := range slices.Sorted(maps.Keys(by)) {
		v.report.Erasures = append(v.report.Erasures, *by[index])
	}
	if len(v.report.Unnamed) == 0 {
		return nil
	}
	return &problem{entry: -1, what: fmt.Sprintf("%d entries are blank, and no entry of an erasure names them: %s",
		len(v.report.Unnamed), ranges(v.report.Unnamed))}
}

func (v *verification) readCheckpoint(line []byte) error {
	var l checkpointLine
	if !decode(line, &l) {
		return v.bad("it is not in the format of an export")
	}
	c, err := openCheckpoint([]byte(l.Checkpoint), v.verifier)
	if err != nil {
		return v.bad("the checkpoint does not verify: %v", err)
	}
	switch {
	case c.Origin != v.header.Origin:
		return v.bad("the checkpoint belongs to the log %s", c.Origin)
	case c.Size != v.tree.size || c.Size <= v.lastSize:
		return v.bad("a checkpoint of %d entries follows entry %d", c.Size, v.tree.size-1)
	case c.Root != v.tree.root():
		return v.bad("entries %d to %d differ from those that the checkpoint signed", v.lastSize, c.Size-1)
	}
	if c.Supersedes != nil {
		v.accepted = append(v.accepted, c)
	}
	v.lastSize, v.lastRoot = c.Size, c.Root
	if v.report.Checkpoints == 0 {
		v.report.First = c.Time
	}
	v.report.Checkpoints++
	v.report.Last, v.report.Size, v.report.Root = c.Time, c.Size, c.Root.String()
	return nil
}

func (v *verification) readTrailer(line []byte) error {
	var l trailerLine
	if !decode(line, &l) {
		return v.bad("it is not in the format of an export")
	}
	text, err := openNote([]byte(l.Trailer), v.verifier)
	if err != nil {
		return v.bad("the trailer does not verify: %v", err)
	}
	t, err := parseTrailer(text)
	if err != nil {
		return v.bad("the trailer cannot be read: %v", err)
	}
	root := "-"
	if v.lastSize > 0 {
		root = v.lastRoot.String()
	}
	switch {
	case t.size != v.tree.size:
		return v.bad("the export has %d entries, but its trailer signed %d", v.tree.size, t.size)
	case t.lines != v.lines-1:
		return v.bad("%d lines precede the trailer, but it signed %d: a line was added or removed", v.lines-1, t.lines)
	case v.lastSize != v.tree.size || t.root != root:
		return v.bad("the last checkpoint does not cover all %d entries", v.tree.size)
	case t.digest != hex.EncodeToString(v.hash.Sum(nil)):
		return v.bad("the bytes before the trailer differ from those that it signed")
	case t.origin != v.header.Origin || t.created != v.header.Created || t.size != v.header.Size:
		return v.bad("the trailer belongs to another export")
	}
	if _, err := v.in.ReadByte(); !errors.Is(err, io.EOF) {
		v.lines++
		return v.bad("there is data after the trailer")
	}
	return nil
}

// finish finds the erasures, and compares with the witness.
func (v *verification) finish() error {
	if err := v.nameBlanks(); err != nil {
		return err
	}
	for _, list := range v.witness {
		for _, w := range list {
			switch {
			case w.agree:
				v.report.Witnessed++
			case superseded(v.accepted, w.Checkpoint):
				v.report.Superseded++
			default:
				return &problem{entry: -1, what: fmt.Sprintf("the log was forked: the witness has another checkpoint of %d entries", w.Size)}
			}
		}
	}
	for _, c := range v.ahead {
		switch {
		case superseded(v.accepted, c):
			v.report.Superseded++
		case c.Time.After(v.report.Created):
			v.report.Newer++
		default:
			return &problem{entry: -1, what: fmt.Sprintf(
				"the log was rolled back: the export of %s ends after %d entries, and the witness has a checkpoint of %d from before",
				formatTime(v.report.Created), v.tree.size, c.Size)}
		}
	}
	return nil
}
