package serving

import (
	"github.com/falaj-ml/falaj/internal/fault"
)

// Isolation is where a model runs: in the server's process or in one of its own.
type Isolation string

// The isolations.
const (
	Auto      Isolation = "auto"
	InProcess Isolation = "in-process"
	Child     Isolation = "child"
)

// InProcessRule names models that the administrator trusts as the server's own code.
// A rule matches when all of its fields that are set match; one that sets none
// matches nothing.
type InProcessRule struct {
	Project string
	Model   string
	Signer  string // id of the key that signed the version
}

func (r InProcessRule) matches(project string, m Model) bool {
	return r != (InProcessRule{}) &&
		(r.Project == "" || r.Project == project) &&
		(r.Model == "" || r.Model == m.Name) &&
		(r.Signer == "" || r.Signer == m.Signer)
}

// InProcessPolicy is the administrator's list of models that may run in the server's
// process. The empty policy, the default, permits none.
type InProcessPolicy []InProcessRule

func (p InProcessPolicy) permits(project string, m Model) bool {
	for _, r := range p {
		if r.matches(project, m) {
			return true
		}
	}
	return false
}

// inProcess decides whether a verified version runs in the server's process. It is the
// only place that does: everything else defaults to a process of its own.
func (p InProcessPolicy) inProcess(project string, s Spec, m Model) (bool, error) {
	wants := Auto
	if s.Runtime != nil && s.Runtime.Isolation != "" {
		wants = s.Runtime.Isolation
	}
	permitted := p.permits(project, m)
	switch {
	case wants == Child:
		return false, nil
	case wants == InProcess && !permitted:
		return false, fault.New(fault.PermissionDenied, "spec.runtime.isolation: in-process is not permitted, because serving.in_process does not list version %d of %s", m.Version, m.Name).
			WithHint("Remove spec.runtime.isolation: the model then runs in its own process. An administrator can add the model to serving.in_process.")
	}
	return permitted && !s.replicated(), nil
}
