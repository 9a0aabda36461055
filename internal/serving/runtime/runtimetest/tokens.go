package runtimetest

import (
	"context"
	"slices"
	"sync/atomic"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/serving/runtime"
)

// Tokens is a session for tests of what stands above sessions: it answers the rows
// of its input token [-1,-1] INT64 with the same rows, as output same. A negative
// token fails its run with fault.Invalid, a token of Crash with fault.Internal, and
// Panic makes it panic.
type Tokens struct {
	// Runs is told of each run, which then waits until it is ended or its context
	// is over; nil: runs take no time.
	Runs chan *TokenRun

	Late    atomic.Int64 // runs that began after Close: a defect of who asks
	running atomic.Int64
	Most    atomic.Int64 // runs at the same time, at most
	closed  atomic.Bool
}

// What Tokens does not answer.
const (
	Crash = 1 << 40
	Panic = 1 << 41
)

var _ runtime.Session = (*Tokens)(nil)

// TokenRun is a run of Tokens that waits.
type TokenRun struct {
	Ctx     context.Context
	Rows    int
	Tokens  []int64 // the first column
	Outputs []string
	end     chan error
}

// End lets the run answer, or fail.
func (r *TokenRun) End(err error) { r.end <- err }

// TokensOf is a request's input: rows of so many columns, each the token.
func TokensOf(token int64, rows, columns int) []runtime.Tensor {
	return []runtime.Tensor{{Name: "token", Datatype: runtime.Int64, Shape: []int64{int64(rows), int64(columns)}, Data: slices.Repeat([]int64{token}, rows*columns)}}
}

// Metadata implements runtime.Session.
func (*Tokens) Metadata() runtime.Metadata {
	return runtime.Metadata{
		Platform: "tokens",
		Inputs:   []runtime.Spec{{Name: "token", Datatype: runtime.Int64, Shape: []int64{-1, -1}}},
		Outputs:  []runtime.Spec{{Name: "same", Datatype: runtime.Int64, Shape: []int64{-1, -1}}},
	}
}

// Infer implements runtime.Session.
func (s *Tokens) Infer(ctx context.Context, inputs []runtime.Tensor, outputs []string) ([]runtime.Tensor, error) {
	if s.closed.Load() {
		s.Late.Add(1)
	}
	n := s.running.Add(1)
	defer s.running.Add(-1)
	for most := s.Most.Load(); n > most && !s.Most.CompareAndSwap(most, n); most = s.Most.Load() {
	}
	if ctx.Err() != nil {
		return nil, fault.New(fault.Timeout, "over")
	}
	in := inputs[0]
	data := slices.Clone(in.Data.([]int64))
	if s.Runs != nil {
		r := &TokenRun{Ctx: ctx, Rows: int(in.Shape[0]), Outputs: outputs, end: make(chan error, 1)}
		for i := range r.Rows {
			r.Tokens = append(r.Tokens, data[i*len(data)/r.Rows])
		}
		select {
		case s.Runs <- r:
		case <-ctx.Done():
			return nil, fault.New(fault.Timeout, "over")
		}
		select {
		case err := <-r.end:
			if err != nil {
				return nil, err
			}
		case <-ctx.Done():
			return nil, fault.New(fault.Timeout, "over")
		}
	}
	for _, v := range data {
		switch {
		case v < 0:
			return nil, fault.New(fault.Invalid, "token %d", v)
		case v == Crash:
			return nil, fault.New(fault.Internal, "crash")
		case v == Panic:
			panic("a token of Panic")
		}
	}
	out := make([]runtime.Tensor, len(outputs))
	for i, name := range outputs {
		if name != "same" {
			return nil, fault.New(fault.Invalid, "no output %q", name)
		}
		out[i] = runtime.Tensor{Name: name, Datatype: runtime.Int64, Shape: slices.Clone(in.Shape), Data: data}
	}
	return out, nil
}

// Close implements runtime.Session.
func (s *Tokens) Close() error {
	s.closed.Store(true)
	return nil
}
