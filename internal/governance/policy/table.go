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

Everything is refused unless a role below allows it. A refused caller without any
role in a project is told that the project does not exist. Every refusal is in
the audit log before it is answered.

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
- **✓** the role has it in its project; an ` + "`admin`" + ` or ` + "`auditor`" + ` of the whole installation has it in every project.
- **own** only for objects that belong to the caller.
- **system** only with the role in the whole installation.
- **class** the role has it for ` + "`public`" + ` and ` + "`internal`" + ` data only. ` + "`confidential`" + ` data needs the role engineer or admin.
- ` + "`restricted`" + ` data is read only with a grant that names the object, for admins too.
- The class of data goes with what is made of it: artifacts, params, tags and metrics of runs, files of models,
  logs and errors of jobs, checkpoints, statistics of columns, predictions and findings. Reading these takes what
  reading the data takes: of restricted data a grant that names the object, or one for each restricted dataset it
  was made of. Names, states and times stay open. A job reads no more than its submitter may at the same time.
- **scope** an attempt's token may carry it, for one project and usually one object; an attempt has no roles.
- Members of any project may read zones and pools.
- A token's scopes and its project narrow its owner's roles and never widen them.
- A project adds Cedar policies of its own, manifests of kind Policy, for the actions of datasets, features,
  environments, jobs, runs, models, deployments and monitors, reading what exists and relabelling excepted.
  A forbid wins over every role; no policy of a project can widen a token, open
  restricted data or reach another project.
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
