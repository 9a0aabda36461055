package serving

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/serving/batching"
	"github.com/falaj-ml/falaj/internal/serving/runtime"
)

// shadows runs requests again on shadow versions, beside and after their
// answers, a few at a time. What finds no place is dropped and counted.
type shadows struct {
	places  chan struct{} // those that wait or run
	bytes   *atomic.Int64 // of theirs
	running chan struct{}
	dropped *sync.Map // key → *atomic.Int64
	all     *sync.WaitGroup
}

// Bounds of the requests that are kept in memory for shadows.
const (
	shadowPlaces = 64
	shadowBytes  = 256 << 20
)

func newShadows(processors int) shadows {
	return shadows{
		places: make(chan struct{}, shadowPlaces), bytes: &atomic.Int64{}, running: make(chan struct{}, max(1, processors/2)), dropped: &sync.Map{}, all: &sync.WaitGroup{},
	}
}

// cast shows an answered request to the shadow.
func (h *shadows) cast(ctx context.Context, c *call) {
	x := c.table.shadow
	k := key{c.r.Project, c.r.Name}
	select {
	case h.places <- struct{}{}:
	default:
		h.drop(k)
		return
	}
	size := c.filled.bytes()
	leave := func() {
		h.bytes.Add(-size)
		<-h.places
	}
	if h.bytes.Add(size) > shadowBytes {
		leave()
		h.drop(k)
		return
	}
	if !x.enter() {
		leave()
		return // it is no shadow any more
	}
	c = c.asked()
	h.all.Go(func() {
		defer leave()
		defer x.leave()
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.s.cfg.Timeout)
		defer cancel()
		select {
		case h.running <- struct{}{}:
		case <-ctx.Done():
			h.drop(k)
			return
		}
		defer func() { <-h.running }()
		c.again(ctx, x)
	})
}

func (h *shadows) drop(k key) {
	n, _ := h.dropped.LoadOrStore(k, &atomic.Int64{})
	n.(*atomic.Int64).Add(1)
}

// count is how many requests of a deployment no shadow saw.
func (h *shadows) count(k key) int64 {
	if n, ok := h.dropped.Load(k); ok {
		return n.(*atomic.Int64).Load()
	}
	return 0
}

// asked is the call without what was answered, and without what its features were
// found by.
func (c *call) asked() *call {
	q, r := *c, *c.r
	r.Inputs, q.r, q.outputs, q.answer = nil, &r, nil, Answer{}
	return &q
}

// again asks the shadow what was asked, and remembers what it said.
func (c *call) again(ctx context.Context, x *target) {
	began := time.Now()
	var out []runtime.Tensor
	err := x.meta.Check(c.filled.inputs)
	var inputs []runtime.Tensor
	if err == nil {
		inputs, err = x.meta.Arrange(c.filled.inputs)
	}
	if err == nil && c.table.features != nil { // it may have replicas where the answering version has none
		err = c.s.fenced(ctx, c.r.Project, x, c.table.deployment.FeatureSet)
	}
	if err == nil {
		wanted := x.score.output
		if wanted == "" && len(x.meta.Outputs) > 0 {
			wanted = x.meta.Outputs[0].Name
		}
		out, err = x.ask(ctx, batching.Request{Inputs: inputs, Outputs: c.also(x, []string{wanted}), Background: true})
	}
	latency := time.Since(began)
	x.tally.add(latency, err)
	if err := c.remember(identity.With(ctx, identity.Loop("shadow")), x, out, latency, err, true); err != nil {
		c.s.log.WarnContext(ctx, "logging a shadow's prediction failed", slog.String("deployment", c.r.Name), slog.String("error", err.Error()))
	}
}
