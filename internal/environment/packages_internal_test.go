package environment

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/falaj-ml/falaj/internal/environment/python"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/worker/protocol"
)

// staged is a build whose one package was installed and compiled.
func staged(t *testing.T) (*Service, Environment) {
	t.Helper()
	s := New(Config{Dir: filepath.Join(t.TempDir(), "environments")})
	e := Environment{
		ID: "env_1", Name: "py", Lock: "six==1.0 \\\n    --hash=sha256:" + strings.Repeat("1", 64) + "\n",
		Interpreter: Interpreter{Path: "/usr/bin/python3", Version: "3.11.7", Platform: "cpython-linux-x86_64"},
	}
	tree := filepath.Join(s.fresh(e.ID), "six", packageTree)
	info := filepath.Join(tree, "lib", "python3.11", "site-packages", "six-1.0.dist-info")
	err := errors.Join(
		emptyVenv(tree, e.Interpreter), emptyVenv(s.venv(e.ID), e.Interpreter),
		os.MkdirAll(info, 0o700), os.WriteFile(filepath.Join(info, "RECORD"), []byte("RECORD,,\n"), 0o600),
	)
	if err != nil {
		t.Fatal(err)
	}
	return s, e
}

// TestWorkIsDoneOutsideOfTheLock: no job waits for its environment while a build seals, verifies
// and links files, or while packages are deleted.
func TestWorkIsDoneOutsideOfTheLock(t *testing.T) {
	t.Parallel()
	s, e := staged(t)
	gone := s.goneName()
	s.pruning.Lock() // what takes it for long never ends here
	if err := s.adopt(e); err != nil {
		t.Fatal(err)
	}
	dir, collisions, err := s.assemble(t.Context(), e)
	if err != nil || len(collisions) > 0 {
		t.Fatalf("%v, %v", collisions, err)
	}
	if err := os.MkdirAll(filepath.Join(gone, packageTree), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := s.sweepPackages(t.Context()); err != nil { // the environment has the other one
		t.Fatal(err)
	}
	s.pruning.Unlock()
	if _, err := os.Lstat(gone); !os.IsNotExist(err) {
		t.Errorf("what was being deleted: %v", err)
	}
	if _, err := os.Lstat(filepath.Join(dir, "lib", "python3.11", "site-packages", "six-1.0.dist-info", "RECORD")); err != nil {
		t.Error(err)
	}
}

// TestLinkIsBrokenBeforeAWrite: what the server writes into an environment changes no file of
// the store.
func TestLinkIsBrokenBeforeAWrite(t *testing.T) {
	t.Parallel()
	s, e := staged(t)
	own := filepath.Join(s.fresh(e.ID), "six", packageTree, protocol.SiteFile)
	if err := os.WriteFile(own, []byte("six"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := s.adopt(e); err != nil {
		t.Fatal(err)
	}
	dir, _, err := s.assemble(t.Context(), e)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(python.WriteSite(dir, map[string]string{"torch": "2"}), seal(dir)); err != nil {
		t.Fatal(err)
	}
	packages, err := parseLock(e.Lock)
	if err != nil {
		t.Fatal(err)
	}
	stored := filepath.Join(s.cfg.Dir, packageDir(e.Interpreter, packages[0]), packageTree, protocol.SiteFile)
	if b, err := os.ReadFile(stored); err != nil || string(b) != "six" {
		t.Errorf("the store has %q, %v", b, err)
	}
}

// TestPackageKey: all that decides the content of a package is in its key, and nothing of the
// environment that asks for it.
func TestPackageKey(t *testing.T) {
	t.Parallel()
	in := Interpreter{Path: "/usr/bin/python3", Version: "3.13.1", Platform: "cpython-linux-x86_64"}
	p := Package{Name: "six", Version: "1.0", Hashes: []string{"sha256:1", "sha256:2"}}
	key := packageKey(in, p)
	if got := packageKey(in, Package{Name: "Six", Version: "1.0", Hashes: []string{"sha256:2", "sha256:1"}, Index: "https://index.example"}); got != key {
		t.Error("the order of hashes or the index is in the key")
	}
	seen := map[string]bool{key: true}
	for i, edit := range []func(*Interpreter, *Package){
		func(in *Interpreter, _ *Package) { in.Path = "/opt/python3" },
		func(in *Interpreter, _ *Package) { in.Version = "3.13.2" },
		func(in *Interpreter, _ *Package) { in.Platform = "cpython-linux-aarch64" },
		func(in *Interpreter, _ *Package) { in.ABI = "t" },
		func(_ *Interpreter, p *Package) { p.Name = "seven" },
		func(_ *Interpreter, p *Package) { p.Version = "1.1" },
		func(_ *Interpreter, p *Package) { p.Hashes = []string{"sha256:1"} },
		func(_ *Interpreter, p *Package) { p.Hashes = []string{"sha256:1", "sha256:3"} },
	} {
		other, wheel := in, p
		edit(&other, &wheel)
		if k := packageKey(other, wheel); seen[k] {
			t.Errorf("difference %d is not in the key", i)
		} else {
			seen[k] = true
		}
	}
}

// TestChoose: a list of files that leads out of the environment is refused.
func TestChoose(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"../x", "/etc/passwd", "lib/../../x", "", ".", "lib//x"} {
		_, _, err := choose(nil, []storedPackage{{Name: "six", Files: []storedFile{{Path: name}}}})
		if !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), "package six") {
			t.Errorf("%q: %v", name, err)
		}
	}
	same := []storedPackage{{Name: "a", Files: []storedFile{{Path: "lib/x", SHA256: "1"}}}, {Name: "b", Files: []storedFile{{Path: "lib/x", SHA256: "1"}}}}
	if from, collisions, err := choose([]string{"bin/python"}, same); err != nil || len(collisions) > 0 || from["lib/x"] != 1 {
		t.Errorf("a file of equal content: %v, %v, %v", from, collisions, err)
	}
}

// TestCopyInsteadOfLink: a file that gets no further name is copied, sealed.
func TestCopyInsteadOfLink(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "a"), []byte("content"), 0o400); err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	if !unlinkable(&os.LinkError{Err: syscall.EMLINK}) || unlinkable(&os.LinkError{Err: syscall.ENOSPC}) {
		t.Error("when a file is copied is not as it should be")
	}
	if err := copyFile(root, "a", "b", 0o400); err != nil {
		t.Fatal(err)
	}
	info, err := root.Lstat("b")
	if err != nil || info.Mode() != 0o400 || info.Size() != 7 {
		t.Errorf("%v, %v", info, err)
	}
}
