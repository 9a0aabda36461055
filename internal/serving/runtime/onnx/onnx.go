// Package onnx runs ONNX models in this process by ONNX Runtime on CPUs. The
// library is loaded at the first Load, so a server without models pays nothing.
//
//   - model.go reads a model's file before the library does.
//   - library.go is the library to the rest; ort.h, ort.c what is used of it.
//   - watch.go breaks off runs whose context is over.
//   - lane.go answers runs that lie in shared memory.
//
// Runs in flight are bounded by the number of cores: more only thrash caches
// and hold an OS thread each. A run is cancelled when its context ends. Inputs
// are read where they are; outputs are copied once.
package onnx

import (
	"context"
	"crypto/sha256"
	"regexp"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/resource"
	serving "github.com/falaj-ml/falaj/internal/serving/runtime"
	"github.com/falaj-ml/falaj/internal/serving/runtime/lane"
)

// Runtime is ONNX Runtime. Make it with New.
type Runtime struct {
	library string
	cores   int
	slots   *semaphore.Weighted // cores that no run has
	memory  resource.Bytes      // see Within
	tight   atomic.Bool         // the next run gives back what the arena does not need after it
	watch   watch

	mu     sync.Mutex
	loaded map[content]*shared
}

// content is what a session of the library is made of.
type content struct {
	digest  [sha256.Size]byte
	threads int
}

// shared is a session of the library and who uses it: versions that several
// deployments have are in memory once.
type shared struct {
	done   chan struct{} // closed when it was loaded, or was not
	native *native
	err    *failure
	uses   int // one of them is the load's own
}

var _ serving.Runtime = (*Runtime)(nil)

// New makes a runtime of the shared library at a path; nothing is loaded yet.
func New(library string) *Runtime {
	n := runtime.GOMAXPROCS(0)
	return &Runtime{library: library, cores: n, slots: semaphore.NewWeighted(int64(n)), loaded: map[content]*shared{}}
}

// Within bounds what the runs of all sessions of the process take together, beside
// their models' weights; 0 is no bound. It counts before the first Load of a process.
func (r *Runtime) Within(memory resource.Bytes) *Runtime {
	r.memory = memory
	return r
}

// Load makes a session of an ONNX model. The file is read and checked here before the
// library sees it, by package onnxfile: data in other files is refused, since all of a model
// is in the bytes that were signed.
func (r *Runtime) Load(ctx context.Context, model []byte, o serving.Options) (serving.Session, error) {
	meta, err := Signature(model)
	if err != nil {
		return nil, err
	}
	if err := r.open(); err != nil {
		return nil, err
	}
	return r.session(ctx, model, meta, o)
}

// nowhere is a directory that cannot be: what is looked for in it or beside it
// is not found. It is where the library would look for a tensor's data, should a
// way to name a file ever slip through inspect.
const nowhere = "/dev/null/none"

// entries are settings of every session.
var entries = map[string]string{
	// A spinning thread steals its core from the other requests.
	"session.intra_op.allow_spinning": "0",
	// One arena, with a bound, for the runs of all; what stays with a session is not
	// in it.
	"session.use_env_allocators":                    "1",
	"session.use_device_allocator_for_initializers": "1",
	// What inspect read is what the library reads.
	"session.load_model_format":                            "ONNX",
	"session.model_external_initializers_file_folder_path": nowhere,
}

func (r *Runtime) session(ctx context.Context, file []byte, meta serving.Metadata, o serving.Options) (_ *session, err error) {
	limit := o.Time
	if limit == 0 {
		limit = serving.DefaultTime
	}
	cores := min(max(1, o.Threads), r.cores)
	s := settings{threads: max(1, o.Threads), arena: true, entries: entries}
	if s.threads > 1 && s.threads >= r.cores {
		s.threads = 0 // those who want all cores share one pool of threads
	}
	of := content{sha256.Sum256(file), s.threads}
	m := r.use(of, func() (*native, *failure) {
		n, err := loadNative(file, meta, s)
		if err == nil {
			(&session{runtime: r, meta: meta, model: n, cores: int64(cores)}).warm(min(warmTime, limit/2))
		}
		return n, err
	})
	native, err := r.wait(ctx, of, m, limit)
	if err != nil {
		return nil, err
	}
	return &session{runtime: r, meta: meta, model: native, cores: int64(cores), leave: func() { r.leave(of, m) }}, nil
}

// wait waits until a model is loaded, and leaves it when it is not. The library
// cannot be told to give up: who waits does.
func (r *Runtime) wait(ctx context.Context, of content, m *shared, limit time.Duration) (_ *native, err error) {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-m.done:
		switch {
		case m.err == nil:
			return m.native, nil
		case outOfMemory(m.err):
			err = fault.New(fault.Exhausted, "no memory to load the model: %w", m.err)
		default:
			err = unrunnable(opened.version, m.err)
		}
	case <-timer.C:
		err = serving.Late(limit)
	case <-ctx.Done():
		err = fault.New(fault.Timeout, "the request timed out before the model was loaded")
	}
	r.leave(of, m)
	return nil, err
}

// unrunnable is why the library does not load a model, and what to do when the model is
// newer than the library.
func unrunnable(version string, why error) error {
	err := fault.New(fault.Invalid, "not a model that ONNX Runtime %s can run: %w", version, why)
	if localeRE.MatchString(why.Error()) {
		return err.WithHint("The machine lacks the locale that the model names for its texts: on Debian, apt-get install locales, then localedef -i en_US -f UTF-8 en_US.UTF-8. `falaj doctor` says whether it is there.")
	}
	if tooNewRE.MatchString(why.Error()) {
		return err.WithHint("Export it for an older operator set (opset_version=17 of torch.onnx.export, target_opset of skl2onnx), or convert it: onnx.version_converter.convert_version(model, 17), with model.ir_version = 10.")
	}
	return err
}

// localeRE is what the library says when the machine has no such locale.
var localeRE = regexp.MustCompile(`(?i)failed to construct locale`)

// tooNewRE is what the library says of the version of a file's format, and of operators.
var tooNewRE = regexp.MustCompile(`(?i)unsupported model IR version|is under development and support for this is limited|only \*?guarantees\*? support for models stamped|Opset \d+ is .*not supported|maximum (?:supported )?opset`)

// use begins a use of what is loaded, or begins to load it.
func (r *Runtime) use(of content, load func() (*native, *failure)) *shared {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.loaded[of]
	if m == nil {
		m = &shared{done: make(chan struct{}), uses: 1}
		r.loaded[of] = m
		go func() {
			m.native, m.err = load()
			r.leave(of, m)
			close(m.done)
		}()
	}
	m.uses++
	return m
}

// leave unloads what nobody uses any more.
func (r *Runtime) leave(of content, m *shared) {
	r.mu.Lock()
	m.uses--
	last := m.uses == 0
	if last {
		delete(r.loaded, of)
	}
	r.mu.Unlock()
	if last && m.native != nil {
		m.native.unload()
	}
}

type session struct {
	runtime *Runtime
	meta    serving.Metadata
	model   *native
	cores   int64 // that a run takes
	runs    sync.WaitGroup
	leave   func()       // when no run is under way
	usual   atomic.Int64 // bytes of the inputs of a run
}

// Limits of a warm-up.
const (
	warmElements = 1 << 20
	warmTime     = 5 * time.Second
)

// warm runs the model once with zeros of its own shapes, one of what varies, so
// that the first request does not pay for what the library makes at a first run.
// A model that refuses zeros, or takes too long, is loaded all the same; one that goes on
// with the run is not loaded before it ends.
func (s *session) warm(limit time.Duration) {
	inputs := make([]serving.Tensor, len(s.meta.Inputs))
	for i, spec := range s.meta.Inputs {
		shape := slices.Clone(spec.Shape)
		for d := range shape {
			if shape[d] < 0 {
				shape[d] = 1
			}
		}
		n, err := serving.Elements(shape)
		if err != nil || n > warmElements || spec.Shape == nil {
			return
		}
		inputs[i] = serving.Tensor{Name: spec.Name, Datatype: spec.Datatype, Shape: shape, Data: serving.Zeros(spec.Datatype, n)}
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	_, _ = s.Infer(ctx, inputs, namesOf(s.meta.Outputs))
}

func (s *session) Metadata() serving.Metadata { return s.meta }

func (s *session) Close() error {
	s.runs.Wait()
	s.leave()
	return nil
}

func (s *session) Infer(ctx context.Context, inputs []serving.Tensor, outputs []string) ([]serving.Tensor, error) {
	if ctx.Err() != nil {
		return nil, fault.New(fault.Timeout, "the request timed out before the model ran")
	}
	s.runs.Add(1)
	defer s.runs.Done()
	if !s.runtime.slots.TryAcquire(s.cores) && s.runtime.slots.Acquire(ctx, s.cores) != nil {
		return nil, fault.New(fault.Timeout, "the request timed out waiting for a free core")
	}
	defer s.runtime.slots.Release(s.cores)

	var room [8]int
	wanted, err := s.wanted(room[:0], outputs)
	if err != nil {
		return nil, err
	}
	c, err := s.model.begin()
	if err != nil {
		return nil, err
	}
	defer s.model.end(c)
	for i, spec := range s.meta.Inputs {
		j := slices.IndexFunc(inputs, func(t serving.Tensor) bool { return t.Name == spec.Name })
		if j < 0 {
			return nil, fault.New(fault.Invalid, "input %q is missing", spec.Name)
		}
		if err := c.give(i, inputs[j]); err != nil {
			return nil, err
		}
	}
	if len(inputs) > len(s.meta.Inputs) {
		if err := s.optional(c, inputs); err != nil {
			return nil, err
		}
	}
	size := c.bytes()
	c.shrink(s.runtime.tight.Swap(false) || s.unusual(size))
	if err := s.run(ctx, c, wanted); err != nil {
		if fault.Is(err, fault.Exhausted) {
			s.runtime.tight.Store(true)
		}
		return nil, err
	}
	return s.answer(c, size, wanted, outputs)
}

// optional gives a run the inputs that have a default in the model, after the others.
func (s *session) optional(c *call, inputs []serving.Tensor) error {
	for i, spec := range s.meta.Optional {
		j := slices.IndexFunc(inputs, func(t serving.Tensor) bool { return t.Name == spec.Name })
		if j < 0 {
			continue
		}
		if err := c.also(s.model, len(s.meta.Inputs)+i, inputs[j]); err != nil {
			return err
		}
	}
	return nil
}

// answer takes the outputs of a run whose inputs had so many bytes.
func (s *session) answer(c *call, size int64, wanted []int, outputs []string) ([]serving.Tensor, error) {
	answer, err := s.size(c, wanted, outputs)
	if err != nil || s.unusual(size+answer) {
		s.runtime.tight.Store(true)
	}
	if err != nil {
		return nil, err
	}
	usual := s.usual.Load()
	s.usual.Store(usual + (size+answer-usual)/8) // one that is lost does not matter
	tensors := make([]serving.Tensor, len(outputs))
	for i, name := range outputs {
		at := slices.IndexFunc(wanted, func(w int) bool { return s.meta.Outputs[w].Name == name })
		if tensors[i], err = c.take(at, name); err != nil {
			return nil, err
		}
	}
	return tensors, nil
}

// size is how many bytes the outputs of a run are; an error when they are too many.
func (s *session) size(c *call, wanted []int, outputs []string) (n int64, err error) {
	left := int64(serving.MaxAnswer)
	for _, name := range outputs {
		at := slices.IndexFunc(wanted, func(w int) bool { return s.meta.Outputs[w].Name == name })
		if left, err = c.room(at, left); err != nil {
			return 0, err
		}
	}
	return serving.MaxAnswer - left, nil
}

// unusual reports whether a run of so many bytes is much larger than they usually
// are, and so what the arena took for it is not to be kept.
func (s *session) unusual(n int64) bool { return n > 4*s.usual.Load()+1<<16 }

// wanted appends the outputs that are asked for, each once.
func (s *session) wanted(wanted []int, outputs []string) ([]int, error) {
	for _, name := range outputs {
		i := slices.IndexFunc(s.meta.Outputs, func(o serving.Spec) bool { return o.Name == name })
		if i < 0 {
			return nil, fault.New(fault.Invalid, "the model has no output %q; it has %v", name, namesOf(s.meta.Outputs))
		}
		if !slices.Contains(wanted, i) {
			wanted = append(wanted, i)
		}
	}
	return wanted, nil
}

func (s *session) run(ctx context.Context, c *call, wanted []int) error {
	s.runtime.watch.begin(ctx, c)
	err := s.model.run(c, wanted)
	s.runtime.watch.end(c)
	if err != nil && ctx.Err() != nil {
		return fault.New(fault.Timeout, "the model did not answer in the request's time")
	}
	return kindOf(err)
}

// kindOf gives a run's error its kind. The library's codes say little, so the
// text has to do: it names the input that does not fit, or the node that refused
// what it was given. Anything else is not the caller's doing. It may have values of
// rows, so it is data of who asked.
func kindOf(err *failure) error {
	switch {
	case err == nil:
		return nil
	case outOfMemory(err):
		return fault.New(fault.Exhausted, "no memory to run the model").WithData("%s", err.text).WithHint("Send fewer rows at once.")
	case err.text == "an output is too large":
		return serving.TooLong()
	case refused.MatchString(err.text):
		return fault.New(fault.Invalid, "the model refused the input").WithData("%s", err.text)
	}
	return fault.New(fault.Internal, "the model failed").WithData("%s", err.text)
}

var (
	refused = regexp.MustCompile(`Got invalid dimensions for input|Invalid rank for input|Unexpected input data type|Missing Input:|Invalid [Ii]nput [Nn]ame|Non-zero status code returned while running|required input`)
	noRoom  = regexp.MustCompile(`bad_alloc|smaller than requested bytes|Failed to allocate memory|[Oo]ut of memory|bad array new length`)
)

func outOfMemory(err error) bool { return noRoom.MatchString(err.Error()) }

func namesOf(specs []serving.Spec) []string {
	names := make([]string, len(specs))
	for i, s := range specs {
		names[i] = s.Name
	}
	return names
}

// datatypes are the element types that have a Go slice type, by TensorProto.DataType,
// which is the library's numbering, too.
var datatypes = lane.Datatypes

// datatypeOf is empty for an element type that has none.
func datatypeOf(number uint64) serving.Datatype {
	if number >= uint64(len(datatypes)) {
		return ""
	}
	return datatypes[number]
}
