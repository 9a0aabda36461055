package environment_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/compute/engine/enginetest"
	"github.com/falaj-ml/falaj/internal/environment"
)

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

// ready builds an environment, and gives what a job gets of it.
func (w *world) ready(t *testing.T, name string, spec environment.Spec) environment.Usable {
	t.Helper()
	if e := w.built(t, name, spec); e.State != environment.Ready {
		t.Fatalf("%+v", e)
	}
	u, err := w.Use(t.Context(), nyc, name)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

// given is what uv was given to install, since the last call.
func (u *uv) given(t *testing.T, w *world) []string {
	t.Helper()
	u.mu.Lock()
	defer u.mu.Unlock()
	names := u.synced
	u.synced = nil
	for _, s := range u.specs { // and what a build sees is its own
		for _, m := range s.Mounts {
			if strings.HasPrefix(m.Path, w.cfg.Dir) && !strings.HasPrefix(m.Path, filepath.Join(w.cfg.Dir, ".staging")) {
				t.Errorf("%v sees %s", s.Command, m.Path)
			}
		}
	}
	return names
}

// TestSharedPackages: what was installed once is linked into later environments, as long
// as one has it.
func TestSharedPackages(t *testing.T) {
	w, u, _ := fakeWorld(t)
	first := w.ready(t, "first", environment.Spec{Requirements: []string{"numpy", "six"}})
	if got := u.given(t, w); !slices.Equal(got, []string{"numpy", "six"}) {
		t.Fatalf("installed %v", got)
	}
	more := w.ready(t, "more", environment.Spec{Requirements: []string{"numpy", "six", "tqdm"}})
	if got := u.given(t, w); !slices.Equal(got, []string{"tqdm"}) {
		t.Fatalf("installed %v", got)
	}
	u.ran = nil
	less := w.ready(t, "less", environment.Spec{Requirements: []string{"six"}})
	if got := strings.Join(u.ran, " "); got != "compile venv" {
		t.Errorf("ran %s", got)
	}
	for _, file := range []string{"six/__init__.py", "six/__pycache__/__init__.cpython-311.pyc", "six-1.0.dist-info/RECORD", "../../../bin/six"} {
		if !sameFile(t, first, more, file) || !sameFile(t, first, less, file) {
			t.Errorf("%s is there twice", file)
		}
		if mode := inSite(t, less, file).Mode(); mode.Perm()&0o222 != 0 {
			t.Errorf("%s is %v", file, mode)
		}
	}
	if _, err := os.Stat(filepath.Join(filepath.Dir(less.Bin), "lib", "python3.11", "site-packages", "numpy")); !os.IsNotExist(err) {
		t.Errorf("a package that was not locked: %v", err)
	}

	// What is pruned frees what no other environment has.
	age := func(u environment.Usable) {
		long := time.Now().Add(-48 * time.Hour)
		if err := os.Chtimes(filepath.Dir(u.Bin), long, long); err != nil {
			t.Fatal(err)
		}
	}
	prune := func() environment.Pruned {
		dry, err := w.Prune(t.Context(), 24*time.Hour, true)
		if err != nil || len(dry) != 1 {
			t.Fatalf("%+v, %v", dry, err)
		}
		pruned, err := w.Prune(t.Context(), 24*time.Hour, false)
		if err != nil || len(pruned) != 1 || pruned[0].Size != dry[0].Size {
			t.Fatalf("%+v, not %+v, %v", pruned, dry, err)
		}
		return pruned[0]
	}
	kept := func() int {
		entries, err := os.ReadDir(filepath.Join(w.cfg.Dir, ".packages"))
		if err != nil {
			t.Fatal(err)
		}
		return len(entries)
	}
	age(first)
	if p := prune(); p.Size != 1 { // the file beside its packages
		t.Errorf("%d bytes are free without first", p.Size)
	}
	age(more)
	if p := prune(); p.Size < 100 || kept() != 1 {
		t.Errorf("%d bytes are free without more, and %d packages are kept", p.Size, kept())
	}
	inSite(t, less, "six/__init__.py")
	cut := filepath.Join(w.cfg.Dir, ".packages", ".new-env_1", "six") // what a crash left
	if err := os.MkdirAll(cut, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Link(filepath.Join(filepath.Dir(less.Bin), "lib", "python3.11", "site-packages", "six", "__init__.py"), filepath.Join(cut, "x.py")); err != nil {
		t.Fatal(err)
	}
	if err := w.Sweep(t.Context()); err != nil || kept() != 1 {
		t.Errorf("%d are kept, %v", kept(), err)
	}
	age(less)
	prune()
	if n := kept(); n != 0 {
		t.Errorf("%d packages are kept for nobody", n)
	}
}

// TestPackagesApart: packages whose files exclude each other are installed together by uv,
// and one whose files are not as it says is given to nobody.
func TestPackagesApart(t *testing.T) {
	w, u, _ := fakeWorld(t)
	w.ready(t, "a", environment.Spec{Requirements: []string{"clash-a", "six"}})
	w.ready(t, "b", environment.Spec{Requirements: []string{"clash-b", "odd"}})
	u.given(t, w)
	w.ready(t, "both", environment.Spec{Requirements: []string{"clash-a", "clash-b"}})
	if got := u.given(t, w); !slices.Equal(got, []string{"clash-a", "clash-b"}) {
		t.Errorf("installed %v", got)
	}
	w.ready(t, "odd", environment.Spec{Requirements: []string{"odd", "six"}})
	if got := u.given(t, w); !slices.Equal(got, []string{"odd"}) {
		t.Errorf("installed %v", got)
	}
}

// TestSourceBuildsGiveNothing: where code of packages ran, nobody else gets what it left,
// neither a package nor the environment.
func TestSourceBuildsGiveNothing(t *testing.T) {
	w, u, fake := fakeWorld(t)
	outside := t.TempDir()
	fake.Behave(func(p *enginetest.Process) enginetest.Exit {
		exit := u.run(p)
		if venv := p.Spec.Command[len(p.Spec.Command)-1]; p.Spec.Command[1] == "venv" && strings.Contains(p.Spec.Env["UV_CACHE_DIR"], ".staging") {
			if err := os.Symlink(outside, filepath.Join(venv, "lib")); err != nil { // a build script's
				return enginetest.Exit{Code: 9}
			}
		}
		return exit
	})
	w.ready(t, "wheels", environment.Spec{Requirements: []string{"numpy"}})
	u.given(t, w)
	source := w.built(t, "source", environment.Spec{Requirements: []string{"numpy", "six"}, AllowSource: true})
	if got := u.given(t, w); !slices.Equal(got, []string{"six", "numpy", "six"}) { // alone first, beside what cannot be linked
		t.Errorf("installed %v", got)
	}
	wheels := w.built(t, "again", environment.Spec{Requirements: []string{"numpy", "six"}})
	if got := u.given(t, w); !slices.Equal(got, []string{"six"}) || source.Digest == wheels.Digest {
		t.Errorf("installed %v into %s, and %s was built from source", got, wheels.Digest, source.Digest)
	}
	if left, err := filepath.Glob(filepath.Join(outside, "*", "site-packages", "numpy", "__init__.py")); err != nil || len(left) != 1 {
		t.Errorf("%v, %v", left, err) // uv's own, of the second time
	}
}

// TestOldDownloads: what was fetched stays for a day, and while something is built.
func TestOldDownloads(t *testing.T) {
	w, _, _ := fakeWorld(t)
	long := time.Now().Add(-25 * time.Hour)
	for _, name := range []string{"archive-v0/old", "archive-v0/new", "wheels-v8/pypi"} {
		dir := filepath.Join(w.cfg.Cache, name)
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if filepath.Base(dir) != "new" {
			if err := os.Chtimes(dir, long, long); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	left, err := filepath.Glob(filepath.Join(w.cfg.Cache, "*", "*"))
	if err != nil || len(left) != 2 || filepath.Base(left[0]) != "new" {
		t.Errorf("left are %v, %v", left, err)
	}
}
