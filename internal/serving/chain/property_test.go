package chain_test

import (
	"context"
	"fmt"
	"reflect"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/serving/batching"
	"github.com/falaj-ml/falaj/internal/serving/chain"
	"github.com/falaj-ml/falaj/internal/serving/runtime"
)

// drawn is a request of a load.
type drawn struct {
	In     []runtime.Tensor
	Want   []string
	At     time.Duration
	Cancel time.Duration // after it came; 0: never
}

func drawRequest(t *rapid.T) drawn {
	rows := rapid.IntRange(0, 4).Draw(t, "rows")
	temp, carrier, hour := make([]float64, rows), make([]string, rows), make([]int32, rows)
	for i := range rows {
		temp[i] = rapid.Float64Range(-50, 50).Draw(t, "temp")
		carrier[i] = rapid.SampledFrom([]string{"AA", "UA", "AA", "UA", "AA", "UA", "AA", "UA", "??"}).Draw(t, "carrier")
		hour[i] = rapid.Int32Range(-5, 5).Draw(t, "hour")
	}
	d := drawn{In: []runtime.Tensor{doubles("temp", temp...), texts("carrier", carrier...), hours(hour...)}, At: time.Duration(rapid.IntRange(0, 10).Draw(t, "at")) * time.Millisecond}
	d.Want = rapid.SampledFrom([][]string{{"label"}, {"sure", "label", "over", "hour"}, {"X", "label"}, {"hour"}}).Draw(t, "want")
	if rapid.IntRange(0, 4).Draw(t, "cancelled") == 0 {
		d.Cancel = time.Duration(rapid.IntRange(1, 5).Draw(t, "cancel")) * time.Millisecond
	}
	return d
}

// Whoever asks beside it, a request is answered as it is alone: with its own rows, or with
// the error that says its own row. Who leaves takes nobody along.
func TestRepliesOfAChain(t *testing.T) {
	alone, err := chain.New(full(), &shared{model: linear()}, []runtime.Session{&shared{model: scaler()}})
	if err != nil {
		t.Fatal(err)
	}
	rapid.Check(t, func(rt *rapid.T) {
		load := rapid.SliceOfN(rapid.Custom(drawRequest), 1, 20).Draw(rt, "load")
		cores := rapid.IntRange(1, 2).Draw(rt, "cores")
		verdict := batching.Verdict{May: rapid.SampledFrom([]batching.May{batching.Yes, batching.Untried}).Draw(rt, "verdict")}
		synctest.Test(t, func(t *testing.T) {
			main := linear()
			quick := main.answer
			main.answer = func(ctx context.Context, in []runtime.Tensor) ([]runtime.Tensor, error) {
				select {
				case <-time.After(3 * time.Millisecond):
					return quick(ctx, in)
				case <-ctx.Done():
					return nil, fault.New(fault.Timeout, "broken off")
				}
			}
			c, err := chain.New(full(), &shared{model: main}, []runtime.Session{&shared{model: scaler()}})
			if err != nil {
				t.Fatal(err)
			}
			q := batching.New(batching.NewCores(cores), c, batching.Options{}, verdict, nil)
			var all sync.WaitGroup
			for i, d := range load {
				all.Go(func() {
					ctx := t.Context()
					time.Sleep(d.At) //nolint:forbidigo // of synctest's time
					if d.Cancel > 0 {
						var cancel context.CancelFunc
						ctx, cancel = context.WithTimeout(ctx, d.Cancel)
						defer cancel()
					}
					got, err := q.Infer(ctx, batching.Request{Inputs: d.In, Outputs: d.Want})
					if d.Cancel > 0 && (fault.Is(err, fault.Timeout) || fault.Is(err, fault.Unavailable)) {
						return
					}
					want, wrong := alone.Infer(t.Context(), d.In, d.Want)
					if fmt.Sprint(err) != fmt.Sprint(wrong) || err == nil && !reflect.DeepEqual(got.Outputs, want) {
						t.Errorf("request %d: %v (%v), alone %v (%v)", i, got.Outputs, err, want, wrong)
					}
				})
			}
			all.Wait()
		})
	})
}

// shared is a model that many ask at a time.
type shared struct {
	mu sync.Mutex
	*model
}

func (s *shared) Infer(ctx context.Context, in []runtime.Tensor, outputs []string) ([]runtime.Tensor, error) {
	s.mu.Lock()
	m := &model{meta: s.meta, answer: s.answer}
	s.mu.Unlock()
	return m.Infer(ctx, in, outputs)
}
