package environment

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/falaj-ml/falaj/internal/environment/python"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/fsync"
	"github.com/falaj-ml/falaj/internal/id"
	"github.com/falaj-ml/falaj/internal/worker/archive"
)

// The package store. Environments that lock the same wheels for the same Python share the
// files of these packages by hard links: .packages/<key>/tree has the files of one package as
// an environment has them, and .packages/<key>/files.json lists them with their digests.
//
// A package is installed alone, into a directory that no other package is in, so everything
// that is found there is its own. This process, never a build, seals the files (read-only,
// listed), gives the directory its key and links from it, after the sandbox has ended.
//
// A build of an environment that allows source runs code of packages, so it neither takes
// from the store nor gives to it.

const (
	packageTree  = "tree"
	packageList  = "files.json"
	maxPackage   = 64 << 20 // bytes of the list of a package's files
	maxCollision = 20       // collisions that a build log names
	// discarded begins the name of a stored package that is being deleted.
	discarded = ".gone-"
	// uvLock is the file by which uv locks a virtual environment.
	uvLock = ".lock"
	// linkers is how many files are verified and linked at a time.
	linkers = 4
)

// installer runs uv once for each package that is missing, each into its own virtual
// environment. Its arguments are the directory of these, that of their requirements, and the
// command. The output of a failed command comes last, because it is the reason.
const installer = `import os, subprocess, sys
from concurrent.futures import ThreadPoolExecutor
into, locks, command = sys.argv[1], sys.argv[2], sys.argv[3:]
def install(name):
    return name, subprocess.run(command + ["--requirements", os.path.join(locks, name), "--python", os.path.join(into, name, "` + packageTree + `", "bin", "python")],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
pool = ThreadPoolExecutor(4)
for name, done in pool.map(install, sorted(os.listdir(into))):
    sys.stdout.buffer.write(done.stdout)
    sys.stdout.flush()
    if done.returncode:
        pool.shutdown(wait=True, cancel_futures=True)
        sys.exit(done.returncode if done.returncode > 0 else 1)`

// storedFile is a file of a package.
type storedFile struct {
	Path   string      `json:"path"` // below the environment
	Size   int64       `json:"size"`
	Mode   fs.FileMode `json:"mode"` // permissions
	SHA256 string      `json:"sha256"`
}

// storedPackage is a package in the store, or on its way into it.
type storedPackage struct {
	Name  string       `json:"name"`
	Files []storedFile `json:"files"`
	dir   string       // below the environments
}

func (s *Service) packagesDir() string { return filepath.Join(s.cfg.Dir, ".packages") }

// packageKey names the content of an installed package: the digests of the wheels that its
// lock allows, and all that decides which of them uv chooses and what it and the compiler
// make of it.
func packageKey(in Interpreter, p Package) string {
	parts := []string{"falaj package 1: compiled", in.Path, in.Version, in.Platform, in.ABI, python.Canonical(p.Name), p.Version}
	key := sum(append(parts, slices.Sorted(slices.Values(p.Hashes))...)...)
	return strings.TrimPrefix(key, "sha256:")
}

// packageDir is where a package is in the store, below the environments.
func packageDir(in Interpreter, p Package) string {
	return path.Join(".packages", packageKey(in, p))
}

// goneName is a new name for a package that is being deleted.
func (s *Service) goneName() string { return filepath.Join(s.packagesDir(), discarded+id.New("pkg")) }

// fresh is where a build installs packages, each in a directory of its name.
func (s *Service) fresh(e ID) string { return filepath.Join(s.staging(e), "packages") }

// absent gives the packages of an environment that the store lacks. Those that it has stay
// there for at least leastAge from now.
func (s *Service) absent(e Environment) ([]Package, error) {
	packages, err := parseLock(e.Lock)
	if err != nil {
		return nil, err
	}
	s.pruning.RLock()
	defer s.pruning.RUnlock()
	now := s.now()
	var missing []Package
	for _, p := range packages {
		err := os.Chtimes(filepath.Join(s.cfg.Dir, packageDir(e.Interpreter, p)), now, now)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			missing = append(missing, p)
		case err != nil:
			return nil, fault.Wrap(err, "noting the use of package %s", p.Name)
		}
	}
	return missing, nil
}

// prepareInstall makes an empty virtual environment for each missing package, and gives the
// command that fills them. options are those of uv.
func (s *Service) prepareInstall(e Environment, work *os.Root, uv string, options []string) ([]string, error) {
	missing, err := s.absent(e)
	if err != nil {
		return nil, err
	}
	// An earlier try may have left anything.
	if err := errors.Join(archive.Remove(s.fresh(e.ID)), work.RemoveAll("locks"), work.Mkdir("locks", 0o700), os.Mkdir(s.fresh(e.ID), 0o700)); err != nil {
		return nil, fault.Wrap(err, "making the directories of packages")
	}
	for _, p := range missing {
		name := python.Canonical(p.Name)
		lock := onlyPackages(e.Lock, func(n, _ string) bool { return n == p.Name })
		if err := work.WriteFile(path.Join("locks", name), []byte(lock), 0o600); err != nil {
			return nil, err
		}
		if err := emptyVenv(filepath.Join(s.fresh(e.ID), name, packageTree), e.Interpreter); err != nil {
			return nil, fault.Wrap(err, "making the directory of package %s", p.Name)
		}
	}
	command := []string{e.Interpreter.Path, "-I", "-S", "-c", installer, s.fresh(e.ID), filepath.Join(work.Name(), "locks")}
	return slices.Concat(command, []string{uv, "pip", "install", "--no-deps", "--require-hashes"}, options), nil
}

// venvConfig is the pyvenv.cfg of an empty virtual environment: uv writes the scripts of one
// that is relocatable without its path.
func venvConfig(in Interpreter) string {
	return "home = " + filepath.Dir(in.Path) + "\ninclude-system-site-packages = false\nversion_info = " + in.Version + "\nrelocatable = true\n"
}

// emptyVenv makes the least that is a virtual environment to uv.
func emptyVenv(dir string, in Interpreter) error {
	return errors.Join(
		os.MkdirAll(filepath.Join(dir, "lib"), 0o700),
		os.MkdirAll(filepath.Join(dir, "bin"), 0o700),
		os.Symlink("lib", filepath.Join(dir, "lib64")),
		os.Symlink(in.Path, filepath.Join(dir, "bin", "python")),
		os.WriteFile(filepath.Join(dir, "pyvenv.cfg"), []byte(venvConfig(in)), 0o600),
	)
}

// stripVenv removes what emptyVenv made. It refuses a package that has replaced some of it,
// and passes over what an interrupted call has removed.
func stripVenv(tree *os.Root, in Interpreter) error {
	replaced := func(name string) error {
		return fault.New(fault.Invalid, "it replaces %s, a file of the environment itself", name).
			WithHint("Leave the package out: its wheel writes outside of its own files.")
	}
	for name, target := range map[string]string{"lib64": "lib", "bin/python": in.Path} {
		got, err := tree.Readlink(name)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			continue
		case errors.Is(err, unix.EINVAL) || err == nil && got != target:
			return replaced(name)
		case err != nil:
			return err
		}
		if err := tree.Remove(name); err != nil {
			return err
		}
	}
	b, err := tree.ReadFile("pyvenv.cfg")
	switch {
	case err == nil && string(b) != venvConfig(in):
		return replaced("pyvenv.cfg")
	case err == nil:
		err = tree.Remove("pyvenv.cfg")
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := tree.Remove(uvLock); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// purgeBytecode removes all bytecode that has its source beside it, and every __pycache__:
// what is compiled afterwards is of the sources that are there, and a wheel brings none unseen.
func purgeBytecode(dir string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	return fs.WalkDir(root.FS(), ".", func(name string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if e.Name() == "__pycache__" {
			if err := root.RemoveAll(name); err != nil {
				return err
			}
			if e.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		source, compiled := strings.CutSuffix(name, ".pyc")
		if !compiled || e.IsDir() {
			return nil
		}
		if _, err := root.Lstat(source + ".py"); errors.Is(err, fs.ErrNotExist) {
			return nil // a package of bytecode alone
		} else if err != nil {
			return err
		}
		return root.Remove(name)
	})
}

// purge is purgeBytecode of all that a build has installed.
func (s *Service) purge(e Environment) error {
	if e.Spec.AllowSource {
		return purgeBytecode(s.venv(e.ID))
	}
	return purgeBytecode(s.fresh(e.ID))
}

// adopt moves what a build has installed into the store, unless another build was first. It
// may be called again after a crash. Error: fault.Invalid for a package that cannot be shared.
func (s *Service) adopt(e Environment) error {
	packages, err := parseLock(e.Lock)
	if err != nil {
		return err
	}
	kept := map[string]string{} // where it is to be, by where it is
	for _, p := range packages {
		from := filepath.Join(s.fresh(e.ID), python.Canonical(p.Name))
		if _, err := os.Stat(from); errors.Is(err, fs.ErrNotExist) {
			continue
		} else if err != nil {
			return err
		}
		if err := sealPackage(from, p, e.Interpreter); err != nil {
			return fault.Wrap(err, "package %s", p.Name)
		}
		kept[from] = filepath.Join(s.cfg.Dir, packageDir(e.Interpreter, p))
	}
	if len(kept) == 0 {
		return nil
	}
	if err := os.MkdirAll(s.packagesDir(), 0o700); err != nil {
		return err
	}
	if err := syncFiles(s.packagesDir()); err != nil { // whole before it has its name
		return err
	}
	now := s.now()
	for from, to := range kept {
		if err := os.Chtimes(from, now, now); err != nil {
			return err
		}
		if err := os.Rename(from, to); err != nil && !errors.Is(err, fs.ErrExist) && !errors.Is(err, unix.ENOTEMPTY) {
			return err
		}
	}
	return fsync.Dir(s.packagesDir())
}

// sealPackage makes the files of a package read-only and lists them.
func sealPackage(dir string, p Package, in Interpreter) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	tree, err := root.OpenRoot(packageTree)
	if err != nil {
		return err
	}
	defer tree.Close()
	if err := stripVenv(tree, in); err != nil {
		return err
	}
	list := storedPackage{Name: python.Canonical(p.Name)}
	installed := false
	err = fs.WalkDir(tree.FS(), ".", func(name string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		if !info.Mode().IsRegular() || links(info) != 1 {
			return fault.New(fault.Invalid, "%.200q is not a plain file of its own", name).
				WithHint("Leave the package out, or choose another version: only plain files are installed.")
		}
		if strings.HasSuffix(name, ".dist-info/RECORD") {
			installed = true
		}
		file := storedFile{Path: name, Size: info.Size(), Mode: sealed(info.Mode())}
		if err := tree.Chmod(name, file.Mode); err != nil {
			return err
		}
		if file.SHA256, err = digestOf(tree, name); err != nil {
			return err
		}
		list.Files = append(list.Files, file)
		return nil
	})
	if err != nil {
		return err
	}
	if !installed {
		return fault.New(fault.Invalid, "uv has installed no files of it").WithHint("See `falaj env logs NAME`.")
	}
	b, err := json.Marshal(list)
	if err != nil {
		return err
	}
	if len(b) > maxPackage {
		return fault.New(fault.TooLarge, "the list of its %d files has more than %d bytes", len(list.Files), maxPackage)
	}
	if err := root.RemoveAll(packageList); err != nil { // of an interrupted call
		return err
	}
	if err := root.WriteFile(packageList, b, 0o400); err != nil {
		return err
	}
	return sealDirectories(tree)
}

// sealed is the mode of a file that nobody may write any more.
func sealed(mode fs.FileMode) fs.FileMode { return mode.Perm()&^0o222 | 0o400 }

// sealDirectories makes the directories of a tree read-only.
func sealDirectories(tree *os.Root) error {
	return fs.WalkDir(tree.FS(), ".", func(name string, e fs.DirEntry, err error) error {
		if err != nil || !e.IsDir() {
			return err
		}
		return tree.Chmod(name, 0o500)
	})
}

func digestOf(root *os.Root, name string) (string, error) {
	f, err := root.Open(name)
	if err != nil {
		return "", err
	}
	h := sha256.New()
	_, err = io.Copy(h, f)
	return hex.EncodeToString(h.Sum(nil)), errors.Join(err, f.Close())
}

// againError says that an environment cannot be put together from what is here, and that its
// build goes back to a step to get it.
type againError struct {
	step Step
	why  string
}

func (e againError) Error() string { return e.why }

func isAgain(err error) bool {
	_, ok := errors.AsType[againError](err)
	return ok
}

// load reads the lists of an environment's packages, by name. Error:
// againError where one is not in the store.
func (s *Service) load(ctx context.Context, root *os.Root, e Environment) ([]storedPackage, error) {
	locked, err := parseLock(e.Lock)
	if err != nil {
		return nil, err
	}
	packages := make([]storedPackage, 0, len(locked))
	var again error // after all of them were read
	slices.SortFunc(locked, func(a, b Package) int { return strings.Compare(python.Canonical(a.Name), python.Canonical(b.Name)) })
	for _, p := range locked {
		dir := packageDir(e.Interpreter, p)
		f, err := root.Open(path.Join(dir, packageList))
		if errors.Is(err, fs.ErrNotExist) {
			if again = s.discard(ctx, dir, "package "+p.Name+" is not in the package store any more"); !isAgain(again) {
				return nil, again
			}
			continue
		}
		if err != nil {
			return nil, err
		}
		b, err := io.ReadAll(io.LimitReader(f, maxPackage+1))
		if err = errors.Join(err, f.Close()); err != nil {
			return nil, err
		}
		list := storedPackage{dir: dir}
		if err := json.Unmarshal(b, &list); err != nil || list.Name != python.Canonical(p.Name) {
			if again = s.discard(ctx, dir, "the list of the files of package "+p.Name+" is damaged"); !isAgain(again) {
				return nil, again
			}
			continue
		}
		packages = append(packages, list)
	}
	return packages, again
}

// discard takes a package out of the store, so that it is installed again. What has its files
// keeps them. The error is againError with why, or why it cannot be taken out.
func (s *Service) discard(ctx context.Context, dir, why string) error {
	s.log.ErrorContext(ctx, "a package of the package store is installed again", slog.String("package", path.Base(dir)), slog.String("reason", why))
	s.pruning.Lock()
	err := os.Rename(filepath.Join(s.cfg.Dir, dir), s.goneName())
	s.pruning.Unlock()
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fault.Wrap(err, "discarding a package")
	}
	return againError{stepInstall, why}
}

// choose decides which package each path of an environment is from: where several have
// different files for it, the last by name. own are the
// files of the environment itself. Error: fault.Invalid where a package has such a file, or
// one is a directory to another.
func choose(own []string, packages []storedPackage) (from map[string]int, collisions []string, err error) {
	const itself = -1
	from = map[string]int{}
	dirs := map[string]int{} // with the first package that needs it
	parents := func(name string, p int) {
		for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
			if _, known := dirs[dir]; known {
				return
			}
			dirs[dir] = p
		}
	}
	name := func(p int) string {
		if p == itself {
			return "the environment itself"
		}
		return "package " + packages[p].Name
	}
	for _, file := range own {
		from[file] = itself
		parents(file, itself)
	}
	digests := map[string]string{}
	for p, list := range packages {
		for _, file := range list.Files {
			if !filepath.IsLocal(file.Path) || path.Clean(file.Path) != file.Path || file.Path == "." {
				return nil, nil, fault.New(fault.Invalid, "package %s lists the file %.200q, which is outside of the environment", list.Name, file.Path)
			}
			before, taken := from[file.Path]
			if taken && before == itself {
				return nil, nil, fault.New(fault.Invalid, "package %s has the file %.200q, which is one of the environment itself", list.Name, file.Path).
					WithHint("Leave the package out: its wheel writes outside of its own files.")
			}
			if taken && digests[file.Path] != file.SHA256 {
				collisions = append(collisions, fmt.Sprintf("%s is from package %s, and package %s has another", file.Path, list.Name, packages[before].Name))
			}
			from[file.Path], digests[file.Path] = p, file.SHA256
			parents(file.Path, p)
		}
	}
	for file, p := range from {
		if other, is := dirs[file]; is {
			return nil, nil, fault.New(fault.Invalid, "%.200q is a file of %s and a directory of %s", file, name(p), name(other)).
				WithHint("These two cannot be in one environment: leave one out, or choose another version.")
		}
	}
	return from, collisions, nil
}

// assemble puts an environment together in a directory of its own, from the empty one that uv
// made and the packages of the store, and gives that directory and what it notes for the log.
// What an interrupted call left is removed first. Errors: againError where something is missing
// or damaged; fault.Invalid for packages that exclude each other.
func (s *Service) assemble(ctx context.Context, e Environment) (dir string, collisions []string, err error) {
	root, err := os.OpenRoot(s.cfg.Dir)
	if err != nil {
		return "", nil, err
	}
	defer root.Close()
	staging := path.Join(".staging", string(e.ID))
	venv, at := path.Join(staging, "venv"), path.Join(staging, "environment")
	if _, err := root.Lstat(path.Join(venv, "bin", "python")); errors.Is(err, fs.ErrNotExist) {
		return "", nil, againError{stepCreate, "the built environment has no Python"}
	} else if err != nil {
		return "", nil, err
	}
	packages, err := s.load(ctx, root, e)
	if err != nil {
		return "", nil, err
	}
	dir = filepath.Join(s.cfg.Dir, filepath.FromSlash(at))
	if err := archive.Remove(dir); err != nil {
		return "", nil, err
	}
	own, err := copyTree(root, venv, at)
	if err != nil {
		return "", nil, fault.Wrap(err, "copying the empty environment")
	}
	from, collisions, err := choose(own, packages)
	if err != nil {
		return "", nil, err
	}
	group, linking := errgroup.WithContext(ctx)
	group.SetLimit(linkers)
	made := map[string]bool{}
	var mu sync.Mutex
	damaged := map[string]string{} // why a package is discarded, by its directory
	for p, list := range packages {
		for _, file := range list.Files {
			if from[file.Path] != p {
				continue
			}
			to := path.Join(at, file.Path)
			if parent := path.Dir(to); !made[parent] {
				if err := root.MkdirAll(parent, 0o700); err != nil {
					return "", nil, errors.Join(err, group.Wait())
				}
				made[parent] = true
			}
			group.Go(func() error {
				if linking.Err() != nil {
					return linking.Err()
				}
				err := link(root, path.Join(list.dir, packageTree, file.Path), to, file)
				if errors.Is(err, errDamaged) {
					mu.Lock()
					defer mu.Unlock()
					damaged[list.dir] = fmt.Sprintf("%s of package %s is not as it was installed", file.Path, list.Name)
					return nil
				}
				return fault.Wrap(err, "package %s: %.200s", list.Name, file.Path)
			})
		}
	}
	err = group.Wait()
	for at, why := range damaged {
		if again := s.discard(ctx, at, why); err == nil || !isAgain(again) {
			err = again
		}
	}
	return dir, collisions, err
}

// errDamaged is that a file is not as it was when it was sealed.
var errDamaged = errors.New("it is not as it was installed")

// link gives a file of the store its name in an environment, when its content is still what
// was sealed. Where the file system gives no further name, it is copied.
func link(root *os.Root, from, to string, want storedFile) error {
	info, err := root.Lstat(from)
	if errors.Is(err, fs.ErrNotExist) {
		return errDamaged
	}
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() || info.Mode() != want.Mode || info.Size() != want.Size {
		return errDamaged
	}
	digest, err := digestOf(root, from)
	if err != nil {
		return err
	}
	if digest != want.SHA256 {
		return errDamaged
	}
	err = root.Link(from, to)
	if unlinkable(err) {
		return copyFile(root, from, to, want.Mode)
	}
	return err
}

// unlinkable reports that a file gets no further name, because it has the most that the file
// system allows, or that has none.
func unlinkable(err error) bool {
	return slices.ContainsFunc([]error{unix.EMLINK, unix.EPERM, unix.ENOTSUP, unix.EXDEV}, func(e error) bool { return errors.Is(err, e) })
}

// copyTree copies directories, plain files and links, and gives the paths of the latter two
// below the copy.
func copyTree(root *os.Root, from, to string) (files []string, err error) {
	err = fs.WalkDir(root.FS(), from, func(name string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		below := strings.TrimPrefix(strings.TrimPrefix(name, from), "/")
		dst := path.Join(to, below)
		switch {
		case e.IsDir():
			return root.Mkdir(dst, 0o700)
		case below == uvLock:
			return nil
		case e.Type() == fs.ModeSymlink:
			target, err := root.Readlink(name)
			if err != nil {
				return err
			}
			files = append(files, below)
			return root.Symlink(target, dst)
		case !e.Type().IsRegular():
			return fault.New(fault.Invalid, "%.200q is not a plain file", below)
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		files = append(files, below)
		return copyFile(root, name, dst, info.Mode().Perm())
	})
	return files, err
}

func copyFile(root *os.Root, from, to string, mode fs.FileMode) error {
	src, err := root.Open(from)
	if err != nil {
		return err
	}
	defer src.Close()
	dst, err := root.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(dst, src)
	return errors.Join(err, dst.Chmod(mode), dst.Close())
}

// sweepPackages deletes packages that no environment has and no build has asked for within
// leastAge, and what an interrupted sweep left. Only the decision is made under the lock.
func (s *Service) sweepPackages(ctx context.Context) error {
	entries, err := os.ReadDir(s.packagesDir())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fault.Wrap(err, "listing packages")
	}
	for _, e := range entries {
		if err := ctx.Err(); err != nil {
			return err
		}
		gone := filepath.Join(s.packagesDir(), e.Name())
		if !strings.HasPrefix(e.Name(), discarded) {
			used, err := shared(gone)
			if errors.Is(err, fs.ErrNotExist) || used {
				continue // discarded meanwhile, or an environment has it
			}
			if err != nil {
				return fault.Wrap(err, "inspecting a package")
			}
			if gone, err = s.takePackage(e.Name()); err != nil {
				return err
			}
		}
		if gone == "" {
			continue
		}
		if err := archive.Remove(gone); err != nil {
			return fault.Wrap(err, "deleting a package")
		}
	}
	return nil
}

// takePackage renames a package that nothing uses to what is deleted; nothing if a build has
// asked for it.
func (s *Service) takePackage(key string) (gone string, err error) {
	s.pruning.Lock()
	defer s.pruning.Unlock()
	at := filepath.Join(s.packagesDir(), key)
	info, err := os.Stat(at)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	if s.now().Sub(info.ModTime()) < leastAge {
		return "", nil
	}
	gone = s.goneName()
	return gone, fault.Wrap(os.Rename(at, gone), "discarding a package")
}

// shared reports whether a file below dir has another name somewhere.
func shared(dir string) (bool, error) {
	found := false
	err := filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		info, err := e.Info()
		if err == nil && links(info) > 1 {
			found, err = true, fs.SkipAll
		}
		return err
	})
	return found, err
}

// links is how many names a file has.
func links(info fs.FileInfo) uint64 {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return uint64(st.Nlink) //nolint:unconvert // 32 bits on arm64
	}
	return 1
}

// syncFiles syncs the file system of a directory.
func syncFiles(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(unix.Syncfs(int(f.Fd())), f.Close())
}

// noteCollisions appends to the build log which files several packages have.
func (s *Service) noteCollisions(e Environment, collisions []string) error {
	if len(collisions) == 0 {
		return nil
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "--- link\nSeveral packages have different files at one path; the package that is last by name counts.\n")
	for _, c := range collisions[:min(len(collisions), maxCollision)] {
		b.WriteString(c + "\n")
	}
	if more := len(collisions) - maxCollision; more > 0 {
		fmt.Fprintf(&b, "and %d more\n", more)
	}
	return s.appendLog(e.ID, b.Bytes())
}
