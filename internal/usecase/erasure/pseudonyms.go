package erasure

import (
	"context"
	"crypto/sha256"

	"github.com/tink-crypto/tink-go/v2/tink"

	"github.com/falaj-ml/falaj/internal/dataset"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/serving/gateway"
	"github.com/falaj-ml/falaj/internal/serving/prediction"
)

// Pseudonyms implements dataset.Config.Pseudonyms.
func (s *Service) Pseudonyms() dataset.Pseudonyms { return pseudonyms{s} }

// pseudonyms implements dataset.Pseudonyms: who had rows in versions that are deleted is
// named as erasures name persons.
type pseudonyms struct{ s *Service }

var _ dataset.Pseudonyms = pseudonyms{}

// Entities implements dataset.Pseudonyms.
func (n pseudonyms) Entities(ctx context.Context, p project.Name) (all []dataset.Person, err error) {
	ctx = identity.With(ctx, identity.Loop("erasure"))
	for after := ""; ; {
		entities, err := n.s.Features.Definitions.Entities(ctx, p, after, 500)
		if err != nil {
			return nil, err
		}
		for _, e := range entities {
			after = e.Name
			use, err := n.s.Features.Erasure.Use(ctx, p, e.Name)
			if err != nil {
				return nil, err
			}
			all = append(all, dataset.Person{Project: p, Entity: e.Name, Keys: use.Keys, Read: use.Read})
		}
		if len(entities) < 500 {
			return all, nil
		}
	}
}

// Of implements dataset.Pseudonyms.
func (n pseudonyms) Of(p project.Name, entity string, values []string) [sha256.Size]byte {
	return n.s.Erasures.Pseudonym(string(p), entity, values)
}

// Erased implements dataset.Pseudonyms.
func (n pseudonyms) Erased(ctx context.Context, p project.Name) (map[string]map[[sha256.Size]byte]string, error) {
	gone, err := n.s.Erasures.Gone(ctx, string(p))
	out := map[string]map[[sha256.Size]byte]string{}
	for _, g := range gone {
		if out[g.Subject.Entity] == nil {
			out[g.Subject.Entity] = map[[sha256.Size]byte]string{}
		}
		out[g.Subject.Entity][g.Subject.Pseudonym()] = string(g.Subject.Erasure)
	}
	return out, err
}

// Box implements dataset.Pseudonyms.
func (n pseudonyms) Box(ctx context.Context, p project.Name) (tink.AEAD, error) {
	return n.s.Erasures.Box(ctx, string(p))
}

// Entities gives for each entity of which persons were erased from a project who
// they all are.
func (s *Service) Entities(ctx context.Context, p string) ([]prediction.Person, error) {
	if s.Erasures == nil { // while the server opens
		return nil, nil
	}
	ctx = identity.With(ctx, identity.Loop("erasure"))
	erased, err := pseudonyms{s}.Erased(ctx, project.Name(p))
	if err != nil {
		return nil, err
	}
	var all []prediction.Person
	for entity, persons := range erased {
		use, err := s.Features.Erasure.Use(ctx, project.Name(p), entity)
		if fault.Is(err, fault.NotFound) {
			continue // nothing is called like its keys
		}
		if err != nil {
			return nil, err
		}
		all = append(all, prediction.Person{Project: p, Keys: use.Keys, Is: func(values []string) bool {
			return persons[s.Erasures.Pseudonym(p, entity, values)] != ""
		}})
	}
	return all, nil
}

// ErasedUntil implements gateway.Config.Erased.
func (s *Service) ErasedUntil(ctx context.Context, project string) ([]gateway.Erased, error) {
	gone, err := s.Erasures.Gone(ctx, project)
	if err != nil {
		return nil, err
	}
	persons := erasedPredictions{s.Predictions, s.Features.Erasure}
	out := make([]gateway.Erased, len(gone))
	for i, g := range gone {
		person, err := persons.person(identity.With(ctx, identity.Loop("gateways")), g.Subject)
		if err != nil {
			return nil, err
		}
		out[i] = gateway.Erased{Person: person, Until: g.Until}
	}
	return out, nil
}
