// Package gateway lets servers elsewhere answer with a project's models: at a
// branch, in a ship, in a plant that is cut off for days. A gateway is a Falaj of
// its own, with its own keys, tokens and audit log, whose deployments are those of
// this one.
//
// # Map
//
//   - gateway.go: what a Gateway manifest says, and the words that both sides say to
//     each other. service.go is this side: what a gateway may have, and what it
//     hands back.
//   - mirror/ is the other side: it pulls deployments with their signed models,
//     keeps the last known good ones, and hands its prediction log back.
//   - store.go: what both need of a database; gatewaysql/ has it.
//
// # Life of a gateway
//
// An operator applies a Gateway with its zone, and gives it a token with the scope
// gateway.pull. The gateway asks Sync every few seconds: it says what it holds and
// hears what it should hold. It fetches the files of versions that it lacks by File,
// checks each against its signature and the project's public key, which it keeps
// from the first answer on, and only then changes what it serves. What it answered
// it hands back by Accept, in batches, each from a position to the next.
//
// # Guarantees
//
// A model, and each trial beside it, goes to a gateway only if its label allows the
// gateway's zone. A gateway serves nothing whose bytes are not what was signed. While
// this side is away it goes on with what it has, and its predictions wait. A batch of
// predictions is in this side's log once, whatever is killed meanwhile; what a person
// who was erased meanwhile had asked arrives without what it says.
package gateway

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/id"
	"github.com/falaj-ml/falaj/internal/serving"
)

// Spec is what a Gateway manifest says.
type Spec struct {
	Zone        residency.Zone `json:"zone,omitempty" doc:"Zone of the gateway: it receives only models whose residency allows it" default:"home"`
	Deployments []string       `json:"deployments,omitempty" doc:"Deployments that the gateway serves; default all of the project"`
	Description string         `json:"description,omitempty" doc:"Description; informational"`
}

// Limits.
const (
	maxDeployments = 1000
	maxText        = 1000
	// ModelFile is the file of a version that goes to a gateway: what is run.
	ModelFile = "model.onnx"
	// MaxBatch bounds the predictions of one Accept, in bytes: it is more than one may have.
	MaxBatch = 20 << 20
)

// Validate says what is wrong with the spec. Error: fault.Invalid.
func (s Spec) Validate() error {
	if len(s.Deployments) > maxDeployments || len(s.Description) > maxText {
		return fault.New(fault.Invalid, "a gateway has at most %d deployments, and a description of at most %d bytes", maxDeployments, maxText)
	}
	for i, name := range s.Deployments {
		if err := id.CheckMixedName("deployment name", name); err != nil {
			return fault.Wrap(err, "spec.deployments")
		}
		if slices.Contains(s.Deployments[:i], name) {
			return fault.New(fault.Invalid, "spec.deployments: duplicate deployment %s", name)
		}
	}
	return s.zone().Validate()
}

func (s Spec) zone() residency.Zone {
	if s.Zone == "" {
		return residency.Home
	}
	return s.Zone
}

// Gateway is a server elsewhere that answers with a project's models.
type Gateway struct {
	Project   string    `json:"project"`
	Name      string    `json:"name"`
	Spec      Spec      `json:"spec"`
	CreatedAt time.Time `json:"created_at"`
	UpdatedAt time.Time `json:"updated_at"`
	Revision  int64     `json:"revision"`

	// Seen is what it said last; nil when it has never come.
	Seen *Seen `json:"seen,omitempty"`
}

// Seen is what a gateway said when it came last.
type Seen struct {
	At time.Time `json:"at"`
	Report
	LeftOut []LeftOut `json:"left_out,omitempty"` // what it was not given, and why
}

// Report is what a gateway says of itself.
type Report struct {
	Version  string   `json:"version,omitempty" maxLength:"100" doc:"Version of its software"`
	Instance string   `json:"instance" minLength:"1" maxLength:"64" doc:"Identifier of its data directory; log positions refer to it"`
	Zone     string   `json:"zone" maxLength:"64" doc:"Configured zone; must equal the zone of the manifest"`
	Waiting  int64    `json:"waiting" minimum:"0" doc:"Approximate bytes of predictions that are not delivered yet"`
	Holds    []Held   `json:"holds,omitempty" maxItems:"1000" doc:"Deployments that it serves"`
	Has      []string `json:"has,omitempty" maxItems:"10000" doc:"Versions that it stores, as MODEL@NUMBER DIGEST: their signatures are not sent again"`
}

// Held is a deployment as it is at a gateway.
type Held struct {
	Deployment string        `json:"deployment" maxLength:"63"`
	Version    int64         `json:"version"`
	State      serving.State `json:"state" maxLength:"20"`
	Reason     string        `json:"reason,omitempty" maxLength:"1000" doc:"Why its state differs from the desired state"`
}

// Wanted is what a gateway should serve.
type Wanted struct {
	Project        string          `json:"project"`
	Residency      residency.Label `json:"residency"` // of the project
	Classification string          `json:"classification"`
	PublicKey      string          `json:"public_key" doc:"PEM of the key that signs the project's models"`
	Deployments    []Served        `json:"deployments"`
	LeftOut        []LeftOut       `json:"left_out,omitempty"`
}

// Served is a deployment with the versions that it needs.
type Served struct {
	Deployment serving.Deployment `json:"deployment"`
	Trials     []serving.Trial    `json:"trials,omitempty"`
	Rollout    *serving.Rollout   `json:"rollout,omitempty"` // that runs
	Versions   []Version          `json:"versions"`          // the stable one, those of the trials, and the models of steps
}

// Version is a model version with its signature.
type Version struct {
	Model  string          `json:"model"`
	Number int64           `json:"number"`
	Digest string          `json:"digest"`
	Bundle json.RawMessage `json:"bundle,omitempty"` // OpenSSF model signing: a sigstore bundle; of a version that the gateway lacks
}

// String names a version with its digest: two may have the same files.
func (v Version) String() string { return fmt.Sprintf("%s@%d %s", v.Model, v.Number, v.Digest) }

// LeftOut is what a gateway is not given.
type LeftOut struct {
	Deployment string `json:"deployment"`
	Version    int64  `json:"version,omitempty"` // of a trial; the deployment goes on without
	Reason     string `json:"reason"`
}

// Batch is a part of a gateway's prediction log.
type Batch struct {
	Clock        time.Time  // the gateway's, when it was sent: zero is as ours
	Deployment   string     // its name
	DeploymentID serving.ID // a later one of the name has another
	Instance     string     // of the log: positions in another one have nothing to do with these
	From, To     string     // positions in the gateway's log
	Records      []byte     // each after its length; see prediction.AppendRecords
}

// Position is how far a gateway's log of a deployment was taken over.
type Position struct {
	Project    string
	Gateway    string
	Deployment serving.ID
	Instance   string
	At         string // up to here all of it is in our log
	// Next is where the batch ends that is being taken over, and Before what our log
	// ended with when that began; empty when none is.
	Next, Before string
}
