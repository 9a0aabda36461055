package audit_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/audit/auditsql"
	"github.com/falaj-ml/falaj/internal/store"
)

func (p *place) sql(t *testing.T, query string, args ...any) {
	t.Helper()
	if err := p.db.Update(t.Context(), "", func(ctx context.Context, tx *store.Tx) error {
		_, err := tx.NewRaw(query, args...).Exec(ctx)
		return err
	}); err != nil {
		t.Fatal(err)
	}
}

// backup copies the database as it is; restore gives a place that runs on it,
// with the same key file and the same witness.
func (p *place) backup(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "falaj.db")
	if err := p.db.View(t.Context(), func(ctx context.Context, tx *store.Tx) error {
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if err := p.db.Close(); err != nil { // writes the WAL back
		t.Fatal(err)
	}
	copyFile(t, filepath.Join(p.dir, "falaj.db"), path)
	p.reopen(t)
	return path
}

func (p *place) reopen(t *testing.T) {
	t.Helper()
	again, err := openPlace(t.Context(), p.dir)
	if err != nil {
		t.Fatal(err)
	}
	p.db, p.ring = again.db, again.ring
	t.Cleanup(func() { _ = again.db.Close() })
}

func (p *place) restore(t *testing.T, from string) {
	t.Helper()
	if err := p.db.Close(); err != nil {
		t.Fatal(err)
	}
	for _, suffix := range []string{"-wal", "-shm"} {
		_ = os.Remove(filepath.Join(p.dir, "falaj.db"+suffix))
	}
	copyFile(t, from, filepath.Join(p.dir, "falaj.db"))
	p.reopen(t)
}

func TestRollbackIsReportedAndAccepted(t *testing.T) {
	p := newPlace(t)
	log := p.log(t)
	p.change(t, audit.Entry{Action: "one"})
	runOnce(t, log)
	old := p.backup(t)
	log = p.log(t)
	for range 3 { // several checkpoints that the restored log does not have
		p.change(t, audit.Entry{Action: "lost"})
		runOnce(t, log)
	}
	lost := export(t, p.service(log))
	public := log.PublicKey()

	p.restore(t, old)
	log = p.log(t)
	p.change(t, audit.Entry{Action: "after"})
	wantFault(t, log.Check(t.Context()), fault.Conflict, "rolled back")
	wantFault(t, log.Start(t.Context()), fault.Conflict, "rolled back")
	_, err := log.RunOnce(t.Context())
	wantFault(t, err, fault.Conflict, "rolled back")
	if !audit.Contradicted(log.Status().Err) {
		t.Error("the status is fine")
	}
	p.refuses(t)

	_, err = log.Accept(t.Context(), " ")
	wantFault(t, err, fault.Invalid, "reason")
	p.refuses(t)
	p.accept(t, log, "the disk died; restored from the copy of Monday; Amal decided")
	if accepted, err := log.Accept(t.Context(), "twice"); err != nil || accepted {
		t.Errorf("nothing to accept: %t, %v", accepted, err)
	}
	again := p.log(t)
	if err := again.Check(t.Context()); err != nil {
		t.Errorf("after Accept: %v", err)
	}
	svc := p.service(again)
	if got := list(t, svc, audit.Filter{Action: "audit.accept_rollback"}); len(got) != 1 || got[0].Entry.Reason == "" {
		t.Errorf("%v", got)
	}
	if got := list(t, svc, audit.Filter{Action: "after"}); len(got) != 1 {
		t.Errorf("what came between is lost: %v", got)
	}
	for range 4 { // past the size that was given up
		p.change(t, audit.Entry{Action: "more"})
		runOnce(t, again)
	}
	notes := witnessed(t, p, again)
	report, err := audit.Verify(bytes.NewReader(export(t, svc)), audit.VerifyOptions{PublicKey: public, Checkpoints: notes})
	if err != nil || report.Superseded == 0 {
		t.Errorf("%+v, %v", report, err)
	}
	// The abandoned branch still verifies by itself, and the witness
	// still contradicts it where it was not given up.
	if _, err := audit.Verify(bytes.NewReader(lost), audit.VerifyOptions{PublicKey: public}); err != nil {
		t.Error(err)
	}
}

// While the clock goes back, the log goes on and proves what it proved: an
// export from before is no forgery, one of a rolled-back log is found, and a
// person can give the lost branch up.
func TestClockGoingBack(t *testing.T) {
	p := newPlace(t)
	late := time.Duration(0)
	p.now = func() time.Time { return time.Now().Add(late) }
	log := p.log(t)
	p.change(t, audit.Entry{Action: "one"})
	early := export(t, p.service(log))
	old := p.backup(t)
	log = p.log(t)

	late = -2 * time.Hour
	for range 3 {
		p.change(t, audit.Entry{Action: "two"})
		runOnce(t, log)
	}
	notes := witnessed(t, p, log)
	opts := audit.VerifyOptions{PublicKey: log.PublicKey(), Checkpoints: notes}
	report, err := audit.Verify(bytes.NewReader(early), opts)
	if err != nil || report.Newer != 3 {
		t.Errorf("an export from before the clock went back: %+v, %v", report, err)
	}
	report, err = audit.Verify(bytes.NewReader(export(t, p.service(log))), opts)
	if err != nil || report.Witnessed != len(notes) || report.Last.Before(report.First) {
		t.Errorf("an export from after: %+v, %v", report, err)
	}

	p.restore(t, old)
	late = -4 * time.Hour
	log = p.log(t)
	p.accept(t, log, "the disk was lost")
	notes = witnessed(t, p, log)
	report, err = audit.Verify(bytes.NewReader(export(t, p.service(log))), audit.VerifyOptions{PublicKey: log.PublicKey(), Checkpoints: notes})
	if err != nil || report.Superseded == 0 {
		t.Errorf("an export from after a rollback that was accepted: %+v, %v", report, err)
	}
}

func TestForkIsReported(t *testing.T) {
	p := newPlace(t)
	log := p.log(t)
	p.change(t, audit.Entry{Action: "one"})
	runOnce(t, log)
	old := p.backup(t)
	log = p.log(t)
	p.change(t, audit.Entry{Action: "true"})
	runOnce(t, log)

	// An attacker with the whole directory, except the witness, writes another history.
	p.restore(t, old)
	second := p.witness
	p.witness = nil
	log = p.log(t)
	for range 3 {
		p.change(t, audit.Entry{Action: "forged"})
		runOnce(t, log)
	}
	forged := export(t, p.service(log))

	p.witness = second
	log = p.log(t)
	wantFault(t, log.Check(t.Context()), fault.Conflict, "forked")
	f, err := os.Open(filepath.Join(p.dir, "witness", "checkpoints.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	notes, err := audit.ReadCheckpoints(f)
	if err != nil {
		t.Fatal(err)
	}
	_, err = audit.Verify(bytes.NewReader(forged), audit.VerifyOptions{PublicKey: log.PublicKey(), Checkpoints: notes})
	wantFault(t, err, fault.Invalid, "forked")
}

// An export of before the rollback point, passed off as of now, is found by its
// own signed time.
func TestVerifyFindsARolledBackExport(t *testing.T) {
	p := newPlace(t)
	log := p.log(t)
	p.change(t, audit.Entry{Action: "one"})
	runOnce(t, log)
	old := p.backup(t)
	log = p.log(t)
	for range 5 {
		p.change(t, audit.Entry{Action: "two"})
		runOnce(t, log)
	}
	notes := witnessed(t, p, log)
	notes = notes[len(notes)-1:] // the export adds itself to the old log; the newest is ahead of that
	p.restore(t, old)
	p.witness = nil
	log = p.log(t)
	_, err := audit.Verify(bytes.NewReader(export(t, p.service(log))), audit.VerifyOptions{PublicKey: log.PublicKey(), Checkpoints: notes})
	wantFault(t, err, fault.Invalid, "rolled back")
}

// The log does not sign a continuation of what somebody changed in the database.
func TestAChangedDatabaseIsNotSigned(t *testing.T) {
	tests := map[string]string{
		"a hash of the edge":   "UPDATE audit_hash SET hash = (SELECT hash FROM audit_hash WHERE idx = 1) WHERE idx = (SELECT MAX(idx) FROM audit_hash)",
		"the last leaf":        "DELETE FROM audit_leaf WHERE idx = (SELECT MAX(idx) FROM audit_leaf)",
		"the last checkpoint":  "DELETE FROM audit_checkpoint WHERE size = (SELECT MAX(size) FROM audit_checkpoint)",
		"a changed checkpoint": "UPDATE audit_checkpoint SET note = REPLACE(note, 'time 20', 'time 19')",
		"all hashes":           "DELETE FROM audit_hash",
	}
	for name, query := range tests {
		t.Run(name, func(t *testing.T) {
			p := newPlace(t)
			p.witness = nil
			log := p.log(t)
			for range 3 {
				p.change(t, audit.Entry{Action: "a"})
				runOnce(t, log)
			}
			p.sql(t, query)
			p.change(t, audit.Entry{Action: "b"})
			_, err := log.RunOnce(t.Context())
			if !audit.Contradicted(err) || fault.HintOf(err) == "" {
				t.Errorf("signed: %v", err)
			}
			p.refuses(t)
			if since, why := p.service(log).Stale(); since.IsZero() || why == "" {
				t.Errorf("lists say that they are whole: %v, %q", since, why)
			}

			// A restart forgets nothing, and a person can go on.
			if err := p.db.Close(); err != nil {
				t.Fatal(err)
			}
			p.reopen(t)
			p.witness = nil
			log = p.log(t)
			wantFault(t, log.Start(t.Context()), fault.Conflict, "changed in the database")
			p.refuses(t)
			p.accept(t, log, "nobody knows who did it; the disk has no backup")
			p.change(t, audit.Entry{Action: "c"})
			b := export(t, p.service(log))
			for _, action := range []string{`"b"`, `"c"`, `"audit.accept_rollback"`} {
				if !bytes.Contains(b, []byte(action)) {
					t.Errorf("%s is not in the log", action)
				}
			}
			if _, err := audit.Verify(bytes.NewReader(b), audit.VerifyOptions{PublicKey: log.PublicKey()}); err != nil {
				t.Errorf("the log that was accepted: %v", err)
			}
			if err := p.log(t).Check(t.Context()); err != nil {
				t.Errorf("after another restart: %v", err)
			}
			if since, why := p.service(log).Stale(); !since.IsZero() || why != "" {
				t.Errorf("lists say that they lack something: %v, %q", since, why)
			}
		})
	}
}

// Who puts a whole and older log in the place of the newer while the server runs
// is found by the server that signed the newer, also when nothing is written.
func TestAnOlderLogInPlaceOfTheNewerIsNotSigned(t *testing.T) {
	for name, write := range map[string]bool{"idle": false, "writing": true} {
		t.Run(name, func(t *testing.T) {
			p := newPlace(t)
			p.now = hourly()
			p.witness = nil
			log := p.log(t)
			for range 3 {
				p.change(t, audit.Entry{Action: "a"})
				runOnce(t, log)
			}
			p.sql(t, "DELETE FROM audit_checkpoint WHERE size = (SELECT MAX(size) FROM audit_checkpoint)")
			p.sql(t, "DELETE FROM audit_leaf WHERE idx >= (SELECT MAX(size) FROM audit_checkpoint)")
			if write {
				p.change(t, audit.Entry{Action: "b"})
			}
			_, err := log.RunOnce(t.Context())
			wantFault(t, err, fault.Conflict, "were signed")
			p.refuses(t)
		})
	}
}

// What is missing in the middle cannot be accepted: there is no tree without it.
func TestMissingEntriesAreNotAccepted(t *testing.T) {
	p := newPlace(t)
	log := p.log(t)
	for range 5 {
		p.change(t, audit.Entry{Action: "a"})
	}
	runOnce(t, log)
	p.sql(t, "DELETE FROM audit_leaf WHERE idx = 2")
	p.sql(t, "DELETE FROM audit_hash")
	log = p.log(t)
	wantFault(t, log.Check(t.Context()), fault.Conflict, "")
	_, err := log.Accept(t.Context(), "why not")
	wantFault(t, err, fault.Conflict, "missing")
	p.refuses(t)
}

// refuses makes sure that nothing can be changed.
func (p *place) refuses(t *testing.T) {
	t.Helper()
	err := p.db.Update(alice(t.Context()), "", func(ctx context.Context, tx *store.Tx) error {
		if err := tx.SetCursor(ctx, "test.refused", store.Position{Seq: 1}); err != nil {
			return err
		}
		return audit.Append(ctx, tx, audit.Entry{Action: "refused"})
	})
	wantFault(t, err, fault.Unavailable, "nothing can be changed")
	if err := p.db.View(t.Context(), func(ctx context.Context, tx *store.Tx) error {
		at, err := tx.Cursor(ctx, "test.refused")
		if at != (store.Position{}) {
			t.Error("the change is there without its audit entry")
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
}

func (p *place) accept(t *testing.T, log *audit.Sequencer, reason string) {
	t.Helper()
	if accepted, err := log.Accept(t.Context(), reason); err != nil || !accepted {
		t.Fatalf("accepted %t, %v", accepted, err)
	}
}

// hourly is a clock that goes on an hour whenever it is read.
func hourly() func() time.Time {
	var mu sync.Mutex
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	return func() time.Time {
		mu.Lock()
		defer mu.Unlock()
		now = now.Add(time.Hour)
		return now
	}
}

// The database keeps one checkpoint of an hour, and the newest.
func TestCheckpointsOfAnHourAreOne(t *testing.T) {
	p := newPlace(t)
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	p.now = func() time.Time { return now }
	log := p.log(t)
	for i := range 30 {
		now = now.Add(time.Minute)
		if i == 20 {
			now = now.Add(time.Hour)
		}
		p.change(t, audit.Entry{Action: "a"})
		runOnce(t, log)
	}
	var kept int
	if err := p.db.View(t.Context(), func(ctx context.Context, tx *store.Tx) error {
		return tx.NewRaw("SELECT COUNT(*) FROM audit_checkpoint").Scan(ctx, &kept)
	}); err != nil || kept != 2 {
		t.Errorf("%d checkpoints are kept, %v", kept, err)
	}
	report, err := audit.Verify(bytes.NewReader(export(t, p.service(log))), audit.VerifyOptions{PublicKey: log.PublicKey(), Checkpoints: witnessed(t, p, log)})
	if err != nil || report.Checkpoints != 2 || report.Witnessed < 30 {
		t.Errorf("%+v, %v", report, err)
	}
}

// An export goes on while checkpoints go.
func TestExportWhileCheckpointsGo(t *testing.T) {
	p := newPlace(t)
	log := p.log(t)
	for range 10 {
		p.change(t, audit.Entry{Action: "a"})
	}
	svc := p.service(log)
	var b bytes.Buffer
	w := &onFirstWrite{Writer: &b, do: func() {
		p.change(t, audit.Entry{Action: "b", Reason: strings.Repeat("x", 60<<10)})
		runOnce(t, log)
	}}
	p.change(t, audit.Entry{Action: "long", Reason: strings.Repeat("x", 60<<10)}) // fills the buffer
	p.change(t, audit.Entry{Action: "long", Reason: strings.Repeat("x", 60<<10)})
	if err := svc.Export(alice(t.Context()), w); err != nil {
		t.Fatal(err)
	}
	if w.do != nil {
		t.Fatal("it was written at once: the test tests nothing")
	}
	if _, err := audit.Verify(&b, audit.VerifyOptions{PublicKey: log.PublicKey()}); err != nil {
		t.Error(err)
	}
}

type onFirstWrite struct {
	io.Writer
	do func()
}

func (w *onFirstWrite) Write(b []byte) (int, error) {
	if do := w.do; do != nil {
		w.do = nil
		do()
	}
	return w.Writer.Write(b)
}

// A failing witness is logged once, not twice a second, and so is its recovery.
func TestAFailingWitnessIsToldOnce(t *testing.T) {
	p := newPlace(t)
	w := &flaky{Witness: p.witness, err: errors.New("unreachable")}
	p.witness = w
	var told bytes.Buffer
	log, err := audit.Open(t.Context(), audit.Config{
		DB: p.db, Store: auditsql.Store{}, Sealer: p.ring, Witness: w, Interval: time.Millisecond,
		Logger: slog.New(slog.NewTextHandler(&told, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := log.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	for range 5 { // each of them asks, and so tries the witness
		p.change(t, audit.Entry{Action: "a"})
		runOnce(t, log)
	}
	log.Stop()
	if n := strings.Count(told.String(), "witness"); n != 1 {
		t.Errorf("told %d times:\n%s", n, told.String())
	}
	if log.Status().WitnessErr == nil {
		t.Error("the status is fine")
	}
}

// The loop writes to the witness every few seconds, not in every round; the
// last round does.
func TestTheLoopSparesTheWitness(t *testing.T) {
	p := newPlace(t)
	w := &counted{Witness: p.witness}
	p.witness = w
	log := p.log(t)
	began := time.Now()
	if err := log.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	for size := int64(0); size < 20; size = log.Status().Size {
		p.change(t, audit.Entry{Action: "a"})
	}
	log.Stop()
	if s := log.Status(); s.Kept != s.Size || s.WitnessErr != nil {
		t.Errorf("%+v", s)
	}
	if n := w.n.Load(); int(n) > 2+int(time.Since(began)/(5*time.Second)) {
		t.Errorf("%d checkpoints were written", n)
	}
}

type counted struct {
	audit.Witness
	n atomic.Int32
}

func (c *counted) Append(ctx context.Context, b []byte) error {
	c.n.Add(1)
	return c.Witness.Append(ctx, b)
}

// A change deep in the log, which the edge does not show, is found by an export.
func TestAChangedEntryIsFound(t *testing.T) {
	p := newPlace(t)
	log := p.log(t)
	for range 5 {
		p.change(t, audit.Entry{Action: "a"})
	}
	runOnce(t, log)
	p.sql(t, "UPDATE audit_leaf SET record = REPLACE(record, 'usr_1', 'usr_2') WHERE idx = 3")
	var b bytes.Buffer
	wantFault(t, p.service(log).Export(alice(t.Context()), &b), fault.Conflict, "entry 3")
	p.refuses(t)
}

// flaky is a witness that fails on demand.
type flaky struct {
	audit.Witness
	err error
}

func (f *flaky) Append(ctx context.Context, b []byte) error {
	if f.err != nil {
		return f.err
	}
	return f.Witness.Append(ctx, b)
}

func TestAnUnreachableWitnessIsCaughtUpWith(t *testing.T) {
	p := newPlace(t)
	w := &flaky{Witness: p.witness, err: errors.New("unreachable")}
	p.witness = w
	log := p.log(t)
	p.change(t, audit.Entry{Action: "a"})
	runOnce(t, log)
	if s := log.Status(); s.WitnessErr == nil || s.Kept != 0 || s.Size == 0 || s.Err != nil {
		t.Errorf("%+v", s)
	}
	w.err = nil
	runOnce(t, log)
	if s := log.Status(); s.WitnessErr != nil || s.Kept != s.Size {
		t.Errorf("%+v", s)
	}
	// And after a restart, too.
	w.err = errors.New("unreachable")
	p.change(t, audit.Entry{Action: "b"})
	runOnce(t, log)
	w.err = nil
	log = p.log(t)
	runOnce(t, log)
	if s := log.Status(); s.WitnessErr != nil || s.Kept != s.Size {
		t.Errorf("after a restart: %+v", s)
	}
}

func TestCheckpointFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "deep", "file")
	w := audit.NewCheckpointFile(path)
	if last, err := w.Last(t.Context()); err != nil || last != nil {
		t.Errorf("%q, %v", last, err)
	}
	for _, s := range []string{"one", "two"} {
		if err := w.Append(t.Context(), []byte(s)); err != nil {
			t.Fatal(err)
		}
	}
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString(`{"checkpoint":"thr`); err != nil { // a crash in the middle
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if last, err := w.Last(t.Context()); err != nil || string(last) != "two" {
		t.Errorf("%q, %v", last, err)
	}
	if err := w.Append(t.Context(), []byte("four")); err != nil {
		t.Fatal(err)
	}
	if last, err := w.Last(t.Context()); err != nil || string(last) != "four" {
		t.Errorf("%q, %v", last, err)
	}
	b, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	all, err := audit.ReadCheckpoints(b)
	if err != nil || len(all) != 3 || string(all[2]) != "four" {
		t.Errorf("%q, %v", all, err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
}
