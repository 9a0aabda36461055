package tracking

import (
	"context"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/tracking/search"
)

// What a run or logged model holds is of the class of what its producer could read.
// Its name, state, times, experiment and the names of its files are open to everybody
// with run.read. Its contents are not: files, params, tags, metrics and the values that
// metrics had before. Who may not read the contents is shown the run without them, but
// for the measures of quality (see measure), rounded: a few bits that say how good a
// model is.

// tagWithheld tells who is shown a run or logged model without its contents why.
const tagWithheld = "falaj.withheld"

// openTags are the tags that say what a run is and not what it read.
var openTags = []string{tagRunName, "mlflow.user", "mlflow.parentRunId", "mlflow.source.type", "falaj.job", AttemptTag}

// measure matches metrics that say how good a model is.
var measure = regexp.MustCompile(`^(?i:(?:(?:train|training|val|valid|validation|test|eval|evaluation|cv|best|mean|final)[_/. -])*` +
	`(?:loss|acc|accuracy|balanced_accuracy|auc|roc_auc|pr_auc|average_precision|f1|f1_score|precision|recall|` +
	`log_?loss|cross_entropy|brier|brier_score|ece|perplexity|bleu|rouge|r2|r2_score|mse|rmse|mae|mape|smape|rmsle|` +
	`mean_squared_error|root_mean_squared_error|mean_absolute_error|precision_score|recall_score|accuracy_score|score))$`)

// kept significant digits of a measure that is shown without the contents.
const measureDigits = 3

// object is what the policy is asked about.
func (o Origin) object(p project.Name, kind, name, owner string) policy.Object {
	return policy.Object{
		Project: string(p), Kind: kind, Name: name, Owner: owner,
		Classification: o.Classification, Residency: o.Residency, Sources: policy.DatasetSources(o.Datasets),
	}
}

// own reports whether the caller is the attempt that made the object, which has read what
// it is made of.
func (o Origin) own(ctx context.Context) bool {
	who := identity.From(ctx)
	return who.Kind == identity.Attempt && who.ID == o.Attempt
}

// mayRead refuses who may not read contents, and puts the read into the journal.
func (s *core) mayRead(ctx context.Context, p project.Name, kind, name, owner string, o Origin) error {
	if !classified(o.Classification) {
		return nil
	}
	if !o.own(ctx) {
		object := o.object(p, kind, name, owner)
		object.Contents = true
		if err := s.authz.Allow(ctx, ActionRead, object); err != nil {
			return err
		}
	}
	return s.noteRead(ctx, p, kind+" "+name, o.Classification)
}

// shows is mayRead for what is answered without its contents otherwise.
func (s *core) shows(ctx context.Context, p project.Name, kind, name, owner string, o Origin) (bool, error) {
	if !classified(o.Classification) || o.own(ctx) {
		return true, nil
	}
	object := o.object(p, kind, name, owner)
	object.Contents = true
	return policy.Permits(ctx, s.authz, ActionRead, object)
}

// withhold takes the contents out of a run.
func (r *Run) withhold() {
	r.Withheld = true
	r.Params, r.Inputs = nil, nil
	r.Tags, r.Metrics = withheldTags(r.Tags, r.Classification), measures(r.Metrics)
}

// withhold takes the contents out of a logged model.
func (m *LoggedModel) withhold() {
	m.Withheld = true
	m.Params = nil
	m.Tags, m.Metrics = withheldTags(m.Tags, m.Classification), measures(m.Metrics)
}

func withheldTags(tags []Pair, class string) []Pair {
	open := slices.DeleteFunc(slices.Clone(tags), func(t Pair) bool { return !slices.Contains(openTags, t.Key) })
	open = append(open, Pair{tagWithheld, class + ": params, tags, metrics and files require permission to read the data"})
	slices.SortFunc(open, func(a, b Pair) int { return strings.Compare(a.Key, b.Key) })
	return open
}

func measures(metrics []Metric) (open []Metric) {
	for _, m := range metrics {
		if !measure.MatchString(m.Key) {
			continue
		}
		m.Value, m.Step, m.DatasetName, m.DatasetDigest = rounded(m.Value), 0, "", ""
		open = append(open, m)
	}
	return open
}

func rounded(v float64) float64 {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return v
	}
	short, err := strconv.ParseFloat(strconv.FormatFloat(v, 'g', measureDigits, 64), 64)
	if err != nil {
		return 0
	}
	return short
}

// looksInto reports whether a search asks about contents: what it finds, and in which
// order, says something about them.
func (q Query) looksInto() bool {
	return slices.ContainsFunc(q.Where, func(c search.Comparison) bool { return inside(c.Entity, c.Key) }) ||
		slices.ContainsFunc(q.Order, func(o search.Order) bool { return inside(o.Entity, o.Key) })
}

func inside(e search.Entity, key string) bool {
	return e != search.Attribute && (e != search.Tag || !slices.Contains(openTags, key))
}

// seen says what of a search's results the caller is shown, and which of them whole. It
// asks once for each origin among them, and about a name where that is refused, which a
// grant may be for.
func (s *core) seen(ctx context.Context, p project.Name, kind string, origins []Origin, names []string) (whole []bool, err error) {
	whole = make([]bool, len(origins))
	asked := map[string]bool{}
	for i, o := range origins {
		key := o.Classification + "\x00" + o.Attempt + "\x00" + strings.Join(o.Datasets, "\x00")
		may, ok := asked[key]
		if !ok {
			if may, err = s.shows(ctx, p, kind, "", "", o); err != nil {
				return nil, err
			}
			asked[key] = may
		}
		if !may {
			if may, err = s.shows(ctx, p, kind, names[i], "", o); err != nil {
				return nil, err
			}
		}
		whole[i] = may
	}
	return whole, nil
}

// ofAnother refuses what a job's attempt would change of what others made.
func ofAnother(ctx context.Context, what string) error {
	who := identity.From(ctx)
	if who.Kind != identity.Attempt {
		return nil
	}
	return fault.New(fault.PermissionDenied, "%s may not change %s: a job's token changes only what its attempt made", who, what).
		WithHint("Log into the run of MLFLOW_RUN_ID, or make the change as a user or a service account.")
}
