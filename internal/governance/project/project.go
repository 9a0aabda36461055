// Package project is the unit of tenancy: members, policy, keys, residency and
// quota hang on it.
//
// # Map
//
//   - project.go: Name, Project and its manifest Spec, Classification.
//   - member.go: roles, and grants that give them to principals; group.go: groups of
//     identity providers as principals; events.go: what others hear of grants.
//   - tenancy/ is the service: the only way to change projects and grants, and
//     the roster that policy asks for roles. projectsql/ stores both.
//
// This package holds only the words, so that everything else in governance can
// speak them; it imports residency and resource and nothing above.
package project

import (
	"maps"
	"slices"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/id"
	"github.com/falaj-ml/falaj/internal/resource"
)

// Name is a project's name, unique in the installation. Names obey
// id.CheckName. The empty Name is the system itself.
type Name string

// Validate refuses invalid names of projects, and the empty Name.
func (n Name) Validate() error { return id.CheckName("project name", string(n)) }

// Unknown is the answer about a project that is not there, and, in the same words, to those who
// may not know that it is.
func Unknown(name string) error {
	return fault.New(fault.NotFound, "project %s does not exist", name).
		WithHint("`falaj get projects` lists those that you may see; a manifest of kind Project creates one.")
}

// Project is a tenant.
type Project struct {
	Name        Name   `json:"name"`
	DisplayName string `json:"display_name,omitempty"`
	Description string `json:"description,omitempty"`
	// Residency is the label of what is imported without one. Changing it
	// moves nothing that exists.
	Residency residency.Label `json:"residency"`
	// Classification is that of what is imported without one.
	Classification Classification `json:"classification"`
	Quota          Quota          `json:"quota,omitzero"`
	CreatedAt      time.Time      `json:"created_at"`
	CreatedBy      string         `json:"created_by"` // principal id
	UpdatedAt      time.Time      `json:"updated_at"`
	Revision       int64          `json:"revision"` // grows with each change; the ETag
}

// Spec is the manifest of kind Project.
type Spec struct {
	DisplayName    string          `json:"display_name,omitempty" yaml:"display_name" doc:"Name for people, at most 200 characters"`
	Description    string          `json:"description,omitempty" yaml:"description" doc:"Description of the project, at most 2000 characters"`
	Residency      residency.Label `json:"residency,omitempty" yaml:"residency" doc:"Zones of imported data that names none; default home"`
	Classification Classification  `json:"classification,omitempty" yaml:"classification" doc:"Class of imported data that names none: public, internal, confidential or restricted; default internal"`
	Quota          Quota           `json:"quota,omitzero" yaml:"quota" doc:"Storage quota of the project; set by an administrator of the installation"`
}

// Quota is how much a project may store: files of datasets, artifacts, models, checkpoints,
// sources and logs of jobs that have ended, as they are stored. What is 0 has no limit.
type Quota struct {
	Bytes   resource.Bytes `json:"bytes,omitempty" yaml:"bytes" doc:"Stored bytes, such as 500GiB; default no limit"`
	Objects int64          `json:"objects,omitempty" yaml:"objects" doc:"Stored files; default no limit"`
	Kinds   KindQuotas     `json:"kinds,omitzero" yaml:"kinds" doc:"Limits of one kind of files, within those of all"`
}

// KindQuotas are limits of single kinds: the third part of the keys of what is stored.
type KindQuotas struct {
	Artifacts   Amount `json:"artifacts,omitzero" yaml:"artifacts" doc:"Artifacts of runs: outputs, unfinished uploads, and logs of jobs that have ended"`
	Checkpoints Amount `json:"checkpoints,omitzero" yaml:"checkpoints" doc:"Checkpoints of jobs"`
	Datasets    Amount `json:"datasets,omitzero" yaml:"datasets" doc:"Versions of datasets: imports, transformations, training sets, batch predictions"`
	Models      Amount `json:"models,omitzero" yaml:"models" doc:"Registered versions of models"`
	Sources     Amount `json:"sources,omitzero" yaml:"sources" doc:"Source archives of jobs"`
}

// ByKind are the limits with the names of their kinds, without those that limit nothing.
func (k KindQuotas) ByKind() map[string]Amount {
	all := map[string]Amount{"artifacts": k.Artifacts, "checkpoints": k.Checkpoints, "datasets": k.Datasets, "models": k.Models, "sources": k.Sources}
	maps.DeleteFunc(all, func(_ string, a Amount) bool { return a == (Amount{}) })
	return all
}

// Amount is of stored bytes and files; what is 0 has no limit.
type Amount struct {
	Bytes   resource.Bytes `json:"bytes,omitempty" yaml:"bytes" doc:"Stored bytes, such as 50GiB; default no limit"`
	Objects int64          `json:"objects,omitempty" yaml:"objects" doc:"Stored files; default no limit"`
}

func (a Amount) validate(field string) error {
	if a.Bytes < 0 || a.Objects < 0 {
		return fault.New(fault.Invalid, "%s: bytes and objects must be at least 1", field).WithHint("Leave out what has no limit.")
	}
	return nil
}

// validate names the first kind, in alphabetical order, that has a wrong limit.
func (q Quota) validate() error {
	if err := (Amount{q.Bytes, q.Objects}).validate("quota"); err != nil {
		return err
	}
	kinds := q.Kinds.ByKind()
	for _, kind := range slices.Sorted(maps.Keys(kinds)) {
		if err := kinds[kind].validate("quota.kinds." + kind); err != nil {
			return err
		}
	}
	return nil
}

// Validate refuses what no project may be. Error: fault.Invalid.
func (s Spec) Validate() error {
	if len(s.DisplayName) > 200 {
		return fault.New(fault.Invalid, "display_name has %d bytes, at most 200 are allowed", len(s.DisplayName))
	}
	if len(s.Description) > 2000 {
		return fault.New(fault.Invalid, "description has %d bytes, at most 2000 are allowed", len(s.Description))
	}
	if err := s.Quota.validate(); err != nil {
		return err
	}
	if err := s.Residency.Validate(); err != nil {
		return err
	}
	if s.Classification == "" {
		return nil
	}
	return s.Classification.Validate()
}

// Complete fills in the defaults: home, internal.
func (s Spec) Complete() Spec {
	s.Residency = residency.Of(s.Residency.Zones()...)
	if s.Classification == "" {
		s.Classification = Internal
	}
	return s
}

// Spec is the manifest that would make the project as it is.
func (p Project) Spec() Spec {
	return Spec{DisplayName: p.DisplayName, Description: p.Description, Residency: p.Residency, Classification: p.Classification, Quota: p.Quota}
}

// Classification says how much harm a leak would do.
type Classification string

// The classes, from harmless to harmful.
const (
	Public       Classification = "public"
	Internal     Classification = "internal"
	Confidential Classification = "confidential" // reads are journalled; engineers and admins only
	Restricted   Classification = "restricted"   // as confidential, and only with a grant that names the object
)

// Classifications lists the classes, from harmless to harmful.
var Classifications = []Classification{Public, Internal, Confidential, Restricted}

// Validate refuses a class that does not exist.
func (c Classification) Validate() error {
	if slices.Contains(Classifications, c) {
		return nil
	}
	return fault.New(fault.Invalid, "classification %.40q does not exist", string(c)).
		WithHint("Use public, internal, confidential or restricted.")
}

// Journalled reports whether reads of such data must be in the synced journal
// before the answer leaves. An unknown class is treated as the most harmful.
func (c Classification) Journalled() bool { return c != Public && c != Internal }

// Strictest is the class of what is made from data of these classes: the most
// harmful of them, Public for none. An unknown class counts as Restricted.
func Strictest(classes ...Classification) Classification {
	worst := 0
	for _, c := range classes {
		i := slices.Index(Classifications, c)
		if i < 0 {
			i = len(Classifications) - 1
		}
		worst = max(worst, i)
	}
	return Classifications[worst]
}

// Change says what an apply did, or would do.
type Change string

// The changes.
const (
	Created   Change = "created"
	Updated   Change = "updated"
	Unchanged Change = "unchanged"
)
