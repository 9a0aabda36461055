package ingestion

import (
	"strings"
	"testing"

	"github.com/falaj-ml/falaj/internal/governance/project"
)

// TestFairly: projects take turns, and one with runs under way comes after those
// without.
func TestFairly(t *testing.T) {
	for _, c := range []struct{ due, under, want string }{
		{"a1 a2 a3 b1", "", "a1 b1 a2 a3"},
		{"a1 a2 b1 c1", "a9", "b1 c1 a1 a2"},
		{"a1 a2 b1", "a1", "b1 a2"},
		{"", "a1", ""},
	} {
		var due []Run
		for id := range strings.FieldsSeq(c.due) {
			due = append(due, Run{ID: RunID(id), Project: project.Name(id[:1])})
		}
		under := map[RunID]project.Name{}
		for id := range strings.FieldsSeq(c.under) {
			under[RunID(id)] = project.Name(id[:1])
		}
		var got []string
		for _, r := range fairly(due, under) {
			got = append(got, string(r.ID))
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("due %q, under way %q: %q, want %q", c.due, c.under, got, c.want)
		}
	}
}
