package audit

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tink-crypto/tink-go/v2/tink"
	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/id"
	"github.com/falaj-ml/falaj/internal/store"
)

const (
	rowsCursor    = "audit.sequencer"
	keyOwner      = "audit-log" // scope of the key that seals the signing key
	batchLeaves   = 1000        // per transaction
	roundTimeout  = 30 * time.Second
	loopPrincipal = "audit-sequencer"
)

// errOvertaken says that the cursors moved between reading and folding.
var errOvertaken = fault.New(fault.Conflict, "another sequencer extended the audit log meanwhile")

// maxOvertaken bounds the tries of one round; the next round tries again.
const maxOvertaken = 10

// Sealer seals the log's signing key. keys.Ring is one.
type Sealer interface {
	AEAD(ctx context.Context, project, owner string) (tink.AEAD, error)
}

// Config says what a sequencer folds and where to.
type Config struct {
	DB         *store.DB
	Store      Store
	Sealer     Sealer
	JournalDir string        // of all FileJournals of this host; may be empty
	Witness    Witness       // the second place for checkpoints; nil: none, which Status says
	Interval   time.Duration // between rounds of the loop; default 500 ms, at most 1 s
	Logger     *slog.Logger  // nil: silent

	Now func() time.Time // for tests; default time.Now
}

// Sequencer folds audit rows and journal entries into the Merkle log. Several
// may run: cursors that move in the transaction of the leaves let each entry in
// once, and who comes second starts his round again. Safe for concurrent use.
type Sequencer struct {
	cfg      Config
	origin   string
	signer   note.Signer
	verifier note.Verifier
	public   string

	round   sync.Mutex // one round at a time in this process
	checked bool       // under round: the second place agrees
	kept    int64      // under round: size of the newest checkpoint in the second place
	given   time.Time  // under round: of the newest checkpoint that a person gave up

	mu     sync.Mutex
	status Status
	stop   context.CancelFunc
	done   chan struct{}
}

// Status is how the log is, for readiness, metrics and `doctor`.
type Status struct {
	Origin     string
	PublicKey  string
	Size       int64     // entries in the log, as of the last round
	Checkpoint time.Time // when the last checkpoint was signed
	Kept       int64     // size of the newest checkpoint in the second place
	HasWitness bool
	Err        error // of the last round; nil when all is well
	WitnessErr error // why the second place lags behind
}

// Folded is what a round did.
type Folded struct {
	Entries int   // new in the log
	Size    int64 // of the log
	Torn    int   // journal files that ended in an unfinished, never acknowledged batch
	Damaged int   // unreadable places in journals that had been acknowledged
}

// Open gives the log of a database, and makes its key the first time. It folds
// nothing yet.
func Open(ctx context.Context, cfg Config) (*Sequencer, error) {
	if cfg.Interval <= 0 {
		cfg.Interval = 500 * time.Millisecond
	}
	cfg.Interval = min(cfg.Interval, time.Second)
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	s := &Sequencer{cfg: cfg}
	key, err := s.loadKey(ctx)
	if err != nil {
		return nil, fault.Wrap(err, "open the audit log's key")
	}
	a, err := cfg.Sealer.AEAD(ctx, "", keyOwner)
	if err != nil {
		return nil, fault.Wrap(err, "open the audit log's key")
	}
	secret, err := a.Decrypt(key.Sealed, keyPlace(key.Origin, key.Verifier))
	if err != nil {
		return nil, fault.New(fault.Internal, "the audit log's key does not open: %w", err).
			WithHint("The database was changed or damaged: restore it from its backup.")
	}
	if s.signer, err = note.NewSigner(string(secret)); err != nil {
		return nil, fault.Wrap(err, "read the audit log's key")
	}
	if s.verifier, err = note.NewVerifier(key.Verifier); err != nil {
		return nil, fault.Wrap(err, "read the audit log's public key")
	}
	s.origin, s.public = key.Origin, key.Verifier
	s.status = Status{Origin: s.origin, PublicKey: s.public, HasWitness: cfg.Witness != nil}
	return s, nil
}

func keyPlace(origin, verifier string) []byte {
	return []byte("falaj audit log key v1\x00" + origin + "\x00" + verifier)
}

func (s *Sequencer) loadKey(ctx context.Context) (LogKey, error) {
	var key LogKey
	err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		var err error
		key, err = s.cfg.Store.Key(ctx, tx)
		return err
	})
	if !fault.Is(err, fault.NotFound) {
		return key, err
	}
	fresh := LogKey{Origin: "falaj/audit/" + id.New("log")}
	secret, public, err := note.GenerateKey(rand.Reader, fresh.Origin)
	if err != nil {
		return LogKey{}, err
	}
	fresh.Verifier = public
	a, err := s.cfg.Sealer.AEAD(ctx, "", keyOwner)
	if err != nil {
		return LogKey{}, err
	}
	if fresh.Sealed, err = a.Encrypt([]byte(secret), keyPlace(fresh.Origin, public)); err != nil {
		return LogKey{}, err
	}
	err = s.cfg.DB.Update(ctx, "", func(ctx context.Context, tx *store.Tx) error {
		var err error
		if key, err = s.cfg.Store.Key(ctx, tx); !fault.Is(err, fault.NotFound) {
			return err // somebody was faster
		}
		key = fresh
		return s.cfg.Store.SetKey(ctx, tx, fresh)
	})
	return key, err
}

// PublicKey is the log's public key, "origin+hash+key": whoever verifies exports
// should have it from elsewhere than the export.
func (s *Sequencer) PublicKey() string { return s.public }

// Status tells how the log is.
func (s *Sequencer) Status() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.status
}

// Check compares the log with the second place. Error: fault.Conflict when the
// second place knows a newer or a contradicting checkpoint: the database is an
// older copy, or the log was rewritten. Nothing is folded until Accept.
func (s *Sequencer) Check(ctx context.Context) error {
	s.round.Lock()
	defer s.round.Unlock()
	return s.check(ctx)
}

func (s *Sequencer) check(ctx context.Context) error {
	if s.checked {
		return nil
	}
	if s.cfg.Witness == nil {
		s.checked = true
		return nil
	}
	last, err := s.witnessed(ctx)
	if err != nil {
		return err
	}
	if last != nil {
		if err := s.compare(ctx, *last); err != nil {
			s.cfg.Logger.ErrorContext(ctx, "the audit log contradicts the second place", slog.Any("error", err), slog.String("hint", fault.HintOf(err)))
			return err
		}
		s.setKept(last.Size)
	}
	s.checked = true
	return nil
}

func (s *Sequencer) setKept(size int64) {
	s.kept = size
	s.mu.Lock()
	s.status.Kept = size
	s.mu.Unlock()
}

func (s *Sequencer) witnessed(ctx context.Context) (*Checkpoint, error) {
	b, err := s.cfg.Witness.Last(ctx)
	if err != nil {
		return nil, fault.Wrap(err, "read the checkpoints in the second place")
	}
	if b == nil {
		return nil, nil // an answer: there is no checkpoint yet
	}
	c, err := openCheckpoint(b, s.verifier)
	if err != nil || c.Origin != s.origin {
		return nil, fault.New(fault.Conflict, "the newest checkpoint in the second place is not of the audit log %s", s.origin).
			WithHint("The second place belongs to another installation or was changed, or this database is not the one that it watched. Give this log a place of its own, or restore the right database.")
	}
	return &c, nil
}

// compare says how the log differs from a checkpoint that was signed before.
func (s *Sequencer) compare(ctx context.Context, c Checkpoint) error {
	const hint = "Restore the newest copy of the database. If that is not possible, go on with `falaj audit accept-rollback --reason TEXT`: the gap stays visible for ever."
	return s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		size, err := s.cfg.Store.Size(ctx, tx)
		if err != nil {
			return err
		}
		if c.Size > size {
			return fault.New(fault.Conflict, "the audit log was rolled back: it has %d entries, and a checkpoint of %s signed %d",
				size, formatTime(c.Time), c.Size).WithHint(hint)
		}
		root, err := tlog.TreeHash(c.Size, s.reader(ctx, tx, nil))
		if err != nil {
			return err
		}
		if root != c.Root {
			return fault.New(fault.Conflict, "the audit log was forked: its first %d entries are not those that a checkpoint of %s signed",
				c.Size, formatTime(c.Time)).WithHint(hint)
		}
		return nil
	})
}

// Accept goes on in spite of what Check found. It puts an entry into the log that
// says so, and signs a checkpoint that names the one it supersedes; both stay.
// It asks for no permission: only who starts the server can call it.
func (s *Sequencer) Accept(ctx context.Context, reason string) error {
	if strings.TrimSpace(reason) == "" {
		return fault.New(fault.Invalid, "accepting a rolled-back audit log needs a reason").WithHint("Say what happened and who decided.")
	}
	s.round.Lock()
	defer s.round.Unlock()
	err := s.check(ctx)
	if err == nil {
		return nil
	}
	if !fault.Is(err, fault.Conflict) {
		return err
	}
	last, werr := s.witnessed(ctx)
	if werr != nil {
		return werr
	}
	if aerr := s.cfg.DB.Update(ctx, "", func(ctx context.Context, tx *store.Tx) error {
		return Append(ctx, tx, Entry{
			Actor: identity.Loop(loopPrincipal), Action: "audit.accept_rollback", Object: "audit log " + s.origin, Reason: reason,
			Detail: map[string]any{"finding": err.Error(), "superseded_size": last.Size, "superseded_root": last.Root.String()},
		})
	}); aerr != nil {
		return fault.Wrap(aerr, "record the acceptance")
	}
	s.given = last.Time
	if _, err := s.drain(ctx, &tlog.Tree{N: last.Size, Hash: last.Root}); err != nil {
		return err
	}
	s.checked = true
	return s.keepLast(ctx)
}

// Start compares with the second place, then folds every Interval until Stop.
// Error: that of Check.
func (s *Sequencer) Start(ctx context.Context) error {
	if err := s.Check(ctx); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stop != nil {
		return fault.New(fault.Conflict, "the audit sequencer runs already")
	}
	ctx, s.stop = context.WithCancel(context.WithoutCancel(ctx))
	s.done = make(chan struct{})
	go s.loop(ctx, s.done)
	return nil
}

// Stop folds what is there and ends the loop. It may be called twice.
func (s *Sequencer) Stop() {
	s.mu.Lock()
	stop, done := s.stop, s.done
	s.stop = nil
	s.mu.Unlock()
	if stop == nil {
		return
	}
	stop()
	<-done
}

func (s *Sequencer) loop(ctx context.Context, done chan struct{}) {
	defer close(done)
	tick := time.NewTicker(s.cfg.Interval)
	defer tick.Stop()
	failing := ""
	for stopping := false; ; {
		round, cancel := context.WithTimeout(context.WithoutCancel(ctx), roundTimeout)
		_, err := s.RunOnce(round)
		cancel()
		switch {
		case err != nil && err.Error() != failing:
			failing = err.Error()
			s.cfg.Logger.ErrorContext(ctx, "the audit log cannot be extended", slog.Any("error", err), slog.String("hint", fault.HintOf(err)))
		case err == nil && failing != "":
			failing = ""
			s.cfg.Logger.InfoContext(ctx, "the audit log is extended again")
		}
		if stopping {
			return
		}
		select {
		case <-ctx.Done():
			stopping = true // after a last round
		case <-tick.C:
		}
	}
}

// RunOnce folds everything that is there. Errors: that of Check; others are
// tried again by the next round, and nothing is lost or folded twice meanwhile.
func (s *Sequencer) RunOnce(ctx context.Context) (Folded, error) {
	s.round.Lock()
	defer s.round.Unlock()
	var f Folded
	err := s.check(ctx)
	if err == nil {
		f, err = s.drain(ctx, nil)
	}
	if err == nil {
		werr := s.keepLast(ctx)
		if werr != nil {
			s.cfg.Logger.WarnContext(ctx, "the second place did not take the checkpoint", slog.Any("error", werr))
		}
		s.mu.Lock()
		s.status.WitnessErr = werr
		s.mu.Unlock()
	}
	s.mu.Lock()
	s.status.Err = err
	s.mu.Unlock()
	return f, err
}

// drain folds batch after batch until nothing is left.
func (s *Sequencer) drain(ctx context.Context, supersedes *tlog.Tree) (Folded, error) {
	var total Folded
	overtaken := 0
	for {
		in, err := s.gather(ctx)
		if err != nil {
			return total, fault.Wrap(err, "gather audit entries")
		}
		err = s.fold(ctx, in, supersedes)
		if errors.Is(err, errOvertaken) && overtaken < maxOvertaken {
			overtaken++
			in.close()
			continue
		}
		if err != nil {
			in.close()
			return total, fault.Wrap(err, "extend the audit log")
		}
		total.Entries += len(in.entries)
		total.Torn += in.torn
		total.Damaged += in.damaged
		err = s.clean(ctx, in)
		in.close() // only now: the locks of dead journals keep other sequencers off
		if err != nil {
			return total, fault.Wrap(err, "clean up after the audit log")
		}
		if !in.more {
			total.Size = s.Status().Size
			return total, nil
		}
	}
}

// intake is what one transaction folds.
type intake struct {
	entries  []pending
	rowsFrom store.Position // cursor as it was read
	rowsTo   store.Position
	files    []*journalFile
	more     bool
	torn     int
	damaged  int
}

// pending is an entry on its way into the log.
type pending struct {
	at     store.Time
	source string
	entry  json.RawMessage
}

// journalFile is a segment that a round reads.
type journalFile struct {
	path, name string
	file       *os.File
	from, to   int64 // cursor as it was read, and after this fold
	dead       bool  // its writer is gone
	drained    bool  // and everything in it is folded
	damaged    bool
}

func (in *intake) close() {
	for _, f := range in.files {
		_ = f.file.Close()
	}
}

// gather reads what comes next: rows and journals, each in its own order, merged
// by time.
func (s *Sequencer) gather(ctx context.Context) (*intake, error) {
	in := &intake{}
	if err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		var err error
		in.rowsFrom, err = tx.Cursor(ctx, rowsCursor)
		return err
	}); err != nil {
		return nil, err
	}
	records, to, err := s.cfg.DB.ReadStream(ctx, stream, in.rowsFrom, batchLeaves)
	if err != nil {
		return nil, err
	}
	in.rowsTo = to
	in.more = len(records) == batchLeaves
	rows := make([]pending, len(records))
	for i, r := range records {
		rows[i] = pending{at: r.Time, source: fmt.Sprintf("rows %d-%d", r.Position.Tx, r.Position.Seq), entry: readable(r.Body)}
	}
	sources := [][]pending{rows}
	if s.cfg.JournalDir != "" {
		names, err := filepath.Glob(filepath.Join(s.cfg.JournalDir, "*"+segmentSuffix))
		if err != nil {
			return nil, err
		}
		slices.Sort(names) // by time of making
		budget := batchLeaves
		for _, name := range names {
			if budget <= 0 {
				in.more = true
				break
			}
			entries, err := s.gatherFile(ctx, in, name, budget)
			if err != nil {
				in.close()
				return nil, err
			}
			budget -= len(entries)
			sources = append(sources, entries)
		}
	}
	in.entries = merge(sources)
	return in, nil
}

func (s *Sequencer) gatherFile(ctx context.Context, in *intake, path string, limit int) ([]pending, error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil // another sequencer was faster
	}
	if err != nil {
		return nil, err
	}
	jf := &journalFile{path: path, name: strings.TrimSuffix(filepath.Base(path), segmentSuffix), file: f}
	in.files = append(in.files, jf)
	// Asked before the reading: if the writer is gone now, nothing comes after.
	jf.dead = lockSegment(f)
	if err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		var err error
		jf.from, err = s.cfg.Store.JournalCursor(ctx, tx, jf.name)
		return err
	}); err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	found, err := scan(f, info.Size(), jf.from, limit, jf.dead)
	if err != nil {
		return nil, fault.Wrap(err, "read the audit journal %s", jf.name)
	}
	jf.to = found.next
	jf.drained = jf.dead && found.end
	jf.damaged = len(found.damaged) > 0
	in.more = in.more || !found.end
	in.damaged += len(found.damaged)
	if found.torn {
		in.torn++
	}
	entries := make([]pending, 0, len(found.entries))
	for _, at := range found.damaged {
		p, err := s.damage(ctx, jf, at)
		if err != nil {
			return nil, err
		}
		entries = append(entries, p)
	}
	for _, e := range found.entries {
		entries = append(entries, pending{
			at: store.Time(e.at), source: fmt.Sprintf("journal %s %d.%d", jf.name, e.offset, e.number), entry: readable(e.json),
		})
	}
	return entries, nil
}

// damage is the log's own entry about a journal that lost what it had
// acknowledged.
func (s *Sequencer) damage(ctx context.Context, jf *journalFile, at int64) (pending, error) {
	s.cfg.Logger.ErrorContext(ctx, "an acknowledged part of the audit journal is unreadable", slog.String("file", jf.path), slog.Int64("offset", at))
	e := Entry{
		Actor: identity.Loop(loopPrincipal), Action: "audit.journal_damaged", Object: "audit journal " + jf.name,
		Reason: "An acknowledged part of the journal cannot be read; the file is kept as " + jf.name + damagedSuffix + ".",
		Detail: map[string]any{"offset": at},
	}
	b, err := e.encode(ctx)
	return pending{at: store.At(time.Now()), source: fmt.Sprintf("damage %s %d", jf.name, at), entry: b}, err
}

// readable makes sure that one bad entry cannot stop the log.
func readable(body []byte) json.RawMessage {
	var e Entry
	if json.Unmarshal(body, &e) == nil {
		return body
	}
	b, _ := json.Marshal(Entry{ // strings always encode
		Actor: identity.Loop(loopPrincipal), Action: "audit.unreadable_entry", Outcome: Done,
		Detail: map[string]any{"bytes": body},
	})
	return b
}

// merge puts sources together by time and keeps the order within each.
func merge(sources [][]pending) []pending {
	n := 0
	for _, s := range sources {
		// A clock that went back does not change the order within a source.
		for i := 1; i < len(s); i++ {
			s[i].at = max(s[i].at, s[i-1].at)
		}
		n += len(s)
	}
	all := make([]pending, 0, n)
	for _, s := range sources {
		all = append(all, s...)
	}
	slices.SortStableFunc(all, func(a, b pending) int { return cmp.Compare(a.at, b.at) })
	return all
}

// record is what a leaf commits to.
type record struct {
	Time   string          `json:"time"`
	Source string          `json:"source"`
	Entry  json.RawMessage `json:"entry"`
}

// fold puts the entries into the log in one transaction with the cursors that
// say so, and signs a checkpoint.
func (s *Sequencer) fold(ctx context.Context, in *intake, supersedes *tlog.Tree) error {
	if len(in.entries) == 0 && !in.moved() {
		return s.noteSize(ctx)
	}
	leaves := make([]Leaf, len(in.entries))
	for i, p := range in.entries {
		var err error
		if leaves[i], err = newLeaf(p); err != nil {
			return err
		}
	}
	now := s.cfg.Now()
	var size int64
	err := s.cfg.DB.Update(ctx, "", func(ctx context.Context, tx *store.Tx) error {
		if err := s.moveCursors(ctx, tx, in); err != nil {
			return err
		}
		if len(leaves) == 0 {
			return nil
		}
		var err error
		size, err = s.extend(ctx, tx, leaves, now, supersedes)
		return err
	})
	if err != nil {
		return err
	}
	if len(leaves) == 0 {
		return s.noteSize(ctx)
	}
	s.mu.Lock()
	s.status.Size, s.status.Checkpoint = size, now
	s.mu.Unlock()
	return nil
}

func (in *intake) moved() bool {
	return slices.ContainsFunc(in.files, func(f *journalFile) bool { return f.to != f.from })
}

func (s *Sequencer) noteSize(ctx context.Context) error {
	return s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		size, err := s.cfg.Store.Size(ctx, tx)
		if err == nil {
			s.mu.Lock()
			s.status.Size = size
			s.mu.Unlock()
		}
		return err
	})
}

func newLeaf(p pending) (Leaf, error) {
	var e Entry
	if err := json.Unmarshal(p.entry, &e); err != nil {
		return Leaf{}, err
	}
	b, err := json.Marshal(record{Time: formatTime(p.at.Time()), Source: p.source, Entry: p.entry})
	if err != nil {
		return Leaf{}, err
	}
	salt := newSalt()
	return Leaf{
		At: p.at, Source: p.source, Salt: salt, Record: b, Commitment: commit(salt, b),
		Project: column(e.Project), ActorID: column(e.Actor.ID), ActorName: column(e.Actor.Name),
		Action: column(e.Action), Object: column(e.Object), Outcome: Outcome(column(string(e.Outcome))),
	}, nil
}

// column is text that every database takes; the record has the original.
func column(s string) string { return strings.ReplaceAll(s, "\x00", "") }

// moveCursors moves the cursors if they still stand where gather read them.
func (s *Sequencer) moveCursors(ctx context.Context, tx *store.Tx, in *intake) error {
	at, err := tx.Cursor(ctx, rowsCursor)
	if err != nil {
		return err
	}
	if at != in.rowsFrom {
		return errOvertaken
	}
	if in.rowsTo != in.rowsFrom {
		if err := tx.SetCursor(ctx, rowsCursor, in.rowsTo); err != nil {
			return err
		}
	}
	for _, f := range in.files {
		if f.to == f.from {
			continue
		}
		at, err := s.cfg.Store.JournalCursor(ctx, tx, f.name)
		if err != nil {
			return err
		}
		if at != f.from {
			return errOvertaken
		}
		if err := s.cfg.Store.SetJournalCursor(ctx, tx, f.name, f.to); err != nil {
			return err
		}
	}
	return nil
}

// extend adds leaves, hashes and a checkpoint, and gives the new size.
func (s *Sequencer) extend(ctx context.Context, tx *store.Tx, leaves []Leaf, now time.Time, supersedes *tlog.Tree) (int64, error) {
	size, err := s.cfg.Store.Size(ctx, tx)
	if err != nil {
		return 0, err
	}
	last, err := s.proveSigned(ctx, tx, size)
	if err != nil {
		return 0, err
	}
	// The times of checkpoints rise also while the clock goes back: they tell which
	// of two is newer.
	for _, before := range []time.Time{last.Time, s.given} {
		if now = now.Truncate(time.Microsecond); !now.After(before) {
			now = before.Add(time.Microsecond)
		}
	}
	first := tlog.StoredHashCount(size)
	fresh := make([]tlog.Hash, 0, 2*len(leaves))
	overlay := func(i int64) (tlog.Hash, bool) {
		if i < first {
			return tlog.Hash{}, false
		}
		return fresh[i-first], true
	}
	r := s.reader(ctx, tx, overlay)
	for i := range leaves {
		leaves[i].Index = size + int64(i)
		hashes, err := tlog.StoredHashesForRecordHash(leaves[i].Index, tlog.RecordHash(leaves[i].Commitment), r)
		if err != nil {
			return 0, err
		}
		fresh = append(fresh, hashes...)
	}
	size += int64(len(leaves))
	root, err := tlog.TreeHash(size, r)
	if err != nil {
		return 0, err
	}
	signed, err := Checkpoint{Origin: s.origin, Size: size, Root: root, Time: now, Supersedes: supersedes}.sign(s.signer)
	if err != nil {
		return 0, err
	}
	if err := s.cfg.Store.AddLeaves(ctx, tx, leaves); err != nil {
		return 0, err
	}
	if err := s.cfg.Store.AddHashes(ctx, tx, first, fresh); err != nil {
		return 0, err
	}
	return size, s.cfg.Store.AddCheckpoint(ctx, tx, SignedCheckpoint{Size: size, Note: signed})
}

// proveSigned makes sure that the log is still the one whose checkpoint was
// signed last, before a longer one is signed, and gives that checkpoint.
func (s *Sequencer) proveSigned(ctx context.Context, tx *store.Tx, size int64) (c Checkpoint, err error) {
	last, err := s.cfg.Store.LastCheckpoint(ctx, tx)
	if fault.Is(err, fault.NotFound) && size == 0 {
		return c, nil
	}
	if err != nil {
		return c, fault.Wrap(err, "read the last checkpoint")
	}
	changed := func(what string) error {
		return fault.New(fault.Conflict, "the audit log was changed in the database: %s", what).
			WithHint("Find out who wrote to the database, keep a copy as evidence, and restore it from its backup.")
	}
	c, err = openCheckpoint(last.Note, s.verifier)
	if err != nil || c.Origin != s.origin {
		return c, changed("its last checkpoint does not verify")
	}
	if c.Size != size {
		return c, changed(fmt.Sprintf("it has %d entries, and its last checkpoint signed %d", size, c.Size))
	}
	root, err := tlog.TreeHash(size, s.reader(ctx, tx, nil))
	if err != nil {
		return c, err
	}
	if root != c.Root {
		return c, changed("its root is not the one that was signed")
	}
	return c, nil
}

// reader reads stored hashes from what is being added, then from the database.
func (s *Sequencer) reader(ctx context.Context, tx *store.Tx, overlay func(int64) (tlog.Hash, bool)) tlog.HashReader {
	known := map[int64]tlog.Hash{} // the right edge is asked for again and again
	return tlog.HashReaderFunc(func(indexes []int64) ([]tlog.Hash, error) {
		var missing []int64
		for _, i := range indexes {
			if overlay != nil {
				if _, ok := overlay(i); ok {
					continue
				}
			}
			if _, ok := known[i]; !ok {
				missing = append(missing, i)
			}
		}
		if len(missing) > 0 {
			got, err := s.cfg.Store.Hashes(ctx, tx, missing)
			if err != nil {
				return nil, err
			}
			for _, i := range missing {
				h, ok := got[i]
				if !ok {
					return nil, fault.New(fault.Internal, "hash %d of the audit log is missing", i).
						WithHint("The database was changed or damaged: restore it from its backup.")
				}
				known[i] = h
			}
		}
		out := make([]tlog.Hash, len(indexes))
		for k, i := range indexes {
			h, ok := known[i]
			if !ok {
				h, _ = overlay(i)
			}
			out[k] = h
		}
		return out, nil
	})
}

// clean removes what is in the log from where it came: the rows, and the journal
// files of writers that are gone.
func (s *Sequencer) clean(ctx context.Context, in *intake) error {
	if in.rowsTo != in.rowsFrom {
		before := in.rowsTo
		before.Seq++
		if err := s.cfg.DB.TrimStream(ctx, stream, before); err != nil {
			return err
		}
	}
	var gone []string
	for _, f := range in.files {
		if f.damaged {
			// Kept beside the others, also when its writer lives on.
			if err := os.Link(f.path, strings.TrimSuffix(f.path, segmentSuffix)+damagedSuffix); err != nil && !errors.Is(err, os.ErrExist) {
				return err
			}
		}
		if !f.drained {
			continue
		}
		if err := os.Remove(f.path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		gone = append(gone, f.name)
	}
	if len(gone) == 0 {
		return nil
	}
	// The cursor goes after the file is surely gone: without it the file would
	// be read from its start.
	if err := syncDir(s.cfg.JournalDir); err != nil {
		return err
	}
	return s.cfg.DB.Update(ctx, "", func(ctx context.Context, tx *store.Tx) error {
		for _, name := range gone {
			if err := s.cfg.Store.DropJournalCursor(ctx, tx, name); err != nil {
				return err
			}
		}
		return nil
	})
}

// keepLast brings the second place up to date.
func (s *Sequencer) keepLast(ctx context.Context) error {
	if s.cfg.Witness == nil {
		return nil
	}
	var last SignedCheckpoint
	err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		var err error
		last, err = s.cfg.Store.LastCheckpoint(ctx, tx)
		return err
	})
	if fault.Is(err, fault.NotFound) || err == nil && last.Size == s.kept {
		return nil
	}
	if err != nil {
		return err
	}
	if err := s.cfg.Witness.Append(ctx, bytes.Clone(last.Note)); err != nil {
		return err
	}
	s.setKept(last.Size)
	return nil
}
