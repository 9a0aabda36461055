// Package environment makes the Python environments that jobs run in: locked
// with hashes, built once per content, never changed, checked before anything
// queues.
//
// # Map
//
//   - environment.go: Spec and its rules, Environment and its states, Usable.
//   - requirements.go: what a requirement line may say; the lock file that uv
//     writes, read back as the list of packages (SBOM).
//   - interpreter.go: the Python interpreters and the uv of this machine.
//   - site.go: environments that stand on the packages of their interpreter.
//   - service.go: Apply, List, One, Logs, Use, Await.
//   - build.go: the two workloads, lock and install, and what follows each.
//   - store.go: what a database must offer; environmentsql/ is that database.
//
// # Guarantees
//
// An environment is named by the digest of its Python, its platform and its
// lock, and the lock holds a hash of every file that may be installed. It is
// built in a staging directory and appears under its digest by one rename; from
// then on it is read-only and used by every job that asks for the same content.
//
// Nothing of a package runs during a build: only wheels are installed, so the
// wheel cache that builds share is written by uv alone and never by what it
// fetches. Where a specification allows source distributions, whose build
// scripts do run, the build gets a cache of its own that is thrown away. Builds
// are sandboxed workloads that reach the configured index hosts and nothing
// else.
package environment

import (
	"path/filepath"
	"slices"
	"time"

	"github.com/falaj-ml/falaj/internal/compute/engine"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/governance/project"
)

// The actions that this package asks for.
const (
	ActionRead  policy.Action = "environment.read"
	ActionApply policy.Action = "environment.apply"
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

// Spec is the manifest of kind Environment.
type Spec struct {
	Python           string   `json:"python,omitempty" doc:"Python version, such as 3.11, or the path of an interpreter that the machine has; default the machine's python3"`
	Requirements     []string `json:"requirements,omitempty" doc:"Requirements, such as scikit-learn>=1.5"`
	RequirementsText string   `json:"requirements_text,omitempty" doc:"The text of a requirements file, instead of the list"`
	// AllowSource lets source distributions be built, which runs their code in
	// the build's sandbox.
	AllowSource bool `json:"allow_source,omitempty" doc:"Also install packages that have no wheel, by building them; their build scripts run in the sandbox"`
	// SitePackages lets an environment stand on what comes with the interpreter.
	SitePackages bool `json:"site_packages,omitempty" doc:"Stand on the packages that come with the interpreter, as they are; of several interpreters, the one that brings most of the requirements, and of equals the machine's own below /usr"`
}

// Limits of a specification.
const (
	maxRequirements = 1000
	maxText         = 256 << 10
	maxLock         = 16 << 20
)

// Validate refuses what cannot be an environment. Error: fault.Invalid.
func (s Spec) Validate() error {
	if s.Python != "" && !pythonRE.MatchString(s.Python) && (!filepath.IsAbs(s.Python) || filepath.Clean(s.Python) != s.Python || len(s.Python) > 4096) {
		return fault.New(fault.Invalid, "python %.40q is neither a version nor a path", s.Python).WithHint("Write it as 3.11, 3.11.7 or /usr/bin/python3.")
	}
	if s.RequirementsText != "" && len(s.Requirements) > 0 {
		return fault.New(fault.Invalid, "requirements and requirements_text exclude each other")
	}
	_, err := s.lines()
	return err
}

// Package is one entry of an environment's bill of materials.
type Package struct {
	Name    string   `json:"name"`
	Version string   `json:"version"`
	Hashes  []string `json:"hashes"`         // "sha256:<hex>" of every file that may be installed
	From    string   `json:"from,omitempty"` // "interpreter" for what comes with it; empty for the index
}

// Environment is a specification under a name, and how far it is.
type Environment struct {
	ID        ID           `json:"id"`
	Project   project.Name `json:"project"`
	Name      string       `json:"name"`
	Spec      Spec         `json:"spec"`
	State     State        `json:"state"`
	Python    string       `json:"python"` // full version: "3.11.7"
	Platform  string       `json:"platform"`
	Digest    Digest       `json:"digest,omitempty"` // once locked
	Packages  int          `json:"packages"`
	SBOM      []Package    `json:"sbom,omitempty"`   // of One, not of List
	Reason    string       `json:"reason,omitempty"` // why it failed
	Hint      string       `json:"hint,omitempty"`
	CreatedAt time.Time    `json:"created_at"`
	ReadyAt   time.Time    `json:"ready_at,omitzero"`
	Revision  int64        `json:"revision"`

	// SpecDigest is of the specification and all that decides what it means
	// here; Lock is the lock file; Interpreter is the Python it is built on.
	SpecDigest  string      `json:"-"`
	Lock        string      `json:"-"`
	Interpreter Interpreter `json:"-"`
	Step        Step        `json:"-"` // the workload under way
}

// Usable is what somebody who runs in an environment needs of it.
type Usable struct {
	Name     string
	Digest   Digest // empty while it is not locked
	Spec     string // digest of the specification, known from the start
	State    State
	Platform string
	Python   string            // the interpreter's absolute path
	Bin      string            // the directory of its commands
	Mounts   []engine.Mount    // read-only
	Env      map[string]string // VIRTUAL_ENV and the like

	Interpreter Interpreter // that it was built on; zero before it is ready
}
