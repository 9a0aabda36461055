package audit_test

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/audit/auditsql"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/store"
)

// many appends n entries in few transactions.
func (p *place) many(tb testing.TB, n int) {
	tb.Helper()
	for from := 0; from < n; from += 500 {
		if err := p.db.Update(alice(context.Background()), "wind", func(ctx context.Context, tx *store.Tx) error {
			for i := from; i < min(from+500, n); i++ {
				if err := audit.Append(ctx, tx, audit.Entry{Project: "wind", Action: "dataset.query", Object: fmt.Sprintf("dataset d@%d", i), Outcome: audit.Refused, Reason: "no role"}); err != nil {
					return err
				}
			}
			return nil
		}); err != nil {
			tb.Fatal(err)
		}
	}
}

// sweepAll verifies all entries, part by part.
func sweepAll(tb testing.TB, log *audit.Sequencer, part int64) error {
	tb.Helper()
	for {
		ended, err := log.Sweep(context.Background(), part)
		if ended || err != nil {
			return err
		}
	}
}

func TestSweepFindsWhateverIsChanged(t *testing.T) {
	t.Parallel()
	tests := []struct{ name, query, finding string }{
		{"a record", "UPDATE audit_leaf SET record = REPLACE(record, 'usr_1', 'usr_2') WHERE idx = 40", "entry 40"},
		{"a record and the columns that repeat it", "UPDATE audit_leaf SET record = REPLACE(record, 'alice', 'alize'), actor_name = 'alize' WHERE idx = 300", "entry 300"},
		{"a record of the newest entries", "UPDATE audit_leaf SET record = REPLACE(record, 'no role', 'no rule') WHERE idx = (SELECT MAX(idx) FROM audit_leaf)", "differs from the signed one"},
		{"a salt", "UPDATE audit_leaf SET salt = (SELECT salt FROM audit_leaf WHERE idx = 1) WHERE idx = 5", "entry 5"},
		{"an outcome in the column for filters", "UPDATE audit_leaf SET outcome = 'done' WHERE idx = 17", "entry 17"},
		{"a project in the column for filters", "UPDATE audit_leaf SET project = 'sun' WHERE idx = 270", "entry 270"},
		{"a time in the column for filters", "UPDATE audit_leaf SET at = at - 1 WHERE idx = 20", "entry 20"},
		{"a source", "UPDATE audit_leaf SET source = 'rows 0-0' WHERE idx = 20", "entry 20"},
		{"a blank", "UPDATE audit_leaf SET record = NULL, salt = NULL WHERE idx = 33", "no entry of an erasure names it"},
		{"a blank as releases before erased", "UPDATE audit_leaf SET record = NULL, salt = NULL, project = '', actor_id = '', actor_name = '', action = '', object = '', outcome = '' WHERE idx = 33", "no entry of an erasure names it"},
		{"a leaf", "UPDATE audit_leaf SET commitment = (SELECT commitment FROM audit_leaf WHERE idx = 1) WHERE idx = 2", "differ from the signed ones"},
		{"a leaf of the last tile", "UPDATE audit_leaf SET commitment = (SELECT commitment FROM audit_leaf WHERE idx = 1) WHERE idx = (SELECT MAX(idx) FROM audit_leaf)", "not in the signed tree"},
		{"two entries in each other's place", "UPDATE audit_leaf SET idx = CASE idx WHEN 7 THEN -8 ELSE -7 END WHERE idx IN (7, 8); UPDATE audit_leaf SET idx = -idx WHERE idx < 0", "differ from the signed ones"},
		{"a missing entry", "DELETE FROM audit_leaf WHERE idx = 100", "entry 100 is missing"},
		{"a stored hash", "UPDATE audit_hash SET hash = (SELECT hash FROM audit_hash WHERE idx = 1) WHERE idx = 9", "hash 9"},
		{"a missing stored hash", "DELETE FROM audit_hash WHERE idx = 9", "hash 9"},
		{"an old checkpoint", "UPDATE audit_checkpoint SET note = REPLACE(note, 'time 2026', 'time 2025') WHERE size = (SELECT MIN(size) FROM audit_checkpoint)", "does not verify"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			p := newPlace(t)
			p.now = hourly()
			log := p.log(t)
			p.many(t, 300)
			runOnce(t, log)
			p.many(t, 250)
			runOnce(t, log)
			if err := sweepAll(t, log, 100); err != nil {
				t.Fatal(err)
			}
			p.sql(t, tt.query)
			// A process that knew the log before, and one that starts.
			for _, s := range []*audit.Sequencer{log, p.log(t)} {
				err := sweepAll(t, s, 100)
				if !audit.Contradicted(err) || !strings.Contains(err.Error(), tt.finding) {
					t.Errorf("found: %v", err)
				}
				if !audit.Contradicted(s.Status().Err) {
					t.Errorf("status: %v", s.Status().Err)
				}
			}
			p.refuses(t)
			if err := p.log(t).Start(t.Context()); !audit.Contradicted(err) {
				t.Errorf("a start: %v", err)
			}
		})
	}
}

// What a reader gets is proven, whatever the background has come to.
func TestReadersGetNoForgedText(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	var findings []error
	log, err := audit.Open(t.Context(), audit.Config{
		DB: p.db, Store: auditsql.Store{}, Sealer: p.ring, Witness: p.witness, Finding: func(err error) { findings = append(findings, err) },
	})
	if err != nil {
		t.Fatal(err)
	}
	p.many(t, 600)
	runOnce(t, log)
	p.sql(t, "UPDATE audit_leaf SET record = REPLACE(record, 'alice', 'mallory'), actor_name = 'mallory' WHERE idx IN (30, 590)")
	svc := p.service(log)
	all := list(t, svc, audit.Filter{})
	for _, r := range all {
		forged := r.Index == 30 || r.Index == 590
		if (r.Damaged != "") != forged || forged && (r.Entry.Action != "" || r.Entry.Actor.Name != "") {
			t.Errorf("entry %d: %q %+v", r.Index, r.Damaged, r.Entry)
		}
	}
	p.refuses(t)
	if got := list(t, svc, audit.Filter{Actor: "mallory"}); len(got) != 2 || got[0].Damaged == "" {
		t.Errorf("found by the forged name: %+v", got)
	}
	if len(findings) != 1 || !audit.Contradicted(findings[0]) {
		t.Errorf("told of %v", findings)
	}
}

func TestAnOperatorAcceptsLostContents(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	log := p.log(t)
	p.many(t, 400)
	runOnce(t, log)
	svc := p.service(log)
	eraseBoth(t, svc, []int64{50, 51}, "request 2026-17")
	p.sql(t, "UPDATE audit_leaf SET record = REPLACE(record, 'alice', 'mallory') WHERE idx = 30")
	p.sql(t, "UPDATE audit_leaf SET record = NULL, salt = NULL WHERE idx = 31")
	p.sql(t, "UPDATE audit_leaf SET outcome = 'done' WHERE idx = 32")
	p.sql(t, "UPDATE audit_leaf SET action = '', actor_id = '' WHERE idx = 50")
	log = p.log(t)
	wantFault(t, log.Start(t.Context()), fault.Conflict, "entry")
	if ok, err := log.Accept(t.Context(), "the disk was bad; nobody has a backup"); err != nil || !ok {
		t.Fatal(ok, err)
	}
	if err := sweepAll(t, log, 1000); err != nil {
		t.Fatal(err)
	}
	svc = p.service(log)
	report, err := audit.Verify(bytes.NewReader(export(t, svc)), audit.VerifyOptions{PublicKey: log.PublicKey()})
	if err != nil {
		t.Fatal(err)
	}
	var lost []int64
	for _, e := range report.Erasures {
		for _, one := range e.Entries {
			if e.Lost {
				lost = append(lost, one.Index)
			}
		}
	}
	if !slices.Equal(lost, []int64{30, 31}) || report.Erased != 4 {
		t.Errorf("lost %v: %+v", lost, report.Erasures)
	}
	refused := 0
	for _, r := range list(t, svc, audit.Filter{Outcome: audit.Refused}) {
		if r.Damaged != "" {
			t.Errorf("%+v", r)
		}
		refused++
	}
	if refused != 398 { // what was lost says nothing; the changed column is as the entry says again
		t.Errorf("%d refusals", refused)
	}
	if log = p.log(t); log.Start(t.Context()) != nil {
		t.Error("it does not start again")
	}
	log.Stop()
}

func TestErasingTakesTwoPeople(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	log := p.log(t)
	svc := p.service(log)
	p.change(t, audit.Entry{Project: "wind", Action: "subject.read", Object: "subject bob"})
	p.change(t, audit.Entry{Project: "wind", Action: "member.grant", Object: "grant bob"})
	p.change(t, audit.Entry{Project: "wind", Action: "model.approve", Object: "model m@1"})
	runOnce(t, log)
	all := list(t, svc, audit.Filter{})
	subject, grant := all[len(all)-3].Index, all[len(all)-2].Index

	robot := identity.With(t.Context(), identity.Principal{Kind: identity.Service, ID: "svc_1"})
	_, err := svc.RequestErasure(robot, []int64{subject}, "why")
	wantFault(t, err, fault.PermissionDenied, "two people")
	for _, index := range []int64{0, grant, grant + 1} {
		_, err := svc.RequestErasure(alice(t.Context()), []int64{subject, index}, "why")
		wantFault(t, err, fault.PermissionDenied, "cannot be erased")
	}
	_, err = svc.RequestErasure(alice(t.Context()), []int64{9999}, "why")
	wantFault(t, err, fault.NotFound, "9999")

	e, err := svc.RequestErasure(alice(t.Context()), []int64{subject}, "request 2026-17")
	if err != nil {
		t.Fatal(err)
	}
	_, err = svc.ApproveErasure(alice(t.Context()), e.ID)
	wantFault(t, err, fault.PermissionDenied, "two people")
	_, err = svc.ApproveErasure(robot, e.ID)
	wantFault(t, err, fault.PermissionDenied, "two people")
	if got := list(t, svc, audit.Filter{Object: "subject bob"}); len(got) != 1 {
		t.Fatalf("it is gone: %v", got)
	}
	if w, err := svc.RejectErasure(alice(t.Context()), e.ID); err != nil || w.State != audit.ErasureWithdrawn {
		t.Fatalf("%+v, %v", w, err)
	}
	_, err = svc.ApproveErasure(carol(t.Context()), e.ID)
	wantFault(t, err, fault.Conflict, "already withdrawn")
	eraseBoth(t, svc, []int64{subject}, "request 2026-18")

	// The entry of the erasure, and the one of the request, stay.
	for _, r := range list(t, svc, audit.Filter{Action: audit.ActionErase}) {
		_, err := svc.RequestErasure(alice(t.Context()), []int64{r.Index}, "why")
		wantFault(t, err, fault.PermissionDenied, "cannot be erased")
	}
	if requests, _, err := svc.Erasures(alice(t.Context()), ""); err != nil || len(requests) != 2 || requests[0].State != audit.ErasureDone || requests[0].DecidedBy != "usr_2" {
		t.Errorf("%+v, %v", requests, err)
	}
	if err := sweepAll(t, log, 100); err != nil {
		t.Error(err)
	}
	if err := sweepAll(t, p.log(t), 100); err != nil {
		t.Error(err)
	}
	report, err := audit.Verify(bytes.NewReader(export(t, svc)), audit.VerifyOptions{})
	if err != nil || len(report.Erasures) != 1 || report.Erasures[0].Entries[0].Index != subject || report.Erasures[0].Entries[0].Actor.Name != "alice" {
		t.Errorf("%+v, %v", report, err)
	}

	// Without the entry of the erasure the blank is not believed.
	p.sql(t, fmt.Sprintf("UPDATE audit_leaf SET record = NULL, salt = NULL WHERE idx = %d", report.Erasures[0].Index))
	if err := sweepAll(t, p.log(t), 100); !audit.Contradicted(err) {
		t.Error("an erased erasure was not found")
	}
}

// Entries that releases before this one erased are named by their erasure, without time,
// actor and action.
func TestErasuresOfEarlierReleases(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	log := p.log(t)
	p.many(t, 5)
	p.change(t, audit.Entry{Action: audit.ActionErase, Object: "audit log", Reason: "request 2025-3", Detail: map[string]any{"entries": []int64{3, 4}, "erased": 2}})
	p.change(t, audit.Entry{Action: audit.ActionErase, Outcome: audit.Refused, Detail: map[string]any{"entries": []int64{5}}})
	runOnce(t, log)
	const blank = "UPDATE audit_leaf SET salt = NULL, record = NULL, project = '', actor_id = '', actor_name = '', action = '', object = '', outcome = '' WHERE idx"
	p.sql(t, blank+" IN (3, 4)")
	if err := sweepAll(t, log, 100); err != nil {
		t.Fatal(err)
	}
	svc := p.service(log)
	report, err := audit.Verify(bytes.NewReader(export(t, svc)), audit.VerifyOptions{})
	if err != nil || report.Erased != 2 || len(report.Erasures) != 1 || report.Erasures[0].Reason != "request 2025-3" {
		t.Errorf("%+v, %v", report, err)
	}
	var b bytes.Buffer
	if err := svc.ExportProject(alice(t.Context()), "wind", &b); err != nil {
		t.Fatal(err)
	}
	p.sql(t, blank+" = 5")
	if err := sweepAll(t, log, 100); !audit.Contradicted(err) {
		t.Error("a refused erasure names a blank")
	}
}

func TestAProjectsExport(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	log := p.log(t)
	svc := p.service(log)
	p.many(t, 520)
	p.change(t, audit.Entry{Project: "sun", Action: "job.submit", Object: "job secret-of-sun"})
	runOnce(t, log)
	eraseBoth(t, svc, []int64{40, 41}, "request 2026-17")
	var b bytes.Buffer
	if err := svc.ExportProject(alice(t.Context()), "wind", &b); err != nil {
		t.Fatal(err)
	}
	whole := b.Bytes()
	if bytes.Contains(whole, []byte("secret-of-sun")) || bytes.Contains(whole, []byte("d@38\"")) {
		t.Error("it tells of another project, or of what was erased")
	}
	report, err := audit.Verify(bytes.NewReader(whole), audit.VerifyOptions{PublicKey: log.PublicKey()})
	if err != nil || report.Project != "wind" || report.Entries != 522 || report.Erased != 2 || len(report.Erasures) != 1 {
		t.Fatalf("%+v, %v", report, err)
	}
	lines := bytes.SplitAfter(whole, []byte("\n"))
	for name, forged := range map[string][]byte{
		"without an entry":      bytes.Join(append(append([][]byte{}, lines[:7]...), lines[8:]...), nil),
		"with an entry twice":   bytes.Join(append(append([][]byte{}, lines[:8]...), lines[7:]...), nil),
		"with another record":   bytes.Replace(whole, []byte("no role"), []byte("no rule"), 1),
		"of another project":    bytes.ReplaceAll(whole, []byte(`"project":"wind"`), []byte(`"project":"wynd"`)),
		"cut short":             whole[:len(whole)/2],
		"with a line behind it": append(append([]byte{}, whole...), '\n'),
	} {
		if _, err := audit.Verify(bytes.NewReader(forged), audit.VerifyOptions{PublicKey: log.PublicKey()}); !fault.Is(err, fault.Invalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	p.denied = audit.ActionExport
	wantFault(t, svc.ExportProject(t.Context(), "wind", &b), fault.PermissionDenied, `"wind"`)
}

// docs/reference/audit.md says how a leaf, a root and a proof are made. This follows it
// with nothing of the package.
func TestTheDocumentedFormulas(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	log := p.log(t)
	p.many(t, 37)
	runOnce(t, log)
	svc := p.service(log)
	type line struct {
		Index      *int64
		Leaf, Salt []byte
		Record     json.RawMessage
		Checkpoint string
		Proof      [][]byte
	}
	read := func(b []byte) (lines []line) {
		for l := range bytes.Lines(b) {
			var one line
			if err := json.Unmarshal(l, &one); err != nil {
				t.Fatal(err)
			}
			lines = append(lines, one)
		}
		return lines
	}
	sum := func(parts ...[]byte) []byte {
		h := sha256.Sum256(bytes.Join(parts, nil))
		return h[:]
	}
	var tree func(leaves [][]byte) []byte
	tree = func(leaves [][]byte) []byte {
		if len(leaves) == 1 {
			return sum([]byte{0}, leaves[0])
		}
		k := 1
		for 2*k < len(leaves) {
			k *= 2
		}
		return sum([]byte{1}, tree(leaves[:k]), tree(leaves[k:]))
	}
	var leaves [][]byte
	roots := 0
	for _, l := range read(export(t, svc)) {
		switch {
		case l.Index != nil:
			m := hmac.New(sha256.New, l.Salt)
			m.Write(l.Record)
			if !bytes.Equal(m.Sum(nil), l.Leaf) {
				t.Errorf("the leaf of entry %d", *l.Index)
			}
			leaves = append(leaves, l.Leaf)
		case l.Checkpoint != "":
			text := strings.Split(l.Checkpoint, "\n")
			if text[1] != strconv.Itoa(len(leaves)) || text[2] != base64.StdEncoding.EncodeToString(tree(leaves)) {
				t.Errorf("the checkpoint of %s entries", text[1])
			}
			roots++
		}
	}
	if roots == 0 {
		t.Error("no checkpoint was compared")
	}
	var b bytes.Buffer
	if err := svc.ExportProject(alice(t.Context()), "wind", &b); err != nil {
		t.Fatal(err)
	}
	proven := 0
	lines := read(b.Bytes())
	text := strings.Split(lines[1].Checkpoint, "\n")
	var size int64
	if _, err := fmt.Sscan(text[1], &size); err != nil {
		t.Fatal(err)
	}
	for _, l := range lines[2:] {
		if l.Index == nil {
			continue
		}
		// RFC 9162, 2.1.3.2.
		fn, sn, r := *l.Index, size-1, sum([]byte{0}, l.Leaf)
		for _, p := range l.Proof {
			if fn&1 == 1 || fn == sn {
				r = sum([]byte{1}, p, r)
				for fn&1 == 0 && fn != 0 {
					fn, sn = fn>>1, sn>>1
				}
			} else {
				r = sum([]byte{1}, r, p)
			}
			fn, sn = fn>>1, sn>>1
		}
		if sn != 0 || base64.StdEncoding.EncodeToString(r) != text[2] {
			t.Errorf("the proof of entry %d", *l.Index)
		}
		proven++
	}
	if proven != 38 {
		t.Errorf("%d proofs", proven)
	}
}

// BenchmarkSweep is the time to verify a whole log; ns/entry × 10⁶ is that of 10⁶ entries.
func BenchmarkSweep(b *testing.B) {
	p, log, n := benchPlace(b)
	defer func() { _ = p.db.Close() }()
	for b.Loop() {
		if err := sweepAll(b, log, 1<<20); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/entry")
}

// BenchmarkList is a page of 100 proven entries.
func BenchmarkList(b *testing.B) {
	p, log, _ := benchPlace(b)
	defer func() { _ = p.db.Close() }()
	svc := p.service(log)
	for b.Loop() {
		if _, _, err := svc.List(alice(b.Context()), audit.Filter{Project: "wind"}, 100, ""); err != nil {
			b.Fatal(err)
		}
	}
}

func benchPlace(b *testing.B) (*place, *audit.Sequencer, int) {
	b.Helper()
	p, err := openPlace(b.Context(), b.TempDir())
	if err != nil {
		b.Fatal(err)
	}
	log, err := p.openLog(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	const n = 20_000
	p.many(b, n)
	if _, err := log.RunOnce(b.Context()); err != nil {
		b.Fatal(err)
	}
	return p, log, n
}
