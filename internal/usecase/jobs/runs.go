package jobs

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"maps"
	"math"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/falaj-ml/falaj/internal/blob/quota"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/feature"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/registry"
	"github.com/falaj-ml/falaj/internal/tracking"
	"github.com/falaj-ml/falaj/internal/training"
)

// Runs keeps the runs of attempts in tracking.
type Runs struct {
	Tracking tracking.Services
	Features *feature.OfflineReads
	Registry *registry.Versions
}

// Create implements training.Runs.
func (t Runs) Create(ctx context.Context, s training.RunSpec) (run, experiment string, err error) {
	e, err := t.Tracking.Experiments.ExperimentNamed(ctx, s.Project, s.Experiment)
	if fault.Is(err, fault.NotFound) {
		e, err = t.Tracking.Experiments.CreateExperiment(ctx, s.Project, s.Experiment, nil)
		if fault.Is(err, fault.Conflict) {
			e, err = t.Tracking.Experiments.ExperimentNamed(ctx, s.Project, s.Experiment)
		}
	}
	if err != nil {
		return "", "", err
	}
	made, err := t.Tracking.Runs.AttemptRun(ctx, s.Project, string(s.Attempt))
	if err == nil || !fault.Is(err, fault.NotFound) {
		return string(made.ID), strconv.FormatInt(int64(made.Experiment), 10), err
	}
	if run, ok, err := t.proceed(ctx, s); err != nil || ok {
		return string(run.ID), strconv.FormatInt(int64(run.Experiment), 10), err
	}
	origin := tracking.Origin{
		Job: string(s.Job), Attempt: string(s.Attempt), Environment: string(s.Environment),
		Residency: s.Residency, Classification: string(s.Classification),
	}
	var seen []tracking.DatasetInput
	for _, in := range s.Inputs {
		if model := in.Model(); model != "" { // what it was trained on is in what is made of it
			name, number, _ := registry.SplitRef(model)
			v, err := t.Registry.Version(ctx, s.Project, name, number)
			if err != nil {
				return "", "", err
			}
			if in.Name == s.TrainedOn {
				origin.TrainedOn = v.TrainedOn
			}
			origin.Datasets = append(origin.Datasets, missing(origin.Datasets, v.Datasets)...)
			origin.FeatureViews = append(origin.FeatureViews, missing(origin.FeatureViews, v.FeatureViews)...)
			continue
		}
		ref := in.Dataset()
		if in.Name == s.TrainedOn {
			origin.TrainedOn = ref
		}
		origin.Datasets = append(origin.Datasets, missing(origin.Datasets, []string{ref})...)
		views, err := t.views(ctx, s.Project, ref)
		if err != nil {
			return "", "", err
		}
		origin.FeatureViews = append(origin.FeatureViews, missing(origin.FeatureViews, views)...)
		name, _, _ := strings.Cut(ref, "@")
		// MLflow's own limit on a digest is 36 characters.
		digest := strings.TrimPrefix(in.Digest, "sha256:")
		seen = append(seen, tracking.DatasetInput{
			Name: name, Digest: digest[:min(len(digest), 36)], SourceType: "falaj", Source: `{"ref":` + strconv.Quote(ref) + `}`,
			Tags: []tracking.Pair{{Key: "mlflow.data.context", Value: in.Name}},
		})
	}
	begun, err := t.Tracking.Runs.CreateRun(ctx, s.Project, tracking.RunSpec{
		Experiment: e.ID, Name: s.Name, User: s.By.Name,
		Tags: []tracking.Pair{{Key: attemptTag, Value: string(s.Attempt)}, {Key: "falaj.job", Value: string(s.Job)}},
	}, tracking.RunOptions{Origin: origin, AttemptNumber: s.Number})
	if err != nil {
		return "", "", err
	}
	if err := t.declare(ctx, s, begun.ID); err != nil {
		return "", "", err
	}
	if len(seen) > 0 {
		if err := t.Tracking.Logging.LogInputs(ctx, s.Project, begun.ID, seen, nil); err != nil {
			return "", "", err
		}
	}
	return string(begun.ID), strconv.FormatInt(int64(begun.Experiment), 10), nil
}

// proceed gives the attempt the run of the attempts before it, so that a job has one curve. ok
// is false where there is none: it was deleted, or what this attempt makes has another label.
func (t Runs) proceed(ctx context.Context, s training.RunSpec) (run tracking.Run, ok bool, err error) {
	if s.Continues == "" {
		return run, false, nil
	}
	run, err = t.Tracking.Runs.Run(ctx, s.Project, tracking.RunID(s.Continues))
	if fault.Is(err, fault.NotFound) {
		return run, false, nil
	}
	if err != nil {
		return run, false, err
	}
	if run.Job != string(s.Job) || run.Classification != string(s.Classification) || !run.Residency.Same(s.Residency) {
		return run, false, nil
	}
	run, err = t.Tracking.Runs.Continue(ctx, s.Project, run.ID, string(s.Attempt), s.Number)
	if fault.Is(err, fault.NotFound) {
		return run, false, nil
	}
	if err == nil {
		err = t.declare(ctx, s, run.ID)
	}
	return run, err == nil, err
}

// declare logs what the job declares of itself.
func (t Runs) declare(ctx context.Context, s training.RunSpec, run tracking.RunID) error {
	if len(s.Params) == 0 {
		return nil
	}
	var b tracking.Batch
	for _, k := range slices.Sorted(maps.Keys(s.Params)) {
		b.Params = append(b.Params, tracking.Pair{Key: k, Value: s.Params[k]})
	}
	return t.Tracking.Logging.Log(ctx, s.Project, run, b)
}

// missing are those of more that are not in has.
func missing(has, more []string) []string {
	return slices.DeleteFunc(slices.Clone(more), func(s string) bool { return slices.Contains(has, s) })
}

// views are the feature view versions that a training set was joined from.
func (t Runs) views(ctx context.Context, p project.Name, ref string) ([]string, error) {
	set, err := t.Features.TrainingSet(ctx, p, ref)
	if fault.Is(err, fault.NotFound) {
		return nil, nil // an imported dataset
	}
	views := make([]string, len(set.Views))
	for i, v := range set.Views {
		views[i] = v.View
	}
	return views, err
}

// Finish implements training.Runs.
func (t Runs) Finish(ctx context.Context, p project.Name, run, status string, ended time.Time) error {
	st, end := tracking.RunStatus(status), tracking.Millis(ended.UnixMilli())
	_, err := t.Tracking.Runs.UpdateRun(ctx, p, tracking.RunID(run), tracking.RunUpdate{Status: &st, End: &end, Deleted: true})
	if fault.Is(err, fault.NotFound) { // somebody removed it
		return nil
	}
	return err
}

// Progress follows the metric whose newest point is the last.
func (t Runs) Progress(ctx context.Context, p project.Name, id string, since time.Time) (training.Progress, error) {
	// Steps and times say nothing of the data; who asks may see the job.
	ctx = identity.With(ctx, identity.Loop("progress"))
	run, err := t.Tracking.Runs.Run(ctx, p, tracking.RunID(id))
	if err != nil {
		return training.Progress{}, err
	}
	var last tracking.Metric
	var noNumbers []string
	for _, m := range run.Metrics {
		if v := float64(m.Value); m.Attempt == run.AttemptNumber && (math.IsNaN(v) || math.IsInf(v, 0)) {
			noNumbers = append(noNumbers, m.Key)
		}
		if m.At > last.At || m.At == last.At && m.Step > last.Step {
			last = m
		}
	}
	if last.Key == "" {
		return training.Progress{}, nil
	}
	var first tracking.Metric
	if since.IsZero() {
		points, _, err := t.Tracking.Runs.History(ctx, p, tracking.RunID(id), last.Key, 1, "")
		if err != nil || len(points) == 0 {
			return training.Progress{}, err
		}
		first = points[0]
	} else { // without the points of earlier attempts
		var ok bool
		if first, last, ok, err = t.Tracking.Runs.Span(ctx, p, tracking.RunID(id), tracking.Millis(since.UnixMilli())); err != nil || !ok {
			return training.Progress{}, err
		}
	}
	point := func(m tracking.Metric) training.Point {
		return training.Point{Step: m.Step, At: time.UnixMilli(int64(m.At)).UTC()}
	}
	slices.Sort(noNumbers)
	return training.Progress{First: point(first), Last: point(last), NoNumbers: noNumbers}, nil
}

// Upload implements training.Runs.
func (t Runs) Upload(ctx context.Context, p project.Name, run, dir, under string) error {
	return upload(ctx, t.Tracking.Artifacts, p, tracking.Place{Run: tracking.RunID(run)}, dir, under)
}

// LogFiles implements training.LogFiles.
type LogFiles struct{ Artifacts *tracking.Artifacts }

// maxLogFile bounds a log that is read whole; the logs of attempts are cut before.
const maxLogFile = 128 << 20

// Rewrite implements training.LogFiles.
func (l LogFiles) Rewrite(ctx context.Context, p project.Name, run string, change func(content []byte) []byte) error {
	place := tracking.Place{Run: tracking.RunID(run)}
	files, err := l.Artifacts.Files(ctx, p, place, "logs")
	if fault.Is(err, fault.NotFound) {
		return nil // it was pruned
	}
	if err != nil {
		return err
	}
	for _, f := range files {
		r, _, err := l.Artifacts.OpenArtifact(ctx, p, place, f.Path)
		if err != nil {
			return err
		}
		content, err := io.ReadAll(io.LimitReader(r, maxLogFile+1))
		if err = errors.Join(err, r.Close()); err != nil {
			return err
		}
		if len(content) > maxLogFile {
			return fault.New(fault.TooLarge, "%s of run %s is over the limit of %d bytes", f.Path, run, maxLogFile)
		}
		if content = change(content); content == nil {
			continue
		}
		if _, err := l.Artifacts.PutArtifact(quota.Exempt(ctx), p, place, f.Path, strings.NewReader(string(content))); err != nil {
			return err
		}
	}
	return nil
}

// Artifacts opens the files of runs.
type Artifacts struct{ Artifacts *tracking.Artifacts }

// Open implements optimize.Artifacts.
func (f Artifacts) Open(ctx context.Context, p project.Name, run, name string) (io.ReadCloser, error) {
	r, _, err := f.Artifacts.OpenArtifact(ctx, p, tracking.Place{Run: tracking.RunID(run)}, name)
	if err != nil {
		return nil, err
	}
	return r, nil
}

// upload stores the regular files below dir. The directory was written by user
// code: it is opened so that nothing leads out of it, and links are refused.
func upload(ctx context.Context, a *tracking.Artifacts, p project.Name, place tracking.Place, dir, under string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	return fs.WalkDir(root.FS(), ".", func(name string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		if !e.Type().IsRegular() {
			return fault.New(fault.Invalid, "output %s is a %s; only plain files become artifacts", name, e.Type()).
				WithHint("Write files, not links or sockets, below FALAJ_OUTPUT_DIR.")
		}
		f, err := root.Open(filepath.FromSlash(name))
		if err != nil {
			return err
		}
		_, err = a.PutArtifact(ctx, p, place, path.Join(under, name), f)
		return errors.Join(err, f.Close())
	})
}
