package environment_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/compute/engine"
	"github.com/falaj-ml/falaj/internal/compute/engine/enginetest"
	"github.com/falaj-ml/falaj/internal/environment"
)

const site = "lib/python3.11/site-packages/"

// inSite finds the one file of a pattern among an environment's packages.
func inSite(t *testing.T, u environment.Usable, pattern string) os.FileInfo {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(filepath.Dir(u.Bin), "lib", "python3.*", "site-packages", pattern))
	if err != nil || len(found) != 1 {
		t.Fatalf("%s: %v, %v", pattern, found, err)
	}
	info, err := os.Lstat(found[0])
	if err != nil {
		t.Fatal(err)
	}
	return info
}

func sameFile(t *testing.T, a, b environment.Usable, pattern string) bool {
	t.Helper()
	return os.SameFile(inSite(t, a, pattern), inSite(t, b, pattern))
}

// content is that of a file of an environment.
func content(t *testing.T, u environment.Usable, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(filepath.Dir(u.Bin), name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// ready builds an environment, and gives what a job gets of it.
func (w *world) ready(t *testing.T, name string, requirements ...string) environment.Usable {
	t.Helper()
	if e := w.built(t, name, environment.Spec{Requirements: requirements}); e.State != environment.Ready {
		t.Fatalf("%+v", e)
	}
	u, err := w.Use(t.Context(), nyc, name)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

// given is what was installed since the last call. No build sees the package store, nor
// another environment.
func (u *uv) given(t *testing.T, w *world) []string {
	t.Helper()
	u.mu.Lock()
	defer u.mu.Unlock()
	names := u.installed
	u.installed = nil
	for _, s := range u.specs {
		for _, m := range s.Mounts {
			if strings.HasPrefix(m.Path, w.cfg.Dir) && !strings.HasPrefix(m.Path, filepath.Join(w.cfg.Dir, ".staging")) {
				t.Errorf("%v sees %s", s.Command, m.Path)
			}
		}
	}
	return names
}

// stored are the entries of the package store.
func (w *world) stored(t *testing.T) []string {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(w.cfg.Dir, ".packages"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// age makes a directory as old as if nothing had used it for two days.
func age(t *testing.T, dir string) {
	t.Helper()
	long := time.Now().Add(-48 * time.Hour)
	if err := os.Chtimes(dir, long, long); err != nil {
		t.Fatal(err)
	}
}

func (w *world) agePackages(t *testing.T) {
	t.Helper()
	for _, name := range w.stored(t) {
		age(t, filepath.Join(w.cfg.Dir, ".packages", name))
	}
}

// TestSharedPackages: what was installed once is linked into later environments, as long
// as one has it.
func TestSharedPackages(t *testing.T) {
	w, u, _ := fakeWorld(t)
	first := w.ready(t, "first", "numpy", "six")
	if got := u.given(t, w); !slices.Equal(got, []string{"numpy", "six"}) {
		t.Fatalf("installed %v", got)
	}
	more := w.ready(t, "more", "numpy", "six", "tqdm")
	if got := u.given(t, w); !slices.Equal(got, []string{"tqdm"}) {
		t.Fatalf("installed %v", got)
	}
	u.ran = nil
	less := w.ready(t, "less", "six")
	if got := strings.Join(u.ran, " "); got != "compile venv" {
		t.Errorf("ran %s", got)
	}
	for _, file := range []string{"six/__init__.py", "six/__pycache__/__init__.cpython-311.pyc", "six-1.0.dist-info/RECORD", "../../../bin/six"} {
		if !sameFile(t, first, more, file) || !sameFile(t, first, less, file) {
			t.Errorf("%s is on the disk twice", file)
		}
		if mode := inSite(t, less, file).Mode(); mode.Perm()&0o222 != 0 {
			t.Errorf("%s is %v", file, mode)
		}
	}
	if _, err := os.Stat(filepath.Join(filepath.Dir(less.Bin), site, "numpy")); !os.IsNotExist(err) {
		t.Errorf("a package that was not locked: %v", err)
	}

	// What is shared is counted once.
	sizes := func(name string) (size, shared int64) {
		e, err := w.One(t.Context(), nyc, name)
		if err != nil {
			t.Fatal(err)
		}
		return int64(e.Size), int64(e.Shared)
	}
	if size, shared := sizes("first"); size == 0 || shared != 0 {
		t.Errorf("the first environment has %d bytes, %d of them shared", size, shared)
	}
	if size, shared := sizes("less"); size == 0 || shared != size {
		t.Errorf("an environment of shared packages has %d bytes, %d of them shared", size, shared)
	}

	// What is pruned frees what no other environment has.
	prune := func(u environment.Usable) int64 {
		t.Helper()
		age(t, filepath.Dir(u.Bin))
		dry, err := w.Prune(t.Context(), 24*time.Hour, true)
		if err != nil || len(dry) != 1 {
			t.Fatalf("%+v, %v", dry, err)
		}
		pruned, err := w.Prune(t.Context(), 24*time.Hour, false)
		if err != nil || len(pruned) != 1 || pruned[0].Size != dry[0].Size {
			t.Fatalf("%+v, not %+v, %v", pruned, dry, err)
		}
		return int64(pruned[0].Size)
	}
	w.agePackages(t)
	if size := prune(first); size != 0 {
		t.Errorf("%d bytes are free without first", size)
	}
	if n := len(w.stored(t)); n != 3 {
		t.Errorf("%d packages are stored for two environments", n)
	}
	if size := prune(more); size < 100 || len(w.stored(t)) != 1 {
		t.Errorf("%d bytes are free without more, and %v is stored", size, w.stored(t))
	}
	inSite(t, less, "six/__init__.py")
	prune(less)
	if left := w.stored(t); len(left) != 0 {
		t.Errorf("%v is stored for no environment", left)
	}
}

// TestForeignFiles: a package that brings files of another one changes that package for
// environments that have both, which say so, and for no other.
func TestForeignFiles(t *testing.T) {
	w, u, _ := fakeWorld(t)
	evil := "name = 'evil'\n"
	u.wheels["zz-evil"] = map[string]string{ // in the order of the names behind what it overwrites
		site + "numpy/__init__.py":            evil,
		site + "numpy-1.0.dist-info/RECORD":   "numpy/__init__.py,sha256=evil,1\n../../../../../../etc/passwd,,\n",
		site + "numpy/added.py":               evil,
		site + "zz_evil-1.0.dist-info/RECORD": "../../../../.packages/x,,\n",
	}
	u.wheels["a-first"] = map[string]string{site + "numpy/__init__.py": evil}
	both := w.ready(t, "both", "zz-evil", "numpy", "a-first")
	if got := content(t, both, site+"numpy/__init__.py"); got != evil {
		t.Errorf("the last package by name does not count: %q", got)
	}
	e, err := w.One(t.Context(), nyc, "both")
	if err != nil || !strings.Contains(e.Hint, "which happens 5 times") {
		t.Errorf("%q, %v", e.Hint, err)
	}
	r, err := w.Logs(t.Context(), nyc, "both")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if b, err := io.ReadAll(r); err != nil || !strings.Contains(string(b), site+"numpy/__init__.py is from package zz-evil, and package numpy has another") {
		t.Errorf("%s, %v", b, err)
	}
	u.given(t, w)
	alone := w.ready(t, "alone", "numpy", "a-first")
	if got := u.given(t, w); len(got) != 0 {
		t.Errorf("installed %v", got)
	}
	for name, want := range map[string]string{"numpy/__init__.py": "name = 'numpy'\n", "numpy/__pycache__/__init__.cpython-311.pyc": "code of name = 'numpy'\n", "numpy-1.0.dist-info/RECORD": "numpy/__init__.py,,\n"} {
		if got := content(t, alone, site+name); got != want {
			t.Errorf("%s is %q", name, got)
		}
	}
	if _, err := os.Lstat(filepath.Join(filepath.Dir(alone.Bin), site, "numpy", "added.py")); !os.IsNotExist(err) {
		t.Errorf("a file of another package: %v", err)
	}
}

// TestForeignBytecode: no bytecode of a wheel is used where its source is there.
func TestForeignBytecode(t *testing.T) {
	w, u, _ := fakeWorld(t)
	u.wheels["six"] = map[string]string{
		site + "six/__pycache__/__init__.cpython-311.pyc": "evil", site + "six/__pycache__/os.cpython-311.pyc": "evil",
		site + "six/__init__.pyc": "evil", site + "six/closed.pyc": "bytecode alone", site + "__pycache__/numpy.cpython-311.pyc": "evil",
	}
	py := w.ready(t, "py", "six")
	got := map[string]string{}
	err := filepath.WalkDir(filepath.Dir(py.Bin), func(path string, _ fs.DirEntry, err error) error {
		if name, ok := strings.CutPrefix(path, filepath.Join(filepath.Dir(py.Bin), site)+"/"); ok && filepath.Ext(path) == ".pyc" {
			got[name] = content(t, py, site+name)
		}
		return err
	})
	want := map[string]string{"six/__pycache__/__init__.cpython-311.pyc": "code of name = 'six'\n", "six/closed.pyc": "bytecode alone"}
	if err != nil || !maps.Equal(got, want) {
		t.Errorf("%q, %v", got, err)
	}
}

// TestPackagesThatAreRefused: what cannot be shared, or excludes each other, fails the build
// with the path, and leaves nothing in the store.
func TestPackagesThatAreRefused(t *testing.T) {
	for name, c := range map[string]struct {
		files map[string]string
		says  string
	}{
		"configuration": {map[string]string{"pyvenv.cfg": "home = /evil\n"}, "package six: it replaces pyvenv.cfg"},
		"Python":        {map[string]string{"bin/python": "#!/bin/evil\n"}, "package six: it replaces bin/python"},
		"other Python":  {map[string]string{"bin/python": "-> /bin/sh"}, "package six: it replaces bin/python"},
		"link":          {map[string]string{site + "six/link": "-> /etc/passwd"}, `"` + site + `six/link" is not a plain file`},
		"its own":       {map[string]string{"bin/activate": "evil"}, `has the file "bin/activate", which is one of the environment itself`},
		"directory":     {map[string]string{site + "numpy": "a file"}, `"` + site + `numpy" is a file of package six and a directory of package numpy`},
	} {
		t.Run(name, func(t *testing.T) {
			w, u, fake := fakeWorld(t)
			u.wheels["six"] = c.files
			fake.Behave(func(p *enginetest.Process) enginetest.Exit {
				exit := u.run(p)
				if cmd := p.Spec.Command; cmd[1] == "venv" {
					if err := os.WriteFile(filepath.Join(cmd[len(cmd)-1], "bin", "activate"), []byte("uv's"), 0o600); err != nil {
						return enginetest.Exit{Code: 9}
					}
				}
				return exit
			})
			e := w.built(t, "py", environment.Spec{Requirements: []string{"numpy", "six"}})
			if e.State != environment.Failed || !strings.Contains(e.Reason, c.says) || e.Hint == "" {
				t.Errorf("%s: %q, hint %q", e.State, e.Reason, e.Hint)
			}
			if numpy := w.ready(t, "numpy", "numpy"); content(t, numpy, "bin/activate") != "uv's" {
				t.Errorf("bin/activate is %q", content(t, numpy, "bin/activate"))
			}
		})
	}
}

// TestDamagedPackage: a file that was changed in the store, whatever its size and its time say,
// goes into no further environment.
func TestDamagedPackage(t *testing.T) {
	for name, damage := range map[string]func(file string) error{
		"content": func(file string) error {
			info, err := os.Stat(file)
			return errors.Join(err, os.Chmod(file, 0o600), os.WriteFile(file, bytes.Repeat([]byte("x"), int(info.Size())), 0o600), os.Chmod(file, info.Mode()), os.Chtimes(file, info.ModTime(), info.ModTime()))
		},
		"mode":    func(file string) error { return os.Chmod(file, 0o600) },
		"link":    func(file string) error { return errors.Join(os.Remove(file), os.Symlink("/etc/passwd", file)) },
		"missing": os.Remove,
		"list": func(file string) error {
			list := filepath.Join(filepath.Dir(file), "..", "..", "..", "..", "..", "files.json")
			return errors.Join(os.Chmod(list, 0o600), os.WriteFile(list, []byte(`{"name"`), 0o600))
		},
	} {
		t.Run(name, func(t *testing.T) {
			w, u, _ := fakeWorldThatRetries(t)
			w.ready(t, "py", "attrs", "numpy", "scipy", "six")
			found, err := filepath.Glob(filepath.Join(w.cfg.Dir, ".packages", "*", "tree", site, "*", "__init__.py"))
			if err != nil || len(found) != 4 {
				t.Fatalf("%v, %v", found, err)
			}
			for _, file := range found {
				if err := errors.Join(os.Chmod(filepath.Dir(file), 0o700), damage(file)); err != nil {
					t.Fatal(err)
				}
			}
			u.given(t, w)
			more := w.ready(t, "more", "attrs", "numpy", "scipy", "six", "tqdm")
			if got := u.given(t, w); !slices.Equal(got, []string{"tqdm", "attrs", "numpy", "scipy", "six"}) {
				t.Errorf("installed %v", got)
			}
			for _, name := range []string{"attrs", "numpy", "scipy", "six"} {
				if got := content(t, more, site+name+"/__init__.py"); got != "name = '"+name+"'\n" {
					t.Errorf("%s has %q", name, got)
				}
			}
			if err := w.Sweep(t.Context()); err != nil {
				t.Error(err)
			}
			if left := w.stored(t); len(left) != 5 {
				t.Errorf("the store has %v", left)
			}
		})
	}
}

// fakeWorldThatRetries is fakeWorld whose builds go back a step without a pause.
func fakeWorldThatRetries(t *testing.T) (*world, *uv, *enginetest.Fake) {
	t.Helper()
	u, fake := &uv{fail: map[string]string{}, wheels: map[string]map[string]string{}}, enginetest.NewFake()
	fake.Behave(u.run)
	edit := pretend(t)
	return newWorld(t, fake, func(c *environment.Config) {
		edit(c)
		c.Pauses = []time.Duration{time.Millisecond, time.Millisecond}
	}), u, fake
}

// TestNoPython: an environment without a Python is built again, wherever its build is, and
// fails when that does not help. What is in its place without one is replaced.
func TestNoPython(t *testing.T) {
	for name, c := range map[string]struct {
		spec  environment.Spec
		times int
		want  environment.State
	}{
		"all is stored":     {environment.Spec{Requirements: []string{"six"}}, 1, environment.Ready},
		"after compilation": {environment.Spec{Requirements: []string{"numpy"}}, 1, environment.Ready},
		"no packages":       {environment.Spec{}, 1, environment.Ready},
		"from source":       {environment.Spec{Requirements: []string{"six"}, AllowSource: true}, 1, environment.Ready},
		"for ever":          {environment.Spec{Requirements: []string{"six"}}, 100, environment.Failed},
	} {
		t.Run(name, func(t *testing.T) {
			w, u, fake := fakeWorldThatRetries(t)
			w.ready(t, "first", "six", "tqdm")
			left := c.times
			fake.Behave(func(p *enginetest.Process) enginetest.Exit {
				exit := u.run(p)
				last := p.Spec.Command[len(p.Spec.Command)-1] // of venv and, where it has source, of the compiler: the environment
				if left > 0 && (p.Spec.Command[1] == "venv" && !c.spec.AllowSource || c.spec.AllowSource && filepath.Base(last) == "venv" && p.Spec.Command[1] == "-I") {
					left--
					if err := os.Remove(filepath.Join(last, "bin", "python")); err != nil {
						return enginetest.Exit{Code: 9}
					}
				}
				return exit
			})
			e := w.built(t, "py", c.spec)
			if e.State != c.want || e.State == environment.Failed && e.Reason != "the built environment has no Python" {
				t.Fatalf("%s: %s", e.State, e.Reason)
			}
		})
	}
	t.Run("in its place", func(t *testing.T) {
		w, _, _ := fakeWorld(t)
		py := w.ready(t, "py", "six")
		if err := errors.Join(os.Chmod(py.Bin, 0o700), os.Remove(py.Python)); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(w.ready(t, "py", "six").Python); err != nil {
			t.Error(err)
		}
	})
}

// TestCrash: whatever an interrupted build or sweep left, the build resumes and the next sweep
// removes the rest.
func TestCrash(t *testing.T) {
	w, u, fake := fakeWorld(t)
	w.ready(t, "first", "six")
	reached, proceed := make(chan string), make(chan struct{})
	fake.Behave(func(p *enginetest.Process) enginetest.Exit {
		exit := u.run(p)
		if p.Spec.Command[1] == "-I" && !slices.Contains(p.Spec.Command, "install") {
			reached <- filepath.Dir(p.Spec.Dir)
			<-proceed
		}
		return exit
	})
	if _, _, err := w.Apply(t.Context(), nyc, "py", environment.Spec{Requirements: []string{"numpy", "six", "tqdm"}}); err != nil {
		t.Fatal(err)
	}
	staging := <-reached
	w.compute.Scheduling.Stop()
	half := filepath.Join(staging, "environment", site, "six", "__init__.py") // it was being put together,
	done := filepath.Join(staging, "packages", "numpy", "files.json")         // a package was listed,
	gone := filepath.Join(w.cfg.Dir, ".packages", ".gone-pkg_1", "tree", "x") // and another was being deleted
	old := filepath.Join(w.cfg.Dir, ".packages", strings.Repeat("a", 64), "tree", "x")
	for _, file := range []string{half, done, gone, old} {
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o700), os.WriteFile(file, []byte("half"), 0o400), os.Chmod(filepath.Dir(file), 0o500)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(filepath.Dir(done), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(staging, "packages", "tqdm", "tree", "pyvenv.cfg")); err != nil { // of it the rest was about to go
		t.Fatal(err)
	}
	age(t, filepath.Dir(filepath.Dir(old)))
	w.start(t)
	close(proceed)
	py := w.ready(t, "py", "numpy", "six", "tqdm")
	for _, name := range []string{"numpy", "six", "tqdm"} {
		if got := content(t, py, site+name+"/__init__.py"); got != "name = '"+name+"'\n" {
			t.Errorf("%s has %q", name, got)
		}
	}
	if left := w.stored(t); len(left) != 3 || strings.HasPrefix(left[0], ".") {
		t.Errorf("the store has %v", left)
	}
	if left, err := os.ReadDir(filepath.Join(w.cfg.Dir, ".staging")); err != nil || len(left) != 0 {
		t.Errorf("staging holds %v (%v)", left, err)
	}
}

// TestPackagesInUse: a package that no environment has yet, but a build has asked for, stays.
func TestPackagesInUse(t *testing.T) {
	w, u, fake := fakeWorld(t)
	first := w.ready(t, "first", "six")
	w.agePackages(t)
	fake.Behave(func(p *enginetest.Process) enginetest.Exit {
		exit := u.run(p)
		if slices.Contains(p.Spec.Command, "install") { // the store was asked, and nothing is linked yet
			age(t, filepath.Dir(first.Bin))
			if pruned, err := w.Prune(context.Background(), 24*time.Hour, false); err != nil || len(pruned) != 1 {
				t.Errorf("%+v, %v", pruned, err)
			}
		}
		return exit
	})
	u.given(t, w)
	w.ready(t, "more", "six", "tqdm")
	if got := u.given(t, w); !slices.Equal(got, []string{"tqdm"}) {
		t.Errorf("installed %v", got)
	}
}

// TestBuildsAtTheSameTime: several builds that lack the same packages all end well, and share
// these.
func TestBuildsAtTheSameTime(t *testing.T) {
	w, _, _ := fakeWorld(t)
	var all sync.WaitGroup
	const n = 6
	for i := range n {
		all.Go(func() {
			name := fmt.Sprint("env-", i)
			w.built(t, name, environment.Spec{Requirements: []string{"numpy", "six", fmt.Sprint("own-", i/2)}})
		})
	}
	all.Go(func() {
		for range n {
			if err := w.Sweep(t.Context()); err != nil {
				t.Error(err)
			}
		}
	})
	all.Wait()
	first, err := w.Use(t.Context(), nyc, "env-0")
	if err != nil {
		t.Fatal(err)
	}
	for i := range n {
		u, err := w.Use(t.Context(), nyc, fmt.Sprint("env-", i))
		if err != nil {
			t.Fatal(err)
		}
		if !sameFile(t, first, u, "numpy/__init__.py") || !sameFile(t, first, u, "six/__pycache__/*.pyc") {
			t.Errorf("environment %d has files of its own", i)
		}
	}
	if left := w.stored(t); len(left) != 5 {
		t.Errorf("the store has %v", left)
	}
}

// TestSourceBuildsShareNothing: where code of packages ran, the build takes nothing from the
// store and gives nothing to it.
func TestSourceBuildsShareNothing(t *testing.T) {
	w, u, _ := fakeWorld(t)
	w.ready(t, "wheels", "numpy")
	before := w.stored(t)
	u.given(t, w)
	source := w.built(t, "source", environment.Spec{Requirements: []string{"numpy", "six"}, AllowSource: true})
	if got := u.given(t, w); source.State != environment.Ready || !slices.Equal(got, []string{"numpy", "six"}) || source.Shared != 0 {
		t.Errorf("installed %v, %+v", got, source)
	}
	if after := w.stored(t); !slices.Equal(before, after) {
		t.Errorf("the store had %v and has %v", before, after)
	}
	err := filepath.WalkDir(filepath.Join(w.cfg.Dir, strings.TrimPrefix(string(source.Digest), "sha256:")), func(path string, e fs.DirEntry, err error) error {
		if err == nil && e.Type().IsRegular() {
			if info, err := e.Info(); err != nil || info.Mode().Perm()&0o222 != 0 {
				t.Errorf("%s: %v, %v", path, info, err)
			}
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	if wheels := w.ready(t, "again", "numpy", "six"); wheels.Digest == source.Digest {
		t.Error("it is the environment that was built from source")
	}
	if got := u.given(t, w); !slices.Equal(got, []string{"six"}) {
		t.Errorf("installed %v", got)
	}
}

// attack is what a job does to the files of its environment.
const attack = `import os, sys
path = os.path.join(sys.argv[1], "falaj_probe.py")
def tried(what, do):
    try: do()
    except OSError: print(what, "refused")
    else: print(what, "done")
tried("write", lambda: open(path, "w"))
tried("chmod", lambda: os.chmod(path, 0o666))
tried("utime", lambda: os.utime(path, (0, 0)))
tried("unlink", lambda: os.unlink(path))
tried("link", lambda: os.link(path, "linked.py"))`

// testJobCannotWrite runs a job that attacks the shared files of its environment.
func testJobCannotWrite(t *testing.T, driver engine.Driver, u environment.Usable) {
	t.Helper()
	before := inSite(t, u, "falaj_probe.py")
	dir := t.TempDir()
	found, err := filepath.Glob(filepath.Join(filepath.Dir(u.Bin), "lib", "python3*", "site-packages"))
	if err != nil || len(found) != 1 {
		t.Fatalf("%v, %v", found, err)
	}
	h, err := driver.Start(t.Context(), engine.Spec{
		ID: "att_attack", Dir: dir, Command: []string{u.Python, "-c", attack, found[0]},
		Mounts: append([]engine.Mount{{Path: dir, Writable: true}}, u.Mounts...),
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := driver.Wait(t.Context(), h); err != nil {
		t.Fatal(err)
	}
	r, err := driver.Logs(t.Context(), h, 0, false)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	b, err := io.ReadAll(r)
	if err != nil || strings.TrimSpace(string(b)) != "write refused\nchmod refused\nutime refused\nunlink refused\nlink refused" {
		t.Errorf("%s, %v", b, err)
	}
	after := inSite(t, u, "falaj_probe.py")
	if !os.SameFile(before, after) || before.Mode() != after.Mode() || !before.ModTime().Equal(after.ModTime()) || before.Size() != after.Size() {
		t.Errorf("the file was %v and is %v", before, after)
	}
}
