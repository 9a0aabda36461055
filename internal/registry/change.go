package registry

import (
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/tracking"
)

// ChangeKind is what happened to a model.
type ChangeKind string

// The kinds.
const (
	ModelCreated      ChangeKind = "model created"
	VersionCreated    ChangeKind = "version created" // and is ready
	VersionTagSet     ChangeKind = "version tag set"
	VersionTagDeleted ChangeKind = "version tag deleted"
	AliasSet          ChangeKind = "alias set"
	AliasDeleted      ChangeKind = "alias deleted"
)

// Change is what Config.Told hears, in the transaction of the change. Fields that
// a kind has no use for are empty.
type Change struct {
	Kind        ChangeKind
	Project     project.Name
	Model       string
	Version     int
	Alias       string
	Key, Value  string
	Description string
	Source      string
	Run         tracking.RunID
	Tags        []tracking.Pair
	Label       residency.Label // where what is told may be
}

func (v Version) change(kind ChangeKind) Change {
	return Change{Kind: kind, Project: v.Project, Model: v.Model, Version: v.Number, Label: v.Residency}
}
