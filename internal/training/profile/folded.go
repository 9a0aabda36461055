package profile

import (
	"bytes"
	"cmp"
	"slices"
	"strconv"
	"strings"

	"github.com/falaj-ml/falaj/internal/fault"
)

// A line of py-spy's raw format is a stack, outermost first, and how often it
// was seen:
//
//	process 7:"python train.py";thread (7): MainThread;<module> (train.py:10);step (train.py:6) 87
//
// With several processes, the ancestors of a process come before it.

// stack is one line.
type stack struct {
	process string // its number
	main    bool   // of its first thread
	frames  []string
	n       int64
}

// parseFolded reads stacks; what is no stack is left out. Error: fault.Invalid
// for more than is plausible.
func parseFolded(b []byte) ([]stack, error) {
	var all []stack
	for line := range bytes.Lines(b) {
		s, ok := parseStack(strings.TrimRight(string(line), "\r\n"))
		if !ok {
			continue
		}
		if all = append(all, s); len(all) > maxStacks {
			return nil, fault.New(fault.Invalid, "the profile exceeds %d stacks", maxStacks)
		}
	}
	return all, nil
}

func parseStack(line string) (s stack, ok bool) {
	i := strings.LastIndexByte(line, ' ')
	if i <= 0 {
		return s, false
	}
	n, err := strconv.ParseInt(line[i+1:], 10, 32)
	if err != nil || n <= 0 {
		return s, false
	}
	s.n = n
	rest := line[:i]
	for {
		// A command line may have semicolons; it ends with a quote.
		after, is := strings.CutPrefix(rest, "process ")
		if !is {
			break
		}
		number, _, _ := strings.Cut(after, ":")
		_, next, ended := strings.Cut(after, `";`)
		if !ended || len(number) > 20 {
			return s, false
		}
		s.process, rest = number, next
	}
	for frame := range strings.SplitSeq(rest, ";") {
		if frame = strings.TrimSpace(frame); frame != "" {
			s.frames = append(s.frames, frame)
		}
	}
	if len(s.frames) > 0 && strings.HasPrefix(s.frames[0], "thread (") {
		s.main = strings.HasSuffix(s.frames[0], "MainThread") || s.process != "" && strings.HasPrefix(s.frames[0], "thread ("+s.process+")")
		s.frames = s.frames[1:]
	}
	return s, len(s.frames) > 0
}

// readStacks says how the first threads of a worker's processes spent their
// time: those that do the training, not those that start others or load data for
// them, unless there is nothing else.
func readStacks(all, running []byte, several bool) (Summary, error) {
	seen, err := parseFolded(all)
	if err != nil {
		return Summary{}, err
	}
	ran, err := parseFolded(running)
	if err != nil {
		return Summary{}, err
	}
	seen, ran = mainThreads(seen), mainThreads(ran)
	helper := helpers(seen)
	loads := loading(seen)
	runs := map[string]int64{}
	for _, s := range ran {
		runs[s.process+";"+strings.Join(s.frames, ";")] += s.n
	}
	// Both looks are as long, but do not see the same moments: what a stack ran
	// oftener than it was there at all, it was there.
	t, processes := newTally(), map[string]bool{}
	for _, s := range seen {
		if helper[s.process] {
			continue
		}
		processes[s.process] = true
		key := s.process + ";" + strings.Join(s.frames, ";")
		n, active := float64(s.n), float64(min(runs[key], s.n))
		runs[key] -= int64(active)
		name, where := frame(s.frames[len(s.frames)-1])
		f := Function{Name: name, Where: where, Kind: kind(s.frames)}
		if at, waits := waitsForLoader(s.frames); waits && f.Kind == Memory {
			if len(loads) == 0 { // what they do was not seen
				f.Name, f.Where = waitedFor, at
				t.add(f, n, n-active)
			}
			for _, l := range loads {
				f.Name, f.Where = l.name, l.where
				t.add(f, n*l.share, (n-active)*l.share)
			}
			continue
		}
		if f.Kind != Compute {
			t.add(f, n, n-active)
			continue
		}
		t.add(f, active, 0)
		if f.Kind = Idle; several && waitsForOthers(s.frames) {
			f.Kind = Communication
		}
		t.add(f, n-active, n-active)
	}
	summary, err := t.summary(0)
	summary.Processes = len(processes)
	return summary, err
}

// waitedFor is the name of a wait for the processes of a data loader.
const waitedFor = "waiting for the data loader"

// inLoader ends the names of what these processes do.
const inLoader = " (in the data loader)"

// waitsForLoader reports a wait of PyTorch's DataLoader for its processes, and where it
// waits: select or poll, which is what Python does there, says nothing to anybody.
func waitsForLoader(frames []string) (where string, yes bool) {
	i := slices.IndexFunc(frames, func(f string) bool {
		name, file := frame(f)
		return strings.HasPrefix(file, "torch/utils/data/dataloader.py") && slices.Contains([]string{"_next_data", "_get_data", "_try_get_data"}, name)
	})
	if i < 0 || !slices.ContainsFunc(frames[i:], func(f string) bool {
		return has(f, "(multiprocessing/", "(queue.py", "(threading.py", "(selectors.py")
	}) || slices.ContainsFunc(frames[i:], func(f string) bool { return has(f, "multiprocessing/reductions.py") }) { // it takes what is there
		return "", false
	}
	_, where = frame(frames[i])
	return where, true
}

// loaded is what the processes of a data loader did, and for which share of their time.
type loaded struct {
	name, where string
	share       float64
}

// loading says what the processes of data loaders did while they loaded: the function in
// which they were, and where the program's own code called it. What waits for work, or to
// hand over what it has, is left out.
func loading(all []stack) []loaded {
	type call struct{ name, where string }
	did, total := map[call]float64{}, 0.0
	for _, s := range all {
		i := slices.IndexFunc(s.frames, func(f string) bool { return strings.HasPrefix(f, "_worker_loop (torch/utils/data/") })
		if i < 0 {
			continue
		}
		j := slices.IndexFunc(s.frames[i:], func(f string) bool { return !has(f, "(torch/utils/data/") })
		if j < 0 || !slices.ContainsFunc(s.frames[i:], func(f string) bool { return strings.HasPrefix(f, "fetch (torch/utils/data/") }) {
			continue
		}
		name, where := frame(s.frames[i+j])
		if leaf, _ := frame(s.frames[len(s.frames)-1]); len(s.frames) > i+j+1 {
			name = leaf + ", called by " + name
		}
		did[call{name + inLoader, where}] += float64(s.n)
		total += float64(s.n)
	}
	var out []loaded
	for c, n := range did {
		out = append(out, loaded{c.name, c.where, n / total})
	}
	slices.SortFunc(out, func(a, b loaded) int {
		return cmp.Or(cmp.Compare(b.share, a.share), cmp.Compare(a.name, b.name), cmp.Compare(a.where, b.where))
	})
	if len(out) > maxTop { // the rest is one line
		rest := loaded{name: "other functions" + inLoader}
		for _, l := range out[maxTop-1:] {
			rest.share += l.share
		}
		out = append(out[:maxTop-1], rest)
	}
	return out
}

func mainThreads(all []stack) []stack {
	return slices.DeleteFunc(all, func(s stack) bool { return !s.main })
}

// helpers are the processes that start others or load data for them; none when
// there are no others.
func helpers(all []stack) map[string]bool {
	helper, worker := map[string]bool{}, map[string]bool{}
	for _, s := range all {
		// multiprocessing begins those that it spawns by python -c.
		if has(s.frames[0], "<string>:") || slices.ContainsFunc(s.frames, func(f string) bool {
			return has(f, "torch/distributed/run.py", "torch/distributed/elastic/", "_worker_loop (torch/utils/data", "multiprocessing/resource_tracker.py")
		}) {
			helper[s.process] = true
			continue
		}
		worker[s.process] = true
	}
	others := false
	for p := range worker {
		others = others || !helper[p]
	}
	if !others {
		return nil
	}
	return helper
}

// What is done in a function, by its name or its file. A stack is of the first
// kind that one of its frames has.
var (
	communicates = []string{
		"torch/distributed/", "torch/nn/parallel/distributed.py", "horovod/", "mpi4py/", "deepspeed/comm/", "xgboost/collective.py", "xgboost/tracker.py",
		"all_reduce (", "allreduce (", "all_gather (", "allgather (", "reduce_scatter (", "broadcast_object", "all_to_all (", "barrier (", "cupy/cuda/nccl", "cupyx/distributed",
	}
	moves = []string{
		"torch/utils/data/", "torchvision/datasets/", "torchvision/transforms/", "torchvision/io/", "webdataset/", "datasets/arrow_", "tensorflow/python/data/",
		"PIL/", "cv2/", "pandas/io/", "pyarrow/", "numpy/lib/npyio.py", "numpy/lib/format.py", "pickle.py", "torch/serialization.py", "h5py/", "zarr/", "fsspec/",
		"multiprocessing/reductions.py", "pin_memory (", "_to_copy (", "falaj/_data.py", "gzip.py", "zipfile.py", "tarfile.py", "csv.py", "shutil.py",
	}
)

func kind(frames []string) Kind {
	if slices.ContainsFunc(frames, func(f string) bool { return has(f, "<frozen importlib") }) {
		return Compute // it begins: what is imported is not done
	}
	for _, k := range []struct {
		kind Kind
		is   []string
	}{{Communication, communicates}, {Memory, moves}} {
		if slices.ContainsFunc(frames, func(f string) bool { return has(f, k.is...) && !hook(f) }) {
			return k.kind
		}
	}
	return Compute
}

// hook reports frames that lie around the program's own work.
func hook(f string) bool {
	return has(f, "forward (torch/nn/parallel/distributed.py", "_run_ddp_forward", "wrapper (torch/distributed/elastic/multiprocessing/errors")
}

// waitsForOthers reports a wait inside the backward pass, where gradients are
// averaged by threads that Python does not see.
func waitsForOthers(frames []string) bool {
	return slices.ContainsFunc(frames, func(f string) bool {
		return has(f, "torch/autograd/", "tensorflow/python/eager/backprop.py")
	})
}

func has(s string, parts ...string) bool {
	return slices.ContainsFunc(parts, func(part string) bool { return strings.Contains(s, part) })
}

// frame splits "step (train.py:6)".
func frame(f string) (name, where string) {
	name, where, ok := strings.Cut(f, " (")
	if !ok {
		return f, ""
	}
	return name, strings.TrimSuffix(where, ")")
}
