package mlflow

import (
	"bytes"
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

	experiments map[int64]int64            // ours, by the source's
	models      map[string]Place           // logged models that came
	runs        map[string]Place           // runs that came
	places      []Place                    // in the order in which they came
	registry    map[string]map[string]bool // of a dry run: models that are here, with their versions
}

// Import brings what a source has. It may be repeated, also when it was cut off at
// any place: what came and has not changed is not sent again. An error is of the
// source or the server as a whole; the report says what came until then.
func Import(ctx context.Context, source Source, target Target, opts Options) (Report, error) {
	if opts.Progress == nil {
		opts.Progress = func(string, int64, int64) {}
	}
	i := &importer{
		source: source, target: target, opts: opts, experiments: map[int64]int64{}, models: map[string]Place{}, runs: map[string]Place{}, registry: map[string]map[string]bool{},
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
			i.skip(o.Kind, o.ID, errors.New(o.Reason))
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

func (i *importer) bringExperiments(ctx context.Context) error {
	all, err := i.source.Experiments(ctx)
	if err != nil {
		return err
	}
	var wanted []Experiment
	for _, e := range all {
		if !i.wants(e.Name) {
			continue
		}
		if !utf8.ValidString(e.Name) {
			i.report.Experiments.Skipped++
			i.skip("experiment", strconv.FormatInt(e.ID, 10), errors.New("its name is not valid UTF-8 text"))
			continue
		}
		e.Tags = i.valid("experiment", e.Name, e.Tags)
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
			i.skip("experiment", e.Name, fmt.Errorf("it has %d bytes of tags; at most %d are taken", len(head), maxItem))
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
			m.Params, m.Tags = i.valid("logged model", m.ID, m.Params), i.valid("logged model", m.ID, m.Tags)
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
		head, err := i.head(&r)
		if err != nil {
			return err
		}
		if r.ended() && seen[r.ID] == i.digest(r, head) {
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
func (i *importer) head(r *Run) ([]byte, error) {
	out := *r
	out.Experiment = i.experiments[r.Experiment]
	return json.Marshal(out)
}

// digest is that of all that a source says of a run; of a server's ended run the
// latest points stand for its history.
func (i *importer) digest(r Run, head []byte) string {
	parts := [][]byte{head}
	series := r.History
	if !i.source.Whole() && r.ended() {
		series = r.Latest
	}
	for _, s := range series {
		b, err := json.Marshal(s)
		if err != nil {
			panic(err) // numbers and text always encode
		}
		parts = append(parts, b)
	}
	return digestOf(parts...)
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
	head, err := b.head(&r)
	if err != nil {
		return err
	}
	if len(head) > maxItem {
		b.report.Runs.Skipped++
		b.skip("run", r.ID, fmt.Errorf("it has %d bytes of params, tags and inputs; at most %d are taken", len(head), maxItem))
		return nil
	}
	b.waiting = append(b.waiting, digested{r, head, b.digest(r, head)})
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
		if seen[w.run.ID] == w.digest {
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

// bringRegistry brings registered models and their versions. Those that were made
// from a version that has not come yet are tried again at the end.
func (i *importer) bringRegistry(ctx context.Context) error {
	type late struct {
		m Registered
		v Version
	}
	var again []late
	came := map[string]bool{} // versions by number and alias, "delay@3"
	uris := i.byURI()
	done := int64(0)
	err := i.source.Registered(ctx, func(m Registered) error {
		m.Tags = i.valid("registered_model", m.Name, m.Tags)
		if slices.ContainsFunc(m.Tags, func(t [2]string) bool { return t[0] == "mlflow.prompt.is_prompt" && strings.EqualFold(t[1], "true") }) {
			i.report.Models.Skipped++
			i.skip("registered_model", m.Name, errors.New("it is a prompt; the registry keeps models"))
			return nil
		}
		if len(i.opts.Experiments) == 0 || len(m.Versions) == 0 {
			result, err := i.register(ctx, m, Version{})
			if err != nil || result == "refused" {
				i.report.Models.add(result)
				i.report.Versions.Skipped += len(m.Versions)
				return err
			}
			i.report.Models.add(result)
		}
		for _, v := range m.Versions {
			name := m.Name + "@" + strconv.Itoa(v.Number)
			v.Tags = i.valid("model_version", name, v.Tags)
			if i.part() && v.Run != "" && i.runs[v.Run].Run == "" || len(i.opts.Experiments) > 0 && v.Run == "" {
				i.report.Versions.Skipped++ // its run is not of the part that was asked for
				continue
			}
			source, err := i.sourceOf(v, uris)
			if err != nil {
				i.report.Versions.Skipped++
				i.skip("model_version", name, err)
				continue
			}
			if versionSource.MatchString(source) && len(again) < maxNotes {
				again = append(again, late{m, v})
				continue
			}
			result, err := i.register(ctx, m, i.from(name, v, source))
			if err != nil {
				return err
			}
			i.report.Versions.add(result)
			came[name] = result != "refused"
			for _, alias := range v.Aliases {
				came[m.Name+"@"+alias] = came[name]
			}
			done++
			i.opts.Progress("model versions", done, 0)
		}
		return nil
	})
	for _, l := range again {
		if err != nil {
			break
		}
		name := l.m.Name + "@" + strconv.Itoa(l.v.Number)
		if !came[origin(l.v.Source)] { // as when it was deleted there: the copy's files are still where they were
			files := l.v
			files.Source = ""
			if source, elsewhere := i.sourceOf(files, uris); elsewhere == nil {
				l.v = i.from(name, l.v, source)
			}
		}
		var result string
		result, err = i.register(ctx, l.m, l.v)
		i.report.Versions.add(result)
		came[name] = result != "refused"
	}
	return err
}

// from is a version with the source that it has here.
func (i *importer) from(name string, v Version, source string) Version {
	if source != v.Source {
		i.differs("model_version", name, "its source is %s here, and was %s", source, v.Source)
		v.Source = source
	}
	return v
}

// origin is the version that another was copied from, "delay@3", by its source.
func origin(source string) string {
	m := versionSource.FindStringSubmatch(source)
	if m == nil {
		return ""
	}
	return m[1] + "@" + m[2][1:]
}

// byURI are the places that came, by where their artifacts are at the source.
func (i *importer) byURI() map[string]Place {
	out := make(map[string]Place, len(i.models))
	for _, p := range i.models {
		out[strings.TrimSuffix(p.URI, "/")] = p
	}
	return out
}

var (
	ownSource     = regexp.MustCompile(`^(runs:/+[0-9a-zA-Z_]+(/.*)?|models:/+m-[0-9a-f]{32}|models:/+m_[0-9A-Z]{26})$`)
	versionSource = regexp.MustCompile(`^models:/+([^/]+?)(/[0-9]+|@[^@/]+)$`)
	proxied       = regexp.MustCompile(`^mlflow-artifacts:/+[0-9]+/([0-9a-f]{32}|run_[0-9A-Z]{26}|models/m-[0-9a-f]{32})/artifacts(/.*)?$`)
)

// sourceOf is where the files of a version are here.
func (i *importer) sourceOf(v Version, models map[string]Place) (string, error) {
	if v.Status != "" && v.Status != "READY" {
		return "", fmt.Errorf("it is not ready (%s) and has no files to sign", v.Status)
	}
	for _, at := range []string{v.Source, v.Storage} {
		switch {
		case at == "":
			continue
		case ownSource.MatchString(at), versionSource.MatchString(at), proxied.MatchString(at):
			return at, nil
		}
		at = strings.TrimSuffix(at, "/")
		if p, ok := models[at]; ok {
			return "models:/" + p.Model, nil
		}
		if p, ok := i.runs[v.Run]; ok && v.Run != "" {
			if rest, within := strings.CutPrefix(at, strings.TrimSuffix(p.URI, "/")+"/"); within {
				return "runs:/" + p.Run + "/" + rest, nil
			}
		}
	}
	return "", fmt.Errorf("its source %s is not in the artifacts of a run or logged model that was imported", clip(v.Source))
}

// register sends a version, or with number 0 the model alone.
func (i *importer) register(ctx context.Context, m Registered, v Version) (string, error) {
	kind, name := "registered_model", m.Name
	if v.Number > 0 {
		kind, name = "model_version", m.Name+"@"+strconv.Itoa(v.Number)
	}
	if i.opts.DryRun {
		return i.registered(ctx, m, v)
	}
	var answer struct {
		Result string   `json:"result"`
		Lost   []string `json:"lost"`
	}
	err := i.target.Client.Do(ctx, http.MethodPost, i.target.path("/version"), struct {
		Model Registered `json:"model"`
		Version
	}{m, v}, &answer)
	if err != nil {
		if fatal(ctx, err) {
			return "refused", err
		}
		i.skip(kind, name, err)
		return "refused", nil
	}
	for _, lost := range answer.Lost {
		i.skip("part of "+kind, name, errors.New(lost))
	}
	return answer.Result, nil
}

// registered says for a dry run whether a version, or with number 0 a model, is here
// already. Then it counts as unchanged: what of it would change is not compared.
func (i *importer) registered(ctx context.Context, m Registered, v Version) (string, error) {
	here, asked := i.registry[m.Name]
	if !asked {
		path := "/api/v1/projects/" + url.PathEscape(i.target.Project) + "/models/" + url.PathEscape(m.Name)
		err := i.target.Client.Do(ctx, http.MethodGet, path, nil, nil)
		if err == nil {
			here = map[string]bool{"0": true}
			err = i.target.Client.List(ctx, path+"/versions", nil, func(o client.Object) error {
				here[o.Text("version")] = true
				return nil
			})
		}
		if err != nil && fatal(ctx, err) {
			return "refused", err
		}
		i.registry[m.Name] = here
	}
	if here[strconv.Itoa(v.Number)] {
		return "unchanged", nil
	}
	return "created", nil
}
