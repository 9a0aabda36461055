package diagnosis

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// sign is something that a log says and what it means.
type sign struct {
	name string
	re   *regexp.Regexp // of one line; its first group goes into words and hint
	// class of the end; empty leaves it to how the program ended.
	class Class
	// words and hint may have one %s for the first group.
	words, hint string
	// peer marks what a worker says whose peers are gone: somebody else is the
	// cause, if anybody is.
	peer bool
}

// signs in the order in which they are believed: what is special before what is
// general, and what peers cause last.
var signs = []sign{
	{
		name: "accelerator memory", class: OutOfMemory,
		re:    regexp.MustCompile(`(CUDA out of memory|torch\.(?:cuda\.)?OutOfMemoryError|CUDA_ERROR_OUT_OF_MEMORY|HIP out of memory|RESOURCE_EXHAUSTED: Out of memory)`),
		words: "out of accelerator memory: %s",
		hint:  "Use a smaller batch with accumulate, a lower precision, or accelerators with more memory.",
	},
	{
		name: "driver", class: Environment,
		re:    regexp.MustCompile(`(CUDA driver version is insufficient|The NVIDIA driver on your system is too old|Found no NVIDIA driver|no CUDA-capable device|cudaErrorInsufficientDriver|cudaErrorNoDevice|libcuda\.so\.1: cannot open)`),
		words: "the accelerator's driver is incompatible with the environment: %s",
		hint:  "`falaj env check` shows for each pool the required and the installed driver; resources.accelerators requests a device.",
	},
	{
		name: "kernel image", class: Environment,
		re:    regexp.MustCompile(`(no kernel image is available for execution|is not compatible with the current PyTorch installation|Torch not compiled with CUDA enabled|cudaErrorNoKernelImageForDevice)`),
		words: "the environment was not built for this accelerator: %s",
		hint:  "`falaj env check` compares the packages' build targets with each pool's accelerators.",
	},
	{
		name: "instructions", class: Environment,
		re:    regexp.MustCompile(`(Illegal instruction|compiled to use .*instructions.*not supported|requires? AVX\S*)`),
		words: "a package needs instructions that this processor lacks: %s",
		hint:  "`falaj env check` lists the pools whose processors support them.",
	},
	{
		name: "disk", class: Infrastructure,
		re:    regexp.MustCompile(`(No space left on device|Disk quota exceeded|database or disk is full)`),
		words: "a disk was full: %s",
		hint:  "Free space on the node or the server. Keep fewer checkpoints, and temporary files in FALAJ_SCRATCH_DIR.",
	},
	{
		name: "host memory", class: OutOfMemory,
		re:    regexp.MustCompile(`(^MemoryError|DefaultCPUAllocator: (?:can't|not enough)|Cannot allocate memory|std::bad_alloc|numpy\.core\._exceptions\._ArrayMemoryError|_ArrayMemoryError)`),
		words: "out of memory: %s",
		hint:  "Request more in resources.memory, or use less.",
	},
	{
		name: "module", class: Environment,
		re:    regexp.MustCompile(`(?:ModuleNotFoundError|ImportError): (.{0,200})`),
		words: "a Python package is missing or incompatible: %s",
		hint:  "Add it to the environment's requirements; add your own modules to the job's source.",
	},
	{
		name: "shared library", class: Environment,
		re:    regexp.MustCompile(`error while loading shared libraries: (\S+)`),
		words: "a shared library is missing: %s",
		hint:  "Add the package that provides it, or use an image that contains it.",
	},
	{
		name:  "script",
		re:    regexp.MustCompile(`can't open file '?([^':]{1,200})'?: \[Errno 2\]`),
		words: "the script %s does not exist",
		hint:  "Scripts are read from the working directory, which contains the job's source: submit with the file in it.",
	},
	{
		name: "main guard", class: UserError,
		re:    regexp.MustCompile(`(An attempt has been made to start a new process before the)`),
		words: "the script starts processes when they import it (Python: %s …)",
		hint:  `Run the script's code below if __name__ == "__main__": because the workers of a data loader import the script.`,
	},
	{
		name:  "file",
		re:    regexp.MustCompile(`FileNotFoundError: \[Errno 2\] No such file or directory: '([^']{0,200})'`),
		words: "a file is missing: %s",
		hint:  "Data is below FALAJ_DATA_NAME, for each input in spec.data; code is in the working directory.",
	},
	{
		name: "port", class: Infrastructure,
		re:    regexp.MustCompile(`(EADDRINUSE|[Aa]ddress already in use)`),
		words: "the port of the rendezvous was in use: %s",
		hint:  "The next attempt uses another port.",
	},
	{
		name:  "permission",
		re:    regexp.MustCompile(`(?:PermissionError: \[Errno 13\]|OSError: \[Errno 30\] Read-only file system:?|Permission denied:?) ?(.{0,200})`),
		words: "permission denied for a file: %s",
		hint:  "The job can only write below FALAJ_OUTPUT_DIR, FALAJ_CHECKPOINT_DIR, FALAJ_SCRATCH_DIR and its working directory.",
	},
	{
		name:  "privilege",
		re:    regexp.MustCompile(`(?:PermissionError: \[Errno 1\] |OSError: \[Errno 1\] )?(Operation not permitted.{0,200})`),
		words: "not permitted in the sandbox: %s",
		hint:  "A job has no privileges: it cannot mount, trace other processes, or change owners or system settings.",
	},
	{
		name:  "api",
		re:    regexp.MustCompile(`(HTTP Error 40[134]: [\w ]+|40[134] Client Error.{0,80}|RestException: (?:UNAUTHENTICATED|PERMISSION_DENIED).{0,120})`),
		words: "a server refused its request: %s",
		hint:  "The job's token can only read its inputs and write its own run, while the attempt lasts.",
	},
	{
		name:  "network",
		re:    regexp.MustCompile(`(Temporary failure in name resolution|Name or service not known|NameResolutionError|Network is unreachable|Tunnel connection failed: 403.{0,40}|Cannot connect to proxy)`),
		words: "the egress allow-list does not contain the host: %s",
		hint:  "Add host:port to spec.network, if the installation allows it; put packages into the environment and data into datasets.",
	},
	{
		name: "process", class: Killed, // what torch's launcher says of one that it started
		re:    regexp.MustCompile(`failed \(exitcode: -(9)\)`),
		words: "one of its processes was killed by signal %s",
		hint:  "It was killed by a user, or by the kernel because the node ran out of memory: see the node's log if this repeats.",
	},
	{
		name: "collective", class: Hung, peer: true,
		re:    regexp.MustCompile(`(Watchdog caught collective operation timeout|Timed out waiting \d+ms for (?:recv|send) operation|collective.{0,40}timed out|NCCL.{0,60}timeout)`),
		words: "the workers timed out waiting for one of them: %s",
		hint:  "One worker did something else or nothing: see the lines of each with `falaj job logs --worker I`.",
	},
	{
		name: "rendezvous", class: Infrastructure, peer: true,
		re:    regexp.MustCompile(`(RendezvousTimeoutError|RendezvousConnectionError|The client socket has (?:timed out|failed to connect)|failed to connect to .{0,60} after)`),
		words: "the workers did not find each other: %s",
		hint:  "Nodes of a pool must reach each other; `falaj pool doctor` tries it.",
	},
	{
		name: "peer", class: Infrastructure, peer: true,
		re:    regexp.MustCompile(`(Connection (?:reset|closed) by peer|Connection refused|Broken pipe|remote process exited or there was a network error|NCCL (?:WARN|error).{0,80}|socketProgress.{0,60}closed)`),
		words: "a connection was refused or broke: %s",
		hint:  "For connections between workers, run `falaj pool doctor`. For other hosts, check that they are up and in spec.network.",
	},
}

// sign finds what a worker's log says: the first of the table, at its last line.
func (l Log) sign(worker int) (sign, Line, bool) {
	lines := l.workers[worker]
	// The exception that ended the program comes before all that it mentioned on the way,
	// then what it was raised from.
	last, trace := lastTraceback(lines)
	for t, ok, steps := last, trace, 0; ok && steps < maxTracebacks; steps++ {
		for _, s := range signs {
			if s.re.MatchString(t.exception.Text) {
				return s, t.exception, true
			}
		}
		t, ok = t.cause(lines)
	}
	// What was said earlier the program survived, unless its exception only says that
	// another process failed.
	handled := 0
	if trace && !childRE.MatchString(last.exception.Text) && !loaderRE.MatchString(last.exception.Text) {
		handled = last.exception.Number
	}
	for _, s := range signs {
		if trace && !s.peer && s.class == "" {
			continue // the traceback says what it was, and it was not this
		}
		if s.peer && last.relayed {
			continue // the launcher's other processes lost the one that failed
		}
		for _, line := range slices.Backward(lines) {
			if line.Number <= handled {
				break
			}
			if s.re.MatchString(line.Text) {
				return s, line, true
			}
		}
	}
	return sign{}, Line{}, false
}

// lostPeer reports what a worker says whose peers are gone.
func lostPeer(exception string) bool {
	return slices.ContainsFunc(signs, func(s sign) bool { return s.peer && s.re.MatchString(exception) })
}

// read puts into f what the culprit's log says; without a culprit, what any
// does. It reports whether that decides.
func (in Input) read(f *Finding, culprit int) bool {
	workers := []int{culprit}
	if culprit < 0 || len(in.Members) < 2 {
		workers = in.Log.order()
	}
	for _, w := range workers {
		t, trace := lastTraceback(in.Log.workers[w])
		s, line, found := in.Log.sign(w)
		if !trace && !found {
			continue
		}
		if trace {
			f.Lines = append(t.place(), t.exception)
			f.Words += ": " + t.exception.Text
		}
		if !found {
			f.Hint = "The last lines show the location. " + f.Hint
			return true
		}
		if s.class != "" {
			f.Class = s.class
		}
		m := s.re.FindStringSubmatch(line.Text)
		what := fmt.Sprintf(s.words, cmp.Or(strings.TrimSpace(m[1]), line.Text))
		if trace && line == t.exception {
			f.Evidence = append(f.Evidence, what)
		} else {
			f.Words += ": " + what
			f.Lines = append(f.Lines, line)
		}
		f.Hint = s.hint
		slices.SortFunc(f.Lines, func(a, b Line) int { return a.Number - b.Number })
		if s.class == Hung {
			*f = in.straggler(*f)
		}
		return true
	}
	f.Lines = in.Log.last(workers)
	return false
}

// order is the workers that wrote something.
func (l Log) order() []int {
	var out []int
	for w := range l.workers {
		out = append(out, w)
	}
	slices.Sort(out)
	return out
}

// last is the end of what the first of the workers wrote that wrote anything.
func (l Log) last(workers []int) []Line {
	const shown = 5
	for _, w := range workers {
		if lines := l.workers[w]; len(lines) > 0 {
			return slices.Clone(lines[max(len(lines)-shown, 0):])
		}
	}
	return nil
}
