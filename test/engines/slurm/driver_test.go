package slurm_test

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/compute/engine"
	"github.com/falaj-ml/falaj/internal/compute/engine/remote"
	"github.com/falaj-ml/falaj/internal/compute/engine/remote/remotetest"
	"github.com/falaj-ml/falaj/internal/compute/engine/slurm"
	"github.com/falaj-ml/falaj/internal/compute/engine/slurm/slurmtest"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/resource"
	"github.com/falaj-ml/falaj/internal/sandbox/sandboxtest"
	"github.com/falaj-ml/falaj/internal/worker/launch"
)

// falaj is a driver with the real agent, whose jobs are another user's and see
// nothing of ours: everything is mirrored.
type falaj struct {
	*testing.T
	ctx    context.Context //nolint:containedctx // The life of one test.
	c      *slurmtest.Cluster
	d      *remote.Driver
	output string
	signs  string // a directory that jobs can write to, for tests to wait on
}

func newFalaj(t *testing.T, nodes int) *falaj {
	t.Helper()
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	t.Cleanup(cancel)
	f := &falaj{T: t, ctx: ctx, c: slurmtest.New(t, slurmtest.Options{Nodes: nodes}), output: t.TempDir()}
	f.signs = filepath.Join(f.c.Dir, "signs")
	f.check(os.Mkdir(f.signs, 0o700))
	f.check(os.Chmod(f.signs, 0o777))
	dir := t.TempDir()
	l, err := slurm.New(slurm.Config{Conf: f.c.Conf, DefaultUser: "daemon", Worker: f.c.Worker(t, sandboxtest.Worker(t)), Dir: filepath.Join(dir, "slurm")})
	f.check(err)
	server := remotetest.Serve(t, "")
	f.d, err = remote.New(remote.Config{Name: "slurm", Dir: filepath.Join(dir, "workloads"), Launcher: l, URL: server.URL, Isolation: "process", Settle: time.Second})
	f.check(err)
	t.Cleanup(func() { _ = f.d.Close() })
	server.Use(f.d)
	return f
}

func (f *falaj) check(err error) {
	f.Helper()
	if err != nil {
		f.Fatal(err)
	}
}

// start starts a gang that runs a shell script with the output directory as $1.
func (f *falaj) start(id string, workers int, script string) engine.Handle {
	f.Helper()
	h, err := f.d.Start(f.ctx, engine.Spec{
		ID: id, Project: "p", Workers: workers, Command: []string{"/bin/sh", "-c", script, "sh", f.output}, Launch: launch.Spec{Framework: launch.Plain},
		Env: map[string]string{"PATH": "/usr/bin:/bin", "FALAJ_TOKEN": "t", "OUT": f.output, "SIGNS": f.signs}, Dir: f.output, Grace: 5 * time.Second, Isolation: "process",
		Mounts:    []engine.Mount{{Path: f.output, Writable: true, Role: engine.Output}},
		Resources: resource.Amount{CPU: resource.Cores(8), Memory: 100 * resource.MiB, Accelerators: map[string]int64{"nvidia.com/gpu": 2}},
		Options:   map[string]string{"partition": "batch"},
	})
	f.check(err)
	return h
}

func (f *falaj) wait(h engine.Handle) engine.Status {
	f.Helper()
	st, err := f.d.Wait(f.ctx, h)
	f.check(err)
	return st
}

func (f *falaj) log(h engine.Handle) string {
	f.Helper()
	r, err := f.d.Logs(f.ctx, h, 0, false)
	f.check(err)
	defer r.Close()
	text, err := io.ReadAll(r)
	f.check(err)
	return string(text)
}

// signs waits for files that a job makes.
func (f *falaj) sign(names ...string) {
	f.Helper()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for _, name := range names {
		for {
			if _, err := os.Stat(filepath.Join(f.signs, name)); err == nil {
				break
			}
			select {
			case <-tick.C:
			case <-f.ctx.Done():
				f.Fatalf("no job made %s", name)
			}
		}
	}
}

func (f *falaj) members(h engine.Handle) []engine.Member {
	f.Helper()
	m, err := f.d.Members(f.ctx, h)
	f.check(err)
	return m
}

const hangs = `: >"$SIGNS/up$RANK"; exec sleep 100000`

func TestGang(t *testing.T) {
	f := newFalaj(t, 4)
	h := f.start("att_1", 4, `echo "rank $RANK of $WORLD_SIZE, $(id -un), $CUDA_VISIBLE_DEVICES"; echo "$RANK" >"$OUT/rank$RANK"; [ "$1" = "$OUT" ]`)
	if st := f.wait(h); st.State != engine.Ended || st.Reason != engine.Exited || st.ExitCode != 0 {
		t.Fatalf("%+v\n%s", st, f.log(h))
	}
	lines := strings.Split(strings.TrimSpace(f.log(h)), "\n")
	slices.Sort(lines)
	if len(lines) != 4 {
		t.Fatalf("%q", lines)
	}
	nodes := map[string]bool{}
	for i, m := range f.members(h) {
		nodes[m.Node] = true
		want := fmt.Sprintf("[%d] rank %d of 4, daemon, ", i, i)
		if devices, ok := strings.CutPrefix(lines[i], want); !ok || len(strings.Split(devices, ",")) != 2 {
			t.Errorf("%q, want %q and two devices", lines[i], want)
		}
		if text, err := os.ReadFile(filepath.Join(f.output, fmt.Sprintf("rank%d", i))); err != nil || string(text) != fmt.Sprintln(i) {
			t.Errorf("output of worker %d: %q %v", i, text, err)
		}
	}
	if len(nodes) < 2 { // 8 cores each, 16 on a node
		t.Errorf("the gang stood on %v", nodes)
	}
}

func TestGangLosesANode(t *testing.T) {
	f := newFalaj(t, 4)
	h := f.start("att_1", 4, hangs)
	f.sign("up0", "up1", "up2", "up3")
	bad := f.members(h)[3].Node
	f.c.Fail(bad)
	st := f.wait(h)
	if st.Reason != engine.NodeFailed || !strings.Contains(st.Message, bad) {
		t.Errorf("%s: %+v", bad, st)
	}
}

func TestGangIsPreempted(t *testing.T) {
	f := newFalaj(t, 1)
	h := f.start("att_1", 2, hangs)
	f.sign("up0", "up1")
	_, err := f.c.Command(f.ctx, "sbatch", "--partition=high", "--ntasks=16", "--output=/dev/null", "--wrap=/bin/true")
	f.check(err)
	if st := f.wait(h); st.State != engine.Ended || st.Reason != engine.Preempted {
		t.Errorf("%+v", st)
	}
}

func TestGangIsCancelledByOthers(t *testing.T) {
	f := newFalaj(t, 1)
	h := f.start("att_1", 2, hangs)
	f.sign("up0", "up1")
	_, err := f.c.Command(f.ctx, "scancel", "--name=att_1")
	f.check(err)
	if st := f.wait(h); st.State != engine.Ended || st.Reason != engine.Stopped || !strings.Contains(st.Message, "not through Falaj") {
		t.Errorf("%+v", st)
	}
}

func TestOneFailureEndsTheGang(t *testing.T) {
	f := newFalaj(t, 1)
	h := f.start("att_1", 2, `trap 'echo saved; exit 75' TERM; : >"$SIGNS/up$RANK"
		if [ $RANK = 1 ]; then while [ ! -e "$SIGNS/up0" ]; do read -t 1 x </dev/zero; done; exit 3; fi
		sleep 100000 & wait`)
	st := f.wait(h)
	if st.State != engine.Ended || st.Reason != engine.Exited || st.ExitCode != 3 || !strings.Contains(st.Message, "worker 1") {
		t.Errorf("%+v", st)
	}
	if log := f.log(h); !strings.Contains(log, "[0] saved") {
		t.Errorf("the other could not save: %q", log)
	}
}

// TestControllerAway: a gang that runs ends well while nobody can ask Slurm.
func TestControllerAway(t *testing.T) {
	f := newFalaj(t, 1)
	h := f.start("att_1", 2, `: >"$SIGNS/up$RANK"; while [ ! -e "$SIGNS/go" ]; do sleep 0.1; done; echo done`)
	f.sign("up0", "up1")
	f.c.KillController()
	if _, err := f.d.Inventory(f.ctx, nil); !fault.Is(err, fault.Unavailable) {
		t.Errorf("%v", err)
	}
	f.check(os.WriteFile(filepath.Join(f.signs, "go"), nil, 0o600))
	if st := f.wait(h); st.State != engine.Ended || st.Reason != engine.Exited || st.ExitCode != 0 {
		t.Errorf("%+v", st)
	}
	f.check(f.c.StartController(f.ctx))
}
