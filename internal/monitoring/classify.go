package monitoring

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/falaj-ml/falaj/internal/event"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/feature/naming"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/id"
	"github.com/falaj-ml/falaj/internal/monitoring/classifier"
	"github.com/falaj-ml/falaj/internal/serving/prediction"
	"github.com/falaj-ml/falaj/internal/sketch"
	"github.com/falaj-ml/falaj/internal/store"
)

// ActionSubmit is asked before a domain classifier begins: it is a job.
const ActionSubmit policy.Action = "job.submit"

const (
	maxClassifying    = 2 // requests at a time that read windows
	classifyWait      = time.Minute
	maxClassifiedRows = 10_000_000 // of a window
	classifyBatch     = 8192       // rows
	maxTop            = 10         // features that a window shows
)

// ClassifyState is how far a domain classifier is.
type ClassifyState string

// The states. Done and failed end a classification; asking again begins anew.
const (
	Classifying    ClassifyState = "running"
	Classified     ClassifyState = "done"
	ClassifyFailed ClassifyState = "failed" // the reason says why
)

// Classification is what a domain classifier found: whether a model can tell the
// rows of a window from those of the baseline.
type Classification struct {
	Window      string               `json:"window" doc:"The window's id"`
	State       ClassifyState        `json:"state" doc:"running, done or failed"`
	Reason      string               `json:"reason,omitempty" doc:"Reason of the failure, or a remark"`
	Job         string               `json:"job,omitempty" doc:"Training job"`
	Dataset     string               `json:"dataset,omitempty" doc:"The window's rows"`
	Baseline    string               `json:"baseline,omitempty" doc:"Baseline dataset"`
	Environment string               `json:"environment"`
	AUC         *float64             `json:"auc" doc:"Area under the ROC curve, out of fold; 0.5: window and baseline are indistinguishable"`
	Low         *float64             `json:"low" doc:"Lower bound of its 95 % confidence interval"`
	High        *float64             `json:"high"`
	PValue      *float64             `json:"p_value" doc:"p-value of a permutation test"`
	Threshold   float64              `json:"threshold" doc:"Drifted when the lower bound is above this value"`
	Drifted     bool                 `json:"drifted"`
	Sampled     []int64              `json:"sampled,omitempty" doc:"Number of rows used, of baseline and window"`
	TopFeatures []classifier.Feature `json:"top_features,omitempty" doc:"Inputs by decreasing importance, at most 10; the job's artifact domain.json lists up to 100"`
	By          string               `json:"by" doc:"Requester"`
	Began       time.Time            `json:"began_at"`
	Ended       *time.Time           `json:"ended_at,omitempty"`
}

// StoredClassification is a classification with the place it belongs to.
type StoredClassification struct {
	Monitor Monitor
	Key     WindowKey
	Classification
}

// Classifiers does what a domain classifier needs of data and jobs. The principal
// of ctx is who asked, but for Outcome, where it is a loop's.
type Classifiers interface {
	// Check refuses, before anything is made, what Begin would: a dataset that may
	// not be read, an environment that is not there.
	Check(ctx context.Context, project, baseline, environment string) error
	// Keep makes a dataset version of a window's rows; the same rows give the
	// version that is there. It may be only where the deployment, the version and
	// the data that it was trained on may be.
	Keep(ctx context.Context, w KeptWindow) (ref string, err error)
	// Begin submits the job; the same one is submitted once.
	Begin(ctx context.Context, j ClassifierJob) (job string, err error)
	// Outcome is how a job ended. Error: fault.NotFound.
	Outcome(ctx context.Context, project, job string) (ClassifierOutcome, error)
}

// KeptWindow is a window's rows on their way into a dataset.
type KeptWindow struct {
	Project, Deployment, Model string
	Version                    int64
	Dataset                    string
	Window                     string // what the rows are, in words
	Rows                       array.RecordReader
}

// ClassifierJob is the training of a domain classifier.
type ClassifierJob struct {
	Project, Name, Environment string
	Script, Argument           string
	Data                       map[string]string
}

// ClassifierOutcome is how a job ended.
type ClassifierOutcome struct {
	Ended, Succeeded bool
	Reason           string // in words
	Result           []byte // its answer; nil when it left none
}

// ClassifyRequest asks for a domain classifier.
type ClassifyRequest struct {
	Window      string `json:"window,omitempty" maxLength:"60" doc:"Window ID; empty: the newest window of the version that was evaluated last"`
	Environment string `json:"environment,omitempty" maxLength:"200" doc:"An environment with scikit-learn and pyarrow; empty is spec.drift.classifier.environment"`
}

// Classify begins a domain classifier of a closed window: its rows become a
// dataset version, and a job learns to tell them from the baseline's. What comes
// of it is shown with the window. Needs monitor.read, job.submit, dataset.import
// and the reading of the baseline's dataset. Errors: fault.NotFound;
// fault.Invalid without an environment; fault.Conflict when the window or the
// baseline has no rows to learn from, which the window then shows, too;
// fault.Exhausted.
func (s *Service) Classify(ctx context.Context, p, name string, ask ClassifyRequest) (Classification, error) {
	m, watched, err := s.classified(ctx, p, name)
	if err != nil {
		return Classification{}, err
	}
	if err := s.Authz.Allow(ctx, ActionSubmit, policy.Object{Project: p, Kind: "job"}); err != nil {
		return Classification{}, err
	}
	if s.Classifiers == nil {
		return Classification{}, fault.New(fault.Unsupported, "this server does not support domain classifiers")
	}
	spec := m.Spec.Drift.Classifier.withDefaults()
	def(&ask.Environment, spec.Environment)
	if ask.Environment == "" {
		return Classification{}, fault.New(fault.Invalid, "the environment for the domain classifier of %s is required", name).
			WithHint("Name an environment with scikit-learn and pyarrow in --environment or spec.drift.classifier.environment.")
	}
	w, kinds, err := s.closedWindow(ctx, m, ask.Window)
	if err != nil {
		return Classification{}, err
	}
	if err := s.recordRead(ctx, m, watched.Classification, "rows of window "+w.ID); err != nil {
		return Classification{}, err
	}
	free, err := s.classifying.Take(ctx, identity.Share(ctx, project.Name(p)))
	if err != nil {
		return Classification{}, err
	}
	defer free()
	c := Classification{
		Window: w.ID, State: Classifying, Environment: ask.Environment, Threshold: spec.AUC, By: author(ctx).ID, Began: s.now().UTC(),
	}
	failed := s.begin(ctx, m, w, watched, kinds, &c)
	if failed != nil {
		if !fault.Is(failed, fault.Conflict) {
			return Classification{}, failed
		}
		c.fail(failed, s.now())
	}
	if err := s.putClassification(ctx, StoredClassification{m, w.WindowKey, c}, failed == nil); err != nil || failed != nil {
		return c, errors.Join(failed, err)
	}
	// The job may have ended before there was a row that waits for it: the same
	// rows were learned before, or it was quick.
	if err := s.ClassifierEnded(asMonitor(ctx), p, c.Job); err != nil {
		return c, err
	}
	ws, err := s.windowOf(ctx, m, w.WindowKey)
	if err == nil && ws.Classifier != nil {
		c = *ws.Classifier
	}
	return c, err
}

func (c *Classification) fail(why error, now time.Time) {
	now = now.UTC()
	c.State, c.Ended = ClassifyFailed, &now
	c.Reason = why.Error()
	if hint := fault.HintOf(why); hint != "" {
		c.Reason += ". " + hint
	}
}

func (s *Service) windowOf(ctx context.Context, m Monitor, k WindowKey) (w Window, err error) {
	err = s.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		w, _, err = s.Store.Window(ctx, tx, m.ID, k)
		return err
	})
	return w, err
}

// closedWindow finds a window, and of what kind its inputs are.
func (s *Service) closedWindow(ctx context.Context, m Monitor, id string) (w Window, kinds map[string]sketch.Kind, err error) {
	k, ok := parseKey(id)
	if !ok && id != "" {
		return w, nil, fault.New(fault.NotFound, "no window %.60q", id).WithHint("`falaj monitor windows %s -o json` lists the ids.", m.Name)
	}
	var sealed []byte
	if err := s.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		if id == "" {
			newest, err := s.Store.Windows(ctx, tx, m.ID, WindowFilter{Version: m.Version, Limit: 1})
			if err != nil {
				return err
			}
			if len(newest) == 0 {
				return fault.New(fault.NotFound, "monitor %s has no closed window yet", m.Name)
			}
			k = newest[0].WindowKey
		}
		var err error
		w, sealed, err = s.Store.Window(ctx, tx, m.ID, k)
		return err
	}); err != nil {
		return w, nil, err
	}
	kinds = map[string]sketch.Kind{}
	if len(sealed) == 0 {
		return w, kinds, nil
	}
	plain, err := s.open(ctx, m.Project, summaryBound(m.ID, k), sealed)
	if err != nil {
		return w, nil, err
	}
	names, columns, _, err := decodeColumns(plain)
	for i, n := range names {
		kinds[n] = columns[i].Kind()
	}
	return w, kinds, err
}

// begin makes the dataset and the job.
func (s *Service) begin(ctx context.Context, m Monitor, w Window, watched Watched, kinds map[string]sketch.Kind, c *Classification) error {
	origin, err := s.classifierBaseline(asMonitor(ctx), m, w.Version)
	if err != nil {
		return err
	}
	c.Baseline = origin.Ref
	if w.Rows > maxClassifiedRows {
		return fault.New(fault.TooLarge, "window %s has %d rows, over the limit of %d for a dataset", w.ID, w.Rows, maxClassifiedRows).WithHint("Shorten the monitor's windows.")
	}
	columns, note, err := s.shared(asMonitor(ctx), m, w, origin, kinds)
	if err != nil {
		return err
	}
	c.Reason = note
	argument, err := classifier.TaskOf(columns).Argument()
	if err != nil {
		return err
	}
	if err := s.Classifiers.Check(ctx, m.Project, origin.Ref, c.Environment); err != nil {
		return err
	}
	rows := s.windowRows(ctx, m, w, columns)
	defer rows.Release()
	if c.Dataset, err = s.Classifiers.Keep(ctx, KeptWindow{
		Project: m.Project, Deployment: m.Deployment, Model: watched.Model, Version: w.Version, Dataset: id.Derived(m.Name, "-window"), Rows: rows,
		Window: windowWords(m, w),
	}); err != nil {
		return err
	}
	c.Job, err = s.Classifiers.Begin(ctx, ClassifierJob{
		Project: m.Project, Name: id.Derived(m.Name, "-domain"), Environment: c.Environment, Script: classifier.Script, Argument: argument,
		Data: map[string]string{classifier.BaselineData: origin.Ref, classifier.WindowData: c.Dataset},
	})
	return err
}

func windowWords(m Monitor, w Window) string {
	text := fmt.Sprintf("Inputs of version %d of deployment %s, window %s of monitor %s from %s to %s", w.Version, m.Deployment, w.ID, m.Name,
		w.From.UTC().Format(time.RFC3339Nano), w.To.UTC().Format(time.RFC3339Nano))
	if w.Replay {
		text += ", replayed"
	}
	return text
}

// classifierBaseline is the dataset that a version's windows are compared with.
func (s *Service) classifierBaseline(ctx context.Context, m Monitor, version int64) (Origin, error) {
	if m.Spec.Baseline == baselineFirst {
		return Origin{}, noDataset(m, version, "it is the first window")
	}
	o, err := s.originOf(ctx, m, version)
	if baselineless(err) {
		return o, noDataset(m, version, err.Error())
	}
	return o, err
}

func noDataset(m Monitor, version int64, why string) error {
	return fault.New(fault.Conflict, "the baseline of version %d of %s is not a dataset: %s", version, m.Deployment, why).
		WithHint("Set the Monitor's spec.baseline to dataset:NAME@VERSION.")
}

// shared are the inputs that the window and the baseline both have, of the same
// kind; note says which are left out.
func (s *Service) shared(ctx context.Context, m Monitor, w Window, o Origin, kinds map[string]sketch.Kind) (columns []classifier.Column, note string, err error) {
	b, err := s.fromOrigin(ctx, m, w.Version, o, nil)
	if baselineless(err) {
		err = noDataset(m, w.Version, err.Error())
	}
	if err != nil {
		return nil, "", err
	}
	var without []string
	used := map[string]bool{}
	for _, in := range o.Inputs {
		if len(m.Spec.Drift.Features) > 0 && !slices.ContainsFunc(m.Spec.Drift.Features, func(name string) bool {
			at, err := naming.Find([]string{in.Name}, name)
			return err == nil && at == 0
		}) {
			continue
		}
		kind, seen := kinds[in.Name]
		if !seen || b.columns[in.Name] == nil || b.columns[in.Name].Kind() != kind || used[in.Column] {
			without = append(without, in.Name)
			continue
		}
		used[in.Column] = true
		columns = append(columns, classifier.Column{Name: in.Name, Column: in.Column, Text: kind == sketch.Categorical, Otherwise: in.Otherwise})
	}
	if len(columns) == 0 {
		return nil, "", fault.New(fault.Conflict, "window %s and %s have no input in common", w.ID, o.Ref).
			WithHint("The prediction log records only inputs that were looked up as features or have column names.")
	}
	if len(without) > 0 {
		note = "without " + strings.Join(without[:min(len(without), maxTop)], ", ") + ": the window has no such input, or its type differs from the baseline"
	}
	return columns, note, nil
}

// errStopped ends the reading of the log: nobody wants more.
var errStopped = errors.New("stopped")

// windowRows reads the inputs of a window's records from the prediction log.
// Records that came late are among them.
func (s *Service) windowRows(ctx context.Context, m Monitor, w Window, columns []classifier.Column) array.RecordReader {
	fields := make([]arrow.Field, len(columns))
	for i, c := range columns {
		fields[i] = arrow.Field{Name: c.Column, Type: arrow.PrimitiveTypes.Float64, Nullable: true}
		if c.Text {
			fields[i].Type = arrow.BinaryTypes.String
		}
	}
	schema := arrow.NewSchema(fields, nil)
	return array.ReaderFromIter(schema, func(yield func(arrow.RecordBatch, error) bool) {
		b := array.NewRecordBuilder(memory.DefaultAllocator, schema)
		defer b.Release()
		waiting, total := 0, 0
		flush := func() error {
			total, waiting = total+waiting, 0
			if !yield(b.NewRecordBatch(), nil) {
				return errStopped
			}
			return nil
		}
		err := s.Predictions.Read(ctx, m.Project, m.Deployment, s.from(ctx, m, w), func(_ prediction.Cursor, r *prediction.Record) error {
			if !w.has(m, r) {
				return nil
			}
			if total+waiting+r.Rows > maxClassifiedRows {
				return fault.New(fault.TooLarge, "window %s has over %d rows", w.ID, maxClassifiedRows)
			}
			addRows(b, columns, r)
			if waiting += r.Rows; waiting >= classifyBatch {
				return flush()
			}
			return nil
		})
		if err == nil && waiting > 0 {
			err = flush()
		}
		if err == nil && total < classifier.Minimum {
			err = fault.New(fault.Conflict, "the prediction log has %d rows of window %s, and %d are required", total, w.ID, classifier.Minimum).
				WithHint("Choose a window with more rows, or one whose predictions have not expired.")
		}
		if err != nil && !errors.Is(err, errStopped) {
			yield(nil, err)
		}
	})
}

// from is a place in the log before all records of a window, as late as is cheap
// to find.
func (s *Service) from(ctx context.Context, m Monitor, w Window) prediction.Cursor {
	log, ok := s.Predictions.(interface {
		Since(ctx context.Context, project, deployment string, received time.Time) (prediction.Cursor, error)
	})
	if !ok || w.Replay { // a replay's records are about another time than they came at
		return prediction.Cursor{}
	}
	c, err := log.Since(ctx, m.Project, m.Deployment, w.From)
	if err != nil {
		return prediction.Cursor{} // Read says it
	}
	return c
}

// has reports whether a record is of the window. The end of a window by rows is
// its last record's time.
func (w Window) has(m Monitor, r *prediction.Record) bool {
	if r.Version != w.Version || r.Replay != w.Replay || len(r.Inputs) == 0 || r.At.Before(w.From) || r.At.After(w.To) {
		return false
	}
	return m.Spec.Window.Rows != 0 || r.At.Before(w.To)
}

func addRows(b *array.RecordBuilder, columns []classifier.Column, r *prediction.Record) {
	for i, c := range columns {
		at := slices.IndexFunc(r.Inputs, func(in prediction.Column) bool { return in.Name == c.Name })
		var in prediction.Column
		if at >= 0 {
			in = r.Inputs[at]
		}
		for row := range r.Rows {
			switch into := b.Field(i).(type) {
			case *array.StringBuilder:
				if row >= len(in.Texts) || in.Texts[row] == "" {
					into.AppendNull()
				} else {
					into.Append(in.Texts[row])
				}
			case *array.Float64Builder:
				if row >= len(in.Numbers) || math.IsNaN(in.Numbers[row]) {
					into.AppendNull()
				} else {
					into.Append(in.Numbers[row])
				}
			}
		}
	}
}

// putClassification records a classification that began, or that cannot. One that
// cannot does not hide what was found before.
func (s *Service) putClassification(ctx context.Context, c StoredClassification, began bool) error {
	return s.DB.Update(ctx, c.Monitor.Project, func(ctx context.Context, tx *store.Tx) error {
		w, _, err := s.Store.Window(ctx, tx, c.Monitor.ID, c.Key)
		if err != nil {
			return err
		}
		if !began && w.Classifier != nil && w.Classifier.State == Classified {
			return nil
		}
		return s.record(ctx, tx, c)
	})
}

// record writes a classification with its audit row and event.
func (s *Service) record(ctx context.Context, tx *store.Tx, c StoredClassification) error {
	if err := s.Store.PutClassification(ctx, tx, c, s.now()); err != nil {
		return err
	}
	detail := map[string]any{
		"window": c.Window, "state": c.State, "job": c.Job, "dataset": c.Dataset, "baseline": c.Baseline, "environment": c.Environment,
	}
	if c.State == Classified {
		detail["auc"], detail["low"], detail["drifted"] = c.AUC, c.Low, c.Drifted
	}
	if err := audit.Append(ctx, tx, audit.Entry{
		Project: c.Monitor.Project, Action: EventClassified, Object: "monitor " + c.Monitor.Name, Reason: c.Reason, Detail: detail,
	}); err != nil {
		return err
	}
	return event.Publish(ctx, tx, c.Monitor.Project, EventClassified, ClassifiedEvent{
		Monitor: c.Monitor.Name, Deployment: c.Monitor.Deployment, Version: c.Key.Version, Classification: c.Classification,
	})
}

// ClassifierEnded takes what a job found into the windows that wait for it. A job
// that no window waits for, or that goes on, is no error: the end of every job
// may be told here, as often as one likes.
func (s *Service) ClassifierEnded(ctx context.Context, p, job string) error {
	waiting, err := s.waiting(ctx, p, job)
	if err != nil || len(waiting) == 0 {
		return err
	}
	o, err := s.Classifiers.Outcome(ctx, p, job)
	if err != nil {
		if !fault.Is(err, fault.NotFound) {
			return fault.Wrap(err, "output of job %s", job)
		}
		o = ClassifierOutcome{Ended: true, Reason: err.Error()}
	}
	if !o.Ended {
		return nil
	}
	return s.DB.Update(ctx, p, func(ctx context.Context, tx *store.Tx) error {
		all, err := s.Store.ClassifiedBy(ctx, tx, p, job)
		if err != nil {
			return err
		}
		for _, c := range all {
			if c.State != Classifying {
				continue
			}
			c.take(o, s.now())
			if err := s.record(ctx, tx, c); err != nil {
				return err
			}
			s.Log.InfoContext(ctx, "domain classifier", slog.String("monitor", c.Monitor.Name), slog.String("window", c.Window),
				slog.String("state", string(c.State)), slog.Bool("drifted", c.Drifted), slog.String("reason", c.Reason))
		}
		return nil
	})
}

func (s *Service) waiting(ctx context.Context, p, job string) (all []StoredClassification, err error) {
	err = s.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		all, err = s.Store.ClassifiedBy(ctx, tx, p, job)
		return err
	})
	return slices.DeleteFunc(all, func(c StoredClassification) bool { return c.State != Classifying }), err
}

// take fills in what the job found.
func (c *Classification) take(o ClassifierOutcome, now time.Time) {
	var r classifier.Result
	err := fault.New(fault.Conflict, "job %s did not write %s", c.Job, classifier.Output).WithHint("See `falaj job logs %s`.", c.Job)
	var said error = err
	if o.Result != nil {
		r, said = classifier.Decode(o.Result)
	}
	switch {
	case fault.Is(said, fault.Conflict) && o.Result != nil:
		c.fail(said, now) // the program's own words
	case !o.Succeeded:
		c.fail(fault.New(fault.Conflict, "job %s did not succeed: %s", c.Job, o.Reason).WithHint("See `falaj job logs %s`.", c.Job), now)
	case said != nil:
		c.fail(said, now)
	default:
		now = now.UTC()
		c.State, c.Ended = Classified, &now
		c.AUC, c.Low, c.High, c.PValue = &r.AUC, &r.Low, &r.High, &r.PValue
		c.Sampled, c.TopFeatures = r.Sampled[:], r.Features[:min(len(r.Features), maxTop)]
		c.Drifted = r.Low > c.Threshold
	}
}
