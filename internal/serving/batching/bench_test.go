package batching_test

import (
	"context"
	"testing"

	"github.com/falaj-ml/falaj/internal/serving/batching"
	"github.com/falaj-ml/falaj/internal/serving/runtime"
	"github.com/falaj-ml/falaj/internal/serving/runtime/runtimetest"
)

// nothing is a session that takes no time.
type nothing struct{ *runtimetest.Tokens }

func (nothing) Infer(_ context.Context, in []runtime.Tensor, _ []string) ([]runtime.Tensor, error) {
	return in, nil
}

// BenchmarkIdle is what a queue adds to a lone request on an idle server.
func BenchmarkIdle(b *testing.B) {
	in := runtimetest.TokensOf(1, 1, 8)
	for name, infer := range map[string]func() error{
		"session": func() error {
			_, err := nothing{}.Infer(b.Context(), in, same)
			return err
		},
		"queue": func() func() error {
			q := batching.New(batching.NewCores(2), nothing{}, batching.Options{Project: "nyc"}, batching.Verdict{May: batching.Yes}, nil)
			return func() error {
				_, err := q.Infer(b.Context(), batching.Request{Inputs: in, Outputs: same})
				return err
			}
		}(),
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if err := infer(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
