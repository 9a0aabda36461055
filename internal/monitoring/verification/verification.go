// Package verification proves that models were given what training would give
// them: it samples the answers of a deployment and has package feature recompute
// them offline.
//
// # Map
//
//   - Service.Verify reads the prediction log once, keeps a sample of bounded
//     size, and asks feature.Verification.VerifyAnswers about it.
//
// # Guarantees
//
// Each request with keys has the same chance to be in the sample; the same seed
// chooses the same requests of the same log. Requests that brought the model's
// input themselves, failed ones and those of shadows are not compared.
package verification

import (
	"context"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/feature"
	"github.com/falaj-ml/falaj/internal/feature/naming"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/serving/prediction"
)

// Authorizer decides who may.
type Authorizer interface {
	Allow(ctx context.Context, action policy.Action, object policy.Object) error
}

// Predictions is the log; *prediction.Log is.
type Predictions interface {
	Read(ctx context.Context, project, deployment string, after prediction.Cursor, visit func(prediction.Cursor, *prediction.Record) error) error
}

// Features recomputes; *feature.Verification does.
type Features interface {
	VerifyAnswers(ctx context.Context, r feature.VerifyAnswersRequest) (feature.AnswersReport, error)
}

// Deployments says what a deployment gives its models. Errors: fault.NotFound;
// fault.Invalid for one without features.
type Deployments interface {
	Served(ctx context.Context, project, deployment string) (Served, error)
}

// Served is what a deployment gives its models.
type Served struct {
	Service string // of features, "delay@2"
	Columns []feature.AnswerColumn
	Owner   uint64 // of the deployment's records; see prediction.OwnerOf
}

// Config is what a Service is made of.
type Config struct {
	Authorizer  Authorizer
	Predictions Predictions
	Features    Features
	Deployments Deployments
}

// Service is the only way in. Safe for concurrent use.
type Service struct{ cfg Config }

// New makes a service.
func New(cfg Config) *Service { return &Service{cfg} }

// Request asks for a verification.
type Request struct {
	Project    string
	Deployment string
	Sample     int    // requests: 1,000 when 0, at most 20,000
	Seed       uint64 // of the choice
}

const (
	defaultSample = 1000
	maxSample     = 20_000
	maxRows       = 100_000 // of all requests of a sample
)

// Verify compares a sample of a deployment's answers with what training would
// see. Needs deployment.read, and feature.history on the views. Errors:
// fault.NotFound; fault.Invalid for a deployment without features;
// fault.TooLarge; fault.Conflict when there is nothing to compare; fault.Gone.
func (s *Service) Verify(ctx context.Context, r Request) (feature.AnswersReport, error) {
	none := feature.AnswersReport{}
	if err := s.cfg.Authorizer.Allow(ctx, "deployment.read", policy.Object{Project: r.Project, Kind: "deployment", Name: r.Deployment}); err != nil {
		return none, err
	}
	if r.Sample <= 0 {
		r.Sample = defaultSample
	}
	if r.Sample > maxSample {
		return none, fault.New(fault.TooLarge, "a sample of %d requests is over the limit of %d", r.Sample, maxSample)
	}
	served, err := s.cfg.Deployments.Served(ctx, r.Project, r.Deployment)
	if err != nil {
		return none, err
	}
	sample, err := s.sample(ctx, r, served.Owner)
	if err != nil {
		return none, fault.Wrap(err, "sampling the predictions of %s", r.Deployment)
	}
	if len(sample) == 0 {
		return none, fault.New(fault.Conflict, "deployment %q has served no request with join keys", r.Deployment).
			WithHint("Requests that contain the model's inputs have no looked-up features to compare.")
	}
	// Columns that the answers do not have are of a newer manifest: they are not
	// compared.
	served.Columns = slices.DeleteFunc(slices.Clone(served.Columns), func(c feature.AnswerColumn) bool {
		return !slices.ContainsFunc(sample, func(rec *prediction.Record) bool { return find(rec.Inputs, c.Feature) != nil })
	})
	answers := answersOf(sample, served.Columns)
	return s.cfg.Features.VerifyAnswers(ctx, feature.VerifyAnswersRequest{
		Project: project.Name(r.Project), Service: served.Service, Columns: served.Columns, Answers: answers,
	})
}

// sample chooses requests, each with the same chance (Vitter's algorithm R), and
// brings them into the order in which they were answered.
func (s *Service) sample(ctx context.Context, r Request, owner uint64) ([]*prediction.Record, error) {
	type chosen struct {
		number int64
		rec    *prediction.Record
	}
	rnd := rand.New(rand.NewPCG(r.Seed, 0)) //nolint:gosec // G404: a choice that can be repeated, not a secret
	var kept []chosen
	number := int64(0)
	err := s.cfg.Predictions.Read(ctx, r.Project, r.Deployment, prediction.Cursor{}, func(_ prediction.Cursor, rec *prediction.Record) error {
		if !rec.By(owner) || rec.Shadow || rec.Erased || rec.Failure != "" || len(rec.Keys) == 0 || rec.Rows == 0 {
			return nil
		}
		number++
		if len(kept) < r.Sample {
			kept = append(kept, chosen{number, rec})
			return nil
		}
		if at := rnd.Int64N(number); at < int64(r.Sample) {
			kept[at] = chosen{number, rec}
		}
		return nil
	})
	slices.SortFunc(kept, func(a, b chosen) int { return int(a.number - b.number) })
	out := make([]*prediction.Record, len(kept))
	for i, c := range kept {
		out[i] = c.rec
	}
	return out, err
}

// answersOf are the rows of the requests, as many as are compared in one go.
func answersOf(sample []*prediction.Record, columns []feature.AnswerColumn) []feature.LoggedAnswer {
	var out []feature.LoggedAnswer
	for _, rec := range sample {
		if len(out)+rec.Rows > maxRows {
			break
		}
		inputs := make([]*prediction.Column, len(columns))
		for i, c := range columns {
			inputs[i] = find(rec.Inputs, c.Feature)
		}
		if slices.Contains(inputs, nil) { // answered under another manifest
			continue
		}
		for row := range rec.Rows {
			a := feature.LoggedAnswer{ID: rec.ID, Row: row, At: rec.At, Received: received(rec), Keys: map[string]any{}, Values: make([]float64, len(columns))}
			for _, k := range rec.Keys {
				if len(k.Texts) > 0 {
					a.Keys[k.Name] = k.Texts[row]
				} else if !math.IsNaN(k.Numbers[row]) {
					a.Keys[k.Name] = k.Numbers[row]
				}
			}
			for i, c := range inputs {
				a.Values[i] = c.Numbers[row]
			}
			out = append(out, a)
		}
	}
	return out
}

func received(rec *prediction.Record) time.Time {
	if rec.Received.IsZero() {
		return rec.At
	}
	return rec.Received
}

// find is a column of numbers by the name of a feature.
func find(columns []prediction.Column, name string) *prediction.Column {
	names := make([]string, len(columns))
	for i := range columns {
		names[i] = columns[i].Name
	}
	if at, err := naming.Find(names, name); err == nil && at >= 0 && len(columns[at].Numbers) > 0 {
		return &columns[at]
	}
	return nil
}
