package httpapi

import (
	"context"
	"encoding/json"
	"math"
	"slices"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/feature"
	"github.com/falaj-ml/falaj/internal/monitoring/label"
	"github.com/falaj-ml/falaj/internal/monitoring/verification"
)

func (s *Server) labelRoutes(p string) {
	route(s, "POST", p+"/deployments/{name}/labels", "label.write", "Add labels (ground truth) to predictions", s.addLabels)
	route(s, "GET", p+"/deployments/{name}/labels", "deployment.read", "Count the labels of a deployment by outcome", s.countLabels)
	route(s, "GET", p+"/deployments/{name}/rollout", "deployment.read", "Get the progress of the newest rollout: evidence for both versions and the decision", s.rolloutProgress)
	route(s, "POST", p+"/deployments/{name}/verify", "feature.history", "Verify the features of a sample of predictions by recomputing them", s.verifyAnswers).keepsNothing()
}

// LabelBody is a label as it comes.
type LabelBody struct {
	ID     string `json:"id" maxLength:"256" doc:"Prediction ID"`
	Value  any    `json:"value,omitempty" doc:"The true value: a number, true or false, or a class as text"`
	Values []any  `json:"values,omitempty" doc:"Labels by row for a request with several rows; null if a row's label is unknown"`
	At     string `json:"at,omitempty" doc:"When the label became known (RFC 3339); empty: now"`
}

func (b LabelBody) label(i int) (label.Label, error) {
	l := label.Label{ID: b.ID}
	var err error
	if l.At, err = instant("at", b.At); err != nil {
		return l, fault.Wrap(err, "labels[%d]", i)
	}
	values := b.Values
	switch {
	case b.Value != nil && len(b.Values) > 0:
		return l, fault.New(fault.Invalid, "labels[%d] has both value and values", i)
	case b.Value != nil:
		values = []any{b.Value}
	}
	texts := slices.ContainsFunc(values, func(v any) bool { _, text := v.(string); return text })
	for n, v := range values {
		switch v := v.(type) {
		case nil:
			if texts {
				l.Texts = append(l.Texts, "")
			} else {
				l.Values = append(l.Values, math.NaN())
			}
		case string:
			if v == "" {
				return l, fault.New(fault.Invalid, "labels[%d].values[%d]: the class is empty", i, n).WithHint("Send null if a row's label is unknown.")
			}
			l.Texts = append(l.Texts, v)
		case json.Number:
			x, err := v.Float64()
			if err != nil {
				return l, fault.New(fault.Invalid, "labels[%d]: %.40s is beyond the range of a float64", i, v)
			}
			l.Values = append(l.Values, x)
		case bool:
			x := 0.0
			if v {
				x = 1
			}
			l.Values = append(l.Values, x)
		default:
			return l, fault.New(fault.Invalid, "labels[%d].values[%d]: %v is not a number, true, false or text", i, n, v)
		}
	}
	return l, nil
}

func (s *Server) addLabels(ctx context.Context, in *struct {
	InDeployment
	Body struct {
		Labels []LabelBody `json:"labels" maxItems:"10000" doc:"The labels"`
	}
},
) (*body[label.Answer], error) {
	labels := make([]label.Label, len(in.Body.Labels))
	for i, b := range in.Body.Labels {
		var err error
		if labels[i], err = b.label(i); err != nil {
			return nil, err
		}
	}
	return one(s.Labels.Add(ctx, in.Project, in.Name, labels))
}

func (s *Server) countLabels(ctx context.Context, in *InDeployment) (*body[label.Counts], error) {
	return one(s.Labels.Counts(ctx, in.Project, in.Name))
}

func (s *Server) rolloutProgress(ctx context.Context, in *InDeployment) (*body[label.Progress], error) {
	return one(s.Labels.Progress(ctx, in.Project, in.Name))
}

func (s *Server) verifyAnswers(ctx context.Context, in *struct {
	InDeployment
	Body struct {
		Sample int    `json:"sample,omitempty" minimum:"0" maximum:"20000" doc:"Size of the random sample of requests; 0 means 1,000"`
		Seed   uint64 `json:"seed,omitempty" doc:"Random seed: the same seed selects the same requests from the same log"`
	}
},
) (*body[feature.AnswersReport], error) {
	return one(s.Verifications.Verify(ctx, verification.Request{
		Project: in.Project, Deployment: in.Name, Sample: in.Body.Sample, Seed: in.Body.Seed,
	}))
}
