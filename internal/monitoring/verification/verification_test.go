package verification_test

import (
	"context"
	"math"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/feature"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/monitoring/verification"
	"github.com/falaj-ml/falaj/internal/serving/prediction"
)

var at = time.Date(2013, 5, 1, 0, 0, 0, 0, time.UTC)

// world is a log in memory, and remembers what was asked of features.
type world struct {
	records []*prediction.Record
	asked   feature.VerifyAnswersRequest
	denied  bool
}

func (w *world) Allow(context.Context, policy.Action, policy.Object) error {
	if w.denied {
		return fault.New(fault.PermissionDenied, "no")
	}
	return nil
}

func (w *world) Read(_ context.Context, _, _ string, _ prediction.Cursor, visit func(prediction.Cursor, *prediction.Record) error) error {
	for _, r := range w.records {
		if err := visit(prediction.Cursor{}, r); err != nil {
			return err
		}
	}
	return nil
}

func (w *world) VerifyAnswers(_ context.Context, r feature.VerifyAnswersRequest) (feature.AnswersReport, error) {
	w.asked = r
	return feature.AnswersReport{Answers: len(r.Answers)}, nil
}

func (w *world) Served(context.Context, string, string) (verification.Served, error) {
	return verification.Served{Service: "delay@2", Columns: []feature.AnswerColumn{{Feature: "weather:temp"}, {Feature: "weather:new"}}}, nil
}

func (w *world) service() *verification.Service {
	return verification.New(verification.Config{Authorizer: w, Predictions: w, Features: w, Deployments: w})
}

func record(n int) *prediction.Record {
	return &prediction.Record{
		ID: strconv.Itoa(n), At: at, Rows: 1, Keys: []prediction.Column{{Name: "origin", Texts: []string{"JFK"}}},
		Inputs: []prediction.Column{{Name: "distance", Numbers: []float64{1}}, {Name: "weather@3:temp", Numbers: []float64{float64(n)}}},
	}
}

func TestWhatIsCompared(t *testing.T) {
	w := &world{}
	two := record(1)
	two.Rows = 2
	two.Keys = []prediction.Column{{Name: "origin", Texts: []string{"JFK", "EWR"}}, {Name: "n", Numbers: []float64{7, math.NaN()}}}
	two.Inputs[1].Numbers = []float64{10, 11}
	shadow, failed, given, older := record(2), record(3), record(4), record(5)
	shadow.Shadow, failed.Failure, given.Keys, older.Inputs = true, "internal", nil, nil
	w.records = []*prediction.Record{two, shadow, failed, given, older, record(6)}
	r, err := w.service().Verify(t.Context(), verification.Request{Project: "nyc", Deployment: "delay"})
	if err != nil || r.Answers != 3 {
		t.Fatalf("%+v %v", r, err)
	}
	if len(w.asked.Columns) != 1 || w.asked.Columns[0].Feature != "weather:temp" || w.asked.Service != "delay@2" || w.asked.Project != "nyc" {
		t.Errorf("asked %+v", w.asked)
	}
	second := w.asked.Answers[1]
	if second.ID != "1" || second.Row != 1 || second.Values[0] != 11 || second.Keys["origin"] != "EWR" || !second.At.Equal(at) {
		t.Errorf("second row %+v", second)
	}
	if _, there := second.Keys["n"]; there || w.asked.Answers[0].Keys["n"] != 7.0 {
		t.Errorf("keys of numbers: %v %v", w.asked.Answers[0].Keys, second.Keys)
	}
}

// Each request has the same chance, and a seed chooses the same again.
func TestSample(t *testing.T) {
	w := &world{}
	for n := range 200 {
		w.records = append(w.records, record(n))
	}
	counts := make([]int, 200)
	var first []string
	for seed := range uint64(500) {
		if _, err := w.service().Verify(t.Context(), verification.Request{Sample: 20, Seed: seed}); err != nil {
			t.Fatal(err)
		}
		var ids []string
		last := -1.0
		for _, a := range w.asked.Answers {
			if a.Values[0] <= last {
				t.Fatalf("not in the order of answering: %v", w.asked.Answers)
			}
			last = a.Values[0]
			counts[int(last)]++
			ids = append(ids, a.ID)
		}
		if len(w.asked.Answers) != 20 {
			t.Fatalf("%d answers", len(w.asked.Answers))
		}
		if seed == 0 {
			first = ids
		}
	}
	for n, c := range counts { // 50 expected, with a deviation of 6.7
		if c < 15 || c > 90 {
			t.Errorf("request %d was chosen %d times of 500", n, c)
		}
	}
	if _, err := w.service().Verify(t.Context(), verification.Request{Sample: 20}); err != nil {
		t.Fatal(err)
	}
	var again []string
	for _, a := range w.asked.Answers {
		again = append(again, a.ID)
	}
	if !slices.Equal(again, first) {
		t.Errorf("the same seed chose %s, and before %s", again, first)
	}
}

func TestRefusals(t *testing.T) {
	w := &world{}
	if _, err := w.service().Verify(t.Context(), verification.Request{}); !fault.Is(err, fault.Conflict) {
		t.Errorf("nothing to compare: %v", err)
	}
	if _, err := w.service().Verify(t.Context(), verification.Request{Sample: 20_001}); !fault.Is(err, fault.TooLarge) {
		t.Errorf("too much: %v", err)
	}
	w.denied = true
	if _, err := w.service().Verify(t.Context(), verification.Request{}); !fault.Is(err, fault.PermissionDenied) {
		t.Errorf("denied: %v", err)
	}
}
