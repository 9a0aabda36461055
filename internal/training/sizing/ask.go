package sizing

import (
	"math"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/resource"
)

// Use is what an attempt used of what each of its workers asked for.
type Use struct {
	Cores      float64        `json:"cores" doc:"Busy cores, mean over the attempt, of the worker with the most"`
	PeakCores  float64        `json:"peak_cores,omitempty" doc:"Highest ten-second mean; absent when not measured"`
	AskedCores float64        `json:"asked_cores"`
	Memory     resource.Bytes `json:"peak_memory" doc:"Highest of all workers"`
	Asked      resource.Bytes `json:"asked_memory"`
	// Of accelerators; absent without one, or where nothing was sampled.
	Accelerators *Accelerators `json:"accelerators,omitempty"`
}

// Accelerators is what an attempt used of all its accelerators.
type Accelerators struct {
	Device string         `json:"device"`
	Count  int            `json:"count" doc:"Accelerators of all workers"`
	Busy   float64        `json:"busy" doc:"Mean utilisation: share of the time with work on the accelerators"`
	Peak   float64        `json:"peak_busy" doc:"Highest utilisation of a sample, mean over all accelerators"`
	Memory resource.Bytes `json:"peak_memory" doc:"Highest memory of an accelerator"`
	Has    resource.Bytes `json:"memory,omitempty" doc:"Memory of each accelerator; absent when unknown"`
	Watts  float64        `json:"watts,omitempty" doc:"Mean power of all accelerators together"`
}

// Check refuses what cannot have been measured. Error: fault.Invalid.
func (u Use) Check() error {
	all := map[string]float64{"cores": u.Cores, "peak cores": u.PeakCores, "asked cores": u.AskedCores, "memory": float64(u.Memory), "asked memory": float64(u.Asked)}
	if a := u.Accelerators; a != nil {
		all["busy"], all["peak busy"], all["watts"], all["accelerator memory"] = a.Busy, a.Peak, a.Watts, float64(a.Memory)
	}
	for name, v := range all {
		if !(v >= 0 && v <= MaxAmount) {
			return fault.New(fault.Invalid, "%s is %g, and must be a number from 0 to %g", name, v, MaxAmount)
		}
	}
	return nil
}

// Ask is what a worker could ask for; what is zero is well as it is.
type Ask struct {
	Cores  float64        `json:"cores,omitempty"`
	Memory resource.Bytes `json:"memory,omitempty"`
}

// Above its highest use an attempt gets slack, and only what is far below what was
// asked is worth a word. Both are chosen: memory that is missing ends a job, and
// cores that are missing only slow it.
const (
	slackCores  = 1.1
	slackMemory = 1.25
	worthSaying = 0.7
)

// Less says how little would have done for all of these attempts, each of which
// asked for what the last did. Cores need the peaks of all of them: a mean hides them.
func Less(all []Use) (a Ask) {
	if len(all) == 0 {
		return a
	}
	last := all[len(all)-1]
	cores, memory, sampled := 0.0, resource.Bytes(0), true
	for _, u := range all {
		cores, memory = max(cores, u.PeakCores), max(memory, u.Memory)
		sampled = sampled && u.PeakCores > 0
	}
	if want := math.Max(math.Ceil(cores*slackCores), 1); sampled && want <= worthSaying*last.AskedCores {
		a.Cores = want
	}
	if want := round(slackMemory * float64(memory)); memory > 0 && float64(want) <= worthSaying*float64(last.Asked) {
		a.Memory = want
	}
	return a
}

// round is an amount of memory that people would write.
func round(bytes float64) resource.Bytes {
	step := float64(256 * resource.MiB)
	if bytes > 4*float64(resource.GiB) {
		step = float64(resource.GiB)
	}
	return resource.Bytes(math.Ceil(bytes/step) * step)
}
