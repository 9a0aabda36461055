package environment

import (
	"archive/zip"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/worker/protocol"
)

// Where packages come with the interpreter — the torch of an HPC site, of a
// vendor, of a distribution — an environment may stand on them: a virtual
// environment that sees them, with what they lack installed on top. They are
// taken as they are. The resolver sees each as the only version there is, by an
// empty wheel that carries its name and version with a mark that no index has.

// siteMark is the local version that the stand-ins of an interpreter's packages
// have: "1.24.2+falaj.site" fulfils every requirement that 1.24.2 does.
const siteMark = "+falaj.site"

// FromInterpreter is Package.From of what an interpreter brings.
const FromInterpreter = "interpreter"

const maxSite = 5000 // packages of one interpreter

// versionRE is PEP 440, appendix B.
var versionRE = regexp.MustCompile(`^([0-9]+!)?[0-9]+(\.[0-9]+)*([-_.]?(a|b|c|rc|alpha|beta|pre|preview)[-_.]?[0-9]*)?` +
	`(-[0-9]+|[-_.]?(post|rev|r)[-_.]?[0-9]*)?([-_.]?dev[-_.]?[0-9]*)?(\+[a-z0-9]+([-_.][a-z0-9]+)*)?$`)

var separatorRE = regexp.MustCompile(`[-_.]+`)

// canonical is the name under which an index knows a package.
func canonical(name string) string {
	return strings.ToLower(separatorRE.ReplaceAllString(name, "-"))
}

// siteProbe lists what an interpreter can import beside its own library; the
// first of a name is the one that is imported.
const siteProbe = `import json,site,sys,importlib.metadata as m
found={}
for d in m.distributions():
    n=d.metadata["Name"]
    if n and d.version: found.setdefault(n,d.version)
print(json.dumps({"packages":found,"dirs":[p for p in sys.path if p.endswith("-packages")]}))`

// site is what an interpreter brings, and how that was known.
type site struct {
	Packages map[string]string `json:"packages"` // version by canonical name
	Dirs     []string          `json:"dirs"`

	stamp string // of Dirs when it was asked
}

// stampOf changes when something is installed into or removed from one of the
// directories.
func stampOf(dirs []string) string {
	var b strings.Builder
	for _, dir := range dirs {
		if info, err := os.Stat(dir); err == nil {
			fmt.Fprintf(&b, "%s %d\n", dir, info.ModTime().UnixNano())
		}
	}
	return b.String()
}

// packagesOf asks an interpreter for the packages that come with it.
func (s *Service) packagesOf(ctx context.Context, in Interpreter) (map[string]string, error) {
	s.siteMu.Lock()
	defer s.siteMu.Unlock()
	if known, ok := s.sites[in.Path]; ok && known.stamp == stampOf(known.Dirs) {
		return known.Packages, nil
	}
	found, err := askSite(ctx, in.Path)
	if err != nil {
		return nil, err
	}
	if s.sites == nil {
		s.sites = map[string]site{}
	}
	s.sites[in.Path] = found
	return found.Packages, nil
}

func askSite(ctx context.Context, python string) (found site, err error) {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, python, "-I", "-c", siteProbe)
	cmd.Env = []string{"PATH=/usr/bin:/bin", "LANG=C.UTF-8"}
	var out bytes.Buffer
	cmd.Stdout = &limited{w: &out, left: 4 << 20}
	cmd.WaitDelay = time.Second
	if err := cmd.Run(); err != nil {
		return site{}, fault.New(fault.Unavailable, "the Python %s does not say which packages it has: %w", python, err)
	}
	if err := json.Unmarshal(out.Bytes(), &found); err != nil {
		return site{}, fault.New(fault.Unavailable, "the Python %s does not say which packages it has: %w", python, err)
	}
	if len(found.Packages) > maxSite {
		return site{}, fault.New(fault.TooLarge, "the Python %s has %d packages, at most %d are allowed", python, len(found.Packages), maxSite)
	}
	named := make(map[string]string, len(found.Packages))
	for name, version := range found.Packages {
		named[canonical(name)] = version
	}
	found.Packages, found.stamp = named, stampOf(found.Dirs)
	return found, nil
}

// chooseSite picks the interpreter whose packages an environment stands on: of
// those of its version the one that brings most of the required packages;
// between equals the machine's own, below /usr, then the order given.
func (s *Service) chooseSite(ctx context.Context, among []Interpreter, required []string) (Interpreter, error) {
	best, most := Interpreter{}, -1
	var last error
	for _, in := range among {
		has, err := s.packagesOf(ctx, in)
		if err != nil {
			last = err
			continue
		}
		n := 0
		for _, name := range required {
			if _, ok := has[name]; ok {
				n += 2
			}
		}
		if system(in.Prefix) {
			n++
		}
		if n > most {
			best, most = in, n
			best.Site = has
		}
	}
	if most < 0 {
		return best, last
	}
	return best, nil
}

// required are the canonical names in the requirements.
func (s Spec) required() ([]string, error) {
	lines, err := s.lines()
	if err != nil {
		return nil, err
	}
	names := make([]string, len(lines))
	for i, line := range lines {
		names[i] = canonical(nameRE.FindString(line))
	}
	return names, nil
}

var nameRE = regexp.MustCompile(`^[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?`)

// pinned is the version of a site package as the resolver sees it; false for
// one that is no version to an index.
func pinned(version string) (string, bool) {
	version = strings.ToLower(version)
	if !versionRE.MatchString(version) {
		return "", false
	}
	if strings.Contains(version, "+") {
		return version, true // no index has local versions
	}
	return version + siteMark, true
}

// standIns writes an empty wheel for each package of the interpreter into the
// directory "site" of root, and the constraints that allow nothing else.
func standIns(root *os.Root, packages map[string]string) error {
	if err := root.RemoveAll("site"); err != nil {
		return err
	}
	if err := root.Mkdir("site", 0o700); err != nil {
		return err
	}
	var constraints strings.Builder
	for _, name := range slices.Sorted(maps.Keys(packages)) {
		version, ok := pinned(packages[name])
		if !ok || !nameRE.MatchString(name) {
			continue
		}
		fmt.Fprintf(&constraints, "%s==%s\n", name, version)
		stem := strings.ReplaceAll(name, "-", "_") + "-" + version
		wheel, err := emptyWheel(stem, name, version)
		if err != nil {
			return err
		}
		if err := root.WriteFile(filepath.Join("site", stem+"-py3-none-any.whl"), wheel, 0o600); err != nil {
			return err
		}
	}
	return root.WriteFile("site.txt", []byte(constraints.String()), 0o600)
}

func emptyWheel(stem, name, version string) ([]byte, error) {
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	for _, f := range [][2]string{
		{"METADATA", "Metadata-Version: 2.1\nName: " + name + "\nVersion: " + version + "\n"},
		{"WHEEL", "Wheel-Version: 1.0\nGenerator: falaj\nRoot-Is-Purelib: true\nTag: py3-none-any\n"},
		{"RECORD", ""},
	} {
		w, err := z.Create(stem + ".dist-info/" + f[0])
		if err != nil {
			return nil, err
		}
		if _, err := io.WriteString(w, f[1]); err != nil {
			return nil, err
		}
	}
	err := z.Close() // which writes the end of it
	return b.Bytes(), err
}

// inConflictRE finds the packages of an interpreter in uv's derivation of a conflict.
var inConflictRE = regexp.MustCompile(`([a-z0-9][a-z0-9._-]*)(?:\[[^\]]*\])?(?:\{[^}]*\})?==[^\s,]+` + regexp.QuoteMeta(siteMark))

// replace lets an environment have its own version of the packages of the interpreter
// that were in conflict when the requirements were locked, except those that the
// requirements name. It reports whether there were any.
func replace(e *Environment, log string) bool {
	named, err := e.Spec.required()
	if !e.Spec.SitePackages || err != nil {
		return false
	}
	before := len(e.Interpreter.Replaced)
	for _, m := range inConflictRE.FindAllStringSubmatch(log, -1) {
		name := canonical(m[1])
		if _, has := e.Interpreter.Site[name]; has && !slices.Contains(named, name) && !slices.Contains(e.Interpreter.Replaced, name) {
			e.Interpreter.Replaced = append(e.Interpreter.Replaced, name)
		}
	}
	return len(e.Interpreter.Replaced) > before
}

// replacements says which packages of an interpreter have another version in the
// environment; empty if none.
func replacements(e Environment) string {
	var words []string
	for _, p := range e.SBOM {
		if was, has := e.Interpreter.Site[canonical(p.Name)]; has && p.From == "" {
			words = append(words, fmt.Sprintf("%s %s instead of %s", p.Name, p.Version, was))
		}
	}
	if len(words) == 0 {
		return ""
	}
	return "The requirements conflict with packages of the interpreter, which are replaced in this environment: " + strings.Join(words, ", ") + "."
}

// onTop drops from a lock what the interpreter brings.
func onTop(lock string, packages map[string]string) string {
	return onlyPackages(lock, func(name, locked string) bool {
		version, ok := pinned(packages[canonical(name)])
		return !ok || version != locked
	})
}

// siteList is the packages of an interpreter as lines, sorted.
func siteList(packages map[string]string) []string {
	lines := make([]string, 0, len(packages))
	for _, name := range slices.Sorted(maps.Keys(packages)) {
		lines = append(lines, name+"=="+packages[name])
	}
	return lines
}

// siteSBOM is the packages of an interpreter as entries of a bill of materials.
func siteSBOM(packages map[string]string) []Package {
	all := make([]Package, 0, len(packages))
	for _, name := range slices.Sorted(maps.Keys(packages)) {
		all = append(all, Package{Name: name, Version: packages[name], Hashes: []string{}, From: FromInterpreter})
	}
	return all
}

// writeSite leaves the interpreter's packages in an environment that stands on
// them. A build script may have put something in its place.
func writeSite(venv string, packages map[string]string) error {
	root, err := os.OpenRoot(venv)
	if err != nil {
		return err
	}
	defer root.Close()
	b, err := json.Marshal(map[string]any{"packages": packages})
	if err != nil {
		return err
	}
	if err := root.RemoveAll(protocol.SiteFile); err != nil {
		return err
	}
	return root.WriteFile(protocol.SiteFile, b, 0o400)
}

// siteChanged says in words what an interpreter no longer has as it was.
func siteChanged(was, is map[string]string) string {
	var words []string
	for _, name := range slices.Sorted(maps.Keys(was)) {
		switch now, ok := is[name]; {
		case !ok:
			words = append(words, fmt.Sprintf("%s %s is gone", name, was[name]))
		case now != was[name]:
			words = append(words, fmt.Sprintf("%s was %s and is %s", name, was[name], now))
		}
	}
	if more := len(words) - 5; more > 0 {
		words = append(words[:5], fmt.Sprintf("and %d more", more))
	}
	return strings.Join(words, ", ")
}
