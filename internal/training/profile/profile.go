// Package profile has workers profiled, reads what the profiler saw and says how their time
// was spent. What it reads was written by the user's own program:
// everything is bounded, nothing is trusted.
//
// Parts: take.go (Look, Seen), profile.go (Summary), folded.go (stacks, of py-spy), trace.go (traces,
// of torch.profiler), nsys.go (those of Nsight Systems).
package profile

import (
	"cmp"
	"context"
	"math"
	"slices"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/share"
	"github.com/falaj-ml/falaj/internal/worker/profiler"
)

// Summary is how a worker spent its time: four shares that add up to one.
type Summary struct {
	// Compute is what is neither of the others.
	Compute float64 `json:"compute"`
	// Memory is moving data: loading, decoding, copying to and from devices.
	Memory float64 `json:"memory"`
	// Communication is talking with other workers, and waiting for them.
	Communication float64 `json:"communication"`
	// Idle is waiting for nothing of these: sleeping, files, input.
	Idle float64 `json:"idle"`
	// Basis is how many samples, or microseconds of a trace, the shares rest on.
	Basis     int64 `json:"basis"`
	Processes int   `json:"processes"`
	// Top are the functions, or operations, that took most, most first.
	Top []Function `json:"top"`
}

// Function is one of the top.
type Function struct {
	Name    string  `json:"name"`
	Where   string  `json:"where,omitempty"` // file:line
	Kind    Kind    `json:"kind"`
	Share   float64 `json:"share"`   // of the time
	Waiting float64 `json:"waiting"` // of the time, in it and not running
}

// Kind of what is done.
type Kind string

// The kinds.
const (
	Compute       Kind = "compute"
	Memory        Kind = "memory"
	Communication Kind = "communication"
	Idle          Kind = "idle"
)

// Limits.
const (
	maxTop     = 15
	maxText    = 200
	maxStacks  = 1 << 20
	maxThreads = 1 << 14
)

// reading bounds how many profiles are read at a time, in this process.
var reading = share.New(share.Limits{Name: "profiles", What: "profiles being read", Slots: 1, Wait: readWait})

// readWait is the longest wait of a profile for those before it.
const readWait = time.Minute

// Read summarises what the tool saw that was asked for, whatever the result says,
// after others that are read. several says that other processes take part in the
// work. Errors: fault.Invalid when it cannot be read, or nothing was seen;
// fault.TooLarge.
func Read(ctx context.Context, whose share.Owner, tool profiler.Tool, r profiler.Result, several bool) (Summary, error) {
	free, err := reading.Take(ctx, whose)
	if err != nil {
		return Summary{}, err
	}
	defer free()
	switch tool {
	case profiler.Torch:
		return readTraces(ctx, r.Files)
	case profiler.Nsys:
		return readNsys(r)
	case profiler.PySpy:
	}
	var all, running []byte
	for _, f := range r.Files {
		switch f.Name {
		case profiler.AllStacks:
			all = f.Data
		case profiler.RunningStacks:
			running = f.Data
		}
	}
	return readStacks(all, running, several)
}

// tally adds up what was done.
type tally struct {
	kinds     map[Kind]float64
	functions map[Function]*Function // by name, place and kind
	total     float64
}

func newTally() *tally {
	return &tally{kinds: map[Kind]float64{}, functions: map[Function]*Function{}}
}

func (t *tally) add(f Function, n, waiting float64) {
	if n <= 0 {
		return
	}
	t.total += n
	t.kinds[f.Kind] += n
	at := t.functions[f]
	if at == nil {
		at = &Function{Name: f.Name, Where: f.Where, Kind: f.Kind}
		t.functions[f] = at
	}
	at.Share += n
	at.Waiting += waiting
}

// summary is of all that was added; idle is what passed besides.
func (t *tally) summary(idle float64) (Summary, error) {
	whole := t.total + max(idle, 0)
	if whole <= 0 || math.IsInf(whole, 0) || math.IsNaN(whole) {
		return Summary{}, fault.New(fault.Invalid, "the profile has no samples").WithHint("Profile for longer.")
	}
	s := Summary{
		Compute: t.kinds[Compute] / whole, Memory: t.kinds[Memory] / whole, Communication: t.kinds[Communication] / whole,
		Basis: int64(min(whole, 1<<53)), Top: []Function{},
	}
	s.Idle = max(1-s.Compute-s.Memory-s.Communication, 0)
	for _, f := range t.functions {
		s.Top = append(s.Top, Function{Name: text(f.Name), Where: text(f.Where), Kind: f.Kind, Share: f.Share / whole, Waiting: f.Waiting / whole})
	}
	slices.SortFunc(s.Top, func(a, b Function) int {
		return cmp.Or(cmp.Compare(b.Share, a.Share), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Where, b.Where), cmp.Compare(a.Kind, b.Kind))
	})
	s.Top = s.Top[:min(len(s.Top), maxTop)]
	return s, nil
}

// text is a name that people may be shown.
func text(s string) string {
	return profiler.Plain(s[:min(len(s), maxText)])
}
