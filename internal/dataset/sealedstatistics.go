package dataset

import (
	"context"
	"encoding/json"

	"github.com/falaj-ml/falaj/internal/dataset/datafile"
	"github.com/falaj-ml/falaj/internal/dataset/expectation"
	"github.com/falaj-ml/falaj/internal/dataset/statistics"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/policy"
)

// sealedStatistics is what a version tells of the values in its rows. Of a sealed version
// the database has it under the dataset's key only.
type sealedStatistics struct {
	Statistics   []statistics.Summary `json:"statistics,omitempty"`
	Expectations []expectation.Result `json:"expectations,omitempty"`
}

// sealStatistics seals what a version tells of its values, for the database.
func (s *core) sealStatistics(ctx context.Context, v *Version) error {
	if v.Protection == Open {
		return nil
	}
	plain, err := json.Marshal(sealedStatistics{v.Statistics, v.Expectations})
	if err != nil {
		return err
	}
	key, err := s.cfg.Keys.AEAD(ctx, string(v.Project), datafile.Owner(v.Dataset))
	if err != nil {
		return fault.Wrap(err, "the key of %s", v.Dataset)
	}
	v.SealedStatistics, err = key.Encrypt(plain, []byte(v.ID))
	return err
}

// openStatistics gives versions from the database what they tell of their values. With
// the key that is gone.
func (s *core) openStatistics(ctx context.Context, vs ...*Version) error {
	for _, v := range vs {
		may := true
		if v.Classification.Journalled() {
			var err error
			if may, err = policy.Permits(ctx, s.cfg.Authorizer, ActionRead, policy.Object{
				Project: string(v.Project), Kind: objectKind, Name: v.Ref().String(), Classification: string(v.Classification), Residency: v.Residency, Contents: true,
			}); err != nil {
				return err
			}
		}
		if !may { // what the values are like, and which were wrong, is of their class
			v.Statistics, v.Expectations = nil, nil
			if v.Reason != "" {
				v.Reason = "withheld: the version is " + string(v.Classification)
			}
			continue
		}
		if len(v.SealedStatistics) == 0 {
			continue
		}
		key, err := s.cfg.Keys.AEAD(ctx, string(v.Project), datafile.Owner(v.Dataset))
		if fault.Is(err, fault.Gone) {
			continue
		}
		if err != nil {
			return fault.Wrap(err, "the key of %s", v.Ref())
		}
		plain, err := key.Decrypt(v.SealedStatistics, []byte(v.ID))
		if err != nil {
			return fault.Wrap(err, "decrypting the statistics of %s", v.Ref())
		}
		var is sealedStatistics
		if err := json.Unmarshal(plain, &is); err != nil {
			return fault.Wrap(err, "decoding the statistics of %s", v.Ref())
		}
		v.Statistics, v.Expectations = is.Statistics, is.Expectations
	}
	return nil
}

// pointers are for reveal.
func pointers(vs []Version) []*Version {
	out := make([]*Version, len(vs))
	for i := range vs {
		out[i] = &vs[i]
	}
	return out
}
