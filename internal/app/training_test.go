package app

import (
	"slices"
	"testing"

	"github.com/falaj-ml/falaj/internal/training"
)

// The token of an attempt may read the job's inputs, by their versions, and
// write its tables; nothing else of the project's data.
func TestScopesOfAnAttempt(t *testing.T) {
	got := scopesOf(training.Job{
		Inputs: []training.Input{{Name: "a", Ref: "dataset delays@3"}, {Name: "b", Ref: "dataset delays@3"}},
		Spec:   training.Spec{Tables: []string{"late"}},
	})
	want := append(slices.Clone(attemptScopes), "dataset.read:delays@3", "dataset.query:delays@3", "dataset.read:late", "dataset.query:late", "dataset.import:late")
	if !slices.Equal(got, want) {
		t.Errorf("scopes %q, want %q", got, want)
	}
}
