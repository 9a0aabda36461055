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
	"maps"
	"math"
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
	"github.com/falaj-ml/falaj/internal/fsync"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/id"
	"github.com/falaj-ml/falaj/internal/store"
)

const (
	rowsCursor    = "audit.sequencer"
	keyOwner      = "audit-log" // scope of the key that seals the signing key
	batchLeaves   = 1000        // per transaction
	roundTimeout  = 30 * time.Second
	keepEvery     = 5 * time.Second // between checkpoints of the witness unless one is requested
	loopPrincipal = "audit-sequencer"
	actionAccept  = "audit.accept_rollback"
)

// errContradicted is in every error that says that the log is not the one that
// was signed. It is no thing to try again: a person has to look.
var errContradicted = errors.New("the audit log differs from the signed one")

func contradicted(hint, format string, args ...any) error {
	e := fault.New(fault.Conflict, format, args...).WithHint("%s", hint)
	e.Err = errContradicted
	return e
}

// Contradicted reports whether an error says that the log is not the one that was
// signed, so that nothing may be changed until a person has settled it.
func Contradicted(err error) bool { return errors.Is(err, errContradicted) }

const (
	hintChanged  = "Find out who wrote to the database, keep a copy as evidence, and restore it from its backup. If that is not possible, resume with `falaj audit accept-rollback --reason TEXT`: the finding stays visible permanently."
	hintOtherLog = "The witness belongs to another installation or was changed, or it belongs to another database. Set audit.checkpoints to a file of this log alone, or restore the right database."
	hintOlder    = "Restore the newest copy of the database. If that is not possible, resume with `falaj audit accept-rollback --reason TEXT`: the gap stays visible permanently."
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
	Objects    Objects       // for archived entries; nil: none are archived
	JournalDir string        // of all FileJournals of this host; may be empty
	Witness    Witness       // nil if there is none, which Status reports
	Interval   time.Duration // between rounds of the loop; default 500 ms, at most 1 s
	Logger     *slog.Logger  // nil: silent

	// Sweep is how long a verification of the whole log may take while nothing is found;
	// default 1 hour. The first one after Start takes half of a processor.
	Sweep time.Duration
	// Finding is called once when something is found to be not what was signed, and returns
	// at once; nil: it is in Status and the server's log only.
	Finding func(finding error)

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

	round     sync.Mutex // one round at a time in this process
	checked   bool       // under round: the witness agrees
	kept      int64      // under round: size of the newest checkpoint of the witness
	keptAt    time.Time  // under round: when the witness was last written to, or should have been
	given     time.Time  // under round: of the newest checkpoint that a person gave up
	proven    tlog.Tree  // under round: the newest that was signed, as far as is known here
	broken    error      // under round: why nothing may be changed until Accept; nil when all is well
	accepting bool       // under round: a person has seen what is wrong with what was signed

	archive *archive // the store, too; nil without objects

	trunk  trunk
	erased erasures
	sweep  sweep

	mu     sync.Mutex
	status Status
	stop   context.CancelFunc
	done   chan struct{}
}

// Status is how the log is, for readiness and metrics.
type Status struct {
	Origin     string
	PublicKey  string
	Size       int64     // entries in the log, as of the last round
	Checkpoint time.Time // when the last checkpoint was signed
	Kept       int64     // size of the newest checkpoint of the witness
	HasWitness bool
	Folded     time.Time // when a round last went well: what was done since may be missing
	Err        error     // of the last round; nil when all is well; see Contradicted
	WitnessErr error     // why the witness lags behind

	Swept     time.Time     // when every entry was last verified; zero before the first time
	SweepTook time.Duration // time that the verification itself took, then
	Verified  int64         // entries that the verification under way, or the last one, has seen
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
	if cfg.Sweep <= 0 {
		cfg.Sweep = time.Hour
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	s := &Sequencer{cfg: cfg}
	if cfg.Objects != nil {
		s.archive = &archive{Store: cfg.Store, objects: cfg.Objects}
		s.cfg.Store = s.archive
	}
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
		return nil, fault.New(fault.Internal, "the audit log's key cannot be decrypted: %w", err).
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

// PublicKey is the log's public key, "origin+hash+key": a verifier of exports
// should have it from elsewhere than the export.
func (s *Sequencer) PublicKey() string { return s.public }

// Status tells how the log is.
func (s *Sequencer) Status() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.status
}

// Check compares the log with the signed checkpoints, in the database and of the witness.
// Error: fault.Conflict (Contradicted) when the witness knows a newer or a
// contradicting checkpoint, or the last checkpoint is not of this log: the
// database is an older copy, or the log was rewritten. Nothing is folded, and
// Append refuses every change, until Accept.
func (s *Sequencer) Check(ctx context.Context) error {
	s.round.Lock()
	defer s.round.Unlock()
	return s.settle(s.examine(ctx))
}

// settle notes what a round came to. After a contradiction nothing may be changed:
// what is done now could not be proven later.
func (s *Sequencer) settle(err error) error {
	if Contradicted(err) {
		if s.broken == nil && s.cfg.Finding != nil {
			s.cfg.Finding(err)
		}
		s.broken = err
		s.cfg.DB.Refuse(stream, fault.New(fault.Unavailable, "nothing can be changed: the audit log differs from the signed one").
			WithHint("The server's log shows the finding; `Tampering` in docs/guides/operate.md describes the operator's options."))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.status.Err = err; err == nil {
		s.status.Folded = s.cfg.Now()
	}
	return err
}

// examine finds out whether the log is the one that was signed.
func (s *Sequencer) examine(ctx context.Context) error {
	if s.broken != nil {
		return s.broken
	}
	if err := s.check(ctx); err != nil {
		return err
	}
	return s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		size, err := s.cfg.Store.Size(ctx, tx)
		if err != nil {
			return err
		}
		_, err = s.proveSigned(ctx, tx, size)
		return err
	})
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
			return err
		}
		s.proven = tlog.Tree{N: last.Size, Hash: last.Root}
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
		return nil, fault.Wrap(err, "read the checkpoints of the witness")
	}
	if b == nil {
		return nil, nil // an answer: there is no checkpoint yet
	}
	c, err := openCheckpoint(b, s.verifier)
	if err != nil || c.Origin != s.origin {
		return nil, contradicted(hintOtherLog, "the newest checkpoint of the witness does not belong to the audit log %s", s.origin)
	}
	return &c, nil
}

// compare says how the log differs from a checkpoint that was signed before.
func (s *Sequencer) compare(ctx context.Context, c Checkpoint) error {
	return s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		size, err := s.cfg.Store.Size(ctx, tx)
		if err != nil {
			return err
		}
		return agree(c, size, s.reader(ctx, tx, nil))
	})
}

// Accept resumes a log in spite of a finding, and reports whether there was one. It
// verifies all entries, appends an entry with the finding and the reason, and signs a
// checkpoint that names the one it supersedes; both stay. Where the tree was changed,
// its hashes are computed from the entries that are left, and the checkpoints that they
// contradict go: the witness still has those. Entries whose content is not what was
// signed are blanked and named as lost. Accept asks for no permission: only who starts
// the server can call it. Errors: fault.Invalid without a reason; fault.Conflict when
// entries are missing in the middle or the witness is of another log, which only a
// backup mends.
func (s *Sequencer) Accept(ctx context.Context, reason string) (accepted bool, err error) {
	if strings.TrimSpace(reason) == "" {
		return false, fault.New(fault.Invalid, "accepting a rolled-back audit log needs a reason").WithHint("Describe what happened, and name the person who decided.")
	}
	// A change of an entry's content is found by nothing else.
	for ended := false; !ended; {
		if ended, err = s.Sweep(ctx, math.MaxInt64); Contradicted(err) {
			break
		}
		if err != nil {
			return false, err
		}
	}
	s.round.Lock()
	defer s.round.Unlock()
	finding := s.examine(ctx)
	if !Contradicted(finding) {
		return false, finding
	}
	last, err := s.newest(ctx)
	if err != nil {
		return false, err
	}
	detail := map[string]any{"finding": finding.Error()}
	if last != nil {
		s.given = last.Time
	}
	var supersedes *tlog.Tree
	s.accepting, s.proven = true, tlog.Tree{}
	s.trunk.mu.Lock()
	s.trunk.reset()
	s.trunk.mu.Unlock()
	s.erased.mu.Lock()
	s.erased.known, s.erased.upto = nil, 0
	s.erased.mu.Unlock()
	s.cfg.DB.Refuse(stream, nil)
	ctx = insideTransactions(ctx) // the server does not run
	defer func() {
		s.accepting = false
		if err != nil {
			_ = s.settle(finding) // still so
		}
	}()
	if err := s.cfg.DB.Update(ctx, "", func(ctx context.Context, tx *store.Tx) error {
		if err := s.mend(ctx, tx); err != nil {
			return err
		}
		continues, err := s.continues(ctx, tx, last)
		if err != nil {
			return err
		}
		if supersedes = nil; !continues {
			supersedes = &tlog.Tree{N: last.Size, Hash: last.Root}
			detail["superseded_size"], detail["superseded_root"] = last.Size, last.Root.String()
		}
		lost, err := s.mendContents(ctx, tx)
		if err != nil {
			return err
		}
		for first := true; first || len(lost) > 0; first = false {
			part := lost[:min(len(lost), eraseChunk)]
			lost = lost[len(part):]
			detail := maps.Clone(detail)
			if len(part) > 0 {
				detail["lost"] = part
			}
			if err := Append(ctx, tx, Entry{
				Actor: identity.Loop(loopPrincipal), Action: actionAccept, Object: "audit log " + s.origin, Reason: reason, Detail: detail,
			}); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		return false, fault.Wrap(err, "record the acceptance")
	}
	if _, err := s.drain(ctx, supersedes); err != nil {
		return false, err
	}
	s.checked, s.broken = true, nil
	if s.cfg.Witness != nil {
		if err := s.keepLast(ctx); err != nil {
			return false, err
		}
	}
	return true, s.settle(nil)
}

// continues reports whether the tree of a checkpoint, if there is one, is a beginning of
// the log.
func (s *Sequencer) continues(ctx context.Context, tx *store.Tx, c *Checkpoint) (bool, error) {
	if c == nil {
		return true, nil
	}
	size, err := s.cfg.Store.Size(ctx, tx)
	if err != nil || c.Size > size {
		return false, err
	}
	root, err := tlog.TreeHash(c.Size, s.reader(ctx, tx, nil))
	return root == c.Root, err
}

// mendContents makes the filter columns of entries repeat their records again, and
// blanks the entries whose records differ from the signed ones or that were not erased. It
// gives these.
func (s *Sequencer) mendContents(ctx context.Context, tx *store.Tx) (lost []Erased, err error) {
	size, err := s.cfg.Store.Size(ctx, tx)
	if err != nil {
		return nil, err
	}
	// Erasures are read of all records that are what was signed, whatever their columns say.
	erased := map[int64]Erased{}
	each := func(visit func(l Leaf) error) error {
		for from := int64(0); from < size; from += exportPage {
			leaves, err := s.cfg.Store.Leaves(ctx, tx, from, min(from+exportPage, size))
			if err != nil {
				return err
			}
			for _, l := range leaves {
				if err := visit(l); err != nil {
					return err
				}
			}
		}
		return nil
	}
	if err := each(func(l Leaf) error {
		if l.Record != nil && bytes.Equal(commit(l.Salt, l.Record), l.Commitment) {
			for _, one := range erasedIn(l.Index, l.Record) {
				erased[one.Index] = one
			}
		}
		return nil
	}); err != nil {
		return nil, err
	}
	err = each(func(l Leaf) error {
		d := l.check(erased)
		switch {
		case d == nil:
			return nil
		case !d.columns:
			if len(lost) == maxLost {
				return fault.New(fault.Conflict, "more than %d entries of the audit log differ from the signed ones", maxLost).
					WithHint("Restore the database from its backup.")
			}
			one := Erased{Index: l.Index, Leaf: l.Commitment}
			lost = append(lost, one)
			l = l.blank(one)
		case l.Record == nil:
			by := erased[l.Index]
			l = l.blank(by)
			if at, err := time.Parse(timeLayout, by.Time); err == nil {
				l.At = store.At(at)
			}
		default:
			l = l.restoreColumns()
		}
		return s.cfg.Store.PutContent(ctx, tx, l)
	})
	return lost, err
}

// newest is the newest checkpoint that was signed for this log, in the second
// place or in the database; nil when there is none.
func (s *Sequencer) newest(ctx context.Context) (*Checkpoint, error) {
	var newest *Checkpoint
	if s.cfg.Witness != nil {
		var err error
		if newest, err = s.witnessed(ctx); err != nil {
			return nil, err
		}
	}
	err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		last, err := s.cfg.Store.LastCheckpoint(ctx, tx)
		if err != nil {
			return err
		}
		if c, err := openCheckpoint(last.Note, s.verifier); err == nil && c.Origin == s.origin && (newest == nil || c.Time.After(newest.Time)) {
			newest = &c
		}
		return nil
	})
	if fault.Is(err, fault.NotFound) {
		err = nil
	}
	return newest, err
}

// mend makes the log one again that can be extended and proven: its hashes are
// those of its entries, and no checkpoint contradicts them.
func (s *Sequencer) mend(ctx context.Context, tx *store.Tx) error {
	size, err := s.cfg.Store.Size(ctx, tx)
	if err != nil {
		return err
	}
	if err := s.cfg.Store.DropHashes(ctx, tx); err != nil {
		return err
	}
	for from := int64(0); from < size; from += exportPage {
		to := min(from+exportPage, size)
		leaves, err := s.cfg.Store.Leaves(ctx, tx, from, to)
		if err != nil {
			return err
		}
		if int64(len(leaves)) != to-from {
			return missing(from, to)
		}
		if _, err := s.grow(ctx, tx, from, leaves); err != nil {
			return err
		}
	}
	all, err := s.cfg.Store.Checkpoints(ctx, tx, 0, math.MaxInt64)
	if err != nil {
		return err
	}
	var wrong []int64
	r := s.reader(ctx, tx, nil)
	for _, signed := range all {
		c, err := openCheckpoint(signed.Note, s.verifier)
		if err == nil && c.Origin == s.origin && c.Size == signed.Size && c.Size <= size {
			root, err := tlog.TreeHash(c.Size, r)
			if err != nil {
				return err
			}
			if root == c.Root {
				continue
			}
		}
		wrong = append(wrong, signed.Size)
	}
	return s.cfg.Store.DropCheckpoints(ctx, tx, wrong)
}

func missing(from, to int64) error {
	return fault.New(fault.Conflict, "entries between %d and %d of the audit log are missing", from, to).
		WithHint("The database was changed or damaged: restore it from its backup.")
}

// Start does Check and verifies the newest entries, then folds every Interval, and
// verifies all entries in the background, until Stop. Error: that of Check, or the
// finding.
func (s *Sequencer) Start(ctx context.Context) error {
	if err := s.Check(ctx); err != nil {
		return err
	}
	if _, err := s.Sweep(ctx, sweepAtOnce); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stop != nil {
		return fault.New(fault.Conflict, "the audit sequencer is already running")
	}
	ctx, s.stop = context.WithCancel(context.WithoutCancel(ctx))
	s.done = make(chan struct{})
	s.startSweeping(ctx)
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
	s.stopSweeping()
	stop()
	<-done
}

func (s *Sequencer) loop(ctx context.Context, done chan struct{}) {
	defer close(done)
	tick := time.NewTicker(s.cfg.Interval)
	defer tick.Stop()
	failing, lagging := "", ""
	for stopping := false; ; {
		round, cancel := context.WithTimeout(context.WithoutCancel(ctx), roundTimeout)
		_, err := s.run(round, stopping)
		cancel()
		s.tell(ctx, &failing, "its entries", err)
		s.tell(ctx, &lagging, "its witness", s.Status().WitnessErr)
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

// tell logs when a part of the log fails, and when it no longer does; not in every
// round.
func (s *Sequencer) tell(ctx context.Context, told *string, part string, err error) {
	switch {
	case err != nil && err.Error() != *told:
		*told = err.Error()
		s.cfg.Logger.ErrorContext(ctx, "the audit log failed", slog.String("part", part), slog.Any("error", err), slog.String("hint", fault.HintOf(err)))
	case err == nil && *told != "":
		*told = ""
		s.cfg.Logger.InfoContext(ctx, "the audit log recovered", slog.String("part", part))
	}
}

// RunOnce folds everything that is there, and brings the witness up to date.
// Errors: that of Check; others are tried again by the next round, and nothing is
// lost or folded twice meanwhile. Whether the witness took the checkpoint is
// in Status.
func (s *Sequencer) RunOnce(ctx context.Context) (Folded, error) { return s.run(ctx, true) }

// run is a round; at once says that the witness is not to lag behind it.
func (s *Sequencer) run(ctx context.Context, atOnce bool) (f Folded, err error) {
	s.round.Lock()
	defer s.round.Unlock()
	if err = s.broken; err == nil {
		err = s.check(ctx)
	}
	if err == nil {
		f, err = s.drain(ctx, nil)
	}
	if err == nil {
		s.keep(ctx, atOnce)
	}
	return f, s.settle(err)
}

// drain folds batch after batch until nothing is left.
func (s *Sequencer) drain(ctx context.Context, supersedes *tlog.Tree) (Folded, error) {
	var total Folded
	overtaken := 0
	for {
		in, err := s.gather(ctx)
		if err != nil {
			return total, fault.Wrap(err, "collect audit entries")
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
	var tree tlog.Tree
	err := s.cfg.DB.Update(ctx, "", func(ctx context.Context, tx *store.Tx) error {
		if err := s.moveCursors(ctx, tx, in); err != nil {
			return err
		}
		if len(leaves) == 0 {
			return nil
		}
		var err error
		tree, err = s.extend(ctx, tx, leaves, now, supersedes)
		return err
	})
	if err != nil {
		return err
	}
	if len(leaves) == 0 {
		return s.noteSize(ctx)
	}
	s.proven = tree
	s.trunk.grew(tree.N-int64(len(leaves)), leaves, tree)
	s.mu.Lock()
	s.status.Size, s.status.Checkpoint = tree.N, now
	s.mu.Unlock()
	return nil
}

func (in *intake) moved() bool {
	return slices.ContainsFunc(in.files, func(f *journalFile) bool { return f.to != f.from })
}

func (s *Sequencer) noteSize(ctx context.Context) error {
	return s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		size, err := s.cfg.Store.Size(ctx, tx)
		if err != nil {
			return err
		}
		s.mu.Lock()
		s.status.Size = size
		s.mu.Unlock()
		return s.shrunk(size)
	})
}

// shrunk is an error when the log has fewer entries than were signed.
func (s *Sequencer) shrunk(size int64) error {
	if size < s.proven.N {
		return contradicted(hintChanged, "the audit log was changed in the database: it has %d entries, and %d were signed", size, s.proven.N)
	}
	return nil
}

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

// extend adds leaves, hashes and a checkpoint, and gives the new tree. It keeps a
// checkpoint of each hour, and each that supersedes another; the others were steps
// on the way to the next.
func (s *Sequencer) extend(ctx context.Context, tx *store.Tx, leaves []Leaf, now time.Time, supersedes *tlog.Tree) (tlog.Tree, error) {
	size, err := s.cfg.Store.Size(ctx, tx)
	if err != nil {
		return tlog.Tree{}, err
	}
	last, err := s.proveSigned(ctx, tx, size)
	if err != nil && (!s.accepting || !Contradicted(err)) {
		return tlog.Tree{}, err
	}
	// The times of checkpoints rise also while the clock goes back: they tell which
	// of two is newer.
	for _, before := range []time.Time{last.Time, s.given} {
		if now = now.Truncate(time.Microsecond); !now.After(before) {
			now = before.Add(time.Microsecond)
		}
	}
	for i := range leaves {
		leaves[i].Index = size + int64(i)
	}
	tree, err := s.grow(ctx, tx, size, leaves)
	if err != nil {
		return tlog.Tree{}, err
	}
	signed, err := Checkpoint{Origin: s.origin, Size: tree.N, Root: tree.Hash, Time: now, Supersedes: supersedes}.sign(s.signer)
	if err != nil {
		return tlog.Tree{}, err
	}
	if err := s.cfg.Store.AddLeaves(ctx, tx, leaves); err != nil {
		return tlog.Tree{}, err
	}
	if !s.accepting && last.Size > 0 && last.Supersedes == nil && sameHour(last.Time, now) {
		if err := s.cfg.Store.DropCheckpoints(ctx, tx, []int64{last.Size}); err != nil {
			return tlog.Tree{}, err
		}
	}
	return tree, s.cfg.Store.AddCheckpoint(ctx, tx, SignedCheckpoint{Size: tree.N, Note: signed})
}

func sameHour(a, b time.Time) bool { return a.Truncate(time.Hour).Equal(b.Truncate(time.Hour)) }

// grow adds the hashes of leaves that come after the first size, and gives the
// tree with them.
func (s *Sequencer) grow(ctx context.Context, tx *store.Tx, size int64, leaves []Leaf) (tlog.Tree, error) {
	first := tlog.StoredHashCount(size)
	fresh := make([]tlog.Hash, 0, 2*len(leaves))
	overlay := func(i int64) (tlog.Hash, bool) {
		if i < first {
			return tlog.Hash{}, false
		}
		return fresh[i-first], true
	}
	r := s.reader(ctx, tx, overlay)
	for i, l := range leaves {
		hashes, err := tlog.StoredHashesForRecordHash(size+int64(i), tlog.RecordHash(l.Commitment), r)
		if err != nil {
			return tlog.Tree{}, err
		}
		fresh = append(fresh, hashes...)
	}
	size += int64(len(leaves))
	root, err := tlog.TreeHash(size, r)
	if err != nil {
		return tlog.Tree{}, err
	}
	return tlog.Tree{N: size, Hash: root}, s.cfg.Store.AddHashes(ctx, tx, first, fresh)
}

// proveSigned makes sure that the log is still the one whose checkpoint was
// signed last, and that nobody put an older one in its place, before a longer one
// is signed, and gives that checkpoint.
func (s *Sequencer) proveSigned(ctx context.Context, tx *store.Tx, size int64) (c Checkpoint, err error) {
	if err := s.shrunk(size); err != nil {
		return c, err
	}
	changed := func(what string) error {
		return contradicted(hintChanged, "the audit log was changed in the database: %s", what)
	}
	last, err := s.cfg.Store.LastCheckpoint(ctx, tx)
	switch {
	case fault.Is(err, fault.NotFound) && size == 0:
		return c, nil
	case fault.Is(err, fault.NotFound):
		return c, changed(fmt.Sprintf("it has %d entries and no checkpoint", size))
	case err != nil:
		return c, fault.Wrap(err, "read the last checkpoint")
	}
	c, err = openCheckpoint(last.Note, s.verifier)
	if err != nil || c.Origin != s.origin {
		return c, changed("its last checkpoint does not verify")
	}
	if c.Size != size {
		return c, changed(fmt.Sprintf("it has %d entries, but its last checkpoint signed %d", size, c.Size))
	}
	r := s.reader(ctx, tx, nil)
	for _, signed := range []tlog.Tree{{N: c.Size, Hash: c.Root}, s.proven} {
		if signed.N == 0 {
			continue
		}
		root, err := tlog.TreeHash(signed.N, r)
		if err != nil {
			return c, err
		}
		if root != signed.Hash {
			return c, changed("its root differs from the signed one")
		}
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
					return nil, contradicted(hintChanged, "the audit log was changed in the database: its hash %d is missing", i)
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
	if err := fsync.Dir(s.cfg.JournalDir); err != nil {
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

// keep brings the witness up to date if its time has come or somebody asks,
// and notes whether it took the checkpoint.
func (s *Sequencer) keep(ctx context.Context, atOnce bool) {
	if s.cfg.Witness == nil || !atOnce && time.Since(s.keptAt) < keepEvery {
		return
	}
	s.keptAt = time.Now()
	err := s.keepLast(ctx)
	s.mu.Lock()
	s.status.WitnessErr = err
	s.mu.Unlock()
}

func (s *Sequencer) keepLast(ctx context.Context) error {
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
