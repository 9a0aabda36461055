package python

import (
	"archive/zip"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/worker/protocol"
)

// Where packages come with the interpreter — the torch of an HPC site, of a
// vendor, of a distribution — an environment may stand on them: a virtual
// environment that sees them, with what they lack installed on top. They are
// taken as they are. The resolver sees each as the only version there is, by an
// empty wheel that carries its name and version with a mark that no index has.

// SiteMark is the local version that the stand-ins of an interpreter's packages
// have: "1.24.2+falaj.site" fulfils every requirement that 1.24.2 does.
const SiteMark = "+falaj.site"

const maxSite = 5000 // packages of one interpreter

// siteProbe lists what an interpreter can import beside its own library; the
// first of a name is the one that is imported.
const siteProbe = `import json,site,sys,importlib.metadata as m
found={}
for d in m.distributions():
    n=d.metadata["Name"]
    if n and d.version: found.setdefault(n,d.version)
print(json.dumps({"packages":found,"dirs":[p for p in sys.path if p.endswith("-packages")]}))`

// Sites remembers what interpreters bring. The zero value is ready. Safe for concurrent use.
type Sites struct {
	mu     sync.Mutex
	byPath map[string]site
}

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

// Packages asks the interpreter at a path for the packages that come with it: version by
// canonical name. Errors: fault.Unavailable; fault.TooLarge.
func (s *Sites) Packages(ctx context.Context, interpreter string) (map[string]string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if known, ok := s.byPath[interpreter]; ok && known.stamp == stampOf(known.Dirs) {
		return known.Packages, nil
	}
	found, err := askSite(ctx, interpreter)
	if err != nil {
		return nil, err
	}
	if s.byPath == nil {
		s.byPath = map[string]site{}
	}
	s.byPath[interpreter] = found
	return found.Packages, nil
}

func askSite(ctx context.Context, interpreter string) (found site, err error) {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	answer, err := Answer(ctx, interpreter, "/usr/bin:/bin", 4<<20, "-I", "-c", siteProbe)
	if err != nil {
		return site{}, fault.New(fault.Unavailable, "the Python %s does not say which packages it has: %w", interpreter, err)
	}
	if err := json.Unmarshal(answer, &found); err != nil {
		return site{}, fault.New(fault.Unavailable, "the Python %s does not say which packages it has: %w", interpreter, err)
	}
	if len(found.Packages) > maxSite {
		return site{}, fault.New(fault.TooLarge, "the Python %s has %d packages, at most %d are allowed", interpreter, len(found.Packages), maxSite)
	}
	named := make(map[string]string, len(found.Packages))
	for name, version := range found.Packages {
		named[Canonical(name)] = version
	}
	found.Packages, found.stamp = named, stampOf(found.Dirs)
	return found, nil
}

// Pinned is the version of a site package as the resolver sees it; false for
// one that is no version to an index.
func Pinned(version string) (string, bool) {
	version = strings.ToLower(version)
	if !ValidVersion(version) {
		return "", false
	}
	if strings.Contains(version, "+") {
		return version, true // no index has local versions
	}
	return version + SiteMark, true
}

// StandIns writes an empty wheel for each package of the interpreter into the
// directory "site" of root, and the constraints that allow nothing else.
func StandIns(root *os.Root, packages map[string]string) error {
	if err := root.RemoveAll("site"); err != nil {
		return err
	}
	if err := root.Mkdir("site", 0o700); err != nil {
		return err
	}
	var constraints strings.Builder
	for _, name := range slices.Sorted(maps.Keys(packages)) {
		version, ok := Pinned(packages[name])
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

// SiteList is the packages of an interpreter as lines, sorted.
func SiteList(packages map[string]string) []string {
	lines := make([]string, 0, len(packages))
	for _, name := range slices.Sorted(maps.Keys(packages)) {
		lines = append(lines, name+"=="+packages[name])
	}
	return lines
}

// WriteSite leaves the interpreter's packages in an environment that stands on
// them. A build script may have put something in its place.
func WriteSite(venv string, packages map[string]string) error {
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

// SiteChanged says in words what an interpreter no longer has as it was.
func SiteChanged(was, is map[string]string) string {
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
