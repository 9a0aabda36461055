package batching_test

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/serving/batching"
	"github.com/falaj-ml/falaj/internal/serving/runtime"
	"github.com/falaj-ml/falaj/internal/serving/runtime/runtimetest"
)

// crowd is a load above what a few cores do, on a model whose runs take a time by
// their rows and by chance.
type crowd struct {
	cores, threads, batch int
	fixed, row            time.Duration
	pace                  func(r *rand.Rand, run int) float64
	rows                  int // of a request, at most
	widths                int // kinds of requests
}

// paced is its model.
type paced struct {
	*runtimetest.Tokens
	crowd *crowd
	seed  uint64
	runs  atomic.Int64
}

func (p *paced) Infer(ctx context.Context, in []runtime.Tensor, outputs []string) ([]runtime.Tensor, error) {
	n := int(p.runs.Add(1))
	r := rand.New(rand.NewPCG(p.seed, uint64(n)))
	took := float64(p.crowd.fixed+time.Duration(in[0].Shape[0])*p.crowd.row) * p.crowd.pace(r, n)
	pass(time.Duration(took))
	return p.Tokens.Infer(ctx, in, outputs)
}

// fate is what became of a request.
type fate struct {
	allowed, waited time.Duration
	answered        bool
	refused         bool // at once, by what was expected
}

// play is what becomes of the requests; the one that is patient allows any time. Most
// who are refused wrongly are so because others before them leave.
func (c crowd) play(t *testing.T, seed uint64, patient int) []fate {
	t.Helper()
	const n = 400
	fates := make([]fate, n)
	synctest.Test(t, func(t *testing.T) {
		model := &paced{Tokens: &runtimetest.Tokens{}, crowd: &c, seed: seed}
		q := batching.New(batching.NewCores(c.cores), model, batching.Options{MaxRows: c.batch, Threads: c.threads}, batching.Verdict{May: batching.Yes}, nil)
		r := rand.New(rand.NewPCG(seed, 0))
		mean := float64(c.fixed)/float64(max(1, c.batch/2)) + float64(c.row)*float64(1+c.rows)/2 // of a request, if runs are half full
		every := mean * float64(c.threads) / float64(c.cores) / 1.3
		var all sync.WaitGroup
		at := 0.0
		for i := range n {
			at += r.ExpFloat64() * every
			came, rows, width := time.Duration(at), 1+r.IntN(c.rows), 1+r.IntN(c.widths)
			fates[i].allowed = time.Duration(math.Exp(r.Float64()*4) * (float64(c.fixed) + mean) / 2)
			all.Go(func() {
				pass(came)
				ask := batching.Request{Inputs: runtimetest.TokensOf(1, rows, width), Outputs: same, Timeout: fates[i].allowed}
				if i == patient {
					ask.Timeout = 0
				}
				began := time.Now()
				a, err := q.Infer(t.Context(), ask)
				fates[i].answered, fates[i].waited = err == nil, a.Queue
				if err != nil {
					fates[i].waited = time.Since(began)
					fates[i].refused = fates[i].waited == 0
					if !fault.Is(err, fault.Unavailable) || !errors.Is(err, batching.ErrHurried) {
						t.Error(err)
					}
				}
			})
		}
		all.Wait()
	})
	return fates
}

// TestExpected: hardly anybody is refused who would have been answered in time, most of
// who would not are refused at once, and nobody waits longer than is allowed.
func TestExpected(t *testing.T) {
	ms := time.Millisecond
	even := func(*rand.Rand, int) float64 { return 1 }
	noisy := func(r *rand.Rand, _ int) float64 { return math.Exp(r.NormFloat64() * 0.3) }
	for name, c := range map[string]struct {
		crowd
		least float64 // of those that are not answered in time: refused at once
	}{
		"even":             {crowd{1, 1, 1, 0, 10 * ms, even, 1, 1}, 0.5},
		"noisy":            {crowd{1, 1, 1, 10 * ms, 0, noisy, 1, 1}, 0.2},
		"batches":          {crowd{1, 1, 16, 10 * ms, ms, noisy, 1, 1}, 0},
		"rows":             {crowd{1, 1, 16, 5 * ms, 2 * ms, noisy, 12, 1}, 0.2},
		"rows, one by one": {crowd{1, 1, 1, 5 * ms, 2 * ms, noisy, 50, 1}, 0.2},
		"widths":           {crowd{1, 1, 16, 5 * ms, ms, noisy, 4, 5}, 0},
		"three cores":      {crowd{3, 1, 1, 5 * ms, 2 * ms, noisy, 20, 1}, 0.1},
		"wide runs":        {crowd{4, 2, 8, 5 * ms, 2 * ms, noisy, 8, 1}, 0.1},
		"a large one now and then": {crowd{1, 1, 1, 10 * ms, 0, func(r *rand.Rand, _ int) float64 {
			if r.IntN(20) == 0 {
				return 30
			}
			return 1
		}, 1, 1}, 0},
		"slow at first": {crowd{1, 1, 1, 10 * ms, 0, func(_ *rand.Rand, run int) float64 {
			if run < 60 {
				return 5
			}
			return 1
		}, 1, 1}, 0.2},
	} {
		t.Run(name, func(t *testing.T) {
			var inTime, late, atOnce, wrong, tried int
			for seed := range uint64(4) {
				fates := c.play(t, seed, -1)
				for i, f := range fates {
					if f.waited > f.allowed {
						t.Errorf("request %d waited for %s, and allowed %s", i, f.waited, f.allowed)
					}
					switch {
					case f.answered:
						inTime++
					case !f.refused:
						late++
					case (i+int(seed))%5 == 0: // some of them would have waited for …
						tried++
						if was := c.play(t, seed, i)[i]; was.waited <= f.allowed {
							wrong++
						}
						fallthrough
					default:
						atOnce++
					}
				}
			}
			t.Logf("%d in time, %d late, %d refused at once, of %d of these %d wrongly", inTime, late, atOnce, tried, wrong)
			if share := float64(wrong) / float64(max(1, tried)); share > 0.1 {
				t.Errorf("%.0f%% of the refused would have been answered in time", 100*share)
			}
			if share := float64(atOnce) / float64(max(1, atOnce+late)); share < c.least {
				t.Errorf("%.0f%% of the late are refused at once", 100*share)
			}
		})
	}
}
