package authorizer

import (
	"slices"
	"sync"

	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/governance/project"
)

// question is what a decision is about. Beside it, only the principal's grants and the
// policies of the project decide.
type question struct {
	principal identity.Principal
	action    policy.Action
	object    policy.Object
}

// Bounds of the questions whose answers are remembered: how many, and the bytes of a name.
const (
	answersSize = 8192
	answerName  = 200
)

// answers remembers what was allowed, because the same is asked again and again, each
// time by the edge and by a domain. An answer counts for the very grants and policies it
// was found with: when these are read anew it is decided anew. The zero answers are
// ready; safe for concurrent use.
type answers struct {
	mu   sync.RWMutex
	kept map[asked]answer
}

// asked is what of a question can be compared; answer has the rest.
type asked struct {
	contents                                   bool
	kind                                       identity.Kind
	id, name                                   string
	bound                                      project.Name
	action                                     policy.Action
	project, object, of, owner, classification string
}

type answer struct {
	question
	grants  []project.Grant
	rules   []rule
	verdict verdict
}

func (q question) asked() asked {
	p, o := q.principal, q.object
	return asked{o.Contents, p.Kind, p.ID, p.Name, p.Project, q.action, o.Project, o.Name, o.Kind, o.Owner, o.Classification}
}

func (m *answers) find(q question, grants []project.Grant, rules []rule) (verdict, bool) {
	m.mu.RLock()
	a, ok := m.kept[q.asked()]
	m.mu.RUnlock()
	ok = ok && same(a.grants, grants) && same(a.rules, rules) &&
		slices.Equal(a.principal.Scopes, q.principal.Scopes) && slices.Equal(a.object.Residency, q.object.Residency) &&
		slices.Equal(a.object.Sources, q.object.Sources)
	return a.verdict, ok
}

func (m *answers) keep(q question, grants []project.Grant, rules []rule, v verdict) {
	if max(len(q.object.Project), len(q.object.Kind), len(q.object.Name), len(q.object.Owner)) > answerName {
		return // it is whatever a caller has written
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.kept == nil || len(m.kept) >= answersSize {
		m.kept = map[asked]answer{}
	}
	m.kept[q.asked()] = answer{q, grants, rules, v}
}

// same reports whether two lists are one and the same, which is also held by who
// compares: neither changes.
func same[T any](a, b []T) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}
