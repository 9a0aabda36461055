package app

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"testing"

	"github.com/falaj-ml/falaj/internal/governance/project"
)

// TestEachProject: a project that cannot be swept holds up no other.
func TestEachProject(t *testing.T) {
	broken, away := errors.New("broken"), errors.New("away")
	pages := 3
	list := func(_ context.Context, _ int, token string) ([]project.Project, string, error) {
		page, _ := strconv.Atoi(token)
		if page == pages {
			return nil, "", away
		}
		next := strconv.Itoa(page + 1)
		if page == 2 && pages > 2 {
			next = ""
		}
		return []project.Project{{Name: project.Name("a" + token)}, {Name: project.Name("b" + token)}}, next, nil
	}
	var seen []project.Name
	act := func(_ context.Context, p project.Name) error {
		if seen = append(seen, p); p == "a" || p == "b1" {
			return broken
		}
		return nil
	}
	if err := eachProject(t.Context(), list, act); !errors.Is(err, broken) || !slices.Equal(seen, []project.Name{"a", "b", "a1", "b1", "a2", "b2"}) {
		t.Errorf("%v, then %v", seen, err)
	}
	pages = 1
	if err := eachProject(t.Context(), list, act); !errors.Is(err, broken) || !errors.Is(err, away) {
		t.Errorf("a list that breaks off: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	seen = nil
	if err := eachProject(ctx, list, act); !errors.Is(err, context.Canceled) || len(seen) != 1 {
		t.Errorf("while Falaj stops: %v, %v", seen, err)
	}
}
