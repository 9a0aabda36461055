package environment

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/falaj-ml/falaj/internal/compute"
	"github.com/falaj-ml/falaj/internal/environment/node"
	"github.com/falaj-ml/falaj/internal/environment/python"
)

// Fit is what a pool says to an environment.
type Fit struct {
	Pool string `json:"pool"`
	Fits bool   `json:"fits"`
	// Reasons are why it does not; Unknown is what no node has told yet; Notes
	// are what to know although it fits.
	Reasons []string `json:"reasons,omitempty"`
	Unknown []string `json:"unknown,omitempty"`
	Notes   []string `json:"notes,omitempty"`
}

// Needs are what an environment asks of a node.
type Needs struct {
	Kind     Kind   `json:"kind"`
	Python   string `json:"python,omitempty"`   // "3.11.2"
	Own      bool   `json:"own,omitempty"`      // the Python travels with the environment
	Site     int    `json:"site,omitempty"`     // packages that the node's Python must bring
	Platform string `json:"platform,omitempty"` // machine: "x86_64"
	Glibc    string `json:"glibc,omitempty"`    // the least that its wheels run with
	CUDA     string `json:"cuda,omitempty"`     // that it brings
	CUDNN    string `json:"cudnn,omitempty"`    // that it brings
	By       string `json:"cuda_by,omitempty"`  // the package that says which CUDA
	// Framework uses the CUDA: "torch 2.8.0".
	Framework string   `json:"framework,omitempty"`
	Vector    []Vector `json:"vector,omitempty"`
	Modules   []string `json:"modules,omitempty"`
}

// Vector is an instruction set and the package that is built for it.
type Vector struct {
	Set string `json:"set"`
	By  string `json:"by"`
}

// cudaRule is what one major version of CUDA asks for.
type cudaRule struct {
	major   int
	driver  string // the least; docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html
	compute string // the least that its libraries have code for; CUDA Toolkit release notes, "deprecated and dropped features"
}

var cudaRules = []cudaRule{
	{13, "580", "7.5"}, // Maxwell, Pascal and Volta dropped in 13.0
	{12, "525", "5.0"}, // Kepler dropped in 12.0
	{11, "450", "3.5"},
}

// frameworks that use CUDA, and the least compute capability that their wheels
// have code for, where that is more than their CUDA's own.
var frameworks = []struct {
	name          string
	version, cuda string // from these on
	compute       string
}{
	{"torch", "2.8", "12.8", "7.0"}, // release notes of PyTorch 2.8.0; dev-discuss.pytorch.org/t/3128
	{"torch", "0", "0", ""},
	{"jaxlib", "0", "12", "5.2"}, // docs.jax.dev/en/latest/installation.html
	{"jaxlib", "0", "0", ""},
	{"tensorflow", "0", "0", ""},
}

// cudnnRules are likewise of cuDNN, by its major version: the support matrices of
// docs.nvidia.com/deeplearning/cudnn.
var cudnnRules = map[string]string{"9": "5.0"}

// since is the first CUDA that has code for a GPU: CUDA Toolkit release notes,
// "new features" of each version.
var since = []struct{ compute, cuda string }{
	{"12.0", "12.8"}, {"10.0", "12.8"}, {"9.0", "11.8"}, {"8.9", "11.8"}, {"8.6", "11.1"}, {"8.0", "11.0"},
}

// vectors are the packages whose wheels do not start without an instruction set.
var vectors = map[string]string{
	"tensorflow":     "avx",  // tensorflow.org/install/pip: "binaries use AVX instructions"
	"tensorflow-cpu": "avx",  // the same without CUDA
	"polars":         "avx2", // docs.pola.rs, installation: polars-lts-cpu is for processors without
}

// cudaPackages say by their name or version which CUDA an environment brings;
// the first that is there counts.
var cudaPackages = []struct {
	name  string
	major int // 0: the version of the package is CUDA's
}{
	{"nvidia-cuda-runtime", 0},
	{"nvidia-cuda-runtime-cu13", 0},
	{"nvidia-cuda-runtime-cu12", 0},
	{"nvidia-cuda-runtime-cu11", 0},
	{"jax-cuda13-plugin", 13},
	{"jax-cuda12-plugin", 12},
	{"cupy-cuda13x", 13},
	{"cupy-cuda12x", 12},
	{"cupy-cuda11x", 11},
}

// needs reads an environment's bill of materials.
func (e Environment) needs() Needs {
	n := Needs{Kind: e.Spec.Kind(), Modules: e.Spec.Modules, Glibc: e.Glibc}
	switch n.Kind {
	case ModulesKind:
		return n
	case ImageKind:
		n.Own = true
		if _, arch, ok := strings.Cut(e.Platform, "linux/"); ok {
			n.Platform = node.Architecture(arch)
		}
	case PythonKind:
		n.Python, n.Own, n.Site = e.Python, len(e.Interpreter.mounts()) > 0, len(e.Interpreter.Site)
		if _, arch, ok := strings.Cut(e.Platform, "linux-"); ok {
			n.Platform = arch
		}
	}
	version := map[string]string{}
	for _, p := range e.SBOM {
		version[python.Canonical(p.Name)] = p.Version
	}
	for _, p := range cudaPackages {
		v, ok := version[p.name]
		if !ok || n.CUDA != "" {
			continue
		}
		n.By, n.CUDA = p.name+" "+v, v
		if p.major != 0 {
			n.CUDA = strconv.Itoa(p.major)
		}
		n.CUDA = firstParts(n.CUDA, 2)
	}
	for _, framework := range frameworks {
		v := version[framework.name]
		_, local, _ := strings.Cut(v, "+cu")
		if n.CUDA == "" && len(local) >= 3 && strings.Trim(local, "0123456789") == "" { // "121" is 12.1
			n.By, n.CUDA = framework.name+" "+v, local[:2]+"."+local[2:]
		}
		if v != "" && n.Framework == "" {
			n.Framework = framework.name + " " + v
		}
	}
	if v := version["cuda"]; v != "" && n.Kind == ImageKind {
		n.By, n.CUDA, n.CUDNN = "the image's CUDA_VERSION", firstParts(v, 2), firstParts(version["cudnn"], 3)
	}
	for _, name := range []string{"nvidia-cudnn-cu13", "nvidia-cudnn-cu12", "nvidia-cudnn-cu11"} {
		if v := version[name]; v != "" {
			n.CUDNN = firstParts(v, 3)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(vectors)) {
		if v := version[name]; v != "" {
			n.Vector = append(n.Vector, Vector{Set: vectors[name], By: name + " " + v})
		}
	}
	return n
}

// torch reports whether it is PyTorch that uses the CUDA.
func (n Needs) torch() bool { return strings.HasPrefix(n.Framework, "torch ") }

// fit compares an environment with a pool whose engine is of a kind.
func fit(n Needs, p compute.Pool, kind string) Fit {
	f := Fit{Pool: string(p.Name)}
	refuse := func(format string, args ...any) { f.Reasons = append(f.Reasons, fmt.Sprintf(format, args...)) }
	switch {
	case n.Kind == ImageKind && kind == "slurm":
		refuse("it is an image, and Slurm's nodes run none: their container programs differ by site; use site modules or a Python environment there")
	case n.Kind == ImageKind && kind == "ray":
		refuse("it is an image, and Ray starts its workers in the containers of its own cluster: use a Python environment there")
	case n.Kind == ModulesKind && kind != "slurm":
		refuse("it is made of site modules, which only Slurm pools load; this pool's engine is %s", kind)
	}
	if len(f.Reasons) > 0 || n.Kind == ModulesKind {
		if f.Fits = len(f.Reasons) == 0; f.Fits {
			f.Unknown = append(f.Unknown, "whether its nodes have the modules "+strings.Join(n.Modules, ", ")+" shows when a job starts")
		}
		return f
	}
	if len(p.Nodes) == 0 {
		f.Fits = true
		f.Unknown = append(f.Unknown, "no node of it is known yet")
		return f
	}
	// A pool fits when one node does; what nodes say alike is said once.
	refused, unknown, notes := saying{}, saying{}, saying{}
	for _, at := range p.Nodes {
		r, u, w := n.on(node.FactsOf(at.Node), p.Remote)
		f.Fits = f.Fits || len(r) == 0
		refused.add(at.Name, r)
		unknown.add(at.Name, u)
		notes.add(at.Name, w)
	}
	f.Unknown, f.Notes = unknown.words(len(p.Nodes)), notes.words(len(p.Nodes))
	if f.Fits {
		f.Notes = append(f.Notes, refused.words(len(p.Nodes))...)
	} else {
		f.Reasons, f.Notes = refused.words(len(p.Nodes)), nil
	}
	return f
}

// saying collects which nodes say what.
type saying map[string][]string

func (s saying) add(node string, words []string) {
	for _, w := range words {
		s[w] = append(s[w], node)
	}
}

func (s saying) words(nodes int) []string {
	var all []string
	for _, w := range slices.Sorted(maps.Keys(s)) {
		switch by := s[w]; {
		case len(by) == nodes:
			all = append(all, w)
		case len(by) > 3:
			all = append(all, fmt.Sprintf("nodes %s and %d more: %s", strings.Join(by[:3], ", "), len(by)-3, w))
		default:
			all = append(all, fmt.Sprintf("node %s: %s", strings.Join(by, ", "), w))
		}
	}
	return all
}

// on compares with one node.
func (n Needs) on(f node.Facts, remote bool) (refused, unknown, notes []string) {
	refuse := func(format string, args ...any) { refused = append(refused, fmt.Sprintf(format, args...)) }
	missing := func(format string, args ...any) { unknown = append(unknown, fmt.Sprintf(format, args...)) }
	switch {
	case n.Platform == "" || f.Architecture == n.Platform:
	case f.Architecture == "":
		missing("its architecture; the environment is for %s", n.Platform)
	default:
		refuse("its processors are %s, the environment is for %s", f.Architecture, n.Platform)
	}
	if remote { // else it is the machine that the environment was built on
		n.python(f, refuse, missing)
		switch {
		case n.Glibc == "":
		case f.Glibc == "":
			missing("its C library; the environment's wheels need glibc %s", n.Glibc)
		case compareVersions(f.Glibc, n.Glibc) < 0:
			refuse("it has glibc %s, the environment's wheels need %s (their manylinux tags say so)", f.Glibc, n.Glibc)
		}
	}
	for _, v := range n.Vector {
		switch {
		case f.Architecture == "aarch64" || slices.Contains(f.Vector, v.Set):
		case len(f.Vector) == 0:
			missing("its vector instructions; %s needs %s", v.By, v.Set)
		default:
			refuse("its processors have no %s instructions, which %s is built with", strings.ToUpper(v.Set), v.By)
		}
	}
	switch {
	case n.CUDA == "":
	case f.GPUs == 0:
		note := fmt.Sprintf("it has no GPU, and the CUDA %s of %s lies idle there", n.CUDA, n.By)
		if n.Kind == PythonKind && n.torch() {
			note += "; torch_backend: cpu, or auto, locks builds without it"
		}
		notes = append(notes, note)
	default:
		n.cuda(f, refuse, missing)
	}
	return refused, unknown, notes
}

func (n Needs) python(f node.Facts, refuse, missing func(string, ...any)) {
	minor := firstParts(n.Python, 2)
	has := slices.ContainsFunc(f.Pythons, func(v string) bool { return firstParts(v, 2) == minor })
	switch {
	case n.Site > 0 && len(f.Pythons) > 0 && !has:
		refuse("its Pythons are %s; the environment stands on the packages of a Python %s", strings.Join(f.Pythons, ", "), minor)
	case n.Site > 0:
		missing("whether its Python %s brings the same %d packages; its agent compares them before a job starts", minor, n.Site)
	case n.Own || has: // or the interpreter travels
	case len(f.Pythons) == 0:
		missing("whether it has Python %s", minor)
	default:
		refuse("its Pythons are %s, the environment needs %s", strings.Join(f.Pythons, ", "), minor)
	}
}

func (n Needs) cuda(f node.Facts, refuse, missing func(string, ...any)) {
	brings := "CUDA " + n.CUDA + " (of " + n.By + ")"
	if n.CUDNN != "" {
		brings = "CUDA " + n.CUDA + " and cuDNN " + n.CUDNN + " (of " + n.By + ")"
	}
	k := slices.IndexFunc(cudaRules, func(r cudaRule) bool { return strconv.Itoa(r.major) == firstParts(n.CUDA, 1) })
	if k < 0 {
		missing("what %s needs: this Falaj has no rule for it", brings)
		return
	}
	rule := cudaRules[k]
	switch {
	case f.Driver == "":
		missing("its NVIDIA driver; %s needs %s or newer", brings, rule.driver)
	case compareVersions(f.Driver, rule.driver) < 0:
		refuse("its NVIDIA driver is %s, and %s needs %s or newer", f.Driver, brings, rule.driver)
	}
	if f.ComputeCapability == "" {
		missing("the compute capability of its GPUs; %s has code from %s on", brings, rule.compute)
		return
	}
	switch by, least := n.strictest(); {
	case compareVersions(f.ComputeCapability, rule.compute) < 0:
		refuse("its GPUs have compute capability %s, and %s has no code below %s", f.ComputeCapability, brings, rule.compute)
	case compareVersions(f.ComputeCapability, least) < 0:
		refuse("its GPUs have compute capability %s, and %s has no code below %s", f.ComputeCapability, by, least)
	}
	for _, s := range since {
		if compareVersions(f.ComputeCapability, s.compute) < 0 {
			continue
		}
		if strings.Contains(n.CUDA, ".") && compareVersions(n.CUDA, s.cuda) < 0 {
			refuse("its GPUs have compute capability %s, which CUDA %s is the first to have code for; the environment brings %s", f.ComputeCapability, s.cuda, brings)
		}
		break
	}
}

// strictest is the framework or cuDNN that asks for the highest compute
// capability, beside CUDA itself.
func (n Needs) strictest() (by, least string) {
	least = cudnnRules[firstParts(n.CUDNN, 1)]
	by = "cuDNN " + n.CUDNN
	name, v, _ := strings.Cut(n.Framework, " ")
	for _, f := range frameworks {
		if f.name == name && compareVersions(v, f.version) >= 0 && compareVersions(n.CUDA, f.cuda) >= 0 {
			if compareVersions(f.compute, least) > 0 {
				by, least = n.Framework+" with CUDA "+n.CUDA, f.compute
			}
			break
		}
	}
	return by, least
}

// firstParts of a version: two of "12.1.105" are "12.1".
func firstParts(v string, n int) string {
	parts := strings.Split(v, ".")
	return strings.Join(parts[:min(n, len(parts))], ".")
}

// compareVersions compares dotted numbers; what is no number counts as 0.
func compareVersions(a, b string) int {
	x, y := strings.Split(a, "."), strings.Split(b, ".")
	for i := range max(len(x), len(y)) {
		var m, n int
		if i < len(x) {
			m, _ = strconv.Atoi(x[i])
		}
		if i < len(y) {
			n, _ = strconv.Atoi(y[i])
		}
		if m != n {
			return cmp.Compare(m, n)
		}
	}
	return 0
}
