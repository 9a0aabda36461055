package feature

import (
	"context"

	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/store"
)

// Lineage is the upstream and downstream lineage of a view version.
type Lineage struct {
	View         string            `json:"view"`
	Digest       string            `json:"digest"`
	Sources      map[string]string `json:"sources"`       // table → dataset, as declared
	Materialised []Run             `json:"materialised"`  // newest first, with exact versions
	TrainingSets []TrainingSet     `json:"training_sets"` // newest first, with exact versions
}

// lineageDepth bounds the lists of a Lineage.
const lineageDepth = 100

// Lineage follows a view version both ways. Needs feature.read.
func (s *Definitions) Lineage(ctx context.Context, p project.Name, view string) (Lineage, error) {
	if err := s.allow(ctx, ActionRead, p, view); err != nil {
		return Lineage{}, err
	}
	var l Lineage
	err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		d, err := s.find(ctx, tx, p, ViewKind, view)
		if err != nil {
			return err
		}
		v, err := d.view()
		if err != nil {
			return err
		}
		l = Lineage{View: v.Ref(), Digest: v.Digest, Sources: v.Source.sources()}
		if l.Materialised, err = s.runStore.Runs(ctx, tx, p, v.Name, v.Version, "", lineageDepth); err != nil {
			return err
		}
		l.TrainingSets, err = s.trainingSetStore.TrainingSets(ctx, tx, p, v.Name, v.Version, lineageDepth)
		return err
	})
	return l, err
}
