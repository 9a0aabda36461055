package environment

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/falaj-ml/falaj/internal/environment/python"
	"github.com/falaj-ml/falaj/internal/fault"
)

var (
	pythonRE = regexp.MustCompile(`^3\.[0-9]{1,2}(\.[0-9]{1,3})?$`)
	// A PEP 508 requirement by name: extras, version clauses, a marker. URLs,
	// paths and options have no place in it.
	requirementRE = regexp.MustCompile(`^[A-Za-z0-9](?:[A-Za-z0-9._-]{0,126}[A-Za-z0-9])?\s*` +
		`(?:\[[A-Za-z0-9._,\s-]*\])?\s*` +
		`(?:\(?\s*(?:===|[<>!=~]=|[<>])\s*[A-Za-z0-9.*+!_-]+(?:\s*,\s*(?:===|[<>!=~]=|[<>])\s*[A-Za-z0-9.*+!_-]+)*\s*\)?)?\s*` +
		`(?:;[A-Za-z0-9_.<>=!~'"()\s+*,-]*)?$`)
	// As `module avail` writes them.
	moduleRE  = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.+/-]{0,199}$`)
	backendRE = regexp.MustCompile(`^(?:cpu|xpu|cu[0-9]{2,3}|rocm[0-9](?:\.[0-9]{1,2}){1,2})$`)
	hashRE    = regexp.MustCompile(`^--hash=(?:sha256:[0-9A-Fa-f]{64}|sha384:[0-9A-Fa-f]{96}|sha512:[0-9A-Fa-f]{128})$`)
	lockedRE  = regexp.MustCompile(`^([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)==([A-Za-z0-9.+!_-]+)\s*(?:;.*)?$`)
	exactRE   = regexp.MustCompile(`^[A-Za-z0-9._-]+\s*(?:\[[^\]]*\])?\s*\(?\s*={2,3}\s*[A-Za-z0-9.+!_-]+\s*\)?\s*(?:;.*)?$`)
	commentRE = regexp.MustCompile(`(^|\s)#.*$`)
)

// byteOrderMark is what editors of Windows begin a file with; pip and uv pass it over.
const byteOrderMark = "\ufeff"

// lines gives the requirements, one a line, without comments; hashes stay with
// their requirement. Error: fault.Invalid for what is not a requirement by name.
func (s Spec) lines() ([]string, error) {
	var raw []string
	if s.RequirementsText != "" {
		if len(s.RequirementsText) > maxText {
			return nil, fault.New(fault.Invalid, "requirements_text has %d bytes, at most %d are allowed", len(s.RequirementsText), maxText)
		}
		text := strings.ReplaceAll(strings.TrimPrefix(s.RequirementsText, byteOrderMark), "\r\n", "\n")
		raw = strings.Split(strings.ReplaceAll(text, "\\\n", " "), "\n")
	} else {
		raw = s.Requirements
	}
	var lines []string
	for i, line := range raw {
		if i == 0 { // the first line of a file, which somebody made a list of
			line = strings.TrimPrefix(line, byteOrderMark)
		}
		line = strings.TrimSpace(commentRE.ReplaceAllString(line, ""))
		if line == "" {
			continue
		}
		if err := checkRequirement(line); err != nil {
			return nil, fault.Wrap(err, "requirement %d", i+1)
		}
		lines = append(lines, strings.Join(strings.Fields(line), " "))
	}
	if len(lines) > maxRequirements {
		return nil, fault.New(fault.Invalid, "there are %d requirements, at most %d are allowed", len(lines), maxRequirements)
	}
	return lines, nil
}

func checkRequirement(line string) error {
	requirement, hashes, _ := strings.Cut(line, " --hash=")
	if hashes != "" {
		for h := range strings.FieldsSeq("--hash=" + hashes) {
			if !hashRE.MatchString(h) {
				return fault.New(fault.Invalid, "%.80q is not a hash", h).WithHint("Write it as --hash=sha256: with 64 hexadecimal digits, or as sha384 or sha512.")
			}
		}
	}
	switch {
	case len(line) > 4000 || strings.ContainsAny(line, "\n\r\x00"):
		return fault.New(fault.Invalid, "%.80q is not one line", line)
	case strings.HasPrefix(line, "-"):
		return fault.New(fault.Invalid, "%.80q is an option", line).WithHint("%s", insteadOf(line))
	case strings.Contains(requirement, "@") || strings.Contains(requirement, "/"):
		return fault.New(fault.Invalid, "%.80q names a URL or a path", line).
			WithHint("List packages by name, so that the index and its hashes vouch for them.")
	case !requirementRE.MatchString(strings.TrimSpace(requirement)):
		return fault.New(fault.Invalid, "%.80q is not a requirement", line).
			WithHint("Write it as name, name==1.2, name>=1,<2 or name[extra]>=1.")
	case hashes != "" && !exactRE.MatchString(strings.TrimSpace(requirement)):
		return fault.New(fault.Invalid, "%.80q has hashes and no exact version", requirement).
			WithHint("Hashes are of one version's files: write it as name==1.2 --hash=sha256:….")
	}
	return nil
}

// insteadOf says what to do instead of an option of a requirements file.
func insteadOf(line string) string {
	option, _, _ := strings.Cut(strings.ReplaceAll(line, "=", " "), " ")
	is := func(short string, long ...string) bool {
		return slices.Contains(long, option) || short != "" && strings.HasPrefix(option, short) && !strings.HasPrefix(option, "--")
	}
	switch {
	case is("-r", "--requirement", "--requirements"):
		return "A manifest has no other files: put that file's lines here."
	case is("-c", "--constraint", "--constraints"):
		return "A manifest has no other files: give the packages that it constrains their versions here, such as name==1.2; one that is listed is installed."
	case is("-e", "--editable"):
		return "Code of your own goes with each job as its source; what is a package goes onto the index."
	case is("-i", "--index-url", "--extra-index-url", "--default-index", "--index"), is("-f", "--find-links", "--no-index", "--trusted-host"):
		return "Name an index of the installation's configuration in indexes: of the environment, such as indexes: [torch-cpu]; the operator adds it to environments.indexes. For CPU builds of PyTorch, torch_backend: cpu."
	case is("", "--no-binary"):
		return "Set allow_source: true to build packages that have no wheel."
	case is("", "--only-binary", "--prefer-binary"):
		return "Leave it out: only wheels are installed, unless allow_source is true."
	case is("", "--pre"):
		return "Name the version of the pre-release: name==2.0rc1."
	case is("", "--hash", "--require-hashes"):
		return "Write hashes behind their requirement, name==1.2 --hash=sha256:…; all files are locked by their hashes in any case."
	}
	return "List packages by name, one a line, without options."
}

// hashesOf gives the hashes that requirements have, by the canonical name of the package.
func hashesOf(lines []string) map[string][]string {
	all := map[string][]string{}
	for _, line := range lines {
		_, hashes, _ := strings.Cut(line, " --hash=")
		if hashes == "" {
			continue
		}
		name := python.Canonical(python.Name(line))
		for h := range strings.FieldsSeq("--hash=" + hashes) {
			all[name] = append(all[name], strings.ToLower(strings.TrimPrefix(h, "--hash=")))
		}
	}
	return all
}

// narrowed is a lock that has, of each package whose requirement lists hashes, those
// alone: uv locks the hashes of all of a version's files. A hash of a kind that the
// index does not tell is kept, for the installation to check. Error: fault.Invalid for a
// package none of whose files has a hash that is listed.
func narrowed(lock string, wanted map[string][]string) (string, error) {
	if len(wanted) == 0 {
		return lock, nil
	}
	packages, err := parseLock(lock)
	if err != nil {
		return "", err
	}
	for _, p := range packages {
		listed := wanted[python.Canonical(p.Name)]
		if listed == nil {
			continue
		}
		told := map[string]bool{} // the kinds of hashes that the index tells of this version
		for _, h := range p.Hashes {
			kind, _, _ := strings.Cut(h, ":")
			told[kind] = true
		}
		keep := slices.DeleteFunc(slices.Clone(listed), func(h string) bool {
			kind, _, _ := strings.Cut(h, ":")
			return told[kind] && !slices.Contains(p.Hashes, h)
		})
		slices.Sort(keep)
		if keep = slices.Compact(keep); len(keep) == 0 {
			return "", fault.New(fault.Invalid, "hash mismatch for %s %s: the requirement lists %s, the index has %s", p.Name, p.Version, few(listed), few(p.Hashes)).
				WithHint("The index does not have the file that the hash identifies: find out why before you change the hash. `pip hash FILE` gives the hash of a file.")
		}
		lock = withHashes(lock, p.Name, keep)
	}
	return lock, nil
}

// withHashes replaces the hashes of a package in a lock.
func withHashes(lock, name string, hashes []string) string {
	var b strings.Builder
	inside := false
	for line := range strings.Lines(lock) {
		text := strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(line), "\\"))
		if m := lockedRE.FindStringSubmatch(text); m != nil {
			if inside = m[1] == name; inside {
				b.WriteString(text)
				for _, h := range hashes {
					b.WriteString(" \\\n    --hash=" + h)
				}
				b.WriteString("\n")
			}
		}
		if !inside || strings.HasPrefix(text, annotation) {
			b.WriteString(line)
		}
	}
	return b.String()
}

// onlyPackages is the part of a lock with the packages that keep is true for.
func onlyPackages(lock string, keep func(name, version string) bool) string {
	var b strings.Builder
	kept := true
	for line := range strings.Lines(lock) {
		text := strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(line), "\\"))
		if m := lockedRE.FindStringSubmatch(text); m != nil {
			kept = keep(m[1], m[2])
		}
		if kept {
			b.WriteString(line)
		}
	}
	return b.String()
}

// annotation begins the line in which uv says from which index a package is.
const annotation = "# from "

// few is the first of some hashes, in words.
func few(hashes []string) string {
	const most = 3
	if more := len(hashes) - most; more > 0 {
		return strings.Join(hashes[:most], ", ") + " and " + strconv.Itoa(more) + " more"
	}
	return strings.Join(hashes, ", ")
}

// parseLock reads what `uv pip compile --generate-hashes` writes: a line
// "name==version \" followed by indented "--hash=sha256:…" lines.
func parseLock(text string) ([]Package, error) {
	packages := []Package{}
	bad := func(line string) error {
		return fault.New(fault.Internal, "the lock has an unreadable line %.80q", line)
	}
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(strings.TrimSpace(line), "\\")
		line = strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(line, annotation) && len(packages) > 0:
			packages[len(packages)-1].Index = strings.TrimPrefix(line, annotation)
		case line == "" || strings.HasPrefix(line, "#"):
		case strings.HasPrefix(line, "--hash="):
			if len(packages) == 0 || !hashRE.MatchString(line) {
				return nil, bad(line)
			}
			last := &packages[len(packages)-1]
			last.Hashes = append(last.Hashes, strings.TrimPrefix(line, "--hash="))
		default:
			m := lockedRE.FindStringSubmatch(line)
			if m == nil {
				return nil, bad(line)
			}
			packages = append(packages, Package{Name: m[1], Version: m[2]})
		}
	}
	for _, p := range packages {
		if len(p.Hashes) == 0 {
			return nil, fault.New(fault.Internal, "the lock has no hash for %s", p.Name)
		}
	}
	return packages, nil
}

// contentDigest names what an environment contains, with what it stands on. Where code of
// packages ran while it was built, the lock does not say what it contains: it is then of
// its project alone.
func contentDigest(e Environment) Digest {
	parts := []string{"falaj environment 1", e.Python, e.Platform, e.Lock}
	if e.Interpreter.Site != nil {
		parts = []string{"falaj environment 2", e.Python, e.Platform, e.Lock, strings.Join(python.SiteList(e.Interpreter.Site), "\n")}
	}
	if e.Spec.AllowSource {
		parts = append(parts, "built from source in project "+string(e.Project))
	}
	if e.Interpreter.ABI != "" {
		parts = append(parts, "ABI "+e.Interpreter.ABI)
	}
	return Digest(sum(parts...))
}

// specDigest names a specification and all that decides what it means here,
// besides time: an index may have newer packages tomorrow, and then the same
// specification still means what was locked first.
func specDigest(s Spec, in Interpreter, index string, more []string) (string, error) {
	if s.Kind() != PythonKind {
		return sum(append([]string{"falaj environment specification 2", s.Image, s.Python}, s.Modules...)...), nil
	}
	lines, err := s.lines()
	if err != nil {
		return "", err
	}
	slices.Sort(lines)
	b, err := json.Marshal(lines)
	if err != nil {
		return "", err
	}
	source := "wheels"
	if s.AllowSource {
		source = "source"
	}
	parts := []string{"falaj environment specification 1", in.Version, in.Platform, string(b), source, index}
	if s.SitePackages {
		parts = append(parts, strings.Join(python.SiteList(in.Site), "\n"))
	}
	if in.ABI != "" {
		parts = append(parts, "ABI "+in.ABI)
	}
	if len(more) > 0 || s.TorchBackend != "" {
		parts = append(parts, "indexes "+strings.Join(more, " "), "torch backend "+s.TorchBackend)
	}
	return sum(parts...), nil
}

// sum hashes parts so that no two lists of parts give the same bytes.
func sum(parts ...string) string {
	b, err := json.Marshal(parts)
	if err != nil {
		panic(err) // strings can be marshalled
	}
	h := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(h[:])
}

// explain trims what uv printed to the cause, and says what to do about it.
func explain(log string) (reason, hint string) {
	log = strings.ReplaceAll(log, "\r", "\n")
	keep := make([]string, 0, 8)
	for line := range strings.Lines(log) {
		line = strings.TrimRight(line, " \n")
		trimmed := strings.TrimSpace(line)
		if i := strings.Index(trimmed, "error: "); i == 0 {
			keep = keep[:0] // what came before was progress
		}
		if trimmed == "" || strings.HasPrefix(trimmed, "warning:") {
			continue
		}
		keep = append(keep, trimmed)
	}
	reason = strings.Join(keep, " ")
	reason = strings.TrimPrefix(reason, "error: ")
	for _, mark := range []string{"cause: ", "Caused by: ", "╰─▶ ", "× "} {
		reason = strings.ReplaceAll(reason, mark, "")
	}
	reason = strings.TrimPrefix(reason, "No solution found when resolving dependencies ")
	reason = strings.TrimPrefix(reason, "No solution found when resolving dependencies: ")
	onSite := strings.Contains(reason, python.SiteMark)
	reason = strings.ReplaceAll(reason, python.SiteMark, " of the interpreter")
	reason = conclusion(reason)
	if reason == "" {
		reason = "uv said nothing"
	}
	has := func(words ...string) bool {
		return slices.ContainsFunc(words, func(w string) bool { return strings.Contains(log, w) })
	}
	switch {
	case onSite:
		hint = "With site_packages, the packages that the requirements name stay at the interpreter's version: loosen the other requirements, or leave site_packages out."
	case has("not found in the package registry"):
		hint = "Check the spelling of the package's name, and that the configured index has it."
	case unreachable(log):
		hint = "The package index does not answer: check environments.index, environments.hosts and environments.ca in the configuration, then apply again."
	case has("--only-binary", "no wheels", "no usable wheels", "building source distributions is disabled", "no-build"):
		hint = "No wheel fits this Python and platform: choose another version, or set allow_source so that it may be built."
	case has("unsatisfiable", "there is no version of"):
		hint = "Loosen one of the versions named, or ask for one that exists."
	case has("No space left"):
		hint = "Free disk space, then apply again."
	default:
		hint = "See `falaj env logs NAME` for everything that uv said."
	}
	return reason, hint
}

// maxReason bounds the reason why an environment cannot be built, in bytes.
const maxReason = 1000

// conclusion shortens a reason to its last sentences: a derivation of uv ends with what
// conflicts.
func conclusion(reason string) string {
	if len(reason) <= maxReason {
		return reason
	}
	end := reason[len(reason)-maxReason:]
	if _, last, ok := strings.Cut(end, ". And because "); ok {
		return "… because " + last
	}
	return fault.Clip(reason, maxReason)
}

// unreachable reports that by a log of uv no index answered.
func unreachable(log string) bool {
	if strings.Contains(log, "not found in the package registry") {
		return false
	}
	return slices.ContainsFunc([]string{"error sending request", "Failed to fetch", "dns error", "tunnel", "client error (Connect)", "timed out"}, func(w string) bool {
		return strings.Contains(log, w)
	})
}
