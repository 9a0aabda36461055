package serving_test

import (
	"context"
	goruntime "runtime"
	"sync"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/serving"
	"github.com/falaj-ml/falaj/internal/serving/runtime"
)

// gated runs models whose runs wait for the test.
type gated struct {
	runtime.Runtime
	runs chan chan struct{} // of each run: to be closed
}

type gatedSession struct {
	runtime.Session
	of *gated
}

func (g *gated) Load(ctx context.Context, model []byte, o runtime.Options) (runtime.Session, error) {
	s, err := g.Runtime.Load(ctx, model, o)
	return gatedSession{s, g}, err
}

func (s gatedSession) Infer(ctx context.Context, in []runtime.Tensor, outputs []string) ([]runtime.Tensor, error) {
	end := make(chan struct{})
	select {
	case s.of.runs <- end:
	case <-ctx.Done():
		return nil, fault.New(fault.Timeout, "over")
	}
	select {
	case <-end:
		return s.Session.Infer(ctx, in, outputs)
	case <-ctx.Done():
		return nil, fault.New(fault.Timeout, "over")
	}
}

// gate is a fed pond whose models wait.
func gate(t *testing.T, limit time.Duration, b serving.BatchingSpec) (*pond, *gated, *notes) {
	t.Helper()
	p, w, n := fed(t)
	c := p.config()
	g := &gated{c.Runtime, make(chan chan struct{})}
	c.Runtime, c.Features, c.Predictions = g, w, n
	p.services = newServices(c)
	s := spec(serving.FeaturesSpec{})
	b.MaxRows = 1
	s.Batching = &b
	p.apply(t, s)
	p.SetTimeout(limit) // bounds the loading, too, which is not what is tested
	return p, g, n
}

// busy takes all cores until free is called.
func (g *gated) busy(t *testing.T, p *pond) (free func()) {
	t.Helper()
	var all sync.WaitGroup
	var runs []chan struct{}
	for range goruntime.GOMAXPROCS(0) {
		all.Go(func() {
			if _, err := p.Infer(t.Context(), keyed([]float64{1}, "JFK")); err != nil {
				t.Error(err)
			}
		})
		runs = append(runs, <-g.runs)
	}
	return func() {
		for _, r := range runs {
			close(r)
		}
		all.Wait()
	}
}

// TestGaveUp: the records tell who was too impatient from versions that failed.
func TestGaveUp(t *testing.T) {
	for name, c := range map[string]struct {
		waits                      bool // for a core
		limit, queue, own, allowed time.Duration
		cancels                    bool
		want                       string
	}{
		"it goes away":                    {cancels: true, want: "gave_up"},
		"its deadline":                    {allowed: time.Millisecond, want: "gave_up"},
		"its deadline, in the queue":      {waits: true, allowed: time.Millisecond, want: "gave_up"},
		"its time-out":                    {waits: true, own: time.Millisecond, want: "gave_up"},
		"the deployment's time-out":       {waits: true, queue: time.Millisecond, want: "unavailable"},
		"the server's limit":              {limit: 50 * time.Millisecond, want: "timeout"},
		"the server's before its own":     {limit: 50 * time.Millisecond, allowed: time.Hour, want: "timeout"},
		"its time-out is of waiting only": {own: time.Millisecond, limit: 50 * time.Millisecond, want: "timeout"},
	} {
		t.Run(name, func(t *testing.T) {
			limit := time.Minute
			if c.limit > 0 {
				limit = c.limit
			}
			var b serving.BatchingSpec
			if c.queue > 0 {
				b.Timeout = c.queue.String()
			}
			p, g, n := gate(t, limit, b)
			if c.waits {
				defer g.busy(t, p)()
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if c.allowed > 0 {
				ctx, cancel = context.WithTimeout(ctx, c.allowed)
				defer cancel()
			}
			if c.cancels {
				go func() {
					<-g.runs
					cancel()
				}()
			} else if !c.waits {
				go func() { <-g.runs }()
			}
			r := keyed([]float64{1}, "JFK")
			r.ID, r.Timeout = "it", c.own
			if _, err := p.Infer(ctx, r); err == nil {
				t.Fatal("it was answered")
			}
			for i := range n.records {
				if got := n.records[i]; got.ID == "it" && got.Failure != c.want {
					t.Errorf("%q is remembered, want %q", got.Failure, c.want)
				} else if got.ID == "it" {
					return
				}
			}
			t.Error("nothing is remembered")
		})
	}
}

// TestScoreWaits: rows that are scored wait until no request wants the cores.
func TestScoreWaits(t *testing.T) {
	p, g, _ := gate(t, time.Minute, serving.BatchingSpec{})
	free := g.busy(t, p)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	scored := make(chan error)
	score := func(ctx context.Context) {
		_, err := p.Score(ctx, "nyc", "d", 1, serving.Rows{Values: [][]float64{{700, 30}}})
		scored <- err
	}
	go score(ctx)
	select {
	case <-g.runs:
		t.Error("it runs beside all cores: ", <-scored)
	case err := <-scored:
		if !fault.Is(err, fault.Timeout) {
			t.Error(err)
		}
	}
	free()
	go score(t.Context())
	close(<-g.runs)
	if err := <-scored; err != nil {
		t.Error(err)
	}
}
