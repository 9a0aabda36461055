package serving_test

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/serving"
	"github.com/falaj-ml/falaj/internal/serving/prediction"
)

// forgetful takes records and keeps none: what is measured is making them.
type forgetful struct{}

func (forgetful) Append(context.Context, *prediction.Record) error { return nil }

// constant are features that cost nothing.
type constant struct{ rows serving.FeatureRows }

func (constant) Describe(context.Context, string, string) (serving.FeatureSet, error) {
	return serving.FeatureSet{Ref: "weather@2", JoinKeys: []string{"origin"}, Features: []string{"weather@3:temp"}}, nil
}

func (constant) Label(context.Context, string, string) (residency.Label, error) { return nil, nil }

func (c constant) Read(context.Context, serving.FeatureRead) (serving.FeatureRows, error) {
	return c.rows, nil
}

// BenchmarkInfer is the path of a request without HTTP, model and store: what
// serving itself costs, bare, with records, and with a canary and features.
func BenchmarkInfer(b *testing.B) {
	for _, c := range []struct {
		name                     string
		records, canary, feature bool
		sleeps                   bool
	}{{name: "bare"}, {name: "sleeps", sleeps: true}, {name: "records", records: true}, {name: "canary", records: true, canary: true}, {name: "features", records: true, canary: true, feature: true}} {
		b.Run(c.name, func(b *testing.B) {
			p := newPond(b)
			cfg := p.config()
			if c.records {
				cfg.Predictions = forgetful{}
			}
			spec := serving.Spec{Model: "m"}
			if c.sleeps {
				spec.Scale = &serving.ScaleSpec{Min: new(int)}
			}
			in := ask
			if c.feature {
				cfg.Features = constant{serving.FeatureRows{At: noon, Columns: []serving.FeatureColumn{{
					Values: []float64{30}, Statuses: []serving.FeatureStatus{serving.FeaturePresent}, Events: make([]time.Time, 1),
				}}}}
				spec.Features = &serving.FeaturesSpec{Service: "weather", Input: "X", Columns: []string{"distance", "weather:temp"}}
				in = keyed([]float64{1}, "JFK").Inputs
			}
			p.services = newServices(cfg)
			if _, _, err := p.Apply(b.Context(), "nyc", "d", spec, false); err != nil {
				b.Fatal(err)
			}
			if c.canary {
				if _, err := p.Start(b.Context(), "nyc", "d", serving.RolloutRequest{Version: "2", Weight: 20}); err != nil {
					b.Fatal(err)
				}
			}
			keys := make([]string, 1024)
			for i := range keys {
				keys[i] = "key " + strconv.Itoa(i)
			}
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				i++
				if _, err := p.Infer(b.Context(), serving.Request{Project: "nyc", Name: "d", ID: "x", Inputs: in, RouteKey: keys[i%len(keys)]}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
