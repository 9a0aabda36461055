package environment

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/falaj-ml/falaj/internal/compute"
	"github.com/falaj-ml/falaj/internal/compute/engine"
	"github.com/falaj-ml/falaj/internal/environment/image"
	"github.com/falaj-ml/falaj/internal/environment/python"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/id"
	"github.com/falaj-ml/falaj/internal/store"
)

// Authorizer is the question this package asks before it acts.
type Authorizer interface {
	Allow(ctx context.Context, action policy.Action, object policy.Object) error
}

// Compute runs the steps of builds.
type Compute interface {
	Submit(ctx context.Context, tx *store.Tx, r compute.Request) error
	Logs(ctx context.Context, id compute.WorkloadID, offset int64, follow bool) (io.ReadCloser, error)
	ListPools(ctx context.Context) ([]compute.Pool, error)
	// Waits says why a step waits for a node; nothing when it runs.
	Waits(id compute.WorkloadID) (of []compute.Reason, possible bool)
}

// Config is what the service needs.
type Config struct {
	DB         *store.DB
	Store      Store
	Authorizer Authorizer
	Compute    Compute
	// Dir holds the environments and Cache uv's files; both belong to this
	// service alone and should be on one file system.
	Dir, Cache string
	// UV is the uv binary; empty looks in Path and beside the interpreters.
	UV string
	// Path lists directories in which interpreters and uv are looked for.
	Path []string
	// Python lists interpreters besides those in Path.
	Python []string
	// Index is the package index; empty is uv's default.
	Index string
	// Indexes are further package indexes, by the name that environments ask for them by.
	Indexes map[string]string
	// Hosts lists host:port that builds may reach: the index and where its
	// files are. Without any, no environment that has packages can be built.
	Hosts []string
	// CA is a PEM bundle that builds trust; empty looks at the usual places.
	CA string
	// Builds is what a step of a build asks for beside its size: Pools on this machine, of which
	// none is the home pool, Isolation, and Timeout, of which 0 is 20 minutes.
	Builds compute.Request
	// Engine is the engine whose pools see this machine's files; empty is local.
	Engine string
	// Kinds of the engines by name; what is not there is of the kind of its name.
	Kinds map[string]string
	// Images of this machine; nil refuses them.
	Images image.Store
	// Containers says why this machine runs no images; nil is that it does.
	Containers func() error
	Pauses     []time.Duration  // before a step that was cut off is tried again, each time; nil is 5 s, 20 s and 1 minute
	Log        *slog.Logger     // nil discards
	Now        func() time.Time // nil is time.Now
}

// Service is the only way to environments. Safe for concurrent use.
type Service struct {
	cfg Config
	log *slog.Logger
	now func() time.Time

	mu           sync.Mutex
	interpreters []Interpreter // found so far
	changed      chan struct{} // closed at the next change of any environment

	// Held for reading where an environment's files are taken into use, for
	// writing where they are taken away.
	pruning sync.RWMutex
	holders []Holder

	images *image.Images

	sites python.Sites
}

// New makes the service. compute learns of it with RegisterOwner(compute.Build, s).
func New(cfg Config) *Service {
	if len(cfg.Builds.Pools) == 0 {
		cfg.Builds.Pools = []string{string(compute.Home)}
	}
	if cfg.Engine == "" {
		cfg.Engine = "local"
	}
	if cfg.Builds.Timeout == 0 {
		cfg.Builds.Timeout = 20 * time.Minute
	}
	if cfg.Pauses == nil {
		cfg.Pauses = []time.Duration{5 * time.Second, 20 * time.Second, time.Minute}
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	return &Service{cfg: cfg, log: cfg.Log, now: cfg.Now, changed: make(chan struct{}), images: image.New(cfg.Images, cfg.Log)}
}

func (s *Service) allow(ctx context.Context, action policy.Action, p project.Name, name string) error {
	return s.cfg.Authorizer.Allow(ctx, action, policy.Object{Project: string(p), Kind: "environment", Name: name})
}

// Apply makes an environment of a specification under a name, and begins to
// build it unless it is built; Await says when it is. Applying what is there
// already is no change. Needs environment.apply. Errors: fault.Invalid, also
// for a Python that this machine does not have.
func (s *Service) Apply(ctx context.Context, p project.Name, name string, spec Spec) (Environment, project.Change, error) {
	return s.apply(ctx, p, name, spec, how{})
}

// Build locks and builds what is under a name anew: with the newest versions
// that its requirements allow, and a tag where it points now. Needs
// environment.apply.
func (s *Service) Build(ctx context.Context, p project.Name, name string) (Environment, error) {
	if err := s.allow(ctx, ActionApply, p, name); err != nil {
		return Environment{}, err
	}
	old, err := s.named(ctx, p, name, "")
	if err != nil {
		return Environment{}, err
	}
	if old.State == Locking || old.State == Building {
		return old, nil
	}
	e, _, err := s.apply(ctx, p, name, old.Spec, how{anew: true})
	return e, err
}

// how an environment is applied.
type how struct{ dryRun, anew bool }

// Plan is Apply that changes nothing: what would be built has no ID yet.
func (s *Service) Plan(ctx context.Context, p project.Name, name string, spec Spec) (Environment, project.Change, error) {
	e, change, err := s.apply(ctx, p, name, spec, how{dryRun: true})
	if change != project.Unchanged {
		e.ID = ""
	}
	return e, change, err
}

func (s *Service) apply(ctx context.Context, p project.Name, name string, spec Spec, how how) (Environment, project.Change, error) {
	if err := s.allow(ctx, ActionApply, p, name); err != nil {
		return Environment{}, "", err
	}
	if err := id.CheckName("environment name", name); err != nil {
		return Environment{}, "", err
	}
	if err := spec.Validate(); err != nil {
		return Environment{}, "", err
	}
	wanted, err := s.describe(ctx, spec)
	if err != nil {
		return Environment{}, "", err
	}
	same := func(old Environment) bool {
		return !how.anew && old.SpecDigest == wanted.SpecDigest && old.State != Failed && (old.State != Ready || s.there(old))
	}
	if old, err := s.named(ctx, p, name, ""); spec.Image != "" && (err != nil || !same(old)) {
		if err := s.pin(ctx, &wanted); err != nil {
			return Environment{}, "", err
		}
	}
	var e Environment
	var change project.Change
	plan := func(ctx context.Context, tx *store.Tx) error {
		old, err := s.cfg.Store.Named(ctx, tx, p, name, "")
		switch {
		case fault.Is(err, fault.NotFound):
			change = project.Created
		case err != nil:
			return err
		case same(old):
			e, change = old, project.Unchanged
			return nil
		default:
			change = project.Updated
		}
		e = wanted
		e.ID, e.Project, e.Name = ID(id.New("env")), p, name
		if how.dryRun {
			return nil
		}
		if err := s.cfg.Store.Insert(ctx, tx, e); err != nil {
			return err
		}
		err = audit.Append(ctx, tx, audit.Entry{
			Project: string(p), Action: string(ActionApply), Object: "environment " + name,
			Detail: map[string]any{
				"id": e.ID, "specification": e.SpecDigest, "python": e.Python, "allow_source": spec.AllowSource, "image": e.Image, "modules": spec.Modules,
			},
		})
		if err != nil {
			return err
		}
		if err := publish(ctx, tx, EnvironmentApplied, e); err != nil {
			return err
		}
		tx.OnCommit(s.notify)
		if e.State == Ready {
			tx.OnCommit(func() { s.prefetch(e.Image) })
			return publish(ctx, tx, EnvironmentReady, e)
		}
		return s.submit(ctx, tx, e)
	}
	if how.dryRun {
		err = s.cfg.DB.View(ctx, plan)
	} else {
		err = s.cfg.DB.Update(ctx, string(p), plan)
	}
	return e, change, fault.Wrap(err, "applying environment %s", name)
}

// describe says what a specification means here, before it has a name; an image
// is not pinned yet.
func (s *Service) describe(ctx context.Context, spec Spec) (Environment, error) {
	e := Environment{Spec: spec, State: Locking, Step: stepLock, CreatedAt: s.now().UTC(), Revision: 1}
	var err error
	switch spec.Kind() {
	case PythonKind:
		if e.Interpreter, err = s.interpreterFor(ctx, spec); err != nil {
			return e, err
		}
		if _, err := s.uv(ctx); err != nil {
			return e, err
		}
		e.Python, e.Platform = e.Interpreter.Version, e.Interpreter.Platform
	case ModulesKind:
		e.Digest = Digest(sum(append([]string{"falaj environment 4"}, spec.Modules...)...))
		e.State, e.Step, e.ReadyAt = Ready, "", e.CreatedAt
	case ImageKind:
		e.State, e.Step, e.ReadyAt = Ready, "", e.CreatedAt
	}
	more, err := s.indexes(spec)
	if err != nil {
		return e, err
	}
	if spec.TorchBackend == autoBackend {
		if e.TorchBackend, err = s.chooseBackend(ctx); err != nil {
			return e, err
		}
	}
	if e.backend() != "" && !slices.Contains(s.cfg.Hosts, torchHost) {
		return e, fault.New(fault.Invalid, "torch_backend: builds of this installation may not reach PyTorch's index, %s", torchHost).
			WithHint("Ask the operator to add %s and download-r2.pytorch.org:443, which serves its files, to environments.hosts, or to add a mirror to environments.indexes that the environment then names in spec.indexes.", torchHost)
	}
	spec.TorchBackend = e.backend() // of what is meant, so that another meaning is a change
	e.SpecDigest, err = specDigest(spec, e.Interpreter, s.cfg.Index, more)
	return e, err
}

// indexes are the URLs of what a specification names, in order. What the builds of this
// installation may not reach is refused at once: they would fail minutes later.
func (s *Service) indexes(spec Spec) ([]string, error) {
	var urls []string
	for _, name := range spec.Indexes {
		at, ok := s.cfg.Indexes[name]
		if !ok {
			known := strings.Join(slices.Sorted(maps.Keys(s.cfg.Indexes)), ", ")
			hint := "Available indexes: " + known + "."
			if known == "" {
				hint = "There are none."
			}
			return nil, fault.New(fault.Invalid, "the installation has no package index %.80q", name).
				WithHint("%s Ask the operator to add the index to environments.indexes, and the hosts of its files to environments.hosts.", hint)
		}
		urls = append(urls, at)
	}
	return urls, nil
}

// interpreterFor finds the Python of a specification: of the version or path
// that it names, the newest, or the machine's python3 where it names none. With
// site_packages what the interpreters bring decides (see chooseSite).
func (s *Service) interpreterFor(ctx context.Context, spec Spec) (Interpreter, error) {
	all, err := s.matching(ctx, spec.Python)
	if err != nil || !spec.SitePackages {
		return all[0], err
	}
	required, err := spec.required()
	if err != nil {
		return Interpreter{}, err
	}
	return s.chooseSite(ctx, all, required)
}

// matching finds the Pythons of a version or at a path, the best first.
func (s *Service) matching(ctx context.Context, version string) ([]Interpreter, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	find := func() ([]Interpreter, bool) {
		var matching []Interpreter
		for _, in := range s.interpreters {
			if in.matches(version) {
				matching = append(matching, in)
			}
		}
		if len(matching) == 0 {
			return nil, false
		}
		if version != "" {
			slices.SortFunc(matching, newer)
		}
		_, err := os.Stat(matching[0].Path)
		return matching, err == nil
	}
	if in, ok := find(); ok {
		return in, nil
	}
	s.interpreters = Interpreters(ctx, s.cfg.Python, s.cfg.Path) // it may have been installed meanwhile
	if in, ok := find(); ok {
		return in, nil
	}
	found := make([]string, len(s.interpreters))
	for i, in := range s.interpreters {
		found[i] = in.Version
	}
	none := []Interpreter{{}}
	if len(found) == 0 {
		return none, fault.New(fault.Invalid, "no Python 3.10 or later was found on this machine").WithHint("Install one, such as the package python3.")
	}
	if filepath.IsAbs(version) {
		return none, fault.New(fault.Invalid, "%s is not one of this machine's Pythons", version).
			WithHint("Name one of the interpreters %s, or have the operator add it to environments.interpreters in the configuration.", strings.Join(s.paths(), ", "))
	}
	return none, fault.New(fault.Invalid, "python %s is not on this machine", version).
		WithHint("Installed versions: %s. Choose one of them, or install %s.", strings.Join(found, ", "), version)
}

// paths are of the interpreters that were found; the caller holds mu.
func (s *Service) paths() []string {
	paths := make([]string, len(s.interpreters))
	for i, in := range s.interpreters {
		paths[i] = in.Path
	}
	return paths
}

func (s *Service) uv(ctx context.Context) (string, error) {
	s.mu.Lock()
	known := s.interpreters
	s.mu.Unlock()
	if path, err := FindUV(s.cfg.UV, s.cfg.Path, known); err == nil || s.cfg.UV != "" || known != nil {
		return path, err
	}
	return FindUV(s.cfg.UV, s.cfg.Path, Interpreters(ctx, s.cfg.Python, s.cfg.Path))
}

// path is where an environment's files are.
func (s *Service) path(d Digest) string {
	return filepath.Join(s.cfg.Dir, strings.TrimPrefix(string(d), "sha256:"))
}

// there reports whether what an environment consists of is here, where it is
// files.
func (s *Service) there(e Environment) bool { return e.Spec.Kind() != PythonKind || s.built(e.Digest) }

func (s *Service) built(d Digest) bool {
	_, err := os.Stat(filepath.Join(s.path(d), "bin", "python"))
	return d != "" && err == nil
}

// One gives an environment by name or name@digest, with its bill of materials. Needs
// environment.read. Error: fault.NotFound.
func (s *Service) One(ctx context.Context, p project.Name, ref string) (Environment, error) {
	name, digest, _ := strings.Cut(ref, "@")
	if err := s.allow(ctx, ActionRead, p, name); err != nil {
		return Environment{}, err
	}
	return s.named(ctx, p, name, Digest(digest))
}

func (s *Service) named(ctx context.Context, p project.Name, name string, d Digest) (e Environment, err error) {
	err = s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		e, err = s.cfg.Store.Named(ctx, tx, p, name, d)
		return err
	})
	return e, err
}

// List gives a page of a project's environments by name, and the name to go on
// after, empty at the end. Needs environment.read.
func (s *Service) List(ctx context.Context, p project.Name, after string, limit int) (list []Environment, next string, err error) {
	if err := s.allow(ctx, ActionRead, p, ""); err != nil {
		return nil, "", err
	}
	if limit <= 0 {
		limit = 100
	}
	limit = min(limit, 1000)
	err = s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		list, err = s.cfg.Store.List(ctx, tx, p, after, limit+1)
		return err
	})
	if err != nil {
		return nil, "", err
	}
	if len(list) > limit {
		list = list[:limit]
		next = list[limit-1].Name
	}
	for i := range list {
		list[i].SBOM = nil
	}
	return list, next, nil
}

// Find reads the newest environments, by name after a name, of which may says that they may be
// what is looked for: limit of them at most. Needs environment.read.
func (s *Service) Find(ctx context.Context, p project.Name, after string, limit int, may func(store.Line) (bool, error)) (found store.Found[Environment], err error) {
	if err := s.allow(ctx, ActionRead, p, ""); err != nil {
		return found, err
	}
	return store.Find(ctx, s.cfg.DB, store.Lookup[Environment]{
		Lines: func(ctx context.Context, tx *store.Tx, after string, limit int) ([]store.Line, error) {
			return s.cfg.Store.Lines(ctx, tx, p, after, limit)
		},
		Read: func(ctx context.Context, tx *store.Tx, names []string) ([]Environment, error) {
			return store.Each(names, func(name string) (Environment, error) { return s.cfg.Store.Named(ctx, tx, p, name, "") })
		},
		Key: func(e Environment) string { return e.Name },
	}, after, limit, may)
}

// Logs is everything that uv said while it locked and built the environment.
// Needs environment.read.
func (s *Service) Logs(ctx context.Context, p project.Name, name string) (io.ReadCloser, error) {
	e, err := s.One(ctx, p, name)
	if err != nil {
		return nil, err
	}
	var parts []io.Reader
	var closers []io.Closer
	f, err := os.Open(s.logFile(e.ID))
	if err == nil {
		parts, closers = append(parts, f), append(closers, f)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fault.Wrap(err, "opening the build log")
	}
	if e.State == Locking || e.State == Building {
		live, err := s.cfg.Compute.Logs(ctx, e.workload(), 0, false)
		if err == nil {
			parts, closers = append(parts, live), append(closers, live)
		}
	}
	return readers{io.MultiReader(parts...), closers}, nil
}

type readers struct {
	io.Reader
	closers []io.Closer
}

func (r readers) Close() error {
	var err error
	for _, c := range r.closers {
		err = errors.Join(err, c.Close())
	}
	return err
}

// Use gives an environment by name, or by name@digest a content that the name
// once had. Needs environment.read. Errors: fault.NotFound; fault.Invalid with
// the cause when it could not be built; fault.Gone when its files are missing.
func (s *Service) Use(ctx context.Context, p project.Name, ref string) (Usable, error) {
	name, digest, _ := strings.Cut(ref, "@")
	if err := s.allow(ctx, ActionRead, p, name); err != nil {
		return Usable{}, err
	}
	e, err := s.named(ctx, p, name, Digest(digest))
	if err != nil {
		return Usable{}, err
	}
	u := Usable{Name: name, Digest: e.Digest, Spec: e.SpecDigest, State: e.State, Platform: e.Platform, Needs: e.needs()}
	switch e.State {
	case Failed:
		return u, fault.New(fault.Invalid, "environment %s could not be built: %s", name, e.Reason).WithHint("%s", e.Hint)
	case Ready:
	default:
		u.Digest = "" // not before it is there
		return u, nil
	}
	switch e.Spec.Kind() {
	case ImageKind:
		u.Image, u.Python = e.Image, cmp.Or(e.Spec.Python, "/usr/bin/python3")
		return u, nil
	case ModulesKind:
		u.Modules = e.Spec.Modules
		return u, nil
	case PythonKind:
	}
	dir := s.path(e.Digest)
	if err := s.use(e); err != nil {
		return u, err
	}
	u.Bin = filepath.Join(dir, "bin")
	u.Python = filepath.Join(u.Bin, "python")
	u.Mounts = append([]engine.Mount{{Path: dir, Role: engine.Venv, Digest: string(e.Digest)}}, e.Interpreter.mounts()...)
	u.Interpreter = e.Interpreter
	u.Env = map[string]string{"VIRTUAL_ENV": dir, "PYTHONDONTWRITEBYTECODE": "1"}
	return u, nil
}

// Check refuses a pool that the environment cannot run on, before anything
// starts there. What nodes do not tell, their agents compare. Error:
// fault.Invalid.
func (s *Service) Check(u Usable, p compute.Pool) error {
	if f := s.fit(u.Needs, p); !f.Fits {
		return misfit(u.Name, []Fit{f})
	}
	if p.Engine != s.cfg.Engine || u.Needs.Kind != PythonKind {
		return nil
	}
	resolved, err := filepath.EvalSymlinks(u.Python)
	if err != nil || !program(resolved) {
		return fault.New(fault.Invalid, "the Python of environment %s is no longer on this machine", u.Name).
			WithHint("Install it again, or apply the environment again with another version.")
	}
	if u.Interpreter.Site == nil {
		return nil
	}
	now, err := s.sites.Packages(context.Background(), u.Interpreter.Path)
	if err != nil {
		return err
	}
	if changed := python.SiteChanged(u.Interpreter.Site, now); changed != "" {
		return fault.New(fault.Invalid, "the Python of environment %s no longer has the packages that it was built on: %s", u.Name, changed).
			WithHint("Apply the environment again.")
	}
	return nil
}

// Await returns when an environment is neither being locked nor built.
func (s *Service) Await(ctx context.Context, p project.Name, ref string) error {
	name, digest, _ := strings.Cut(ref, "@")
	for {
		changed := s.watch()
		e, err := s.named(ctx, p, name, Digest(digest))
		if err != nil || e.State == Ready || e.State == Failed {
			return err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Phase says in words how far an environment is. Needs environment.read.
func (s *Service) Phase(ctx context.Context, p project.Name, ref string) (string, error) {
	name, digest, _ := strings.Cut(ref, "@")
	if err := s.allow(ctx, ActionRead, p, name); err != nil {
		return "", err
	}
	e, err := s.named(ctx, p, name, Digest(digest))
	if err != nil {
		return "", err
	}
	of, _ := s.cfg.Compute.Waits(e.workload())
	return e.phase(of), nil
}

// phase says how far the environment is, and why its current step waits, if it does.
func (e Environment) phase(waits []compute.Reason) string {
	var words string
	switch {
	case e.State == Ready || e.State == Failed:
		return string(e.State)
	case e.Step == stepLock:
		words = "locking its requirements: choosing versions, with hashes"
	case e.Step == stepCreate:
		words = "building: creating the Python environment"
	case e.Step == stepCompile:
		words = "building: compiling its packages to bytecode"
	default:
		words = fmt.Sprintf("building: downloading and installing %d packages", e.installs())
		if e.installs() == 1 {
			words = "building: downloading and installing 1 package"
		}
	}
	if e.Reason != "" {
		words += "; " + e.Reason
	}
	if len(waits) > 0 {
		words += "; it waits for a node: " + waits[0].Text
	}
	return words
}

// installs is the number of packages that the build installs: those of the interpreter are there.
func (e Environment) installs() int {
	if e.Spec.SitePackages {
		return e.Packages - len(e.Interpreter.kept())
	}
	return e.Packages
}

// PhaseAfter returns when the phase is another than seen, when the environment is
// neither being locked nor built, or when ctx ends. Needs environment.read.
func (s *Service) PhaseAfter(ctx context.Context, p project.Name, ref, seen string) (string, error) {
	tick := time.NewTicker(phaseEvery)
	defer tick.Stop()
	for {
		changed := s.watch()
		phase, err := s.Phase(ctx, p, ref)
		if err != nil || phase != seen || phase == string(Ready) || phase == string(Failed) {
			return phase, err
		}
		select {
		case <-changed:
		case <-tick.C: // the scheduler's reasons change without an event of ours
		case <-ctx.Done():
			return phase, nil
		}
	}
}

// phaseEvery is how often the reasons of the scheduler are read again for a caller that waits.
const phaseEvery = 2 * time.Second

func (s *Service) watch() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changed
}

func (s *Service) notify() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.changed)
	s.changed = make(chan struct{})
}
