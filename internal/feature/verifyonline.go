package feature

import (
	"cmp"
	"context"
	"errors"
	"hash/maphash"
	"log/slog"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/falaj-ml/falaj/internal/event"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/feature/offline"
	"github.com/falaj-ml/falaj/internal/feature/value"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/store"
)

// Watching compares, again and again, what the online store answers with what the
// join makes of the versions that the rows were made from: Verify without a
// training set. A check reads the view's source once, keeps the rows of some keys
// that are chosen by chance, and asks for each at the watermark and at the time of
// one of its rows.

// Watch bounds the checks.
type Watch struct {
	Every time.Duration // between two checks of a view; 0: none are made
	Keys  int           // compared in a check, at most: 200 when 0
	Rows  int64         // of a source, which is not checked with more: 50,000,000 when 0
	Time  time.Duration // of a check: 10 minutes when 0
	Held  int64         // bytes of rows that a check holds, about: 128 MiB when 0
}

func (w Watch) withDefaults() Watch {
	w.Keys, w.Rows, w.Time, w.Held = cmp.Or(w.Keys, 200), cmp.Or(w.Rows, 50_000_000), cmp.Or(w.Time, 10*time.Minute), cmp.Or(w.Held, 128<<20)
	return w
}

// Check is the last comparison of a view version.
type Check struct {
	Project    project.Name `json:"project"`
	View       string       `json:"view"`                 // "weather@3"
	At         time.Time    `json:"at"`                   // of the last try
	Compared   time.Time    `json:"compared_at,omitzero"` // of the last one that was not skipped: what follows is of it
	AsOf       time.Time    `json:"as_of,omitzero"`       // the watermark, to which the rows were compared
	Keys       int          `json:"keys"`
	Values     int          `json:"values"`     // compared
	Mismatches int          `json:"mismatches"` // of these, different online
	Rounded    int          `json:"rounded,omitempty"`
	// Features differ, by name. What they differ in is for `falaj feature verify`,
	// which asks who wants to know.
	Features []string `json:"features,omitempty"`
	// Skipped is the reason why the last check compared nothing.
	Skipped string `json:"skipped,omitempty"`

	generation Generation
}

// lastChecks are the last check of each view version; see Online.watch.
type lastChecks struct {
	mu  sync.Mutex
	all map[string]Check
}

// Checks are the last checks since the process began, by project and view.
func (s *Verification) Checks() []Check {
	s.checks.mu.Lock()
	defer s.checks.mu.Unlock()
	out := make([]Check, 0, len(s.checks.all))
	for _, c := range s.checks.all {
		out = append(out, c)
	}
	slices.SortFunc(out, func(a, b Check) int {
		return cmp.Or(cmp.Compare(a.Project, b.Project), strings.Compare(a.View, b.View))
	})
	return out
}

// WatchOnce checks the views whose turn it is, one after the other. The context's
// principal has to be a loop's.
func (s *Verification) WatchOnce(ctx context.Context) error {
	var all []Online
	err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		all, err = s.onlineStore.Onlines(ctx, tx, "")
		return err
	})
	if err != nil {
		return err
	}
	for _, o := range s.due(all) {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err := s.watch(ctx, o); err != nil {
			s.log.ErrorContext(ctx, "online rows were not checked", slog.String("project", string(o.Project)), slog.String("view", o.ref()), slog.Any("error", err))
		}
	}
	return nil
}

func (o Online) ref() string   { return Header{Name: o.View, Version: o.Version}.Ref() }
func (o Online) watch() string { return string(o.Project) + " " + o.ref() }

// due are the views whose last check is long ago, and forgets those that are gone.
func (s *Verification) due(all []Online) []Online {
	s.checks.mu.Lock()
	defer s.checks.mu.Unlock()
	there := map[string]bool{}
	var out []Online
	for _, o := range all {
		there[o.watch()] = true
		if last, ok := s.checks.all[o.watch()]; !o.Watermark.IsZero() && (!ok || s.now().Sub(last.At) >= s.cfg.Watch.Every) {
			out = append(out, o)
		}
	}
	for name := range s.checks.all {
		if !there[name] {
			delete(s.checks.all, name)
		}
	}
	return out
}

// watch checks a view and tells what came out.
func (s *Verification) watch(ctx context.Context, o Online) error {
	limited, cancel := context.WithTimeout(ctx, s.cfg.Watch.Time)
	c, err := s.compare(limited, o)
	cancel()
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case fault.Is(err, fault.Conflict): // the rows were replaced meanwhile: its turn comes again
		return nil
	case unreadable(err):
		c.Skipped, err = "the inputs of its rows no longer exist: materialise it again", nil
	case err != nil:
		c.Skipped = "it failed: see the server's log"
		if errors.Is(limited.Err(), context.DeadlineExceeded) {
			c.Skipped = "it takes longer than " + s.cfg.Watch.Time.String()
		} else if k := fault.KindOf(err); k != fault.Internal {
			c.Skipped = err.Error()
		}
	}
	now := store.At(s.now()).Time()
	s.checks.mu.Lock()
	last := s.checks.all[o.watch()]
	if why := c.Skipped; why != "" { // what was found before stands
		c = last
		c.Skipped = why
	} else {
		c.Compared, c.AsOf, c.generation = now, o.Watermark, o.Generation
	}
	c.Project, c.View, c.At = o.Project, o.ref(), now
	s.checks.all[o.watch()] = c
	s.checks.mu.Unlock()
	name := ""
	switch {
	case c.Skipped != "":
	case c.Mismatches > 0 && (last.Mismatches == 0 || last.generation != c.generation):
		name = EventSkewed
		s.log.WarnContext(ctx, "online rows differ from their source", slog.String("project", string(o.Project)), slog.String("view", c.View),
			slog.Int("values", c.Values), slog.Int("mismatches", c.Mismatches))
	case c.Mismatches == 0 && last.Mismatches > 0:
		name = EventAgreed
	}
	if name != "" {
		err = errors.Join(err, s.cfg.DB.Update(ctx, string(o.Project), func(ctx context.Context, tx *store.Tx) error {
			return event.Publish(ctx, tx, string(o.Project), name, Compared{View: c.View, Values: c.Values, Mismatches: c.Mismatches, Features: c.Features})
		}))
	}
	return err
}

// errSourceTooLarge ends the reading of a source.
var errSourceTooLarge = errors.New("the source is too large")

// compare checks a view's online rows. Error: fault.Conflict when they were
// replaced meanwhile.
func (s *Verification) compare(ctx context.Context, o Online) (Check, error) {
	var c Check
	var v View
	err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		d, err := s.definitionStore.Definition(ctx, tx, o.Project, ViewKind, o.View, o.Version)
		if err != nil {
			return err
		}
		v, err = d.view()
		return err
	})
	if err != nil {
		return c, err
	}
	if v.Source.Stream != nil {
		c.Skipped = "its rows change with its stream: create a training set and verify that"
		return c, nil
	}
	if v.Source.Dataset != "" && len(o.Inputs) != 1 {
		c.Skipped = "the inputs of its rows are unknown"
		return c, nil
	}
	if err := s.pass(ctx, ActionHistory, o.Project, v.Ref(), o.Residency); err != nil {
		return c, err
	}

	// 1. Rows of some keys, and what to ask. Who was erased since is neither in what
	// stands for the inputs now nor, in views of that entity, online.
	source := o
	if source.Inputs, err = s.standing(ctx, o.Project, o.Inputs); err != nil {
		return c, err
	}
	kept, err := s.choose(ctx, source, v)
	if errors.Is(err, errSourceTooLarge) {
		c.Skipped = "its source has more than " + strconv.FormatInt(s.cfg.Watch.Rows, 10) + " rows"
		return c, nil
	}
	if err != nil {
		return c, err
	}
	asked := slices.DeleteFunc(kept.asked(o.Watermark), func(q question) bool { return q.at.Before(o.HistorySince) })
	if len(asked) == 0 {
		c.Skipped = "there are no rows to compare"
		if o.Watermark.Before(o.HistorySince) {
			c.Skipped = "the history at its watermark has expired: see online.history"
		}
		if kept.lost {
			c.Skipped = "each of its keys has too many rows"
		}
		return c, nil
	}

	// 2. What the join says.
	truth, err := s.truth(ctx, source, v, kept, asked)
	if err != nil {
		return c, err
	}

	// 3. What the online store answers.
	p := ofView(v)
	for i := range v.Features {
		p.add(i, i)
	}
	pl := &plan{views: []picked{p}, online: []Online{o}}
	all := make([][][]byte, len(pl.views)) // of the one view
	keys := make([][]byte, len(asked))
	all[0] = keys
	differs := make([]bool, len(v.Features))
	for n, q := range asked {
		keys[n] = q.key
		answer := make([]Column, len(v.Features))
		if err := s.reads.readView(ctx, p, o.tables(), [][]byte{q.key}, q.at, answer); err != nil {
			return c, err
		}
		for i, want := range truth[n] {
			c.Values++
			if got := answer[i].Values[0]; rounded(want, got) {
				c.Rounded++
			} else if !got.Equal(want) {
				c.Mismatches++
				differs[i] = true
			}
		}
	}
	c.Keys = len(kept.keys)
	for i, d := range differs {
		if d {
			c.Features = append(c.Features, v.Features[i].Name)
		}
	}
	if err := s.journal(ctx, ActionHistory, o.Project, pl, all, o.Watermark, "verification", nil); err != nil {
		return Check{}, err
	}
	if c.Mismatches > 0 && !slices.Equal(source.Inputs, o.Inputs) {
		c = Check{Skipped: "persons were erased from its inputs, and its rows differ from the remaining inputs: materialise it again"}
	}
	oldest := slices.MinFunc(asked, func(a, b question) int { return a.at.Compare(b.at) }).at
	return c, s.unchanged(ctx, o.Project, pl, oldest)
}

// chosen are rows of a source: all of those that have one of some keys.
type chosen struct {
	names []string     // of the columns of a row: keys, event, …
	types []value.Type // of these
	event int          // the column of the event time
	below uint64       // keys with a hash below it are chosen
	most  int          // keys
	keys  map[string]*keyRows
	held  int64 // bytes of them, at most
	bytes int64
	lost  bool // keys had too many rows
}

type keyRows struct {
	hash   uint64
	id     []value.Value
	rows   *memoryTable
	events []int64 // of the rows
	bytes  int64
}

// choose reads a view's source and keeps the rows of keys whose hash is small;
// with too many of them the bound is halved, so that each key has the same chance
// and little is held.
func (s *Verification) choose(ctx context.Context, o Online, v View) (*chosen, error) {
	names := v.columns()
	k := &chosen{names: names, event: len(v.Keys), below: math.MaxUint64, most: s.cfg.Watch.Keys, keys: map[string]*keyRows{}, held: s.cfg.Watch.Held}
	for _, key := range v.Keys {
		k.types = append(k.types, key.Type)
	}
	k.types = append(k.types, value.Timestamp)
	if v.CreatedTimestamp != "" {
		k.types = append(k.types, value.Timestamp)
	}
	for _, name := range names[len(k.types):] {
		in := v.inputs()
		k.types = append(k.types, in[slices.IndexFunc(in, func(i input) bool { return i.Column == name })].Type)
	}
	rows, err := s.evaluate(o.Project, v.Source, o.Inputs, names)(ctx)
	if err != nil {
		return nil, err
	}
	defer rows.Release()
	seed := maphash.MakeSeed()
	var key []byte
	err = eachRow(ctx, rows, names, k.types, func(number int64, cell func(i int) value.Value) error {
		if number > s.cfg.Watch.Rows {
			return errSourceTooLarge
		}
		key = key[:0]
		for i := range v.Keys {
			x := cell(i)
			if x.IsNull() {
				return nil
			}
			key = value.AppendKey(key, x)
		}
		if h := maphash.Bytes(seed, key); h < k.below && !cell(k.event).IsNull() {
			return k.add(string(key), h, cell)
		}
		return nil
	})
	return k, err
}

func (k *chosen) add(key string, hash uint64, cell func(i int) value.Value) error {
	row := make([]value.Value, len(k.types))
	size := int64(8 * (len(row) + 1))
	for i := range row {
		row[i] = cell(i)
		size += int64(len(row[i].Str())) // of lists, too
	}
	of := k.keys[key]
	if of == nil {
		of = &keyRows{hash: hash, rows: newTable(k.names, k.types)}
		for _, x := range row[:k.event] {
			of.id = append(of.id, x.Clone()) // the batch goes away
		}
		k.keys[key] = of
	}
	if err := of.rows.add(row); err != nil {
		return err
	}
	of.events = append(of.events, row[k.event].Time().UnixMicro())
	of.bytes += size
	k.bytes += size
	for len(k.keys) > k.most || k.bytes > k.held {
		k.lost = k.lost || len(k.keys) <= k.most
		k.below /= 2
		for key, of := range k.keys {
			if of.hash >= k.below {
				delete(k.keys, key)
				k.bytes -= of.bytes
			}
		}
	}
	return nil
}

// question is a key at a time.
type question struct {
	key []byte
	of  *keyRows
	at  time.Time
}

// asked is each key at the watermark, and at the time of one of its rows.
func (k *chosen) asked(watermark time.Time) []question {
	var out []question
	for key, of := range k.keys {
		out = append(out, question{[]byte(key), of, watermark})
		event := of.events[of.hash%uint64(len(of.events))] // its hash is below a power of two: the low bits are a fair draw
		if at := time.UnixMicro(event).UTC(); event < micros(watermark) {
			out = append(out, question{[]byte(key), of, at})
		}
	}
	return out
}

// truth joins the features of a view to what is asked, from the rows that were
// kept.
func (s *Verification) truth(ctx context.Context, o Online, v View, k *chosen, asked []question) ([][]value.Value, error) {
	selected := make(map[int]string, len(v.Features))
	var names []string
	for i := range v.Features {
		selected[i] = "feature " + strconv.Itoa(i)
		names = append(names, selected[i])
	}
	view := s.offline(v, o.Inputs, selected)
	var kept []arrow.RecordBatch // not copied together: a column of texts may have 2 GiB
	for _, of := range k.keys {
		rec := of.rows.build.NewRecordBatch()
		defer rec.Release()
		kept = append(kept, rec)
	}
	view.Open = func(context.Context) (array.RecordReader, error) {
		return array.NewRecordReader(kept[0].Schema(), kept)
	}
	const at = "at"
	columns := []string{at}
	types := []value.Type{value.Timestamp}
	for i, key := range v.Keys {
		view.SpineKeys[i] = "key " + strconv.Itoa(i)
		columns, types = append(columns, view.SpineKeys[i]), append(types, key.Type)
	}
	spine := newTable(columns, types)
	for _, q := range asked {
		if err := spine.add(append([]value.Value{value.OfTime(q.at)}, q.of.id...)); err != nil {
			return nil, err
		}
	}
	joined, err := offline.Join(ctx, offline.Spine{Open: spine.open, Timestamp: at}, []offline.View{view}, s.cfg.Join)
	if err != nil {
		return nil, err
	}
	defer joined.Release()
	var out [][]value.Value
	err = eachRow(ctx, joined, names, v.featureTypes(), func(_ int64, cell func(i int) value.Value) error {
		row := make([]value.Value, len(names))
		for i := range row {
			row[i] = cell(i).Clone()
		}
		out = append(out, row)
		return nil
	})
	if err == nil && len(out) != len(asked) {
		err = fault.New(fault.Internal, "the join returned %d rows instead of %d", len(out), len(asked))
	}
	return out, err
}

// memoryTable is rows in memory that the join can read.
type memoryTable struct {
	schema *arrow.Schema
	types  []value.Type
	build  *array.RecordBuilder
}

func newTable(names []string, types []value.Type) *memoryTable {
	fields := make([]arrow.Field, len(names))
	for i, name := range names {
		fields[i] = arrow.Field{Name: name, Type: offline.ArrowType(types[i]), Nullable: true}
	}
	schema := arrow.NewSchema(fields, nil)
	return &memoryTable{schema: schema, types: types, build: array.NewRecordBuilder(memory.DefaultAllocator, schema)}
}

func (t *memoryTable) add(row []value.Value) error {
	for i, x := range row {
		if err := offline.Append(t.build.Field(i), x); err != nil {
			return err
		}
	}
	return nil
}

func (t *memoryTable) open(context.Context) (array.RecordReader, error) {
	rec := t.build.NewRecordBatch()
	defer rec.Release()
	return array.NewRecordReader(t.schema, []arrow.RecordBatch{rec})
}
