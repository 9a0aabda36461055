package residency

import (
	"cmp"
	"context"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
)

var zoneRE = regexp.MustCompile(`^[A-Za-z0-9](?:[A-Za-z0-9-]{0,30}[A-Za-z0-9])?$`)

// Validate refuses invalid names of zones: a name has 1 to 32 letters, digits and '-'.
func (z Zone) Validate() error {
	if zoneRE.MatchString(string(z)) {
		return nil
	}
	return fault.New(fault.Invalid, "zone %.40q is not a name", string(z)).
		WithHint("Use 1 to 32 letters, digits and '-', such as home, AE or AE-DIFC.")
}

// maxZones bounds a label; no placement needs more.
const maxZones = 64

// Validate refuses a label with too many zones or with a name that no zone has.
func (l Label) Validate() error {
	if len(l) > maxZones {
		return fault.New(fault.Invalid, "a label has %d zones, at most %d are allowed", len(l), maxZones)
	}
	for _, z := range l {
		if err := z.Validate(); err != nil {
			return err
		}
	}
	return nil
}

// Within reports whether l allows no zone that wide does not.
func (l Label) Within(wide Label) bool {
	for _, z := range l.Zones() {
		if !wide.Allows(z) {
			return false
		}
	}
	return true
}

// Same reports whether both labels allow the same zones.
func (l Label) Same(m Label) bool {
	return slices.Equal(Of(l.Zones()...), Of(m.Zones()...))
}

// Trust says whose hands a zone's machines are in.
type Trust string

// The trust levels, from least to most.
const (
	Shared    Trust = "shared"    // a public cloud's shared machines
	Dedicated Trust = "dedicated" // machines for us alone, run by a provider
	Owned     Trust = "owned"     // our machines, our staff
)

// ZoneSpec is the manifest of kind Zone.
type ZoneSpec struct {
	Jurisdiction string `json:"jurisdiction,omitempty" yaml:"jurisdiction" doc:"Jurisdiction that applies there, such as AE or DE; set once, then changed by two people"`
	Provider     string `json:"provider,omitempty" yaml:"provider" doc:"Operator of the machines; set once, then changed by two people"`
	Trust        Trust  `json:"trust,omitempty" yaml:"trust" doc:"shared, dedicated or owned; default shared, lowered by two people"`
	Description  string `json:"description,omitempty" yaml:"description" doc:"For people, at most 2000 characters"`
}

// Validate refuses what no zone may be. Error: fault.Invalid.
func (s ZoneSpec) Validate() error {
	if s.Jurisdiction != "" {
		if err := Zone(s.Jurisdiction).Validate(); err != nil {
			return fault.New(fault.Invalid, "jurisdiction %.40q is not a name", s.Jurisdiction).
				WithHint("Use a short code such as AE, AE-DIFC or DE.")
		}
	}
	if len(s.Provider) > 200 || len(s.Description) > 2000 {
		return fault.New(fault.Invalid, "provider is limited to 200 bytes and description to 2000")
	}
	switch s.Trust {
	case "", Shared, Dedicated, Owned:
		return nil
	}
	return fault.New(fault.Invalid, "trust %.40q does not exist", string(s.Trust)).WithHint("Use shared, dedicated or owned.")
}

// Law is what decides whose law reaches data in a zone. Labels name zones, so who lets data
// be in a zone relies on its law: see Widens.
type Law struct {
	Jurisdiction string `json:"jurisdiction,omitempty" doc:"Jurisdiction that applies there; omit to keep it"`
	Provider     string `json:"provider,omitempty" doc:"Operator of the machines; omit to keep it"`
	Trust        Trust  `json:"trust,omitempty" enum:"shared,dedicated,owned" doc:"Trust in the operator; omit to keep it"`
}

// Law is the zone's.
func (s ZoneSpec) Law() Law { return Law{s.Jurisdiction, s.Provider, s.Trust} }

// Or is the law with its unset fields taken from another.
func (l Law) Or(was Law) Law {
	return Law{cmp.Or(l.Jurisdiction, was.Jurisdiction), cmp.Or(l.Provider, was.Provider), cmp.Or(l.Trust, was.Trust)}
}

// Widens reports whether a zone that had the law was and gets l lets data come under a law,
// or into hands, that it could not come under before: another jurisdiction or provider than
// the one that was said, or less trust. To say one for the first time is none, and nor is
// more trust.
func (l Law) Widens(was Law) bool {
	return was.Jurisdiction != "" && l.Jurisdiction != was.Jurisdiction || was.Provider != "" && l.Provider != was.Provider ||
		slices.Index(trusts, l.Trust) < slices.Index(trusts, was.Trust)
}

// trusts are the levels, from least to most; unknown ones are less than all.
var trusts = []Trust{Shared, Dedicated, Owned}

// String is "jurisdiction DE, provider example, trust shared".
func (l Law) String() string {
	var parts []string
	for _, p := range [][2]string{{"jurisdiction", l.Jurisdiction}, {"provider", l.Provider}, {"trust", string(l.Trust)}} {
		if p[1] != "" {
			parts = append(parts, p[0]+" "+p[1])
		}
	}
	return strings.Join(parts, ", ")
}

// Place is a zone that the installation knows.
type Place struct {
	Zone      Zone      `json:"zone"`
	ZoneSpec            // what the manifest says
	CreatedAt time.Time `json:"created_at"`
	UpdatedAt time.Time `json:"updated_at"`
	Revision  int64     `json:"revision"`
}

// Transfer is something about to be in a zone: data opened, work placed, a model
// deployed.
type Transfer struct {
	Project string
	What    string // "dataset weather@1"
	Label   Label
	Where   string // "pool cloud"
	Zone    Zone
	Machine string // that it comes to, as records call it; empty where that is not known yet
	Action  string // the action that brings it there, "job.submit"
}

// Guard checks every transfer of data, or of a workload with data, to another zone or machine: where
// data is imported, read or exported, where jobs and deployments are placed, where gateways and alerts send
// it. A refusal is fault.PermissionDenied and
// already in the audit journal when Pass returns.
type Guard interface {
	Pass(ctx context.Context, p Transfer) error
}
