package monitoring

import (
	"bytes"
	"context"
	"encoding/gob"
	"encoding/json"
	"log/slog"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/sketch"
	"github.com/falaj-ml/falaj/internal/store"
)

// What a baseline may be.
const (
	baselineTraining = "training"
	baselineFirst    = "window:first"
	sourceFirst      = "first window" // its Source
)

const (
	scoreSample  = 10_000 // rows that the model is run over for the score's baseline
	scoreBatch   = 1000
	scoreColumns = 4096
)

// Origin is where a baseline comes from.
type Origin struct {
	Ref            string // "delays@1"
	Digest         string // of its content
	Residency      residency.Label
	Classification string
	Inputs         []OriginInput
	// Definition changes whenever the same data would give another baseline:
	// which column is which input, what of the answer is the score.
	Definition string
	// Declared says that Inputs are all that the model sees: one that no record has
	// is missing.
	Declared bool
	// Scored says that Scores can be asked with all Inputs, in order; Unscored why it
	// cannot.
	Scored   bool
	Unscored string
	// Prediction is the column with the model's scores; empty: there is none.
	Prediction string
	// Note is what else is odd, such as names that may be several columns.
	Note string
}

// OriginInput is an input as records name it, and the column that has it.
type OriginInput struct {
	Name, Column string
	Otherwise    *float64 // what the model sees where the column has NULL; nil is NaN
}

// Sources are the data that baselines come from. A version from which a person was
// erased is the one that stands for it now. Errors of Training and Dataset:
// fault.NotFound, fault.Gone, fault.Conflict, fault.Invalid or fault.Unsupported
// when there is no baseline to be had; any other is tried again.
type Sources interface {
	// Training is what a version was trained on. Errors: fault.NotFound only where
	// nothing is known to be, so that the first window takes its place; fault.Conflict
	// where it may be several.
	Training(ctx context.Context, q OriginQuery) (Origin, error)
	// Dataset is a dataset that the manifest names.
	Dataset(ctx context.Context, q OriginQuery, ref string) (Origin, error)
	Open(ctx context.Context, project, ref string, columns []string) (array.RecordReader, error)
	// Scores runs the version over rows of an origin, where its label allows them to
	// be, without a record of it.
	Scores(ctx context.Context, project, deployment string, version int64, o Origin, rows [][]float64) ([]float64, error)
}

// OriginQuery says of what a baseline is wanted.
type OriginQuery struct {
	Project, Deployment string
	Version             int64
	Prediction          string // the column of scores that the manifest names
}

// defaultPrediction is the column of scores where the manifest names none.
const defaultPrediction = "prediction"

// PredictionOf is the column of a dataset that has the model's scores: the one that the
// manifest names, else the one called prediction. Error: fault.Invalid.
func (q OriginQuery) PredictionOf(columns []string) (column string, err error) {
	switch {
	case q.Prediction == "" && slices.Contains(columns, defaultPrediction):
		return defaultPrediction, nil
	case q.Prediction != "" && !slices.Contains(columns, q.Prediction):
		return "", fault.New(fault.Invalid, "spec.prediction_column: there is no column %.80q", q.Prediction)
	}
	return q.Prediction, nil
}

// baseline is what windows of a version are compared with.
type baseline struct {
	key     BaselineKey
	facts   Baseline
	names   []string
	columns map[string]*sketch.Column
	score   *sketch.Column // nil: scores have no baseline
}

// found is the baseline of a version, as it is now.
type found struct {
	*baseline        // nil: there is none
	why       string // it is none, or not the one that the manifest asks for
	first     bool   // without one, the first window becomes it
}

// baselineOf finds or computes the baseline of a version. known is the one that it was
// before, nil when that is not known, and had what its windows were compared with. The
// first window becomes the baseline where the manifest asks for it, or where nothing is
// known that the version was trained on or that has the name of one of its inputs; never in
// the place of a baseline that was there and is lost. inputs are the names in the window
// that is compared, nil where there is no window or it has none.
func (s *Service) baselineOf(ctx context.Context, m Monitor, version int64, known *baseline, had Compared, inputs []string) (found, error) {
	key := BaselineKey{Project: m.Project, Deployment: m.Deployment, Version: version, Digest: "window:" + string(m.ID)}
	first := func(why string) (found, error) {
		if known != nil && known.key == key {
			return found{baseline: known, why: why}, nil
		}
		b, err := s.readBaseline(ctx, key)
		f := found{baseline: b, why: why, first: b == nil}
		if f.first && had.Spec == m.Spec.Baseline && err == nil {
			f.first, f.why = false, "the "+had.Name+" is lost"
			if why != "" {
				f.why += ": " + why
			}
		}
		return f, err
	}
	if m.Spec.Baseline == baselineFirst {
		return first("")
	}
	o, err := s.originOf(ctx, m, version)
	if err == nil {
		var b *baseline
		if b, err = s.fromOrigin(ctx, m, version, o, known); err == nil {
			before := had.Spec == m.Spec.Baseline && strings.HasPrefix(had.Name, sourceFirst)
			why := b.unlike(inputs, len(inputs) > 0 || before)
			if why == "" {
				return found{baseline: b}, nil
			}
			return first(why)
		}
	}
	if !baselineless(err) {
		return found{}, fault.Wrap(err, "baseline of version %d of %s", version, m.Deployment)
	}
	why := err.Error()
	if m.Spec.Baseline == baselineTraining && fault.Is(err, fault.NotFound) {
		return first(why)
	}
	if hint := fault.HintOf(err); hint != "" {
		why += ". " + hint
	}
	if had.Spec == m.Spec.Baseline {
		why = "the " + had.Name + " is lost: " + why
	}
	return found{why: why}, nil
}

// unlike says why nothing of windows with such inputs can be compared with the baseline;
// empty where something can, or where the inputs are not known.
func (b *baseline) unlike(inputs []string, known bool) string {
	has := func(name string) bool { return b.columns[name] != nil }
	switch {
	case b.score != nil, len(b.names) > 0 && (b.facts.Declared || !known), slices.ContainsFunc(inputs, has):
		return ""
	case len(b.facts.Unsummarised) > 0 && len(b.names) == 0:
		return "no column of " + b.facts.Ref + " has a summary: " + listed(b.facts.Unsummarised)
	}
	return "no input of the model is a column of " + b.facts.Ref
}

// listed is "a: why, b: why".
func listed(why map[string]string) string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(why)) {
		out = append(out, name+": "+why[name])
	}
	return strings.Join(out[:min(len(out), maxTop)], ", ")
}

// originOf is where the baseline of a version comes from, unless it is the first
// window.
func (s *Service) originOf(ctx context.Context, m Monitor, version int64) (Origin, error) {
	q := OriginQuery{Project: m.Project, Deployment: m.Deployment, Version: version, Prediction: m.Spec.Prediction}
	if ref, ok := cutDataset(m.Spec.Baseline); ok {
		return s.Sources.Dataset(ctx, q, ref)
	}
	return s.Sources.Training(ctx, q)
}

// baselineless reports whether an error says that there is no baseline to be had;
// any other may pass.
func baselineless(err error) bool {
	return err != nil && slices.Contains([]fault.Kind{
		fault.NotFound, fault.Gone, fault.Conflict, fault.Invalid, fault.Unsupported, fault.PermissionDenied, fault.TooLarge,
	}, fault.KindOf(err))
}

func (s *Service) fromOrigin(ctx context.Context, m Monitor, version int64, o Origin, known *baseline) (*baseline, error) {
	key := BaselineKey{Project: m.Project, Deployment: m.Deployment, Version: version, Digest: o.Digest + "+" + o.Definition}
	if known != nil && known.key == key {
		return known, nil
	}
	b, err := s.readBaseline(ctx, key)
	if err != nil || b != nil {
		return b, err
	}
	if b, err = s.compute(ctx, m, version, o); err != nil {
		return nil, fault.Wrap(err, "computing the baseline from %s", o.Ref)
	}
	b.key = key
	sealed, err := s.sealBaseline(ctx, b)
	if err != nil {
		return nil, err
	}
	err = s.DB.Update(ctx, m.Project, func(ctx context.Context, tx *store.Tx) error {
		return s.Store.PutBaseline(ctx, tx, key, sealed)
	})
	return b, err
}

// compute reads the origin once, in batches.
func (s *Service) compute(ctx context.Context, m Monitor, version int64, o Origin) (*baseline, error) {
	b := &baseline{columns: map[string]*sketch.Column{}, facts: Baseline{
		Version: version, Source: "training set", Ref: o.Ref, Digest: o.Digest, Residency: o.Residency, Classification: o.Classification,
		ComputedAt: s.now().UTC(), Declared: o.Declared, ScoreNote: o.Unscored, Note: o.Note,
	}}
	if m.Spec.Baseline != baselineTraining {
		b.facts.Source = "dataset"
	}
	inputs := o.Inputs
	if o.Prediction != "" { // read last, as a column of its own
		inputs = append(slices.Clip(inputs), OriginInput{Column: o.Prediction})
		o.Scored = false
	}
	if len(inputs) == 0 {
		return b, nil
	}
	if len(inputs) > scoreColumns {
		return nil, fault.New(fault.TooLarge, "%s has %d columns, over the limit of %d", o.Ref, len(inputs), scoreColumns)
	}
	var columns []string
	for _, in := range inputs {
		columns = append(columns, in.Column)
	}
	rows, err := s.Sources.Open(ctx, m.Project, o.Ref, columns)
	if err != nil {
		return nil, err
	}
	defer rows.Release()
	into := make([]*sketch.Column, len(columns))
	for i, f := range rows.Schema().Fields() {
		k := WindowKey{Version: version}
		if err := summarised(f.Type); err != nil { // the other columns have a baseline all the same
			if i == len(o.Inputs) {
				b.facts.ScoreNote = "column " + o.Prediction + " of " + o.Ref + ": " + err.Error()
				continue
			}
			if b.facts.Unsummarised == nil {
				b.facts.Unsummarised = map[string]string{}
			}
			b.facts.Unsummarised[inputs[i].Name] = err.Error()
			if o.Scored {
				o.Scored, b.facts.ScoreNote = false, "column "+f.Name+" of "+o.Ref+" is not a number, and the model requires numbers"
			}
			continue
		}
		text := categorical(f.Type)
		if text {
			into[i] = sketch.NewCategorical(seed(k, inputs[i].Name))
		} else {
			into[i] = sketch.NewNumeric(seed(k, inputs[i].Name))
		}
		if i == len(o.Inputs) {
			if text {
				b.facts.ScoreNote = "column " + o.Prediction + " of " + o.Ref + " is text"
				continue
			}
			b.score, b.facts.ScoreNote = into[i], ""
			b.facts.ScoreSource = "column " + o.Prediction + " of " + o.Ref
			continue
		}
		if text && o.Scored {
			o.Scored, b.facts.ScoreNote = false, "column "+f.Name+" of "+o.Ref+" is text, and the model requires numbers"
		}
		b.columns[inputs[i].Name] = into[i]
		b.names = append(b.names, inputs[i].Name)
	}
	sample := reservoir{most: scoreSample, seed: seed(WindowKey{Version: version}, "rows")}
	if !o.Scored {
		sample.most = 0
	}
	for rows.Next() {
		if err := summarise(rows.RecordBatch(), inputs, into, &sample); err != nil {
			return nil, err
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
	}
	if err := rows.Err(); err != nil {
		return nil, err
	}
	b.facts.Rows = sample.seen
	if !o.Scored {
		return b, nil
	}
	if len(sample.rows) == 0 {
		b.facts.ScoreNote = o.Ref + " has no rows"
		return b, nil
	}
	if err := s.scores(ctx, m, version, o, b, sample.rows); err != nil {
		if ctx.Err() != nil {
			return nil, err
		}
		s.Log.WarnContext(ctx, "no score baseline from the training set", slog.String("deployment", m.Deployment),
			slog.Int64("version", version), slog.String("error", err.Error()))
		b.facts.ScoreNote = "scoring failed on " + o.Ref + ": " + err.Error()
	}
	return b, nil
}

// scores runs the model over sampled rows.
func (s *Service) scores(ctx context.Context, m Monitor, version int64, o Origin, b *baseline, rows [][]float64) error {
	score := sketch.NewNumeric(seed(WindowKey{Version: version}, ""))
	for len(rows) > 0 {
		n := min(len(rows), scoreBatch)
		got, err := s.Sources.Scores(ctx, m.Project, m.Deployment, version, o, rows[:n])
		if err != nil {
			return err
		}
		if len(got) != n {
			return fault.New(fault.Internal, "the model returned %d scores for %d rows", len(got), n)
		}
		for _, v := range got {
			score.Add(v)
		}
		rows = rows[n:]
	}
	b.score = score
	b.facts.ScoreSource = "scores of the model on " + strconv.FormatUint(score.Rows(), 10) + " rows of the training set"
	return nil
}

// reservoir keeps a uniform sample of rows, the same one for the same rows.
type reservoir struct {
	most int
	seed uint64
	seen int64
	rows [][]float64
}

// place says where the next row belongs, or -1.
func (r *reservoir) place() int {
	r.seen++
	if len(r.rows) < r.most {
		r.rows = append(r.rows, nil)
		return len(r.rows) - 1
	}
	if j := scramble(r.seed+uint64(r.seen)) % uint64(r.seen); j < uint64(r.most) { //nolint:gosec // G115: seen and most are not negative
		return int(j) //nolint:gosec // G115: below most
	}
	return -1
}

// scramble is SplitMix64's output function.
func scramble(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

func categorical(t arrow.DataType) bool {
	switch t.ID() {
	case arrow.STRING, arrow.LARGE_STRING, arrow.STRING_VIEW, arrow.DICTIONARY, arrow.BINARY, arrow.LARGE_BINARY:
		return true
	default:
		return false
	}
}

// summarise adds a batch to the columns, and some of its rows to the sample.
func summarise(batch arrow.RecordBatch, inputs []OriginInput, into []*sketch.Column, sample *reservoir) error {
	readers := make([]func(int) float64, len(into))
	for i, c := range into {
		if c == nil {
			continue
		}
		values := batch.Column(i)
		n := values.Len()
		if c.Kind() == sketch.Categorical {
			for row := range n {
				if values.IsNull(row) {
					c.AddText("")
				} else {
					c.AddText(values.ValueStr(row))
				}
			}
			continue
		}
		read, err := numbersOf(values, inputs[i].Otherwise)
		if err != nil {
			return fault.Wrap(err, "column %s", batch.ColumnName(i))
		}
		readers[i] = read
		for row := range n {
			c.Add(read(row))
		}
	}
	for row := range int(batch.NumRows()) {
		at := sample.place()
		if at < 0 {
			continue
		}
		values := make([]float64, len(into))
		for i, read := range readers {
			values[i] = read(row)
		}
		sample.rows[at] = values
	}
	return nil
}

// summarised says why columns of a type have no summary, as an error; nil where they have.
func summarised(t arrow.DataType) error {
	if categorical(t) {
		return nil
	}
	none := array.MakeArrayOfNull(memory.DefaultAllocator, t, 0)
	defer none.Release()
	_, err := numbersOf(none, nil)
	return err
}

// numbersOf reads a column as numbers; NULL, and NaN, is otherwise or NaN.
func numbersOf(a arrow.Array, otherwise *float64) (func(int) float64, error) {
	var read func(int) float64
	switch a := a.(type) {
	case *array.Float64:
		read = a.Value
	case *array.Float32:
		read = func(i int) float64 { return float64(a.Value(i)) }
	case *array.Int64:
		read = func(i int) float64 { return float64(a.Value(i)) }
	case *array.Int32:
		read = func(i int) float64 { return float64(a.Value(i)) }
	case *array.Boolean:
		read = func(i int) float64 {
			if a.Value(i) {
				return 1
			}
			return 0
		}
	case *array.Timestamp:
		unit := a.DataType().(*arrow.TimestampType).Unit
		read = func(i int) float64 { return float64(a.Value(i).ToTime(unit).UnixMicro()) / 1e6 }
	default:
		return nil, fault.New(fault.Unsupported, "type %s has no summary", a.DataType())
	}
	none := math.NaN()
	if otherwise != nil {
		none = *otherwise
	}
	return func(i int) float64 {
		if a.IsNull(i) {
			return none
		}
		if v := read(i); !math.IsNaN(v) {
			return v
		}
		return none
	}, nil
}

// fromWindow is a baseline of the first window of a version.
func fromWindow(m Monitor, w closed, why string, watched Watched, now time.Time) *baseline {
	from, to := at(w.From), at(w.To)
	b := &baseline{
		key:     BaselineKey{Project: m.Project, Deployment: m.Deployment, Version: w.Key.Version, Digest: "window:" + string(m.ID)},
		columns: map[string]*sketch.Column{}, names: w.all.Names,
		facts: Baseline{
			Declared: true, Version: w.Key.Version, Source: sourceFirst, Digest: windowDigest + w.Key.String(), Rows: w.all.Rows, From: &from, To: &to,
			Note: why, Residency: watched.Residency, Classification: watched.Classification, ComputedAt: now.UTC(),
		},
	}
	if w.all.Score.Count() > 0 {
		b.score, b.facts.ScoreSource = w.all.Score, "the first window"
	} else {
		b.facts.ScoreNote = "the first window has no scores"
	}
	for i, name := range w.all.Names {
		b.columns[name] = w.all.Columns[i]
	}
	return b
}

// windowDigest begins the digest of a baseline that is a window; its key follows.
const windowDigest = "window "

// itself says why a window is not compared with the baseline: it is that window, or has
// rows of it. Empty when it is compared.
func (b *baseline) itself(l layout, w closed) string {
	text, ok := strings.CutPrefix(b.facts.Digest, windowDigest)
	if !ok {
		return ""
	}
	k, ok := parseKey(text)
	if !ok || k.Version != w.Key.Version || k.Replay != w.Key.Replay {
		return ""
	}
	apart := max(k.Start-w.Key.Start, w.Key.Start-k.Start)
	shared := apart < l.Size
	if l.ByRows { // Start counts panes, of a slide's rows each
		shared = apart < l.Size/l.Slide
	} else if b.facts.From != nil { // windows of another length have begun since
		shared = w.From < b.facts.To.UnixMicro() && w.To > b.facts.From.UnixMicro()
	}
	switch {
	case apart == 0:
		return "this window is the baseline of later windows"
	case shared:
		return "this window shares rows with the baseline window"
	}
	return ""
}

// storedColumns is the form of a baseline's or window's sketches in the database.
type storedColumns struct {
	Names   []string
	Columns [][]byte
	Score   []byte
}

func encodeColumns(names []string, column func(i int) *sketch.Column, score *sketch.Column) ([]byte, error) {
	s := storedColumns{Names: names}
	for i := range names {
		one, err := column(i).MarshalBinary()
		if err != nil {
			return nil, err
		}
		s.Columns = append(s.Columns, one)
	}
	if score != nil {
		var err error
		if s.Score, err = score.MarshalBinary(); err != nil {
			return nil, err
		}
	}
	var b bytes.Buffer
	err := gob.NewEncoder(&b).Encode(s)
	return b.Bytes(), err
}

func decodeColumns(b []byte) (names []string, columns []*sketch.Column, score *sketch.Column, err error) {
	var s storedColumns
	if err := gob.NewDecoder(bytes.NewReader(b)).Decode(&s); err != nil {
		return nil, nil, nil, fault.Wrap(err, "read sketches")
	}
	if len(s.Names) != len(s.Columns) {
		return nil, nil, nil, fault.New(fault.Internal, "%d names for %d sketches", len(s.Names), len(s.Columns))
	}
	for _, one := range s.Columns {
		c := &sketch.Column{}
		if err := c.UnmarshalBinary(one); err != nil {
			return nil, nil, nil, err
		}
		columns = append(columns, c)
	}
	if len(s.Score) > 0 {
		score = &sketch.Column{}
		err = score.UnmarshalBinary(s.Score)
	}
	return s.Names, columns, score, err
}

func (s *Service) sealBaseline(ctx context.Context, b *baseline) (StoredBaseline, error) {
	plain, err := encodeColumns(b.names, func(i int) *sketch.Column { return b.columns[b.names[i]] }, b.score)
	if err != nil {
		return StoredBaseline{}, err
	}
	sealed, err := s.seal(ctx, b.key.Project, b.key.bound(), plain)
	return StoredBaseline{Facts: b.facts, Sealed: sealed}, err
}

// bound is what a sealed baseline is bound to.
func (k BaselineKey) bound() string {
	return "baseline/" + k.Deployment + "/" + strconv.FormatInt(k.Version, 10) + "/" + k.Digest
}

// readBaseline is a stored baseline, nil when there is none.
func (s *Service) readBaseline(ctx context.Context, k BaselineKey) (*baseline, error) {
	var got StoredBaseline
	err := s.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		got, err = s.Store.Baseline(ctx, tx, k)
		return err
	})
	if fault.Is(err, fault.NotFound) {
		return nil, nil //nolint:nilnil // nil is "none", which is no error here
	}
	if err != nil {
		return nil, err
	}
	plain, err := s.open(ctx, k.Project, k.bound(), got.Sealed)
	if err != nil {
		return nil, err
	}
	b := &baseline{key: k, facts: got.Facts, columns: map[string]*sketch.Column{}}
	var columns []*sketch.Column
	if b.names, columns, b.score, err = decodeColumns(plain); err != nil {
		return nil, err
	}
	for i, name := range b.names {
		b.columns[name] = columns[i]
	}
	return b, nil
}

// picture is a column for people's eyes.
func picture(name string, c *sketch.Column) (NamedColumn, error) {
	b, err := json.Marshal(c.Summary())
	return NamedColumn{Name: name, Summary: b}, err
}
