package simulate

import (
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/scheduler/goodput"
)

// Profile is what was measured of one application: the truth of the simulation.
// Only the engine reads it; a policy sees its Limits and what its jobs observe.
// It is safe for concurrent use.
type Profile struct {
	Name   string
	Limits goodput.Limits

	epochs    int
	exact     map[string][]sample // by normalised placement, by local batch
	points    []point             // the means by (nodes, replicas, local batch), and scalability.csv
	maxNodes  int
	validated []validation // by batch size
	progress  []float64    // at which epoch i ends

	most int // local batch that may be used, of limits.csv; 0 is the largest measured, or what stated says

	mu   sync.Mutex
	memo map[string]estimate
}

// sample is a measured step with a local batch.
type sample struct {
	local int
	times
}

// times are seconds of one step without accumulation, and its part that
// synchronises replicas.
type times struct{ step, sync float64 }

// estimate are times, and whether they are only those of the nearest that was measured.
type estimate struct {
	times
	guess bool
}

// validation is a training run with one global batch size, by epoch.
type validation struct {
	batch    int
	progress []float64 // iterations of the initial batch size that it is worth
	gradient []goodput.Gradient
}

// Profiles are those of a type of GPU, by application.
type Profiles map[string]*Profile

// ReadProfiles reads every folder of dir as the profile of an application.
func ReadProfiles(dir fs.FS) (Profiles, error) { return readProfiles(dir, nil) }

// readProfiles takes what a step learns of the same application on the type that
// came first, if it was measured there: that depends on batches and not on GPUs.
func readProfiles(dir fs.FS, first Profiles) (Profiles, error) {
	entries, err := fs.ReadDir(dir, ".")
	if err != nil {
		return nil, fault.New(fault.NotFound, "reading the profiles: %w", err)
	}
	out := Profiles{}
	for _, e := range entries {
		if !e.IsDir() || strings.HasPrefix(e.Name(), ".") {
			continue
		}
		if out[e.Name()], err = readProfile(dir, e.Name(), first[e.Name()]); err != nil {
			return nil, err
		}
	}
	if len(out) == 0 {
		return nil, fault.New(fault.NotFound, "the profile directory has no application folder").
			WithHint("Each application has a folder with placements.csv, scalability.csv and validation-BATCH.csv files.")
	}
	return out, nil
}

func readProfile(dir fs.FS, name string, first *Profile) (*Profile, error) {
	p := &Profile{Name: name, exact: map[string][]sample{}, memo: map[string]estimate{}}
	read := func(file string, f func(file string, in io.Reader) error) error {
		in, err := dir.Open(path.Join(name, file))
		if err != nil {
			return fault.New(fault.NotFound, "the profile of %s: %w", name, err)
		}
		defer in.Close()
		return f(path.Join(name, file), in)
	}
	if err := read("placements.csv", p.readPlacements); err != nil {
		return nil, err
	}
	if err := read("scalability.csv", p.readScalability); err != nil {
		return nil, err
	}
	if _, err := fs.Stat(dir, path.Join(name, limitsFile)); err == nil {
		if err := read(limitsFile, p.readLimits); err != nil {
			return nil, err
		}
	}
	if first != nil {
		p.validated = slices.Clone(first.validated)
		return p, p.finish()
	}
	files, err := fs.Glob(dir, path.Join(name, "validation-*.csv"))
	if err != nil || len(files) == 0 {
		return nil, fault.New(fault.NotFound, "the profile of %s has no validation-BATCH.csv", name)
	}
	for _, f := range files {
		if err := read(path.Base(f), p.readValidation); err != nil {
			return nil, err
		}
	}
	return p, p.finish()
}

func (p *Profile) readPlacements(file string, in io.Reader) error {
	type key struct {
		nodes, replicas, local int
	}
	sums := map[key]*point{}
	counts := map[key]float64{}
	err := readTable(file, in, []string{"placement", "local_bsz", "step_time", "sync_time"}, func(r *row) {
		id := r.text("placement")
		var gpus []int
		for _, d := range []byte(id) {
			if d < '1' || d > '9' || len(id) > 64 {
				r.wrong("placement", "%q is not one digit from 1 to 9 per node", clip(id))
				return
			}
			gpus = append(gpus, int(d-'0'))
		}
		if len(gpus) == 0 {
			r.wrong("placement", "it is empty")
			return
		}
		s := sample{local: r.count("local_bsz", 1, maxCount), times: r.times()}
		if r.err != nil {
			return
		}
		id = normal(gpus)
		at, twice := slices.BinarySearchFunc(p.exact[id], s, func(a, b sample) int { return a.local - b.local })
		if twice {
			r.wrong("local_bsz", "duplicate placement %s with %d", id, s.local)
			return
		}
		p.exact[id] = slices.Insert(p.exact[id], at, s)
		k := key{len(gpus), total(gpus), s.local}
		if sums[k] == nil {
			sums[k] = &point{at: [3]float64{float64(k.nodes), float64(k.replicas), float64(k.local)}}
		}
		sums[k].step += s.step
		sums[k].sync += s.sync
		counts[k]++
	})
	for k, sum := range sums {
		sum.step /= counts[k]
		sum.sync /= counts[k]
		p.points = append(p.points, *sum)
	}
	return err
}

// limitsFile may be there: the measurements may go further than jobs shall.
const limitsFile = "limits.csv"

// stated are the largest local batches that the job model of the public profiles
// states of its applications, less than what was measured of them; limits.csv wins.
// Source: the simulator of Pollux (petuum/adaptdl, branch osdi21-artifact), which
// knows this one by its name.
var stated = map[string]int{"yolov3": 8}

func (p *Profile) readLimits(file string, in io.Reader) error {
	rows := 0
	return readTable(file, in, []string{"max_local_bsz"}, func(r *row) {
		if rows++; rows > 1 {
			r.wrong("max_local_bsz", "there is more than one row")
		}
		p.most = r.count("max_local_bsz", 1, maxCount)
	})
}

func (p *Profile) readScalability(file string, in io.Reader) error {
	return readTable(file, in, []string{"num_nodes", "num_replicas", "local_bsz", "step_time", "sync_time"}, func(r *row) {
		nodes := r.count("num_nodes", 1, maxCount)
		replicas := r.count("num_replicas", nodes, maxCount)
		local := r.count("local_bsz", 1, maxCount)
		t := r.times()
		if r.err != nil {
			return
		}
		p.points = append(p.points, point{at: [3]float64{float64(nodes), float64(replicas), float64(local)}, step: t.step, sync: t.sync})
	})
}

func (r *row) times() times {
	t := times{r.number("step_time"), r.number("sync_time")}
	switch {
	case r.err != nil:
	case t.step <= t.sync:
		r.wrong("step_time", "%v s is not longer than sync_time, its part", t.step)
	case t.step < minTime || t.step > maxTime:
		r.wrong("step_time", "%v s is not from a nanosecond to ten years", t.step)
	}
	return t
}

func (p *Profile) readValidation(file string, in io.Reader) error {
	text, _ := strings.CutPrefix(strings.TrimSuffix(path.Base(file), ".csv"), "validation-")
	batch, err := strconv.Atoi(text)
	if err != nil || batch < 1 || batch > maxCount*maxCount {
		return fault.New(fault.Invalid, "%s: its name is not validation-BATCH.csv", file)
	}
	v := validation{batch: batch}
	err = readTable(file, in, []string{"progress", "grad_sqr", "grad_var"}, func(r *row) {
		progress := r.number("progress")
		if n := len(v.progress); r.err == nil && (n > 0 && progress <= v.progress[n-1] || progress == 0) {
			r.wrong("progress", "%v is not more than the epoch before", progress)
		}
		g := goodput.Gradient{Sqr: r.number("grad_sqr"), Var: r.number("grad_var")}
		if r.err == nil && g.Sqr+g.Var < minGradient {
			r.wrong("grad_sqr", "a gradient without square and variance")
		}
		v.progress = append(v.progress, progress)
		v.gradient = append(v.gradient, g)
	})
	p.validated = append(p.validated, v)
	return err
}

// finish checks the files against each other and derives the limits.
func (p *Profile) finish() error {
	slices.SortFunc(p.points, func(a, b point) int { return slices.Compare(a.at[:], b.at[:]) })
	for i := range p.points[1:] {
		if p.points[i].at == p.points[i+1].at {
			at := p.points[i].at
			return fault.New(fault.Invalid, "the profile of %s has duplicate rows for %v replicas on %v nodes with local batch %v", p.Name, at[1], at[0], at[2])
		}
	}
	slices.SortFunc(p.validated, func(a, b validation) int { return a.batch - b.batch })
	l := goodput.Limits{MinLocal: maxCount, MinBatch: p.validated[0].batch, MaxBatch: p.validated[len(p.validated)-1].batch}
	for _, samples := range p.exact {
		l.MinLocal = min(l.MinLocal, samples[0].local)
		l.MaxLocal = max(l.MaxLocal, samples[len(samples)-1].local)
	}
	if most := stated[p.Name]; p.most == 0 && most >= l.MinLocal { // another application may have the name
		p.most = most
	}
	if p.most > 0 {
		if p.most < l.MinLocal {
			return fault.New(fault.Invalid, "the profile of %s: max_local_bsz %d in %s is less than the smallest measured local batch %d", p.Name, p.most, limitsFile, l.MinLocal)
		}
		l.MaxLocal = min(l.MaxLocal, p.most)
	}
	if l.MaxBatch < l.MinLocal {
		return fault.New(fault.Invalid, "the profile of %s: the largest validated batch %d is less than the smallest local batch %d", p.Name, l.MaxBatch, l.MinLocal)
	}
	for _, pt := range p.points {
		p.maxNodes = max(p.maxNodes, int(pt.at[0]))
		l.MaxReplicas = max(l.MaxReplicas, int(pt.at[1]))
	}
	p.Limits = l
	p.epochs = len(p.validated[0].progress)
	for _, v := range p.validated {
		p.epochs = min(p.epochs, len(v.progress))
	}
	p.progress = make([]float64, p.epochs)
	for e := range p.progress {
		p.progress[e] = p.validated[0].progress[e]
		for _, v := range p.validated {
			p.progress[e] = min(p.progress[e], v.progress[e])
		}
	}
	return nil
}

// faster is the profile of a GPU that computes speed times as fast and synchronises
// as before: a synthetic one.
func (p *Profile) faster(speed float64) *Profile {
	scale := func(t times) times { return times{step: t.sync + (t.step-t.sync)/speed, sync: t.sync} }
	out := &Profile{
		Name: p.Name, Limits: p.Limits, epochs: p.epochs, exact: map[string][]sample{}, points: slices.Clone(p.points),
		maxNodes: p.maxNodes, validated: p.validated, progress: p.progress, most: p.most, memo: map[string]estimate{},
	}
	for id, samples := range p.exact {
		for _, s := range samples {
			out.exact[id] = append(out.exact[id], sample{s.local, scale(s.times)})
		}
	}
	for i, pt := range out.points {
		t := scale(times{pt.step, pt.sync})
		out.points[i].step, out.points[i].sync = t.step, t.sync
	}
	return out
}

// total is the number of replicas.
func total(gpus []int) (sum int) {
	for _, g := range gpus {
		sum += g
	}
	return sum
}

// normal is the lexicographically smallest rotation of a placement, as text.
func normal(gpus []int) string {
	least := slices.Clone(gpus)
	turned := slices.Clone(gpus)
	for range gpus {
		turned = append(turned[1:], turned[0])
		if slices.Compare(turned, least) < 0 {
			copy(least, turned)
		}
	}
	b := make([]byte, 0, len(least))
	for _, g := range least {
		if g > 9 { // no file has it
			b = fmt.Appendf(b, "(%d)", g)
			continue
		}
		b = strconv.AppendInt(b, int64(g), 10)
	}
	return string(b)
}

// times are those of one step with a local batch on a placement (GPUs per node).
// Of what was not measured and lies between no measurements they are a guess: a
// policy may choose untried configurations.
func (p *Profile) times(gpus []int, local int) estimate {
	id := normal(gpus)
	key := id + "/" + strconv.Itoa(local)
	p.mu.Lock()
	defer p.mu.Unlock()
	if t, ok := p.memo[key]; ok {
		return t
	}
	t := p.measure(id, len(gpus), total(gpus), local)
	p.memo[key] = t
	return t
}

func (p *Profile) measure(id string, nodes, replicas, local int) estimate {
	if s := p.exact[id]; s != nil {
		return between(s, local)
	}
	// More nodes than were measured count as the most that were. Nodes with more
	// GPUs than the measured ones have count as more nodes, which is pessimistic.
	nodes = min(nodes, p.maxNodes)
	for n := nodes; n <= min(replicas, p.maxNodes); n++ {
		q := [3]float64{float64(n), float64(replicas), float64(local)}
		if step, sync, ok := interpolate(p.points, q); ok {
			return estimate{times: times{step, sync}}
		}
	}
	return p.nearest(nodes, replicas, local)
}

// between interpolates between samples sorted by local batch.
func between(s []sample, local int) estimate {
	i, found := slices.BinarySearchFunc(s, local, func(a sample, local int) int { return a.local - local })
	switch {
	case found:
		return estimate{times: s[i].times}
	case i == 0:
		return s[0].stretched(local)
	case i == len(s):
		return s[i-1].stretched(local)
	}
	lo, hi := s[i-1], s[i]
	at := float64(local-lo.local) / float64(hi.local-lo.local)
	return estimate{times: times{lo.step + at*(hi.step-lo.step), lo.sync + at*(hi.sync-lo.sync)}}
}

// nearest is the guess by the measured point whose nodes, replicas and local batch
// differ by the least factors. One with fewer nodes or replicas synchronises less,
// so it is taken only if there is no other.
func (p *Profile) nearest(nodes, replicas, local int) estimate {
	far := func(a float64, b int) float64 { return math.Abs(math.Log(a / float64(b))) }
	var best point
	smaller, least := true, math.Inf(1)
	for _, pt := range p.points {
		less := pt.at[0] < float64(nodes) || pt.at[1] < float64(replicas)
		d := far(pt.at[0], nodes) + far(pt.at[1], replicas) + far(pt.at[2], local)
		if smaller && !less || smaller == less && d < least {
			best, smaller, least = pt, less, d
		}
	}
	return sample{int(best.at[2]), times{best.step, best.sync}}.stretched(local)
}

// stretched is the guess for another local batch: computing a larger one takes
// proportionally longer, a smaller one no less. Both are pessimistic.
func (s sample) stretched(local int) estimate {
	by := max(1, float64(local)/float64(s.local))
	return estimate{times{s.sync + (s.step-s.sync)*by, s.sync}, true}
}

// gradient is what a job with a global batch sees in an epoch; a batch that is
// smaller or larger than all that were validated sees what the nearest saw.
func (p *Profile) gradient(batch, epoch int) goodput.Gradient {
	i, found := slices.BinarySearchFunc(p.validated, batch, func(v validation, b int) int { return v.batch - b })
	switch {
	case found || i == 0:
		return p.validated[i].gradient[epoch]
	case i == len(p.validated):
		return p.validated[i-1].gradient[epoch]
	}
	lo, hi := p.validated[i-1], p.validated[i]
	width, at := float64(hi.batch-lo.batch), float64(batch-lo.batch)
	mix := func(a, b float64) float64 { return (at*b + (width-at)*a) / width }
	a, b := lo.gradient[epoch], hi.gradient[epoch]
	return goodput.Gradient{Sqr: mix(a.Sqr, b.Sqr), Var: mix(a.Var, b.Var)}
}

// Measured are the profiles of each type of GPU.
type Measured map[string]Profiles

// of are the profiles of an application, by type.
func (m Measured) of(name string) map[string]*Profile {
	out := map[string]*Profile{}
	for t, profiles := range m {
		if p := profiles[name]; p != nil {
			out[t] = p
		}
	}
	return out
}

// names are the applications, for messages.
func (m Measured) names() string {
	all := map[string]bool{}
	for _, profiles := range m {
		for name := range profiles {
			all[name] = true
		}
	}
	return fmt.Sprintf("%q", slices.Sorted(maps.Keys(all)))
}
