package serving

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/serving/prediction"
	"github.com/falaj-ml/falaj/internal/serving/runtime"
)

// score is which number of an answer is a row's score.
type score struct {
	output string // "": none is monitored
	index  int    // column; -1 is the last
	// task is what the model answers; empty is not known.
	task prediction.Task
	// label is the output with the class of each row; "": there is none. classed says
	// that with it the number of probabilities tells the task, which the model's
	// metadata leave open.
	label   string
	classed bool
	names   []string // of the classes, in the order of the probabilities; may be empty
}

// Bounds of the classes of a model.
const (
	maxClasses = 1000
	maxClass   = 256 // bytes of a name
)

// ofClasses reports whether an answer may have several classes.
func (c score) ofClasses() bool { return c.task == prediction.Multiclass || c.classed }

// scoreOf finds the score among a model's outputs. Error: fault.Invalid.
func scoreOf(p *PredictionSpec, m runtime.Metadata) (score, error) {
	out := score{index: -1}
	var floats []string
	for _, o := range m.Outputs {
		if o.Datatype == runtime.FP32 || o.Datatype == runtime.FP64 {
			floats = append(floats, o.Name)
		}
	}
	if len(floats) == 1 {
		out.output = floats[0]
	}
	if p == nil || p.Output == "" && p.Index == nil {
		return out.classify(p, m)
	}
	if p.Output != "" {
		out.output = p.Output
	}
	i := slices.IndexFunc(m.Outputs, func(o runtime.Spec) bool { return o.Name == out.output })
	if i < 0 {
		names := make([]string, len(m.Outputs))
		for i, o := range m.Outputs {
			names[i] = strconv.Quote(o.Name) + " (" + string(o.Datatype) + ")"
		}
		return out, fault.New(fault.Invalid, "spec.prediction.output: %q is not an output of the model, or omitted although several outputs are numeric", out.output).
			WithHint("Outputs of the model: %v.", names)
	}
	o := m.Outputs[i]
	if o.Datatype == runtime.Bytes {
		return out, fault.New(fault.Invalid, "spec.prediction.output: %q is text, not a number", o.Name)
	}
	if p.Index == nil {
		return out.classify(p, m)
	}
	out.index = *p.Index
	if n := len(o.Shape); n > 1 && o.Shape[n-1] >= 0 && int64(out.index) >= o.Shape[n-1] || n == 1 && out.index > 0 {
		return out, fault.New(fault.Invalid, "spec.prediction.index: %d does not exist in output %q with shape %v", out.index, o.Name, o.Shape)
	}
	return out.classify(p, m)
}

// classify finds out what the model answers: what the manifest declares, else what its
// outputs are. A model with one output of whole numbers or texts, a value for each row,
// beside its probabilities is a classifier, as those are that scikit-learn, XGBoost and
// LightGBM export; a lone output of fractions may be anything. Error: fault.Invalid.
func (c score) classify(p *PredictionSpec, m runtime.Metadata) (score, error) {
	width := int64(-1) // of the score's output; -1 is known with the answer
	var labels []string
	for _, o := range m.Outputs {
		lone := len(o.Shape) == 1 || len(o.Shape) == 2 && o.Shape[1] == 1
		switch {
		case o.Name == c.output && len(o.Shape) == 1:
			width = 1
		case o.Name == c.output && len(o.Shape) == 2:
			width = o.Shape[1]
		case o.Name == c.output:
		case lone && (o.Datatype == runtime.Bytes || o.Datatype == runtime.Int64 || o.Datatype == runtime.Int32):
			labels = append(labels, o.Name)
		}
	}
	if len(labels) == 1 {
		c.label = labels[0]
	}
	if p != nil {
		c.task, c.names = p.Task, p.Classes
		if n := int64(len(c.names)); n > 0 && width > 1 && n != width {
			return c, fault.New(fault.Invalid, "spec.prediction.classes: %d names do not match output %q with %d columns", n, c.output, width)
		}
	}
	if c.task != "" || c.label == "" || c.output == "" {
		return c, nil
	}
	switch {
	case width > 2 && c.index < 0:
		c.task = prediction.Multiclass
	case width > 2: // what one class of several is judged as only the manifest can tell
	case width > 0:
		c.task = prediction.Binary
	default:
		c.classed = true
	}
	return c, nil
}

// classes are what an answer of several classes says of each row: which one it is, by the
// model's own word or else by the highest probability, and how probable each is. task is
// what the answer is.
func (c score) classes(outputs []runtime.Tensor, rows int) (task prediction.Task, predicted []string, probabilities []float64) {
	find := func(name string) any {
		if i := slices.IndexFunc(outputs, func(t runtime.Tensor) bool { return t.Name == name }); i >= 0 && name != "" {
			return outputs[i].Data
		}
		return nil
	}
	p := numbers(find(c.output))
	if rows <= 0 || len(p)%rows != 0 {
		p = nil
	}
	width := len(p) / max(rows, 1)
	switch {
	case c.task == "" && width > 2 && c.index < 0:
		c.task = prediction.Multiclass
	case c.task == "" && width > 2:
	case c.task == "" && width > 0:
		c.task = prediction.Binary
	}
	if c.task != prediction.Multiclass {
		return c.task, nil, nil
	}
	switch data := find(c.label).(type) {
	case []string:
		predicted = data
	case []int64:
		predicted = texts(data)
	case []int32:
		predicted = texts(data)
	default:
		if width > 0 {
			predicted = make([]string, rows)
			for i := range predicted {
				predicted[i] = c.class(highest(p[i*width : (i+1)*width]))
			}
		}
	}
	if len(predicted) != rows {
		predicted = nil
	}
	if len(p) > prediction.MaxProbabilities || width < 2 {
		p = nil
	}
	return c.task, predicted, p
}

// class is what a class is called by its number.
func (c score) class(n int) string {
	if n < len(c.names) {
		return c.names[n]
	}
	return strconv.Itoa(n)
}

// highest is the place of the highest probability, the first of several.
func highest(p []float64) (at int) {
	for i, x := range p {
		if x > p[at] {
			at = i
		}
	}
	return at
}

func texts[T int32 | int64](data []T) []string {
	out := make([]string, len(data))
	for i, n := range data {
		out[i] = strconv.FormatInt(int64(n), 10)
	}
	return out
}

// of takes the scores out of an answer; nil when it has none for each row.
func (c score) of(outputs []runtime.Tensor, rows int) []float64 {
	i := slices.IndexFunc(outputs, func(t runtime.Tensor) bool { return t.Name == c.output })
	if i < 0 || rows == 0 {
		return nil
	}
	scores := make([]float64, rows)
	switch data := outputs[i].Data.(type) { // the usual ones without a copy of everything
	case []float32:
		if pickColumn(scores, data, c.index) {
			return scores
		}
	default:
		if pickColumn(scores, numbers(data), c.index) {
			return scores
		}
	}
	return nil
}

func pickColumn[T float32 | float64](scores []float64, data []T, index int) bool {
	rows := len(scores)
	if len(data) == 0 || len(data)%rows != 0 {
		return false
	}
	width := len(data) / rows
	if index < 0 {
		index = width - 1
	}
	if index >= width {
		return false
	}
	for i := range scores {
		scores[i] = float64(data[i*width+index])
	}
	return true
}

// maxRecorded bounds the columns that are remembered: an image is not a row of
// features.
const maxRecorded = 1024

// lost counts answers that were given and could not be remembered.
type lost struct {
	byKey sync.Map // key → *loss
}

type loss struct {
	answers atomic.Int64
	told    atomic.Int64 // when the log was told last, in seconds since 1970
}

// add counts an answer; tell says that the log has not heard of it this second:
// on a full disk it would take what is left.
func (l *lost) add(k key, now time.Time) (n int64, tell bool) {
	v, _ := l.byKey.LoadOrStore(k, &loss{})
	x := v.(*loss)
	second := now.Unix()
	return x.answers.Add(1), x.told.Swap(second) != second
}

func (l *lost) count(k key) int64 {
	if x, ok := l.byKey.Load(k); ok {
		return x.(*loss).answers.Load()
	}
	return 0
}

// remember writes down what was asked and answered. An answer that cannot be
// written down is given all the same, and counted; that of a confidential or
// restricted model is not given.
func (c *call) remember(ctx context.Context, x *target, outputs []runtime.Tensor, latency time.Duration, failed error, shadow bool) error {
	if c.s.cfg.Predictions == nil || !c.table.deployment.Spec.remembered() {
		return nil
	}
	r := &prediction.Record{
		ID: c.r.ID, Project: c.r.Project, Deployment: c.r.Name, Owner: c.table.owner, Model: x.model.Name, Version: x.model.Version, Rollout: string(c.rollout), Bucket: c.bucket,
		Shadow: shadow, At: c.received, Received: c.received, Latency: latency, Rows: max(0, c.filled.rows), Keys: c.filled.keys,
	}
	if remote := x.how.runtime.Remote.Name; remote != "" {
		r.Remote, r.Zone = remote, string(x.zone)
	}
	if !c.r.AsOf.IsZero() {
		r.At, r.Replay = c.r.AsOf, true
	}
	if r.Inputs = c.filled.columns; r.Inputs == nil {
		r.Inputs = c.recorded(c.saw(x, outputs))
	}
	if failed == nil {
		r.Scores = x.score.of(outputs, r.Rows)
		r.Task = x.score.task
		if x.score.ofClasses() {
			r.Task, r.Predicted, r.Probabilities = x.score.classes(outputs, r.Rows)
		}
	} else {
		r.Failure = failureOf(failed)
		if c.gaveUp && !shadow {
			r.Failure = prediction.GaveUp
		}
	}
	// The client may have gone away; what happened has happened.
	err := c.s.cfg.Predictions.Append(context.WithoutCancel(ctx), r)
	if err == nil {
		return nil
	}
	n, tell := c.s.lost.add(key{c.r.Project, c.r.Name}, time.Now())
	if class := x.model.Classification; class == "confidential" || class == "restricted" {
		return fault.Wrap(err, "logging a prediction failed")
	}
	if tell {
		c.s.log.ErrorContext(ctx, "logging predictions failed", slog.String("deployment", c.r.Name), slog.Int64("lost", n), slog.String("error", err.Error()))
	}
	return nil
}

// failureOf is what a failure is remembered as: what a model refuses although it
// is what it says that it takes says something about the model, not the asker.
func failureOf(err error) string {
	if _, is := errors.AsType[modelError](err); is && fault.Is(err, fault.Invalid) {
		return prediction.FailedInModel
	}
	return fault.KindOf(err).String()
}

// recorded are the model's own inputs by column; nil when they are no rows of
// features.
func (c *call) recorded(inputs []runtime.Tensor) []prediction.Column {
	rows := c.filled.rows
	if rows <= 0 {
		return nil
	}
	var out []prediction.Column
	for _, t := range inputs {
		n, err := runtime.Elements(t.Shape)
		if err != nil || n == 0 || n%rows != 0 || len(out)+n/rows > maxRecorded || len(t.Shape) > 0 && t.Shape[0] != int64(rows) {
			return nil
		}
		width := n / rows
		if texts, ok := t.Data.([]string); ok {
			out = append(out, c.texts(t.Name, texts, width)...)
			continue
		}
		values := numbers(t.Data)
		if len(values) != n {
			return nil // shape and data disagree: the model has refused it, too
		}
		if width == 1 {
			out = append(out, prediction.Column{Name: c.columnNames(t.Name, 1)[0], Numbers: values})
			continue
		}
		names := c.columnNames(t.Name, width)
		out = slices.Grow(out, width)
		turned := values // of one row, it is the columns already
		if rows > 1 {
			turned = make([]float64, n)
			for i := range width {
				for row := range rows {
					turned[i*rows+row] = values[row*width+i]
				}
			}
		}
		for i, name := range names {
			out = append(out, prediction.Column{Name: name, Numbers: turned[i*rows : (i+1)*rows : (i+1)*rows]})
		}
	}
	return out
}

func (c *call) texts(name string, data []string, width int) []prediction.Column {
	rows := c.filled.rows
	if len(data) != rows*width {
		return nil
	}
	out := make([]prediction.Column, width)
	for i, name := range c.columnNames(name, width) {
		out[i] = prediction.Column{Name: name, Texts: data}
		if width > 1 {
			out[i].Texts = make([]string, rows)
			for row := range rows {
				out[i].Texts[row] = data[row*width+i]
			}
		}
	}
	return out
}

// columnNames are what the columns of an input are called: by the deployment's
// features, else "X" for a lone one and "X.2" for the third of many.
func (c *call) columnNames(input string, width int) []string {
	if f := c.table.features; f != nil && f.input == input && len(f.names) == width {
		return f.names
	}
	if names := c.target.names[input]; len(names) == width {
		return names
	}
	return numbered(input, width)
}

// numbered are the names of an input's columns.
func numbered(input string, width int) []string {
	if width == 1 {
		return []string{input}
	}
	names := make([]string, width)
	for i := range names {
		names[i] = input + "." + strconv.Itoa(i)
	}
	return names
}

// inputNames are those of the inputs whose width does not vary, made once.
func inputNames(m runtime.Metadata) map[string][]string {
	names := map[string][]string{}
	for _, in := range append(slices.Clip(m.Inputs), m.Optional...) {
		width := int64(1)
		for _, n := range in.Shape[min(1, len(in.Shape)):] {
			if n < 1 || n > maxRecorded || width > maxRecorded {
				width = 0
				break
			}
			width *= n
		}
		if width >= 1 && width <= maxRecorded {
			names[in.Name] = numbered(in.Name, int(width))
		}
	}
	return names
}
