package identity

import (
	"slices"
	"strings"

	"github.com/falaj-ml/falaj/internal/id"
)

// Narrowed reports whether the token does less than its principal's roles
// allow. An attempt is always narrowed: without scopes it may do nothing.
func (p Principal) Narrowed() bool { return p.Kind == Attempt || len(p.Scopes) > 0 }

// Admits reports whether a scope of the token covers the action on the object.
// A scope is an action ("run.write") or an action on one object
// ("dataset.query:weather@1", "dataset.query:weather" for every version). An
// object's empty name stands for the whole collection, which only a scope
// without object covers. named reports that the scope names the object.
func (p Principal) Admits(action, object string) (ok, named bool) {
	for _, s := range p.Scopes {
		a, o, limited := strings.Cut(s, ":")
		switch {
		case a != action:
		case !limited:
			ok = true
		case object != "" && (o == object || o == base(object)):
			return true, true
		}
	}
	return ok, false
}

// Touches reports whether some scope covers the action on at least one object.
func (p Principal) Touches(action string) bool {
	return slices.ContainsFunc(p.Scopes, func(s string) bool {
		a, _, _ := strings.Cut(s, ":")
		return a == action
	})
}

// Objects lists the objects that the token's scopes limit the action to;
// every is true when a scope does not limit it.
func (p Principal) Objects(action string) (names []string, every bool) {
	for _, s := range p.Scopes {
		a, o, limited := strings.Cut(s, ":")
		if a != action {
			continue
		}
		if !limited {
			return nil, true
		}
		names = append(names, o)
	}
	return names, false
}

func base(object string) string {
	b, _ := id.CutVersion(object)
	return b
}
