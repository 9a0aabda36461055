package feature

import (
	"context"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/apache/arrow-go/v18/arrow/array"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/feature/offline"
	"github.com/falaj-ml/falaj/internal/feature/online"
	"github.com/falaj-ml/falaj/internal/feature/value"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/lifecycle"
	"github.com/falaj-ml/falaj/internal/store"
)

// VerifyRequest asks whether training and serving agree. Exactly one of
// TrainingSet and View is given; with a View the newest training set that used it
// is taken, and only that view's features are compared.
type VerifyRequest struct {
	Project     project.Name
	TrainingSet string // "delays@1"
	View        string // a ref
	Sample      int    // rows compared, chosen at random: 1,000 when 0, at most 100,000
	Seed        uint64 // of the choice; the same seed chooses the same rows
}

// Report is the outcome of a verification.
type Report struct {
	TrainingSet string   `json:"training_set"`
	Views       []string `json:"views"`
	Rows        int      `json:"rows"`       // compared
	Values      int      `json:"values"`     // compared
	Present     int      `json:"present"`    // of these, not NULL in the training set
	Mismatches  int      `json:"mismatches"` // of these, different online
	// Rounded values differ in the last digits of a float64 only: the view's SQL
	// adds in no fixed order. They are no mismatches.
	Rounded int `json:"rounded,omitempty"`
	// Inputs are the tables whose content the training set and the online rows were
	// made from in different versions: a mismatch may come from there.
	Inputs []InputDifference `json:"different_inputs,omitempty"`
	// Examples are the first mismatches.
	Examples []Mismatch `json:"examples,omitempty"`
}

// InputDifference is a table of a view's source that differs between training and
// serving. A side is empty where it has no such table, or does not say.
type InputDifference struct {
	View    string `json:"view"` // "weather@2"
	Table   string `json:"table"`
	Offline string `json:"offline"` // "observations@1"
	Online  string `json:"online"`
}

// Mismatch is a value that differs.
type Mismatch struct {
	Row     int64         `json:"row"` // of the training set, from 1
	At      time.Time     `json:"at"`
	Feature string        `json:"feature"` // "weather@2:temp"
	Offline value.Value   `json:"offline"`
	Online  value.Value   `json:"online"`
	Status  online.Status `json:"status"` // MASKED where the reader may not see the values
}

const (
	defaultSample = 1000
	maxSample     = 100_000
	maxExamples   = 20
)

// Verification compares online rows with their sources, and what was answered with what
// is true.
type Verification struct {
	*access
	reads   *OnlineReads
	streams *Streams
	checks  *lastChecks
	watcher *lifecycle.Loop
}

func newVerification(a *access, reads *OnlineReads, streams *Streams, checks *lastChecks) *Verification {
	s := &Verification{access: a, reads: reads, streams: streams, checks: checks}
	s.watcher = &lifecycle.Loop{
		Name: "feature verification", Every: min(s.cfg.Watch.Every, time.Minute), Logger: s.log, Timeout: 24 * time.Hour, // each check has its own limit
		Run: func(ctx context.Context) error { return s.WatchOnce(identity.With(ctx, identity.Loop("feature"))) },
	}
	return s
}

// Watching compares what is online with what it was made from, as Config.Watch
// says; it is for Every above zero.
func (s *Verification) Watching() lifecycle.Service { return s.watcher.Service() }

// Verify compares rows of a training set with what the online store answers as
// of each row's time. Needs feature.history on each view, and to read the
// training set; of features that are protected and that the reader may not see, the
// examples have no values. Errors: fault.Conflict when a view is not online up to the
// training set's last row, or its rows were replaced during the comparison.
func (s *Verification) Verify(ctx context.Context, r VerifyRequest) (Report, error) {
	if r.Sample <= 0 {
		r.Sample = defaultSample
	}
	if r.Sample > maxSample {
		return Report{}, fault.New(fault.TooLarge, "a sample of %d rows is over the limit of %d", r.Sample, maxSample)
	}
	if err := s.allow(ctx, ActionRead, r.Project, r.View); err != nil {
		return Report{}, err
	}
	t, err := s.verified(ctx, r)
	if err != nil {
		return Report{}, err
	}

	// 1. The same selection, as the online store has it.
	var features []string
	var columns []string
	for _, u := range t.Views {
		for _, f := range u.Features {
			features = append(features, u.View+":"+f.Feature)
			columns = append(columns, f.Column)
		}
	}
	pl, err := s.resolve(ctx, r.Project, Selection{Features: features, FullNames: true})
	if err != nil {
		return Report{}, err
	}
	purpose, err := s.admit(ctx, ActionHistory, r.Project, pl, t.Purpose)
	if err != nil {
		return Report{}, err
	}
	hidden := map[int]Protection{} // as the training set has them
	for at, column := range columns {
		for _, h := range t.Protected {
			if h.Column == column {
				hidden[at] = h.As
			}
		}
	}
	// A training set in clear says nothing of who may see what is online by now.
	sees, err := s.show(ctx, pl, pl.objects(r.Project))
	if err != nil {
		return Report{}, err
	}
	var unmasked []string
	for _, c := range pl.protected {
		if _, masked := sees.hidden[c.column]; !masked && hidden[c.column] == "" {
			unmasked = append(unmasked, c.needs[0].feature)
		}
	}

	// 2. Rows of the training set.
	all, err := s.sample(ctx, r, t, pl, columns)
	if err != nil {
		return Report{}, err
	}
	sample := pl.remembered(all)
	marks, err := s.watermarks(ctx, pl)
	if err != nil {
		return Report{}, err
	}
	if len(sample) == 0 && len(all) > 0 {
		return Report{}, pl.remembers(all[0].at)
	}
	if err := pl.reaches(sample, marks); err != nil {
		return Report{}, err
	}

	// 3. Compare.
	report := Report{TrainingSet: t.Dataset, Views: pl.refs(), Rows: len(sample)}
	for i, v := range pl.views {
		if v.view.Source.Stream != nil {
			continue // online it has gone on since
		}
		at := slices.IndexFunc(t.Views, func(u UsedView) bool { return u.View == v.view.Ref() })
		for _, d := range differing(t.Views[at].Inputs, pl.online[i].Inputs) {
			report.Inputs = append(report.Inputs, InputDifference{
				View: v.view.Ref(), Table: max(d[0].Table, d[1].Table), Offline: d[0].Dataset, Online: d[1].Dataset,
			})
		}
	}
	keys := make([][][]byte, len(pl.views))
	for _, row := range sample {
		answer := make([]Column, len(pl.names))
		for i, v := range pl.views {
			keys[i] = append(keys[i], row.keys[i])
			if err := s.reads.readView(ctx, v, pl.online[i].tables(), [][]byte{row.keys[i]}, row.at, answer); err != nil {
				return Report{}, err
			}
		}
		if err := s.hide(ctx, r.Project, answer, pl.types, hidden); err != nil {
			return Report{}, err
		}
		for i, want := range row.values {
			report.Values++
			if !want.IsNull() {
				report.Present++
			}
			if got := answer[i].Values[0]; rounded(want, got) {
				report.Rounded++
			} else if !got.Equal(want) {
				report.Mismatches++
				if len(report.Examples) < maxExamples {
					m := Mismatch{Row: row.number, At: row.at, Feature: answer[i].Feature, Offline: want, Online: got, Status: answer[i].Statuses[0]}
					if _, masked := sees.hidden[i]; masked && hidden[i] == "" {
						m.Offline, m.Online, m.Status = value.Null(want.Type()), value.Null(want.Type()), online.Masked
					}
					report.Examples = append(report.Examples, m)
				}
			}
		}
	}
	if err := s.journal(ctx, ActionHistory, r.Project, pl, keys, s.now(), purpose, unmasked); err != nil {
		return Report{}, err
	}
	oldest := s.now()
	for _, row := range sample {
		if row.at.Before(oldest) {
			oldest = row.at
		}
	}
	if err := s.unchanged(ctx, r.Project, pl, oldest); err != nil {
		return Report{}, err
	}
	return report, s.cfg.DB.Update(ctx, string(r.Project), func(ctx context.Context, tx *store.Tx) error {
		return audit.Append(ctx, tx, audit.Entry{
			Project: string(r.Project), Action: string(ActionHistory), Object: "dataset " + t.Dataset,
			Detail: map[string]any{"verified": report.Views, "rows": report.Rows, "values": report.Values, "mismatches": report.Mismatches},
		})
	})
}

// remembered are the rows of times whose history is online.
func (pl *plan) remembered(sample []sampled) []sampled {
	var out []sampled
	for _, r := range sample {
		if pl.remembers(r.at) == nil {
			out = append(out, r)
		}
	}
	return out
}

// unchanged refuses a comparison with rows that were replaced meanwhile, or removed for
// their age, the oldest time being asked: some of the answers may be of rows that are gone.
func (s *Verification) unchanged(ctx context.Context, p project.Name, pl *plan, oldest time.Time) error {
	return s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		for i, v := range pl.views {
			o, err := s.onlineStore.Online(ctx, tx, p, v.view.Name, v.view.Version)
			if err != nil && !fault.Is(err, fault.NotFound) {
				return err
			}
			if o.Generation != pl.online[i].Generation {
				return fault.New(fault.Conflict, "the online rows of feature view %s were replaced during the verification", v.view.Ref()).WithHint("Verify again.")
			}
			if oldest.Before(o.HistorySince) {
				return fault.New(fault.Conflict, "online rows of feature view %s expired during the verification (online.history)", v.view.Ref()).WithHint("Verify again.")
			}
		}
		return nil
	})
}

// rounded reports whether two floats differ, by less than a part in 10¹².
func rounded(a, b value.Value) bool {
	if a.Type() != value.Float64 || a.IsNull() || b.IsNull() || a.Equal(b) {
		return false
	}
	return math.Abs(a.Float()-b.Float()) <= 1e-12*math.Max(math.Abs(a.Float()), math.Abs(b.Float()))
}

// verified finds the training set that a request means, with the views it means.
func (s *Verification) verified(ctx context.Context, r VerifyRequest) (TrainingSet, error) {
	switch {
	case (r.TrainingSet == "") == (r.View == ""):
		return TrainingSet{}, fault.New(fault.Invalid, "a training set or a feature view to verify is required")
	case r.TrainingSet != "":
		return s.trainingSet(ctx, r.Project, r.TrainingSet)
	}
	var t TrainingSet
	err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		d, err := s.find(ctx, tx, r.Project, ViewKind, r.View)
		if err != nil {
			return err
		}
		sets, err := s.trainingSetStore.TrainingSets(ctx, tx, r.Project, d.Name, d.Version, 1)
		if err != nil {
			return err
		}
		if len(sets) == 0 {
			return fault.New(fault.NotFound, "no training set used feature view %s", d.Ref()).WithHint("Create a training set, or name another version of the view.")
		}
		t = sets[0]
		t.Views = slices.DeleteFunc(slices.Clone(t.Views), func(u UsedView) bool { return u.View != d.Ref() })
		return nil
	})
	return t, err
}

// sampled is a row of a training set.
type sampled struct {
	number int64
	at     time.Time
	keys   [][]byte // by view; nil where a part is NULL
	values []value.Value
}

// sample chooses rows of a training set, each with the same chance.
func (s *Verification) sample(ctx context.Context, r VerifyRequest, t TrainingSet, pl *plan, columns []string) ([]sampled, error) {
	names := []string{t.Timestamp}
	types := []value.Type{value.Timestamp}
	place := map[string]int{t.Timestamp: 0}
	add := func(name string, typ value.Type) {
		if _, there := place[name]; !there {
			place[name] = len(names)
			names, types = append(names, name), append(types, typ)
		}
	}
	for _, v := range pl.views {
		for _, k := range v.view.Keys {
			add(k.Name, k.Type)
		}
	}
	for i, c := range columns {
		typ, err := typeOf("type", pl.types[i])
		if err != nil {
			return nil, err
		}
		add(c, typ)
	}
	rows, err := s.cfg.Data.Open(ctx, r.Project, t.Dataset, names)
	if err != nil {
		return nil, err
	}
	defer rows.Release()

	rnd := rand.New(rand.NewPCG(r.Seed, 0)) //nolint:gosec // a choice that can be repeated, not a secret
	var sample []sampled
	err = eachRow(ctx, rows, names, types, func(number int64, row func(i int) value.Value) error {
		at := len(sample)
		if at == r.Sample {
			if at = int(rnd.Int64N(number)); at >= r.Sample {
				return nil
			}
		} else {
			sample = append(sample, sampled{})
		}
		out := sampled{number: number, at: row(0).Time()}
		for _, v := range pl.views {
			var key []byte
			for _, k := range v.view.Keys {
				x := row(place[k.Name])
				if x.IsNull() {
					key = nil
					break
				}
				key = value.AppendKey(key, x)
			}
			out.keys = append(out.keys, key)
		}
		for _, c := range columns {
			out.values = append(out.values, row(place[c]).Clone()) // the batch goes away
		}
		sample[at] = out
		return nil
	})
	return sample, fault.Wrap(err, "reading training set %s", t.Dataset)
}

func eachRow(ctx context.Context, rows array.RecordReader, names []string, types []value.Type, do func(number int64, row func(i int) value.Value) error) error {
	number := int64(0)
	for rows.Next() {
		if err := ctx.Err(); err != nil {
			return err
		}
		cells, err := offline.Cells(rows.RecordBatch(), names, types)
		if err != nil {
			return err
		}
		for row := range int(rows.RecordBatch().NumRows()) {
			number++
			if err := do(number, func(i int) value.Value { return cells(row, i) }); err != nil {
				return err
			}
		}
	}
	return rows.Err()
}

// watermarks are the times up to which views are online.
func (s *Verification) watermarks(ctx context.Context, pl *plan) ([]time.Time, error) {
	marks := make([]time.Time, len(pl.views))
	for i, v := range pl.views {
		marks[i] = pl.online[i].Watermark
		if v.view.Source.Stream == nil {
			continue
		}
		var err error
		if marks[i], err = s.streams.watermark(ctx, v.view); err != nil {
			return nil, err
		}
	}
	return marks, nil
}

// reaches refuses rows later than what was materialised: their answers are not
// known yet.
func (pl *plan) reaches(sample []sampled, marks []time.Time) error {
	var last time.Time
	for _, r := range sample {
		if r.at.After(last) {
			last = r.at
		}
	}
	for i, v := range pl.views {
		if w := marks[i]; micros(w) < micros(last) {
			until := "not completely materialised"
			if !w.IsZero() {
				until = "materialised up to " + w.Format(time.RFC3339)
			}
			return fault.New(fault.Conflict, "feature view %s is %s, but the training set extends to %s", v.view.Ref(), until, last.Format(time.RFC3339)).
				WithHint("Materialise it first: falaj feature materialise %s --until %s.", v.view.Ref(), last.Add(time.Second).Format(time.RFC3339))
		}
	}
	return nil
}
