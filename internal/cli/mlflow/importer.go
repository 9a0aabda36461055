package mlflow

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/falaj-ml/falaj/client"
	"github.com/falaj-ml/falaj/internal/fault"
)

// Bounds of a batch: the server takes 4 MiB, and others of the project wait while it
// keeps one.
const (
	batchBytes  = 1 << 20
	batchPoints = 20_000
	batchItems  = 400
	maxItem     = 3 << 20
	maxNotes    = 1000 // told of; all are counted
	seenItems   = 1000
	maxKey      = 4096
	seriesBytes = 64 // of a series, beside its key and points
	copiers     = 4  // files beside each other
)

// Options say what of a source is brought.
type Options struct {
	Experiments []string  // patterns of names; none are all
	Since       time.Time // runs that began or ended from then on, or still run; zero is all
	DryRun      bool
	NoArtifacts bool
	// Progress hears how far it is: total is 0 where nobody knows.
	Progress func(what string, done, total int64)
}

// Target is where it goes.
type Target struct {
	Client  *client.Client
	Project string
}

func (t Target) path(rest string) string {
	return "/api/v1/projects/" + url.PathEscape(t.Project) + "/imports/mlflow" + rest
}

// Count is what became of things of a kind.
type Count struct {
	Created   int `json:"created"`
	Updated   int `json:"updated"`
	Unchanged int `json:"unchanged"`
	Skipped   int `json:"skipped"`
}

func (c *Count) add(result string) {
	switch result {
	case "created":
		c.Created++
	case "updated":
		c.Updated++
	case "unchanged":
		c.Unchanged++
	default:
		c.Skipped++
	}
}

// All is how many there were.
func (c *Count) All() int { return c.Created + c.Updated + c.Unchanged + c.Skipped }

// Note tells of a thing, or a part of it, that was left out, or is not as it was.
type Note struct {
	Kind string `json:"kind"`
	ID   string `json:"id"`
	What string `json:"what"`
}

// Report is what an import did.
type Report struct {
	Source       string  `json:"source"`
	Project      string  `json:"project"`
	DryRun       bool    `json:"dry_run"`
	Seconds      float64 `json:"seconds"`
	Experiments  Count   `json:"experiments"`
	Runs         Count   `json:"runs"`
	Points       int64   `json:"metric_points"` // of the runs that were created or updated
	LoggedModels Count   `json:"logged_models"`
	Models       Count   `json:"registered_models"`
	Versions     Count   `json:"model_versions"`
	Files        Count   `json:"files"`
	Bytes        int64   `json:"file_bytes"`

	Skipped          []Note `json:"skipped"` // the first of them
	SkippedCount     int    `json:"skipped_count"`
	Differences      []Note `json:"differences"`
	DifferencesCount int    `json:"differences_count"`
}

// importer is one import.
type importer struct {
	source Source
	target Target
	opts   Options

	mu     sync.Mutex // of report
	report Report

	origin      string           // names the source, whatever its address
	experiments map[int64]int64  // ours, by the source's
	models      map[string]Place // logged models that came
	runs        map[string]Place // runs that came
	places      []Place          // in the order in which they came

	uris         map[string]Place            // logged models that came, by where their artifacts are
	known        map[string]registeredBefore // registered models that came before, by name
	renames      map[string]string           // what models were called then, by their names of now
	results      map[string]string           // what became of registered models
	cameVersions map[string]bool             // versions by number and alias, "delay@3"
}

// Import brings what a source has. It may be repeated, also when it was cut off at
// any place: what came and has not changed is not sent again. An error is of the
// source or the server as a whole; the report says what came until then.
func Import(ctx context.Context, source Source, target Target, opts Options) (Report, error) {
	if opts.Progress == nil {
		opts.Progress = func(string, int64, int64) {}
	}
	i := &importer{
		source: source, target: target, opts: opts, experiments: map[int64]int64{}, models: map[string]Place{}, runs: map[string]Place{}, results: map[string]string{},
		report: Report{Source: source.String(), Project: target.Project, DryRun: opts.DryRun, Skipped: []Note{}, Differences: []Note{}},
	}
	start := time.Now()
	var err error
	for _, step := range []func(context.Context) error{i.bringExperiments, i.bringModels, i.bringRuns, i.bringFiles, i.bringRegistry, i.listLeftOut} {
		if err = step(ctx); err != nil {
			break
		}
	}
	i.report.Seconds = time.Since(start).Seconds()
	return i.report, err
}

// listLeftOut lists what of the source no import brings. An import of a part leaves out much
// more, which was asked for.
func (i *importer) listLeftOut(ctx context.Context) error {
	if i.part() {
		return nil
	}
	counts, err := i.source.LeftOut(ctx)
	for _, k := range leftOut {
		if n := counts[k.kind]; n > 0 {
			i.skip(k.kind, strconv.FormatInt(n, 10), errors.New(k.why))
		}
	}
	return err
}

// part reports whether a part of the source was asked for.
func (i *importer) part() bool { return len(i.opts.Experiments) > 0 || !i.opts.Since.IsZero() }

func (i *importer) skip(kind, id string, why error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	what := why.Error()
	if hint := fault.HintOf(why); hint != "" {
		what += ". " + hint
	}
	if i.report.SkippedCount++; len(i.report.Skipped) < maxNotes {
		i.report.Skipped = append(i.report.Skipped, Note{kind, clip(id), what})
	}
}

func (i *importer) differs(kind, id, format string, args ...any) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.report.DifferencesCount++; len(i.report.Differences) < maxNotes {
		i.report.Differences = append(i.report.Differences, Note{kind, clip(id), fmt.Sprintf(format, args...)})
	}
}

func clip(s string) string { return fault.Clip(s, 200) }

// valid leaves out pairs that are no text.
func (i *importer) valid(kind, id string, in Pairs) Pairs {
	return slices.DeleteFunc(in, func(p [2]string) bool {
		if utf8.ValidString(p[0]) && utf8.ValidString(p[1]) {
			return false
		}
		i.skip(kind, id, fmt.Errorf("%s is not valid UTF-8 text", clip(p[0])))
		return true
	})
}

// outcome is the server's word about an item.
type outcome struct {
	Kind       string   `json:"kind"`
	ID         string   `json:"id"`
	Result     string   `json:"result"`
	Reason     string   `json:"reason"`
	Experiment int64    `json:"experiment_id"`
	Lost       []string `json:"lost"`
	LostCount  int      `json:"lost_count"`
	Points     int      `json:"points"`
}

// send sends a batch of items of one list.
func (i *importer) send(ctx context.Context, list string, items []json.RawMessage) ([]outcome, error) {
	var b bytes.Buffer
	from, err := json.Marshal(i.source.String())
	if err != nil {
		return nil, err
	}
	fmt.Fprintf(&b, `{"from":%s,"dry_run":%t,%q:[`, from, i.opts.DryRun, list)
	for n, item := range items {
		if n > 0 {
			b.WriteByte(',')
		}
		b.Write(item)
	}
	b.WriteString("]}")
	var answer struct {
		Items []outcome `json:"items"`
	}
	header := http.Header{"Content-Type": {"application/json"}}
	resp, err := i.target.Client.Send(ctx, http.MethodPost, i.target.path(""), bytes.NewReader(b.Bytes()), header)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
		return nil, err
	}
	if len(answer.Items) != len(items) {
		return nil, fmt.Errorf("the server answered %d of %d items", len(answer.Items), len(items))
	}
	for _, o := range answer.Items {
		if o.Result == "refused" {
			why := o.Reason
			if list == "experiments" {
				why += without
			}
			i.skip(o.Kind, o.ID, errors.New(why))
		}
		for _, lost := range o.Lost {
			i.skip("part of "+o.Kind, o.ID, errors.New(lost))
		}
		if more := o.LostCount - len(o.Lost); more > 0 {
			i.skip("part of "+o.Kind, o.ID, fmt.Errorf("and %d more", more))
		}
	}
	return answer.Items, nil
}

// withDigest is an item with the digest of itself, and more fields.
func withDigest(head []byte, digest, more string) json.RawMessage {
	return append(append(slices.Clone(head[:len(head)-1]), `,"digest":"`+digest+`"`+more...), '}')
}

func digestOf(parts ...[]byte) string {
	h := sha256.New()
	for _, p := range parts {
		h.Write(p)
		h.Write([]byte{0})
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}

// without says what is left out with an experiment.
const without = ". Its runs and logged models were not imported either"

func (i *importer) bringExperiments(ctx context.Context) error {
	all, err := i.source.Experiments(ctx)
	if err != nil {
		return err
	}
	if len(all) > 0 && all[0].Created > 0 { // the first one is as old as the server
		i.origin = fmt.Sprintf("%d@%d", all[0].ID, all[0].Created)
	}
	var wanted []Experiment
	for _, e := range all {
		if !i.wants(e.Name) {
			continue
		}
		if !utf8.ValidString(e.Name) {
			i.report.Experiments.Skipped++
			i.skip("experiment", strconv.FormatInt(e.ID, 10), errors.New("its name is not valid UTF-8 text"+without))
			continue
		}
		e.Tags = i.valid("experiment", e.Name, e.Tags).sorted()
		wanted = append(wanted, e)
	}
	if len(wanted) == 0 && len(i.opts.Experiments) > 0 {
		return fault.New(fault.NotFound, "no experiment of %s is called %s", i.source, strings.Join(i.opts.Experiments, " or "))
	}
	var items []json.RawMessage
	var part []Experiment
	flush := func() error {
		if len(items) == 0 {
			return nil
		}
		outcomes, err := i.send(ctx, "experiments", items)
		if err != nil {
			return err
		}
		for n, o := range outcomes {
			i.report.Experiments.add(o.Result)
			if o.Result == "refused" {
				continue
			}
			i.experiments[part[n].ID] = o.Experiment
			if o.Experiment != part[n].ID && !i.opts.DryRun {
				i.differs("experiment", part[n].Name, "its number is %d here, and was %d: others have that", o.Experiment, part[n].ID)
			}
		}
		items, part = nil, nil
		return nil
	}
	size := 0
	for _, e := range wanted {
		head, err := json.Marshal(e)
		if err != nil {
			return err
		}
		if len(head) > maxItem {
			i.report.Experiments.Skipped++
			i.skip("experiment", e.Name, fmt.Errorf("it has %d bytes of tags; at most %d are taken%s", len(head), maxItem, without))
			continue
		}
		if len(items) == 20 || size+len(head) > batchBytes {
			if err := flush(); err != nil {
				return err
			}
			size = 0
		}
		items, part, size = append(items, withDigest(head, digestOf(head), "")), append(part, e), size+len(head)
	}
	return flush()
}

func (i *importer) wants(name string) bool {
	return len(i.opts.Experiments) == 0 || slices.ContainsFunc(i.opts.Experiments, func(pattern string) bool { return matches(pattern, name) })
}

// matches reports whether a name is of a pattern, whose * and ? also stand for
// slashes.
func matches(pattern, name string) bool {
	expr := strings.NewReplacer(`\*`, ".*", `\?`, ".").Replace(regexp.QuoteMeta(pattern))
	re, err := regexp.Compile("(?s)^" + expr + "$")
	return err == nil && re.MatchString(name)
}

func (i *importer) experimentIDs() []int64 {
	ids := make([]int64, 0, len(i.experiments))
	for id := range i.experiments {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

// seen asks with which digests things came before.
func (i *importer) seen(ctx context.Context, list string, ids []string) (map[string]string, error) {
	out := map[string]string{}
	for part := range slices.Chunk(ids, seenItems) {
		var answer map[string]map[string]string
		if err := i.target.Client.Do(ctx, http.MethodPost, i.target.path("/seen"), map[string]any{list: part}, &answer); err != nil {
			return nil, err
		}
		maps.Copy(out, answer[list])
	}
	return out, nil
}

func (i *importer) bringModels(ctx context.Context) error {
	return i.source.Models(ctx, i.experimentIDs(), func(models []Model) error {
		var items []json.RawMessage
		var sent []Model
		size := 0
		flush := func() error {
			if len(items) == 0 {
				return nil
			}
			outcomes, err := i.send(ctx, "logged_models", items)
			if err != nil {
				return err
			}
			for n, o := range outcomes {
				i.report.LoggedModels.add(o.Result)
				if o.Result != "refused" {
					i.models[sent[n].ID] = Place{Model: sent[n].ID, URI: sent[n].URI}
					if sent[n].Stage == "active" {
						i.places = append(i.places, i.models[sent[n].ID])
					}
				}
			}
			items, sent, size = nil, nil, 0
			return nil
		}
		for _, m := range models {
			m.Experiment = i.experiments[m.Experiment]
			m.Params, m.Tags = i.valid("logged model", m.ID, m.Params).sorted(), i.valid("logged model", m.ID, m.Tags).sorted()
			m.sortMetrics()
			head, err := json.Marshal(m)
			if err != nil {
				return err
			}
			if len(head) > maxItem {
				i.report.LoggedModels.Skipped++
				i.skip("logged_model", m.ID, fmt.Errorf("it has %d bytes of params, tags and metrics; at most %d are taken", len(head), maxItem))
				continue
			}
			if size+len(head) > batchBytes || len(items) == batchItems {
				if err := flush(); err != nil {
					return err
				}
			}
			items, sent, size = append(items, withDigest(head, digestOf(head), "")), append(sent, m), size+len(head)
		}
		return flush()
	})
}

func (i *importer) bringRuns(ctx context.Context) error {
	total, err := i.source.Count(ctx)
	if err != nil {
		return err
	}
	if len(i.opts.Experiments) > 0 || !i.opts.Since.IsZero() {
		total = 0
	}
	// One reads while the other sends; the channel holds what is read ahead.
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	chunks := make(chan []Run, 2)
	var wait sync.WaitGroup
	wait.Go(func() {
		defer close(chunks)
		err := i.source.Runs(ctx, i.experimentIDs(), func(runs []Run) error {
			runs = slices.DeleteFunc(runs, i.tooOld)
			return i.read(ctx, runs, chunks)
		})
		if err != nil {
			cancel(err)
		}
	})
	b := runBatch{importer: i, results: map[string]string{}}
	done := int64(0)
	for chunk := range chunks {
		for _, r := range chunk {
			if err := b.add(ctx, r); err != nil {
				cancel(err)
				break
			}
			done++
			i.opts.Progress("runs", done, total)
		}
		if ctx.Err() != nil {
			break
		}
	}
	for range chunks {
		continue // until the reader has ended
	}
	wait.Wait()
	if err := context.Cause(ctx); err != nil {
		return err
	}
	return b.end(ctx)
}

func (i *importer) tooOld(r Run) bool {
	since := i.opts.Since.UnixMilli()
	return !i.opts.Since.IsZero() && r.Start < since && r.End < since && r.ended()
}

// read adds the history of runs and hands them on; what came before and costs much to
// read is not read again.
func (i *importer) read(ctx context.Context, runs []Run, chunks chan<- []Run) error {
	ready := make([]Run, 0, len(runs))
	hand := func() error {
		if len(ready) == 0 {
			return nil
		}
		select {
		case chunks <- ready:
			ready = nil
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	if i.source.Whole() {
		for len(runs) > 0 {
			n, err := i.source.History(ctx, runs)
			if err != nil {
				return err
			}
			ready = append(ready, runs[:n]...)
			if err := hand(); err != nil {
				return err
			}
			runs = runs[n:]
		}
		return nil
	}
	ids := make([]string, len(runs))
	for n, r := range runs {
		ids[n] = r.ID
	}
	seen, err := i.seen(ctx, "runs", ids)
	if err != nil {
		return err
	}
	var fresh []Run
	for _, r := range runs {
		summary, err := i.summary(r)
		if err != nil {
			return err
		}
		if r.ended() && summaryOf(seen[r.ID]) == summary {
			r.same = true
			ready = append(ready, r)
			continue
		}
		fresh = append(fresh, r)
	}
	for part := range slices.Chunk(fresh, 25) {
		if _, err := i.source.History(ctx, part); err != nil {
			return err
		}
		ready = append(ready, part...)
		if err := hand(); err != nil {
			return err
		}
	}
	return hand()
}

// head is a run without its history, as it is sent.
func (i *importer) head(r Run) ([]byte, error) {
	r.Experiment = i.experiments[r.Experiment]
	return json.Marshal(r)
}

// canonical is a copy whose parts are in an order of their own: sources give them in different
// ones.
func canonical(r Run) Run {
	r.Params, r.Tags = r.Params.sorted(), r.Tags.sorted()
	r.Inputs, r.Models = slices.Clone(r.Inputs), slices.Clone(r.Models)
	for n := range r.Inputs {
		r.Inputs[n].Tags = r.Inputs[n].Tags.sorted()
	}
	slices.SortStableFunc(r.Inputs, func(a, b Input) int {
		return cmp.Or(strings.Compare(a.Name, b.Name), strings.Compare(a.Digest, b.Digest))
	})
	slices.SortStableFunc(r.Models, func(a, b Link) int {
		return cmp.Or(strings.Compare(a.Model, b.Model), cmp.Compare(a.Step, b.Step), strings.Compare(strconv.FormatBool(a.Output), strconv.FormatBool(b.Output)))
	})
	return r
}

func (p Pairs) sorted() Pairs {
	return slices.SortedFunc(slices.Values(p), func(a, b [2]string) int { return cmp.Or(strings.Compare(a[0], b[0]), strings.Compare(a[1], b[1])) })
}

// summary is the first half of a run's digest: it is of all but its history, for which the
// latest points of metrics stand.
func (i *importer) summary(r Run) (string, error) {
	head, err := i.head(canonical(r))
	if err != nil {
		return "", err
	}
	return digestOf(append([][]byte{head}, seriesOf(r.Latest)...)...), nil
}

// digest is that of all that a source says of a run, the same whichever way it was read.
func (i *importer) digest(r Run) (string, error) {
	summary, err := i.summary(r)
	return summary + "-" + digestOf(seriesOf(r.History)...), err
}

// summaryOf is the first half of a digest.
func summaryOf(digest string) string {
	summary, _, _ := strings.Cut(digest, "-")
	return summary
}

func seriesOf(list []*Series) [][]byte {
	out := make([][]byte, 0, len(list))
	for _, s := range list {
		b, err := json.Marshal(s.sorted())
		if err != nil {
			panic(err) // numbers and text always encode
		}
		out = append(out, b)
	}
	slices.SortFunc(out, bytes.Compare)
	return out
}

// runBatch gathers runs until they are a batch.
type runBatch struct {
	*importer
	waiting []digested // of which it is not known whether they came before
	items   []json.RawMessage
	of      []partOf // what the items are
	size    int
	points  int
	results map[string]string // of runs whose parts are on their way
}

type digested struct {
	run    Run
	head   []byte
	digest string
}

type partOf struct {
	run         Place
	first, last bool
}

// add adds a run.
func (b *runBatch) add(ctx context.Context, r Run) error {
	if !utf8.ValidString(r.Name) || !utf8.ValidString(r.User) {
		b.differs("run", r.ID, "its name or user is not valid UTF-8 text: what is not was replaced")
	}
	r.Params, r.Tags = b.valid("run", r.ID, r.Params), b.valid("run", r.ID, r.Tags)
	head, err := b.head(r)
	if err != nil {
		return err
	}
	if len(head) > maxItem {
		b.report.Runs.Skipped++
		b.skip("run", r.ID, fmt.Errorf("it has %d bytes of params, tags and inputs; at most %d are taken", len(head), maxItem))
		return nil
	}
	digest, err := b.digest(r)
	if err != nil {
		return err
	}
	b.waiting = append(b.waiting, digested{r, head, digest})
	if len(b.waiting) < batchItems {
		return nil
	}
	return b.push(ctx)
}

// push adds those that wait, but for those that came before as they are.
func (b *runBatch) push(ctx context.Context) error {
	ids := make([]string, len(b.waiting))
	for n, w := range b.waiting {
		ids[n] = w.run.ID
	}
	seen, err := b.seen(ctx, "runs", ids)
	if err != nil {
		return err
	}
	for _, w := range b.waiting {
		place := Place{Run: w.run.ID, URI: w.run.URI}
		if w.run.same || seen[w.run.ID] == w.digest {
			b.count(place, "unchanged")
			continue
		}
		if err := b.parts(ctx, w, place); err != nil {
			return err
		}
	}
	b.waiting = b.waiting[:0]
	return nil
}

// count says what became of a run.
func (b *runBatch) count(p Place, result string) {
	b.report.Runs.add(result)
	if result != "refused" {
		b.runs[p.Run] = p
		b.places = append(b.places, p)
	}
}

// parts adds a run to the batch, in as many parts as its history needs.
func (b *runBatch) parts(ctx context.Context, w digested, place Place) error {
	id, err := json.Marshal(map[string]string{"run_id": w.run.ID})
	if err != nil {
		return err
	}
	head, more := w.head, ""
	history, points, bytes := []*Series{}, 0, len(head)
	put := func(last bool) error {
		series, err := json.Marshal(history)
		if err != nil {
			return err
		}
		item := withDigest(head, w.digest, more+fmt.Sprintf(`,"more":%t,"history":%s`, !last, series))
		if b.size+len(item) > batchBytes || b.points+points > batchPoints || len(b.items) == batchItems {
			if err := b.flush(ctx); err != nil {
				return err
			}
		}
		b.items, b.of = append(b.items, item), append(b.of, partOf{place, more == "", last})
		b.size, b.points = b.size+len(item), b.points+points
		head, more, history, points, bytes = id, `,"part":true`, []*Series{}, 0, 0
		return nil
	}
	if len(w.run.History) > 0 && bytes > batchBytes { // with points it may be more than the server takes
		if err := put(false); err != nil {
			return err
		}
	}
	for _, s := range w.run.History {
		if len(s.Key) > maxKey {
			b.skip("part of run", w.run.ID, fmt.Errorf("metric %s has a name of %d bytes, and %d points", clip(s.Key), len(s.Key), len(s.Values)))
			continue
		}
		for from := 0; from < len(s.Values); {
			to := min(len(s.Values), from+batchPoints-points)
			bytes += seriesBytes + 6*len(s.Key) // each byte may become an escape
			history, points, from = append(history, s.slice(from, to)), points+to-from, to
			if points == batchPoints || bytes > 2*batchBytes {
				if err := put(false); err != nil {
					return err
				}
			}
		}
	}
	return put(true)
}

// flush sends the batch.
func (b *runBatch) flush(ctx context.Context) error {
	if len(b.items) == 0 {
		return nil
	}
	outcomes, err := b.send(ctx, "runs", b.items)
	if err != nil {
		return err
	}
	for n, o := range outcomes {
		part := b.of[n]
		if o.Result == "created" || o.Result == "updated" {
			b.report.Points += int64(o.Points)
		}
		if part.first || o.Result == "refused" { // the first part says whether the run is new
			b.results[part.run.Run] = o.Result
		}
		if part.last {
			b.count(part.run, b.results[part.run.Run])
			delete(b.results, part.run.Run)
		}
	}
	b.items, b.of, b.size, b.points = b.items[:0], b.of[:0], 0, 0
	return nil
}

// end sends all that is left.
func (b *runBatch) end(ctx context.Context) error {
	if err := b.push(ctx); err != nil {
		return err
	}
	return b.flush(ctx)
}

// bringFiles brings the artifacts of what came.
func (i *importer) bringFiles(ctx context.Context) error {
	if i.opts.NoArtifacts {
		return nil
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	places := make(chan Place)
	var wait sync.WaitGroup
	var done int64
	for range copiers {
		wait.Go(func() {
			for p := range places {
				if ctx.Err() != nil {
					continue
				}
				if err := i.copyPlace(ctx, p); err != nil {
					cancel(err)
				}
				i.mu.Lock()
				done++
				i.opts.Progress("artifacts of runs", done, int64(len(i.places)))
				i.mu.Unlock()
			}
		})
	}
	for _, p := range i.places {
		places <- p
	}
	close(places)
	wait.Wait()
	return context.Cause(ctx)
}

// copyPlace brings the files of a run or a logged model that are not there yet. What
// cannot be read is skipped; an error is one that all others would meet, too.
func (i *importer) copyPlace(ctx context.Context, p Place) error {
	kind := "artifacts of run"
	if p.Run == "" {
		kind = "artifacts of logged_model"
	}
	var there map[string]File
	where := url.Values{"run_id": {p.Run}, "model_id": {p.Model}}
	err := i.source.List(ctx, p, func(f File) error {
		if there == nil {
			var err error
			if there, err = i.filesThere(ctx, where); err != nil {
				return err
			}
		}
		if old, ok := there[f.Path]; ok && old.Size == f.Size && (f.Digest == "" || f.Digest == old.Digest) {
			i.counted("unchanged", 0)
			return nil
		}
		result := "created"
		if _, ok := there[f.Path]; ok {
			result = "updated"
		}
		if i.opts.DryRun {
			i.counted(result, f.Size)
			return nil
		}
		n, err := i.copyFile(ctx, p, where, f)
		if err != nil {
			if fatal(ctx, err) {
				return err
			}
			i.counted("skipped", 0)
			i.skip(kind, p.id()+"/"+f.Path, err)
			return nil
		}
		i.counted(result, n)
		return nil
	}, func(name string, err error) {
		i.counted("skipped", 0)
		i.skip(kind, p.id()+"/"+name, err)
	})
	if err != nil && !fatal(ctx, err) {
		i.skip(kind, p.id(), err)
		return nil
	}
	return err
}

// fatal reports whether an error is of the server or of the import as a whole, not of a
// file or an object.
func fatal(ctx context.Context, err error) bool {
	if ctx.Err() != nil {
		return true
	}
	if _, away := errors.AsType[*client.NoAnswerError](err); away {
		return true
	}
	if refused, ok := errors.AsType[*client.Error](err); ok {
		switch fault.ParseKind(refused.Kind) {
		case fault.Unauthenticated, fault.PermissionDenied, fault.Exhausted, fault.Unavailable, fault.Internal:
			return true
		default:
		}
	}
	return false
}

func (i *importer) counted(result string, size int64) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.report.Files.add(result)
	i.report.Bytes += size
}

func (i *importer) filesThere(ctx context.Context, where url.Values) (map[string]File, error) {
	out := map[string]File{}
	err := i.target.Client.List(ctx, i.target.path("/files"), where, func(o client.Object) error {
		size, err := strconv.ParseInt(o.Text("size"), 10, 64)
		out[o.Text("path")] = File{Size: size, Digest: o.Text("digest")}
		return err
	})
	if err != nil && i.opts.DryRun && !fatal(ctx, err) { // what has yet to come
		return map[string]File{}, nil
	}
	return out, err
}

func (i *importer) copyFile(ctx context.Context, p Place, where url.Values, f File) (int64, error) {
	body, err := i.source.Fetch(ctx, p, f.Path)
	if err != nil {
		return 0, err
	}
	defer body.Close()
	q := url.Values{"path": {f.Path}, "run_id": where["run_id"], "model_id": where["model_id"]}
	var stored struct {
		Size int64 `json:"size"`
	}
	reading := &sourceReader{Reader: body}
	err = i.target.Client.Do(ctx, http.MethodPut, i.target.path("/file?"+q.Encode()), reading, &stored)
	if reading.err != nil && !errors.Is(reading.err, io.EOF) { // the server saw no end, and kept nothing
		return 0, fmt.Errorf("it cannot be read to its end: %w", reading.err)
	}
	return stored.Size, err
}

// sourceReader remembers why the source ended.
type sourceReader struct {
	io.Reader
	err error
}

func (r *sourceReader) Read(b []byte) (int, error) {
	n, err := r.Reader.Read(b)
	if err != nil {
		r.err = err
	}
	return n, err
}
