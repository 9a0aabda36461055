package registry

import (
	"context"
	"slices"
	"strings"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/tracking"
)

// ErasedTag is the tag of versions that were trained on rows of persons who were
// erased since. Its value names the erasures.
const ErasedTag = "falaj.erasure"

// Erasure finds the versions that were trained on rows of a person. It checks no permission:
// privacy, its caller, has done so.
type Erasure struct{ *core }

// TrainedOn lists the versions whose producer could read one of the dataset
// versions, as "delay@3", and deleted ones, which somebody may have copied, as
// "delay@3 (deleted)". With an erasure, those that are not deleted are flagged by the
// tag ErasedTag, each once. It asks for no permission to see them: who erases a person
// may not be somebody who sees models.
func (s *Erasure) TrainedOn(ctx context.Context, p project.Name, datasets []string, erasure string) (names []string, err error) {
	const page = 1000
	for offset := 0; ; offset += page {
		var found []Version
		if err := s.db.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
			found, err = s.store.SearchVersions(ctx, tx, p, Query{Limit: page, Offset: offset, Deleted: true})
			return err
		}); err != nil {
			return nil, err
		}
		for _, v := range found {
			if !slices.ContainsFunc(v.Datasets, func(ref string) bool { return slices.Contains(datasets, ref) }) {
				continue
			}
			if v.State == Deleted {
				names = append(names, v.String()+" (deleted)")
				continue
			}
			names = append(names, v.String())
			if erasure == "" {
				continue
			}
			if err := s.flag(ctx, p, v, erasure); err != nil {
				return nil, err
			}
		}
		if len(found) < page {
			slices.Sort(names)
			return names, nil
		}
	}
}

// Learned maps the dataset versions that producers of model versions could read to these
// versions, deleted ones too. It asks for no permission, as TrainedOn.
func (s *Erasure) Learned(ctx context.Context, p project.Name) (map[string][]string, error) {
	const page = 1000
	by := map[string][]string{}
	for offset := 0; ; offset += page {
		var found []Version
		if err := s.db.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
			found, err = s.store.SearchVersions(ctx, tx, p, Query{Limit: page, Offset: offset, Deleted: true})
			return err
		}); err != nil {
			return nil, err
		}
		for _, v := range found {
			for _, ref := range v.Datasets {
				by[ref] = append(by[ref], v.String())
			}
		}
		if len(found) < page {
			return by, nil
		}
	}
}

func (s *Erasure) flag(ctx context.Context, p project.Name, v Version, erasure string) error {
	var all []string
	for _, t := range v.Tags {
		if t.Key == ErasedTag && t.Value != "" {
			all = strings.Split(t.Value, ",")
		}
	}
	if slices.Contains(all, erasure) {
		return nil
	}
	all = append(all, erasure)
	return s.setVersionTag(ctx, p, v.Model, v.Number, tracking.Pair{Key: ErasedTag, Value: strings.Join(all, ",")})
}

// ours refuses the tag that says on whom a version was trained: who could take it away
// could have the version pass for one that need not be trained again.
func ours(key string) error {
	if key != ErasedTag {
		return nil
	}
	return fault.New(fault.PermissionDenied, "the tag %s is set by erasures of persons and cannot be changed", ErasedTag).
		WithHint("Train the model again on the current version of its data, and register the new model.")
}

// flagNew flags a version that is registered after the erasure of a person whose rows
// it was trained on: TrainedOn had not found it.
func (s *Versions) flagNew(ctx context.Context, tx *store.Tx, v Version) error {
	if s.erased == nil || len(v.Datasets) == 0 {
		return nil
	}
	erasures, err := s.erased(ctx, tx, v.Project, v.Datasets)
	if err != nil || len(erasures) == 0 {
		return fault.Wrap(err, "searching for persons erased from the training data")
	}
	return s.store.PutVersionTags(ctx, tx, v.ModelID, v.Number, []tracking.Pair{{Key: ErasedTag, Value: strings.Join(erasures, ",")}})
}
