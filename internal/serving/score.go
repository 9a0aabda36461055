package serving

import (
	"context"
	"slices"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/serving/batching"
	"github.com/falaj-ml/falaj/internal/serving/prediction"
)

// scoreBatch is how many rows a model is asked at a time: requests wait for no more.
const scoreBatch = 100

// scorePatience is how long rows that are scored wait until no request wants the core.
const scorePatience = 10 * time.Minute

// Rows have a value for each of a deployment's columns.
type Rows struct {
	What   string // "dataset delays@1"
	Label  residency.Label
	Values [][]float64
}

// Score is what a version says of rows of the deployment's columns: of training
// data, to compare answers with. The version is verified and loaded for this
// alone; nothing is routed, counted or remembered, and who may read the rows, and
// records that, is the caller's business; whether they may go to the deployment's
// remote is not. Needs deployment.infer. Errors: fault.Unsupported for a deployment
// whose requests bring the model's own inputs; those of Apply.
func (s *Inference) Score(ctx context.Context, project, name string, version int64, rows Rows) ([]float64, error) {
	if err := s.cfg.Authz.Allow(ctx, actionInfer, object(project, name)); err != nil {
		return nil, err
	}
	d, err := s.stored(ctx, project, name)
	if err != nil {
		return nil, err
	}
	c := columnsOf(d)
	if c == nil {
		return nil, fault.New(fault.Unsupported, "deployment %s does not define how columns become the model's input", name)
	}
	if d.Spec.remote().Name != "" {
		if err := s.crossed(ctx, project, d.Spec, actionInfer, rows.What, rows.Label); err != nil {
			return nil, err
		}
		if err := s.featuresCross(ctx, project, d.Spec, actionInfer, d.FeatureSet); err != nil {
			return nil, err
		}
	}
	for _, w := range d.wants() {
		if why := s.supervisor.read(w.supervised(key{project, name})).aside; w.version == version && why != "" {
			return nil, fault.New(fault.Unavailable, "version %d is %s", version, why)
		}
	}
	t, err := s.open(ctx, d, versionText(version), &health{once: true})
	if err != nil {
		return nil, err
	}
	defer t.leave()
	if t.score.output == "" {
		return nil, fault.New(fault.Invalid, "version %d has several outputs; the score is ambiguous", version).WithHint("Set spec.prediction.output of the Deployment.")
	}
	// A queue beside that of requests: these are none, and are not counted.
	queue := batching.New(s.coresOf(t.how), t.session, batching.Options{MaxRows: 1, Threads: t.how.batching.Threads, Timeout: scorePatience, Project: project}, batching.Verdict{}, nil)
	scores := make([]float64, 0, len(rows.Values))
	for chunk := range slices.Chunk(rows.Values, scoreBatch) {
		got, err := s.scoresOf(ctx, c, t, queue, chunk)
		if err != nil {
			return nil, err
		}
		scores = append(scores, got...)
	}
	return scores, nil
}

func (s *Inference) scoresOf(ctx context.Context, c *columns, t *target, queue *batching.Queue, rows [][]float64) ([]float64, error) {
	in := filled{rows: len(rows), columns: make([]prediction.Column, len(c.names))}
	for i := range in.columns {
		in.columns[i].Numbers = make([]float64, len(rows))
	}
	for n, row := range rows {
		if len(row) != len(c.names) {
			return nil, fault.New(fault.Invalid, "row %d has %d values; the deployment has %d columns", n, len(row), len(c.names))
		}
		for i, v := range row {
			in.columns[i].Numbers[n] = v
		}
	}
	made, err := c.tensor(in, t.meta)
	if err != nil {
		return nil, err
	}
	in.inputs = append(in.inputs, made)
	if err := t.meta.Check(in.inputs); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, scorePatience+s.cfg.Timeout)
	defer cancel()
	a, err := queue.Infer(ctx, batching.Request{Inputs: in.inputs, Outputs: []string{t.score.output}, Background: true})
	if err != nil {
		return nil, err
	}
	scores := t.score.of(a.Outputs, len(rows))
	if scores == nil {
		return nil, fault.New(fault.Invalid, "output %q does not have one score for each of %d rows", t.score.output, len(rows)).
			WithHint("Set spec.prediction.output and index of the Deployment.")
	}
	return scores, nil
}
