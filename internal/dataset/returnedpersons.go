package dataset

import (
	"context"
	"slices"
)

// Returned is the event that an imported version contains rows of erased persons.
type Returned struct {
	Entity   string   `json:"entity"`
	Persons  int      `json:"persons"`
	Erasures []string `json:"erasures"` // theirs, in order; at most maxReturned
}

// maxReturned bounds the erasures that a version names for an entity.
const maxReturned = 100

// PersonReturned is the payload of EventPersonReturned.
type PersonReturned struct {
	Name     string     `json:"name"` // of the dataset
	Version  VersionID  `json:"version"`
	Number   int64      `json:"number"`
	Returned []Returned `json:"returned"`
}

// returned looks for persons who were erased among the rows that a new version brings
// from outside. What is made of versions that are here brings nobody.
func (s *core) returned(ctx context.Context, v Version) (all []Returned, err error) {
	if s.cfg.Pseudonyms == nil || len(v.Lineage.Parents) > 0 {
		return nil, nil
	}
	erased, err := s.cfg.Pseudonyms.Erased(ctx, v.Project)
	if err != nil || len(erased) == 0 {
		return nil, err
	}
	entities, err := s.cfg.Pseudonyms.Entities(ctx, v.Project)
	if err != nil {
		return nil, err
	}
	for _, p := range entities {
		if len(erased[p.Entity]) == 0 {
			continue
		}
		r, err := s.returnedOf(ctx, p, v, func(values []string) string {
			return erased[p.Entity][s.cfg.Pseudonyms.Of(v.Project, p.Entity, values)]
		})
		if err != nil {
			return nil, err
		}
		if r.Persons > 0 {
			all = append(all, r)
		}
	}
	return all, nil
}

func (s *core) returnedOf(ctx context.Context, p Person, v Version, erasure func(values []string) string) (Returned, error) {
	p.Purpose = "searching for erased persons"
	r := Returned{Entity: p.Entity}
	m := mapper{s: s, p: p, known: map[VersionID]mapped{}, specs: map[ID]Spec{}}
	by, err := m.columns(ctx, v)
	if err != nil || by.columns == nil {
		return r, err
	}
	if err := s.eachKey(ctx, p, v, by.columns, func(values []string) error {
		id := erasure(values)
		if id == "" {
			return nil
		}
		if at, there := slices.BinarySearch(r.Erasures, id); !there {
			r.Persons++
			r.Erasures = slices.Insert(r.Erasures, at, id)
		}
		return nil
	}); err != nil {
		return r, err
	}
	r.Erasures = r.Erasures[:min(len(r.Erasures), maxReturned)]
	return r, nil
}
