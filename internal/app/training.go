package app

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
	"github.com/falaj-ml/falaj/internal/compute"
	"github.com/falaj-ml/falaj/internal/compute/engine"
	"github.com/falaj-ml/falaj/internal/dataset"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/feature"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/identity/account"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/registry"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/tracking"
	"github.com/falaj-ml/falaj/internal/training"
	"github.com/falaj-ml/falaj/internal/training/trainingsql"
)

// attemptTag marks the logged model of an attempt, so that a crash between
// making and recording it makes no second one.
const attemptTag = tracking.AttemptTag

// trainingData answers training's questions about data from datasets, and about models
// from the registry.
type trainingData struct {
	datasets *dataset.Service
	registry *registry.Service
	authz    policy.Authorizer
	guard    residency.Guard
}

func (a *App) trainingData() trainingData {
	return trainingData{a.datasets, a.registry, a.authorizer, a.guard}
}

// modelScheme begins the reference of a model.
const modelScheme = "models:/"

func (d trainingData) Resolve(ctx context.Context, p project.Name, ref string) (training.Input, error) {
	if d.registry != nil && strings.HasPrefix(ref, modelScheme) {
		return d.model(ctx, p, ref)
	}
	r, err := dataset.ParseRef(ref)
	if err != nil {
		return training.Input{}, err
	}
	v, err := d.datasets.Version(ctx, p, r)
	if err != nil {
		return training.Input{}, err
	}
	if err := v.Usable(); err != nil {
		return training.Input{}, err
	}
	if err := d.authz.Allow(ctx, dataset.ActionQuery, policy.Object{
		Project: string(p), Kind: "dataset", Name: v.Ref().String(), Classification: string(v.Classification), Residency: v.Residency,
	}); err != nil {
		return training.Input{}, err
	}
	return training.Input{Ref: "dataset " + v.Ref().String(), Digest: v.ContentDigest, Residency: v.Residency, Classification: v.Classification, Bytes: v.Bytes}, nil
}

// model pins a version of a registered model.
func (d trainingData) model(ctx context.Context, p project.Name, ref string) (training.Input, error) {
	src, err := registry.ParseSource(ref, "", "")
	if err != nil {
		return training.Input{}, err
	}
	if src.Model == "" {
		return training.Input{}, fault.New(fault.Invalid, "%.100q names no version of a registered model", ref).
			WithHint("Write models:/NAME/VERSION or models:/NAME@ALIAS.")
	}
	number := src.Alias
	if number == "" {
		number = strconv.Itoa(src.Version)
	}
	m, err := d.registry.OpenReadable(ctx, p, src.Model, number)
	if err != nil {
		return training.Input{}, err
	}
	in := training.Input{
		Ref: "model " + m.Version.String(), Digest: m.Version.Digest, Residency: m.Version.Residency,
		Classification: classOf(m.Version.Classification), Datasets: m.Version.Datasets,
	}
	for _, f := range m.Files() {
		in.Bytes += f.Size
	}
	return in, nil
}

// Permitted asks as the job's submitter. What Falaj itself submitted is not asked again.
func (d trainingData) Permitted(ctx context.Context, p project.Name, by training.Actor, in training.Input) error {
	who := submitter(p, by.ID)
	if who.ID == "" {
		return nil
	}
	ctx = identity.With(ctx, who)
	if in.Model() != "" {
		name, number, _ := registry.SplitRef(in.Model())
		return d.registry.MayReadFiles(ctx, p, name, number)
	}
	return d.authz.Allow(ctx, dataset.ActionQuery, policy.Object{
		Project: string(p), Kind: "dataset", Name: in.Dataset(), Classification: string(in.Classification), Residency: in.Residency,
	})
}

// submitter is the account that submitted a job, as the policy knows it; without an ID
// where a loop of Falaj did.
func submitter(p project.Name, account string) identity.Principal {
	switch {
	case strings.HasPrefix(account, "usr_"):
		return identity.Principal{Kind: identity.User, ID: account}
	case strings.HasPrefix(account, "svc_"):
		return identity.Principal{Kind: identity.Service, ID: account, Project: p}
	}
	return identity.Principal{}
}

// exportModel writes the files of a model version, each checked against its signature.
func (d trainingData) exportModel(ctx context.Context, p project.Name, in training.Input, pool compute.Pool, dir string) error {
	name, number, _ := registry.SplitRef(in.Model())
	m, err := d.registry.OpenVerified(ctx, p, name, number)
	if err != nil {
		return err
	}
	if m.Version.Digest != in.Digest {
		return fault.New(fault.Conflict, "%s differs from the submitted one: its digest is %s", in.Ref, m.Version.Digest)
	}
	err = d.guard.Pass(ctx, residency.Transfer{
		Project: string(p), What: in.Ref, Label: m.Version.Residency, Where: "pool " + string(pool.Name), Zone: pool.MachineZone, Action: string(registry.ActionRead),
	})
	if err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	for _, f := range m.Files() {
		if err := writeModelFile(ctx, root, m, f.Path); err != nil {
			return fault.Wrap(err, "file %s", f.Path)
		}
	}
	return nil
}

func writeModelFile(ctx context.Context, root *os.Root, m *registry.Verified, name string) error {
	in, err := m.Open(ctx, name)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()
	if err := root.MkdirAll(path.Dir(name), 0o700); err != nil {
		return err
	}
	out, err := root.OpenFile(filepath.FromSlash(name), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

func (d trainingData) Export(ctx context.Context, p project.Name, in training.Input, pool compute.Pool, dir string) error {
	if in.Model() != "" {
		return d.exportModel(ctx, p, in, pool, dir)
	}
	r, err := dataset.ParseRef(in.Dataset())
	if err != nil {
		return err
	}
	_, v, err := d.datasets.Export(ctx, dataset.ExportRequest{OpenRequest: dataset.OpenRequest{
		Project: p, Ref: r, Purpose: "training job", Where: "pool " + string(pool.Name), Zone: pool.MachineZone,
	}, Dir: dir})
	if err == nil && v.ContentDigest != in.Digest {
		return fault.New(fault.Conflict, "%s differs from the submitted one: its digest is %s", in.Ref, v.ContentDigest)
	}
	return err
}

// trainingTables are the open datasets that jobs write; dir is where their files
// are.
type trainingTables struct {
	trainingData
	dir string
}

func (t trainingTables) Pin(ctx context.Context, p project.Name, name string) (training.Input, error) {
	d, err := t.datasets.Writable(ctx, p, name)
	if err != nil || d.Accepted == 0 {
		return training.Input{}, err
	}
	return t.Resolve(ctx, p, dataset.Ref{Name: name, Number: d.Accepted}.String())
}

func (t trainingTables) Place(ctx context.Context, j training.Job, attempt training.AttemptID, name string) ([]engine.Mount, error) {
	// What the attempt may read it is asked as itself: the files go round the catalog.
	ctx = identity.With(ctx, identity.Principal{Kind: identity.Attempt, ID: string(attempt), Name: string(j.ID), Project: j.Project, Behalf: submitter(j.Project, j.By.ID).ID, Scopes: scopesOf(j)})
	rooms, versions, err := t.datasets.Directories(ctx, j.Project, name)
	if err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(t.dir)
	if err != nil {
		return nil, err
	}
	defer func() { _ = root.Close() }()
	key := dataset.TableKey(j.Project, name)
	var mounts []engine.Mount
	for _, part := range slices.Concat(dataset.ForeignParts, rooms) {
		if err := hold(root, path.Join(key, part)); err != nil {
			return nil, err
		}
		mounts = append(mounts, engine.Mount{Path: filepath.Join(t.dir, key, part), Writable: slices.Contains(dataset.ForeignParts, part)})
	}
	for _, v := range versions {
		if _, err := root.Stat(path.Join(key, v)); err != nil { // it went away, or is where versions were before
			continue
		}
		mounts = append(mounts, engine.Mount{Path: filepath.Join(t.dir, key, v)})
	}
	return mounts, nil
}

// hold makes a directory that stays when it is empty: one that vanished with its
// last file would do so under a job that goes on. What jobs left there is neither
// followed nor written to.
func hold(root *os.Root, dir string) error {
	if err := root.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	f, err := root.OpenFile(path.Join(dir, dataset.HeldFile), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return f.Close()
}

// jobOf is the job of an attempt.
func (a *App) jobOf(ctx context.Context, attempt string) (j training.Job, err error) {
	err = a.db.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		at, err := trainingsql.Store{}.Attempt(ctx, tx, training.AttemptID(attempt))
		if err != nil {
			return err
		}
		j, err = trainingsql.Store{}.Job(ctx, tx, at.Job)
		return err
	})
	return j, err
}

// confined is where what an attempt makes may be.
func (a *App) confined(ctx context.Context, attempt string) (residency.Label, error) {
	j, err := a.jobOf(ctx, attempt)
	return j.Residency, err
}

// jobInputs is what an attempt's job could read, and the jobs before it.
func (a *App) jobInputs(ctx context.Context, attempt string) ([]dataset.JobInputs, error) {
	j, err := a.jobOf(ctx, attempt)
	if err != nil {
		return nil, err
	}
	earlier, err := a.training.Earlier(ctx, j)
	if err != nil {
		return nil, err
	}
	return jobInputsOf(j, earlier)
}

// trainingRuns keeps the runs of attempts in tracking.
type trainingRuns struct {
	tracking *tracking.Service
	features *feature.Service
	registry *registry.Service
}

func (t trainingRuns) Create(ctx context.Context, s training.RunSpec) (run, experiment string, err error) {
	e, err := t.tracking.ExperimentNamed(ctx, s.Project, s.Experiment)
	if fault.Is(err, fault.NotFound) {
		e, err = t.tracking.CreateExperiment(ctx, s.Project, s.Experiment, nil)
		if fault.Is(err, fault.Conflict) {
			e, err = t.tracking.ExperimentNamed(ctx, s.Project, s.Experiment)
		}
	}
	if err != nil {
		return "", "", err
	}
	made, err := t.tracking.AttemptRun(ctx, s.Project, string(s.Attempt))
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
			v, err := t.registry.Version(ctx, s.Project, name, number)
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
	begun, err := t.tracking.CreateRun(ctx, s.Project, tracking.RunSpec{
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
		if err := t.tracking.LogInputs(ctx, s.Project, begun.ID, seen, nil); err != nil {
			return "", "", err
		}
	}
	return string(begun.ID), strconv.FormatInt(int64(begun.Experiment), 10), nil
}

// proceed gives the attempt the run of the attempts before it, so that a job has one curve. ok
// is false where there is none: it was deleted, or what this attempt makes has another label.
func (t trainingRuns) proceed(ctx context.Context, s training.RunSpec) (run tracking.Run, ok bool, err error) {
	if s.Continues == "" {
		return run, false, nil
	}
	run, err = t.tracking.Run(ctx, s.Project, tracking.RunID(s.Continues))
	if fault.Is(err, fault.NotFound) {
		return run, false, nil
	}
	if err != nil {
		return run, false, err
	}
	if run.Job != string(s.Job) || run.Classification != string(s.Classification) || !run.Residency.Same(s.Residency) {
		return run, false, nil
	}
	run, err = t.tracking.Continue(ctx, s.Project, run.ID, string(s.Attempt), s.Number)
	if fault.Is(err, fault.NotFound) {
		return run, false, nil
	}
	if err == nil {
		err = t.declare(ctx, s, run.ID)
	}
	return run, err == nil, err
}

// declare logs what the job declares of itself.
func (t trainingRuns) declare(ctx context.Context, s training.RunSpec, run tracking.RunID) error {
	if len(s.Params) == 0 {
		return nil
	}
	var b tracking.Batch
	for _, k := range slices.Sorted(maps.Keys(s.Params)) {
		b.Params = append(b.Params, tracking.Pair{Key: k, Value: s.Params[k]})
	}
	return t.tracking.Log(ctx, s.Project, run, b)
}

// missing are those of more that are not in has.
func missing(has, more []string) []string {
	return slices.DeleteFunc(slices.Clone(more), func(s string) bool { return slices.Contains(has, s) })
}

// views are the feature view versions that a training set was joined from.
func (t trainingRuns) views(ctx context.Context, p project.Name, ref string) ([]string, error) {
	set, err := t.features.TrainingSet(ctx, p, ref)
	if fault.Is(err, fault.NotFound) {
		return nil, nil // an imported dataset
	}
	views := make([]string, len(set.Views))
	for i, v := range set.Views {
		views[i] = v.View
	}
	return views, err
}

func (t trainingRuns) Finish(ctx context.Context, p project.Name, run, status string, ended time.Time) error {
	st, end := tracking.RunStatus(status), tracking.Millis(ended.UnixMilli())
	_, err := t.tracking.UpdateRun(ctx, p, tracking.RunID(run), tracking.RunUpdate{Status: &st, End: &end, Deleted: true})
	if fault.Is(err, fault.NotFound) { // somebody removed it
		return nil
	}
	return err
}

// Progress follows the metric whose newest point is the last.
func (t trainingRuns) Progress(ctx context.Context, p project.Name, id string, since time.Time) (training.Progress, error) {
	// Steps and times say nothing of the data; who asks may see the job.
	ctx = identity.With(ctx, identity.Loop("progress"))
	run, err := t.tracking.Run(ctx, p, tracking.RunID(id))
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
		points, _, err := t.tracking.History(ctx, p, tracking.RunID(id), last.Key, 1, "")
		if err != nil || len(points) == 0 {
			return training.Progress{}, err
		}
		first = points[0]
	} else { // without the points of earlier attempts
		var ok bool
		if first, last, ok, err = t.tracking.Span(ctx, p, tracking.RunID(id), tracking.Millis(since.UnixMilli())); err != nil || !ok {
			return training.Progress{}, err
		}
	}
	point := func(m tracking.Metric) training.Point {
		return training.Point{Step: m.Step, At: time.UnixMilli(int64(m.At)).UTC()}
	}
	slices.Sort(noNumbers)
	return training.Progress{First: point(first), Last: point(last), NoNumbers: noNumbers}, nil
}

func (t trainingRuns) Upload(ctx context.Context, p project.Name, run, dir, under string) error {
	return upload(ctx, t.tracking, p, tracking.Place{Run: tracking.RunID(run)}, dir, under)
}

// runLogs implements training.LogFiles.
type runLogs struct{ tracking *tracking.Service }

// maxLogFile bounds a log that is read whole; the logs of attempts are cut before.
const maxLogFile = 128 << 20

// Rewrite implements training.LogFiles.
func (l runLogs) Rewrite(ctx context.Context, p project.Name, run string, change func(content []byte) []byte) error {
	place := tracking.Place{Run: tracking.RunID(run)}
	files, err := l.tracking.Files(ctx, p, place, "logs")
	if fault.Is(err, fault.NotFound) {
		return nil // it was pruned
	}
	if err != nil {
		return err
	}
	for _, f := range files {
		r, _, err := l.tracking.OpenArtifact(ctx, p, place, f.Path)
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
		if _, err := l.tracking.PutArtifact(quota.Exempt(ctx), p, place, f.Path, strings.NewReader(string(content))); err != nil {
			return err
		}
	}
	return nil
}

// runFiles opens the files of runs.
type runFiles struct{ tracking *tracking.Service }

func (f runFiles) Open(ctx context.Context, p project.Name, run, name string) (io.ReadCloser, error) {
	r, _, err := f.tracking.OpenArtifact(ctx, p, tracking.Place{Run: tracking.RunID(run)}, name)
	if err != nil {
		return nil, err
	}
	return r, nil
}

// upload stores the regular files below dir. The directory was written by user
// code: it is opened so that nothing leads out of it, and links are refused.
func upload(ctx context.Context, t *tracking.Service, p project.Name, place tracking.Place, dir, under string) error {
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
		_, err = t.PutArtifact(ctx, p, place, path.Join(under, name), f)
		return errors.Join(err, f.Close())
	})
}

// trainingModels turns a job's model directory into a logged model and a
// registered version.
type trainingModels struct {
	tracking *tracking.Service
	registry *registry.Service
}

func (m trainingModels) Save(ctx context.Context, s training.ModelSpec) (string, error) {
	loop := identity.From(ctx)
	loop.Behalf = s.By.ID
	ctx = identity.With(ctx, loop)
	run, err := m.tracking.Run(ctx, s.Project, tracking.RunID(s.Run))
	if err != nil {
		return "", err
	}
	logged, err := m.logged(ctx, s, run)
	if err != nil || s.Register == "" {
		return string(logged.ID), err
	}
	_, err = m.registry.CreateModel(ctx, s.Project, s.Register, "", nil)
	if err != nil && !fault.Is(err, fault.Conflict) {
		return "", err
	}
	// The client may have registered this attempt's model itself, or a former try did.
	made, _, err := m.registry.SearchVersions(ctx, s.Project, registry.Search{
		Filter: registry.Named(s.Register) + " AND run_id = '" + s.Run + "'", Max: 100,
	})
	if err != nil {
		return "", err
	}
	for _, v := range made {
		if v.LoggedModel == logged.ID && v.State == registry.Ready {
			return v.Model + "@" + strconv.Itoa(v.Number), nil
		}
	}
	var parents []string
	for _, in := range s.Inputs {
		if model := in.Model(); model != "" {
			parents = append(parents, model)
		}
	}
	v, err := m.registry.CreateVersion(ctx, s.Project, s.Register, registry.VersionSpec{
		Source: modelScheme + string(logged.ID), Run: run.ID, LoggedModel: logged.ID, Parents: parents,
	})
	return v.Model + "@" + strconv.Itoa(v.Number), err
}

func (m trainingModels) logged(ctx context.Context, s training.ModelSpec, run tracking.Run) (tracking.LoggedModel, error) {
	made, _, err := m.tracking.SearchLoggedModels(ctx, s.Project, tracking.Search{
		Experiments: []tracking.ExperimentID{run.Experiment}, Filter: "tags.`" + attemptTag + "` = '" + string(s.Attempt) + "'", Max: 100,
	})
	if err != nil {
		return tracking.LoggedModel{}, err
	}
	var logged tracking.LoggedModel
	for _, m := range made {
		if m.Attempt == string(s.Attempt) { // anybody can set the tag, nobody the origin
			logged = m
		}
	}
	if logged.ID == "" {
		name := tracking.LoggedModelName(s.Register)
		if name == "" {
			name = "model"
		}
		logged, err = m.tracking.CreateLoggedModel(ctx, s.Project, tracking.LoggedModelSpec{
			Experiment: run.Experiment, Name: name, Run: run.ID, Tags: []tracking.Pair{{Key: attemptTag, Value: string(s.Attempt)}},
		})
		if err != nil {
			return logged, err
		}
	}
	if logged.Status == tracking.ModelReady {
		return logged, nil
	}
	if err := upload(ctx, m.tracking, s.Project, tracking.Place{Model: logged.ID}, s.Dir, ""); err != nil {
		return logged, err
	}
	return m.tracking.FinalizeLoggedModel(ctx, s.Project, logged.ID, tracking.ModelReady)
}

// attemptScopes is all that an attempt's token may do, beside reading the job's
// inputs, and reading and writing its tables.
var attemptScopes = []string{"project.read", "run.read", "run.write", "sweep.read", "sweep.write", "model.read", "model.write", "workload.work"}

// trainingTokens issues the tokens of attempts.
type trainingTokens struct{ accounts *account.Service }

func (t trainingTokens) IssueIn(ctx context.Context, tx *store.Tx, j training.Job, attempt training.AttemptID, bound bool, ttl time.Duration) (string, error) {
	_, secret, err := t.accounts.IssueAttemptIn(ctx, tx, account.AttemptSpec{
		Attempt: string(attempt), Name: string(j.ID), Project: j.Project, Behalf: submitter(j.Project, j.By.ID).ID, Bound: bound, Scopes: scopesOf(j), TTL: ttl,
	})
	return secret, err
}

// scopesOf is what the token of an attempt of j may.
func scopesOf(j training.Job) []string {
	scopes := slices.Clone(attemptScopes)
	add := func(name string, actions ...policy.Action) {
		for _, action := range actions {
			if scope := string(action) + ":" + name; !slices.Contains(scopes, scope) { // an input may have two names
				scopes = append(scopes, scope)
			}
		}
	}
	for _, in := range j.Inputs {
		if in.Dataset() == "" { // a model, of which the scope names this version
			if m := in.Model(); len(m) < 150 && !strings.ContainsAny(m, " \t\r\n:") { // what a scope can name
				add(m, registry.ActionRead)
			}
			continue
		}
		add(in.Dataset(), dataset.ActionRead, dataset.ActionQuery)
	}
	for _, name := range j.Spec.Tables {
		add(name, dataset.ActionRead, dataset.ActionQuery, dataset.ActionImport)
	}
	return scopes
}

func (t trainingTokens) RevokeIn(ctx context.Context, tx *store.Tx, _ project.Name, attempt training.AttemptID) error {
	return t.accounts.RevokeAttemptIn(ctx, tx, string(attempt))
}
