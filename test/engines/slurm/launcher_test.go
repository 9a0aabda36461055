package slurm_test

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/compute/engine"
	"github.com/falaj-ml/falaj/internal/compute/engine/remote"
	"github.com/falaj-ml/falaj/internal/compute/engine/slurm"
	"github.com/falaj-ml/falaj/internal/compute/engine/slurm/slurmtest"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/resource"
)

// deadline bounds a test that hangs: a lost node is told of after some 20 s.
const deadline = 3 * time.Minute

// bench is a launcher on a cluster of its own, whose agent is a shell script.
type bench struct {
	*testing.T
	ctx context.Context //nolint:containedctx // The life of one test.
	c   *slurmtest.Cluster
	l   *slurm.Launcher
	dir string // of the launcher
	out string // that jobs of every user may write to
}

func newBench(t *testing.T, agent string, o slurmtest.Options, change func(*slurm.Config)) *bench {
	t.Helper()
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	t.Cleanup(cancel)
	b := &bench{T: t, ctx: ctx, c: slurmtest.New(t, o), dir: t.TempDir()}
	b.out = filepath.Join(b.c.Dir, "out")
	b.check(os.Mkdir(b.out, 0o700))
	b.check(os.Chmod(b.out, 0o777))
	worker := filepath.Join(b.c.Dir, "worker")
	b.check(os.WriteFile(worker, []byte("#!/bin/bash\n[ \"$*\" = agent ] || exit 64\ncd '"+b.out+"'\n"+agent), 0o755))
	config := slurm.Config{Conf: b.c.Conf, DefaultUser: "daemon", Worker: worker, Dir: b.dir}
	if change != nil {
		change(&config)
	}
	b.open(config)
	return b
}

func (b *bench) open(c slurm.Config) {
	b.Helper()
	var err error
	if b.l != nil {
		b.check(b.l.Close())
	}
	b.l, err = slurm.New(c)
	b.check(err)
	b.Cleanup(func() { _ = b.l.Close() })
}

func (b *bench) check(err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

func (b *bench) launch(id string, workers int) remote.Launch {
	return remote.Launch{
		ID: id, Workers: workers, Agent: map[string]string{"FALAJ_AGENT_TOKEN": "secret-it's \"$(id)`"},
		Spec: engine.Spec{ID: id, Project: "p", Resources: resource.Amount{CPU: resource.Cores(2), Memory: 200 * resource.MiB}, Options: map[string]string{}},
	}
}

func (b *bench) observe(id string) remote.Observed {
	b.Helper()
	all, err := b.l.Observe(b.ctx, []string{id})
	b.check(err)
	return all[id]
}

// until asks Slurm until the launch is as wanted.
func (b *bench) until(id string, wanted func(remote.Observed) bool) remote.Observed {
	b.Helper()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	var last remote.Observed
	for {
		all, err := b.l.Observe(b.ctx, []string{id})
		if err == nil {
			if last = all[id]; wanted(last) {
				return last
			}
		} else if !fault.Is(err, fault.Unavailable) {
			b.Fatal(err)
		}
		select {
		case <-tick.C:
		case <-b.ctx.Done():
			b.Fatalf("%s is %+v (%v)", id, last, err)
		}
	}
}

func (b *bench) state(id string, s engine.State) remote.Observed {
	b.Helper()
	return b.until(id, func(o remote.Observed) bool { return o.State == s })
}

// appears waits for a file that a job writes, and gives its content.
func (b *bench) appears(name string) string {
	b.Helper()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		if text, err := os.ReadFile(filepath.Join(b.out, name)); err == nil {
			return string(text)
		}
		select {
		case <-tick.C:
		case <-b.ctx.Done():
			b.Fatalf("no job wrote %s", name)
		}
	}
}

func (b *bench) command(name string, args ...string) string {
	b.Helper()
	out, err := b.c.Command(b.ctx, name, args...)
	b.check(err)
	return out
}

// gone waits until Slurm runs no job of the name.
func (b *bench) gone(name string) {
	b.Helper()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for strings.Contains(b.command("squeue", "--noheader", "--format=%j"), name) {
		select {
		case <-tick.C:
		case <-b.ctx.Done():
			b.Fatalf("job %s goes on", name)
		}
	}
}

// running waits until a job that is not ours runs.
func (b *bench) running(name string) {
	b.Helper()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for !strings.Contains(b.command("squeue", "--noheader", "--states=RUNNING", "--format=%j"), name) {
		select {
		case <-tick.C:
		case <-b.ctx.Done():
			b.Fatalf("job %s does not run", name)
		}
	}
}

const waits = `printf '%s' "$FALAJ_WORKER_NODE" >new.$FALAJ_WORKER_INDEX.$$ && mv new.$FALAJ_WORKER_INDEX.$$ up.$FALAJ_WORKER_INDEX
while [ ! -e go ]; do read -t 0.1 <> <(:); done`

func TestEnds(t *testing.T) {
	b := newBench(t, `printf '%s' "$FALAJ_WORKER_INDEX $FALAJ_WORKER_NODE $(id -un) $CUDA_VISIBLE_DEVICES $FALAJ_AGENT_TOKEN" >new.$FALAJ_WORKER_INDEX
		mv new.$FALAJ_WORKER_INDEX up.$FALAJ_WORKER_INDEX`, slurmtest.Options{}, nil)
	l := b.launch("att_1", 3)
	l.Spec.Resources.Accelerators = map[string]int64{"nvidia.com/h100": 4}
	b.check(b.l.Start(b.ctx, l))
	o := b.state("att_1", engine.Ended)
	if o.Reason != engine.Exited || o.Started.IsZero() || o.Ended.Before(o.Started) || len(o.Nodes) == 0 {
		t.Errorf("%+v", o)
	}
	for i, index := range []string{"0", "1", "2"} {
		got := strings.SplitN(b.appears("up."+index), " ", 5)
		if len(got) != 5 || got[0] != index || !strings.HasPrefix(got[1], "n") || got[2] != "daemon" || len(strings.Split(got[3], ",")) != 4 || got[4] != l.Agent["FALAJ_AGENT_TOKEN"] {
			t.Errorf("worker %d: %q", i, got)
		}
	}
	// What ended is known after Slurm has forgotten it and Falaj was restarted.
	b.open(slurm.Config{Conf: "/nonexistent", DefaultUser: "daemon", Worker: "/w", Dir: b.dir})
	if again := b.observe("att_1"); again.Reason != o.Reason || again.Message != o.Message || !again.Ended.Equal(o.Ended) {
		t.Errorf("%+v, was %+v", again, o)
	}
	b.check(b.l.Start(b.ctx, l)) // nothing is submitted: there is no Slurm
}

func TestIdempotent(t *testing.T) {
	b := newBench(t, waits, slurmtest.Options{Nodes: 2}, nil)
	l := b.launch("att_1", 1)
	for range 3 {
		b.check(b.l.Start(b.ctx, l))
	}
	b.appears("up.0")
	// A crash after sbatch and before its answer was recorded.
	file := filepath.Join(b.dir, "att_1.json")
	b.check(os.WriteFile(file, []byte(`{"user":"daemon"}`), 0o600))
	b.open(slurm.Config{Conf: b.c.Conf, DefaultUser: "daemon", Worker: filepath.Join(b.c.Dir, "worker"), Dir: b.dir})
	b.check(b.l.Start(b.ctx, l))
	if jobs := strings.Fields(b.command("squeue", "--noheader", "--states=all", "--format=%i")); len(jobs) != 1 {
		t.Errorf("jobs %q", jobs)
	}
	b.state("att_1", engine.Running)
	if ids, err := b.l.List(b.ctx); err != nil || len(ids) != 1 || ids[0] != "att_1" {
		t.Errorf("%q %v", ids, err)
	}
	// Without any record the job is still found, and another user's of the same
	// name and comment is not taken for it.
	b.check(os.Remove(file))
	b.open(slurm.Config{Conf: b.c.Conf, DefaultUser: "nobody", Worker: filepath.Join(b.c.Dir, "worker"), Dir: b.dir})
	if ids, err := b.l.List(b.ctx); err != nil || len(ids) != 1 || ids[0] != "att_1" {
		t.Errorf("an orphan: %q %v", ids, err)
	}
	b.check(b.l.Stop(b.ctx, "att_1", 0))
	if o := b.state("att_1", engine.Ended); o.Reason != engine.Stopped || strings.Contains(o.Message, "not through Falaj") {
		t.Errorf("%+v", o)
	}
	b.check(b.l.Stop(b.ctx, "att_1", 0))
	b.check(b.l.Forget(b.ctx, "att_1"))
	if o := b.observe("att_1"); o.State != engine.Lost {
		t.Errorf("%+v", o)
	}

	// One that is forgotten while Slurm still shows it does not come back.
	b.check(os.Remove(filepath.Join(b.out, "up.0")))
	l.ID = "att_2"
	b.check(b.l.Start(b.ctx, l))
	b.appears("up.0")
	b.check(b.l.Forget(b.ctx, "att_2"))
	for range 2 {
		if ids, err := b.l.List(b.ctx); err != nil || len(ids) != 0 {
			t.Errorf("forgotten: %q %v", ids, err)
		}
		b.open(slurm.Config{Conf: b.c.Conf, DefaultUser: "nobody", Worker: filepath.Join(b.c.Dir, "worker"), Dir: b.dir})
	}
	b.check(os.WriteFile(filepath.Join(b.out, "go"), nil, 0o600))
	b.gone("att_2")
	if _, err := b.l.List(b.ctx); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(b.dir, "att_2.json")); !os.IsNotExist(err) {
		t.Errorf("its record stays: %v", err)
	}
}

func TestStopSaves(t *testing.T) {
	b := newBench(t, `trap 'echo saved >saved; exit 0' TERM; `+waits, slurmtest.Options{Nodes: 1}, nil)
	b.check(b.l.Start(b.ctx, b.launch("att_1", 1)))
	b.appears("up.0")
	b.check(b.l.Stop(b.ctx, "att_1", time.Minute))
	if o := b.state("att_1", engine.Ended); o.Reason != engine.Exited {
		t.Errorf("%+v", o)
	}
	b.appears("saved")
}

func TestStopKillsAfterGrace(t *testing.T) {
	b := newBench(t, `trap '' TERM; `+waits, slurmtest.Options{Nodes: 1}, nil)
	b.check(b.l.Start(b.ctx, b.launch("att_1", 1)))
	b.appears("up.0")
	b.check(b.l.Stop(b.ctx, "att_1", 300*time.Millisecond))
	// The grace runs on while Falaj is away.
	b.open(slurm.Config{Conf: b.c.Conf, DefaultUser: "daemon", Worker: filepath.Join(b.c.Dir, "worker"), Dir: b.dir})
	if o := b.state("att_1", engine.Ended); o.Reason != engine.Stopped {
		t.Errorf("%+v", o)
	}
}

func TestNodeFails(t *testing.T) {
	b := newBench(t, waits, slurmtest.Options{}, nil)
	l := b.launch("att_1", 2)
	l.Spec.Nodes = []string{"n2", "n3"}
	b.check(b.l.Start(b.ctx, l))
	b.appears("up.0")
	b.appears("up.1")
	b.c.Fail("n3")
	o := b.state("att_1", engine.Ended)
	if o.Reason != engine.NodeFailed || !strings.Contains(o.Message, "n3") {
		t.Errorf("%+v", o)
	}
	nodes, err := b.l.Inventory(b.ctx, nil)
	b.check(err)
	for _, n := range nodes {
		if (n.Name == "n3") != (n.Down != "") || n.Amount.CPU != resource.Cores(16) || n.Amount.Accelerators["nvidia.com/gpu"] != 8 || n.Labels["gpu"] != "h100" {
			t.Errorf("%+v", n)
		}
	}
	b.check(b.c.Restore(b.ctx, "n3"))
}

func TestDaemonsAreKilled(t *testing.T) {
	b := newBench(t, waits, slurmtest.Options{Nodes: 1}, nil)
	b.check(b.l.Start(b.ctx, b.launch("att_1", 1)))
	b.appears("up.0")
	b.check(b.c.KillDaemon("n1"))
	b.c.KillController()
	if _, err := b.l.Observe(b.ctx, []string{"att_1"}); !fault.Is(err, fault.Unavailable) {
		t.Errorf("without a controller: %v", err)
	}
	if err := b.l.Start(b.ctx, b.launch("att_2", 1)); !fault.Is(err, fault.Unavailable) {
		t.Errorf("without a controller: %v", err)
	}
	if err := b.l.Stop(b.ctx, "att_1", 0); !fault.Is(err, fault.Unavailable) {
		t.Errorf("without a controller: %v", err)
	}
	b.check(b.c.StartController(b.ctx))
	b.check(os.WriteFile(filepath.Join(b.out, "go"), nil, 0o600))
	// What was asked for while nobody answered still happens: Stop is repeated by
	// whoever asked, Start too.
	b.check(b.l.Start(b.ctx, b.launch("att_2", 1)))
	for _, id := range []string{"att_1", "att_2"} {
		if o := b.state(id, engine.Ended); o.Reason != engine.Exited && o.Reason != engine.Stopped {
			t.Errorf("%s: %+v", id, o)
		}
	}
}

// TestNumbersAreReused: a controller that dies may lose jobs that it had accepted and give their
// numbers to the next ones. A launch never takes another job for its own.
func TestNumbersAreReused(t *testing.T) {
	b := newBench(t, waits, slurmtest.Options{Nodes: 1}, nil)
	b.command("scontrol", "update", "nodename=n1", "state=drain", "reason=test") // what is submitted waits
	state, kept := filepath.Join(b.c.Dir, "state"), filepath.Join(b.c.Dir, "kept")
	b.c.StopController()
	b.check(os.CopyFS(kept, os.DirFS(state)))
	lose := func() {
		b.c.KillController()
		b.check(os.RemoveAll(state))
		b.check(os.CopyFS(state, os.DirFS(kept)))
		b.check(b.c.StartController(b.ctx))
	}
	lost := func(id string) {
		t.Helper()
		if o := b.observe(id); o.State != engine.Lost || !strings.Contains(o.Message, "number") {
			t.Errorf("%s: %+v", id, o)
		}
	}
	b.check(b.c.StartController(b.ctx))

	b.check(b.l.Start(b.ctx, b.launch("att_1", 1)))
	number := b.command("squeue", "--noheader", "--format=%i")
	lose()
	b.check(b.l.Start(b.ctx, b.launch("att_2", 1)))
	if again := b.command("squeue", "--noheader", "--format=%i"); again != number {
		t.Fatalf("Slurm gave number %q after %q: this test shows nothing", again, number)
	}
	for range 2 {
		lost("att_1")
		b.check(b.l.Stop(b.ctx, "att_1", 0))
		b.state("att_2", engine.Pending)
		b.open(slurm.Config{Conf: b.c.Conf, DefaultUser: "daemon", Worker: filepath.Join(b.c.Dir, "worker"), Dir: b.dir})
	}
	b.check(b.l.Forget(b.ctx, "att_1"))
	b.state("att_2", engine.Pending)

	// A job that is not Falaj's.
	lose()
	b.command("sbatch", "--job-name=other", "--chdir=/", "--output=/dev/null", "--wrap=true")
	lost("att_2")
}

func TestCancelledByOthers(t *testing.T) {
	b := newBench(t, waits, slurmtest.Options{Nodes: 1}, nil)
	b.check(b.l.Start(b.ctx, b.launch("att_1", 1)))
	b.appears("up.0")
	b.command("scancel", "--name=att_1")
	if o := b.state("att_1", engine.Ended); o.Reason != engine.Stopped || !strings.Contains(o.Message, "not through Falaj") {
		t.Errorf("%+v", o)
	}
}

func TestPreempted(t *testing.T) {
	b := newBench(t, waits, slurmtest.Options{Nodes: 1}, nil)
	l := b.launch("att_1", 1)
	l.Spec.Resources.CPU = resource.Cores(16)
	b.check(b.l.Start(b.ctx, l))
	b.appears("up.0")
	b.command("sbatch", "--partition=high", "--ntasks=16", "--output=/dev/null", "--wrap=/bin/true")
	if o := b.state("att_1", engine.Ended); o.Reason != engine.Preempted {
		t.Errorf("%+v", o)
	}
	if jobs := strings.Fields(b.command("squeue", "--noheader", "--states=all", "--name=att_1", "--format=%i")); len(jobs) != 1 {
		t.Errorf("Slurm itself repeats a job of ours: %q", jobs)
	}
}

func TestWaitsBehindOthers(t *testing.T) {
	b := newBench(t, waits, slurmtest.Options{Nodes: 2}, nil)
	b.command("sbatch", "--uid=nobody", "--nodes=2", "--exclusive", "--output=/dev/null", "--chdir=/", "--time=60", "--job-name=other", "--wrap=sleep 10000")
	b.running("other")
	l := b.launch("att_1", 4)
	l.Spec.Options["partition"] = "batch"
	b.check(b.l.Start(b.ctx, l))
	o := b.until("att_1", func(o remote.Observed) bool {
		return o.State == engine.Pending && strings.Contains(strings.Join(o.Words, "; "), "not enough nodes")
	})
	words := strings.Join(o.Words, "; ")
	if !strings.Contains(words, "1 running on 32 cpus, 0 waiting (cpus by user: nobody 32)") {
		t.Errorf("%s", words)
	}
	nodes, err := b.l.Inventory(b.ctx, l.Spec.Options)
	b.check(err)
	if len(nodes) != 2 || !strings.Contains(nodes[0].Busy, "1 of nobody") {
		t.Errorf("%+v", nodes)
	}
	b.check(b.l.Stop(b.ctx, "att_1", time.Minute)) // it has nothing to save
	if o := b.state("att_1", engine.Ended); o.Reason != engine.Stopped || !o.Started.IsZero() {
		t.Errorf("%+v", o)
	}
}

func TestRefusals(t *testing.T) {
	b := newBench(t, waits, slurmtest.Options{Nodes: 2}, nil)
	for name, change := range map[string]func(l *remote.Launch){
		"no such partition": func(l *remote.Launch) { l.Spec.Options["partition"] = "nowhere" },
		"no such GPU":       func(l *remote.Launch) { l.Spec.Resources.Accelerators = map[string]int64{"nvidia.com/b200": 1} },
		"too many CPUs":     func(l *remote.Launch) { l.Spec.Resources.CPU = resource.Cores(17) },
		"no such node":      func(l *remote.Launch) { l.Spec.Nodes = []string{"n99"} },
		"injection":         func(l *remote.Launch) { l.Spec.Options["partition"] = "batch\nid" },
	} {
		l := b.launch("att_"+strings.ReplaceAll(name, " ", "-"), 1)
		change(&l)
		if err := b.l.Start(b.ctx, l); !fault.Is(err, fault.Invalid) || fault.HintOf(err) == "" && name != "injection" {
			t.Errorf("%s: %v (hint %q)", name, err, fault.HintOf(err))
		}
	}
	for id, options := range map[string]map[string]string{
		"att_w": {"worker": "/no/such/worker"},
		"att_m": {"modules": "gcc/12 pytorch/2.1"},
	} {
		l := b.launch(id, 1)
		l.Spec.Options = options
		b.check(b.l.Start(b.ctx, l))
		o := b.state(id, engine.Ended)
		if o.Reason != engine.NotStarted || !strings.Contains(o.Message, "module command") && !strings.Contains(o.Message, "/no/such/worker") {
			t.Errorf("%s: %+v", id, o)
		}
	}
}

func TestModules(t *testing.T) {
	b := newBench(t, `printf '%s' "$SITE $FALAJ_AGENT_KEEP" >new; mv new up`, slurmtest.Options{Nodes: 1}, func(c *slurm.Config) {
		c.Bin = filepath.Join(c.Dir, "bin")
	})
	// A site's module command, where one is looked for.
	init := filepath.Join(b.c.Dir, "modules")
	b.check(os.MkdirAll(filepath.Join(init, "init"), 0o755))
	b.check(os.WriteFile(filepath.Join(init, "init", "bash"), []byte(`module() {
		case "$2" in gcc/12) export SITE=gcc-12;; *) echo "ModuleCmd_Load.c: ERROR: Unable to locate a modulefile for '$2'" >&2; return 1;; esac
	}`), 0o644))
	l := b.launch("att_1", 1)
	l.Agent["MODULESHOME"] = init
	l.Spec.Options["modules"] = "gcc/12"
	b.check(b.l.Start(b.ctx, l))
	if got := b.appears("up"); !strings.HasPrefix(got, "gcc-12 ") || !strings.Contains(got, "SITE") {
		t.Errorf("%q", got)
	}
	l.ID, l.Spec.Options = "att_2", map[string]string{"modules": "gcc/13"}
	b.check(b.l.Start(b.ctx, l))
	if o := b.state("att_2", engine.Ended); o.Reason != engine.NotStarted || !strings.Contains(o.Message, "Unable to locate a modulefile for 'gcc/13'") {
		t.Errorf("%+v", o)
	}
}

func TestTokenStaysHidden(t *testing.T) {
	b := newBench(t, waits, slurmtest.Options{Nodes: 2}, func(c *slurm.Config) {
		c.Users = map[string]string{"q": "nobody"}
	})
	token := "falaj-very-secret"
	l := b.launch("att_1", 2)
	l.Agent["FALAJ_AGENT_TOKEN"] = token
	b.check(b.l.Start(b.ctx, l))
	b.appears("up.0")
	b.appears("up.1")
	if all := b.command("scontrol", "show", "job", "-d") + b.command("squeue", "--format=%all") + b.command("scontrol", "show", "step"); strings.Contains(all, token) {
		t.Errorf("Slurm shows the token: %s", all)
	}
	lines, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, f := range lines {
		if text, err := os.ReadFile(f); err == nil && strings.Contains(string(text), token) {
			t.Errorf("a command line shows the token: %q", text)
		}
	}
	b.check(filepath.WalkDir(b.c.Dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			b.keeps(path, d, token)
		}
		return nil // what vanishes meanwhile shows nothing
	}))
	// Another user's job cannot read it, nor be read by the first.
	l = b.launch("att_2", 1)
	l.Spec.Project = "q"
	b.check(b.l.Start(b.ctx, l))
	b.until("att_2", func(o remote.Observed) bool { return o.State == engine.Running })
	users := b.command("squeue", "--noheader", "--format=%j %u")
	if !strings.Contains(users, "att_1 daemon") || !strings.Contains(users, "att_2 nobody") {
		t.Errorf("%s", users)
	}
	job := strings.TrimSpace(b.command("squeue", "--noheader", "--name=att_1", "--format=%i"))
	for user, may := range map[string]bool{"daemon": true, "nobody": false} {
		out, _ := b.c.Command(b.ctx, "setpriv", "--reuid="+user, "--clear-groups", "scontrol", "write", "batch_script", job, "-")
		if strings.Contains(out, token) != may {
			t.Errorf("%s reads the script: %v, want %v: %s", user, !may, may, out)
		}
	}
	b.check(os.WriteFile(filepath.Join(b.out, "go"), nil, 0o600))
}

// keeps fails the test when a file that others can read has the token.
func (b *bench) keeps(path string, d fs.DirEntry, token string) {
	b.Helper()
	text, err := os.ReadFile(path)
	if err != nil || !strings.Contains(string(text), token) {
		return
	}
	if fi, err := d.Info(); err == nil && fi.Mode().Perm()&0o077 != 0 {
		b.Errorf("%s (%s) has the token", path, fi.Mode())
	}
}

// TestNobodyForgesTheQueue: a job tells Slurm, in its own comment and name, what
// looks like the end of another; nobody believes it.
func TestNobodyForgesTheQueue(t *testing.T) {
	b := newBench(t, "exec sleep 1000", slurmtest.Options{}, nil)
	b.check(b.l.Start(b.ctx, b.launch("att_victim", 1)))
	b.state("att_victim", engine.Running)
	out, err := b.c.Command(b.ctx, "squeue", "--noheader", "--name=att_victim", "--format=%i %k")
	b.check(err)
	number, comment, _ := strings.Cut(strings.TrimSpace(out), " ")
	forged := number + "|NODE_FAIL|batch|1|1|2|daemon|None|n4|1|" + comment
	b.check(b.l.Start(b.ctx, b.launch("att_evil", 1)))
	b.state("att_evil", engine.Running)
	out, err = b.c.Command(b.ctx, "squeue", "--noheader", "--name=att_evil", "--format=%i")
	b.check(err)
	for _, text := range []string{"Comment=" + comment + "\n" + forged + "|att_victim\n1|x", "JobName=att_evil\n" + forged + "|att_victim"} {
		_, err = b.c.Command(b.ctx, "scontrol", "update", "JobId="+strings.TrimSpace(out), text)
		b.check(err)
		all, err := b.l.Observe(b.ctx, []string{"att_victim", "att_evil"})
		b.check(err)
		for id, o := range all {
			if o.State != engine.Running {
				t.Errorf("%s is %+v", id, o)
			}
		}
	}
}
