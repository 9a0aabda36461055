package agent

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/worker/protocol"
)

// pythonFile, in an environment that was moved, names its interpreter here.
const pythonFile = ".falaj-python"

// venv brings a virtual environment here and moves it: its interpreter is the
// node's own of the same version, or the server's where the node has none; its
// scripts and links name its place here.
func (a *agent) venv(ctx context.Context, n int) error {
	m := &a.places[n]
	key := m.Digest
	if key == "" || m.Writable {
		key = a.order.ID // of this workload alone
	}
	here, err := a.cached(ctx, "venv "+key+" of "+m.Path, func(tmp, final string) error {
		if err := a.download(ctx, n, tmp); err != nil {
			return err
		}
		c, err := readConfig(filepath.Join(tmp, "pyvenv.cfg"))
		if err != nil {
			return err
		}
		python, err := a.python(ctx, c)
		if err != nil {
			return err
		}
		return relocate(tmp, m.Path, final, python)
	})
	if err != nil {
		return err
	}
	m.here = here
	python, err := os.ReadFile(filepath.Join(here, pythonFile))
	if err != nil {
		return err
	}
	cache, err := a.private(protocol.EnvCache, cacheName)
	if err != nil {
		return err
	}
	if strings.HasPrefix(string(python), cache+"/") { // the server's: held, too, and brought again where it is gone
		if _, err := a.fetchedPython(ctx, ""); err != nil {
			return err
		}
	}
	_, err = os.Stat(string(python)) //nolint:gosec // What we wrote.
	return fault.Wrap(err, "finding the interpreter of an environment that was moved here earlier")
}

// python finds an interpreter of a version.
func (a *agent) python(ctx context.Context, c config) (string, error) {
	name := "python" + c.version
	path := c.home + ":" + a.env["PATH"] + ":/usr/local/bin:/usr/bin:/bin"
	for dir := range strings.SplitSeq(path, ":") {
		if !filepath.IsAbs(dir) {
			continue
		}
		if found, err := probe(ctx, filepath.Join(dir, name), c.version); err == nil {
			return found, nil
		}
	}
	found, err := a.fetchedPython(ctx, c.version)
	if fault.Is(err, fault.NotFound) {
		return "", fault.New(fault.NotFound, "this node has no Python %s", c.version).
			WithHint("Install it on the nodes (PATH, /usr/local/bin and /usr/bin are searched), or give the pool an image that has it.")
	}
	return found, err
}

// fetchedPython is the server's interpreter of a version, brought here; an empty
// version is any.
func (a *agent) fetchedPython(ctx context.Context, version string) (string, error) {
	for n, m := range a.places {
		if m.Role != protocol.RoleInterpreter {
			continue
		}
		if err := a.interpreter(ctx, n); err != nil {
			return "", err
		}
		if version == "" {
			return "", nil
		}
		for _, dir := range []string{"bin", "."} {
			if found, err := probe(ctx, filepath.Join(a.places[n].here, dir, "python"+version), version); err == nil {
				return found, nil
			}
		}
	}
	if version == "" {
		return "", nil
	}
	return "", fault.New(fault.NotFound, "no interpreter of Python %s came with the environment", version)
}

// interpreter brings the prefix of a Python here.
func (a *agent) interpreter(ctx context.Context, n int) (err error) {
	m := &a.places[n]
	if m.here == "" {
		m.here, err = a.cached(ctx, "interpreter "+cmp.Or(m.Digest, m.Path), func(tmp, _ string) error { return a.download(ctx, n, tmp) })
	}
	return fault.Wrap(err, "fetching %s", m.Path)
}

// probeTime bounds a program that only says what it is.
const probeTime = 30 * time.Second

// probe asks an interpreter for its version and its own path.
func probe(ctx context.Context, path, version string) (string, error) {
	if _, err := os.Stat(path); err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, probeTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, "-I", "-c", `import sys; print("%d.%d" % sys.version_info[:2]); print(sys.executable)`)
	cmd.Env = []string{"LANG=C.UTF-8"}
	out, err := cmd.Output()
	if err != nil {
		return "", err
	}
	said, executable, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	if said != version || !filepath.IsAbs(executable) {
		return "", fmt.Errorf("%s is Python %s", path, said)
	}
	return executable, nil
}

// relocate makes an environment that was made at one place, and lies at another
// for now, one that works at its final place with another interpreter.
func relocate(dir, from, final, python string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	b, err := root.ReadFile("pyvenv.cfg")
	if err != nil {
		return err
	}
	var cfg strings.Builder
	for line := range strings.Lines(string(b)) {
		key, _, _ := strings.Cut(line, "=")
		switch strings.TrimSpace(key) {
		case "home":
			line = "home = " + filepath.Dir(python) + "\n"
		case "executable", "command":
			continue
		}
		cfg.WriteString(line)
	}
	if err := root.WriteFile("pyvenv.cfg", []byte(cfg.String()), 0o644); err != nil {
		return err
	}
	if err := root.WriteFile(pythonFile, []byte(python), 0o644); err != nil {
		return err
	}
	entries, err := fs.ReadDir(root.FS(), "bin")
	if err != nil {
		return fault.New(fault.Invalid, "it is not a virtual environment: %w", err)
	}
	for _, e := range entries {
		name := "bin/" + e.Name()
		if e.Type() == fs.ModeSymlink {
			to, err := root.Readlink(name)
			if err == nil && filepath.IsAbs(to) && strings.HasPrefix(e.Name(), "python") {
				if err = root.Remove(name); err == nil {
					err = root.Symlink(python, name)
				}
			}
			if err != nil {
				return err
			}
			continue
		}
		if err := rewrite(root, name, from, final); err != nil {
			return err
		}
	}
	paths, err := fs.Glob(root.FS(), "lib/python*/site-packages/*.pth")
	if err != nil {
		return err
	}
	for _, p := range paths {
		if err := rewrite(root, p, from, final); err != nil {
			return err
		}
	}
	return nil
}

// rewrite replaces a path in a script.
func rewrite(root *os.Root, name, from, to string) error {
	const maxScript = 1 << 20
	info, err := root.Lstat(name)
	if err != nil || !info.Mode().IsRegular() || info.Size() > maxScript {
		return err
	}
	b, err := root.ReadFile(name)
	if err != nil || !bytes.Contains(b, []byte(from)) || bytes.HasPrefix(b, []byte("\x7fELF")) {
		return err
	}
	return root.WriteFile(name, bytes.ReplaceAll(b, []byte(from), []byte(to)), info.Mode().Perm())
}

// checkSites compares the packages that environments rely on with those that the
// node's interpreter has.
func (a *agent) checkSites(ctx context.Context) error {
	for _, m := range a.places {
		if m.Role != protocol.RoleVenv {
			continue
		}
		b, err := os.ReadFile(filepath.Join(m.here, protocol.SiteFile))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		var want struct {
			Packages map[string]string `json:"packages"`
		}
		if err := json.Unmarshal(b, &want); err != nil {
			return fault.New(fault.Invalid, "%s is not readable: %w", protocol.SiteFile, err)
		}
		have, err := packages(ctx, filepath.Join(m.here, "bin", "python"))
		if err != nil {
			return err
		}
		if diff := differences(want.Packages, have); len(diff) > 0 {
			return fault.New(fault.Conflict, "the packages of this node's interpreter differ from those that the environment was checked with: %s", strings.Join(diff, "; ")).
				WithHint("Install the same packages on the nodes as on the server, or build the environment without site_packages.")
		}
	}
	return nil
}

// packages asks an interpreter what it has.
func packages(ctx context.Context, python string) (map[string]string, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*probeTime)
	defer cancel()
	const script = `import importlib.metadata as m, json, re
print(json.dumps({re.sub(r"[-_.]+", "-", d.metadata["Name"]).lower(): d.version for d in m.distributions() if d.metadata["Name"]}))`
	cmd := exec.CommandContext(ctx, python, "-I", "-c", script)
	cmd.Env = []string{"LANG=C.UTF-8"}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fault.New(fault.Invalid, "asking %s for its packages: %w: %.500s", python, err, strings.TrimSpace(stderr.String()))
	}
	var have map[string]string
	return have, json.Unmarshal(out, &have)
}

var separatorRE = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`[-_.]+`) })

// differences are the packages that are not as wanted, in words.
func differences(want, have map[string]string) []string {
	const most = 10
	var out []string
	for _, name := range slices.Sorted(maps.Keys(want)) {
		got, ok := have[strings.ToLower(separatorRE().ReplaceAllString(name, "-"))]
		switch {
		case got == want[name]:
			continue
		case !ok:
			out = append(out, fmt.Sprintf("%s %s is missing", name, want[name]))
		default:
			out = append(out, fmt.Sprintf("%s is %s and not %s", name, got, want[name]))
		}
		if len(out) == most {
			return append(out, "and more")
		}
	}
	return out
}

// config is what pyvenv.cfg says.
type config struct {
	version string // "3.11"
	home    string
	site    bool // the interpreter's packages are visible
}

var minorRE = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^(\d+\.\d+)`) })

func readConfig(path string) (config, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return config{}, fault.New(fault.Invalid, "it is not a virtual environment: %w", err)
	}
	var c config
	for line := range strings.Lines(string(b)) {
		key, value, _ := strings.Cut(line, "=")
		value = strings.TrimSpace(value)
		switch strings.TrimSpace(key) {
		case "home":
			c.home = value
		case "version", "version_info":
			c.version = minorRE().FindString(value)
		case "include-system-site-packages":
			c.site = value == "true"
		}
	}
	if c.version == "" {
		return c, fault.New(fault.Invalid, "pyvenv.cfg does not contain the version of Python")
	}
	return c, nil
}
