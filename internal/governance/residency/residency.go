// Package residency keeps data in its zones: labels and their inheritance. Outside is the
// predicate, and the one place where it stands. Guard (an interface in zone.go, implemented by
// border.Guard) asks it for each transfer and writes it down: storage that is opened, models that
// are deployed. The scheduler asks it for each placement; compute/zone.go says in which zone a pool is.
package residency

import (
	"slices"
	"strings"

	"github.com/falaj-ml/falaj/internal/fault"
)

// Zone names a place with a jurisdiction: "home", "AE", "AE-DIFC", "DE".
type Zone string

// Home is the zone of what carries no label.
const Home Zone = "home"

// Label is the set of zones where data may be, sorted, without duplicates.
// A nil Label means {home}; there is no label that allows every zone.
type Label []Zone

// Of makes a label.
func Of(zones ...Zone) Label {
	l := slices.Clone(zones)
	slices.Sort(l)
	return slices.Compact(l)
}

// Zones lists the label, with nil spelled out.
func (l Label) Zones() []Zone {
	if len(l) == 0 {
		return []Zone{Home}
	}
	return l
}

// Allows reports whether data with this label is allowed in the zone.
func (l Label) Allows(z Zone) bool {
	_, outside := Outside(l.Zones(), z)
	return !outside
}

// Outside is the first of zones that is not among the allowed ones, if there is one. It is
// the predicate of every placement: of the scheduler, of pools, and of every door.
func Outside[Z ~string](allowed []Z, zones ...Z) (Z, bool) {
	for _, z := range zones {
		if !slices.Contains(allowed, z) {
			return z, true
		}
	}
	return "", false
}

// String is "AE, home".
func (l Label) String() string {
	names := make([]string, 0, len(l))
	for _, z := range l.Zones() {
		names = append(names, string(z))
	}
	return strings.Join(names, ", ")
}

// Parent is something a derivation could read.
type Parent struct {
	Name  string // "dataset weather@1"
	Label Label
}

// Derive is the label of what is made from parents: the intersection of theirs.
// An empty intersection refuses the derivation and names the parents. Without
// parents the label is {home}.
func Derive(parents ...Parent) (Label, error) {
	if len(parents) == 0 {
		return Of(Home), nil
	}
	common := parents[0].Label.Zones()
	for _, p := range parents[1:] {
		common = slices.DeleteFunc(slices.Clone(common), func(z Zone) bool { return !p.Label.Allows(z) })
	}
	if len(common) > 0 {
		return Of(common...), nil
	}
	where := make([]string, len(parents))
	for i, p := range parents {
		where[i] = p.Name + " (" + p.Label.String() + ")"
	}
	return nil, fault.New(fault.PermissionDenied, "no zone may hold data derived from %s", strings.Join(where, " and ")).
		WithHint("Derive from inputs that share a zone, or have two people widen a label with a reason.")
}

// Check is the door: it refuses what may not be in the zone. what names the
// thing and where the use, e.g. "dataset weather@1", "pool cloud".
func Check(what string, l Label, where string, z Zone) error {
	if l.Allows(z) {
		return nil
	}
	return fault.New(fault.PermissionDenied, "%s is allowed only in %s, and %s is in %s", what, l, where, z).
		WithHint("Choose a place in %s. To allow %s as well, add that zone to its residency; for an existing object, two people widen its label.", l, z)
}
