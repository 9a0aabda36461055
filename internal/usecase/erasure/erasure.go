// Package erasure finds and erases persons across the domains, and names the places that it
// cannot search.
//
// # Map
//
//   - Participants (this file) lists the places that are searched by rows and erased;
//     participants.go adapts them. Package privacy erases there, and decides between done and
//     done in part.
//   - remaining.go: the places in which a person may remain: texts are searched for the key, the
//     others are listed as not searched.
//   - pseudonyms.go: how deleted versions and the prediction log name persons.
package erasure

import (
	"context"
	"log/slog"
	"slices"

	"github.com/falaj-ml/falaj/internal/dataset"
	"github.com/falaj-ml/falaj/internal/dataset/ingestion"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/feature"
	"github.com/falaj-ml/falaj/internal/governance/privacy"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/monitoring"
	"github.com/falaj-ml/falaj/internal/registry"
	"github.com/falaj-ml/falaj/internal/serving/prediction"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/tracking"
	"github.com/falaj-ml/falaj/internal/training"
	"github.com/falaj-ml/falaj/internal/training/checkpoint"
)

// Service reaches every place that holds data of persons. Its fields are set once, before the
// server answers; Erasures is set last, because it takes callbacks of the service.
type Service struct {
	DB          *store.DB
	Datasets    dataset.Services
	Ingestion   *ingestion.Service
	Features    feature.Services
	Predictions *prediction.Log
	Registry    *registry.Erasure
	Training    *training.Records
	Checkpoints *checkpoint.Service
	Tracking    *tracking.Erasure
	Monitoring  *monitoring.Service
	Backups     string // directory of the backups; empty: the server makes none
	Erasures    *privacy.Service
	Log         *slog.Logger
}

// Canonical implements privacy.Config.Canonical.
func (s *Service) Canonical(ctx context.Context, p, entity string, values []string) ([]string, error) {
	return s.Features.Erasure.Identify(ctx, project.Name(p), entity, values)
}

// Where implements privacy.Config.Where.
func (s *Service) Where(ctx context.Context, p, entity string) (privacy.Where, error) {
	person, err := s.datasets().person(ctx, privacy.Subject{Project: p, Entity: entity})
	return privacy.Where{Keys: person.Keys, Columns: person.Columns}, err
}

// Trained implements privacy.Config.Trained.
func (s *Service) Trained(ctx context.Context, p string, f privacy.Found, id privacy.ID) ([]string, error) {
	refs, err := s.datasets().named(ctx, project.Name(p), f)
	if err != nil {
		return nil, err
	}
	return s.Registry.TrainedOn(ctx, project.Name(p), refs, string(id))
}

// Participants are the places that are searched by rows, and erased. What is made of
// something else comes after it: else it would be made again.
func (s *Service) Participants() []privacy.Participant {
	return []privacy.Participant{
		erasedStreams{s.datasets()}, erasedIngestions{s.datasets(), s.Ingestion}, s.datasets(), erasedOnline{s.Features.Erasure, s.Features.Materialisation, s.Log}, erasedPredictions{s.Predictions, s.Features.Erasure},
	}
}

// Touching names the erasures of persons who had rows in dataset versions, or in what
// has stood for them since.
func (s *Service) Touching(ctx context.Context, tx *store.Tx, p project.Name, datasets []string) ([]string, error) {
	names := slices.Clone(datasets)
	for _, text := range datasets {
		ref, err := dataset.ParseRef(text)
		if err != nil {
			continue // it is no version of a dataset
		}
		since, err := s.Datasets.Lineage.StandIns(ctx, tx, p, ref)
		if err != nil && !fault.Is(err, fault.NotFound) { // its dataset was deleted
			return nil, err
		}
		for _, r := range since {
			names = append(names, r.String())
		}
	}
	return s.Erasures.Touching(ctx, tx, string(p), names)
}

func (s *Service) datasets() erasedDatasets {
	return erasedDatasets{datasets: s.Datasets, features: s.Features.Erasure, learned: func(ctx context.Context, p project.Name) (map[string][]string, error) {
		return s.Registry.Learned(ctx, p)
	}}
}
