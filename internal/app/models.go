package app

import (
	"context"
	"io"
	"os"
	"path/filepath"
	goruntime "runtime"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/falaj-ml/falaj/internal/config"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/machine"
	"github.com/falaj-ml/falaj/internal/onnxfile"
	"github.com/falaj-ml/falaj/internal/resource"
	"github.com/falaj-ml/falaj/internal/sandbox"
	"github.com/falaj-ml/falaj/internal/serving/runtime"
	"github.com/falaj-ml/falaj/internal/serving/runtime/child"
	"github.com/falaj-ml/falaj/internal/serving/runtime/onnx"
	"github.com/falaj-ml/falaj/internal/serving/runtime/python"
	"github.com/falaj-ml/falaj/internal/serving/runtime/remote"
)

// runtimes runs models in processes of their own or on another server, and in this process
// those that Options.InProcess names; of these not the ones that a request could crash.
type runtimes struct {
	here   runtime.Runtime
	apart  *child.Runtime
	most   resource.Bytes // that a process may have; 0: what is asked
	remote *remote.Runtime
	python *python.Runtime
}

var _ runtime.Runtime = runtimes{}

func (a *App) runtimes() (runtimes, error) {
	l, _ := a.launcher().(launcher)
	memory := resource.Bytes(config.Bytes(a.cfg.Serving.Memory))
	if memory == 0 {
		memory = machine.Read("/").Memory / 2
	}
	servers, err := a.cfg.Servers()
	if err != nil {
		return runtimes{}, err
	}
	away, err := remote.New(remote.Config{Servers: servers, Signature: onnx.Signature, Log: a.log})
	if err != nil {
		return runtimes{}, err
	}
	a.onClose(away.Close)
	library := a.cfg.ORTPath()
	apart := child.New(modelLauncher{l, library}, a.log)
	own, err := python.New(apart, filepath.Join(a.cfg.Data, "tmp", "models"))
	if err != nil {
		return runtimes{}, err
	}
	return runtimes{onnx.New(library).Within(memory), apart, resource.Bytes(config.Bytes(a.cfg.Serving.Process)), away, own}, nil
}

// Load implements runtime.Runtime.
func (r runtimes) Load(ctx context.Context, model []byte, o runtime.Options) (runtime.Session, error) {
	if o.Remote.Server != "" {
		return r.remote.Load(ctx, model, o)
	}
	if o.Python == nil { // before any process gets it
		if err := onnxfile.Check(model); err != nil {
			return nil, err
		}
	}
	if o.InProcess && o.Python == nil && !onnx.Fragile(model) {
		return r.here.Load(ctx, model, o)
	}
	if r.most > 0 && o.Memory > r.most {
		return nil, fault.New(fault.Invalid, "spec.runtime.memory is %s; the maximum on this server is %s", o.Memory, r.most).
			WithHint("Lower it, or raise serving.process_memory.")
	}
	if o.Memory == 0 {
		size := len(model)
		if o.Python != nil {
			size = int(o.Python.Size)
		}
		o.Memory = child.Memory(size)
		if r.most > 0 {
			o.Memory = min(o.Memory, r.most)
		}
	}
	if o.Python != nil {
		return r.python.Load(ctx, nil, o)
	}
	return r.apart.Load(ctx, model, o)
}

// modelLauncher confines the process of one model: this binary and the library
// that runs it. It writes no files, and has as many cores as the server.
type modelLauncher struct {
	launcher
	library string
}

// Launch implements child.Launcher.
func (l modelLauncher) Launch(ctx context.Context, o runtime.Options) (child.Process, error) {
	if o.Python != nil {
		return l.python(ctx, *o.Python, o)
	}
	library, err := filepath.EvalSymlinks(l.library)
	if err == nil {
		library, err = filepath.Abs(library)
	}
	if err != nil {
		return nil, onnx.Missing(l.library)
	}
	cores := goruntime.GOMAXPROCS(0)
	policy := l.policy(sandbox.Limits{
		Memory: o.Memory, CPU: resource.Cores(int64(cores)), Processes: 1024, OpenFiles: 256, Tmp: scratch, FileSize: scratch,
	})
	policy.Mounts = append(policy.Mounts, sandbox.Mount{Path: library})
	policy.Env["GOMAXPROCS"] = strconv.Itoa(cores)
	policy.Env["MALLOC_ARENA_MAX"] = "2" // what one model frees, the next run takes
	cmd, err := sandbox.Command(ctx, l.worker, policy, l.self, "child", child.Mode, library)
	if err != nil {
		return nil, err
	}
	return confined{cmd}, nil
}

// python confines a process of a Python model as any user's code: its environment and
// the model's files, which it only reads, and the cores that a run takes.
func (l modelLauncher) python(ctx context.Context, p runtime.Python, o runtime.Options) (child.Process, error) {
	threads := max(1, o.Threads)
	policy := sandbox.Policy{
		Level: l.level, Owner: l.owner, Mounts: []sandbox.Mount{{Path: p.Dir}}, Env: python.Variables(p, threads),
		Limits: sandbox.Limits{
			Memory: o.Memory, CPU: resource.Cores(int64(threads)), Processes: 256, OpenFiles: 1024, Tmp: pythonScratch, FileSize: pythonScratch,
		},
	}
	for _, path := range p.Mounts {
		policy.Mounts = append(policy.Mounts, sandbox.Mount{Path: path})
	}
	cmd, err := sandbox.Command(ctx, l.worker, policy, python.Command(p)...)
	if err != nil {
		return nil, err
	}
	return confined{cmd}, nil
}

// pythonScratch is what a Python model may write, in memory that counts as its own.
const pythonScratch = 64 * resource.MiB

// scratch is as little as a sandbox's files may be.
const scratch = 16 * resource.MiB

// OutOfMemory reports whether its memory ended it, after Wait.
func (c confined) OutOfMemory() bool { return c.Outcome().OutOfMemory }

// runModel is the child. What the library prints goes where errors go: out is
// for answers.
func runModel(args []string, in io.Reader, out io.Writer) error {
	if len(args) != 1 {
		return fault.New(fault.Invalid, "the library's path is missing")
	}
	if f, ok := out.(*os.File); ok && f.Fd() == 1 {
		own, err := unix.FcntlInt(1, unix.F_DUPFD_CLOEXEC, 3)
		if err != nil {
			return err
		}
		if err := unix.Dup3(2, 1, 0); err != nil {
			return err
		}
		out = os.NewFile(uintptr(own), "answers")
	}
	return child.Main(in, out, onnx.New(args[0]))
}
