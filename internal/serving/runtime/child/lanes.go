package child

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/falaj-ml/falaj/internal/serving/runtime"
	"github.com/falaj-ml/falaj/internal/serving/runtime/lane"
)

// share makes the memory through which a process is asked; nil where it is not: a Python
// model reads the standard input alone.
func (r *Runtime) share(ctx context.Context, o runtime.Options) *lane.Memory {
	if o.Python != nil || r.piped {
		return nil
	}
	runs := r.cores / min(int64(max(1, o.Threads)), r.cores)
	m, err := lane.New(int(min(runs, lane.MaxLanes)), lane.Size)
	if err != nil {
		r.log.WarnContext(ctx, "shared memory is unavailable; a model's process is accessed over pipes, which is slower", slog.String("error", err.Error()))
		return nil
	}
	return m
}

func (p *process) endLanes() {
	if p.lanes != nil {
		p.lanes.Close()
	}
}

// ask puts a question into a lane; nil when there is none, or it does not fit.
func (p *process) ask(id uint64, inputs []runtime.Tensor, asked []runtime.Spec) *lane.Lane {
	if p.lanes == nil || len(inputs) != len(p.meta.Inputs) {
		return nil
	}
	var few [4]runtime.Tensor
	var fewer [8]int
	ordered, wanted := few[:0], fewer[:0]
	for _, s := range p.meta.Inputs {
		i := slices.IndexFunc(inputs, func(t runtime.Tensor) bool { return t.Name == s.Name })
		if i < 0 {
			return nil
		}
		ordered = append(ordered, inputs[i])
	}
	for _, s := range asked {
		i := slices.IndexFunc(p.meta.Outputs, func(o runtime.Spec) bool { return o.Name == s.Name })
		if i < 0 || slices.Contains(wanted, i) {
			return nil
		}
		wanted = append(wanted, i)
	}
	l := p.lanes.Lend()
	if l == nil {
		return nil
	}
	if !l.Ask(id, ordered, wanted) {
		p.lanes.Back(l)
		return nil
	}
	return l
}

// await waits for the answer to what was asked in a lane.
func (p *process) await(ctx context.Context, id uint64, c *waiting, l *lane.Lane) ([]runtime.Tensor, error) {
	for {
		a, over := p.look(id, c, l)
		if over {
			p.lanes.Back(l)
			return a.tensors, a.err
		}
		select {
		case a = <-c.answer: // over the pipe
		case <-ctx.Done():
			a = p.leave(ctx, id, c)
		default:
			continue
		}
		go func() { // the lane is the run's until it is over there, too
			defer p.lanes.Back(l)
			for over := false; !over; {
				_, over = p.look(id, c, l)
			}
		}()
		return a.tensors, a.err
	}
}

// soon is how long it may take until what is answered another way is known to be, on both
// ways.
const soon = 5 * time.Second

// Errors of processes that do not keep the two ways apart.
var (
	errHalf  = errors.New("it answered a run by half")
	errTwice = errors.New("it answered a run twice")
)

// look waits for a lane's answer, for a short time. over: the run is, and whoever waited
// for it was told.
func (p *process) look(id uint64, c *waiting, l *lane.Lane) (a answer, over bool) {
	done, err := l.Wait()
	elsewhere := false
	if done && err == nil {
		a.tensors, elsewhere, err = l.Answer(c.asked)
	}
	switch {
	case err != nil:
		p.stop(err)
	case elsewhere:
		// It was written to the pipe before, so it is there soon, or the process ends.
		p.mu.Lock()
		if p.calls[id] == c && c.late == nil {
			c.late = time.AfterFunc(soon, func() { p.stop(errHalf) })
		}
		p.mu.Unlock()
	case done:
		p.mu.Lock()
		mine := p.calls[id] == c
		if mine {
			delete(p.calls, id)
			p.longest = max(p.longest, time.Since(c.began))
		}
		p.mu.Unlock()
		if !mine { // it was answered over the pipe as well, or the process has ended
			p.stop(errTwice)
			break
		}
		if c.late != nil {
			c.late.Stop()
		}
		c.free()
		close(c.over)
		return a, true
	case !p.ending():
		select {
		case <-c.over: // it was answered over the pipe: the lane's answer is to follow
			if c.looks++; c.looks > int(soon/lane.Tick) {
				p.stop(errHalf)
			}
		default:
		}
		return a, false
	}
	<-c.over
	select {
	case a = <-c.answer:
	default: // it was read by who gave it up
	}
	return a, true
}
