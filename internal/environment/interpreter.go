package environment

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/falaj-ml/falaj/internal/compute/engine"
	"github.com/falaj-ml/falaj/internal/environment/python"
	"github.com/falaj-ml/falaj/internal/fault"
)

// Interpreter is a Python of this machine.
type Interpreter struct {
	Path     string `json:"path"`     // resolved, no shim and no link
	Version  string `json:"version"`  // "3.11.7"
	Prefix   string `json:"prefix"`   // where its library is
	Platform string `json:"platform"` // "cpython-linux-x86_64"
	// ABI is in what its extension modules differ from the usual build of its version and
	// platform: "t" without a global lock, "d" for debugging, with "musl" that C library.
	ABI string `json:"abi,omitempty"`
	// Site is the packages that come with it, where an environment stands on
	// them: version by name.
	Site map[string]string `json:"site,omitempty"`
	// Replaced is the packages of Site of which the environment has another version.
	Replaced []string `json:"replaced,omitempty"`
}

// kept is the packages of Site that the environment uses.
func (i Interpreter) kept() map[string]string {
	kept := maps.Clone(i.Site)
	for _, name := range i.Replaced {
		delete(kept, name)
	}
	return kept
}

// system reports a path that every sandbox shows anyhow.
func system(path string) bool {
	for _, dir := range []string{"/usr", "/lib", "/lib64", "/bin", "/sbin"} {
		if path == dir || strings.HasPrefix(path, dir+"/") {
			return true
		}
	}
	return false
}

// mounts is what a sandbox must show for the interpreter to run.
func (i Interpreter) mounts() []engine.Mount {
	if system(i.Prefix) {
		return nil
	}
	return []engine.Mount{{Path: i.Prefix, Role: engine.Interpreter, Digest: sum("falaj interpreter 1", i.Version, i.Platform, i.Prefix)}}
}

// matches reports whether the interpreter is the one at a path, or of a version
// such as 3.11 or 3.11.7.
func (i Interpreter) matches(version string) bool {
	if filepath.IsAbs(version) {
		path, err := filepath.EvalSymlinks(version)
		return err == nil && path == i.Path
	}
	return version == "" || i.Version == version || strings.HasPrefix(i.Version, version+".")
}

// newer compares versions by number.
func newer(a, b Interpreter) int {
	as, bs := strings.Split(a.Version, "."), strings.Split(b.Version, ".")
	for k := range min(len(as), len(bs)) {
		x, _ := strconv.Atoi(as[k])
		y, _ := strconv.Atoi(bs[k])
		if x != y {
			return cmp.Compare(y, x)
		}
	}
	return cmp.Compare(a.Path, b.Path)
}

// probe asks an interpreter about itself. Shims and virtual environments answer
// with the interpreter behind them.
const probe = `import sys,os,json,sysconfig,platform
print(json.dumps({"path":os.path.realpath(getattr(sys,"_base_executable",None) or sys.executable),
"version":platform.python_version(),"prefix":os.path.realpath(sys.base_prefix),
"platform":sys.implementation.name+"-"+sysconfig.get_platform(),
"abi":sys.abiflags+("musl" if "musl" in (sysconfig.get_config_var("SOABI") or "") else "")}))`

// Interpreters finds the Pythons of at least 3.10: those given, those in the
// directories (PATH) with python3 itself first, then other versions installed
// beside one that was found. What does not answer within ten seconds is left out.
func Interpreters(ctx context.Context, given, dirs []string) []Interpreter {
	candidates := slices.Clone(given)
	for _, dir := range dirs {
		candidates = append(candidates, filepath.Join(dir, "python3"))
		found, _ := filepath.Glob(filepath.Join(dir, "python3.*")) // the pattern is right
		for _, path := range found {
			if pythonRE.MatchString(strings.TrimPrefix(filepath.Base(path), "python")) {
				candidates = append(candidates, path)
			}
		}
	}
	var all []Interpreter
	asked := map[string]bool{}
	for len(candidates) > 0 {
		path := candidates[0]
		candidates = candidates[1:]
		if asked[path] || len(asked) > 100 {
			continue
		}
		asked[path] = true
		in, err := ask(ctx, path, dirs)
		if err != nil || slices.ContainsFunc(all, func(o Interpreter) bool { return o.Path == in.Path }) {
			continue
		}
		// pyenv and the like keep versions side by side: …/versions/3.11.7/bin.
		if versions := filepath.Dir(in.Prefix); filepath.Base(versions) == "versions" {
			beside, _ := filepath.Glob(filepath.Join(versions, "3.*", "bin", "python3"))
			candidates = append(candidates, beside...)
		}
		if slices.ContainsFunc([]string{"3.10.", "3.11.", "3.12.", "3.13.", "3.14."}, func(v string) bool { return strings.HasPrefix(in.Version, v) }) {
			all = append(all, in)
		}
	}
	return all
}

func ask(ctx context.Context, path string, dirs []string) (in Interpreter, err error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	answer, err := python.Answer(ctx, path, strings.Join(dirs, ":"), 64<<10, "-I", "-S", "-c", probe)
	if err != nil {
		return in, err
	}
	if err := json.Unmarshal(answer, &in); err != nil {
		return in, err
	}
	if !filepath.IsAbs(in.Path) || !filepath.IsAbs(in.Prefix) || in.Version == "" {
		return in, errors.New("no answer")
	}
	return in, nil
}

// FindUV finds the uv binary: the one given, or the first in the directories or
// beside one of the interpreters that is a program and not a shim, since a shim
// does not run in a sandbox. Error: fault.NotFound.
func FindUV(given string, dirs []string, interpreters []Interpreter) (string, error) {
	if given != "" {
		if !program(given) {
			return "", fault.New(fault.Invalid, "%s is not the uv program", given).
				WithHint("Set environments.uv to the binary itself, not to a script that starts it.")
		}
		return filepath.EvalSymlinks(given)
	}
	for _, dir := range dirs {
		if path := filepath.Join(dir, "uv"); program(path) {
			return filepath.EvalSymlinks(path)
		}
	}
	for _, in := range interpreters {
		if path := filepath.Join(in.Prefix, "bin", "uv"); program(path) {
			return filepath.EvalSymlinks(path)
		}
	}
	return "", fault.New(fault.NotFound, "uv is not installed").
		WithHint("Run `make deps`, or install uv (https://docs.astral.sh/uv) and set environments.uv.")
}

// program reports an executable ELF file.
func program(path string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() || info.Mode()&0o111 == 0 {
		return false
	}
	magic := make([]byte, 4)
	_, err = io.ReadFull(f, magic)
	return err == nil && string(magic) == "\x7fELF"
}
