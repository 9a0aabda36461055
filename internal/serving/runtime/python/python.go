// Package python runs models that are Python: a function in a predict.py, a
// scikit-learn estimator in MLflow's format, a TensorFlow Lite file. Nothing of them
// is read here. Each process of a model is confined to its environment and its files
// by who launches it, and is spoken to and started again as any model's process
// (runtime/child): this package hands the model out and shares its processes.
//
//   - python.go: Runtime, which keeps the files of what is loaded, and its sessions.
//   - worker.py: the process. Command and Variables are how it is started.
//
// # Guarantees
//
// A model's files are written where nobody else reads, each verified as it is read,
// before its first process starts, and removed after its last one ended; what an
// earlier server left is removed by New. A process answers one request at a time. One
// that ended is passed by while another of the same model answers.
package python

import (
	"context"
	_ "embed"
	"errors"
	"maps"
	"os"
	"reflect"
	"strconv"
	"sync"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/serving/runtime"
)

//go:embed worker.py
var worker string

// Command is what runs in the sandbox: the worker is a text that is handed over, so
// that no file of ours needs to be in there.
func Command(p runtime.Python) []string {
	// -I: of nobody's variables, user directory or working directory. -B: nothing is compiled into the environment.
	return []string{p.Interpreter, "-I", "-B", "-c", worker, p.Dir}
}

// Variables are all that the process has: those of the environment, and how many
// threads numeric libraries may use.
func Variables(p runtime.Python, threads int) map[string]string {
	n := strconv.Itoa(max(1, threads))
	v := map[string]string{"PATH": "/usr/bin:/bin", "HOME": "/tmp", "LANG": "C.UTF-8", "TZ": "UTC"}
	maps.Copy(v, p.Env)
	for _, name := range []string{"OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS", "LOKY_MAX_CPU_COUNT", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"} {
		v[name] = n
	}
	return v
}

// Runtime loads Python models. Make it with New.
type Runtime struct {
	processes runtime.Runtime
	dir       string

	mu   sync.Mutex
	uses map[string]int // sessions by environment
}

var _ runtime.Runtime = (*Runtime)(nil)

// New makes a runtime whose processes another one starts and speaks to. The directory
// is its own: what is in it is removed.
func New(processes runtime.Runtime, dir string) (*Runtime, error) {
	if err := os.RemoveAll(dir); err != nil {
		return nil, fault.Wrap(err, "removing leftovers of an earlier server")
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fault.Wrap(err, "make the directory of models")
	}
	return &Runtime{processes: processes, dir: dir, uses: map[string]int{}}, nil
}

// Environments are those that loaded models run in: "name@digest".
func (r *Runtime) Environments() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make([]string, 0, len(r.uses))
	for e := range r.uses {
		out = append(out, e)
	}
	return out
}

func (r *Runtime) use(environment string, n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.uses[environment] += n; r.uses[environment] == 0 {
		delete(r.uses, environment)
	}
}

// Load implements runtime.Runtime; o.Python says what is loaded.
func (r *Runtime) Load(ctx context.Context, _ []byte, o runtime.Options) (runtime.Session, error) {
	if o.Time == 0 {
		o.Time = runtime.DefaultTime
	}
	p := *o.Python
	r.use(p.Environment, 1) // from before its files are needed
	s := &session{free: func() { r.use(p.Environment, -1) }}
	fail := func(err error) (runtime.Session, error) { return nil, errors.Join(err, s.Close()) }
	var err error
	if s.dir, err = os.MkdirTemp(r.dir, "model-"); err != nil {
		return fail(fault.Wrap(err, "make a directory for the model's files"))
	}
	// Who runs as another user sees it through a mount; for others the directory above is closed.
	if err := os.Chmod(s.dir, 0o755); err != nil { //nolint:gosec // see above
		return fail(err)
	}
	if err := write(ctx, p, s.dir, o); err != nil {
		return fail(err)
	}
	p.Dir, p.Write = s.dir, nil
	o.Python, o.Again, o.InProcess = &p, nil, false
	n := max(1, p.Processes)
	s.all = make([]runtime.Session, n)
	failures := make([]error, n)
	var loading sync.WaitGroup
	for i := range n {
		loading.Go(func() { s.all[i], failures[i] = r.processes.Load(ctx, nil, o) })
	}
	loading.Wait()
	for _, err := range failures {
		if err != nil {
			return fail(err)
		}
	}
	s.meta, s.idle = s.all[0].Metadata(), make(chan runtime.Session, n)
	for _, one := range s.all {
		if !reflect.DeepEqual(one.Metadata(), s.meta) {
			return fail(fault.New(fault.Invalid, "two processes of the model declare different tensors"))
		}
		s.idle <- one
	}
	return s, nil
}

// write writes the model's files, within the time that a load may take.
func write(ctx context.Context, p runtime.Python, dir string, o runtime.Options) error {
	ctx, cancel := context.WithTimeoutCause(ctx, o.Time, runtime.Late(o.Time))
	defer cancel()
	err := p.Write(ctx, dir)
	if err != nil && ctx.Err() != nil {
		return fault.New(fault.Timeout, "writing the model's files timed out: %w", context.Cause(ctx))
	}
	return err
}

// session is a loaded model: its processes, of which those in idle have nothing to do.
type session struct {
	dir  string
	free func()
	all  []runtime.Session // nil where one did not load
	meta runtime.Metadata
	idle chan runtime.Session
}

var (
	_ runtime.Restarting = (*session)(nil)
	_ runtime.Narrow     = (*session)(nil)
)

func (s *session) Metadata() runtime.Metadata { return s.meta }

// Runs implements runtime.Narrow.
func (s *session) Runs() int { return len(s.all) }

// Unavailable implements runtime.Restarting: one that answers is enough.
func (s *session) Unavailable() (err error) {
	for _, one := range s.all {
		if err = runtime.Unavailable(one); err == nil {
			return nil
		}
	}
	return err
}

func (s *session) Infer(ctx context.Context, inputs []runtime.Tensor, outputs []string) ([]runtime.Tensor, error) {
	one, err := s.take(ctx)
	if err != nil {
		return nil, err
	}
	out, err := one.Infer(ctx, inputs, outputs)
	if over := runtime.Over(err); over != nil { // it goes on with this one
		go func() {
			<-over
			s.idle <- one
		}()
		return out, err
	}
	s.idle <- one
	return out, err
}

// take takes a process that has nothing to do. Those that are being started again
// are passed by while another one answers, or will.
func (s *session) take(ctx context.Context) (runtime.Session, error) {
	var passed []runtime.Session
	defer func() {
		for _, one := range passed {
			s.idle <- one
		}
	}()
	var again <-chan time.Time // when those that were passed by are looked at once more
	for {
		if ctx.Err() != nil {
			return nil, over()
		}
		if len(passed) > 0 && again == nil {
			t := time.NewTimer(look)
			defer t.Stop()
			again = t.C
		}
		select {
		case <-again:
			for _, one := range passed {
				s.idle <- one
			}
			passed, again = nil, nil
		case one := <-s.idle:
			if runtime.Unavailable(one) == nil {
				return one, nil
			}
			passed = append(passed, one)
			if err := s.Unavailable(); err != nil {
				return nil, err
			}
		case <-ctx.Done():
			return nil, over()
		}
	}
}

// look is how long a request that waits leaves a process alone that was being started
// again.
const look = 100 * time.Millisecond

func over() error {
	return fault.New(fault.Timeout, "the request timed out waiting for a process of the model")
}

// Close implements runtime.Session.
func (s *session) Close() error {
	var failures []error
	for _, one := range s.all {
		if one != nil {
			failures = append(failures, one.Close())
		}
	}
	if s.dir != "" {
		failures = append(failures, os.RemoveAll(s.dir))
	}
	s.free()
	return errors.Join(failures...)
}
