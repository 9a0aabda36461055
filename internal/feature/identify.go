package feature

import (
	"context"
	"encoding/json"
	"strings"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/feature/value"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/store"
)

// Use is where features of an entity come from.
type Use struct {
	Keys  []string        // join keys of the entity
	Read  map[string]bool // names of the datasets that its views read, in any version
	views []View          // of the entity, in any version
}

// Use says where features of an entity come from. It asks for no permission: who
// erases a person may not be somebody who sees features. Error: fault.NotFound.
func (s *Erasure) Use(ctx context.Context, p project.Name, entity string) (Use, error) {
	u := Use{Read: map[string]bool{}}
	err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		u.views = nil
		d, err := s.find(ctx, tx, p, EntityKind, entity)
		if err != nil {
			return err
		}
		e, err := d.entity()
		if err != nil {
			return err
		}
		u.Keys = e.JoinKeys
		return s.eachView(ctx, tx, p, func(v View) {
			if len(v.about(entity)) > 0 {
				u.views = append(u.views, v)
			}
		})
	})
	if err != nil {
		return Use{}, err
	}
	for _, v := range u.views {
		for _, ref := range v.Source.sources() {
			name, _, _ := strings.Cut(ref, "@")
			u.Read[name] = true
		}
	}
	return u, nil
}

// eachView visits the views of a project, in all versions.
func (s *core) eachView(ctx context.Context, tx *store.Tx, p project.Name, visit func(View)) error {
	for after := ""; ; {
		latest, err := s.definitionStore.Latest(ctx, tx, p, ViewKind, after, 100)
		if err != nil {
			return err
		}
		for _, l := range latest {
			after = l.Name
			for below := 0; ; {
				ds, err := s.definitionStore.Definitions(ctx, tx, p, ViewKind, l.Name, below, 100)
				if err != nil {
					return err
				}
				for _, d := range ds {
					below = d.Version
					v, err := d.view()
					if err != nil {
						return err
					}
					visit(v)
				}
				if len(ds) < 100 {
					break
				}
			}
		}
		if len(latest) < 100 {
			return nil
		}
	}
}

// Readers are the versions of views that read a dataset, whatever its version. It asks
// for no permission: who deletes the dataset may not be somebody who sees features.
func (s *Definitions) Readers(ctx context.Context, tx *store.Tx, p project.Name, dataset string) (refs []string, err error) {
	return refs, s.eachView(ctx, tx, p, func(v View) {
		for _, ref := range v.Source.sources() {
			if name, _, _ := strings.Cut(ref, "@"); name == dataset {
				refs = append(refs, v.Ref())
				return
			}
		}
	})
}

// about are the places of an entity's join keys among those of the view.
func (v View) about(entity string) (at []int) {
	for i, k := range v.Keys {
		if name, _, _ := strings.Cut(k.Entity, "@"); name == entity {
			at = append(at, i)
		}
	}
	return at
}

// Identify gives values of an entity's join keys as rows have them: "4711" for
// "+4711" where they are int64. Errors: fault.NotFound for an unknown entity;
// fault.Invalid for another number of values, or one of another type.
func (s *Erasure) Identify(ctx context.Context, p project.Name, entity string, values []string) ([]string, error) {
	e, err := s.entity(ctx, p, entity)
	if err != nil {
		return nil, err
	}
	parts, err := e.parse(entity, values)
	if err != nil {
		return nil, err
	}
	out := make([]string, len(parts))
	for i, v := range parts {
		out[i] = v.String()
	}
	return out, nil
}

// entity is the newest definition of an entity.
func (s *core) entity(ctx context.Context, p project.Name, name string) (e Entity, err error) {
	err = s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		d, err := s.find(ctx, tx, p, EntityKind, name)
		if err == nil {
			e, err = d.entity()
		}
		return err
	})
	return e, err
}

// parse reads values of the entity's join keys.
func (e Entity) parse(entity string, values []string) ([]value.Value, error) {
	if len(values) != len(e.JoinKeys) {
		return nil, fault.New(fault.Invalid, "entity %s has %d join keys, and %d are given", entity, len(e.JoinKeys), len(values)).
			WithHint("Give the values of %s, in this order.", strings.Join(e.JoinKeys, ", "))
	}
	t, err := typeOf("type", e.Type)
	if err != nil {
		return nil, err
	}
	out := make([]value.Value, len(values))
	for i, text := range values {
		v, err := keyValue(t, text)
		if err != nil || v.IsNull() {
			// Not the value itself: what is refused may be a person's key all the same.
			return nil, fault.New(fault.Invalid, "the value of %s is not a valid %s", e.JoinKeys[i], t)
		}
		out[i] = v
	}
	return out, nil
}

// keyValue reads a part of a key as text.
func keyValue(t value.Type, text string) (value.Value, error) {
	switch t {
	case value.Int64, value.Int32:
		return value.Parse(t, json.Number(strings.TrimPrefix(text, "+")))
	case value.Bool:
		return value.Parse(t, map[string]any{"true": true, "false": false}[text]) // else null
	default:
		return value.Parse(t, text)
	}
}

// Redacted says that a dataset version stands for a training set now, without the
// rows of a person: what is known of how the one came to be holds for the other.
func (s *Erasure) Redacted(ctx context.Context, p project.Name, was string, is DatasetVersion) error {
	return s.cfg.DB.Update(ctx, string(p), func(ctx context.Context, tx *store.Tx) error {
		t, err := s.trainingSetStore.TrainingSet(ctx, tx, p, was)
		if fault.Is(err, fault.NotFound) {
			return nil // it is no training set
		}
		if err != nil {
			return err
		}
		t.Dataset, t.Digest, t.Rows = is.Ref, is.Digest, is.Rows
		return s.trainingSetStore.PutTrainingSet(ctx, tx, t)
	})
}
