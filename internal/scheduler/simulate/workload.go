package simulate

import (
	"io"
	"math/rand/v2"
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
	At       float64 // seconds
	Profile  *Profile
	Replicas int  // what the user asks for
	Batch    int  // and the global batch size that goes with it
	Rigid    bool // it keeps both
}

// ReadWorkload reads a workload; name is its file's, for messages.
func ReadWorkload(name string, in io.Reader, profiles map[string]*Profile) (Workload, error) {
	w := Workload{Name: name}
	seen := map[string]int{}
	err := readTable(name, in, []string{"name", "time", "application", "num_replicas", "batch_size"}, func(r *row) {
		s := Submission{Name: r.text("name"), At: r.number("time"), Profile: profiles[r.text("application")]}
		if s.Name == "" || len(s.Name) > 200 || !printable(s.Name) {
			r.wrong("name", "%q is not a name of at most 200 printable characters", clip(s.Name))
		}
		if before, twice := seen[s.Name]; twice {
			r.wrong("name", "%q is the name of the job in line %d, too", clip(s.Name), before)
		}
		seen[s.Name] = r.line
		if r.err == nil && s.At > maxTime {
			r.wrong("time", "%v s is more than ten years after the beginning of the workload", s.At)
		}
		if n := len(w.Jobs); r.err == nil && n > 0 && s.At < w.Jobs[n-1].At {
			r.wrong("time", "%v s is before the job in front of it; sort the file by time", s.At)
		}
		if s.Profile == nil {
			r.wrong("application", "%q has no profile; there are %s", clip(r.text("application")), names(profiles))
			return
		}
		l := s.Profile.Limits
		s.Replicas = r.count("num_replicas", 1, maxCount)
		s.Batch = r.count("batch_size", l.MinBatch, l.MaxBatch)
		if r.err == nil && s.Replicas > l.MaxReplicas {
			r.wrong("num_replicas", "%d are more than the %d that %s was measured with", s.Replicas, l.MaxReplicas, s.Profile.Name)
		}
		if b := l.Split(s.Batch, s.Replicas); r.err == nil && b.Local < l.MinLocal {
			r.wrong("batch_size", "%d on %d replicas is %d each, less than the %d that %s was measured with", s.Batch, s.Replicas, b.Local, l.MinLocal, s.Profile.Name)
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
