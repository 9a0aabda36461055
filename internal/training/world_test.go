package training_test

import (
	"bytes"
	"cmp"
	"context"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/compute"
	"github.com/falaj-ml/falaj/internal/compute/computesql"
	"github.com/falaj-ml/falaj/internal/compute/engine"
	"github.com/falaj-ml/falaj/internal/compute/engine/enginetest"
	"github.com/falaj-ml/falaj/internal/compute/inspect"
	"github.com/falaj-ml/falaj/internal/environment"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/governance/residency/border"
	"github.com/falaj-ml/falaj/internal/resource"
	"github.com/falaj-ml/falaj/internal/scheduler"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/training"
	"github.com/falaj-ml/falaj/internal/training/output"
	"github.com/falaj-ml/falaj/internal/training/source"
	"github.com/falaj-ml/falaj/internal/training/trainingsql"
)

// authorizer allows everything but the actions named in deny.
type authorizer struct {
	mu   sync.Mutex
	deny map[policy.Action]bool
}

func (a *authorizer) Allow(_ context.Context, action policy.Action, _ policy.Object) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.deny[action] {
		return fault.New(fault.PermissionDenied, "%s is not allowed", action)
	}
	return nil
}

type journal struct {
	mu      sync.Mutex
	entries []audit.Entry
}

func (j *journal) Record(_ context.Context, e audit.Entry) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.entries = append(j.entries, e)
	return nil
}

// data has inputs by reference, and counts exports.
type data struct {
	mu      sync.Mutex
	inputs  map[string]training.Input
	exports int
	fail    error
	who     identity.Principal
}

func (d *data) Resolve(_ context.Context, _ project.Name, ref string) (training.Input, error) {
	in, ok := d.inputs[ref]
	if !ok {
		return in, fault.New(fault.NotFound, "there is no dataset %q", ref)
	}
	if in.Digest == "rejected" {
		return in, fault.New(fault.Conflict, "%s failed its expectations", in.Ref)
	}
	return in, nil
}

func (d *data) Permitted(context.Context, project.Name, training.Actor, training.Input) error {
	return nil
}

func (d *data) Export(ctx context.Context, _ project.Name, in training.Input, _ compute.Pool, dir string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.exports++
	d.who = identity.From(ctx)
	if err := d.fail; err != nil {
		d.fail = nil
		return err
	}
	return os.WriteFile(filepath.Join(dir, "part-0.parquet"), []byte("rows of "+in.Ref), 0o600)
}

// tables has the newest versions of tables, and a directory for all.
type tables struct {
	newest map[string]training.Input // without one: not there yet
	dir    string
}

func (t *tables) Pin(_ context.Context, _ project.Name, name string) (training.Input, error) {
	if name == "sealed" {
		return training.Input{}, fault.New(fault.PermissionDenied, "dataset %s is sealed", name)
	}
	return t.newest[name], nil
}

func (t *tables) Place(_ context.Context, _ training.Job, _ training.AttemptID, name string) ([]engine.Mount, error) {
	dir := filepath.Join(t.dir, name)
	return []engine.Mount{{Path: dir}, {Path: filepath.Join(dir, "data"), Writable: true}}, os.MkdirAll(filepath.Join(dir, "data"), 0o700)
}

// runs keeps runs and models in memory.
type runs struct {
	mu        sync.Mutex
	specs     []training.RunSpec
	artifacts map[string]string // "run/path" → content
	ended     map[string]string
	models    []training.ModelSpec
	files     map[string]string // of the last model
	refuse    error
	progress  training.Progress
}

func (r *runs) Create(_ context.Context, spec training.RunSpec) (run, experiment string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.specs {
		if s.Attempt == spec.Attempt {
			return "run_" + string(spec.Attempt), "7", nil
		}
	}
	r.specs = append(r.specs, spec)
	return "run_" + string(spec.Attempt), "7", nil
}

func (r *runs) Finish(_ context.Context, _ project.Name, run, status string, _ time.Time) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended[run] = status
	return nil
}

func (r *runs) Progress(context.Context, project.Name, string, time.Time) (training.Progress, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.progress, nil
}

func (r *runs) Upload(_ context.Context, _ project.Name, run, dir, under string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.refuse != nil {
		return r.refuse
	}
	return eachFile(dir, func(name, content string) { r.artifacts[run+"/"+filepath.Join(under, name)] = content })
}

// Rewrite implements training.LogFiles.
func (r *runs) Rewrite(_ context.Context, _ project.Name, run string, change func([]byte) []byte) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for path, content := range r.artifacts {
		if strings.HasPrefix(path, run+"/logs/") {
			if b := change([]byte(content)); b != nil {
				r.artifacts[path] = string(b)
			}
		}
	}
	return nil
}

func (r *runs) Save(_ context.Context, spec training.ModelSpec) (string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.models = append(r.models, spec)
	r.files = map[string]string{}
	return spec.Register + "@1", eachFile(spec.Dir, func(name, content string) { r.files[name] = content })
}

func eachFile(dir string, f func(name, content string)) error {
	return filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		rel, _ := filepath.Rel(dir, path)
		f(rel, string(b))
		return err
	})
}

// tokens notes what is issued and revoked, once the transaction is durable.
type tokens struct {
	mu     sync.Mutex
	events []string
}

func (t *tokens) note(tx *store.Tx, what string) {
	tx.OnCommit(func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.events = append(t.events, what)
	})
}

func (t *tokens) IssueIn(_ context.Context, tx *store.Tx, _ training.Job, a training.AttemptID, _ bool, _ time.Duration) (string, error) {
	t.note(tx, "issued "+string(a))
	return "secret of " + string(a), nil
}

func (t *tokens) RevokeIn(_ context.Context, tx *store.Tx, _ project.Name, a training.AttemptID) error {
	t.note(tx, "revoked "+string(a))
	return nil
}

// environments has one, whose state the test sets.
type environments struct {
	mu      sync.Mutex
	usable  environment.Usable
	err     error
	unfit   error
	changed chan struct{}
}

func (e *environments) Use(_ context.Context, _ project.Name, ref string) (environment.Usable, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if name, _, _ := strings.Cut(ref, "@"); name != "py" {
		return environment.Usable{}, fault.New(fault.NotFound, "there is no environment %q", ref)
	}
	return e.usable, e.err
}

func (e *environments) Admit(context.Context, project.Name, string, []string) error { return e.unfit }

func (e *environments) Check(environment.Usable, compute.Pool) error { return nil }

func (e *environments) Fetch(context.Context, environment.Usable, compute.Pool) error { return nil }

func (e *environments) Phase(context.Context, project.Name, string) (string, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.usable.State == environment.Ready {
		return "ready", nil
	}
	return "building: downloading and installing 3 packages", nil
}

func (e *environments) Await(ctx context.Context, _ project.Name, _ string) error {
	for {
		e.mu.Lock()
		done, changed := e.usable.State == environment.Ready || e.err != nil, e.changed
		e.mu.Unlock()
		if done {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (e *environments) become(state environment.State, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.usable.State, e.err = state, err
	if state == environment.Ready {
		e.usable.Digest = "sha256:e"
	}
	close(e.changed)
	e.changed = make(chan struct{})
}

// sources keeps archives in memory.
type sources struct {
	mu sync.Mutex
	m  map[stored][]byte

	deleting func() error // comes before a deletion
	saved    func()       // comes after an archive was stored
}

type stored struct {
	project project.Name
	source.Stored
}

func (s *sources) Save(_ context.Context, p project.Name, a source.Stored, r io.Reader) error {
	b, err := io.ReadAll(r)
	s.mu.Lock()
	s.m[stored{p, a}] = b
	s.mu.Unlock()
	if s.saved != nil {
		s.saved()
	}
	return err
}

func (s *sources) Open(_ context.Context, p project.Name, a source.Stored) (io.ReadCloser, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b, ok := s.m[stored{p, a}]
	if !ok {
		return nil, fault.New(fault.NotFound, "there is no source %s", a.Digest)
	}
	return io.NopCloser(bytes.NewReader(b)), nil
}

func (s *sources) List(_ context.Context, p project.Name, yield func(source.Stored) error) error {
	s.mu.Lock()
	keys := slices.SortedFunc(maps.Keys(s.m), func(a, b stored) int {
		return cmp.Or(cmp.Compare(a.Digest, b.Digest), cmp.Compare(a.Object, b.Object))
	})
	s.mu.Unlock()
	for _, k := range keys {
		if k.project == p {
			if err := yield(k.Stored); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *sources) Delete(_ context.Context, p project.Name, a source.Stored) error {
	if s.deleting != nil {
		if err := s.deleting(); err != nil {
			return err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.m, stored{p, a})
	return nil
}

// of gives the objects of a digest.
func (s *sources) of(digest string) (all []stored) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for k := range s.m {
		if k.Digest == digest {
			all = append(all, k)
		}
	}
	return all
}

type world struct {
	*training.Submission
	*training.Jobs
	*training.Control
	*training.Outputs
	Files *output.Files
	*training.Usage
	*source.Archives
	*training.Execution
	*training.Retention
	*training.Records
	compute *services
	fake    *enginetest.Fake
	auth    *authorizer
	journal *journal
	data    *data
	tables  *tables
	runs    *runs
	tokens  *tokens
	envs    *environments
	sources *sources
	cfg     training.Config
	ccfg    compute.Config
}

const nyc project.Name = "nyc"

var twoCores = resource.Amount{CPU: resource.Cores(2)}

// newWorld has the fake engine, or the one given.
func newWorld(tb testing.TB, given ...engine.Driver) *world {
	tb.Helper()
	dir := tb.TempDir()
	db := database(tb, computesql.Migrations, trainingsql.Migrations)
	input := func(ref string, class project.Classification, zones ...residency.Zone) training.Input {
		return training.Input{Ref: "dataset " + ref + "@1", Digest: "sha256:" + ref, Residency: residency.Of(zones...), Classification: class}
	}
	w := &world{
		fake: enginetest.NewFake(), auth: &authorizer{deny: map[policy.Action]bool{}}, journal: &journal{},
		data: &data{inputs: map[string]training.Input{
			"weather": input("weather", project.Public, "home", "DE"), "flights": input("flights", project.Confidential, "home", "AE"),
			"abroad": input("abroad", project.Public, "DE"), "bad": {Ref: "dataset bad@1", Digest: "rejected"},
		}},
		tables: &tables{newest: map[string]training.Input{"late": input("late", project.Internal, "home")}, dir: filepath.Join(dir, "tables")},
		runs:   &runs{artifacts: map[string]string{}, ended: map[string]string{}},
		tokens: &tokens{}, sources: &sources{m: map[stored][]byte{}},
		envs: &environments{usable: environment.Usable{Name: "py", State: environment.Ready, Digest: "sha256:e", Python: "/env/bin/python", Bin: "/env/bin"}, changed: make(chan struct{})},
	}
	log := slog.New(slog.NewTextHandler(tb.Output(), nil))
	var driver engine.Driver = w.fake
	if len(given) > 0 {
		driver = given[0]
	}
	w.ccfg = compute.Config{
		DB: db, Store: computesql.Store{}, Authorizer: w.auth, Journal: w.journal, Guard: border.NewGuard(w.journal), Log: log,
		Engines: map[string]compute.Engine{"local": {
			Driver: driver, Isolation: scheduler.Sandbox, Machine: resource.Amount{CPU: resource.Cores(2), Memory: 4 * resource.GiB},
		}, "far": {Driver: enginetest.NewFake(), Isolation: scheduler.Process, Remote: true}},
	}
	w.cfg = training.Config{
		DB: db, Store: trainingsql.Store{}, Authorizer: w.auth, Journal: w.journal, Environments: w.envs, Data: w.data, Tables: w.tables,
		Runs: w.runs, LogFiles: w.runs, Models: w.runs, Tokens: w.tokens, Sources: w.sources, Dir: filepath.Join(dir, "training"), Log: log,
		Network: []string{"mirror.example:443"}, WatchEvery: 20 * time.Millisecond,
	}
	w.start(tb)
	if _, err := w.compute.EnsureHome(tb.Context(), "local"); err != nil {
		tb.Fatal(err)
	}
	return w
}

// start makes new services over the same database, files and processes.
func (w *world) start(tb testing.TB) {
	tb.Helper()
	w.compute = newServices(w.ccfg)
	w.cfg.Compute = w.compute
	s := training.New(w.cfg)
	w.Submission, w.Jobs, w.Control, w.Outputs, w.Files, w.Usage = s.Submission, s.Jobs, s.Control, s.Outputs, s.Files, s.Usage
	w.Archives, w.Execution, w.Retention, w.Records = s.SourceArchives, s.Execution, s.Retention, s.Records
	w.compute.RegisterOwner(compute.JobAttempt, w.Execution)
	if err := w.Start(tb.Context()); err != nil {
		tb.Fatal(err)
	}
	w.compute.Start(tb.Context())
	tb.Cleanup(w.Stop)
	tb.Cleanup(w.compute.Stop)
}

// stop is the end of a Falaj process; workloads go on.
func (w *world) stop() {
	w.compute.Stop()
	w.Stop()
}

func alice(ctx context.Context) context.Context {
	return identity.With(ctx, identity.Principal{Kind: identity.User, ID: "usr_alice", Name: "alice"})
}

func (w *world) submit(tb testing.TB, spec training.Spec) training.Job {
	tb.Helper()
	if len(spec.Command) == 0 && spec.Script == "" {
		spec.Command = []string{"/bin/true"}
	}
	j, err := w.Submit(alice(tb.Context()), nyc, "train", spec)
	if err != nil {
		tb.Fatal(err)
	}
	return j
}

func (w *world) ended(tb testing.TB, id training.JobID) training.Job {
	tb.Helper()
	j, err := w.Wait(alice(tb.Context()), nyc, id, time.Minute)
	if err != nil {
		tb.Fatal(err)
	}
	if !j.State.Ended() {
		tb.Fatalf("the job does not end: %+v", j)
	}
	return j
}

func (w *world) started(tb testing.TB) engine.Handle {
	tb.Helper()
	select {
	case h := <-w.fake.Started():
		return h
	case <-tb.Context().Done():
		tb.Fatal("nothing was started")
		return ""
	}
}

// services are those of compute that jobs use.
type services struct {
	*compute.Pools
	*compute.Queues
	*compute.Workloads
	*compute.Programs
	inspect.Inspector
	*compute.Scheduling
}

func newServices(cfg compute.Config) *services {
	s := compute.New(cfg)
	return &services{s.Pools, s.Queues, s.Workloads, s.Programs, inspect.Inspector{Programs: s.Programs}, s.Scheduling}
}
