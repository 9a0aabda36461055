// Package sizing says what a job would take elsewhere: time and price relative to
// now, from what was measured. It has no state and no side effects.
//
// # Map
//
//   - sizing.go: Question, Answer and Advise. measured.go: what this family of jobs
//     showed in two places. like.go: what like jobs showed of two devices.
//     scale.go: other numbers of workers. bound.go: published peaks.
//   - device.go: what the device of a worker is, by the labels of its node.
//   - ask.go: how much of a processor and of memory would do.
//   - explore.go: when it pays to try. words.go: the answer as a sentence.
//
// # How it is known
//
// An option is Measured when this family ran there; Fitted when it ran on that
// device with other numbers of workers; from LikeJobs when others ran on both
// devices; a Bound when only published peaks are known. The first that applies is
// taken. What none of them knows is no option: nothing is guessed.
//
// # Notation
//
// Rates are work in a second. All that is estimated is a logarithm of a rate, since
// rates are positive and their errors are factors:
//
//	time ratio  T = rate now / rate there
//	price ratio P = T × price of the place for an hour / the same of now
//
// An interval holds the truth with 95 %, under the assumptions where it is made.
package sizing

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
)

// Unit is what work is counted in.
type Unit string

// The units. A run is a whole job; it is the unit of jobs that tell no steps.
const (
	Examples Unit = "examples"
	Steps    Unit = "steps"
	Runs     Unit = "runs"
)

// Kind is what makes rates comparable: a unit of work of one kind is the same work
// wherever it is done.
type Kind struct {
	Family  string // with its project
	Unit    Unit
	Setting string // batch, precision and what else changes the work of a step
}

// Profile is what one attempt showed.
type Profile struct {
	Kind
	Pool, Device string
	Workers      int     // that ran together
	Nodes        int     // on which they ran; 0 is one
	Processes    int     // of each; 0 is one
	Batch        int     // examples of a step of all of them; 0 is unknown
	Rate         float64 // of all of them
	// Communication is the share of the time that a profiler saw in it; Seen says
	// that one looked.
	Communication float64
	Seen          bool
	At            time.Time
}

// Place is somewhere that a job may run.
type Place struct {
	Pool    string `json:"pool"`
	Device  string `json:"device" doc:"Accelerator model, or processor"`
	Workers int    `json:"workers"`
	// Hourly is the price of all workers for an hour; 0 is unknown.
	Hourly float64 `json:"price_per_hour,omitempty" doc:"Price of all workers, mean over the coming week; absent without a price"`
	Memory float64 `json:"-"` // of one accelerator, bytes; 0 is unknown
}

// Known says how an option is known.
type Known string

// How an option is known, the best first.
const (
	Measured Known = "measured"
	Fitted   Known = "fitted"
	LikeJobs Known = "like jobs"
	Bound    Known = "bound"
)

// Ratio is relative to now. Low and High hold the truth with 95 %; both are 0 where
// too little was measured for an interval. Of a Bound, Is is High and no Low.
type Ratio struct {
	Is   float64 `json:"is"`
	Low  float64 `json:"low,omitempty"`
	High float64 `json:"high,omitempty"`
}

func (r Ratio) times(f float64) Ratio { return Ratio{r.Is * f, r.Low * f, r.High * f} }

// Option is what a job would take in another place.
type Option struct {
	Place
	Time  Ratio  `json:"time"`
	Price *Ratio `json:"price,omitempty" doc:"Price of the same work; absent when a price is unknown"`
	Known Known  `json:"known" enum:"measured,fitted,like jobs,bound"`
	// Attempts are those of this family that were measured there, or, of Fitted, on
	// the device; Families the like ones that ran on both devices.
	Attempts int `json:"attempts,omitempty"`
	Families int `json:"families,omitempty" doc:"Number of similar jobs that ran on both devices"`

	mean, sd float64 // of the logarithm of Time, of LikeJobs
}

// Question is what Advise is asked.
type Question struct {
	Kind
	Now       Place
	Precision string  // fp32, tf32, fp16, bf16 …; empty is unknown
	Busy      float64 // share of the time in which the accelerators computed
	Memory    float64 // peak of one accelerator, bytes; 0 is unknown
	Processes int
	Batch     int
	Seconds   float64 // that a run takes now; 0 is unknown
	Next      float64 // runs to come, and parts of them
	Places    []Place // where else it may run
	Profiles  []Profile
}

// Answer is what can be said.
type Answer struct {
	Options []Option `json:"options" doc:"Options by price, then by time"`
	// Attempts are those of this family that were measured where it runs now.
	Attempts int     `json:"attempts"`
	Explore  []Trial `json:"explore,omitempty" doc:"Trials worth running, by expected benefit; nothing is started automatically"`
}

// Limits of numbers: what is beyond them was not measured but made up.
const (
	MaxRate    = 1e15
	MaxAmount  = 1e18 // of money, and of bytes
	maxSeconds = 1e9
	maxRatio   = 1e9 // of two prices
)

// check refuses numbers that cannot be. Error: fault.Invalid.
func (q Question) check() error {
	type number struct {
		name string
		v    float64
		most float64
	}
	numbers := []number{
		{"busy", q.Busy, 1},
		{"memory", q.Memory, MaxAmount},
		{"seconds", q.Seconds, maxSeconds},
		{"runs to come", q.Next, maxSeconds},
		{"price of now", q.Now.Hourly, MaxAmount},
		{"workers of now", float64(q.Now.Workers), maxSeconds},
	}
	for _, p := range q.Places {
		numbers = append(numbers, number{"price of " + p.Pool, p.Hourly, MaxAmount}, number{"memory of " + p.Device, p.Memory, MaxAmount}, number{"workers of " + p.Pool, float64(p.Workers), maxSeconds})
	}
	for _, p := range q.Profiles {
		numbers = append(numbers, number{"rate of " + p.Family, p.Rate, MaxRate}, number{"communication of " + p.Family, p.Communication, 1}, number{"workers of " + p.Family, float64(p.Workers), maxSeconds})
	}
	for _, n := range numbers {
		if !(n.v >= 0 && n.v <= n.most) {
			return fault.New(fault.Invalid, "%s %g is not between 0 and %g", n.name, n.v, n.most)
		}
	}
	return nil
}

// Advise says what the work would take in each place of which something is known.
// Error: fault.Invalid for numbers that cannot be.
func Advise(q Question) (Answer, error) {
	if err := q.check(); err != nil {
		return Answer{}, err
	}
	q.Profiles = slices.DeleteFunc(slices.Clone(q.Profiles), func(p Profile) bool { return p.Rate == 0 || p.Workers < 1 })
	a := Answer{Options: []Option{}, Attempts: len(q.rates(q.Now.Device, q.Now.Workers))}
	effects := fitDevices(q.Profiles)
	for _, p := range q.Places {
		here := p.Pool == q.Now.Pool && p.Device == q.Now.Device && p.Workers == q.Now.Workers
		if here || q.Memory > 0 && p.Memory > 0 && q.Memory > p.Memory {
			continue
		}
		o, ok := q.measured(p)
		if !ok {
			o, ok = q.scaled(p)
		}
		// A device that nobody of this family had may have too little memory.
		fits := q.Memory == 0 || p.Memory > 0
		if !ok && fits {
			o, ok = q.like(p, effects)
		}
		if !ok && fits {
			o, ok = q.bound(p)
		}
		if !ok {
			continue
		}
		if q.Now.Hourly > 0 && p.Hourly > 0 && p.Hourly <= maxRatio*q.Now.Hourly && q.Now.Hourly <= maxRatio*p.Hourly {
			price := o.Time.times(p.Hourly / q.Now.Hourly)
			o.Price = &price
		}
		a.Options = append(a.Options, o)
	}
	slices.SortStableFunc(a.Options, func(x, y Option) int {
		return cmp.Or(cmp.Compare(x.price(), y.price()), cmp.Compare(x.Time.Is, y.Time.Is), cmp.Compare(x.Pool, y.Pool), cmp.Compare(x.Workers, y.Workers))
	})
	a.Explore = q.explore(a.Options)
	return a, nil
}

// price is for sorting: what has none comes last.
func (o Option) price() float64 {
	if o.Price == nil {
		return math.Inf(1)
	}
	return o.Price.Is
}

// rates are the logarithms of what was measured of this kind of work on a device
// with so many workers.
func (q Question) rates(device string, workers int) (logs []float64) {
	for _, p := range q.Profiles {
		if p.Kind == q.Kind && p.Device == device && p.Workers == workers {
			logs = append(logs, math.Log(p.Rate))
		}
	}
	return logs
}
