package environment_test

import (
	"archive/zip"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/compute"
	"github.com/falaj-ml/falaj/internal/compute/computesql"
	"github.com/falaj-ml/falaj/internal/compute/engine"
	"github.com/falaj-ml/falaj/internal/compute/engine/enginetest"
	"github.com/falaj-ml/falaj/internal/compute/engine/local"
	"github.com/falaj-ml/falaj/internal/environment"
	"github.com/falaj-ml/falaj/internal/environment/environmentsql"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/governance/residency/border"
	"github.com/falaj-ml/falaj/internal/repotest"
	"github.com/falaj-ml/falaj/internal/resource"
	"github.com/falaj-ml/falaj/internal/sandbox"
	"github.com/falaj-ml/falaj/internal/sandbox/sandboxtest"
	"github.com/falaj-ml/falaj/internal/scheduler"
	"github.com/falaj-ml/falaj/internal/worker/protocol"
)

type allow struct{ denied bool }

func (a *allow) Allow(_ context.Context, action policy.Action, _ policy.Object) error {
	if a.denied {
		return fault.New(fault.PermissionDenied, "%s is not allowed", action)
	}
	return nil
}

type journal struct{}

func (journal) Record(context.Context, audit.Entry) error { return nil }

const nyc project.Name = "nyc"

// pools is compute.Pools, embedded by a name that does not hide its method Pools.
type pools = compute.Pools

type world struct {
	*environment.Service
	compute compute.Services
	auth    *allow
	cfg     environment.Config
	ccfg    compute.Config
}

func newWorld(t *testing.T, driver engine.Driver, edit func(*environment.Config)) *world {
	t.Helper()
	dir := t.TempDir()
	db := database(t, computesql.Migrations, environmentsql.Migrations)
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	w := &world{auth: &allow{}}
	w.ccfg = compute.Config{
		DB: db, Store: computesql.Store{}, Authorizer: w.auth, Journal: journal{}, Guard: border.NewGuard(journal{}), Log: log,
		Engines: map[string]compute.Engine{"local": {
			Driver: driver, Isolation: scheduler.Sandbox, Machine: resource.Amount{CPU: resource.Cores(2), Memory: 4 * resource.GiB},
		}},
	}
	w.cfg = environment.Config{
		DB: db, Store: environmentsql.Store{}, Authorizer: w.auth, Log: log,
		Hosts: []string{"index.example:443"}, Dir: filepath.Join(dir, "environments"), Cache: filepath.Join(dir, "cache", "uv"),
	}
	edit(&w.cfg)
	w.start(t)
	if _, err := w.compute.Pools.EnsureHome(t.Context(), "local"); err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *world) start(t *testing.T) {
	t.Helper()
	w.compute = compute.New(w.ccfg)
	w.cfg.Compute = struct {
		*compute.Workloads
		*compute.Programs
		*pools
	}{w.compute.Workloads, w.compute.Programs, w.compute.Pools}
	w.Service = environment.New(w.cfg)
	w.compute.Scheduling.RegisterOwner(compute.Build, w.Service)
	if err := w.Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.compute.Scheduling.Start(t.Context())
	t.Cleanup(w.compute.Scheduling.Stop)
}

// built applies a specification and waits for the end of its build.
func (w *world) built(t *testing.T, name string, spec environment.Spec) environment.Environment {
	t.Helper()
	if _, _, err := w.Apply(t.Context(), nyc, name, spec); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := w.Await(ctx, nyc, name); err != nil {
		t.Fatal(err)
	}
	e, err := w.One(t.Context(), nyc, name)
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range []string{"lock", "create", "install", "compile"} { // and its traces are cleared
		if _, err := w.compute.Workloads.Wait(ctx, compute.WorkloadID(string(e.ID)+"-"+step)); err != nil && !fault.Is(err, fault.NotFound) {
			t.Fatal(err)
		}
	}
	return e
}

// pretend is an interpreter and a uv that only this test's engine understands.
func pretend(t *testing.T) func(*environment.Config) {
	t.Helper()
	dir := t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	uv := filepath.Join(dir, "uv")
	if err := os.Link(self, uv); err != nil { // a program, as far as can be seen
		b, err := os.ReadFile(self)
		if err == nil {
			err = os.WriteFile(uv, b, 0o700)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for name, says := range map[string]string{
		"python3":    `echo '{"path":"` + self + `","version":"3.11.7","prefix":"/usr","platform":"cpython-linux-x86_64"}'`,
		"python3.12": "echo 'pyenv: python3.12: command not found' >&2; exit 127",
		"python3.9":  `echo '{"path":"/x","version":"3.9.1","prefix":"/usr","platform":"cpython-linux-x86_64"}'`,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+says+"\n"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	return func(c *environment.Config) { c.Path = []string{dir} }
}

// uv plays the part of uv in a fake engine.
type uv struct {
	mu        sync.Mutex
	ran       []string
	specs     []engine.Spec
	installed []string                     // packages, in the order of their installation
	wheels    map[string]map[string]string // by package: further files, by path below an environment
	fail      map[string]string            // by subcommand: what it prints before it fails
}

func (u *uv) run(p *enginetest.Process) enginetest.Exit {
	cmd := p.Spec.Command
	what := cmd[1]
	switch what {
	case "pip":
		what = cmd[2]
	case "-I": // Python, which runs the installer or the compiler
		what = "bytecode"
		if slices.Contains(cmd, "install") {
			what = "install"
		}
	}
	u.mu.Lock()
	u.ran = append(u.ran, what)
	u.specs = append(u.specs, p.Spec)
	says, fails := u.fail[what]
	u.mu.Unlock()
	fmt.Fprintln(p.Log, "running", what)
	if fails {
		fmt.Fprintln(p.Log, says)
		return enginetest.Exit{Code: 1}
	}
	var err error
	switch what {
	case "compile":
		b, e := os.ReadFile(cmd[3])
		var lock strings.Builder
		for line := range strings.Lines(string(b)) {
			if name := strings.TrimSpace(line); name != "" {
				name = strings.FieldsFunc(name, func(r rune) bool { return strings.ContainsRune("=<> ", r) })[0]
				fmt.Fprintf(&lock, "%s==1.0 \\\n    --hash=sha256:%x\n", name, sha256.Sum256([]byte(name)))
			}
		}
		err = e
		if err == nil {
			err = os.WriteFile(cmd[slices.Index(cmd, "--output-file")+1], []byte(lock.String()), 0o600)
		}
	case "venv":
		dir := cmd[len(cmd)-1]
		err = os.MkdirAll(filepath.Join(dir, "bin"), 0o700)
		if err == nil {
			err = os.Symlink(cmd[slices.Index(cmd, "--python")+1], filepath.Join(dir, "bin", "python"))
		}
		if errors.Is(err, fs.ErrExist) { // --allow-existing
			err = nil
		}
	case "sync":
		var lock []byte
		lock, err = os.ReadFile(cmd[3])
		venv := filepath.Dir(filepath.Dir(cmd[slices.Index(cmd, "--python")+1]))
		for line := range strings.Lines(string(lock)) {
			if name, _, ok := strings.Cut(line, "=="); ok && err == nil {
				err = u.install(venv, name)
			}
		}
	case "install":
		var dirs []os.DirEntry
		dirs, err = os.ReadDir(cmd[5])
		for _, dir := range dirs {
			if _, e := os.Stat(filepath.Join(cmd[6], dir.Name())); e != nil || err != nil { // its requirements
				err = errors.Join(err, e)
				break
			}
			err = u.install(filepath.Join(cmd[5], dir.Name(), "tree"), dir.Name())
		}
	case "bytecode":
		for _, dir := range cmd[5:] {
			err = errors.Join(err, compiled(dir))
		}
	}
	if err != nil {
		fmt.Fprintln(p.Log, err)
		return enginetest.Exit{Code: 2}
	}
	return enginetest.Exit{}
}

// install leaves a package as uv does.
func (u *uv) install(venv, name string) error {
	u.mu.Lock()
	u.installed = append(u.installed, name)
	files := maps.Clone(u.wheels[name])
	u.mu.Unlock()
	site := "lib/python3.11/site-packages/"
	if files == nil {
		files = map[string]string{}
	}
	files[site+name+"/__init__.py"] = "name = '" + name + "'\n"
	files["bin/"+name] = "#!/bin/sh\necho " + name + "\n"
	info := site + strings.ReplaceAll(name, "-", "_") + "-1.0.dist-info/"
	files[info+"WHEEL"] = "Wheel-Version: 1.0\nTag: py3-none-any\n"
	files[info+"RECORD"] = name + "/__init__.py,,\n"
	for file, content := range files {
		at := filepath.Join(venv, file)
		err := os.MkdirAll(filepath.Dir(at), 0o700)
		_ = os.Remove(at) // another package may have it
		if target, isLink := strings.CutPrefix(content, "-> "); isLink {
			err = errors.Join(err, os.Symlink(target, at))
		} else {
			err = errors.Join(err, os.WriteFile(at, []byte(content), 0o600))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// compiled leaves bytecode as Python does.
func compiled(dir string) error {
	return filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".py" {
			return err
		}
		source, err := os.ReadFile(path)
		cache := filepath.Join(filepath.Dir(path), "__pycache__")
		name := strings.TrimSuffix(e.Name(), ".py") + ".cpython-311.pyc"
		return errors.Join(err, os.MkdirAll(cache, 0o700), os.WriteFile(filepath.Join(cache, name), append([]byte("code of "), source...), 0o600))
	})
}

func fakeWorld(t *testing.T) (*world, *uv, *enginetest.Fake) {
	t.Helper()
	u, fake := &uv{fail: map[string]string{}, wheels: map[string]map[string]string{}}, enginetest.NewFake()
	fake.Behave(u.run)
	return newWorld(t, fake, pretend(t)), u, fake
}

func TestBuiltOnce(t *testing.T) {
	w, u, _ := fakeWorld(t)
	spec := environment.Spec{Requirements: []string{"numpy>=2", "six"}}
	e := w.built(t, "py", spec)
	if e.State != environment.Ready || e.Packages != 2 || e.Python != "3.11.7" || e.SBOM[0].Name != "numpy" || len(e.SBOM[0].Hashes) != 1 {
		t.Fatalf("%+v", e)
	}
	if got := strings.Join(u.ran, " "); got != "compile venv install bytecode" {
		t.Fatalf("ran %s", got)
	}
	for i, s := range u.specs {
		sees := func(path string) bool {
			return slices.ContainsFunc(s.Mounts, func(m engine.Mount) bool { return m.Path == path })
		}
		what, staging := u.ran[i], filepath.Dir(s.Dir)
		if sees(w.cfg.Cache) != (what != "bytecode") || sees(filepath.Join(staging, "venv")) != (what == "venv") ||
			sees(filepath.Join(staging, "packages")) != (what == "install" || what == "bytecode") {
			t.Errorf("%s sees %v", what, s.Mounts)
		}
		if wants := what == "compile" || what == "install"; (len(s.Network.Allow) > 0) != wants || s.Network.API {
			t.Errorf("%v reaches %+v", s.Command, s.Network)
		}
		if slices.Contains(s.Command, "pip") && (!slices.Contains(s.Command, "--only-binary") || s.Env["UV_CACHE_DIR"] != w.cfg.Cache || s.Env["UV_LINK_MODE"] != "copy") {
			t.Errorf("%v with %v", s.Command, s.Env)
		}
	}
	// Applied again, and under another name: nothing is built again.
	if _, c, err := w.Apply(t.Context(), nyc, "py", spec); err != nil || c != project.Unchanged {
		t.Fatalf("%s, %v", c, err)
	}
	// Planned only, nothing is built and nothing is new.
	more := environment.Spec{Requirements: []string{"scipy"}}
	for _, tt := range []struct {
		name string
		spec environment.Spec
		want project.Change
	}{{"py", spec, project.Unchanged}, {"py", more, project.Updated}, {"planned", more, project.Created}} {
		planned, c, err := w.Plan(t.Context(), nyc, tt.name, tt.spec)
		if err != nil || c != tt.want || (planned.ID == e.ID) != (tt.want == project.Unchanged) {
			t.Errorf("%s planned: %s, %+v, %v", tt.name, c, planned, err)
		}
	}
	if _, _, err := w.Plan(t.Context(), nyc, "py", environment.Spec{Python: "2.7"}); err == nil {
		t.Error("a Python that is not there is planned")
	}
	if now, err := w.One(t.Context(), nyc, "py"); err != nil || now.ID != e.ID {
		t.Errorf("after plans: %+v, %v", now, err)
	}
	other := w.built(t, "other", environment.Spec{RequirementsText: "six\nnumpy>=2 # fast\n"})
	if other.State != environment.Ready || other.Digest == "" {
		t.Fatalf("%+v", other)
	}
	list, _, err := w.List(t.Context(), nyc, "", 0)
	if err != nil || len(list) != 2 || list[0].Name != "other" || list[1].Packages != 2 {
		t.Fatalf("%+v, %v", list, err)
	}
	if list, next, err := w.List(t.Context(), nyc, "", 1); err != nil || len(list) != 1 || next != "other" {
		t.Fatalf("%+v, %q, %v", list, next, err)
	}

	// What a job gets.
	use, err := w.Use(t.Context(), nyc, "py@"+string(e.Digest))
	if err != nil || use.State != environment.Ready || use.Mounts[0].Writable || use.Python != filepath.Join(use.Bin, "python") {
		t.Fatalf("%+v, %v", use, err)
	}
	if err := w.Check(use, compute.Pool{Name: "home", Engine: "local"}); err != nil {
		t.Error(err)
	}
	dir := filepath.Dir(use.Bin)
	if info, err := os.Stat(filepath.Join(dir, "lib", "python3.11", "site-packages", "six", "__init__.py")); err != nil || info.Mode().Perm()&0o222 != 0 {
		t.Errorf("%v, %v", info, err)
	}
	if left, err := os.ReadDir(filepath.Join(w.cfg.Dir, ".staging")); err != nil || len(left) != 0 {
		t.Errorf("staging holds %v (%v)", left, err)
	}
	r, err := w.Logs(t.Context(), nyc, "py")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if b, err := io.ReadAll(r); err != nil || !strings.Contains(string(b), "--- lock\nrunning compile") || !strings.Contains(string(b), "running install") {
		t.Errorf("log %q, %v", b, err)
	}

	// Files that are gone are built again when applied again.
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Use(t.Context(), nyc, "py"); !fault.Is(err, fault.Gone) {
		t.Errorf("without its files: %v", err)
	}
	if e = w.built(t, "py", spec); e.State != environment.Ready {
		t.Fatalf("%+v", e)
	}
	if _, err := w.Use(t.Context(), nyc, "py"); err != nil {
		t.Error(err)
	}
}

// TestOwnHashes: a hash that a requirement lists is the file's, or nothing is built.
func TestOwnHashes(t *testing.T) {
	w, u, _ := fakeWorld(t)
	of := func(text string) string { return fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(text))) }
	e := w.built(t, "py", environment.Spec{RequirementsText: "\ufeffsix==1.0 --hash=" + of("six") + " --hash=" + of("another") + "\r\nnumpy\r\n"})
	if e.State != environment.Ready || len(e.SBOM) != 2 || !slices.Equal(e.SBOM[0].Hashes, []string{of("six")}) {
		t.Fatalf("%+v", e)
	}
	u.ran = nil
	e = w.built(t, "py", environment.Spec{Requirements: []string{"six==1.0 --hash=" + of("another")}})
	if e.State != environment.Failed || !strings.HasPrefix(e.Reason, "hash mismatch for six 1.0: the requirement lists") || e.Hint == "" {
		t.Fatalf("%+v", e)
	}
	if got := strings.Join(u.ran, " "); got != "compile" {
		t.Errorf("ran %s", got)
	}
}

func TestWhatCannotBeResolved(t *testing.T) {
	w, u, _ := fakeWorld(t)
	u.fail["compile"] = "error: No solution found when resolving dependencies\n  cause: Because nope was not found in the package registry and you require nope, we can conclude that your requirements are unsatisfiable."
	spec := environment.Spec{Requirements: []string{"nope"}}
	e := w.built(t, "py", spec)
	if e.State != environment.Failed || !strings.HasPrefix(e.Reason, "Because nope was not found") || !strings.Contains(e.Hint, "spelling") {
		t.Fatalf("%+v", e)
	}
	_, err := w.Use(t.Context(), nyc, "py")
	if !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), "Because nope was not found") || fault.HintOf(err) == "" {
		t.Fatalf("%v", err)
	}
	delete(u.fail, "compile")
	if e = w.built(t, "py", spec); e.State != environment.Ready { // applied again
		t.Fatalf("%+v", e)
	}
}

func TestInstallationThatFails(t *testing.T) {
	w, u, _ := fakeWorld(t)
	u.fail["install"] = "error: No space left on device"
	e := w.built(t, "py", environment.Spec{Requirements: []string{"six"}})
	if e.State != environment.Failed || !strings.Contains(e.Reason, "No space left") || e.Digest == "" {
		t.Fatalf("%+v", e)
	}
}

// TestCutOff: a build whose way to the index was gone, as it is when the server was
// away, and one that something killed, begin again, with an empty environment; but not
// for ever, and not where another try would end as well.
func TestCutOff(t *testing.T) {
	gone := "error: Request failed after 3 retries\n  cause: Failed to fetch: `https://index.example/six`\n  cause: tunnel error: unexpected end of file"
	exited := enginetest.Exit{Code: 2}
	for name, c := range map[string]struct {
		at    string
		says  string
		exit  enginetest.Exit
		times int
		want  environment.State
		ran   string
	}{
		"lock":       {"compile", gone, exited, 2, environment.Ready, "3 compile, 1 venv, 1 install, 1 bytecode"},
		"install":    {"install", gone, exited, 1, environment.Ready, "1 compile, 1 venv, 2 install, 1 bytecode"},
		"killed":     {"install", "", enginetest.Exit{Signal: syscall.SIGKILL}, 1, environment.Ready, "1 compile, 1 venv, 2 install, 1 bytecode"},
		"for ever":   {"compile", gone, exited, 100, environment.Failed, "4 compile"},
		"user error": {"compile", "error: nope was not found in the package registry", exited, 100, environment.Failed, "1 compile"},
		"memory":     {"install", "", enginetest.Exit{OutOfMemory: true}, 100, environment.Failed, "1 compile, 1 venv, 1 install"},
	} {
		t.Run(name, func(t *testing.T) {
			u, fake := &uv{fail: map[string]string{}}, enginetest.NewFake()
			edit := pretend(t)
			left := c.times
			fake.Behave(func(p *enginetest.Process) enginetest.Exit {
				cmd := p.Spec.Command
				if left == 0 || !slices.Contains(cmd, c.at) {
					return u.run(p)
				}
				left--
				u.run(p) // it had begun
				if c.at == "install" {
					if err := os.WriteFile(filepath.Join(cmd[5], "six", "tree", "half"), []byte("x"), 0o600); err != nil {
						return enginetest.Exit{Code: 9}
					}
				}
				fmt.Fprintln(p.Log, c.says)
				return c.exit
			})
			w := newWorld(t, fake, func(cfg *environment.Config) {
				edit(cfg)
				cfg.Pauses = []time.Duration{time.Millisecond, time.Millisecond, time.Millisecond}
			})
			e := w.built(t, "py", environment.Spec{Requirements: []string{"six"}})
			if e.State != c.want || e.State == environment.Ready && e.Reason+e.Hint != "" || e.State == environment.Failed && e.Reason == "" {
				t.Fatalf("%+v", e)
			}
			var ran []string
			for i, n := 0, 0; i < len(u.ran); i++ {
				if n++; i+1 == len(u.ran) || u.ran[i+1] != u.ran[i] {
					ran, n = append(ran, fmt.Sprint(n, " ", u.ran[i])), 0
				}
			}
			if got := strings.Join(ran, ", "); got != c.ran {
				t.Errorf("ran %s, not %s", got, c.ran)
			}
			if e.State != environment.Ready {
				return
			}
			used, err := w.Use(t.Context(), nyc, "py")
			if err != nil {
				t.Fatal(err)
			}
			if _, err := os.Stat(filepath.Join(filepath.Dir(used.Bin), "half")); !os.IsNotExist(err) {
				t.Errorf("what was cut off is in the environment: %v", err)
			}
		})
	}
}

// TestIndexes: an environment names indexes of the configuration, which its builds alone
// may reach beside the installation's; what is not configured is refused at once.
func TestIndexes(t *testing.T) {
	u, fake := &uv{fail: map[string]string{}}, enginetest.NewFake()
	fake.Behave(u.run)
	w := newWorld(t, fake, func(c *environment.Config) {
		pretend(t)(c)
		c.Index, c.Hosts = "https://index.example/simple", []string{"index.example:443", "download.pytorch.org:443"}
		c.Indexes = map[string]string{"torch-cpu": "https://mirror.example/cpu", "own": "http://own.example:8080/simple"}
	})
	if e := w.built(t, "plain", environment.Spec{Requirements: []string{"six"}}); e.State != environment.Ready {
		t.Fatalf("%+v", e)
	}
	if e := w.built(t, "several", environment.Spec{Requirements: []string{"torch"}, Indexes: []string{"torch-cpu", "own"}}); e.State != environment.Ready {
		t.Fatalf("%+v", e)
	}
	if e := w.built(t, "torch", environment.Spec{Requirements: []string{"torch==2.5"}, TorchBackend: "cpu"}); e.State != environment.Ready {
		t.Fatalf("%+v", e)
	}
	const own = "--only-binary :all: --default-index https://index.example/simple"
	want := map[string]string{ // what the commands of an environment have, and what its builds may reach
		"plain":   own + " |download.pytorch.org:443 index.example:443",
		"several": own + " --index https://mirror.example/cpu --index http://own.example:8080/simple |download.pytorch.org:443 index.example:443 mirror.example:443 own.example:8080",
		"torch":   own + " --torch-backend cpu |download.pytorch.org:443 index.example:443",
	}
	seen := map[string]bool{}
	for _, s := range u.specs {
		command := strings.Join(s.Command, " ")
		at := strings.Index(command, "--only-binary")
		if at < 0 {
			continue
		}
		options, annotated := strings.CutSuffix(command[at:], " --emit-index-annotation")
		got := options + " |" + strings.Join(s.Network.Allow, " ")
		for name, w := range want {
			if got == w {
				seen[name] = true
				if compiles := strings.Contains(command, " compile "); annotated != (compiles && name != "plain") {
					t.Errorf("%s: %s", name, command)
				}
			}
		}
	}
	if len(seen) != 3 {
		t.Errorf("of %d commands %v are as they should be", len(u.specs), seen)
	}
	for text, spec := range map[string]environment.Spec{
		`no package index "torch"`:    {Requirements: []string{"torch"}, Indexes: []string{"torch"}},
		"is named twice":              {Requirements: []string{"torch"}, Indexes: []string{"own", "own"}},
		"is no build of PyTorch":      {Requirements: []string{"torch"}, TorchBackend: "gpu"},
		"a Python with requirements":  {Image: "r.example/x:1", TorchBackend: "cpu"},
		"a Python with  requirements": {Modules: []string{"cuda/12"}, Indexes: []string{"own"}},
	} {
		if _, _, err := w.Apply(t.Context(), nyc, "x", spec); !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), strings.ReplaceAll(text, "  ", " ")) {
			t.Errorf("%v, want %q", err, text)
		}
	}
	closed := newWorld(t, fake, pretend(t))
	if _, _, err := closed.Apply(t.Context(), nyc, "x", environment.Spec{Requirements: []string{"torch"}, TorchBackend: "cpu"}); !fault.Is(err, fault.Invalid) || !strings.Contains(fault.HintOf(err), "environments.hosts") {
		t.Errorf("PyTorch's index cannot be reached: %v", err)
	}
}

// TestTorchBackendAuto: where no pool has a GPU, auto means builds for CPUs, and a CUDA that
// was locked all the same is said to be of no use. A GPU that comes is a change.
func TestTorchBackendAuto(t *testing.T) {
	u, fake := &uv{fail: map[string]string{}}, enginetest.NewFake()
	fake.Behave(u.run)
	w := newWorld(t, fake, func(c *environment.Config) {
		pretend(t)(c)
		c.Hosts = append(c.Hosts, "download.pytorch.org:443")
	})
	spec := environment.Spec{Requirements: []string{"torch"}, TorchBackend: "auto"}
	e := w.built(t, "auto", spec)
	if e.State != environment.Ready || e.TorchBackend != "cpu" || e.Spec.TorchBackend != "auto" || e.Hint != "" {
		t.Fatalf("%+v", e)
	}
	with := func() (n int) {
		for _, s := range u.specs {
			if i := slices.Index(s.Command, "--torch-backend"); i >= 0 && s.Command[i+1] == "cpu" {
				n++
			}
		}
		return n
	}
	if n := with(); n != 2 { // lock and install
		t.Errorf("%d commands ask for builds for CPUs", n)
	}
	if _, c, err := w.Apply(t.Context(), nyc, "auto", spec); err != nil || c != project.Unchanged {
		t.Errorf("applied again: %v, %v", c, err)
	}
	cuda := w.built(t, "cuda", environment.Spec{Requirements: []string{"torch", "nvidia-cuda-runtime-cu12"}})
	if cuda.State != environment.Ready || !strings.Contains(cuda.Hint, "no pool has a GPU") || !strings.Contains(cuda.Hint, "torch_backend: cpu") {
		t.Errorf("%+v", cuda)
	}
	w.compute.Scheduling.Stop()
	w.ccfg.Engines["k8s"] = compute.Engine{Driver: enginetest.NewFake(), Isolation: scheduler.Container, Remote: true, Kind: "kube"}
	w.start(t)
	gpu := compute.Node{Name: "gpu-1", CPU: 4000, Memory: 1 << 30, Accelerators: map[string]int64{"nvidia.com/gpu": 1}}
	if _, _, err := w.compute.Pools.ApplyPool(t.Context(), "k8s", compute.PoolSpec{Engine: "k8s", Nodes: []compute.Node{gpu}}); err != nil {
		t.Fatal(err)
	}
	if _, c, err := w.Plan(t.Context(), nyc, "auto", spec); err != nil || c != project.Updated {
		t.Errorf("with a GPU: %v, %v", c, err)
	}
	closed := newWorld(t, fake, pretend(t))
	if _, _, err := closed.Apply(t.Context(), nyc, "x", spec); !fault.Is(err, fault.Invalid) || !strings.Contains(fault.HintOf(err), "environments.hosts") {
		t.Errorf("PyTorch's index cannot be reached: %v", err)
	}
}

func TestSourceBuildsHaveTheirOwnCache(t *testing.T) {
	w, u, _ := fakeWorld(t)
	if e := w.built(t, "py", environment.Spec{Requirements: []string{"six"}, AllowSource: true}); e.State != environment.Ready {
		t.Fatalf("%+v", e)
	}
	for _, s := range u.specs {
		if slices.Contains(s.Command, "-S") {
			continue
		}
		if slices.Contains(s.Command, "--only-binary") || strings.HasPrefix(s.Env["UV_CACHE_DIR"], w.cfg.Cache) ||
			slices.ContainsFunc(s.Mounts, func(m engine.Mount) bool { return m.Path == w.cfg.Cache }) {
			t.Errorf("%v with %v and %v", s.Command, s.Env, s.Mounts)
		}
	}
}

// TestABuildScriptsLinks has a build script put links where Falaj reads and
// writes next.
func TestABuildScriptsLinks(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "master.key")
	for _, name := range []string{"lock.txt", "ca.pem"} {
		t.Run(name, func(t *testing.T) {
			w, u, fake := fakeWorld(t)
			if err := os.WriteFile(secret, []byte("secret==1\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			w.cfg.CA = "/proc/self/status" // any file that there is
			w.compute.Scheduling.Stop()
			w.start(t)
			fake.Behave(func(p *enginetest.Process) enginetest.Exit {
				exit := u.run(p)
				if p.Spec.Command[2] == "compile" {
					link := filepath.Join(p.Spec.Dir, name)
					if err := os.Remove(link); err != nil {
						return enginetest.Exit{Code: 3}
					}
					if err := os.Symlink(secret, link); err != nil {
						return enginetest.Exit{Code: 4}
					}
				}
				return exit
			})
			e := w.built(t, "py", environment.Spec{Requirements: []string{"six"}, AllowSource: true})
			if e.State != environment.Failed || strings.Contains(e.Reason, "secret") {
				t.Errorf("%+v", e)
			}
			if b, err := os.ReadFile(secret); err != nil || string(b) != "secret==1\n" {
				t.Errorf("the secret is now %q (%v)", b, err)
			}
		})
	}
}

func TestRestartInTheMiddle(t *testing.T) {
	w, u, fake := fakeWorld(t)
	reached, proceed := make(chan struct{}), make(chan struct{})
	fake.Behave(func(p *enginetest.Process) enginetest.Exit {
		if p.Spec.Command[1] == "venv" {
			close(reached)
			<-proceed
		}
		return u.run(p)
	})
	if _, _, err := w.Apply(t.Context(), nyc, "py", environment.Spec{Requirements: []string{"six"}}); err != nil {
		t.Fatal(err)
	}
	<-reached
	w.compute.Scheduling.Stop()
	stray := filepath.Join(w.cfg.Dir, ".staging", "env_stray", "work")
	if err := os.MkdirAll(stray, 0o500); err != nil {
		t.Fatal(err)
	}
	w.start(t)
	if _, err := os.Stat(stray); !os.IsNotExist(err) {
		t.Errorf("a stray staging directory is still there: %v", err)
	}
	close(proceed)
	if e := w.built(t, "py", environment.Spec{Requirements: []string{"six"}}); e.State != environment.Ready {
		t.Fatalf("%+v", e)
	}
	if got := strings.Join(u.ran, " "); got != "compile venv install bytecode" {
		t.Fatalf("ran %s", got)
	}
}

func TestRefused(t *testing.T) {
	w, _, _ := fakeWorld(t)
	apply := func(name string, s environment.Spec) error {
		_, _, err := w.Apply(t.Context(), nyc, name, s)
		return err
	}
	for name, err := range map[string]error{
		"name":        apply("../x", environment.Spec{}),
		"requirement": apply("x", environment.Spec{Requirements: []string{"-r y"}}),
		"python":      apply("x", environment.Spec{Python: "3.12"}), // its shim does not work
	} {
		if !fault.Is(err, fault.Invalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := apply("x", environment.Spec{Python: "3.12"}); !strings.Contains(fault.HintOf(err), "3.11.7") || strings.Contains(fault.HintOf(err), "3.9") {
		t.Errorf("hint %q", fault.HintOf(err))
	}
	if _, err := w.One(t.Context(), nyc, "none"); !fault.Is(err, fault.NotFound) {
		t.Errorf("%v", err)
	}
	w.auth.denied = true
	calls := map[string]error{"apply": apply("x", environment.Spec{})}
	_, calls["one"] = w.One(t.Context(), nyc, "x")
	_, _, calls["list"] = w.List(t.Context(), nyc, "", 0)
	_, calls["logs"] = w.Logs(t.Context(), nyc, "x")
	_, calls["use"] = w.Use(t.Context(), nyc, "x")
	for name, err := range calls {
		if !fault.Is(err, fault.PermissionDenied) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestFindUV(t *testing.T) {
	dir := t.TempDir()
	shim := filepath.Join(dir, "uv")
	if err := os.WriteFile(shim, []byte("#!/bin/sh\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := environment.FindUV(shim, nil, nil); !fault.Is(err, fault.Invalid) {
		t.Errorf("a shim: %v", err)
	}
	if _, err := environment.FindUV("", []string{dir}, nil); !fault.Is(err, fault.NotFound) {
		t.Errorf("a shim on the path: %v", err)
	}
}

// absent skips the test, or fails it where nothing may be skipped.
func absent(t *testing.T, how string) {
	t.Helper()
	if os.Getenv("CI") == "true" { //nolint:forbidigo // a test asks where it runs
		t.Fatal(how)
	}
	t.Skip(how)
}

// machineDirs are where the machine's uv and Python may be.
func machineDirs(t *testing.T) []string {
	t.Helper()
	root, err := repotest.Root()
	if err != nil {
		t.Fatal(err)
	}
	dirs := []string{filepath.Join(root, "bin")}
	for _, name := range []string{"uv", "python3"} {
		if path, err := exec.LookPath(name); err == nil {
			dirs = append(dirs, filepath.Dir(path))
		}
	}
	return append(dirs, "/usr/local/bin", "/usr/bin", "/bin")
}

// wheels are packages as an index has them: one with a module, and one that overwrites it.
func wheels(t *testing.T) map[string][]byte {
	t.Helper()
	return map[string][]byte{
		"falaj-probe": wheel(t, "falaj_probe", "", [][2]string{
			{"falaj_probe.py", "ANSWER = 42\n"},
			{"falaj_probe.pth", "import os; 'UV_CACHE_DIR' in os.environ and open(os.path.join(os.environ['UV_CACHE_DIR'], 'ran'), 'w')\n"},
		}),
		"falaj-zevil": wheel(t, "falaj_zevil", "../../../../../../packages/falaj-probe/tree/evil.py,,\n../../../../x,,\n", [][2]string{
			{"falaj_probe.py", "ANSWER = 13\n"},
			{"__pycache__/falaj_probe.cpython-311.pyc", "no bytecode"},
			{"falaj_zevil-1.0.data/purelib/falaj_probe-1.0.dist-info/RECORD", "falaj_probe.py,,\n"},
			{"falaj_zevil-1.0.data/data/share/falaj_zevil.txt", "data"},
			{"falaj_zevil-1.0.data/scripts/falaj-zevil", "#!python\nimport falaj_probe; print(falaj_probe.ANSWER)\n"},
		}),
	}
}

func wheel(t *testing.T, name, more string, files [][2]string) []byte {
	t.Helper()
	return wheelOf(t, name, "1.0", "", more, files)
}

// wheelOf is a wheel of a version; metadata are more lines of its METADATA, and more of its RECORD.
func wheelOf(t *testing.T, name, version, metadata, more string, files [][2]string) []byte {
	t.Helper()
	info := name + "-" + version + ".dist-info/"
	files = append(files,
		[2]string{info + "METADATA", "Metadata-Version: 2.1\nName: " + name + "\nVersion: " + version + "\n" + metadata},
		[2]string{info + "WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"},
	)
	var record strings.Builder
	record.WriteString(more)
	for _, f := range files {
		sum := sha256.Sum256([]byte(f[1]))
		fmt.Fprintf(&record, "%s,sha256=%s,%d\n", f[0], base64.RawURLEncoding.EncodeToString(sum[:]), len(f[1]))
	}
	files = append(files, [2]string{info + "RECORD", record.String() + info + "RECORD,,\n"})
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	for _, f := range files {
		w, err := z.Create(f[0])
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, f[1]); err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// TestWithUV builds with the machine's uv and Python in sandboxes, from an
// index on this machine.
func TestWithUV(t *testing.T) {
	dirs := machineDirs(t)
	found := environment.Interpreters(t.Context(), nil, dirs)
	if len(found) == 0 {
		absent(t, "needs Python: apt-get install python3")
	}
	if _, err := environment.FindUV("", dirs, found); err != nil {
		absent(t, "needs uv: make deps")
	}
	all := wheels(t)
	sum := sha256.Sum256(all["falaj-probe"])
	mux := http.NewServeMux()
	offer := func(name, version string, pkg []byte) {
		file, sum := strings.ReplaceAll(name, "-", "_")+"-"+version+"-py3-none-any.whl", sha256.Sum256(pkg)
		mux.HandleFunc("GET /simple/"+name+"/", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/html")
			fmt.Fprintf(w, `<a href="/files/%s#sha256=%s">%s</a>`, file, hex.EncodeToString(sum[:]), file)
		})
		mux.HandleFunc("GET /files/"+file, func(w http.ResponseWriter, r *http.Request) {
			http.ServeContent(w, r, "x.whl", time.Time{}, bytes.NewReader(pkg))
		})
	}
	for name, pkg := range all {
		offer(name, "1.0", pkg)
	}
	index := httptest.NewServer(mux)
	t.Cleanup(index.Close)
	other := httptest.NewServer(mux)
	t.Cleanup(other.Close)
	worker := sandboxtest.Worker(t)
	driver, err := local.New(local.Config{Dir: filepath.Join(t.TempDir(), "engine"), Worker: worker, Level: sandbox.Sandbox})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { driver.Close() })
	w := newWorld(t, driver, func(c *environment.Config) {
		c.Indexes = map[string]string{"other": other.URL + "/simple"}
		c.Path, c.Index, c.Hosts = dirs, index.URL+"/simple", []string{strings.TrimPrefix(index.URL, "http://")}
	})

	// The first to install the package has another one that overwrites it.
	evil := w.ready(t, "evil", "falaj-probe", "falaj-zevil")
	if out, err := exec.CommandContext(t.Context(), filepath.Join(evil.Bin, "falaj-zevil")).CombinedOutput(); err != nil || string(out) != "13\n" {
		t.Errorf("%s, %v", out, err)
	}
	if got := content(t, evil, "share/falaj_zevil.txt"); got != "data" {
		t.Errorf("its data is %q", got)
	}
	e := w.built(t, "other", environment.Spec{Requirements: []string{"falaj-probe"}, Indexes: []string{"other"}})
	if e.State != environment.Ready || len(e.SBOM) != 1 || e.SBOM[0].Index != other.URL+"/simple" {
		t.Fatalf("from another index: %+v", e)
	}
	e = w.built(t, "py", environment.Spec{Requirements: []string{"falaj-probe"}})
	if e.State != environment.Ready || len(e.SBOM) != 1 || e.SBOM[0].Hashes[0] != "sha256:"+hex.EncodeToString(sum[:]) {
		t.Fatalf("%+v", e)
	}
	use, err := w.Use(t.Context(), nyc, "py")
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), use.Python, "-c", "import falaj_probe as p; print(p.ANSWER, p.__cached__)").CombinedOutput()
	if err != nil || !strings.HasPrefix(string(out), "42 "+filepath.Dir(use.Bin)) {
		t.Fatalf("%s, %v", out, err)
	}
	if err := w.Check(use, compute.Pool{Engine: "local"}); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(w.cfg.Cache, "ran")); !os.IsNotExist(err) {
		t.Errorf("code of a package ran while it was installed: %v", err)
	}
	if found, err := filepath.Glob(filepath.Join(filepath.Dir(use.Bin), "lib", "python3*", "site-packages", "__pycache__", "falaj_probe.*.pyc")); err != nil || len(found) != 1 {
		t.Errorf("the bytecode is %v, %v", found, err)
	}

	if sameFile(t, evil, use, "falaj_probe.py") || !sameFile(t, evil, use, "falaj_probe-1.0.dist-info/METADATA") {
		t.Error("the file of another package is shared, or one of its own is not")
	}
	first, err := w.Use(t.Context(), nyc, "other")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{"falaj_probe.py", "__pycache__/falaj_probe.*.pyc", "falaj_probe-1.0.dist-info/RECORD"} {
		if !sameFile(t, first, use, file) {
			t.Errorf("%s is on the disk twice", file)
		}
	}
	testJobCannotWrite(t, driver, use)

	testSite(t, w, offer)

	e = w.built(t, "missing", environment.Spec{Requirements: []string{"falaj-nothing"}})
	if e.State != environment.Failed || !strings.Contains(e.Reason, "falaj-nothing was not found") || !strings.Contains(e.Hint, "spelling") {
		t.Fatalf("%+v", e)
	}
	e = w.built(t, "version", environment.Spec{Requirements: []string{"falaj-probe>=2"}})
	if e.State != environment.Failed || !strings.Contains(e.Reason, "falaj-probe") || !strings.Contains(e.Hint, "Loosen") {
		t.Fatalf("%+v", e)
	}
}

// testSite builds environments that stand on what an interpreter brings.
func testSite(t *testing.T, w *world, offer func(name, version string, pkg []byte)) {
	t.Helper()
	bare := w.built(t, "site", environment.Spec{SitePackages: true})
	if bare.State != environment.Ready {
		t.Fatalf("%+v", bare)
	}
	use, err := w.Use(t.Context(), nyc, "site")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Packages map[string]string `json:"packages"`
	}
	b, err := os.ReadFile(filepath.Join(filepath.Dir(use.Bin), protocol.SiteFile))
	if err != nil || json.Unmarshal(b, &file) != nil || !maps.Equal(file.Packages, use.Interpreter.Site) || len(file.Packages) != bare.Packages {
		t.Fatalf("%s, %v; %d packages", b, err, bare.Packages)
	}
	if use.Mounts[0].Role != engine.Venv || use.Mounts[0].Digest != string(bare.Digest) {
		t.Errorf("%+v", use.Mounts)
	}
	if err := w.Check(use, compute.Pool{Engine: "local"}); err != nil {
		t.Error(err)
	}
	changed := use
	changed.Interpreter.Site = maps.Clone(use.Interpreter.Site)
	changed.Interpreter.Site["torch"] = "99"
	if err := w.Check(changed, compute.Pool{Engine: "local"}); !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), "torch") {
		t.Errorf("with other packages: %v", err)
	}

	top := w.built(t, "top", environment.Spec{SitePackages: true, Python: use.Interpreter.Path, Requirements: []string{"falaj-probe"}})
	if top.State != environment.Ready || top.Packages != bare.Packages+1 || top.Digest == bare.Digest || top.SBOM[0].Name != "falaj-probe" || top.SBOM[0].From != "" {
		t.Fatalf("%+v", top)
	}
	name := ""
	for _, p := range bare.SBOM {
		if p.From != environment.FromInterpreter {
			t.Errorf("%+v", p)
		}
		if _, err := strconv.Atoi(p.Version[:1]); err == nil && name == "" {
			name = p.Name
		}
	}
	if use, err = w.Use(t.Context(), nyc, "top"); err != nil {
		t.Fatal(err)
	}
	code := "import falaj_probe, importlib.metadata as m; print(falaj_probe.ANSWER, len(m.distributions.__doc__) > 0, *(m.version(n) for n in " + fmt.Sprintf("[%q]", name) + " if n))"
	out, err := exec.CommandContext(t.Context(), use.Python, "-c", code).CombinedOutput()
	if err != nil || name != "" && !strings.Contains(string(out), file.Packages[name]) {
		t.Fatalf("%s, %v", out, err)
	}
	if name == "" {
		return // this machine's Python brings nothing
	}
	has := w.built(t, "has", environment.Spec{SitePackages: true, Requirements: []string{name}})
	if has.State != environment.Ready || has.Digest != bare.Digest {
		t.Fatalf("%+v", has)
	}
	e := w.built(t, "fixed", environment.Spec{SitePackages: true, Requirements: []string{name + ">=9999"}})
	if e.State != environment.Failed || strings.Contains(e.Reason, "falaj.site") || !strings.Contains(e.Hint, "interpreter's version") {
		t.Fatalf("%+v", e)
	}

	// A package that the requirements do not name is replaced where another needs a newer one.
	offer(name, "9999.0", wheelOf(t, strings.ReplaceAll(name, "-", "_"), "9999.0", "", "", nil))
	offer("falaj-needs", "1.0", wheelOf(t, "falaj_needs", "1.0", "Requires-Dist: "+name+">=9999\n", "", nil))
	e = w.built(t, "replaced", environment.Spec{SitePackages: true, Requirements: []string{"falaj-needs"}})
	if want := name + " 9999.0 instead of " + file.Packages[name]; e.State != environment.Ready || !strings.Contains(e.Hint, want) || e.Packages != bare.Packages+1 {
		t.Fatalf("%q is missing in %+v", want, e)
	}
	if use, err = w.Use(t.Context(), nyc, "replaced"); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), use.Python, "-c", fmt.Sprintf("import importlib.metadata as m; print(m.version(%q))", name)).CombinedOutput(); err != nil || strings.TrimSpace(string(out)) != "9999.0" {
		t.Errorf("the environment has %s %s, %v", name, out, err)
	}
	e = w.built(t, "named", environment.Spec{SitePackages: true, Requirements: []string{"falaj-needs", name}})
	if e.State != environment.Failed || !strings.Contains(e.Reason, name) {
		t.Errorf("a named package was replaced: %+v", e)
	}
	if _, _, err := w.Apply(t.Context(), nyc, "path", environment.Spec{Python: "/bin/true"}); !fault.Is(err, fault.Invalid) || !strings.Contains(fault.HintOf(err), "environments.interpreters") {
		t.Errorf("a path that is no known Python: %v", err)
	}
}
