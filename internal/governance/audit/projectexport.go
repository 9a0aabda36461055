package audit

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/store"
)

// An export of a project is JSON lines, each exactly as json.Marshal writes it:
//
//	header         what this is, the log's origin and public key, the project
//	checkpoint     signs the tree that the proofs lead to
//	entries        of the project, the newest first, each with its RFC 6962 inclusion proof
//	erasures       entries of the installation that name blank entries above; often none
//	trailer        signed: project, number of entries and lines, SHA-256 of all bytes before
//
// The proofs say that each entry is in the log. That none is missing is what the server
// signs in the trailer; only an export of the whole log proves it.

const (
	projectPrefix       = `{"falaj_audit_project_export":`
	projectTrailerTitle = "falaj audit project export v1"
)

type projectHeaderLine struct {
	Version int    `json:"falaj_audit_project_export"`
	Origin  string `json:"origin"`
	Key     string `json:"key"`
	Project string `json:"project"`
	Size    int64  `json:"size"`
	Created string `json:"created"`
}

type projectTrailer struct {
	origin, project, created string
	size, entries            int64
	lines                    int
	digest                   string
}

func (t projectTrailer) text() string {
	return fmt.Sprintf("%s\n%s\nproject %s\nsize %d\ncreated %s\nentries %d\nlines %d\nsha256 %s\n",
		projectTrailerTitle, t.origin, t.project, t.size, t.created, t.entries, t.lines, t.digest)
}

// ExportProject writes the entries of a project with their proofs, as Verify reads it.
// Needs audit.export on the project. The export is itself in the log, and in the export.
// Error: also w's.
func (s *Service) ExportProject(ctx context.Context, project string, w io.Writer) error {
	if err := s.cfg.Authorize(ctx, ActionExport, project); err != nil {
		return err
	}
	if err := s.cfg.DB.Update(ctx, project, func(ctx context.Context, tx *store.Tx) error {
		return Append(ctx, tx, Entry{Project: project, Action: ActionExport, Object: "audit log"})
	}); err != nil {
		return fault.Wrap(err, "record the export")
	}
	if err := s.cfg.Log.catchUp(ctx); err != nil {
		return fault.Wrap(err, "update the audit log")
	}
	return fault.Wrap(s.exportProject(ctx, project, w), "export the audit log of project %s", project)
}

func (s *Service) exportProject(ctx context.Context, project string, w io.Writer) error {
	last, signed, err := s.last(ctx)
	if err != nil {
		return err
	}
	out := &exporter{w: bufio.NewWriterSize(w, 64<<10), hash: sha256.New()}
	created := formatTime(last.Time)
	out.line(projectHeaderLine{Version: exportVersion, Origin: s.cfg.Log.origin, Key: s.cfg.Log.public, Project: project, Size: last.Size, Created: created})
	out.line(checkpointLine{string(signed)})
	entries := int64(0)
	elsewhere := map[int64]bool{} // erasures that name blanks of the project, and are not the project's
	own := map[int64]bool{}       // erasures that are
	write := func(leaves []Leaf) error {
		if err := s.intact(ctx, leaves, last.Size); err != nil {
			return err
		}
		erased := s.cfg.Log.erased.of(leaves)
		proofs, err := s.proofs(ctx, leaves, last.Size)
		if err != nil {
			return err
		}
		for i, l := range leaves {
			if one, ok := erased[l.Index]; ok {
				elsewhere[one.By] = true
			}
			if l.Action == ActionErase || l.Action == actionAccept {
				own[l.Index] = true
			}
			out.line(entryLine{Index: l.Index, Leaf: l.Commitment, Salt: l.Salt, Record: l.Record, Proof: proofs[i]})
			entries++
		}
		return out.err
	}
	for before := last.Size; ; {
		var leaves []Leaf
		var next int64
		err := s.cfg.Log.view(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
			leaves, next, err = s.leaves.Find(ctx, tx, Filter{Project: project}, before, exportPage)
			return err
		})
		if err != nil {
			return err
		}
		if err := write(leaves); err != nil {
			return err
		}
		if before = next; before == 0 {
			break
		}
	}
	maps.DeleteFunc(elsewhere, func(index int64, _ bool) bool { return own[index] })
	for part := range slices.Chunk(slices.Sorted(maps.Keys(elsewhere)), exportPage) {
		leaves, err := s.cfg.Log.leavesAt(ctx, part)
		if err != nil {
			return err
		}
		if err := write(leaves); err != nil {
			return err
		}
	}
	t := projectTrailer{
		origin: s.cfg.Log.origin, project: project, created: created, size: last.Size, entries: entries, lines: out.lines, digest: hex.EncodeToString(out.hash.Sum(nil)),
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

// proofs gives the inclusion proof of each leaf in the tree of a size.
func (s *Service) proofs(ctx context.Context, leaves []Leaf, size int64) (proofs []tlog.RecordProof, err error) {
	err = s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		proofs = proofs[:0]
		r := s.cfg.Log.reader(ctx, tx, nil)
		for _, l := range leaves {
			p, err := tlog.ProveRecord(size, l.Index, r)
			if err != nil {
				return err
			}
			proofs = append(proofs, p)
		}
		return nil
	})
	return proofs, err
}

// runProject verifies an export of a project, of which line is the header.
func (v *verification) runProject(line []byte) error {
	var h projectHeaderLine
	if !decode(line, &h) || h.Version != exportVersion || h.Size < 1 || h.Project == "" {
		return v.bad("it is not the header of an audit export")
	}
	if err := v.readKey(h.Origin, h.Key, h.Created); err != nil {
		return err
	}
	v.header = headerLine{Origin: h.Origin, Size: h.Size, Created: h.Created}
	v.report.Project, v.report.Size = h.Project, h.Size
	if err := v.readWitness(); err != nil {
		return err
	}
	v.hash.Write(line)
	line, err := v.next()
	if err != nil {
		return err
	}
	signed, err := v.projectCheckpoint(line)
	if err != nil {
		return err
	}
	v.hash.Write(line)
	last, foreign := h.Size, int64(-1)
	for {
		if line, err = v.next(); err != nil {
			return err
		}
		if bytes.HasPrefix(line, []byte(`{"trailer":`)) {
			if err := v.projectTrailer(line, h); err != nil {
				return err
			}
			return v.finishProject(signed)
		}
		var e entryLine
		if !decode(line, &e) || e.Index < 0 || e.Index >= h.Size {
			return v.bad("it is neither an entry nor the trailer")
		}
		bad := func(what string) error { return &problem{line: v.lines, entry: e.Index, what: what} }
		if tlog.CheckRecord(e.Proof, h.Size, signed.Root, e.Index, tlog.RecordHash(e.Leaf)) != nil {
			return bad("its proof does not lead to the signed tree")
		}
		if err := v.content(e); err != nil {
			return err
		}
		own, erasure := ofProject(e, h.Project)
		switch {
		case own && foreign < 0 && e.Index < last:
			last = e.Index
		case !own && erasure && e.Index > foreign:
			foreign = e.Index
		default:
			return bad("it belongs to another project, or it is out of order")
		}
		v.hash.Write(line)
	}
}

// ofProject reports whether an entry is one of the project; a blank one is believed to
// be. erasure says that it names erased entries.
func ofProject(e entryLine, project string) (own, erasure bool) {
	if e.Record == nil {
		return true, false
	}
	var r record
	var f filtered
	if json.Unmarshal(e.Record, &r) != nil || json.Unmarshal(r.Entry, &f) != nil {
		return false, false
	}
	return f.Project == project, f.Action == ActionErase || f.Action == actionAccept
}

func (v *verification) projectCheckpoint(line []byte) (Checkpoint, error) {
	var l checkpointLine
	if !decode(line, &l) {
		return Checkpoint{}, v.bad("it is not the first checkpoint of a project's export")
	}
	c, err := openCheckpoint([]byte(l.Checkpoint), v.verifier)
	if err != nil {
		return Checkpoint{}, v.bad("the checkpoint does not verify: %v", err)
	}
	if c.Origin != v.header.Origin || c.Size != v.header.Size {
		return Checkpoint{}, v.bad("the checkpoint covers %d entries of the log %s", c.Size, c.Origin)
	}
	v.report.Checkpoints, v.report.First, v.report.Last, v.report.Root = 1, c.Time, c.Time, c.Root.String()
	return c, nil
}

func (v *verification) projectTrailer(line []byte, h projectHeaderLine) error {
	var l trailerLine
	if !decode(line, &l) {
		return v.bad("it is not in the format of an export")
	}
	text, err := openNote([]byte(l.Trailer), v.verifier)
	if err != nil {
		return v.bad("the trailer does not verify: %v", err)
	}
	want := projectTrailer{
		origin: h.Origin, project: h.Project, created: h.Created, size: h.Size, entries: v.report.Entries, lines: v.lines - 1, digest: hex.EncodeToString(v.hash.Sum(nil)),
	}
	if text != want.text() {
		return v.bad("the trailer signed %s, but %d entries on %d lines precede it: a line was changed, added or removed",
			trailerCount(text), v.report.Entries, v.lines-1)
	}
	if _, err := v.in.ReadByte(); !errors.Is(err, io.EOF) {
		v.lines++
		return v.bad("there is data after the trailer")
	}
	return nil
}

// trailerCount is what a trailer says of the number of entries, for a message.
func trailerCount(text string) string {
	for line := range strings.Lines(text) {
		if n, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "entries "); ok {
			if _, err := strconv.ParseInt(n, 10, 64); err == nil {
				return n + " entries"
			}
		}
	}
	return "another export"
}

// finishProject finds the erasures, and compares the checkpoint with those of the same
// size at the witness: others lead to trees that this export does not show.
func (v *verification) finishProject(c Checkpoint) error {
	if err := v.nameBlanks(); err != nil {
		return err
	}
	for _, w := range v.witness[c.Size] {
		switch {
		case w.Root == c.Root:
			v.report.Witnessed++
		case superseded(v.accepted, w.Checkpoint):
			v.report.Superseded++
		default:
			return &problem{entry: -1, what: fmt.Sprintf("the log was forked: the witness has another checkpoint of %d entries", w.Size)}
		}
	}
	return nil
}
