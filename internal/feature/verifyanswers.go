package feature

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/feature/offline"
	"github.com/falaj-ml/falaj/internal/feature/value"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/store"
)

// VerifyAnswersRequest asks whether what models saw is what training would see.
type VerifyAnswersRequest struct {
	Project project.Name
	Service string // "delay@2"
	Columns []AnswerColumn
	Answers []LoggedAnswer // at most 100,000
}

// AnswerColumn is a feature that a model was given.
type AnswerColumn struct {
	Feature string        // "weather:temp" or "weather@3:temp", one of the service's
	Default *float64      // what stood for a value that was not there; nil: nothing did
	MaxAge  time.Duration // stricter than the view's TTL; 0: none
}

// LoggedAnswer is a row of an answer as it was logged.
type LoggedAnswer struct {
	ID       string
	Row      int       // of the request, from 0
	At       time.Time // as of when it was answered
	Received time.Time // when, on the wall's clock
	Keys     map[string]any
	Values   []float64 // beside Columns; NaN is missing
}

// Cause is why an answer differs from what training would see now.
type Cause string

// The causes, in the order in which they are checked.
const (
	// CauseFreshness: the value was older than the deployment's max_age, which
	// training does not know.
	CauseFreshness Cause = "freshness"
	// CauseLateData: the answer came from another version of the source, which had
	// other rows.
	CauseLateData Cause = "late_data"
	// CauseNotMaterialised: the row was in the source but not online yet.
	CauseNotMaterialised Cause = "not_materialised"
	// CauseDefinition: the answer is that of another version of the view.
	CauseDefinition Cause = "definition"
	// CauseTTL: the answer is a value that is older than the view's TTL.
	CauseTTL Cause = "ttl"
	// CauseDefault: a default was used where training has a value.
	CauseDefault Cause = "default"
	CauseUnknown Cause = "unknown"
)

// AnswersReport is the outcome of a verification of answers.
type AnswersReport struct {
	Service    string   `json:"service"`
	Views      []string `json:"views"`
	Answers    int      `json:"answers"` // rows compared
	Values     int      `json:"values"`
	Present    int      `json:"present"`    // of these, not NULL offline
	Mismatches int      `json:"mismatches"` // of these, other than offline
	Agreement  float64  `json:"agreement"`  // share of the values that agree; 1 when there are none
	// Rounded values differ by less than a part in a million: models take float32.
	Rounded int `json:"rounded"`
	// Defaulted values are a default where training has NULL, too.
	Defaulted int           `json:"defaulted"`
	Causes    map[Cause]int `json:"causes"` // of the mismatches
	// Inputs are the tables whose current version differs from the one of the online rows.
	Inputs []InputDifference `json:"different_inputs,omitempty"`
	// NotCompared are features that were computed from values of the request, which
	// are not logged. What else they were computed from is, where it is a feature.
	NotCompared []string `json:"not_compared,omitempty"`
	// Examples are the first mismatches.
	Examples []AnswerMismatch `json:"examples,omitempty"`
}

// AnswerMismatch is a value that differs. A value that is missing is nil.
type AnswerMismatch struct {
	ID      string    `json:"id"`
	Row     int       `json:"row"`
	At      time.Time `json:"at"`
	Feature string    `json:"feature"` // "weather@2:temp"
	Logged  *float64  `json:"logged"`
	Offline *float64  `json:"offline"`
	Cause   Cause     `json:"cause"`
	Detail  string    `json:"detail"` // the cause in words
}

// Limits of the search for causes.
const (
	maxSources  = 5   // other versions of a view's source that are tried
	maxVersions = 5   // other versions of a view
	maxRuns     = 100 // materialisations looked at
)

// VerifyAnswers recomputes offline, as of each answer's time and over the
// newest data, what a model was given, and compares: one as-of join for each view,
// and some more over the answers that differ, to find out why. Needs
// feature.history on each view, and to read the sources. Errors: fault.TooLarge;
// fault.Invalid for a column that is no number of the service.
func (s *Verification) VerifyAnswers(ctx context.Context, r VerifyAnswersRequest) (AnswersReport, error) {
	if len(r.Answers) > maxSample {
		return AnswersReport{}, fault.New(fault.TooLarge, "%d answers are over the limit of %d", len(r.Answers), maxSample)
	}
	if err := s.allow(ctx, ActionRead, r.Project, r.Service); err != nil {
		return AnswersReport{}, err
	}
	pl, err := s.resolve(ctx, r.Project, Selection{Service: r.Service, FullNames: true})
	if err != nil {
		return AnswersReport{}, err
	}
	purpose, err := s.forPurpose(ctx, ActionHistory, r.Project, pl, "")
	if err != nil {
		return AnswersReport{}, err
	}
	sees, err := s.show(ctx, pl, pl.objects(r.Project))
	if err != nil {
		return AnswersReport{}, err
	}
	report := AnswersReport{Service: pl.service, Views: pl.refs(), Answers: len(r.Answers), Agreement: 1, Causes: map[Cause]int{}}
	used := make([]bool, len(r.Columns))
	for i, v := range pl.views {
		c := comparison{s: s, r: &r, v: v.view, online: pl.online[i], report: &report, shown: sees}
		for n, column := range r.Columns {
			view, name, _ := strings.Cut(column.Feature, ":")
			if f := v.view.feature(name); f >= 0 && (view == v.view.Ref() || view == v.view.Name) && slices.Contains(v.features, f) {
				c.features, c.columns = append(c.features, f), append(c.columns, n)
				used[n] = true
			}
		}
		if len(c.features) == 0 {
			continue
		}
		if err := c.run(ctx); err != nil {
			return AnswersReport{}, fault.Wrap(err, "recomputing feature view %s", v.view.Ref())
		}
	}
	if pl.computed != nil {
		for n, column := range r.Columns {
			service, name, _ := strings.Cut(column.Feature, ":")
			if !used[n] && (service == pl.computed.ref || service == pl.computed.service) &&
				slices.ContainsFunc(pl.computed.fields, func(f computedField) bool { return f.name == name }) {
				used[n] = true
				report.NotCompared = append(report.NotCompared, column.Feature)
			}
		}
	}
	if at := slices.Index(used, false); at >= 0 {
		return AnswersReport{}, fault.New(fault.Invalid, "feature service %s has no feature %q", pl.service, clip(r.Columns[at].Feature))
	}
	if err := s.journalHistory(ctx, r.Project, pl, purpose, sees); err != nil {
		return AnswersReport{}, err
	}
	if report.Values > 0 {
		report.Agreement = 1 - float64(report.Mismatches)/float64(report.Values)
	}
	return report, s.cfg.DB.Update(ctx, string(r.Project), func(ctx context.Context, tx *store.Tx) error {
		return audit.Append(ctx, tx, audit.Entry{
			Project: string(r.Project), Action: string(ActionHistory), Object: objectKind + " service " + pl.service,
			Detail: map[string]any{
				"verified_answers": report.Answers, "views": report.Views, "values": report.Values, "mismatches": report.Mismatches, "causes": report.Causes,
			},
		})
	})
}

// comparison is that of the features of one view.
type comparison struct {
	s        *Verification
	r        *VerifyAnswersRequest
	v        View
	online   Online
	report   *AnswersReport
	shown    shown // to whoever gets the report
	features []int // into v.Features
	columns  []int // beside features: into r.Columns

	keys    [][]value.Value // of the view, by answer
	inputs  []InputRef      // of its source now
	offline [][]float64     // by feature and answer
	causes  map[cell]found  // of what differs
	open    []cell          // what differs and has no cause yet
}

// cell is a value: a feature, by its place in comparison.features, of an answer.
type cell struct{ feature, answer int }

type found struct {
	cause  Cause
	detail string
}

func (c *comparison) run(ctx context.Context) error {
	// 1. Ask, as for a training set.
	inputs, err := c.s.streams.pin(ctx, c.r.Project, c.v.Source)
	if err != nil {
		return err
	}
	label, class, err := origin(inputs)
	if err != nil {
		return err
	}
	if err := c.s.cfg.Authorizer.Allow(ctx, ActionHistory, policy.Object{
		Project: string(c.r.Project), Kind: objectKind, Name: c.v.Ref(), Classification: string(class), Residency: label,
	}); err != nil {
		return err
	}
	c.inputs = refsOf(inputs)
	for _, f := range c.features {
		if !numeric(c.v.Features[f].Type) {
			return fault.New(fault.Invalid, "feature %s is a %s, not a number", c.v.Features[f].Name, c.v.Features[f].Type)
		}
	}
	if c.online.View != "" {
		for _, d := range differing(c.inputs, c.online.Inputs) {
			c.report.Inputs = append(c.report.Inputs, InputDifference{
				View: c.v.Ref(), Table: max(d[0].Table, d[1].Table), Offline: d[0].Dataset, Online: d[1].Dataset,
			})
		}
	}

	// 2. Recompute and compare.
	if err := c.parseKeys(); err != nil {
		return err
	}
	all := make([]int, len(c.r.Answers))
	for i := range all {
		all[i] = i
	}
	if c.offline, err = c.join(ctx, c.v, c.inputs, all, nil); err != nil {
		return err
	}
	c.causes = map[cell]found{}
	for f := range c.features {
		for i := range c.r.Answers {
			c.compare(cell{f, i})
		}
	}

	// 3. Find out why what differs does.
	for _, explain := range []func(context.Context) error{c.freshness, c.lateData, c.notMaterialised, c.definition, c.ttl, c.defaults} {
		if len(c.open) == 0 {
			break
		}
		if err := explain(ctx); err != nil {
			return err
		}
	}
	c.note()
	return nil
}

func numeric(name string) bool {
	t, err := typeOf("type", name)
	return err == nil && t.Number()
}

func (c *comparison) logged(at cell) float64 {
	return c.r.Answers[at.answer].Values[c.columns[at.feature]]
}

func (c *comparison) column(at cell) AnswerColumn { return c.r.Columns[c.columns[at.feature]] }

// compare counts a value, and keeps it when it differs.
func (c *comparison) compare(at cell) {
	got, want := c.logged(at), c.offline[at.feature][at.answer]
	c.report.Values++
	if !math.IsNaN(want) {
		c.report.Present++
	}
	switch fallback := c.column(at).Default; {
	case math.IsNaN(want) && fallback != nil && alike(got, *fallback):
		c.report.Defaulted++
	case alike(got, want):
		if got != want && !math.IsNaN(got) {
			c.report.Rounded++
		}
	default:
		c.report.Mismatches++
		c.open = append(c.open, at)
	}
}

// alike reports whether two numbers are the same as far as a float32 can say; NaN
// is like NaN.
func alike(a, b float64) bool {
	if math.IsNaN(a) || math.IsNaN(b) {
		return math.IsNaN(a) && math.IsNaN(b)
	}
	return a == b || math.Abs(a-b) <= 1e-6*max(math.Abs(a), math.Abs(b))
}

// as reports whether a recomputed value would have made the answer that was
// logged, by the deployment's defaults.
func (c *comparison) as(at cell, x float64) bool {
	if fallback := c.column(at).Default; math.IsNaN(x) && fallback != nil {
		x = *fallback
	}
	return alike(c.logged(at), x)
}

func (c *comparison) parseKeys() error {
	c.keys = make([][]value.Value, len(c.r.Answers))
	for i, a := range c.r.Answers {
		if len(a.Values) != len(c.r.Columns) {
			return fault.New(fault.Invalid, "answer %s has %d values for %d columns", clip(a.ID), len(a.Values), len(c.r.Columns))
		}
		for _, k := range c.v.Keys {
			x, err := parseText(k.Type, a.Keys[k.Name])
			if err != nil {
				return fault.Wrap(err, "answer %s: join key %s", clip(a.ID), k.Name)
			}
			c.keys[i] = append(c.keys[i], x)
		}
	}
	return nil
}

// spineTime is the spine's column with each row's time.
const spineTime = "falaj_answered_at"

// join computes the view's features as of each answer's time, or of at's where it
// is given: by feature and place in answers, NaN where there is none.
func (c *comparison) join(ctx context.Context, v View, inputs []InputRef, answers []int, at []time.Time) ([][]float64, error) {
	out := make([][]float64, len(c.features))
	selected := make(map[int]string, len(c.features))
	names := make([]string, len(c.features))
	types := make([]value.Type, len(c.features))
	for i, f := range c.features {
		field := c.v.Features[f]
		n := v.feature(field.Name)
		if n < 0 || !numeric(v.Features[n].Type) {
			return nil, nil // another version of the view has no such number
		}
		out[i] = make([]float64, 0, len(answers))
		names[i] = "feature_" + field.Name
		types[i], _ = typeOf("type", v.Features[n].Type)
		selected[n] = names[i]
	}
	open := func(context.Context) (array.RecordReader, error) { return c.spine(answers, at) }
	rows, err := offline.Join(ctx, offline.Spine{Open: open, Timestamp: spineTime}, []offline.View{c.s.offline(v, inputs, selected)}, c.s.cfg.Join)
	if err != nil {
		return nil, err
	}
	defer rows.Release()
	err = eachRow(ctx, rows, names, types, func(_ int64, row func(i int) value.Value) error {
		for i := range names {
			out[i] = append(out[i], orNaN(row(i)))
		}
		return nil
	})
	return out, err
}

// orNaN is a number, or NaN where there is none.
func orNaN(v value.Value) float64 {
	if v.IsNull() {
		return math.NaN()
	}
	x, err := asNumber("", v)
	if err != nil {
		return math.NaN()
	}
	return x
}

// spine makes rows of the answers' keys and times.
func (c *comparison) spine(answers []int, at []time.Time) (array.RecordReader, error) {
	fields := []arrow.Field{{Name: spineTime, Type: arrow.FixedWidthTypes.Timestamp_us}}
	for _, k := range c.v.Keys {
		fields = append(fields, arrow.Field{Name: k.Name, Type: offline.ArrowType(k.Type), Nullable: true})
	}
	schema := arrow.NewSchema(fields, nil)
	b := array.NewRecordBuilder(memory.DefaultAllocator, schema)
	defer b.Release()
	times := b.Field(0).(*array.TimestampBuilder)
	for i, n := range answers {
		t := c.r.Answers[n].At
		if at != nil {
			t = at[i]
		}
		times.Append(arrow.Timestamp(t.UnixMicro()))
		for k, x := range c.keys[n] {
			if err := offline.Append(b.Field(k+1), x); err != nil {
				return nil, err
			}
		}
	}
	batch := b.NewRecordBatch()
	defer batch.Release()
	return array.NewRecordReader(schema, []arrow.RecordBatch{batch})
}

// try recomputes the answers that differ, and gives a cause to those that come
// out as they were logged.
func (c *comparison) try(ctx context.Context, v View, inputs []InputRef, at func(answer int) time.Time, match func(cell, float64) bool, why func(cell) found) error {
	var answers []int
	var times []time.Time
	place := map[int]int{}
	for _, x := range c.open {
		if _, there := place[x.answer]; !there {
			place[x.answer] = len(answers)
			answers = append(answers, x.answer)
			if at != nil {
				times = append(times, at(x.answer))
			}
		}
	}
	values, err := c.join(ctx, v, inputs, answers, times)
	if err != nil || values == nil {
		return err
	}
	c.open = slices.DeleteFunc(c.open, func(x cell) bool {
		if !match(x, values[x.feature][place[x.answer]]) {
			return false
		}
		c.causes[x] = why(x)
		return true
	})
	return nil
}

// passing turns the errors of a source that cannot be read any more into nothing
// found: a cause that cannot be proven is none.
func passing(err error) error {
	if fault.Is(err, fault.Gone) || fault.Is(err, fault.NotFound) || fault.Is(err, fault.Conflict) || fault.Is(err, fault.PermissionDenied) {
		return nil
	}
	return err
}

// freshness: with max_age as the TTL there is no value.
func (c *comparison) freshness(ctx context.Context) error {
	ages := map[time.Duration]bool{}
	for _, x := range c.open {
		if age := c.column(x).MaxAge; age > 0 {
			ages[age] = true
		}
	}
	for age := range ages {
		v := c.v
		v.TTL = fmt.Sprintf("%dms", max(1, age.Milliseconds()))
		err := c.try(ctx, v, c.inputs, nil, func(x cell, recomputed float64) bool {
			return c.column(x).MaxAge == age && math.IsNaN(recomputed) && c.as(x, recomputed)
		}, func(cell) found {
			return found{CauseFreshness, fmt.Sprintf("the newest value was older than max_age %s, which training sets do not apply", age)}
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// lateData: over the data that the online rows are or were made from, it is the
// answer.
func (c *comparison) lateData(ctx context.Context) error {
	runs, err := c.runs(ctx)
	if err != nil {
		return err
	}
	var sources [][]InputRef
	add := func(inputs []InputRef) {
		if len(inputs) > 0 && len(sources) < maxSources && !sameInputs(inputs, c.inputs) &&
			!slices.ContainsFunc(sources, func(o []InputRef) bool { return sameInputs(o, inputs) }) {
			sources = append(sources, inputs)
		}
	}
	add(c.online.Inputs)
	for _, r := range runs {
		add(r.Inputs)
	}
	for _, inputs := range sources {
		if len(c.open) == 0 {
			return nil
		}
		err := c.try(ctx, c.v, inputs, nil, c.as, func(cell) found {
			return found{CauseLateData, "the source has changed: " + changes(inputs, c.inputs)}
		})
		if passing(err) != nil {
			return err
		}
	}
	return nil
}

// runs are the materialisations of the view that succeeded, newest first.
func (c *comparison) runs(ctx context.Context) (runs []Run, err error) {
	err = c.s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		runs, err = c.s.runStore.Runs(ctx, tx, c.r.Project, c.v.Name, c.v.Version, "", maxRuns)
		return err
	})
	return slices.DeleteFunc(runs, func(r Run) bool { return r.State != Succeeded }), err
}

// notMaterialised: as of the time up to which rows were online, it is the answer.
func (c *comparison) notMaterialised(ctx context.Context) error {
	runs, err := c.runs(ctx)
	if err != nil {
		return err
	}
	reached := func(a LoggedAnswer) time.Time { // zero: nothing was online
		var until time.Time
		for _, r := range runs {
			if !r.EndedAt.After(a.Received) && r.Until.After(until) {
				until = r.Until
			}
		}
		return until
	}
	v := c.v
	v.TTL = "" // counted from the answer's time, below
	return c.try(ctx, v, c.inputs, func(n int) time.Time {
		a := c.r.Answers[n]
		if until := reached(a); until.Before(a.At) {
			return until
		}
		return a.At
	}, func(x cell, recomputed float64) bool {
		a := c.r.Answers[x.answer]
		return reached(a).Before(a.At) && (c.as(x, recomputed) || c.as(x, math.NaN()))
	}, func(x cell) found {
		until := reached(c.r.Answers[x.answer])
		if until.IsZero() {
			return found{CauseNotMaterialised, "the view was not materialised when the request was served"}
		}
		return found{CauseNotMaterialised, "when the request was served, the view was materialised only up to " + until.Format(time.RFC3339)}
	})
}

// definition: by another version of the view, it is the answer.
func (c *comparison) definition(ctx context.Context) error {
	var others []View
	err := c.s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		others = nil
		ds, err := c.s.definitionStore.Definitions(ctx, tx, c.r.Project, ViewKind, c.v.Name, 0, maxVersions+1)
		if err != nil {
			return err
		}
		for _, d := range ds {
			v, err := d.view()
			if err != nil {
				return err
			}
			if v.Version != c.v.Version && slices.EqualFunc(v.Keys, c.v.Keys, func(a, b Key) bool { return a.Name == b.Name && a.Type == b.Type }) {
				others = append(others, v)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, v := range others {
		if len(c.open) == 0 {
			return nil
		}
		inputs, err := c.s.streams.pin(ctx, c.r.Project, v.Source)
		if err == nil {
			err = c.try(ctx, v, refsOf(inputs), nil, c.as, func(cell) found {
				return found{CauseDefinition, "the value is from " + v.Ref() + ", and the deployment uses " + c.v.Ref()}
			})
		}
		if passing(err) != nil {
			return err
		}
	}
	return nil
}

// ttl: without the TTL it is the answer.
func (c *comparison) ttl(ctx context.Context) error {
	if c.v.ttl() == 0 {
		return nil
	}
	v := c.v
	v.TTL = ""
	return c.try(ctx, v, c.inputs, nil, func(x cell, recomputed float64) bool {
		return math.IsNaN(c.offline[x.feature][x.answer]) && c.as(x, recomputed)
	}, func(cell) found {
		return found{CauseTTL, "the served value is older than the view's TTL of " + c.v.TTL}
	})
}

// defaults: a default stands where there is a value.
func (c *comparison) defaults(context.Context) error {
	c.open = slices.DeleteFunc(c.open, func(x cell) bool {
		fallback := c.column(x).Default
		if fallback == nil || !alike(c.logged(x), *fallback) {
			return false
		}
		c.causes[x] = found{CauseDefault, "the default was served, and the training set now has a value"}
		return true
	})
	return nil
}

// note writes what differs into the report.
func (c *comparison) note() {
	for _, x := range c.open {
		c.causes[x] = found{CauseUnknown, "no change of data or definition explains the difference; check whether the online store was modified manually"}
	}
	cells := make([]cell, 0, len(c.causes))
	for x := range c.causes {
		cells = append(cells, x)
	}
	slices.SortFunc(cells, func(a, b cell) int {
		if a.answer != b.answer {
			return a.answer - b.answer
		}
		return a.feature - b.feature
	})
	for _, x := range cells {
		why := c.causes[x]
		c.report.Causes[why.cause]++
		if len(c.report.Examples) == maxExamples {
			continue
		}
		a := c.r.Answers[x.answer]
		field := c.v.Features[c.features[x.feature]]
		m := AnswerMismatch{ID: a.ID, Row: a.Row, At: a.At, Feature: c.v.Ref() + ":" + field.Name, Cause: why.cause, Detail: why.detail}
		if field.Protect == "" || slices.Contains(c.shown.features(), m.Feature) {
			m.Logged, m.Offline = present(c.logged(x)), present(c.offline[x.feature][x.answer])
		}
		c.report.Examples = append(c.report.Examples, m)
	}
}

// present is nil for a number that JSON has no form for.
func present(x float64) *float64 {
	if math.IsNaN(x) || math.IsInf(x, 0) {
		return nil
	}
	return &x
}
