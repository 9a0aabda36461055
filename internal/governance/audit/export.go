package audit

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"hash"
	"io"
	"strconv"
	"strings"
	"time"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/store"
)

// An export is JSON lines, each exactly as json.Marshal writes it:
//
//	header                       what this is, the log's origin and public key
//	entry 0, entry 1, …          leaf = HMAC-SHA-256(salt, record)
//	checkpoint                   after the entry that completes it; several
//	trailer                      signed: size, root, number of lines, SHA-256 of all bytes before
//
// The trailer makes every change found, also one that means nothing; the leaf in
// each line names the entry; the checkpoints prove it against the signed tree.

const (
	exportVersion = 1
	trailerTitle  = "falaj audit export v1"
	exportPage    = 500
)

type headerLine struct {
	Version int    `json:"falaj_audit_export"`
	Origin  string `json:"origin"`
	Key     string `json:"key"`
	Size    int64  `json:"size"`
	Created string `json:"created"`
}

type entryLine struct {
	Index  int64           `json:"index"`
	Leaf   []byte          `json:"leaf"`
	Salt   []byte          `json:"salt,omitempty"`
	Record json.RawMessage `json:"record,omitempty"`
	Proof  []tlog.Hash     `json:"proof,omitempty"` // in an export of a project
}

type trailerLine struct {
	Trailer string `json:"trailer"`
}

// trailer is the signed end of an export.
type trailer struct {
	origin  string
	size    int64
	root    string // "-" for an empty log
	created string
	lines   int
	digest  string
}

func (t trailer) text() string {
	return fmt.Sprintf("%s\n%s\nsize %d\nroot %s\ncreated %s\nlines %d\nsha256 %s\n",
		trailerTitle, t.origin, t.size, t.root, t.created, t.lines, t.digest)
}

func parseTrailer(text string) (trailer, error) {
	lines := strings.Split(text, "\n")
	if len(lines) != 8 || lines[0] != trailerTitle {
		return trailer{}, errNotOurs
	}
	t := trailer{origin: lines[1]}
	values := make([]string, 0, 5)
	for i, name := range []string{"size", "root", "created", "lines", "sha256"} {
		v, ok := strings.CutPrefix(lines[i+2], name+" ")
		if !ok {
			return trailer{}, errNotOurs
		}
		values = append(values, v)
	}
	var err error
	if t.size, err = strconv.ParseInt(values[0], 10, 64); err != nil {
		return trailer{}, errNotOurs
	}
	if t.lines, err = strconv.Atoi(values[3]); err != nil {
		return trailer{}, errNotOurs
	}
	t.root, t.created, t.digest = values[1], values[2], values[4]
	if t.text() != text {
		return trailer{}, errNotOurs
	}
	return t, nil
}

// Export writes the whole log up to its last checkpoint, as Verify reads it.
// Needs audit.export on the installation. The export is itself in the log, and in
// the export. Error: also w's.
func (s *Service) Export(ctx context.Context, w io.Writer) error {
	if err := s.cfg.Authorize(ctx, ActionExport, ""); err != nil {
		return err
	}
	if err := s.cfg.DB.Update(ctx, "", func(ctx context.Context, tx *store.Tx) error {
		return Append(ctx, tx, Entry{Action: ActionExport, Object: "audit log"})
	}); err != nil {
		return fault.Wrap(err, "record the export")
	}
	if err := s.cfg.Log.catchUp(ctx); err != nil {
		return fault.Wrap(err, "update the audit log")
	}
	return fault.Wrap(s.export(ctx, w), "export the audit log")
}

func (s *Service) export(ctx context.Context, w io.Writer) error {
	last, signed, err := s.last(ctx)
	if err != nil {
		return err
	}
	out := &exporter{w: bufio.NewWriterSize(w, 64<<10), hash: sha256.New()}
	// The export has just made this checkpoint; whatever the clock does, those that
	// follow have later times.
	created := formatTime(last.Time)
	if last.Size == 0 {
		created = formatTime(time.Now())
	}
	out.line(headerLine{
		Version: exportVersion, Origin: s.cfg.Log.origin, Key: s.cfg.Log.public, Size: last.Size, Created: created,
	})
	for from := int64(0); from < last.Size; from += exportPage {
		if err := s.exportPage(ctx, out, from, min(from+exportPage, last.Size), last.Size); err != nil {
			return err
		}
	}
	if last.Size > 0 {
		out.line(checkpointLine{string(signed)})
	}
	t := trailer{origin: s.cfg.Log.origin, size: last.Size, root: "-", created: created, lines: out.lines, digest: hex.EncodeToString(out.hash.Sum(nil))}
	if last.Size > 0 {
		t.root = last.Root.String()
	}
	end, err := note.Sign(&note.Note{Text: t.text()}, s.cfg.Log.signer)
	if err != nil {
		return err
	}
	out.line(trailerLine{string(end)})
	if out.err != nil {
		return out.err
	}
	return out.w.Flush()
}

// last is the checkpoint that the export goes up to, and as it was signed: the
// database keeps it only until the next of the same hour.
func (s *Service) last(ctx context.Context) (c Checkpoint, note []byte, err error) {
	var signed SignedCheckpoint
	err = s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		var err error
		signed, err = s.checkpoints.LastCheckpoint(ctx, tx)
		return err
	})
	if fault.Is(err, fault.NotFound) {
		return Checkpoint{Root: tlog.Hash{}}, nil, nil
	}
	if err != nil {
		return Checkpoint{}, nil, err
	}
	c, err = openCheckpoint(signed.Note, s.cfg.Log.verifier)
	return c, signed.Note, err
}

// exportPage writes the entries with from ≤ index < to, and the checkpoints that
// they complete before size, the end of the export. Leaves never change but by
// erasure, and checkpoints only become fewer, so pages need no common snapshot.
func (s *Service) exportPage(ctx context.Context, out *exporter, from, to, size int64) error {
	var leaves []Leaf
	var checkpoints []SignedCheckpoint
	err := s.cfg.Log.view(ctx, func(ctx context.Context, tx *store.Tx) error {
		var err error
		if leaves, err = s.leaves.Leaves(ctx, tx, from, to); err != nil {
			return err
		}
		checkpoints, err = s.checkpoints.Checkpoints(ctx, tx, from, min(to, size-1))
		return err
	})
	if err != nil {
		return err
	}
	if int64(len(leaves)) != to-from {
		return missing(from, to)
	}
	if err := s.intact(ctx, leaves, size); err != nil {
		return err
	}
	for _, l := range leaves {
		out.line(entryLine{Index: l.Index, Leaf: l.Commitment, Salt: l.Salt, Record: l.Record})
		for len(checkpoints) > 0 && checkpoints[0].Size == l.Index+1 {
			out.line(checkpointLine{string(checkpoints[0].Note)})
			checkpoints = checkpoints[1:]
		}
	}
	return out.err
}

// intact proves leaves that an export of a size is about to write, whose erasures have
// to be in the export.
func (s *Service) intact(ctx context.Context, leaves []Leaf, size int64) error {
	bad, err := s.cfg.Log.prove(ctx, leaves)
	if err != nil {
		return err
	}
	erased := s.cfg.Log.erased.of(leaves)
	for _, l := range leaves {
		if what, ok := bad[l.Index]; ok {
			return changedLog(fmt.Sprintf("entry %d: %s", l.Index, what))
		}
		if l.Record == nil && erased[l.Index].By >= size {
			return fault.New(fault.Conflict, "entry %d of the audit log was erased while the log was exported", l.Index).WithHint("Export again.")
		}
	}
	return nil
}

// exporter writes lines and hashes them; the first error stays.
type exporter struct {
	w     *bufio.Writer
	hash  hash.Hash
	lines int
	err   error
}

func (e *exporter) line(v any) {
	if e.err != nil {
		return
	}
	var b []byte
	if b, e.err = json.Marshal(v); e.err != nil {
		return
	}
	b = append(b, '\n')
	e.hash.Write(b)
	e.lines++
	_, e.err = e.w.Write(b)
}
