package audit_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/audit/auditsql"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/keys"
	"github.com/falaj-ml/falaj/internal/governance/keys/keyssql"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/store/storetest"
)

// place is an installation as far as audit needs one.
type place struct {
	now      func() time.Time // of the sequencer; nil: the wall clock
	dir      string
	db       *store.DB
	ring     *keys.Service
	witness  audit.Witness
	objects  audit.Objects      // nil: no entries are archived
	denied   string             // action that the authorizer refuses
	recorder *audit.FileJournal // the last that was opened
}

// schema lists the migrations of the database.
var schema = []store.Migrations{keyssql.Migrations, auditsql.Migrations}

func openPlace(ctx context.Context, dir string) (*place, error) {
	path := filepath.Join(dir, "falaj.db")
	if err := storetest.CreateSQLite(path, schema...); err != nil {
		return nil, err
	}
	return openPlaceOn(ctx, dir, "sqlite://"+path)
}

func openPlaceOn(ctx context.Context, dir, url string) (*place, error) {
	db, err := store.Open(ctx, store.Config{
		URL:        url,
		Migrations: schema,
	})
	if err != nil {
		return nil, err
	}
	ring, err := keys.Open(ctx, keys.Config{DB: db, Store: keyssql.Store{}, Authorizer: allowAll{}, MasterFile: filepath.Join(dir, "master.key")})
	if err != nil {
		return nil, err
	}
	return &place{dir: dir, db: db, ring: ring, witness: audit.NewCheckpointFile(filepath.Join(dir, "witness", "checkpoints.jsonl"))}, nil
}

func newPlace(t *testing.T) *place {
	t.Helper()
	p, err := openPlace(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.db.Close() })
	return p
}

// onEachDatabase runs a test on SQLite and on PostgreSQL.
func onEachDatabase(t *testing.T, test func(t *testing.T, p *place)) {
	t.Helper()
	t.Run("SQLite", func(t *testing.T) { test(t, newPlace(t)) })
	t.Run("PostgreSQL", func(t *testing.T) {
		p, err := openPlaceOn(t.Context(), t.TempDir(), storetest.Postgres(t, schema...))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = p.db.Close() })
		test(t, p)
	})
}

type allowAll struct{}

func (allowAll) Allow(context.Context, policy.Action, policy.Object) error { return nil }

func (p *place) journalDir() string { return filepath.Join(p.dir, "journal") }

func (p *place) openLog(ctx context.Context) (*audit.Sequencer, error) {
	return audit.Open(ctx, audit.Config{
		DB: p.db, Store: auditsql.Store{}, Sealer: p.ring, JournalDir: p.journalDir(), Witness: p.witness, Interval: time.Millisecond, Now: p.now, Objects: p.objects,
	})
}

func (p *place) log(t *testing.T) *audit.Sequencer {
	t.Helper()
	s, err := p.openLog(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func (p *place) journal(t *testing.T) *audit.FileJournal {
	t.Helper()
	j, err := audit.OpenJournal(audit.JournalConfig{Dir: p.journalDir(), SegmentBytes: 2 << 20})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = j.Close() })
	p.recorder = j
	return j
}

func (p *place) service(log *audit.Sequencer) *audit.Service {
	cfg := audit.ServiceConfig{
		DB: p.db, Log: log,
		Authorize: func(_ context.Context, action, project string) error {
			if action == p.denied {
				return fault.New(fault.PermissionDenied, "no %s of %q", action, project)
			}
			return nil
		},
	}
	if p.recorder != nil {
		cfg.Journal = p.recorder
	}
	return audit.New(cfg)
}

func alice(ctx context.Context) context.Context {
	return identity.With(ctx, identity.Principal{Kind: identity.User, ID: "usr_1", Name: "alice"})
}

// change audits a change that does nothing else.
func (p *place) change(t *testing.T, e audit.Entry) {
	t.Helper()
	if err := p.db.Update(alice(t.Context()), e.Project, func(ctx context.Context, tx *store.Tx) error {
		return audit.Append(ctx, tx, e)
	}); err != nil {
		t.Fatal(err)
	}
}

func runOnce(t *testing.T, s *audit.Sequencer) audit.Folded {
	t.Helper()
	f, err := s.RunOnce(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func export(t *testing.T, s *audit.Service) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := s.Export(alice(t.Context()), &b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func wantFault(t *testing.T, err error, kind fault.Kind, text string) {
	t.Helper()
	if !fault.Is(err, kind) || !strings.Contains(err.Error(), text) {
		t.Fatalf("got %v (%v), want %v with %q", err, fault.KindOf(err), kind, text)
	}
}

// list reads the whole log, oldest first.
func list(t *testing.T, s *audit.Service, f audit.Filter) []audit.Record {
	t.Helper()
	var all []audit.Record
	for token := ""; ; {
		page, next, err := s.List(alice(t.Context()), f, 0, token)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, page...)
		if next == "" {
			slices.Reverse(all)
			return all
		}
		token = next
	}
}

func actions(records []audit.Record) string {
	names := make([]string, len(records))
	for i, r := range records {
		names[i] = r.Entry.Action
	}
	return strings.Join(names, " ")
}

func TestChangesAndReadsComeIntoTheLogOnce(t *testing.T) {
	onEachDatabase(t, changesAndReadsComeIntoTheLogOnce)
}

func changesAndReadsComeIntoTheLogOnce(t *testing.T, p *place) {
	t.Helper()
	log, j := p.log(t), p.journal(t)
	svc := p.service(log)
	p.change(t, audit.Entry{Project: "wind", Action: "dataset.import", Object: "dataset weather@1", Detail: map[string]any{"rows": 26115, "big": int64(1<<62 + 1)}})
	if err := j.Record(alice(t.Context()), audit.Entry{Project: "wind", Action: "dataset.query", Outcome: audit.Refused, Reason: "no role"}); err != nil {
		t.Fatal(err)
	}
	p.change(t, audit.Entry{Project: "sun", Action: "job.submit"})

	if f := runOnce(t, log); f.Entries != 5 || f.Size != 5 { // with the two keys of the log
		t.Errorf("folded %+v", f)
	}
	if f := runOnce(t, log); f.Entries != 0 || f.Size != 5 {
		t.Errorf("folded again %+v", f)
	}
	all := list(t, svc, audit.Filter{})
	if got := actions(all[1:]); got != "key.create dataset.import dataset.query job.submit" {
		t.Errorf("the log has %s", got)
	}
	for i, r := range all {
		if r.Index != int64(i) || r.Time.IsZero() || r.Source == "" || r.Erased {
			t.Errorf("record %+v", r)
		}
	}
	read := all[len(all)-2]
	if read.Entry.Outcome != audit.Refused || read.Entry.Actor.Name != "alice" || !strings.HasPrefix(read.Source, "journal ") {
		t.Errorf("the refusal is %+v", read)
	}
	records, _, err := p.db.ReadStream(t.Context(), "audit", store.Position{}, 10)
	if err != nil || len(records) != 0 {
		t.Errorf("left in the stream: %d, %v", len(records), err)
	}
	report, err := audit.Verify(bytes.NewReader(export(t, svc)), audit.VerifyOptions{PublicKey: log.PublicKey()})
	if err != nil || report.Size != int64(len(all))+1 || report.Checkpoints != 1 || !report.KeyGiven {
		t.Errorf("%+v, %v", report, err)
	}
}

func TestManyBatchesKeepTheirOrder(t *testing.T) {
	p := newPlace(t)
	log, j := p.log(t), p.journal(t)
	const n = 2500
	for i := range 3 {
		if err := p.db.Update(alice(t.Context()), "", func(ctx context.Context, tx *store.Tx) error {
			for k := range n / 3 {
				if err := audit.Append(ctx, tx, audit.Entry{Project: "rows", Action: fmt.Sprintf("a%d", i*(n/3)+k)}); err != nil {
					return err
				}
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for i := range 200 {
				if err := j.Record(alice(t.Context()), audit.Entry{Project: "journal", Action: fmt.Sprintf("a%d", i)}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	runOnce(t, log)
	svc := p.service(log)
	rows := list(t, svc, audit.Filter{Project: "rows"})
	if len(rows) != n/3*3 {
		t.Fatalf("%d rows", len(rows))
	}
	for i, r := range rows {
		if r.Entry.Action != fmt.Sprintf("a%d", i) {
			t.Fatalf("row %d is %s", i, r.Entry.Action)
		}
	}
	if got := len(list(t, svc, audit.Filter{Project: "journal"})); got != 1600 {
		t.Errorf("%d journal entries", got)
	}
	if _, err := audit.Verify(bytes.NewReader(export(t, svc)), audit.VerifyOptions{PublicKey: log.PublicKey()}); err != nil {
		t.Error(err)
	}
}

// Several sequencers on one database let each entry in once.
func TestSequencersTogether(t *testing.T) { onEachDatabase(t, sequencersTogether) }

func sequencersTogether(t *testing.T, p *place) {
	t.Helper()
	logs := []*audit.Sequencer{p.log(t), p.log(t), p.log(t)}
	j := p.journal(t)
	ctx, cancel := context.WithCancel(t.Context())
	var folding, writing sync.WaitGroup
	for _, l := range logs {
		folding.Go(func() {
			for ctx.Err() == nil {
				if _, err := l.RunOnce(t.Context()); err != nil && !fault.Is(err, fault.Conflict) {
					t.Error(err)
				}
			}
		})
	}
	for w := range 4 {
		writing.Go(func() {
			for i := range 50 {
				p.change(t, audit.Entry{Project: "rows", Action: fmt.Sprintf("w%d.%d", w, i)})
				if err := j.Record(t.Context(), audit.Entry{Project: "journal", Action: fmt.Sprintf("w%d.%d", w, i)}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	writing.Wait()
	cancel()
	folding.Wait()
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	runOnce(t, logs[0])
	svc := p.service(logs[0])
	for _, project := range []string{"rows", "journal"} {
		seen := map[string]int{}
		for _, r := range list(t, svc, audit.Filter{Project: project}) {
			seen[r.Entry.Action]++
		}
		if len(seen) != 200 {
			t.Errorf("%s: %d entries", project, len(seen))
		}
		for a, n := range seen {
			if n != 1 {
				t.Errorf("%s: %s is there %d times", project, a, n)
			}
		}
	}
	if _, err := audit.Verify(bytes.NewReader(export(t, svc)), audit.VerifyOptions{PublicKey: logs[1].PublicKey()}); err != nil {
		t.Error(err)
	}
}

func TestStartFoldsAndStopFoldsTheRest(t *testing.T) {
	p := newPlace(t)
	log := p.log(t)
	if err := log.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	wantFault(t, log.Start(t.Context()), fault.Conflict, "already running")
	p.change(t, audit.Entry{Action: "a"})
	log.Stop()
	log.Stop()
	status := log.Status()
	if status.Size < 2 || status.Err != nil || status.WitnessErr != nil || status.Kept != status.Size || !status.HasWitness || status.PublicKey == "" {
		t.Errorf("%+v", status)
	}
}

func TestFilters(t *testing.T) { onEachDatabase(t, filters) }

func filters(t *testing.T, p *place) {
	t.Helper()
	log := p.log(t)
	svc := p.service(log)
	p.change(t, audit.Entry{Project: "wind", Action: "dataset.import", Object: "dataset weather@1"})
	p.change(t, audit.Entry{Project: "wind", Action: "dataset_x.y", Object: "100%", Reason: `he said "no" <now>`})
	p.change(t, audit.Entry{Project: "sun", Action: "dataset.query", Outcome: audit.Refused, Object: "nul\x00byte \xff"})
	p.change(t, audit.Entry{Project: "sun", Action: "job.submit", Actor: identity.Loop("scheduler")})
	runOnce(t, log)
	now := time.Now()
	tests := []struct {
		name string
		f    audit.Filter
		want string
	}{
		{"project", audit.Filter{Project: "wind"}, "dataset.import dataset_x.y"},
		{"action", audit.Filter{Action: "job.submit"}, "job.submit"},
		{"actions", audit.Filter{Action: "dataset.*"}, "dataset.import dataset.query"},
		{"object", audit.Filter{Object: "dataset weather@1"}, "dataset.import"},
		{"outcome", audit.Filter{Outcome: audit.Refused}, "dataset.query"},
		{"actor name", audit.Filter{Actor: "alice", Project: "sun"}, "dataset.query"},
		{"actor id", audit.Filter{Actor: "scheduler"}, "job.submit"},
		{"text", audit.Filter{Text: "WEATHER@1"}, "dataset.import"},
		{"text with a pattern's letters", audit.Filter{Text: "100%"}, "dataset_x.y"},
		{"text as JSON escapes it", audit.Filter{Text: `"no" <now>`}, "dataset_x.y"},
		{"text that is nowhere", audit.Filter{Text: "1%0"}, ""},
		{"since", audit.Filter{Since: now.Add(time.Minute)}, ""},
		{"until", audit.Filter{Until: now.Add(-time.Hour)}, ""},
		{"between", audit.Filter{Project: "sun", Since: now.Add(-time.Hour), Until: now.Add(time.Hour)}, "dataset.query job.submit"},
	}
	for _, tt := range tests {
		if got := actions(list(t, svc, tt.f)); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
	_, _, err := svc.List(t.Context(), audit.Filter{Outcome: "maybe"}, 0, "")
	wantFault(t, err, fault.Invalid, "outcome")
	_, _, err = svc.List(t.Context(), audit.Filter{Text: strings.Repeat("x", 201)}, 0, "")
	wantFault(t, err, fault.Invalid, "filter")
	for _, token := range []string{"x", "!!", "YmVmb3JlIC0x", "YmVmb3JlIDAwMQ"} {
		_, _, err = svc.List(t.Context(), audit.Filter{}, 0, token)
		wantFault(t, err, fault.Invalid, "page token")
	}
	page, next, err := svc.List(t.Context(), audit.Filter{}, 2, "")
	if err != nil || len(page) != 2 || next == "" || page[0].Index < page[1].Index {
		t.Errorf("%v, %q, %v", page, next, err)
	}
	rest, _, err := svc.List(t.Context(), audit.Filter{}, 2, next)
	if err != nil || len(rest) != 2 || rest[0].Index != page[1].Index-1 {
		t.Errorf("%v, %v", rest, err)
	}
}

func TestPermissions(t *testing.T) {
	p := newPlace(t)
	svc := p.service(p.log(t))
	p.denied = audit.ActionRead
	_, _, err := svc.List(t.Context(), audit.Filter{Project: "wind"}, 0, "")
	wantFault(t, err, fault.PermissionDenied, `"wind"`)
	p.denied = audit.ActionExport
	var b bytes.Buffer
	wantFault(t, svc.Export(t.Context(), &b), fault.PermissionDenied, "")
	if b.Len() != 0 {
		t.Error("something was written")
	}
	p.denied = audit.ActionErase
	_, err = svc.RequestErasure(alice(t.Context()), []int64{0}, "why")
	wantFault(t, err, fault.PermissionDenied, "")
}

func carol(ctx context.Context) context.Context {
	return identity.With(ctx, identity.Principal{Kind: identity.User, ID: "usr_2", Name: "carol"})
}

// eraseBoth erases entries as two people do.
func eraseBoth(t *testing.T, svc *audit.Service, indexes []int64, reason string) {
	t.Helper()
	e, err := svc.RequestErasure(alice(t.Context()), indexes, reason)
	if err != nil {
		t.Fatal(err)
	}
	if e, err = svc.ApproveErasure(carol(t.Context()), e.ID); err != nil || e.Erased != len(indexes) || e.State != audit.ErasureDone {
		t.Fatalf("%+v, %v", e, err)
	}
}

func TestErasedEntriesTellNothingAndVerify(t *testing.T) {
	onEachDatabase(t, erasedEntriesTellNothingAndVerify)
}

func erasedEntriesTellNothingAndVerify(t *testing.T, p *place) {
	t.Helper()
	log, j := p.log(t), p.journal(t)
	svc := p.service(log)
	p.change(t, audit.Entry{Project: "wind", Action: "subject.read", Object: "subject bob"})
	if err := j.Record(alice(t.Context()), audit.Entry{Project: "wind", Action: "subject.read", Object: "subject bob"}); err != nil {
		t.Fatal(err)
	}
	var indexes []int64
	for _, r := range list(t, svc, audit.Filter{Text: "subject bob"}) {
		indexes = append(indexes, r.Index)
	}
	if len(indexes) != 2 {
		t.Fatalf("found %v", indexes)
	}
	for _, reason := range []string{"", " ", strings.Repeat("x", 2001)} {
		_, err := svc.RequestErasure(alice(t.Context()), indexes, reason)
		wantFault(t, err, fault.Invalid, "reason")
	}
	eraseBoth(t, svc, indexes, "request of the subject")
	_, err := svc.RequestErasure(alice(t.Context()), indexes, "again")
	wantFault(t, err, fault.NotFound, "already erased")
	if got := list(t, svc, audit.Filter{Text: "subject bob"}); len(got) != 0 {
		t.Errorf("still found: %v", got)
	}
	b := export(t, svc)
	if bytes.Contains(b, []byte("bob")) {
		t.Error("the export tells")
	}
	files, err := filepath.Glob(filepath.Join(p.dir, "falaj.db*"))
	if err != nil {
		t.Fatal(err)
	}
	journals, err := filepath.Glob(filepath.Join(p.journalDir(), "*"))
	if err != nil || len(journals) != 2 { // the one that is written, and the reserve
		t.Errorf("journal files: %v, %v", journals, err)
	}
	for _, name := range append(files, journals...) {
		if b, err := os.ReadFile(name); err != nil || bytes.Contains(b, []byte("subject bob")) {
			t.Errorf("%s tells, %v", name, err)
		}
	}
	report, err := audit.Verify(bytes.NewReader(b), audit.VerifyOptions{PublicKey: log.PublicKey()})
	if err != nil || report.Erased != 2 {
		t.Errorf("%+v, %v", report, err)
	}
	all := list(t, svc, audit.Filter{})
	if r := all[indexes[0]]; !r.Erased || r.Entry.Action != "subject.read" || r.Entry.Actor.Name != "alice" || r.Entry.Object != "" || r.By != all[len(all)-2].Index {
		t.Errorf("%+v", r)
	}
	if r := all[len(all)-2]; r.Entry.Action != audit.ActionErase || r.Entry.Actor.ID != "usr_2" || r.Entry.Project != "wind" {
		t.Errorf("the erasure itself is %+v", r)
	}
	if err := j.Record(alice(t.Context()), audit.Entry{Action: "later.read"}); err != nil {
		t.Fatal(err)
	}
	if got := list(t, svc, audit.Filter{Action: "later.read"}); len(got) != 1 {
		t.Errorf("the journal does not go on: %v", got)
	}
}

func TestRecordRead(t *testing.T) {
	var j counting
	for c, want := range map[string]int{"public": 0, "internal": 0, "confidential": 1, "restricted": 1, "": 1, "Public": 1} {
		j.n = 0
		if err := audit.RecordRead(t.Context(), &j, c, audit.Entry{Action: "dataset.query"}); err != nil || j.n != want {
			t.Errorf("%q: %d, %v", c, j.n, err)
		}
	}
	j.err = fault.New(fault.Exhausted, "full")
	wantFault(t, audit.RecordRead(t.Context(), &j, "restricted", audit.Entry{Object: "dataset a@1"}), fault.Exhausted, "dataset a@1")
}

type counting struct {
	n   int
	err error
}

func (c *counting) Record(context.Context, audit.Entry) error { c.n++; return c.err }

func TestEntriesAreBounded(t *testing.T) {
	p := newPlace(t)
	j := p.journal(t)
	big := audit.Entry{Action: "a", Reason: strings.Repeat("x", 65<<10)}
	wantFault(t, j.Record(t.Context(), big), fault.TooLarge, "bytes")
	err := p.db.Update(t.Context(), "", func(ctx context.Context, tx *store.Tx) error { return audit.Append(ctx, tx, big) })
	wantFault(t, err, fault.TooLarge, "bytes")
	err = j.Record(t.Context(), audit.Entry{Action: "a", Detail: map[string]any{"f": func() {}}})
	wantFault(t, err, fault.Internal, "encode")
}

// One entry that nobody can read does not stop the log.
func TestUnreadableRow(t *testing.T) {
	p := newPlace(t)
	log := p.log(t)
	if err := p.db.Update(t.Context(), "", func(ctx context.Context, tx *store.Tx) error {
		return tx.Append(ctx, "audit", "", "x", []byte(`{"action":`))
	}); err != nil {
		t.Fatal(err)
	}
	runOnce(t, log)
	if got := list(t, p.service(log), audit.Filter{Action: "audit.unreadable_entry"}); len(got) != 1 {
		t.Errorf("%v", got)
	}
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	b, err := os.ReadFile(from)
	if err == nil {
		err = os.WriteFile(to, b, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestJournalTurnsWhileItIsWritten: each entry that was acknowledged is in the log
// once, in whatever file it came to be.
func TestJournalTurnsWhileItIsWritten(t *testing.T) {
	p := newPlace(t)
	log, j := p.log(t), p.journal(t)
	var writers sync.WaitGroup
	for range 4 {
		writers.Go(func() {
			for range 50 {
				if err := j.Record(alice(t.Context()), audit.Entry{Action: "subject.read"}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	writers.Go(func() {
		for range 5 {
			if err := j.Turn(t.Context()); err != nil {
				t.Error(err)
			}
			if _, err := log.RunOnce(t.Context()); err != nil {
				t.Error(err)
			}
		}
	})
	writers.Wait()
	if got := list(t, p.service(log), audit.Filter{Action: "subject.read"}); len(got) != 200 {
		t.Errorf("%d entries are in the log, 200 were acknowledged", len(got))
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	if err := j.Turn(t.Context()); !fault.Is(err, fault.Unavailable) {
		t.Errorf("after its end: %v", err)
	}
}
