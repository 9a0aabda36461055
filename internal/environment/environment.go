// Package environment makes what jobs run in: a Python with packages, locked
// with hashes and built once per content, an OCI image by digest, or the site
// modules of a Slurm cluster. An environment never changes and is checked before
// anything queues.
//
// # Map
//
//   - environment.go: Spec and its rules, Environment and its states, Usable.
//   - requirements.go: what a requirement line may say; the lock file that uv
//     writes, read back as the list of packages (SBOM).
//   - interpreter.go: the Python interpreters and the uv of this machine.
//   - site.go: environments that stand on the packages of their interpreter; python/ knows
//     these packages, and the names and versions of an index.
//   - images.go: environments that are images; image/ pins, pulls and prunes them.
//   - service.go: Apply, Build, List, One, Logs, Use, Await.
//   - fit.go: which pools an environment fits, and why not; check.go asks it;
//     node/ reads the labels of a node; wheels.go finds the C library that wheels need.
//   - compare.go: what differs between two environments, and the bill of
//     materials as CycloneDX.
//   - prune.go: what nobody uses any more is removed.
//   - build.go: the workloads of a build (lock, create, install, compile), and what follows each.
//   - packages.go: the package store, whose files environments share by hard links.
//   - torch.go: which builds of PyTorch the pools need.
//   - store.go: what a database must offer; environmentsql/ is that database.
//
// # Guarantees
//
// An environment is named by the digest of its Python, its platform and its
// lock, and the lock holds a hash of every file that may be installed. It is
// built in a staging directory and appears under its digest by one rename; from
// then on it is read-only and used by every job that asks for the same content.
//
// Nothing of a package runs during a build: only wheels are installed, and their
// bytecode is compiled by an interpreter that runs none of their .pth files. So the
// wheel cache that builds share is written by uv alone and never by what it fetches.
// Each package is installed alone, into a directory that no other package is in. The server
// seals its files in the package store and links them into environments, which thus share
// them: read-only, and compared with their digests before each link.
// Where a specification allows source distributions, whose build scripts do run, the
// build gets a cache of its own that is thrown away, neither takes from the package store
// nor gives to it, and its digest is of its project alone. Builds are sandboxed workloads that reach the configured index hosts and
// nothing else.
package environment

import (
	"path/filepath"
	"slices"
	"time"

	"github.com/falaj-ml/falaj/internal/compute/engine"
	"github.com/falaj-ml/falaj/internal/environment/python"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/resource"
)

// The actions that this package asks for.
const (
	ActionRead  policy.Action = "environment.read"
	ActionApply policy.Action = "environment.apply"
	ActionPrune policy.Action = "environment.prune"
)

// ID names one lock-and-build of a specification: "env_01J…".
type ID string

// Digest names an environment's content: "sha256:<hex>" of its Python, platform
// and lock.
type Digest string

// Short is the part of a digest that directories and messages show.
func (d Digest) Short() string {
	s := string(d)
	if len(s) > 19 {
		return s[7:19]
	}
	return s
}

// State of an environment.
type State string

// The states.
//
//	stateDiagram-v2
//	    [*] --> locking: applied
//	    [*] --> ready: an image or modules, which need no build
//	    locking --> building: locked, and nobody has built this content
//	    locking --> ready: built before
//	    locking --> failed: a requirement cannot be resolved
//	    building --> ready: installed and renamed
//	    building --> failed: an installation failed
//
// Applying a failed specification again makes a new environment.
const (
	Locking  State = "locking"
	Building State = "building"
	Ready    State = "ready"
	Failed   State = "failed"
)

var transitions = map[State][]State{
	Locking:  {Building, Ready, Failed},
	Building: {Ready, Failed},
}

// CanBecome reports whether the transition exists.
func (s State) CanBecome(next State) bool { return slices.Contains(transitions[s], next) }

// Kind of an environment.
type Kind string

// The kinds.
const (
	PythonKind  Kind = "python"
	ImageKind   Kind = "image"
	ModulesKind Kind = "modules"
)

// Spec is the manifest of kind Environment.
type Spec struct {
	Python           string   `json:"python,omitempty" doc:"Python version, such as 3.11, or the path of an interpreter that the machine has; default the machine's python3. With an image the path of Python in it, default /usr/bin/python3"`
	Requirements     []string `json:"requirements,omitempty" doc:"Requirements, such as scikit-learn>=1.5"`
	RequirementsText string   `json:"requirements_text,omitempty" doc:"The text of a requirements file, instead of the list"`
	// AllowSource lets source distributions be built, which runs their code in
	// the build's sandbox.
	AllowSource bool `json:"allow_source,omitempty" doc:"Also build and install packages without a wheel; their build scripts run in the sandbox"`
	// Indexes and TorchBackend say where packages come from, beside the installation's index.
	Indexes      []string `json:"indexes,omitempty" doc:"Package indexes of the configuration (environments.indexes) that have priority over the installation's own, in order"`
	TorchBackend string   `json:"torch_backend,omitempty" doc:"Builds of PyTorch's packages, from PyTorch's own index: cpu, or such as cu126 or rocm6.4; auto is cpu where no pool has a GPU, decided when it is applied; default those of the package index"`
	// SitePackages lets an environment stand on what comes with the interpreter.
	SitePackages bool `json:"site_packages,omitempty" doc:"Stand on the packages that come with the interpreter, as they are; of several interpreters, the one with most of the requirements, and of equals the machine's own below /usr"`

	Image   string   `json:"image,omitempty" doc:"An OCI image instead, registry/name@sha256:… or registry/name:tag, which is pinned to its digest; not on Slurm and Ray"`
	Modules []string `json:"modules,omitempty" doc:"Site modules instead, such as cuda/12.4, which Slurm pools load"`
}

// Limits of a specification.
const (
	maxRequirements = 1000
	maxText         = 256 << 10
	maxLock         = 16 << 20
	maxModules      = 50
	maxIndexes      = 10
)

// Kind of the environment that the specification makes.
func (s Spec) Kind() Kind {
	switch {
	case s.Image != "":
		return ImageKind
	case len(s.Modules) > 0:
		return ModulesKind
	}
	return PythonKind
}

// Validate refuses what cannot be an environment. Error: fault.Invalid.
func (s Spec) Validate() error {
	if s.Kind() != PythonKind {
		if s.Image != "" && len(s.Modules) > 0 || len(s.Requirements) > 0 || s.RequirementsText != "" || s.AllowSource || s.SitePackages || len(s.Indexes) > 0 || s.TorchBackend != "" {
			return fault.New(fault.Invalid, "an environment is a Python with requirements, or an image, or modules").
				WithHint("Leave the others out, or make an environment of each.")
		}
		if s.Python != "" && (s.Image == "" || !filepath.IsAbs(s.Python)) {
			return fault.New(fault.Invalid, "python is the path of Python in an image").WithHint("Write it as /usr/bin/python3, or leave it out.")
		}
		return s.modules()
	}
	if s.Python != "" && !pythonRE.MatchString(s.Python) && (!filepath.IsAbs(s.Python) || filepath.Clean(s.Python) != s.Python || len(s.Python) > 4096) {
		if python.ValidVersion(s.Python) {
			return fault.New(fault.Invalid, "python %.40q is no version of Python 3", s.Python).WithHint("Write one as 3.11 or 3.11.7.")
		}
		return fault.New(fault.Invalid, "python %.40q is neither a version nor a path", s.Python).WithHint("Write it as 3.11, 3.11.7 or /usr/bin/python3.")
	}
	if s.RequirementsText != "" && len(s.Requirements) > 0 {
		return fault.New(fault.Invalid, "requirements and requirements_text exclude each other")
	}
	if len(s.Indexes) > maxIndexes {
		return fault.New(fault.Invalid, "there are %d indexes, at most %d are allowed", len(s.Indexes), maxIndexes)
	}
	for i, name := range s.Indexes {
		if slices.Contains(s.Indexes[:i], name) {
			return fault.New(fault.Invalid, "index %.80q is named twice", name)
		}
	}
	if s.TorchBackend != "" && s.TorchBackend != autoBackend && !backendRE.MatchString(s.TorchBackend) {
		return fault.New(fault.Invalid, "torch_backend %.40q is no build of PyTorch", s.TorchBackend).
			WithHint("Write cpu, or CUDA or ROCm with a version, such as cu126 or rocm6.4, or auto: cpu where no pool has a GPU. The build is part of the lock, so that it is not looked for on each machine.")
	}
	_, err := s.lines()
	return err
}

func (s Spec) modules() error {
	if len(s.Modules) > maxModules {
		return fault.New(fault.Invalid, "there are %d modules, at most %d are allowed", len(s.Modules), maxModules)
	}
	for _, m := range s.Modules {
		if !moduleRE.MatchString(m) {
			return fault.New(fault.Invalid, "%.80q is not the name of a module", m).WithHint("Write it as `module avail` does: cuda/12.4.")
		}
	}
	return nil
}

// Package is one entry of an environment's bill of materials.
type Package struct {
	Name    string   `json:"name"`
	Version string   `json:"version"`
	Hashes  []string `json:"hashes"`         // "sha256:<hex>" of every file that may be installed
	From    string   `json:"from,omitempty"` // "interpreter" for what comes with it; empty for the index
	// Index is the URL of the index that it is from, in an environment of several.
	Index string `json:"index,omitempty"`
}

// Environment is a specification under a name, and how far it is.
type Environment struct {
	ID       ID           `json:"id"`
	Project  project.Name `json:"project"`
	Name     string       `json:"name"`
	Spec     Spec         `json:"spec"`
	State    State        `json:"state"`
	Python   string       `json:"python"` // full version: "3.11.7"
	Platform string       `json:"platform"`
	Digest   Digest       `json:"digest,omitempty"` // once locked
	Packages int          `json:"packages"`
	SBOM     []Package    `json:"sbom,omitempty"`  // of One, not of List
	Glibc    string       `json:"glibc,omitempty"` // the least that its wheels run with
	// Size is the bytes of its files once it is ready, and Shared the part of them that other
	// environments had then, too: these bytes are on the disk once.
	Size   resource.Bytes `json:"size,omitempty" doc:"Bytes of its files, once it is ready"`
	Shared resource.Bytes `json:"shared,omitempty" doc:"Part of size that other environments had as well when it was built: these bytes are on the disk once"`
	// TorchBackend is what auto meant when it was applied; empty is the package index's.
	TorchBackend string `json:"torch_backend,omitempty"`
	Image        string `json:"image,omitempty"`  // pinned: "registry/name@sha256:…"
	Reason       string `json:"reason,omitempty"` // why it failed, or begins again
	Hint         string `json:"hint,omitempty"`
	Retries      int    `json:"retries,omitempty"` // of what its build is at: it was cut off, or no index answered
	// Machine is where its last step was built, and Zone where that machine is.
	Machine   string         `json:"machine,omitempty"`
	Zone      residency.Zone `json:"zone,omitempty"`
	CreatedAt time.Time      `json:"created_at"`
	ReadyAt   time.Time      `json:"ready_at,omitzero"`
	Revision  int64          `json:"revision"`

	// SpecDigest is of the specification and all that decides what it means
	// here; Lock is the lock file; Interpreter is the Python it is built on.
	SpecDigest  string      `json:"-"`
	Lock        string      `json:"-"`
	Interpreter Interpreter `json:"-"`
	Step        Step        `json:"-"` // the workload under way
}

// backend is of which build the packages of PyTorch are; empty is the package index's.
func (e Environment) backend() string {
	if e.Spec.TorchBackend == autoBackend {
		return e.TorchBackend
	}
	return e.Spec.TorchBackend
}

// Usable is what somebody who runs in an environment needs of it.
type Usable struct {
	Name     string
	Digest   Digest // empty while it is not locked
	Spec     string // digest of the specification, known from the start
	State    State
	Platform string
	Python   string            // the interpreter's absolute path; in an image, there
	Bin      string            // the directory of its commands
	Mounts   []engine.Mount    // read-only
	Env      map[string]string // VIRTUAL_ENV and the like

	Image       string      // by digest, where it is one; without mounts then
	Modules     []string    // that a Slurm job loads, where it is made of them
	Needs       Needs       // of a node
	Interpreter Interpreter // that it was built on; zero before it is ready
}
