package environment

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/falaj-ml/falaj/internal/compute"
	"github.com/falaj-ml/falaj/internal/compute/engine"
	"github.com/falaj-ml/falaj/internal/environment/python"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/fsync"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/resource"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/worker/archive"
)

// Step is one workload of a build.
type Step string

// The steps, in order.
const (
	stepLock    Step = "lock"    // uv pip compile: which versions, with hashes
	stepCreate  Step = "create"  // uv venv: an empty environment
	stepInstall Step = "install" // uv pip install: the locked packages that the package store lacks, each alone
	stepCompile Step = "compile" // Python: the bytecode of what was installed
)

// compiler writes the bytecode below directories. It runs in the interpreter alone: with
// -S no .pth file of a package is run, as it is when uv compiles. The files never change,
// so their bytecode need not be compared with them, and it names no directory of a build.
const compiler = `import compileall, py_compile, sys
for dir in sys.argv[1:]:
    compileall.compile_dir(dir, quiet=2, force=True, stripdir=dir, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)`

// maxStepLog bounds what is kept of one step's output, in bytes.
const maxStepLog = 4 << 20

var _ compute.Owner = (*Service)(nil)

// workload names the workload of the environment's current step.
func (e Environment) workload() compute.WorkloadID {
	id := string(e.ID) + "-" + string(e.Step)
	if e.Retries > 0 {
		id += fmt.Sprintf("-%d", e.Retries)
	}
	if n := len(e.Interpreter.Replaced); n > 0 {
		id += fmt.Sprintf("-r%d", n)
	}
	return compute.WorkloadID(id)
}

// staging is where an environment is built: work/ with what uv reads and writes, venv/ as uv
// makes it empty, packages/ that go into the package store, and environment/ that the server
// puts together from both. A build that runs code of packages installs into venv/, which
// becomes the environment, and has its own cache/.
func (s *Service) staging(e ID) string { return filepath.Join(s.cfg.Dir, ".staging", string(e)) }

func (s *Service) venv(e ID) string { return filepath.Join(s.staging(e), "venv") }

func (s *Service) logFile(e ID) string { return filepath.Join(s.cfg.Dir, ".logs", string(e)+".log") }

// submit queues the workload of the environment's step.
func (s *Service) submit(ctx context.Context, tx *store.Tx, e Environment) error {
	var begins time.Time
	if e.Retries > 0 && e.Reason != "" { // what comes after a retry does not wait
		begins = s.now().Add(s.cfg.Pauses[min(e.Retries, len(s.cfg.Pauses))-1]).UTC()
	}
	return s.cfg.Compute.Submit(ctx, tx, compute.Request{
		NotBefore: begins,
		ID:        e.workload(), Project: e.Project, Kind: compute.Build, Label: "environment " + e.Name,
		Amount:    resource.Amount{CPU: resource.Cores(1), Memory: resource.GiB},
		Isolation: s.cfg.Builds.Isolation, Pools: s.cfg.Builds.Pools, Timeout: s.cfg.Builds.Timeout,
		Priority: 100, // jobs wait for it
		InPlace:  true,
	})
}

// of finds the environment of a workload, and the step that it was.
func (s *Service) of(ctx context.Context, tx *store.Tx, w compute.WorkloadID) (Environment, Step, error) {
	eid, step, _ := strings.Cut(string(w), "-")
	step, _, _ = strings.Cut(step, "-")
	e, err := s.cfg.Store.One(ctx, tx, ID(eid))
	return e, Step(step), err
}

// Prepare says what uv is to do. It is compute's to call.
func (s *Service) Prepare(ctx context.Context, w compute.Workload, _ compute.Pool) (engine.Spec, error) {
	var e Environment
	var step Step
	err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		e, step, err = s.of(ctx, tx, w.ID)
		return err
	})
	if err != nil {
		return engine.Spec{}, err
	}
	uv, err := s.uv(ctx)
	if err != nil {
		return engine.Spec{}, err
	}
	more, err := s.indexes(e.Spec)
	if err != nil {
		return engine.Spec{}, err
	}
	staging := s.staging(e.ID)
	work, venv := filepath.Join(staging, "work"), s.venv(e.ID)
	cache, role := s.cfg.Cache, engine.Shared
	if e.Spec.AllowSource {
		// Build scripts of packages can write wherever their build can: not
		// into the cache of others.
		cache, role = filepath.Join(staging, "cache"), ""
	}
	for _, dir := range []string{work, filepath.Join(work, "tmp"), venv, cache} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return engine.Spec{}, fault.Wrap(err, "making the staging directory")
		}
	}
	// What a build script left in work must not lead us elsewhere: a Root
	// refuses names and links that leave it.
	root, err := os.OpenRoot(work)
	if err != nil {
		return engine.Spec{}, err
	}
	defer root.Close()
	env := map[string]string{
		"HOME": work, "TMPDIR": filepath.Join(work, "tmp"), "PATH": "/usr/bin:/bin", "LANG": "C.UTF-8",
		"UV_CACHE_DIR": cache, "UV_LINK_MODE": "copy", "UV_NO_CONFIG": "1", "UV_PYTHON_DOWNLOADS": "never", "UV_NO_PROGRESS": "1",
		"UV_HTTP_TIMEOUT": "120", "NO_COLOR": "1", "NO_PROXY": "", "no_proxy": "",
	}
	if ca := s.bundle(); ca != "" {
		copied := filepath.Join(work, "ca.pem")
		b, err := os.ReadFile(ca)
		if err == nil {
			err = root.WriteFile("ca.pem", b, 0o600)
		}
		if err != nil {
			return engine.Spec{}, fault.Wrap(err, "copying the CA bundle %s", ca)
		}
		env["SSL_CERT_FILE"], env["REQUESTS_CA_BUNDLE"] = copied, copied
	}
	// Each step sees what it needs: code that runs while requirements are locked leaves
	// nothing in the environment, and compiling nothing in the cache.
	spec := engine.Spec{Env: env, Dir: work, Mounts: append([]engine.Mount{{Path: work, Writable: true}}, e.Interpreter.mounts()...)}
	filled := venv // what packages are installed into
	if !e.Spec.AllowSource && (step == stepInstall || step == stepCompile) {
		filled = s.fresh(e.ID)
	}
	if step != stepLock {
		spec.Mounts = append(spec.Mounts, engine.Mount{Path: filled, Writable: true})
	}
	if step != stepCompile {
		spec.Mounts = append(spec.Mounts, engine.Mount{Path: cache, Writable: true, Role: role})
	}
	if step == stepLock || step == stepInstall {
		spec.Network = engine.Network{Allow: s.reachable(ctx, more)}
	}
	if !system(uv) && !strings.HasPrefix(uv, e.Interpreter.Prefix+"/") {
		spec.Mounts = append(spec.Mounts, engine.Mount{Path: uv})
	}
	switch step {
	case stepLock:
		lines, err := e.Spec.lines()
		if err != nil {
			return spec, err
		}
		in := filepath.Join(work, "requirements.in")
		if err := root.WriteFile("requirements.in", []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
			return spec, err
		}
		spec.Command = append([]string{
			uv, "pip", "compile", in, "--output-file", filepath.Join(work, "lock.txt"), "--quiet",
			"--generate-hashes", "--no-header", "--no-annotate", "--python", e.Interpreter.Path,
		}, s.options(e, more)...)
		if len(more) > 0 || e.backend() != "" {
			spec.Command = append(spec.Command, "--emit-index-annotation")
		}
		if e.Spec.SitePackages {
			if err := python.StandIns(root, e.Interpreter.kept()); err != nil {
				return spec, fault.Wrap(err, "writing what the interpreter has")
			}
			spec.Command = append(spec.Command, "--constraints", filepath.Join(work, "site.txt"), "--find-links", filepath.Join(work, "site"))
		}
	case stepCreate:
		spec.Command = []string{uv, "venv", "--offline", "--relocatable", "--allow-existing", "--no-project", "--python", e.Interpreter.Path, venv}
		if e.Spec.SitePackages {
			spec.Command = slices.Insert(spec.Command, 2, "--system-site-packages")
		}
	case stepInstall:
		if !e.Spec.AllowSource {
			spec.Command, err = s.prepareInstall(e, root, uv, s.options(e, more))
			return spec, err
		}
		if err := root.WriteFile("lock.txt", []byte(e.Lock), 0o600); err != nil {
			return spec, err
		}
		how := []string{uv, "pip", "sync", filepath.Join(work, "lock.txt"), "--allow-empty-requirements"}
		if e.Spec.SitePackages { // what the interpreter has is not there to be removed
			how = []string{uv, "pip", "install", "--no-deps", "--requirements", filepath.Join(work, "lock.txt")}
		}
		how = append(how, "--require-hashes", "--python", filepath.Join(venv, "bin", "python"))
		spec.Command = slices.Concat(how, s.options(e, more))
	case stepCompile:
		dirs := []string{venv}
		if !e.Spec.AllowSource {
			if dirs, err = filepath.Glob(filepath.Join(filled, "*", packageTree)); err != nil {
				return spec, err
			}
		}
		spec.Command = append([]string{e.Interpreter.Path, "-I", "-S", "-c", compiler}, dirs...)
	default:
		return spec, fault.New(fault.Internal, "environment %s has no step %q", e.ID, step)
	}
	return spec, nil
}

// reachable is what builds may reach: the configured hosts and those of the indexes that
// the environment names, wherever their names lead now. The engine lets names lead to public addresses only, because jobs
// choose names; these are the operator's, and the index of a closed network has
// a private address. Addresses of this machine and of its link (the metadata
// services of clouds) are never meant by a name.
func (s *Service) reachable(ctx context.Context, indexes []string) []string {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	hosts := slices.Clone(s.cfg.Hosts)
	for _, index := range indexes {
		if u, err := url.Parse(index); err == nil {
			port := u.Port()
			if port == "" {
				port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
			}
			hosts = append(hosts, net.JoinHostPort(u.Hostname(), port))
		}
	}
	allow := slices.Clone(hosts)
	for _, hp := range hosts {
		host, port, err := net.SplitHostPort(hp)
		if err != nil || strings.Contains(host, "*") {
			continue
		}
		ips, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
		if err != nil {
			s.log.WarnContext(ctx, "a package index cannot be resolved", slog.String("host", host), slog.Any("error", err))
			continue
		}
		for _, ip := range ips {
			ip = ip.Unmap().WithZone("")
			if entry := net.JoinHostPort(ip.String(), port); ip.IsPrivate() || ip.IsGlobalUnicast() {
				allow = append(allow, entry)
			}
		}
	}
	slices.Sort(allow)
	return slices.Compact(allow)
}

// CheckIndex refuses the URL of a package index that cannot be used. One with a
// name or a password would be read by everybody who sees this machine's processes.
func CheckIndex(index string) error {
	if index == "" {
		return nil
	}
	u, err := url.Parse(index)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
		return fault.New(fault.Invalid, "the package index is not a URL such as https://index.example/simple") // without it: there may be a password
	case u.User != nil:
		return fault.New(fault.Invalid, "the URL of the package index %s holds credentials, which uv's command line and build logs would show", u.Hostname()).
			WithHint("Use an index that needs none in your network, such as a mirror or a proxy that adds them.")
	}
	return nil
}

// options are those of every uv command that resolves or installs. Of several indexes the
// first that has a package decides (uv's first-index), so that nobody who may publish on
// a later one can put a newer version in its place.
func (s *Service) options(e Environment, indexes []string) []string {
	var o []string
	if !e.Spec.AllowSource {
		o = append(o, "--only-binary", ":all:")
	}
	if s.cfg.Index != "" {
		o = append(o, "--default-index", s.cfg.Index)
	}
	for _, index := range indexes {
		o = append(o, "--index", index)
	}
	if backend := e.backend(); backend != "" {
		o = append(o, "--torch-backend", backend)
	}
	return o
}

// bundle is the PEM file with the authorities that builds trust.
func (s *Service) bundle() string {
	for _, path := range []string{s.cfg.CA, "/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"} {
		if path == "" {
			continue
		}
		if _, err := os.Stat(path); err == nil || path == s.cfg.CA {
			return path
		}
	}
	return ""
}

// Changed has nothing to do: the steps are in Finish. It is compute's to call.
func (s *Service) Changed(context.Context, *store.Tx, compute.Workload) error { return nil }

// Finish goes from one step of a build to the next. It is compute's to call.
func (s *Service) Finish(ctx context.Context, w compute.Workload) error {
	ctx = identity.With(ctx, identity.Loop("environment"))
	var e Environment
	var step Step
	err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		e, step, err = s.of(ctx, tx, w.ID)
		return err
	})
	if err != nil {
		return err
	}
	if e.workload() != w.ID || e.State == Ready || e.State == Failed { // recorded before a crash
		return s.clean(e)
	}
	log, err := s.keepLog(ctx, w.ID, e.ID, step)
	if err != nil {
		return err
	}
	reason, hint := "", ""
	switch {
	case w.Status.State != engine.Ended || w.Status.Reason != engine.Exited:
		reason, hint = fmt.Sprintf("step %s %s", step, w.Outcome()), w.Hint
	case w.Status.ExitCode != 0:
		reason, hint = explain(log)
	}
	e.Reason, e.Hint, e.Machine, e.Zone = "", "", w.Machine, w.Zone
	switch {
	case reason != "" && passing(w.Status, log) && e.Retries < len(s.cfg.Pauses):
		return s.again(ctx, e, reason, hint)
	case reason != "" && step == stepLock && replace(&e, log):
		return s.advance(ctx, e, "")
	case reason != "":
		return s.fail(ctx, e, reason, hint)
	case step == stepLock:
		return s.locked(ctx, e)
	case step == stepCreate:
		return s.created(ctx, e)
	case step == stepInstall:
		if err := s.purge(e); err != nil {
			return s.unplaced(ctx, e, fault.Wrap(err, "removing bytecode that packages brought"))
		}
		e.Step = stepCompile
		return s.advance(ctx, e, "")
	default:
		return s.installed(ctx, e)
	}
}

// passing reports that a step may succeed when it is tried again: no index answered, as
// when the server through which builds reach it was away, or the step was cut off.
func passing(end engine.Status, log string) bool {
	if end.Reason == engine.Exited {
		return unreachable(log)
	}
	return !slices.Contains([]engine.Reason{engine.TimedOut, engine.OutOfMemory, engine.OutOfDisk, engine.OutOfTasks, engine.Stopped, engine.NotStarted}, end.Reason)
}

// again has a step tried once more, after a pause. An installation that was cut off is
// begun with an empty environment where it ran code of packages: uv runs its Python, and with
// it .pth files, before it installs. Otherwise Prepare makes the directories of packages anew.
func (s *Service) again(ctx context.Context, e Environment, reason, hint string) error {
	if e.Step == stepInstall && e.Spec.AllowSource {
		if err := archive.Remove(s.venv(e.ID)); err != nil {
			return fault.Wrap(err, "removing what was installed")
		}
		e.Step = stepCreate
	}
	e.Retries++
	e.Reason, e.Hint = fmt.Sprintf("it is tried again (%d of %d): %s", e.Retries, len(s.cfg.Pauses), reason), hint
	return s.advance(ctx, e, "")
}

// locked takes the lock; what was built before is ready at once.
func (s *Service) locked(ctx context.Context, e Environment) error {
	lock, err := readLock(filepath.Join(s.staging(e.ID), "work"))
	if err != nil {
		return s.fail(ctx, e, "the lock cannot be read: "+err.Error(), "")
	}
	lines, err := e.Spec.lines()
	if err != nil {
		return s.fail(ctx, e, err.Error(), fault.HintOf(err))
	}
	wanted := hashesOf(lines)
	if e.Spec.SitePackages {
		lock = onTop(lock, e.Interpreter.kept())
		for _, name := range slices.Sorted(maps.Keys(wanted)) {
			if _, has := e.Interpreter.Site[name]; has {
				return s.fail(ctx, e, name+" comes with the interpreter, whose files have no hashes to compare",
					"Leave the hashes out, or leave site_packages out.")
			}
		}
	}
	if lock, err = narrowed(lock, wanted); err != nil {
		return s.fail(ctx, e, err.Error(), fault.HintOf(err))
	}
	e.Lock = lock
	if e.SBOM, err = parseLock(e.Lock); err != nil {
		return s.fail(ctx, e, err.Error(), "")
	}
	if e.Spec.SitePackages {
		e.SBOM = append(e.SBOM, siteSBOM(e.Interpreter.kept())...)
	}
	e.Packages = len(e.SBOM)
	e.Digest = contentDigest(e)
	if s.built(e.Digest) {
		return s.ready(ctx, e)
	}
	e.State, e.Step = Building, stepCreate
	return s.advance(ctx, e, "")
}

// created goes on with what is to be installed; what earlier builds left may be all of it.
func (s *Service) created(ctx context.Context, e Environment) error {
	switch {
	case !e.Spec.AllowSource:
		missing, err := s.absent(e)
		if err != nil {
			return err
		}
		if len(missing) == 0 {
			return s.installed(ctx, e)
		}
	case e.Spec.SitePackages && strings.TrimSpace(e.Lock) == "":
		return s.installed(ctx, e) // the interpreter has it all
	}
	e.Step = stepInstall
	return s.advance(ctx, e, "")
}

// installed makes the environment of what is staged and in the package store, read-only and
// durable, and gives it its final name. What is missing is built again.
func (s *Service) installed(ctx context.Context, e Environment) error {
	if !s.built(e.Digest) {
		collisions, err := s.place(ctx, e)
		if err != nil {
			return s.unplaced(ctx, e, err)
		}
		if n := len(collisions); n > 0 {
			e.Hint = fmt.Sprintf("Several packages have different files at one path, which happens %d times; the package that is last by name counts. See `falaj env logs %s`.", n, e.Name)
		}
	}
	if !s.built(e.Digest) {
		return s.unplaced(ctx, e, againError{stepCreate, "the built environment has no Python"})
	}
	return s.ready(ctx, e)
}

// unplaced decides what follows when a build was not put together: it goes back a step, it
// fails, or compute finishes it again.
func (s *Service) unplaced(ctx context.Context, e Environment, err error) error {
	back, incomplete := errors.AsType[againError](err)
	switch {
	case incomplete && e.Retries < len(s.cfg.Pauses):
		e.Step = back.step
		return s.again(ctx, e, back.why, "")
	case incomplete:
		return s.fail(ctx, e, back.why, "Apply it again.")
	case fault.NoSpace(err):
		first, _, _ := strings.Cut(err.Error(), "\n") // of several files that were linked at a time
		return s.fail(ctx, e, "the disk of the environments is full: "+first, "Free disk space, then apply again.")
	case fault.Is(err, fault.Invalid), fault.Is(err, fault.TooLarge):
		return s.fail(ctx, e, err.Error(), fault.HintOf(err))
	}
	return fault.Wrap(err, "placing environment %s", e.Name)
}

// place puts an environment together aside, seals it and moves it to where its digest says,
// unless another build has done so. A directory of that name without a Python is replaced.
// It gives the paths that several packages have, in words.
func (s *Service) place(ctx context.Context, e Environment) (collisions []string, err error) {
	dir := s.venv(e.ID)
	if !e.Spec.AllowSource {
		if err := s.adopt(e); err != nil {
			return nil, err
		}
		if dir, collisions, err = s.assemble(ctx, e); err != nil {
			return nil, err
		}
		if err := s.noteCollisions(e, collisions); err != nil {
			return nil, err
		}
	} else if _, err := os.Lstat(filepath.Join(dir, "bin", "python")); errors.Is(err, fs.ErrNotExist) {
		return nil, againError{stepCreate, "the built environment has no Python"}
	}
	if e.Spec.SitePackages {
		if err := python.WriteSite(dir, e.Interpreter.Site); err != nil {
			return nil, fault.Wrap(err, "writing what the interpreter has")
		}
	}
	if err := seal(dir); err != nil {
		return nil, fault.Wrap(err, "sealing it")
	}
	return collisions, s.move(e.Digest, dir)
}

// move gives a sealed environment its final name.
func (s *Service) move(d Digest, dir string) error {
	if err := s.rename(d, dir); err != nil {
		return err
	}
	return fsync.Dir(s.cfg.Dir)
}

func (s *Service) rename(d Digest, dir string) error {
	s.pruning.Lock()
	defer s.pruning.Unlock()
	if s.built(d) {
		return nil
	}
	if _, err := os.Lstat(s.path(d)); err == nil {
		if _, err := s.discardEnvironment(d); err != nil {
			return err
		}
	}
	if err := os.Rename(dir, s.path(d)); err != nil {
		return err
	}
	return os.Chmod(s.path(d), 0o500) //nolint:gosec // a directory must be searchable
}

func (s *Service) ready(ctx context.Context, e Environment) error {
	if err := s.use(e); err != nil { // pruned this very moment: compute finishes it again
		return err
	}
	var err error
	if e.Glibc, err = glibcOf(s.path(e.Digest)); err != nil {
		return fault.Wrap(err, "reading what the wheels of environment %s need", e.Name)
	}
	if e.Size, e.Shared, err = sizesOf(s.path(e.Digest)); err != nil {
		return fault.Wrap(err, "measuring environment %s", e.Name)
	}
	e.State, e.ReadyAt = Ready, s.now().UTC()
	e.Hint = strings.TrimSpace(strings.Join([]string{e.Hint, s.idleCUDA(ctx, e), replacements(e)}, " "))
	return s.advance(ctx, e, EnvironmentReady)
}

func (s *Service) fail(ctx context.Context, e Environment, reason, hint string) error {
	e.State, e.Reason, e.Hint = Failed, reason, strings.ReplaceAll(hint, "NAME", e.Name)
	return s.advance(ctx, e, EnvironmentFailed)
}

// advance records the environment and either its end or its next step.
func (s *Service) advance(ctx context.Context, e Environment, ended string) error {
	err := s.cfg.DB.Update(ctx, string(e.Project), func(ctx context.Context, tx *store.Tx) error {
		old, err := s.cfg.Store.One(ctx, tx, e.ID)
		if err != nil {
			return err
		}
		if old.State != e.State && !old.State.CanBecome(e.State) {
			return fault.New(fault.Internal, "environment %s cannot become %s from %s", e.ID, e.State, old.State)
		}
		if err := s.cfg.Store.Update(ctx, tx, e); err != nil {
			return err
		}
		tx.OnCommit(s.notify)
		if ended == "" {
			return s.submit(ctx, tx, e)
		}
		err = audit.Append(ctx, tx, audit.Entry{
			Project: string(e.Project), Action: "environment.build", Object: "environment " + e.Name,
			Detail: map[string]any{"id": e.ID, "state": e.State, "digest": e.Digest, "packages": e.Packages, "machine": e.Machine, "zone": e.Zone},
		})
		if err != nil {
			return err
		}
		return publish(ctx, tx, ended, e)
	})
	if err != nil {
		return fault.Wrap(err, "recording environment %s", e.Name)
	}
	return s.clean(e)
}

// clean removes the staging directory of a build that is over.
func (s *Service) clean(e Environment) error {
	if e.State != Ready && e.State != Failed {
		return nil
	}
	return fault.Wrap(archive.Remove(s.staging(e.ID)), "removing the staging directory")
}

// Sweep removes staging directories that no build uses any more, and packages that no
// environment has. It may run at any time.
func (s *Service) Sweep(ctx context.Context) error {
	if err := archive.Remove(s.trash()); err != nil {
		return fault.Wrap(err, "removing what was pruned")
	}
	// The directories first: a build is recorded before it has one.
	entries, err := os.ReadDir(filepath.Join(s.cfg.Dir, ".staging"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	var unfinished []Environment
	err = s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		unfinished, err = s.cfg.Store.Unfinished(ctx, tx)
		return err
	})
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if slices.ContainsFunc(unfinished, func(e Environment) bool { return string(e.ID) == entry.Name() }) {
			continue
		}
		if err := archive.Remove(s.staging(ID(entry.Name()))); err != nil {
			return fault.Wrap(err, "removing a staging directory")
		}
	}
	return s.sweepPackages(ctx)
}

// keepLog appends a step's output to the environment's build log, and returns
// that output.
func (s *Service) keepLog(ctx context.Context, w compute.WorkloadID, e ID, step Step) (string, error) {
	r, err := s.cfg.Compute.Logs(ctx, w, 0, false)
	if fault.Is(err, fault.Gone) || fault.Is(err, fault.NotFound) {
		return "", nil // the engine lost it
	}
	if err != nil {
		return "", fault.Wrap(err, "reading the build log")
	}
	defer r.Close()
	b, err := io.ReadAll(io.LimitReader(r, maxStepLog))
	if err != nil {
		return "", fault.Wrap(err, "reading the build log")
	}
	return string(b), s.appendLog(e, fmt.Appendf(nil, "--- %s\n%s\n", step, b))
}

// appendLog appends to an environment's build log: what is finished again after a crash is
// there twice rather than not at all.
func (s *Service) appendLog(e ID, b []byte) error {
	if err := os.MkdirAll(filepath.Dir(s.logFile(e)), 0o700); err != nil {
		return err
	}
	f, err := os.OpenFile(s.logFile(e), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	return fault.Wrap(errors.Join(err, f.Close()), "keeping the build log")
}

// seal makes a tree read-only and syncs its file system, so that a rename makes
// it appear whole. Links may lead to the interpreter; they are left as they are.
func seal(dir string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	err = fs.WalkDir(root.FS(), ".", func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.Type()&fs.ModeSymlink != 0 || path == "." {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		if sealed(info.Mode()) == info.Mode().Perm() { // also a file that other environments have
			return nil
		}
		return root.Chmod(path, sealed(info.Mode()))
	})
	if err != nil {
		return err
	}
	return syncFiles(dir)
}

// readLock reads the lock file that uv wrote, and nothing that a build script
// put in its place.
func readLock(work string) (string, error) {
	root, err := os.OpenRoot(work)
	if err != nil {
		return "", err
	}
	defer root.Close()
	f, err := root.Open("lock.txt")
	if err != nil {
		return "", err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return "", errors.Join(err, fault.New(fault.Invalid, "it is not a plain file"))
	}
	b, err := io.ReadAll(io.LimitReader(f, maxLock+1))
	if err == nil && len(b) > maxLock {
		err = fault.New(fault.TooLarge, "it has more than %d bytes", maxLock)
	}
	return string(b), err
}
