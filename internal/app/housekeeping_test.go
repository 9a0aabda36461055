package app

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"testing"

	"github.com/falaj-ml/falaj/internal/app/schema"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/store/storetest"
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

// Each place where versions are named can be asked, and tells of its project.
func TestCitations(t *testing.T) {
	db := storetest.SQLite(t, schema.Migrations...)
	rows := []string{
		`INSERT INTO training_job (id, project, name, digest, state, waiting, body, revision) VALUES ('job_1', 'nyc', 'train', 'd', 'succeeded', FALSE, '{"ref":"dataset a_b@1"}', 1)`,
		`INSERT INTO training_job (id, project, name, digest, state, waiting, body, revision) VALUES ('job_2', 'other', 'train', 'd', 'succeeded', FALSE, '{"ref":"dataset a_b@2"}', 1)`,
		`INSERT INTO training_job (id, project, name, digest, state, waiting, body, revision) VALUES ('job_3', 'nyc', 'train', 'd', 'succeeded', FALSE, '{"ref":"dataset axb@3"}', 1)`,
		`INSERT INTO tracking_dataset VALUES ('nyc', 0, 'a_b', 'd', 'falaj', '{"ref":"a_b@4"}', '', '')`,
		`INSERT INTO tracking_input VALUES ('run_1', 'a_b', 'd', '', '', 'nyc', 0, 0)`,
		`INSERT INTO feature_definition VALUES ('nyc', 'view', 'v', 1, 'd', '{"dataset":"a_b@5"}', 0, '', '*')`,
		`INSERT INTO feature_training_set VALUES ('nyc', 'made@1', '{"inputs":["a_b@6"]}', 0)`,
		`INSERT INTO ingestion_source VALUES ('src_1', 'nyc', 's', 'a_b', '', FALSE, 1, '', 0, 0, '{"version":8}', '*')`,
		`INSERT INTO monitoring_monitor VALUES ('nyc', 'm', 'mon_1', 'd', '{"baseline":"dataset:a_b@7"}', FALSE, '', 0, 0, 1)`,
	}
	var got []string
	err := db.Update(t.Context(), "nyc", func(ctx context.Context, tx *store.Tx) error {
		got = nil
		for _, r := range rows {
			if _, err := tx.NewRaw(r).Exec(ctx); err != nil {
				return fault.Wrap(err, "%s", r)
			}
		}
		for _, c := range citations {
			if err := c.Mentions(ctx, tx, "nyc", "a_b@", func(by, text string) { got = append(got, by+": "+text) }); err != nil {
				return err
			}
		}
		return nil
	})
	slices.Sort(got)
	want := []string{
		`feature definition v@1: {"dataset":"a_b@5"}`, `job job_1: {"ref":"dataset a_b@1"}`, `monitor m: {"baseline":"dataset:a_b@7"}`, `run run_1: {"ref":"a_b@4"}`,
		`source s: a_b@8`, `training set made@1: {"inputs":["a_b@6"]}`,
	}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%q, %v", got, err)
	}
}
