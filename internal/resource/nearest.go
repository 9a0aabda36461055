package resource

import "github.com/agnivade/levenshtein"

// Nearest is the name among others that is meant by one that is not among them;
// empty when none is close, as words go.
func Nearest(name string, names []string) string {
	if len(name) > 100 {
		return ""
	}
	best, distance := "", 1+len(name)/5
	for _, n := range names {
		if d := levenshtein.ComputeDistance(name, n); n != name && d <= distance {
			best, distance = n, d-1
		}
	}
	return best
}
