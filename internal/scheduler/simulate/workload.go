package simulate

import (
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"unicode"
	"unicode/utf8"

	"github.com/falaj-ml/falaj/internal/fault"
)

// Workload is a list of jobs in the order of their submission.
type Workload struct {
	Name string
	Jobs []Submission
}

// Submission is a job as a user submits it.
type Submission struct {
	Name     string
	At       float64             // seconds
	Family   string              // the application
	On       map[string]*Profile // of it, by the types of GPU on which it was measured
	Replicas int                 // what the user asks for
	Batch    int                 // and the global batch size that goes with it
	Rigid    bool                // it keeps both
	Deadline float64             // seconds from At; 0 is none
}

// ReadWorkload reads a workload; name is its file's, for messages.
//
// A column `deadline`, which may be missing or empty, gives the seconds from its
// submission after which a job is late.
func ReadWorkload(name string, in io.Reader, profiles Measured) (Workload, error) {
	w := Workload{Name: name}
	seen := map[string]int{}
	err := readTable(name, in, []string{"name", "time", "application", "num_replicas", "batch_size"}, func(r *row) {
		s := Submission{Name: r.text("name"), At: r.number("time"), Family: r.text("application"), On: profiles.of(r.text("application"))}
		if s.Name == "" || len(s.Name) > 200 || !printable(s.Name) {
			r.wrong("name", "%q is not a name of at most 200 printable characters", clip(s.Name))
		}
		if before, twice := seen[s.Name]; twice {
			r.wrong("name", "%q is already the name of the job in line %d", clip(s.Name), before)
		}
		seen[s.Name] = r.line
		if r.err == nil && s.At > maxTime {
			r.wrong("time", "%v s is more than ten years after the beginning of the workload", s.At)
		}
		if n := len(w.Jobs); r.err == nil && n > 0 && s.At < w.Jobs[n-1].At {
			r.wrong("time", "%v s is before the previous job; sort the file by time", s.At)
		}
		if len(s.On) == 0 {
			r.wrong("application", "%q has no profile; profiles exist for %s", clip(s.Family), profiles.names())
			return
		}
		if r.has("deadline") && r.text("deadline") != "" {
			if s.Deadline = r.number("deadline"); r.err == nil && (s.Deadline == 0 || s.Deadline > maxTime) {
				r.wrong("deadline", "%v s is not more than 0 and at most ten years", s.Deadline)
			}
		}
		s.Replicas, s.Batch = r.count("num_replicas", 1, maxCount), r.count("batch_size", 1, maxCount*maxCount)
		for _, t := range slices.Sorted(maps.Keys(s.On)) {
			l, on := s.On[t].Limits, ""
			if t != "" {
				on = " on " + t
			}
			r.count("batch_size", l.MinBatch, l.MaxBatch)
			if r.err == nil && s.Replicas > l.MaxReplicas {
				r.wrong("num_replicas", "%d are more than the %d that %s was measured with%s", s.Replicas, l.MaxReplicas, s.Family, on)
			}
			if r.err != nil {
				return
			}
			if b := l.Split(s.Batch, s.Replicas); b.Local < l.MinLocal {
				r.wrong("batch_size", "%d on %d replicas is %d each, less than the %d that %s was measured with%s", s.Batch, s.Replicas, b.Local, l.MinLocal, s.Family, on)
			}
		}
		w.Jobs = append(w.Jobs, s)
	})
	return w, err
}

func printable(s string) bool {
	for _, r := range s {
		if !unicode.IsPrint(r) {
			return false
		}
	}
	return utf8.ValidString(s)
}

// Load is the workload submitted load times as fast.
func (w Workload) Load(load float64) (Workload, error) {
	if !(load >= 0.001 && load <= 1000) {
		return w, fault.New(fault.Invalid, "load %v is not from 0.001 to 1000", load)
	}
	out := Workload{Name: w.Name, Jobs: make([]Submission, len(w.Jobs))}
	for i, s := range w.Jobs {
		s.At /= load
		out.Jobs[i] = s
	}
	return out, nil
}

// Due is the workload with a deadline, in seconds from its submission, for each job
// that has none.
func (w Workload) Due(deadline float64) (Workload, error) {
	if !(deadline > 0 && deadline <= maxTime) {
		return w, fault.New(fault.Invalid, "a deadline of %v s is not more than 0 and at most ten years", deadline)
	}
	out := Workload{Name: w.Name, Jobs: slices.Clone(w.Jobs)}
	for i := range out.Jobs {
		if j := &out.Jobs[i]; j.Deadline == 0 {
			j.Deadline = deadline
		}
	}
	return out, nil
}

// Rigid is the workload with a share of its jobs rigid, drawn by the seed and the
// workload's name.
func (w Workload) Rigid(share float64, seed uint64) (Workload, error) {
	if !(share >= 0 && share <= 1) {
		return w, fault.New(fault.Invalid, "a share of %v of the jobs is not from 0 to 1", share)
	}
	out := Workload{Name: w.Name, Jobs: make([]Submission, len(w.Jobs))}
	copy(out.Jobs, w.Jobs)
	draw := rand.New(rand.NewPCG(seed, hash(w.Name))) //nolint:gosec // a draw that can be repeated, not a secret
	for _, i := range draw.Perm(len(w.Jobs))[:int(share*float64(len(w.Jobs))+0.5)] {
		out.Jobs[i].Rigid = true
	}
	return out, nil
}

// hash is FNV-1a.
func hash(s string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(s) {
		h = (h ^ uint64(s[i])) * 1099511628211
	}
	return h
}
