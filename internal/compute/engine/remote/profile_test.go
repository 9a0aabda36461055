package remote_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/compute/engine"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/sandbox/sandboxtest"
	"github.com/falaj-ml/falaj/internal/worker/launch"
	"github.com/falaj-ml/falaj/internal/worker/profiler"
)

// spy stands for py-spy: it says whose process it was to look at.
const spy = `
import sys
if '--version' in sys.argv:
    sys.exit(print('py-spy 0.0.0'))
args = dict(zip(sys.argv[2:], sys.argv[3:]))
pid = args['--pid']
env = open('/proc/%s/environ' % pid).read().split('\0')
mine = [v for v in env if v.startswith('FALAJ_WORKER_INDEX=')][0]
open(args['--output'], 'w').write('thread (%s): MainThread;%s (train.py:1) %s\n' % (pid, mine, args['--duration']))
`

// TestProfile: the agent of the worker that was asked for looks at its worker, and
// at no other.
func TestProfile(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	python, _ := sandboxtest.Python(t)
	bin := w.dir("bin", map[string]string{"py-spy": "#!" + python + spy})
	w.check(os.Chmod(filepath.Join(bin, "py-spy"), 0o700))
	s := w.spec(2, "")
	s.Command = []string{python, "-c", "print('there', flush=True)\nimport time\ntime.sleep(1000)"}
	s.Launch = launch.Spec{Framework: launch.Plain, Command: s.Command}
	s.Env["PATH"] = bin + ":/usr/bin:/bin"
	s.Mounts = append(s.Mounts, engine.Mount{Path: bin})
	h, err := w.d.Start(w.ctx, s)
	w.check(err)
	look := func(worker int) (profiler.Result, error) {
		return w.d.Profile(w.ctx, h, profiler.Request{ID: fmt.Sprintf("prf_%d_%d", worker, time.Now().UnixNano()), Tool: profiler.PySpy, Seconds: 7, Worker: worker})
	}
	for worker := range 2 {
		for {
			r, err := look(worker)
			if fault.Is(err, fault.Conflict) && w.ctx.Err() == nil {
				continue // it has not begun
			}
			w.check(err)
			want := fmt.Sprintf("MainThread;FALAJ_WORKER_INDEX=%d (train.py:1) 7\n", worker)
			if got := string(r.Files[0].Data); r.Version != "py-spy 0.0.0" || r.Processes != 1 || !strings.HasSuffix(got, want) || strings.Count(got, "\n") != 1 {
				t.Errorf("worker %d: %+v %q", worker, r, got)
			}
			break
		}
	}
	if _, err := look(2); !fault.Is(err, fault.Invalid) {
		t.Errorf("a worker that is not: %v", err)
	}
	ctx, cancel := context.WithCancel(w.ctx)
	cancel()
	if _, err := w.d.Profile(ctx, h, profiler.Request{ID: "prf_9", Tool: profiler.PySpy, Seconds: 7}); !errors.Is(err, context.Canceled) {
		t.Errorf("nobody waits: %v", err)
	}
	w.check(w.d.Stop(w.ctx, h, 0))
	if _, err := look(0); !fault.Is(err, fault.Conflict) {
		t.Errorf("after the end: %v", err)
	}
}
