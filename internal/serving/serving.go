// Package serving answers requests with models.
//
// # Map
//
//   - A Deployment gives a model version a name to be asked by: the name is the
//     Open Inference Protocol's model name. deployment: loading → ready | failed.
//   - Service.Apply verifies the version's signature, checks residency, loads
//     it, and only then commits: what is deployed has answered once.
//   - runtime/ is the contract with what runs models; runtime/onnx is ONNX
//     Runtime in this process.
//   - loader.go loads what should be there after a restart.
//
// # Guarantees
//
// A model whose files do not match its signature is never loaded. A model is
// served in a zone that its label allows and nowhere else. Answers of models
// classified confidential or restricted are in the journal before they leave.
// Changing a deployment lets running requests finish on the old session.
package serving

import (
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/id"
)

// Spec is what a Deployment manifest says.
type Spec struct {
	Model   string `json:"model" doc:"Registered model"`
	Version string `json:"version,omitempty" doc:"Version number or alias; empty is the alias champion"`
	Threads int    `json:"threads,omitempty" doc:"Threads inside one run; 0 is 1, best when many requests run side by side"`
}

// Validate says what is wrong with the spec.
func (s Spec) Validate() error {
	if s.Model == "" {
		return fault.New(fault.Invalid, "spec.model is missing").WithHint("Name a registered model; `falaj get models` lists them.")
	}
	if s.Threads < 0 || s.Threads > 256 {
		return fault.New(fault.Invalid, "spec.threads is %d; it may be 0 to 256", s.Threads)
	}
	return nil
}

// State of a deployment.
type State string

// The states.
const (
	Loading State = "loading" // wanted, not in memory yet
	Ready   State = "ready"
	Failed  State = "failed" // see Reason; tried again with growing pauses
)

// ID identifies a deployment.
type ID string

// Deployment is a model version that answers under a name.
type Deployment struct {
	ID             ID              `json:"id"`
	Project        string          `json:"project"`
	Name           string          `json:"name"`
	Spec           Spec            `json:"spec"`
	Model          string          `json:"model"`
	Version        int64           `json:"version"` // the number that Spec.Version meant when it was applied
	Digest         string          `json:"digest"`  // of the version's files
	Residency      residency.Label `json:"residency"`
	Classification string          `json:"classification"`
	CreatedAt      time.Time       `json:"created_at"`
	UpdatedAt      time.Time       `json:"updated_at"`
	Revision       int64           `json:"revision"` // rises with each change; the ETag

	State  State  `json:"state"`            // in this process
	Reason string `json:"reason,omitempty"` // why it failed
}

func validName(name string) error { return id.CheckName("deployment name", name) }

// Model is a verified model version, as the registry hands it over.
type Model struct {
	Name           string
	Version        int64
	Digest         string
	Residency      residency.Label
	Classification string
	File           []byte // model.onnx
}
