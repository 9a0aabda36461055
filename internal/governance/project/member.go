package project

import (
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/id"
)

// Role is a bundle of actions; policy/actions.go says which.
type Role string

// The roles. Viewer to Admin are held in a project; Admin and Auditor may also
// be held in the whole installation.
const (
	Viewer   Role = "viewer"   // reads what is public or internal
	Engineer Role = "engineer" // data, features, environments, jobs, runs, models
	Deployer Role = "deployer" // deploys and promotes
	Admin    Role = "admin"    // everything, members and tokens included
	Auditor  Role = "auditor"  // reads the audit log and everything's metadata, but no data
)

// Roles lists the roles.
var Roles = []Role{Viewer, Engineer, Deployer, Admin, Auditor}

// Validate refuses a role that does not exist.
func (r Role) Validate() error {
	if slices.Contains(Roles, r) {
		return nil
	}
	return fault.New(fault.Invalid, "role %.40q does not exist", string(r)).
		WithHint("Use viewer, engineer, deployer, admin or auditor.")
}

// Grant gives a principal a role in a project.
type Grant struct {
	Project Name   `json:"project,omitempty"` // empty: in the whole installation
	Name    string `json:"name"`              // unique in the project
	// Principal is the account's id ("usr_…", "svc_…"), or a group: see Group.
	Principal string `json:"principal"`
	Role      Role   `json:"role"`
	// Object limits the grant to one object, "dataset/weather", all versions.
	// Such a grant is what restricted data needs. Empty: the whole project.
	Object    string    `json:"object,omitempty"`
	CreatedAt time.Time `json:"created_at"`
	CreatedBy string    `json:"created_by"`
}

// From is the group that a grant is for; empty for a grant to an account.
func (g Grant) From() string {
	if _, _, ok := CutGroup(g.Principal); ok {
		return g.Principal
	}
	return ""
}

// Spec is the manifest that would make the grant, with the principal by a name.
func (g Grant) Spec(principal string) GrantSpec {
	return GrantSpec{Principal: principal, Role: g.Role, Installation: g.Project == "", Object: g.Object}
}

// GrantSpec is the manifest of kind Grant.
type GrantSpec struct {
	Principal string `json:"principal" yaml:"principal" doc:"Account or group: user/alice, service/ci, an account id, or group/PROVIDER/NAME for a group of an identity provider"`
	Role      Role   `json:"role" yaml:"role" doc:"viewer, engineer, deployer, admin or auditor"`
	// Installation is for who reads manifests: such a grant is validated with no
	// project.
	Installation bool   `json:"installation,omitempty" yaml:"installation" doc:"The role counts in every project and for the installation itself; admin or auditor only, and the manifest names no project"`
	Object       string `json:"object,omitempty" yaml:"object" doc:"Limit to one object, such as dataset/weather; restricted data needs such a grant"`
}

// Validate refuses what no grant in the project may be. Error: fault.Invalid.
func (s GrantSpec) Validate(in Name) error {
	if strings.HasPrefix(s.Principal, groupPrefix) {
		if err := checkGroupPrincipal(s.Principal); err != nil {
			return err
		}
	} else if s.Principal == "" || len(s.Principal) > 100 {
		return fault.New(fault.Invalid, "principal is missing or too long").
			WithHint("Name who gets the role: user/alice, service/ci, an account id, or group/PROVIDER/NAME.")
	}
	if err := s.Role.Validate(); err != nil {
		return err
	}
	if in != "" && s.Installation {
		return fault.New(fault.Invalid, "a grant in the installation cannot name project %s", in).WithHint("Leave out the project or installation.")
	}
	if in == "" && s.Role != Admin && s.Role != Auditor {
		return fault.New(fault.Invalid, "role %s cannot be held in the whole installation", s.Role).
			WithHint("Grant it in a project; only admin and auditor exist in the installation.")
	}
	if s.Object == "" {
		return nil
	}
	kind, name, ok := strings.Cut(s.Object, "/")
	if !ok || in == "" {
		return fault.New(fault.Invalid, "object %.80q does not name an object of a project", s.Object).
			WithHint("Write kind/name, such as dataset/weather, in a grant of the object's project.")
	}
	if err := id.CheckName("object kind", kind); err != nil {
		return err
	}
	return checkObjectName(name)
}

// maxObjectName bounds the name of an object, in characters: registered models have the longest.
const maxObjectName = 256

// checkObjectName refuses what is no name of any kind of object. The kinds have stricter
// rules; a grant may also name an object that does not exist yet.
func checkObjectName(name string) error {
	_, versioned := id.CutVersion(name)
	bad := func(r rune) bool { return unicode.IsControl(r) || strings.ContainsRune("/:", r) }
	if !versioned && utf8.ValidString(name) && utf8.RuneCountInString(name) <= maxObjectName && !strings.ContainsFunc(name, bad) &&
		strings.TrimSpace(name) != "" && name != "." && !strings.HasPrefix(name, "..") {
		return nil
	}
	return fault.New(fault.Invalid, "object name %.80q is not a name", name).
		WithHint("Write the name as the object has it, without a version: dataset/weather, model/ResNet50.")
}

// Names reports whether the grant is limited to this object; every version of
// it counts.
func (g Grant) Names(kind, name string) bool {
	if g.Object == "" || kind == "" || name == "" {
		return false
	}
	base, _ := id.CutVersion(name)
	return g.Object == kind+"/"+base
}
