package goodput

// Limits are the batch sizes with which a job may run, and its most replicas.
type Limits struct {
	MinLocal, MaxLocal int // samples that one replica computes at once
	MinBatch, MaxBatch int // samples of one step of the whole job; the least is the initial batch size m0
	MaxReplicas        int
}

// Batch is how one replica computes its part of a step: Accumulated+1 times Local
// samples.
type Batch struct{ Local, Accumulated int }

// Global is the number of samples of a step of all replicas.
func (b Batch) Global(replicas int) int { return replicas * b.Local * (b.Accumulated + 1) }

// Split divides a global batch among replicas. One replica that computes more than
// m0 accumulates at least once, because the variance of gradients cannot be told
// from one batch.
func (l Limits) Split(global, replicas int) Batch {
	local := ceil(global, replicas)
	k := ceil(local, l.MaxLocal) - 1
	if replicas == 1 && global > l.MinBatch {
		k = max(k, 1)
	}
	k = max(min(k, l.MaxBatch/replicas-1), 0) // each part has a sample
	return Batch{Local: min(ceil(local, k+1), l.MaxBatch/(replicas*(k+1))), Accumulated: k}
}

func ceil(a, b int) int { return (a + b - 1) / b }

// Gradient are the squared norm of the mean gradient, and the sum of the
// variances of its components, of a step with the initial batch size m0.
type Gradient struct{ Sqr, Var float64 }

// Gain is how many steps with the initial batch size one step with s times as
// many samples is worth (McCandlish et al. 2018; Pollux, section 3.1).
// Of a gradient that was not seen yet, it is 1: a larger batch gains nothing.
func (g Gradient) Gain(s float64) float64 {
	if d := g.Var/s + g.Sqr; d > 0 {
		return (g.Var + g.Sqr) / d
	}
	return 1
}
