package policy

import (
	"fmt"
	"strings"

	"github.com/falaj-ml/falaj/internal/governance/project"
)

// Table renders the list of actions as the Markdown of
// docs/reference/permissions.md.
func Table() string {
	var b strings.Builder
	b.WriteString(`# Permissions

Generated from ` + "`internal/governance/policy/actions.go`" + ` by ` + "`go test ./internal/governance/policy -rewrite`" + `; do not edit.

Every action is denied unless a role below allows it. For a caller without a role in a
project, the error says that the project does not exist. Every denial is in the audit log
before the response is sent.

| action | allows |`)
	for _, r := range project.Roles {
		b.WriteString(" " + string(r) + " |")
	}
	b.WriteString(" attempt |\n|---|---|" + strings.Repeat(":-:|", len(project.Roles)+1) + "\n")
	for _, d := range actions {
		fmt.Fprintf(&b, "| `%s` | %s |", d.Action, d.Doc)
		for _, r := range project.Roles {
			b.WriteString(" " + cell(d, r) + " |")
		}
		if d.Attempt {
			b.WriteString(" scope |\n")
		} else {
			b.WriteString("  |\n")
		}
	}
	b.WriteString(`
- **✓** the role has the action in its project; an ` + "`admin`" + ` or ` + "`auditor`" + ` of the installation has it in every project.
- **own** only for objects that belong to the caller.
- **system** only with the role in the installation.
- **class** the role has the action for ` + "`public`" + ` and ` + "`internal`" + ` data only. ` + "`confidential`" + ` data needs the role engineer or admin.
- ` + "`restricted`" + ` data needs a grant that names the object, also for admins.
- Derived objects inherit the classification of their data: artifacts, params, tags and metrics of runs, files of models,
  logs and errors of jobs, checkpoints, statistics of columns, predictions and alerts. Reading them needs the same
  permissions as reading the data; for restricted data that is a grant that names the object, or a grant for each upstream
  restricted dataset. Names, states and times need only the read action. A job can read only what its submitter can read at the same time.
- **scope** the token of an attempt may have the action, for one project and usually one object; an attempt has no roles.
- Members of every project may read zones and pools.
- A token's scopes and its project restrict its owner's roles and never extend them.
- Projects define their own Cedar policies, manifests of kind Policy, for the actions of datasets, features,
  environments, jobs, runs, models, deployments and monitors, except read and relabel actions.
  A forbid overrides every role. A policy of a project cannot extend a token, permit reading
  restricted data or apply to another project.
`)
	return b.String()
}

func cell(d Definition, r project.Role) string {
	switch {
	case d.Has(r) && d.Installation:
		return "system"
	case d.Has(r) && d.Data && r != project.Engineer && r != project.Admin:
		return "class"
	case d.Has(r):
		return "✓"
	case d.Own:
		return "own"
	}
	return ""
}
