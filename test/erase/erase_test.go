// Package erase plants the values of one person in every place of a real server
// that keeps rows of persons, erases the person with kill -9 in the middle, and
// looks for the values in every file of the data directory; then it restores backups
// that still have them, by hand and by `falaj restore`. The same search finds the
// values of others, and these are exactly as they were.
package erase

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf16"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/falaj-ml/falaj/client"
	"github.com/falaj-ml/falaj/test/live"
)

// row is one of somebody's, with values that are nowhere else.
type row struct {
	who, word string
	whole     int64
	real      float64
}

// plant draws rows of one customer.
func plant(dice *rand.Rand, who string, rows int) (out []row) {
	for range rows {
		out = append(out, row{
			who: who, word: fmt.Sprintf("%016x%016x", dice.Uint64(), dice.Uint64()),
			whole: int64(dice.Uint64()>>1 | 1<<61), real: (1 + dice.Float64()) * 1e100,
		})
	}
	return out
}

func csv(rows ...[]row) string {
	var b strings.Builder
	b.WriteString("customer,seen,word,whole,real\n")
	for i, r := range slices.Concat(rows...) {
		fmt.Fprintf(&b, "%s,2013-01-01T00:%02d:%02dZ,%s,%d,%s\n", r.who, i/60%60, i%60, r.word, r.whole, strconv.FormatFloat(r.real, 'g', -1, 64))
	}
	return b.String()
}

// needles are values as files could have them.
func needles(rows []row) map[string][]byte {
	out := map[string][]byte{}
	for i, r := range rows {
		add := func(name string, b []byte) { out[fmt.Sprintf("%s of row %d", name, i)] = b }
		for what, text := range map[string]string{"key": r.who, "word": r.word} {
			add(what, []byte(text))
			add("a piece of the "+what, []byte(text[8:24]))
			var little, big []byte
			for _, u := range utf16.Encode([]rune(text)) {
				little, big = binary.LittleEndian.AppendUint16(little, u), binary.BigEndian.AppendUint16(big, u)
			}
			add(what+" in UTF-16", little[:32])
			add(what+" in UTF-16, big-endian", big[:32])
		}
		add("whole number", binary.LittleEndian.AppendUint64(nil, uint64(r.whole)))
		add("whole number, big-endian", binary.BigEndian.AppendUint64(nil, uint64(r.whole)))
		add("whole number in digits", []byte(strconv.FormatInt(r.whole, 10)))
		add("number", binary.LittleEndian.AppendUint64(nil, math.Float64bits(r.real)))
		add("number, big-endian", binary.BigEndian.AppendUint64(nil, math.Float64bits(r.real)))
		add("number in digits", []byte(strconv.FormatFloat(r.real, 'g', -1, 64)[:15]))
	}
	return out
}

// search says in which files of a directory each needle is.
func search(t *testing.T, dir string, needles map[string][]byte) map[string][]string {
	t.Helper()
	found, files := live.Search(t, dir, needles)
	if files < 20 {
		t.Fatalf("only %d files were looked through", files)
	}
	return found
}

const manifests = `
{api_version: falaj/v1, kind: Entity, name: customer, project: PROJECT, spec: {}}
---
{api_version: falaj/v1, kind: Dataset, name: orders, project: PROJECT, spec: {classification: confidential, columns: [{name: customer, type: string}, {name: whole, type: int64}, {name: real, type: float64}]}}
---
{api_version: falaj/v1, kind: Dataset, name: firsts, project: PROJECT, spec: {protection: open, entities: {customer: {customer: customer}}, expectations: [{check: unique, column: customer, otherwise: quarantine}]}}
---
{api_version: falaj/v1, kind: Dataset, name: visits, project: PROJECT, spec: {protection: open, entities: {customer: {customer: customer}}, columns: [{name: customer, type: string}, {name: whole, type: int64}, {name: real, type: float64}]}}
---
{api_version: falaj/v1, kind: Entity, name: deal, project: PROJECT, spec: {}}
---
{api_version: falaj/v1, kind: Dataset, name: deals, project: PROJECT, spec: {entities: {customer: {customer: customer}}, columns: [{name: deal, type: string}, {name: customer, type: string}, {name: word, type: string}]}}
---
{api_version: falaj/v1, kind: Dataset, name: bystander, project: PROJECT, spec: {entities: {customer: {}}, columns: [{name: customer, type: string}, {name: whole, type: int64}, {name: real, type: float64}]}}
---
{api_version: falaj/v1, kind: Dataset, name: purchases, project: PROJECT, spec: {columns: [{name: customer, type: string}, {name: at, type: timestamp}, {name: word, type: string}]}}
`

const view = `
api_version: falaj/v1
kind: FeatureView
name: facts
project: PROJECT
spec:
  source: {dataset: orders}
  entities: [customer]
  timestamp: seen
  features: [{name: word, type: string}, {name: whole, type: int64}, {name: real, type: float64}]
---
{api_version: falaj/v1, kind: FeatureService, name: facts, project: PROJECT, spec: {features: ["facts:whole"]}}
---
{api_version: falaj/v1, kind: FeatureView, name: deals, project: PROJECT, spec: {source: {dataset: deals}, entities: [deal], timestamp: seen, features: [{name: customer, type: string}, {name: word, type: string}]}}
---
{api_version: falaj/v1, kind: FeatureView, name: spending, project: PROJECT, spec: {source: {dataset: purchases, stream: {push: {}}}, entities: [customer], timestamp: at,
  aggregations: [{name: bought, function: count, window: 1d}, {name: words, function: last, column: word, type: string, window: 1d}]}}
`

const deployment = `
api_version: falaj/v1
kind: Deployment
name: churn
project: PROJECT
spec:
  model: churn
  version: champion
  features: {service: facts, input: X, columns: [hours, "facts:whole"]}
  prediction: {output: probabilities, index: 1}
  automation: false
`

// shop is a server with the rows of three customers in every place.
type shop struct {
	*live.Project
	t      *testing.T
	person string                      // who is to be erased
	theirs map[string][]row            // by customer
	all    []row                       // of the others
	found  map[string]map[string]int64 // rows of the others, before
}

func open(t *testing.T) *shop {
	t.Helper()
	if testing.Short() {
		t.Skip("runs a real server")
	}
	dir := t.TempDir()
	server := live.New(t, dir)
	server.Env = append(server.Env, "FALAJ_ERASURES_LEDGER="+filepath.Join(dir, "elsewhere", "erasures.jsonl"))
	server.Up(t)
	s := &shop{Project: server.Project(t, "shop"), t: t, theirs: map[string][]row{}}
	dice := rand.New(rand.NewPCG(7, 2013))
	names := []string{}
	for range 3 {
		who := fmt.Sprintf("%016x%016x", dice.Uint64(), dice.Uint64())
		names = append(names, who)
		s.theirs[who] = plant(dice, who, 8)
	}
	s.person = names[1]
	s.all = slices.Concat(s.theirs[names[0]], s.theirs[names[2]])
	s.Apply(manifests)
	mine := s.theirs[s.person]
	// The person is in old and new versions, sealed and open; the newest orders do not
	// have it in the first rows only.
	s.Import("orders", csv(s.all[:4], mine[:2]))
	s.Import("orders", csv(s.all, mine))
	s.Import("visits", csv(mine, s.all))
	s.Import("firsts", csv(s.all[:1], mine, s.all[1:])) // all but three rows are in quarantine
	s.Import("deals", dealsOf(s.all, mine))
	s.jobs(csv(s.all, mine))
	s.Apply(view)
	s.Must(s.C.Do(t.Context(), http.MethodPost, s.Path("training-sets"), map[string]any{
		"name": "learn", "spine": "SELECT customer, seen AS at, word AS label FROM orders", "timestamp": "at", "labels": []string{"label"}, "features": []string{"facts:word", "facts:whole", "facts:real"},
	}, nil))
	s.Materialise("facts")
	// A view of another entity has the person's key as a feature.
	s.Materialise("deals")
	// A stream with windows: one event was folded and cut, others are in the log.
	s.Materialise("spending")
	s.purchase(append(names, s.person)...)
	push := map[string][]any{"customer": {}, "seen": {}, "word": {}, "whole": {}, "real": {}}
	for _, r := range slices.Concat(s.all[:1], mine[:1]) {
		for column, x := range map[string]any{"customer": r.who, "seen": "2013-02-01T00:00:00Z", "word": r.word, "whole": r.whole, "real": r.real} {
			push[column] = append(push[column], x)
		}
	}
	var writer client.Object
	s.Must(s.C.Do(t.Context(), http.MethodPost, "/api/v1/tokens", map[string]any{"project": s.Name, "name": "writer", "role": "engineer"}, &writer))
	s.Must(s.Foreign(s.ClientWith(t, writer.Text("secret")), http.MethodPost, "/push", map[string]any{"push_source_name": "facts", "df": push, "to": "online"}, nil))
	s.Register("churn", s.Logistic())
	s.Apply(deployment)
	s.Loaded()
	for _, who := range [][]string{{s.person}, {names[0], s.person}, {names[2]}} {
		_, err := s.Infer(s.C, "churn", nil, live.Tensor("customer", "BYTES", who, len(who)), live.Tensor("hours", "FP64", make([]float64, len(who)), len(who)))
		s.Must(err)
	}
	return s
}

// madeByJobs are datasets that jobs made of rows of persons: of their data, of a table that
// they could read, and of a checkpoint.
var madeByJobs = []string{"copied", "reread", "resumed"}

func (s *shop) jobs(rows string) {
	s.t.Helper()
	// Of itself nobody's: only what else the job could read tells whose the rows are.
	s.Import("bystander", rows)
	run := func(spec map[string]any, script string) string {
		s.t.Helper()
		spec["command"] = []string{"/bin/sh", "-ec", script}
		var job client.Object
		s.Must(s.C.Do(s.t.Context(), http.MethodPost, s.Path("jobs"), map[string]any{"name": "copy", "spec": spec}, &job))
		s.Ends(job.Text("id"), "succeeded")
		return job.Text("id")
	}
	leave := func(from string) string {
		return `mkdir "$FALAJ_OUTPUT_DIR/rows"; cp "` + from + `"/*.parquet "$FALAJ_OUTPUT_DIR/rows"`
	}
	run(map[string]any{"into": "copied", "data": map[string]string{"rows": "orders"}}, leave("$FALAJ_DATA_ROWS"))
	run(map[string]any{"into": "reread", "data": map[string]string{"rows": "bystander"}, "tables": []string{"visits"}}, leave("$FALAJ_DATA_ROWS"))
	first := run(map[string]any{"data": map[string]string{"rows": "orders"}}, `cp -r "$FALAJ_DATA_ROWS" "$FALAJ_CHECKPOINT_DIR/.a"; mv "$FALAJ_CHECKPOINT_DIR/.a" "$FALAJ_CHECKPOINT_DIR/a"`)
	run(map[string]any{"into": "resumed", "resume": first}, leave("$FALAJ_CHECKPOINT_DIR/a"))
}

// dealsOf are rows under keys of deals.
func dealsOf(rows ...[]row) string {
	var b strings.Builder
	b.WriteString("deal,customer,seen,word\n")
	for i, r := range slices.Concat(rows...) {
		fmt.Fprintf(&b, "%s,%s,2013-01-01T00:00:%02dZ,%s\n", deal(r), r.who, i%60, r.word)
	}
	return b.String()
}

func deal(r row) string { return "deal-" + r.word[:6] }

// purchase sends an event of each customer, and waits until it is online.
func (s *shop) purchase(who ...string) {
	s.t.Helper()
	var events []map[string]any
	for _, w := range who {
		events = append(events, map[string]any{"customer": w, "at": time.Now().UTC().Format(time.RFC3339Nano), "word": s.theirs[w][0].word})
	}
	s.Must(s.C.Do(s.t.Context(), http.MethodPost, s.Path("feature-views/spending/push"), map[string]any{"events": events}, nil))
	s.Eventually("events are online", func() (bool, error) {
		got := s.ask("spending:bought", "customer", s.person)
		return strings.Contains(got, "PRESENT"), errors.New(got)
	})
}

// online is what the online store says of a customer.
func (s *shop) online(who string) string { return s.ask("facts:word", "customer", who) }

func (s *shop) ask(feature, entity, key string) string {
	s.t.Helper()
	var got client.Object
	s.Must(s.C.Do(s.t.Context(), http.MethodPost, s.Path("features/online"), map[string]any{
		"features": []string{feature}, "entities": []any{map[string]any{entity: key}},
	}, &got))
	return fmt.Sprint(got)
}

// rows is how many of somebody's are found, by the kind of place.
func (s *shop) rows(who string) map[string]int64 {
	s.t.Helper()
	var f struct {
		Places []struct {
			Kind string
			Rows int64
		}
	}
	s.Must(s.C.Do(s.t.Context(), http.MethodPost, s.Path("erasures/search"), map[string]any{"entity": "customer", "keys": []string{who}}, &f))
	n := map[string]int64{}
	for _, p := range f.Places {
		n[p.Kind] += p.Rows
	}
	return n
}

// words are those of the rows that a query finds.
func (s *shop) words(sql string) (out []string) {
	s.t.Helper()
	var got struct {
		Rows [][]string `json:"rows"`
	}
	s.Must(s.C.Do(s.t.Context(), http.MethodPost, s.Path("query"), map[string]any{"sql": sql}, &got))
	for _, r := range got.Rows {
		out = append(out, r[0])
	}
	return out
}

func words(rows []row) (out []string) {
	for _, r := range rows {
		out = append(out, r.word)
	}
	slices.Sort(out)
	return out
}

// begin asks for the erasure and returns when it is on record.
func (s *shop) begin() (id string) {
	s.t.Helper()
	var e client.Object
	s.Must(s.C.Do(s.t.Context(), http.MethodPost, s.Path("erasures/erase"), map[string]any{"entity": "customer", "keys": []string{s.person}, "reason": "request 2026-17"}, &e))
	return e.Text("id")
}

func (s *shop) ends(id string) (e client.Object) {
	s.t.Helper()
	s.Eventually("erasure "+id+" is done", func() (bool, error) {
		e = nil
		err := s.C.Do(s.t.Context(), http.MethodGet, s.Path("erasures/"+id), nil, &e)
		return e.Text("state") == "done" || e.Text("state") == "done_in_part", err
	})
	return e
}

// gone checks that nothing of the person is there, and everything of the others.
func (s *shop) gone(when string) {
	s.t.Helper()
	for _, name := range madeByJobs {
		if diff := gocmp.Diff(words(s.all), s.words("SELECT word FROM "+name+" ORDER BY word")); diff != "" {
			s.t.Errorf("%s: %s, which a job made (- expected + found):\n%s", when, name, diff)
		}
	}
	for sql, want := range map[string][]row{
		"SELECT word FROM orders ORDER BY word": s.all, "SELECT word FROM visits ORDER BY word": s.all, "SELECT label FROM learn ORDER BY label": s.all,
	} {
		if diff := gocmp.Diff(words(want), s.words(sql)); diff != "" {
			s.t.Errorf("%s: %s (- expected + found):\n%s", when, sql, diff)
		}
	}
	if got := s.online(s.person); !strings.Contains(got, "NOT_FOUND") {
		s.t.Errorf("%s: the online store knows the person: %s", when, got)
	}
	for _, r := range []row{s.all[0], s.all[len(s.all)-1]} {
		if got := s.online(r.who); !strings.Contains(got, "PRESENT") {
			s.t.Errorf("%s: the online store does not know somebody else: %s", when, got)
		}
	}
	if got := s.ask("spending:bought", "customer", s.person); !strings.Contains(got, "NOT_FOUND") {
		s.t.Errorf("%s: the windows know the person: %s", when, got)
	}
	for _, r := range []row{s.all[0], s.all[len(s.all)-1]} {
		if got := s.ask("spending:words", "customer", r.who); !strings.Contains(got, s.theirs[r.who][0].word) {
			s.t.Errorf("%s: the windows do not know somebody else: %s", when, got)
		}
	}
	s.Eventually(when+": what another entity's view made of the person's rows is made again", func() (bool, error) {
		got := s.ask("deals:customer", "deal", deal(s.theirs[s.person][3]))
		return !strings.Contains(got, s.person) && strings.Contains(got, "NOT_FOUND"), errors.New(got)
	})
	if got := s.ask("deals:customer", "deal", deal(s.all[3])); !strings.Contains(got, s.all[3].who) {
		s.t.Errorf("%s: of somebody else's deal there is %s", when, got)
	}
	if found := s.rows(s.person); len(found) > 0 {
		s.t.Errorf("%s: the person is found in %v", when, found)
	}
	for who, want := range s.found {
		if diff := gocmp.Diff(want, s.rows(who)); diff != "" {
			s.t.Errorf("%s: rows of somebody else (- before + now):\n%s", when, diff)
		}
	}
	s.inNoFile(when)
}

func (s *shop) inNoFile(when string) {
	s.t.Helper()
	for name, in := range search(s.t, s.Data, needles(s.theirs[s.person])) {
		s.t.Errorf("%s: the person's %s is in %v", when, name, in)
	}
	kinds := map[string]bool{}
	for name := range search(s.t, s.Data, needles(s.all)) {
		kinds[strings.Split(name, " of row")[0]] = true
	}
	for _, want := range []string{"key", "word", "whole number", "number"} {
		if !kinds[want] {
			s.t.Errorf("%s: the search finds no %s of others in an open dataset: it would find nothing", when, want)
		}
	}
}

func TestAPersonIsErased(t *testing.T) {
	s := open(t)
	// Before: the person is found, and said to be, without a change.
	if len(search(t, s.Data, needles(s.theirs[s.person]))) == 0 {
		t.Fatal("the search does not find the person in an open dataset")
	}
	out := s.Run(0, "erase", "customer", s.person, "--dry-run")
	for _, place := range []string{"orders@1", "orders@2", "visits@1", "firsts@1", "learn@1", "copied@1", "reread@1", "resumed@1", "facts@1", "churn"} {
		if !strings.Contains(out, place) {
			t.Errorf("the dry run does not name %s:\n%s", place, out)
		}
	}
	if got := s.words("SELECT word FROM orders"); len(got) != len(s.all)+len(s.theirs[s.person]) {
		t.Fatalf("the dry run removed rows: %d are left", len(got))
	}

	s.found = map[string]map[string]int64{}
	for who := range s.theirs {
		if who != s.person {
			s.found[who] = s.rows(who)
		}
	}
	if got := s.ask("deals:customer", "deal", deal(s.theirs[s.person][3])); !strings.Contains(got, s.person) {
		t.Fatalf("another entity's view does not have the person: %s", got)
	}

	// Backups, which have the person.
	s.Must(s.Stop())
	backup, whole := filepath.Join(t.TempDir(), "backup"), filepath.Join(t.TempDir(), "whole")
	s.Must(exec.Command("cp", "-a", s.Data, backup).Run())
	if said, code := s.Command(t.Context(), "backup", whole, "--data", s.Data); code != 0 {
		t.Fatalf("%d\n%s", code, said)
	}
	restore := func() {
		t.Helper()
		_ = s.Kill() // or it has ended
		s.Must(os.RemoveAll(s.Data))
		s.Must(exec.Command("cp", "-a", backup, s.Data).Run())
	}
	ledger := filepath.Join(filepath.Dir(s.Data), "elsewhere", "erasures.jsonl")

	// kill -9, each time a bit later.
	var id string
	var e client.Object
	for i := range 5 {
		restore()
		if err := os.Remove(ledger); err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
		s.Again()
		id = s.begin()
		wait := time.NewTimer(time.Duration(i) * 40 * time.Millisecond)
		<-wait.C
		s.Must(s.Kill())
		s.Again()
		e = s.ends(id)
		s.gone(fmt.Sprintf("after kill number %d", i))
	}
	if text := fmt.Sprint(e); strings.Contains(text, s.person) || e.Text("pseudonym") == "" {
		t.Errorf("the certificate names the person: %s", text)
	}
	for _, place := range []string{"orders@1", "orders@2", "visits@1", "firsts@1", "learn@1", "copied@1", "reread@1", "resumed@1", "facts@1", "churn"} {
		if !strings.Contains(fmt.Sprint(e["places"]), place) {
			t.Errorf("the certificate does not name %s: %v", place, e["places"])
		}
	}
	// What jobs left of the rows is named, and so it is not plainly done.
	if e.Text("state") != "done_in_part" {
		t.Errorf("the state is %s", e.Text("state"))
	}
	for _, kind := range []string{"job logs", "checkpoints"} {
		if !strings.Contains(fmt.Sprint(e["unsearched"]), kind) {
			t.Errorf("the certificate does not name %s as not searched: %v", kind, e["unsearched"])
		}
	}
	if out := s.Run(4, "dataset", "preview", "orders@1"); !strings.Contains(out, "orders@") {
		t.Errorf("what stands for orders@1 is not said:\n%s", out)
	}
	s.Must(s.Kill())
	s.inNoFile("after kill -9")

	// The backup is restored: the ledger, which is elsewhere, erases again.
	restore()
	s.Again()
	s.gone("after a restore")
	e = s.ends(id)
	if e.Text("restored") != "true" || e.Text("reason") != "request 2026-17" {
		t.Errorf("after a restore: %v", e)
	}
	if out := s.Run(0, "erase", "show", id); strings.Contains(out, s.person) {
		t.Errorf("the key is shown:\n%s", out)
	}

	// So it does after `falaj restore`, into another directory.
	s.Must(s.Stop())
	to := live.New(t, "")
	to.Env, to.Token = s.Env, s.Token
	if said, code := to.Command(t.Context(), "restore", whole, "--data", to.Data); code != 0 || strings.Contains(said, "No erasure ledger") {
		t.Fatalf("%d\n%s", code, said)
	}
	to.Up(t)
	other := *s
	other.Project = &live.Project{Server: to, T: t, C: to.Client(t), Name: s.Name}
	other.gone("after falaj restore")
	if e := other.ends(id); e.Text("restored") != "true" {
		t.Errorf("after falaj restore: %v", e)
	}

	// The source still has the person: the import says so, whose it is not.
	file := filepath.Join(t.TempDir(), "orders.csv")
	s.Must(os.WriteFile(file, []byte(csv(s.all, s.theirs[s.person])), 0o600))
	said := other.Run(0, "dataset", "import", "orders", file)
	if !strings.Contains(said, "contains rows of previously erased persons of entity customer: 1") || !strings.Contains(said, id) || strings.Contains(said, s.person) {
		t.Errorf("an import that brings the person again:\n%s", said)
	}
	s.Must(to.Stop())

	// An older ledger than the database knows of is refused.
	s.Must(os.Remove(ledger))
	if err := s.Start(t.Context()); err == nil || !strings.Contains(err.Error()+s.LogTail(2000), "erasure ledger") {
		t.Errorf("without its ledger the server starts: %v", err)
	}
}
