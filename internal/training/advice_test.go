package training_test

import (
	"strings"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/compute"
	"github.com/falaj-ml/falaj/internal/compute/engine/enginetest"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/resource"
	"github.com/falaj-ml/falaj/internal/training"
	"github.com/falaj-ml/falaj/internal/training/sizing"
)

func (w *world) advice(tb testing.TB, id training.JobID) training.Advice {
	tb.Helper()
	d, err := w.Advice(alice(tb.Context()), nyc, id)
	if err != nil {
		tb.Fatal(err)
	}
	return d
}

// TestAdvice: the sentence of a job comes from what its family showed on two pools
// with other devices and prices.
func TestAdvice(t *testing.T) {
	w, e, c := still(t)
	spec := training.Spec{Resources: oneGPU, Pools: []string{"big"}, Batch: 64}
	use := of(0.22, 6*resource.GiB)
	first := w.run(t, e, c, "resnet-1", spec, 2.2, use, use)
	if d := w.advice(t, first.ID); d.Sentence != "used 22 % of an A100 and 6 of 80 GiB; 3 cores and 7 GiB would do" || len(d.Options) != 0 || d.Family != "resnet" || d.Currency == "" {
		t.Errorf("alone: %q, %+v", d.Sentence, d)
	}
	spec.Pools = []string{"small"}
	for _, name := range []string{"resnet-2", "resnet-3", "resnet-4", "resnet-5"} {
		w.run(t, e, c, name, spec, 2, of(0.9, 6*resource.GiB))
	}
	d := w.advice(t, first.ID)
	if !strings.HasSuffix(d.Sentence, "; a T4 would take 1.1x the time at 0.3x the price (measured in 4 attempts)") {
		t.Errorf("%q", d.Sentence)
	}
	if len(d.Options) != 1 || d.Options[0].Pool != "small" || d.Options[0].Known != sizing.Measured || d.Now.Pool != "big" || d.Now.Hourly != 30 || d.Unit != sizing.Examples || d.Attempts != 1 {
		t.Errorf("%+v", d)
	}
	// Another batch is other work.
	spec.Batch, spec.Pools = 128, []string{"big"}
	other := w.run(t, e, c, "resnet-6", spec, 2.2, use)
	if d := w.advice(t, other.ID); len(d.Options) != 0 {
		t.Errorf("%+v", d.Options)
	}
	// A pool that may not take it is no option, whatever was measured there.
	abroad := compute.PoolSpec{Engine: "far", Zone: "DE", PricePerHour: 9, Nodes: []compute.Node{{
		Name: "t1", CPU: resource.Cores(16), Memory: 64 * resource.GiB, Accelerators: oneGPU.Accelerators, Labels: map[string]string{"gpu.model": "Tesla T4"},
	}}}
	if _, _, err := w.compute.ApplyPool(alice(t.Context()), "abroad", abroad); err != nil {
		t.Fatal(err)
	}
	closed := abroad
	closed.Engine, closed.Zone, closed.Closed = "local", "home", "no money"
	if _, _, err := w.compute.ApplyPool(alice(t.Context()), "closed", closed); err != nil {
		t.Fatal(err)
	}
	if d := w.advice(t, first.ID); len(d.Options) != 1 {
		t.Errorf("%+v", d.Options)
	}
}

// Like jobs say what one that ran on one device only would take on the other.
func TestAdviceFromLikeJobs(t *testing.T) {
	w, e, c := still(t)
	spec := training.Spec{Resources: oneGPU}
	use := of(0.5, 6*resource.GiB)
	for _, family := range []string{"a", "b", "c", "d", "e", "f"} {
		for pool, pace := range map[string]float64{"big": 8, "small": 7} {
			spec.Pools = []string{pool}
			w.run(t, e, c, family, spec, pace, use)
		}
	}
	spec.Pools = []string{"big"}
	mine := w.run(t, e, c, "mine", spec, 3, use)
	d := w.advice(t, mine.ID)
	if len(d.Options) != 1 || d.Options[0].Known != sizing.LikeJobs || d.Options[0].Families != 6 || !strings.Contains(d.Sentence, "(from 6 like jobs)") {
		t.Errorf("%q, %+v", d.Sentence, d.Options)
	}
}

// TestAdviceNow: of a job that runs, what it used until now; of one that waits,
// nothing.
func TestAdviceNow(t *testing.T) {
	w, e, c := still(t)
	e.uses(of(0.4, 3*resource.GiB))
	j := w.submit(t, training.Spec{Resources: oneGPU, Pools: []string{"small"}})
	h := w.started(t)
	w.running(t, j.ID)
	waits := w.submit(t, training.Spec{Resources: oneGPU, Pools: []string{"small"}})
	for range 3 {
		c.pass(10 * time.Second)
		if err := w.MeasureOnce(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if d := w.advice(t, j.ID); d.State != training.Running || d.Samples != 3 || !strings.HasPrefix(d.Sentence, "used 40 % of a T4 and 3 of 16 GiB") || d.Seconds <= 0 {
		t.Errorf("%+v", d)
	}
	w.runs.mu.Lock()
	w.runs.progress = training.Progress{First: training.Point{Step: 1, At: c.now()}, Last: training.Point{Step: 101, At: c.now().Add(100 * time.Second)}}
	w.runs.mu.Unlock()
	e.uses(of(0.4, 3*resource.GiB))
	big := w.submit(t, training.Spec{Resources: oneGPU, Pools: []string{"big"}})
	w.fake.Finish(w.started(t), enginetest.Exit{})
	w.ended(t, big.ID)
	if d := w.advice(t, j.ID); len(d.Options) != 1 || d.Options[0].Pool != "big" || d.Attempts != 1 {
		t.Errorf("what runs is not compared: %+v", d)
	}
	if d := w.advice(t, waits.ID); d.Sentence != "" || d.Used != nil || d.Family != "train" {
		t.Errorf("%+v", d)
	}
	w.fake.Finish(h, enginetest.Exit{})
	w.ended(t, j.ID)
}

// Who may not read a job gets no advice, and nobody any of a job that is not there.
func TestAdviceIsRefused(t *testing.T) {
	w := newWorld(t)
	j := w.submit(t, training.Spec{})
	w.fake.Finish(w.started(t), enginetest.Exit{})
	w.ended(t, j.ID)
	if _, err := w.Advice(alice(t.Context()), nyc, "job_no"); !fault.Is(err, fault.NotFound) {
		t.Error(err)
	}
	if _, err := w.Advice(alice(t.Context()), "other", j.ID); !fault.Is(err, fault.NotFound) {
		t.Error(err)
	}
	w.auth.mu.Lock()
	w.auth.deny[training.ActionRead] = true
	w.auth.mu.Unlock()
	if _, err := w.Advice(alice(t.Context()), nyc, j.ID); !fault.Is(err, fault.PermissionDenied) {
		t.Error(err)
	}
}
