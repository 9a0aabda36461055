package dataset_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow/array"
	gocmp "github.com/google/go-cmp/cmp"

	"github.com/falaj-ml/falaj/internal/dataset"
	"github.com/falaj-ml/falaj/internal/dataset/datasetsql"
	"github.com/falaj-ml/falaj/internal/dataset/datasettest"
	"github.com/falaj-ml/falaj/internal/dataset/expectation"
	"github.com/falaj-ml/falaj/internal/dataset/parser"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/deletion"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/store"
)

// kept is what a job left for made, of some rows.
func kept(t *testing.T, change func(*dataset.Left)) dataset.Left {
	t.Helper()
	l := dataset.Left{Project: project, Dataset: "made", Job: "job_1", Open: func(context.Context) (array.RecordReader, error) { return someRows(t, 7), nil }}
	change(&l)
	return l
}

func parentsOf(v dataset.Version) (refs []string) {
	for _, p := range v.Lineage.Parents {
		refs = append(refs, p.Ref)
	}
	return refs
}

// What a job makes has as parents all that it could read: its data, every version of its
// tables but those that others were made of, and what came by a checkpoint.
func TestJobInputs(t *testing.T) {
	h := datasettest.New(t, func(c *dataset.Config) { c.Guard = &anywhere{} })
	ctx := datasettest.Context(t)
	open := dataset.Spec{Protection: dataset.Open, Residency: residency.Of("home", "AE")}
	h.Put(t, "given", dataset.Spec{Residency: residency.Of("home", "AE")}, "a\n1\n")
	h.Put(t, "before", dataset.Spec{Residency: residency.Of("home"), Classification: dataset.Confidential}, "a\n10\n")
	h.Put(t, "late", open, "a\n1\n")
	h.Put(t, "late", open, "a\n2\n") // not made of the one before
	if _, err := h.Writes.Create(ctx, dataset.CreateRequest{Project: project, Name: "late", Rows: someRows(t, 3), Parents: []dataset.Ref{ref(t, "late@2")}}); err != nil {
		t.Fatal(err)
	}
	narrow := open
	narrow.Residency = residency.Of("home")
	h.Put(t, "late", narrow, "a\n4\n") // late@4, which what the job makes may not be where
	own := dataset.JobInputs{Versions: []dataset.Ref{ref(t, "given@1")}, Tables: []dataset.Ref{ref(t, "late@2"), {Name: "nowhere"}}, Zones: residency.Of("home", "AE")}
	for name, c := range map[string]struct {
		read []dataset.JobInputs
		want []string
	}{
		"data and a table":     {[]dataset.JobInputs{own}, []string{"given@1", "late@1", "late@3"}},
		"by a checkpoint, too": {[]dataset.JobInputs{own, {Versions: []dataset.Ref{ref(t, "before@1"), ref(t, "given@1")}}}, []string{"before@1", "given@1", "late@1", "late@3"}},
		"wherever they may be": {[]dataset.JobInputs{{Tables: own.Tables}}, []string{"late@1", "late@3", "late@4"}},
		"nothing":              {nil, nil},
	} {
		v, err := h.Transforms.Keep(ctx, kept(t, func(l *dataset.Left) { l.Read = c.read }))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if diff := gocmp.Diff(c.want, parentsOf(v)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		if name == "by a checkpoint, too" && (v.Residency.String() != "home" || v.Classification != dataset.Confidential) {
			t.Errorf("%s: it may be in %s and is %s", name, v.Residency, v.Classification)
		}
	}
	// An attempt that sends rows itself makes them of the same.
	attempt := datasettest.New(t, nil)
	attempt.Inputs = []dataset.JobInputs{{Tables: []dataset.Ref{ref(t, "late@1")}}, {Versions: []dataset.Ref{ref(t, "before@1")}}}
	attempt.Put(t, "before", dataset.Spec{}, "a\n1\n")
	attempt.Put(t, "late", dataset.Spec{Protection: dataset.Open}, "a\n1\n")
	attempt.Put(t, "late", dataset.Spec{Protection: dataset.Open}, "a\n2\n")
	as := identity.With(t.Context(), identity.Principal{Kind: identity.Attempt, ID: "att_1", Project: project, Scopes: []string{"dataset.query:late", "dataset.import:late"}})
	v, err := attempt.Writes.Import(as, dataset.ImportRequest{Project: project, Name: "late", Filename: "late.csv", Body: strings.NewReader("a\n3\n")})
	if diff := gocmp.Diff([]string{"before@1", "late@1", "late@2"}, parentsOf(v)); err != nil || diff != "" {
		t.Errorf("of an attempt: %v (-want +got):\n%s", err, diff)
	}

	// What was deleted while the job ran was read, perhaps.
	for _, gone := range []string{"given@1", "late@3", "late@1"} {
		if err := h.Definitions.Delete(ctx, project, ref(t, gone), deletion.Request{Yes: true}); err != nil {
			t.Fatal(err)
		}
	}
	v, err = h.Transforms.Keep(ctx, kept(t, func(l *dataset.Left) { l.Read = []dataset.JobInputs{own} }))
	if diff := gocmp.Diff([]string{"given@1", "late@1", "late@3"}, parentsOf(v)); err != nil || diff != "" {
		t.Errorf("of what was deleted since: %v (-want +got):\n%s", err, diff)
	}
	after := own
	after.Since = time.Now()
	v, err = h.Transforms.Keep(ctx, kept(t, func(l *dataset.Left) { l.Read = []dataset.JobInputs{after} }))
	if diff := gocmp.Diff([]string{"given@1", "late@2"}, parentsOf(v)); err != nil || diff != "" {
		t.Errorf("of a job that began after that: %v (-want +got):\n%s", err, diff)
	}
	h.Declare(t, "late", dataset.Spec{Expectations: []expectation.Rule{{Check: expectation.NotNull, Column: "b"}}})
	if v, err := imports(t, h, "late", "a\n1\n"); err != nil || v.State != dataset.Rejected {
		t.Fatal(v.State, err)
	}
	_, err = h.Transforms.Keep(ctx, kept(t, func(l *dataset.Left) { l.Read = []dataset.JobInputs{{Versions: []dataset.Ref{ref(t, "late@5")}}} }))
	wantFault(t, err, fault.Conflict, "late@5 is rejected")
}

// counted counts the lists of versions that are read.
type counted struct {
	datasetsql.Store
	lists int
}

func (c *counted) Versions(ctx context.Context, tx *store.Tx, d dataset.ID, state dataset.State, below int64, limit int) ([]dataset.Version, error) {
	c.lists++
	return c.Store.Versions(ctx, tx, d, state, below, limit)
}

// Of a table with many versions no more are held than a version has parents: what others
// were made of goes at once, and what is over the limit ends it.
func TestManyVersionsCouldBeRead(t *testing.T) {
	versions := &counted{}
	h := datasettest.New(t, func(c *dataset.Config) { c.Store = versions })
	ctx := datasettest.Context(t)
	for _, name := range []string{"appended", "replaced"} {
		h.Put(t, name, dataset.Spec{Protection: dataset.Open}, "a\n1\n")
		v, err := h.Definitions.Version(ctx, project, ref(t, name+"@1"))
		if err != nil {
			t.Fatal(err)
		}
		if err := h.DB.Update(ctx, string(project), func(ctx context.Context, tx *store.Tx) error {
			for v.Number < 2500 {
				was := v
				v.Number++
				v.ID = dataset.VersionID(fmt.Sprintf("dsv_%s%d", name, v.Number))
				v.Fingerprint = string(v.ID)
				if v.Lineage.Parents = nil; name == "appended" {
					v.Lineage.Parents = []dataset.Parent{{Ref: was.Ref().String(), ID: was.ID}}
				}
				if err := versions.InsertVersion(ctx, tx, v); err != nil {
					return err
				}
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	of := func(name string) []dataset.JobInputs {
		return []dataset.JobInputs{{Tables: []dataset.Ref{{Name: name, Number: 2500}}}}
	}
	v, err := h.Transforms.Keep(ctx, kept(t, func(l *dataset.Left) { l.Read = of("appended") }))
	if diff := gocmp.Diff([]string{"appended@2500"}, parentsOf(v)); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	versions.lists = 0
	wantFault(t, h.Transforms.Receives(ctx, project, "made", of("replaced")), fault.Invalid, "more than 1000 versions")
	if versions.lists > 3 {
		t.Errorf("%d lists of 500 were read", versions.lists)
	}
}

// The rows of a person are found in what a job could have made of them, and nothing is
// made of a table from which a person was erased after the job began.
func TestErasureFromJobInputs(t *testing.T) {
	h := datasettest.New(t, nil)
	ctx := datasettest.Context(t)
	h.Put(t, "orders", dataset.Spec{Protection: dataset.Open}, bought(0, 9))
	h.Put(t, "orders", dataset.Spec{Protection: dataset.Open}, "buyer,n\namal,1\n")
	h.Put(t, "copied", dataset.Spec{}, bought(0, 6))
	left := func(since time.Time) dataset.Left {
		return kept(t, func(l *dataset.Left) {
			l.Read = []dataset.JobInputs{{Tables: []dataset.Ref{ref(t, "orders@2")}, Since: since}}
			l.Open = func(ctx context.Context) (array.RecordReader, error) {
				return h.Reads.Open(datasettest.Context(t), dataset.OpenRequest{Project: project, Ref: ref(t, "copied@1")})
			}
		})
	}
	begun := time.Date(2013, 1, 1, 0, 0, 0, 0, time.UTC)
	if _, err := h.Transforms.Keep(ctx, left(begun)); err != nil {
		t.Fatal(err)
	}
	if diff := gocmp.Diff([]string{"made@1 2 made@2", "orders@1 3 orders@3"}, redact(t, h, carla("orders"))); diff != "" {
		t.Errorf("redacted (-want +got):\n%s", diff)
	}
	_, err := h.Transforms.Keep(ctx, left(begun))
	wantFault(t, err, fault.Gone, "table orders", "orders@1 contained rows of an erased person")
	wantFault(t, h.Transforms.Receives(ctx, project, "made", left(begun).Read), fault.Gone, "table orders")
	stands, err := h.Definitions.Version(ctx, project, ref(t, "orders@3"))
	if err != nil {
		t.Fatal(err)
	}
	v, err := h.Transforms.Keep(ctx, left(stands.Created))
	if diff := gocmp.Diff([]string{"orders@2", "orders@3"}, parentsOf(v)); err != nil || diff != "" {
		t.Errorf("of a job that began then: %v (-want +got):\n%s", err, diff)
	}
	// Whoever erases while the rows are parsed is not too late.
	h.Put(t, "orders", dataset.Spec{Protection: dataset.Open}, bought(9, 9))
	erased := left(stands.Created)
	open := erased.Open
	erased.Open = func(ctx context.Context) (array.RecordReader, error) {
		rows, err := open(ctx)
		return &atEnd{RecordReader: rows, then: func() { redact(t, h, later(carla("orders"))) }}, err
	}
	if v, err := h.Transforms.Keep(ctx, erased); !fault.Is(err, fault.Gone) && !fault.Is(err, fault.Unavailable) {
		t.Errorf("kept %v, %v", v.Ref(), err)
	}
}

// However an attempt sends the rows of a person that it read, none comes back by it after the
// person was erased, nor when that happens while they are on their way.
func TestErasureAndWhatAnAttemptSends(t *testing.T) {
	open := dataset.Spec{Protection: dataset.Open}
	for name, send := range map[string]func(context.Context, *datasettest.Harness, func()) error{
		"import": func(ctx context.Context, h *datasettest.Harness, meanwhile func()) error {
			_, err := h.Writes.Import(ctx, dataset.ImportRequest{Project: project, Name: "outs", Filename: "a.csv", Body: &late{strings.NewReader(bought(0, 6)), meanwhile}})
			return err
		},
		"create": func(ctx context.Context, h *datasettest.Harness, meanwhile func()) error {
			_, err := h.Writes.Create(ctx, dataset.CreateRequest{Project: project, Name: "outs", Rows: &atEnd{RecordReader: someRows(t, 1), then: meanwhile}})
			return err
		},
	} {
		for _, meanwhile := range []bool{false, true} {
			h := datasettest.New(t, nil)
			h.Put(t, "orders", open, bought(0, 9))
			h.Put(t, "orders", open, "buyer,n\namal,1\n")
			// The lineage leads from this one to orders@1, so that is no parent by itself.
			if _, err := h.Writes.Create(datasettest.Context(t), dataset.CreateRequest{Project: project, Name: "orders", Rows: someRows(t, 1), Parents: []dataset.Ref{ref(t, "orders@1")}}); err != nil {
				t.Fatal(err)
			}
			h.Put(t, "outs", open, "buyer,n\namal,1\n")
			h.Inputs = []dataset.JobInputs{{Tables: []dataset.Ref{ref(t, "orders@3"), ref(t, "outs@1")}, Since: time.Now()}}
			as := identity.With(t.Context(), identity.Principal{Kind: identity.Attempt, ID: "att_1", Project: project, Scopes: []string{"dataset.query:orders", "dataset.query:outs", "dataset.import:outs"}})
			erase := func() { redact(t, h, carla("orders")) }
			if !meanwhile {
				erase()
				erase = func() {}
			}
			wantFault(t, send(as, h, erase), fault.Gone, "table orders", "contained rows of an erased person")
			if d, err := h.Definitions.One(datasettest.Context(t), project, "outs"); err != nil || d.Latest != 1 {
				t.Errorf("%s, meanwhile %v: %d versions, %v", name, meanwhile, d.Latest, err)
			}
		}
	}
}

// late does something when it has been read.
type late struct {
	io.Reader
	then func()
}

func (l *late) Read(p []byte) (int, error) {
	n, err := l.Reader.Read(p)
	if err != nil && l.then != nil {
		l.then()
		l.then = nil
	}
	return n, err
}

// atEnd does something when the rows have been read.
type atEnd struct {
	array.RecordReader
	then func()
}

func (a *atEnd) Next() bool {
	more := a.RecordReader.Next()
	if !more && a.then != nil {
		a.then()
		a.then = nil
	}
	return more
}

// A dataset that was deleted after the job was submitted is not made again.
func TestADeletedDatasetStaysDeleted(t *testing.T) {
	h := datasettest.New(t, nil)
	ctx := datasettest.Context(t)
	h.Put(t, "made", dataset.Spec{}, "a\n1\n")
	if err := h.Definitions.Delete(ctx, project, ref(t, "made"), deletion.Request{}); err != nil {
		t.Fatal(err)
	}
	_, err := h.Transforms.Keep(ctx, kept(t, func(l *dataset.Left) { l.Asked = time.Now().Add(-time.Hour) }))
	wantFault(t, err, fault.Gone, "made was deleted while")
	_, err = h.Definitions.One(ctx, project, "made")
	wantFault(t, err, fault.NotFound)
	v, err := h.Transforms.Keep(ctx, kept(t, func(l *dataset.Left) { l.Asked = time.Now().Add(time.Hour) }))
	if err != nil || v.Number != 2 {
		t.Errorf("of a job that was submitted after that: %v, %v", v.Ref(), err)
	}
}

// What a job left is one import: it waits for its place before anything is read, and
// all its files together have the limits of one.
func TestWhatIsKeptIsAnImport(t *testing.T) {
	none := func(context.Context) (array.RecordReader, error) {
		t.Error("it was read")
		return nil, errors.New("read")
	}
	h := datasettest.New(t, func(c *dataset.Config) {
		c.Limits = dataset.Limits{Imports: 1, QueueTime: time.Millisecond, Upload: 100, Parser: parser.Limits{Rows: 3}}
	})
	ctx := datasettest.Context(t)
	if _, err := h.Transforms.Keep(ctx, kept(t, func(l *dataset.Left) {
		l.Bytes = 100
		l.Open = func(context.Context) (array.RecordReader, error) {
			_, err := h.Transforms.Keep(ctx, kept(t, func(l *dataset.Left) { l.Open = none }))
			wantFault(t, err, fault.Exhausted, "limit imports:")
			return someRows(t, 1, 2, 3), nil
		}
	})); err != nil {
		t.Error(err)
	}
	_, err := h.Transforms.Keep(ctx, kept(t, func(l *dataset.Left) { l.Bytes, l.Open = 101, none }))
	wantFault(t, err, fault.TooLarge, "101 bytes")
	small := datasettest.New(t, func(c *dataset.Config) { c.Limits = dataset.Limits{Parser: parser.Limits{Expanded: 1}} })
	for name, c := range map[string]struct {
		h    *datasettest.Harness
		rows array.RecordReader
	}{"rows": {h, twice(someRows(t, 1, 2))}, "bytes": {small, someRows(t, 1)}} {
		_, err = c.h.Transforms.Keep(ctx, kept(t, func(l *dataset.Left) {
			l.Open = func(context.Context) (array.RecordReader, error) { return c.rows, nil }
		}))
		wantFault(t, err, fault.TooLarge, "exceed the limit of one version")
		if !errors.Is(err, dataset.ErrRows) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// twice gives the only batch of a reader two times, as two files do.
func twice(rows array.RecordReader) array.RecordReader { return &again{RecordReader: rows} }

type again struct {
	array.RecordReader
	given int
}

func (a *again) Next() bool {
	a.given++
	return a.given == 1 && a.RecordReader.Next() || a.given == 2
}

// Rows that cannot be read are told from what else may be in the way.
func TestRowsThatCannotBeRead(t *testing.T) {
	h := datasettest.New(t, nil)
	ctx := datasettest.Context(t)
	dead := fault.New(fault.Exhausted, "the parser was killed").WithHint("Split it.")
	for name, open := range map[string]func(context.Context) (array.RecordReader, error){
		"at the beginning": func(context.Context) (array.RecordReader, error) { return nil, dead },
		"in the middle":    func(context.Context) (array.RecordReader, error) { return &broken{someRows(t, 1), dead}, nil },
	} {
		_, err := h.Transforms.Keep(ctx, kept(t, func(l *dataset.Left) { l.Open = open }))
		wantFault(t, err, fault.Exhausted, "the parser was killed")
		if !errors.Is(err, dataset.ErrRows) || fault.HintOf(err) != "Split it." {
			t.Errorf("%s: %v", name, err)
		}
	}
	_, err := h.Transforms.Keep(ctx, kept(t, func(l *dataset.Left) {
		l.Open = func(context.Context) (array.RecordReader, error) { return &broken{someRows(t, 1), nil}, nil }
	}))
	wantFault(t, err, fault.Internal, "cannot be read")
	if !errors.Is(err, dataset.ErrRows) {
		t.Errorf("a panic: %v", err)
	}
	full := errors.New("disk full")
	h.Files.Hook = func(string, string) error { return full }
	if _, err = h.Transforms.Keep(ctx, kept(t, func(*dataset.Left) {})); !errors.Is(err, full) || errors.Is(err, dataset.ErrRows) {
		t.Errorf("what is not of the rows: %v", err)
	}
	h.Files.Hook = nil
	told := errors.New("told")
	if _, err = h.Transforms.Keep(ctx, kept(t, func(l *dataset.Left) {
		l.Then = func(context.Context, *store.Tx, dataset.Version) error { return told }
	})); !errors.Is(err, told) {
		t.Errorf("what cannot be recorded was made: %v", err)
	}
	if vs, _, err := h.Definitions.Versions(ctx, project, "made", dataset.Page{}); err != nil || len(vs) != 0 {
		t.Errorf("%d versions, %v", len(vs), err)
	}
}

// broken gives its rows and ends in an error, or panics where there is none.
type broken struct {
	array.RecordReader
	err error
}

func (b *broken) Next() bool {
	if b.RecordReader.Next() {
		return true
	}
	if b.err == nil {
		panic("taken over")
	}
	return false
}

func (b *broken) Err() error { return b.err }

// Of derivations that run at once the one that began last makes the newest version,
// whenever it ends.
func TestDerivationsAreInTurn(t *testing.T) {
	h := datasettest.New(t, nil)
	ctx := datasettest.Context(t)
	derive := func(by string, rows array.RecordReader) error {
		_, err := h.Writes.Create(ctx, dataset.CreateRequest{Project: project, Name: "daily", Rows: rows, Producer: dataset.Producer{Kind: "query", ID: by, Digest: by}})
		return err
	}
	if err := derive("drv_2", someRows(t, 2)); err != nil {
		t.Fatal(err)
	}
	wantFault(t, derive("job_1", someRows(t, 1)), fault.Conflict, "daily@1 was made by a derivation that started later")
	if err := derive("job_3", someRows(t, 3)); err != nil {
		t.Error(err)
	}
	if d, err := h.Definitions.One(ctx, project, "daily"); err != nil || d.Accepted != 2 || d.Latest != 2 {
		t.Errorf("%d of %d, %v", d.Accepted, d.Latest, err)
	}
	// What stands for a version has its turn, and what is no derivation has none.
	h.Put(t, "orders", dataset.Spec{}, bought(0, 6))
	rows, err := h.Reads.Open(ctx, dataset.OpenRequest{Project: project, Ref: ref(t, "orders@1")})
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Release()
	if err := derive("drv_5", rows); err != nil {
		t.Fatal(err)
	}
	if done := redact(t, h, carla("daily")); len(done) != 1 {
		t.Fatal(done)
	}
	wantFault(t, derive("drv_4", someRows(t, 4)), fault.Conflict, "daily@4 was made by a derivation that started later")
	if _, err := h.Transforms.Keep(ctx, kept(t, func(l *dataset.Left) { l.Dataset = "daily" })); err != nil {
		t.Error(err)
	}
}

// Whoever submits a job learns by the verdicts what the expectations read.
func TestReceivesAsksWhatIsJudged(t *testing.T) {
	h := datasettest.New(t, nil)
	ctx := datasettest.Context(t)
	h.Put(t, "patients", dataset.Spec{}, "id\n7\n")
	h.Declare(t, "made", dataset.Spec{Expectations: []expectation.Rule{{Check: expectation.Refers, Column: "id", In: &expectation.Target{Dataset: "patients", Column: "id"}}}})
	if err := h.Transforms.Receives(ctx, project, "made", nil); err != nil {
		t.Fatal(err)
	}
	if err := h.Transforms.Receives(ctx, project, "absent", nil); err != nil {
		t.Fatal(err)
	}
	h.Policy.Deny(func(a policy.Action, o policy.Object) bool {
		return a == dataset.ActionQuery && strings.HasPrefix(o.Name, "patients")
	})
	wantFault(t, h.Transforms.Receives(ctx, project, "made", nil), fault.PermissionDenied, "patients")
	h.Policy.Deny(func(a policy.Action, o policy.Object) bool { return a == dataset.ActionImport })
	wantFault(t, h.Transforms.Receives(ctx, project, "absent", nil), fault.PermissionDenied)
}
