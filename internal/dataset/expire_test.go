package dataset_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/dataset"
	"github.com/falaj-ml/falaj/internal/dataset/child"
	"github.com/falaj-ml/falaj/internal/dataset/datasettest"
	"github.com/falaj-ml/falaj/internal/dataset/expectation"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/deletion"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	nameof "github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/store"
)

const day = 24 * time.Hour

// texts are what others say.
type texts []string

func (ts texts) Mentions(_ context.Context, _ *store.Tx, _ nameof.Name, word string, each func(by, text string)) error {
	for _, t := range ts {
		if strings.Contains(t, word) {
			each("job job_1", t)
		}
	}
	return nil
}

// states are those of a dataset's versions, oldest first: a, r or d.
func states(t *testing.T, h *datasettest.Harness, name string) string {
	t.Helper()
	vs, _, err := h.Definitions.Versions(datasettest.Context(t), project, name, dataset.Page{})
	if err != nil {
		t.Fatal(err)
	}
	var out []byte
	for _, v := range slices.Backward(vs) {
		out = append(out, v.State[0])
	}
	return string(out)
}

func expires(t *testing.T, h *datasettest.Harness, want int) {
	t.Helper()
	if n, err := h.Maintenance.Expire(t.Context(), project); err != nil || n != want {
		t.Fatalf("%d versions were removed, not %d: %v", n, want, err)
	}
}

// Old versions go when they may, but never one that something cites.
func TestExpire(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	said := texts{`{"ref":"dataset t@2"}`, `SELECT * FROM "not-t@4"`, `t@44`}
	h := datasettest.New(t, func(c *dataset.Config) {
		c.Now = func() time.Time { return now }
		c.Citations = []dataset.Citations{&said}
	})
	h.Declare(t, "t", dataset.Spec{
		Protection: dataset.Open, Keep: dataset.Keep{Versions: 2, For: "1d"}, Expectations: []expectation.Rule{{Check: expectation.Between, Column: "a", Max: 100}},
	})
	var files []string
	for i := range 7 {
		now = now.Add(day)
		a := i
		if i == 2 {
			a = 1000
		}
		v, err := imports(t, h, "t", fmt.Sprintf("a\n%d\n", a))
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, v.Files[0].Key)
	}
	rows, err := h.Reads.Open(datasettest.Context(t), dataset.OpenRequest{Project: project, Ref: ref(t, "t@1")})
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Release()
	if _, err := h.Writes.Create(datasettest.Context(t), dataset.CreateRequest{
		Project: project, Name: "made", Rows: rows, Parents: []dataset.Ref{ref(t, "t@1")}, Producer: dataset.Producer{Kind: "sql", Text: "SELECT"},
	}); err != nil {
		t.Fatal(err)
	}

	expires(t, h, 1) // the rejected one; 4 is no longer among the newest two for exactly a day
	now = now.Add(time.Hour)
	expires(t, h, 1)
	if got := states(t, h, "t"); got != "aaddaaa" {
		t.Errorf("versions: %s", got)
	}
	left := h.Files.List(t)
	for i, key := range files {
		if there := slices.Contains(left, key); there != (i != 2 && i != 3) {
			t.Errorf("the file of version %d is there: %v", i+1, there)
		}
	}
	if got := rowsOf(t, h, "t@1"); !slices.Equal(got, []string{"0"}) {
		t.Errorf("t@1 has %v", got)
	}
	got, err := h.Tables.Table(datasettest.Context(t), project, "t")
	var m struct{ Snapshots []any }
	if err == nil {
		err = json.Unmarshal(got.Metadata, &m)
	}
	if err != nil || len(m.Snapshots) != 5 {
		t.Errorf("the table has %d snapshots, %v", len(m.Snapshots), err)
	}

	// What nothing cites any more goes; the newest two stay for ever.
	if err := h.Definitions.Delete(datasettest.Context(t), project, dataset.Ref{Name: "made"}, deletion.Request{}); err != nil {
		t.Fatal(err)
	}
	expires(t, h, 1)
	now = now.Add(365 * day)
	expires(t, h, 1)
	said = nil
	expires(t, h, 1)
	expires(t, h, 0)
	if got := states(t, h, "t"); got != "dddddaa" {
		t.Errorf("versions: %s", got)
	}
}

// A redaction is as old as what it stands for, and is held by who names that.
func TestExpireAfterARedaction(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	said := texts{"orders@1"}
	h := datasettest.New(t, func(c *dataset.Config) {
		c.Now = func() time.Time { return now }
		c.Citations = []dataset.Citations{&said}
	})
	spec := dataset.Spec{Keep: dataset.Keep{Versions: 2, For: "1d"}}
	for i := range 5 {
		buyer := "amal"
		if i < 2 {
			buyer = "carla"
		}
		h.Put(t, "orders", spec, fmt.Sprintf("buyer,n\n%s,%d\nbadr,%d\n", buyer, i, i))
	}
	if got := redact(t, h, carla("orders")); !slices.Equal(got, []string{"orders@1 1 orders@6", "orders@2 1 orders@7"}) {
		t.Fatalf("redacted %v", got)
	}
	now = now.Add(30 * day)
	expires(t, h, 2) // 7, which is the second, and 3
	if got := states(t, h, "orders"); got != "dddaaad" {
		t.Errorf("versions: %s", got)
	}
	said = nil
	expires(t, h, 1)
	if got := states(t, h, "orders"); got != "dddaadd" {
		t.Errorf("versions: %s", got)
	}
	if got := rowTexts(t, h, "orders"); !slices.Equal(got, []string{"amal4", "badr4"}) {
		t.Errorf("orders means %v", got)
	}
}

// What was made of a version holds also what stands for it.
func TestExpireAfterARedactionKeepsWhatWasUsed(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	h := datasettest.New(t, func(c *dataset.Config) { c.Now = func() time.Time { return now } })
	spec := dataset.Spec{Keep: dataset.Keep{Versions: 1, For: "1d"}}
	h.Put(t, "orders", spec, "buyer,n\ncarla,1\namal,2\n")
	rows, err := h.Reads.Open(datasettest.Context(t), dataset.OpenRequest{Project: project, Ref: ref(t, "orders@1")})
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Release()
	if _, err := h.Writes.Create(datasettest.Context(t), dataset.CreateRequest{
		Project: project, Name: "made", Rows: rows, Parents: []dataset.Ref{ref(t, "orders@1")}, Producer: dataset.Producer{Kind: "sql", Text: "SELECT"},
	}); err != nil {
		t.Fatal(err)
	}
	h.Put(t, "orders", spec, "buyer,n\namal,3\n")
	if got := redact(t, h, carla("orders")); !slices.Contains(got, "orders@1 1 orders@3") {
		t.Fatalf("redacted %v", got)
	}
	now = now.Add(30 * day)
	expires(t, h, 0)
	if got := states(t, h, "orders"); got != "daa" {
		t.Errorf("versions: %s", got)
	}
}

func TestKeep(t *testing.T) {
	h := datasettest.New(t, nil)
	for _, k := range []dataset.Keep{{Versions: -1}, {For: "1d"}, {Versions: 1, For: "1m"}, {Versions: 1, For: "soon"}, {Versions: 1, For: "-1d"}} {
		if err := (dataset.Spec{Keep: k}).Validate(); !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), "spec.keep") {
			t.Errorf("%+v: %v", k, err)
		}
	}
	one := h.Put(t, "t", dataset.Spec{}, "a\n1\n")
	keep := dataset.ApplyRequest{Project: project, Name: "t", Spec: dataset.Spec{Keep: dataset.Keep{Versions: 1}}}
	// Whoever may not delete versions may not let them be deleted.
	h.Policy.Deny(func(a policy.Action, _ policy.Object) bool { return a == dataset.ActionDelete })
	_, _, err := h.Definitions.Apply(datasettest.Context(t), keep)
	wantFault(t, err, fault.PermissionDenied, "spec.keep")
	h.Policy.Deny(nil)
	h.Declare(t, "t", keep.Spec)
	h.Policy.Deny(func(a policy.Action, _ policy.Object) bool { return a == dataset.ActionDelete })
	keep.Spec.Description = "what was kept stays so"
	h.Declare(t, "t", keep.Spec)
	// It is no other content for that.
	if v, err := imports(t, h, "t", "a\n1\n"); err != nil || v.ID != one.ID {
		t.Errorf("the same file is %s, %v", v.Ref(), err)
	}
}

// stopped is where a service is stopped: at a step of a key that has a word in it,
// in a commit or, without one, in the removal of old versions.
type stopped struct {
	Dir, Step, Key string
	Commit         *dataset.TableCommit
	Now            time.Time
}

// stop waits there to be killed.
func stop(stdin io.Reader, stdout io.Writer) error {
	var r stopped
	if err := json.NewDecoder(stdin).Decode(&r); err != nil {
		return err
	}
	h, err := datasettest.Build(r.Dir, func(c *dataset.Config) { c.Now = func() time.Time { return r.Now } })
	if err != nil {
		return err
	}
	h.Files.Hook = func(step, key string) error {
		if step == r.Step && strings.Contains(key, r.Key) {
			fmt.Fprintln(stdout, "now")
			select {}
		}
		return nil
	}
	ctx := identity.With(context.Background(), identity.Principal{Kind: identity.User, ID: "usr_1"})
	if r.Commit != nil {
		_, err = h.Tables.CommitTable(ctx, project, "t", *r.Commit)
	} else {
		_, err = h.Maintenance.Expire(ctx, project)
	}
	return errors.Join(err, errors.New("it was not stopped"))
}

// kill kills a service where it is stopped, and gives the one after it.
func kill(t *testing.T, r stopped) *datasettest.Harness {
	t.Helper()
	b, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	p, err := modeOf("stop").Launch(t.Context(), "", child.LaunchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	killed(t, p.Command(), string(b))
	return datasettest.At(t, r.Dir, func(c *dataset.Config) { c.Now = func() time.Time { return r.Now } })
}

// A commit of small files is one file. Killed anywhere, it is there whole or not
// at all, and the client's repetition ends it.
func TestKilledWhileCommitting(t *testing.T) {
	for _, at := range []struct {
		step, key string
		done      bool
	}{{"commit", "data-", false}, {"commit", "snapshot-", false}, {"commit", "metadata.json", false}, {"remove", "/t/data/", true}} {
		t.Run(at.step+" "+at.key, func(t *testing.T) {
			dir := t.TempDir()
			h := datasettest.At(t, dir, nil)
			e := newEngine(t, h, h.Files.Dir, dataset.Spec{})
			id, files := e.current()
			for i := range 3 {
				files = append(files, e.rows(fmt.Sprintf("%s/data/%d.parquet", e.uri, i), int64(3+i)))
			}
			c := e.commit(id, files...)
			if err := h.DB.Close(); err != nil {
				t.Fatal(err)
			}
			e.h = kill(t, stopped{Dir: dir, Step: at.step, Key: at.key, Commit: &c, Now: time.Now()})
			want := "1 2"
			if at.done {
				want = "1 2 3 4 5"
			}
			if got := strings.Join(rowsOf(t, e.h, "t"), " "); got != want {
				t.Errorf("after the kill: %s, want %s", got, want)
			}
			if err := e.send(c); err != nil {
				t.Errorf("the commit again: %v", err)
			}
			if got := strings.Join(rowsOf(t, e.h, "t"), " "); got != "1 2 3 4 5" {
				t.Errorf("in the end: %s", got)
			}
			if v, err := e.h.Definitions.Version(datasettest.Context(t), project, ref(t, "t@2")); err != nil || len(v.Files) != 1 {
				t.Errorf("%d files, %v", len(v.Files), err)
			}
			wholeOnly(t, e.h, "t")
		})
	}
}

// wholeOnly reports files below a version's place that are of no version.
func wholeOnly(t *testing.T, h *datasettest.Harness, name string) {
	t.Helper()
	vs, _, err := h.Definitions.Versions(datasettest.Context(t), project, name, dataset.Page{})
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range h.Files.List(t) {
		if strings.Contains(key, "/dsv_") && !slices.ContainsFunc(vs, func(v dataset.Version) bool { return v.State != dataset.Deleted && strings.Contains(key, string(v.ID)) }) {
			t.Errorf("%s is of no version", key)
		}
	}
}

// A full disk costs a commit, and nothing else: the table is as it was, the files
// of the client are there, and the same commit is taken when there is room.
func TestDiskFullInACommit(t *testing.T) {
	for _, full := range []string{"data-", "snapshot-", "metadata.json"} {
		h := datasettest.New(t, nil)
		e := newEngine(t, h, h.Files.Dir, dataset.Spec{})
		id, files := e.current()
		for i := range 40 {
			files = append(files, e.rows(fmt.Sprintf("%s/data/%d.parquet", e.uri, i), int64(3+i)))
		}
		c := e.commit(id, files...)
		before := h.Files.List(t)
		h.Files.Hook = func(step, key string) error {
			if step == "commit" && strings.Contains(key, full) {
				return &os.PathError{Op: "write", Path: key, Err: syscall.ENOSPC}
			}
			return nil
		}
		if err := e.send(c); !errors.Is(err, syscall.ENOSPC) {
			t.Fatalf("%s: %v", full, err)
		}
		if after := h.Files.List(t); !slices.Equal(before, after) {
			t.Errorf("%s: files before %q, after %q", full, before, after)
		}
		if got := strings.Join(rowsOf(t, h, "t"), " "); got != "1 2" {
			t.Errorf("%s: rows %s", full, got)
		}
		h.Files.Hook = nil
		if err := e.send(c); err != nil {
			t.Fatalf("%s: with room: %v", full, err)
		}
		v, err := h.Definitions.Version(datasettest.Context(t), project, dataset.Ref{Name: "t"})
		if err != nil || v.Rows != 42 || len(v.Files) != 1 || len(e.left()) > 0 {
			t.Errorf("%s: %d rows in %d files, left %v, %v", full, v.Rows, len(v.Files), e.left(), err)
		}
	}
}

// Killed while it removes versions, nothing else is lost, and the next one ends it.
func TestKilledWhileExpiring(t *testing.T) {
	for _, at := range []struct {
		step, key string
		goes      int // after it
	}{{"commit", "metadata.json", 2}, {"remove", "/dsv_", 0}} {
		dir := t.TempDir()
		h := datasettest.At(t, dir, nil)
		h.Declare(t, "t", dataset.Spec{Protection: dataset.Open, Keep: dataset.Keep{Versions: 1, For: "1h"}})
		for i := range 3 {
			if _, err := imports(t, h, "t", fmt.Sprintf("a\n%d\n", i)); err != nil {
				t.Fatal(err)
			}
		}
		if err := h.DB.Close(); err != nil {
			t.Fatal(err)
		}
		h = kill(t, stopped{Dir: dir, Step: at.step, Key: at.key, Now: time.Now().Add(2 * time.Hour)})
		expires(t, h, at.goes)
		if got := states(t, h, "t"); got != "dda" {
			t.Errorf("versions: %s", got)
		}
		if got := rowsOf(t, h, "t"); !slices.Equal(got, []string{"2"}) {
			t.Errorf("rows %v", got)
		}
		wholeOnly(t, h, "t")
	}
}
