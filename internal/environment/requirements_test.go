package environment

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/falaj-ml/falaj/internal/fault"
)

func TestRequirements(t *testing.T) {
	hash := "--hash=sha256:" + strings.Repeat("a", 64)
	for _, good := range []string{
		"numpy", "scikit-learn>=1.7,<2", "mlflow-skinny >= 3.12, < 4", "a[b,c]==1.0", "x~=1.4", "x===1.0+local", "x!=1.*",
		`tomli>=1; python_version < "3.11"`, "x (>=1)", "x==1 " + hash, "x[a,b]==1.0.post1 " + hash, "x===1+local ; python_version > '3' " + hash,
		"x (==1) --hash=sha512:" + strings.Repeat("aB", 64), "\ufeffnumpy", "x==1 " + hash + " " + hash, "zope.interface",
	} {
		if err := (Spec{Requirements: []string{good}}).Validate(); err != nil {
			t.Errorf("%q: %v", good, err)
		}
	}
	for _, bad := range []string{
		"-r other.txt", "--index-url https://evil", "-e .", "x @ https://evil/x.whl", "x @ file:///etc/passwd", "./x", "../x.whl", "/x",
		"git+https://evil/x", "x y", "x=1", "x==1 --hash=md5:1", "x==1 --hash=" + "sha256:zz", "x==1 --hash=sha512:" + strings.Repeat("a", 64), "x>=1 " + hash, "x " + hash, "x==1.* " + hash, "x==1,<2 " + hash,
		"a\ufeffb", "x\n-r y", ">=1", "x==1 --install-option=y", "é",
	} {
		if err := (Spec{Requirements: []string{bad}}).Validate(); !fault.Is(err, fault.Invalid) {
			t.Errorf("%q: %v", bad, err)
		}
	}
	got, err := Spec{RequirementsText: "\ufeff# all\r\nnumpy  # fast\n\n  a==1 \\\n    " + hash + "\nb>=2"}.lines()
	if want := []string{"numpy", "a==1 " + hash, "b>=2"}; err != nil || !slices.Equal(got, want) {
		t.Fatalf("%q, %v; want %q", got, err, want)
	}
	for name, s := range map[string]Spec{
		"both":   {Requirements: []string{"a"}, RequirementsText: "b"},
		"many":   {RequirementsText: strings.Repeat("a\n", maxRequirements+1)},
		"large":  {RequirementsText: strings.Repeat("#", maxText+1)},
		"python": {Python: "3.11; rm"},
		"two":    {Python: "2.7"},
	} {
		if err := s.Validate(); !fault.Is(err, fault.Invalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestParseLock(t *testing.T) {
	a, b := "sha256:"+strings.Repeat("a", 64), "sha256:"+strings.Repeat("b", 64)
	got, err := parseLock("# by uv\nnumpy==2.4.6 \\\n    --hash=" + a + " \\\n    --hash=" + b + "\nsix==1.17.0 ; python_version < '4' \\\n    --hash=" + b + "\n")
	want := []Package{{Name: "numpy", Version: "2.4.6", Hashes: []string{a, b}}, {Name: "six", Version: "1.17.0", Hashes: []string{b}}}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Fatalf("%v\n%s", err, diff)
	}
	for _, bad := range []string{"numpy==1\n", "    --hash=" + a, "numpy @ https://x\n", "numpy==1 \\\n --hash=md5:x", "root:x:0:0:/root:/bin/sh"} {
		if _, err := parseLock(bad); err == nil {
			t.Errorf("%q was read", bad)
		}
	}
}

// TestOptions: an option of a requirements file is refused with what to do instead.
func TestOptions(t *testing.T) {
	for line, hint := range map[string]string{
		"-r base.txt": "that file's lines", "-rbase.txt": "that file's lines", "--requirement=base.txt": "that file's lines",
		"-c limits.txt": "constrains", "--constraint limits.txt": "constrains", "-e .": "its source", "--editable=.": "its source",
		"-i https://mirror/simple": "environments.index", "--index-url https://mirror/simple": "environments.index",
		"--extra-index-url=https://download.pytorch.org/whl/cpu": "environments.index", "-f wheels": "environments.index", "--no-index": "environments.index",
		"--no-binary :all:": "allow_source", "--only-binary=:all:": "allow_source", "--pre": "2.0rc1", "--require-hashes": "behind their requirement", "--other": "without options",
	} {
		_, err := Spec{RequirementsText: "numpy\n" + line}.lines()
		if !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), "requirement 2") || !strings.Contains(fault.HintOf(err), hint) {
			t.Errorf("%s: %v, %s", line, err, fault.HintOf(err))
		}
	}
}

// TestIndexOfPackage: the lock says from which index a package is, also where its hashes
// are narrowed.
func TestIndexOfPackage(t *testing.T) {
	h := func(digit string) string { return "sha256:" + strings.Repeat(digit, 64) }
	lock := "torch==2.5.1+cpu \\\n    --hash=" + h("a") + " \\\n    --hash=" + h("b") + "\n    # from https://mirror/cpu\nsix==1.0 \\\n    --hash=" + h("c") + "\n    # from https://mirror/simple\n"
	lock, err := narrowed(lock, map[string][]string{"torch": {h("b")}})
	if err != nil {
		t.Fatal(err)
	}
	got, err := parseLock(lock)
	want := []Package{{Name: "torch", Version: "2.5.1+cpu", Hashes: []string{h("b")}, Index: "https://mirror/cpu"}, {Name: "six", Version: "1.0", Hashes: []string{h("c")}, Index: "https://mirror/simple"}}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v (-want +got)\n%s", err, diff)
	}
}

// TestHashes: of a package whose requirement lists hashes the lock has those alone, and
// one that no file has is an error.
func TestHashes(t *testing.T) {
	h := func(kind, digit string, n int) string { return kind + ":" + strings.Repeat(digit, n) }
	a, b, c, long := h("sha256", "a", 64), h("sha256", "b", 64), h("sha256", "c", 64), h("sha512", "d", 128)
	lock := "my-box==1.0 \\\n    --hash=" + a + " \\\n    --hash=" + b + "\nother==2.0 ; python_version >= '3' \\\n    --hash=" + c + "\n"
	for name, test := range map[string]struct {
		lines []string
		want  string // part of the error; without one the lock has hashes of my-box
		has   []string
	}{
		"none":                       {[]string{"my-box==1.0"}, "", []string{a, b}},
		"one":                        {[]string{"My_Box==1.0 --hash=" + b}, "", []string{b}},
		"capitals":                   {[]string{"my.box==1.0 --hash=" + "sha256:" + strings.ToUpper(b[7:])}, "", []string{b}},
		"one is of another platform": {[]string{"my-box==1.0 --hash=" + c + " --hash=" + a}, "", []string{a}},
		"two lines":                  {[]string{"my-box==1.0 --hash=" + b, "my-box==1.0 --hash=" + a}, "", []string{a, b}},
		"another kind":               {[]string{"my-box==1.0 --hash=" + long}, "", []string{long}},
		"of another file":            {[]string{"my-box==1.0 --hash=" + c}, "hash mismatch for my-box 1.0: the requirement lists " + c + ", the index has " + a + ", " + b, nil},
		"of what others need":        {[]string{"other==2.0 --hash=" + a}, "hash mismatch for other 2.0", nil},
		"not in the lock":            {[]string{"absent==1 --hash=" + c}, "", []string{a, b}},
	} {
		for _, l := range test.lines {
			if err := checkRequirement(l); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
		got, err := narrowed(lock, hashesOf(test.lines))
		if test.want != "" {
			if !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), test.want) || fault.HintOf(err) == "" {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		packages, perr := parseLock(got)
		want := []Package{{Name: "my-box", Version: "1.0", Hashes: test.has}, {Name: "other", Version: "2.0", Hashes: []string{c}}}
		if diff := cmp.Diff(want, packages); err != nil || perr != nil || diff != "" {
			t.Errorf("%s: %v, %v\n%s", name, err, perr, diff)
		}
		if !strings.Contains(got, "other==2.0 ; python_version >= '3' \\\n") {
			t.Errorf("%s: the other package's line has changed:\n%s", name, got)
		}
	}
}

func FuzzParseLock(f *testing.F) {
	f.Add("numpy==2.4.6 \\\n    --hash=sha256:" + strings.Repeat("a", 64) + "\n")
	f.Fuzz(func(t *testing.T, text string) {
		packages, err := parseLock(text)
		for _, p := range packages {
			if err == nil && (p.Name == "" || p.Version == "" || len(p.Hashes) == 0) {
				t.Errorf("%q gave %+v", text, p)
			}
		}
	})
}

// FuzzRequirements holds that nothing uv would take for an option, a URL or a
// second line passes.
func FuzzRequirements(f *testing.F) {
	f.Add("a==1 \\\n --hash=sha256:00\n-r x")
	f.Add("x @ file:///y")
	f.Fuzz(func(t *testing.T, text string) {
		lines, err := Spec{RequirementsText: text}.lines()
		if err != nil {
			return
		}
		for _, l := range lines {
			if strings.HasPrefix(l, "-") || strings.ContainsAny(l, "\n\r@/\\\x00") {
				t.Errorf("%q gave the line %q", text, l)
			}
		}
	})
}

func TestExplain(t *testing.T) {
	for name, c := range map[string]struct{ log, reason, hint string }{
		"no version": {
			"warning: x\nerror: No solution found when resolving dependencies\n  cause: Because there is no version of numpy==99 and you require numpy==99, we can conclude that your requirements are unsatisfiable.\n",
			"Because there is no version of numpy==99 and you require numpy==99, we can conclude that your requirements are unsatisfiable.", "Loosen",
		},
		"old form": {
			"  × No solution found when resolving dependencies:\n  ╰─▶ Because nope was not found in the package registry and you require nope, we can conclude that your\n      requirements are unsatisfiable.\n",
			"Because nope was not found in the package registry and you require nope, we can conclude that your requirements are unsatisfiable.", "spelling",
		},
		"network": {
			"Resolved 3 packages\nerror: Failed to fetch: `https://index.example/simple/x/`\n  Caused by: dns error\n",
			"Failed to fetch: `https://index.example/simple/x/` dns error", "environments.index",
		},
		"wheels":  {"error: x has no usable wheels\n", "x has no usable wheels", "allow_source"},
		"nothing": {"", "uv said nothing", "falaj env logs"},
	} {
		reason, hint := explain(c.log)
		if reason != c.reason || !strings.Contains(hint, c.hint) {
			t.Errorf("%s: %q, %q; want %q, …%s…", name, reason, hint, c.reason, c.hint)
		}
	}
	long := "error: No solution found when resolving dependencies\n  cause: Because a==1 depends on b>=2" +
		strings.Repeat(" and c==3 depends on b>=4, we can conclude that a depends on b>=2.\n And because d==1 depends on b>=2", 40) +
		", we can conclude that a and d depend on b>=2.\n And because a depends on b==1+falaj.site and you require a, we can conclude that your requirements are unsatisfiable.\n"
	if reason, _ := explain(long); len(reason) > maxReason || !strings.HasPrefix(reason, "… because d==1") ||
		!strings.HasSuffix(reason, "because a depends on b==1 of the interpreter and you require a, we can conclude that your requirements are unsatisfiable.") {
		t.Errorf("a long derivation ends as %q", reason)
	}
	if reason, _ := explain("error: " + strings.Repeat("x", 1<<20)); len(reason) > 2100 {
		t.Errorf("a reason of %d bytes", len(reason))
	}
}

func TestDigests(t *testing.T) {
	in := Interpreter{Version: "3.11.7", Platform: "cpython-linux-x86_64"}
	base := Spec{Requirements: []string{"a", "b>=1"}}
	digest := func(s Spec, in Interpreter, index string) string {
		d, err := specDigest(s, in, index, s.Indexes)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	want := digest(base, in, "")
	for _, same := range []Spec{{Requirements: []string{"b>=1", "a"}}, {RequirementsText: "a # x\nb>=1\n"}, {Python: "3.11", Requirements: base.Requirements}} {
		if got := digest(same, in, ""); got != want {
			t.Errorf("%+v is another specification", same)
		}
	}
	other := in
	other.Version = "3.12.1"
	source := base
	source.AllowSource = true
	marked := Spec{RequirementsText: "\ufeffa\r\nb>=1\r\n"}
	if got := digest(marked, in, ""); got != want {
		t.Error("a byte order mark makes another specification")
	}
	for i, got := range []string{
		digest(base, other, ""), digest(base, in, "https://mirror"), digest(source, in, ""), digest(Spec{Requirements: []string{"a b>=1"[:1]}}, in, ""),
		digest(Spec{Requirements: base.Requirements, Indexes: []string{"https://mirror"}}, in, ""), digest(Spec{Requirements: base.Requirements, TorchBackend: "cpu"}, in, ""),
	} {
		if got == want {
			t.Errorf("difference %d does not count", i)
		}
	}
	if contentDigest(Environment{Python: "a", Platform: "b", Lock: "c"}) == contentDigest(Environment{Python: "a", Platform: "bc"}) {
		t.Error("parts run together")
	}
	one := Environment{Python: "a", Lock: "c", Spec: Spec{AllowSource: true}, Project: "one"}
	two := one
	if two.Project = "two"; contentDigest(one) == contentDigest(two) {
		t.Error("what was built from source is of every project")
	}
	one.Spec, two.Spec = Spec{}, Spec{}
	if contentDigest(one) != contentDigest(two) {
		t.Error("wheels are built once for each project")
	}
}

// TestTransitions holds the diagram in the comment of State against the table.
func TestTransitions(t *testing.T) {
	src, err := os.ReadFile("environment.go")
	if err != nil {
		t.Fatal(err)
	}
	drawn := map[[2]State]bool{}
	for _, m := range regexp.MustCompile(`//\s+(\w+) --> (\w+)`).FindAllStringSubmatch(string(src), -1) {
		drawn[[2]State{State(m[1]), State(m[2])}] = true
	}
	states := []State{Locking, Building, Ready, Failed}
	for _, a := range states {
		for _, b := range states {
			if a.CanBecome(b) != drawn[[2]State{a, b}] {
				t.Errorf("%s to %s: table %t", a, b, a.CanBecome(b))
			}
		}
	}
}

// TestCheckIndex: an index with credentials is refused, and they are not repeated.
func TestCheckIndex(t *testing.T) {
	for index, ok := range map[string]bool{
		"": true, "https://index.example/simple": true, "http://mirror:3141/root/pypi/+simple/": true,
		"https://geheim@mirror/simple": false, "https://me:geheim@mirror/simple": false, "https://:geheim@mirror/simple": false,
		"https://me:geheim%zz@mirror/simple": false, "ftp://mirror": false, "mirror/simple": false, "file:///srv/geheim": false,
	} {
		err := CheckIndex(index)
		if (err == nil) != ok || err != nil && (!fault.Is(err, fault.Invalid) || strings.Contains(err.Error()+fault.HintOf(err), "geheim")) {
			t.Errorf("%s: %v", index, err)
		}
	}
}
