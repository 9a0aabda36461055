package remote_test

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/compute/engine"
	"github.com/falaj-ml/falaj/internal/compute/engine/remote"
	"github.com/falaj-ml/falaj/internal/compute/engine/remote/remotetest"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/id"
	"github.com/falaj-ml/falaj/internal/sandbox/sandboxtest"
	"github.com/falaj-ml/falaj/internal/worker/launch"
)

// world is a server with nodes that share nothing with it.
type world struct {
	*testing.T
	ctx    context.Context //nolint:containedctx // The life of one test.
	server *remotetest.Server
	p      *remotetest.Processes
	c      remote.Config
	d      *remote.Driver
	root   string // of the mounts, on the server
	nodes  string // TMPDIR of the agents
}

func newWorld(t *testing.T, change func(*remote.Config)) *world {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	w := &world{T: t, ctx: ctx, server: remotetest.Serve(t, ""), root: t.TempDir(), nodes: t.TempDir()}
	w.p = &remotetest.Processes{Dir: filepath.Join(t.TempDir(), "nodes"), Worker: sandboxtest.Worker(t), Env: []string{"TMPDIR=" + w.nodes}}
	w.c = remote.Config{
		Name: "processes", Dir: filepath.Join(t.TempDir(), "engine"), Launcher: w.p, URL: w.server.URL, Poll: 50 * time.Millisecond, Settle: 500 * time.Millisecond,
	}
	if change != nil {
		change(&w.c)
	}
	w.open()
	t.Cleanup(func() {
		for _, h := range w.list() {
			w.check(w.d.Stop(context.WithoutCancel(ctx), h, 0))
		}
		w.check(w.d.Close())
		if t.Failed() {
			for _, h := range w.list() {
				t.Logf("%s: %s", h, w.p.Output(string(h)))
			}
		}
	})
	return w
}

func (w *world) list() []engine.Handle {
	all, err := w.p.List(w.ctx)
	w.check(err)
	var out []engine.Handle
	for _, id := range all {
		out = append(out, engine.Handle(id))
	}
	return out
}

// open opens the driver; a second time it is the server after a restart.
func (w *world) open() {
	w.Helper()
	d, err := remote.New(w.c)
	w.check(err)
	w.d = d
	w.server.Use(d)
}

func (w *world) close() {
	w.Helper()
	w.server.Use(nil)
	w.check(w.d.Close())
}

func (w *world) check(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

func (w *world) dir(name string, files map[string]string) string {
	w.Helper()
	dir := filepath.Join(w.root, name)
	w.check(os.MkdirAll(dir, 0o700))
	for f, content := range files {
		w.check(os.MkdirAll(filepath.Dir(filepath.Join(dir, f)), 0o700))
		w.check(os.WriteFile(filepath.Join(dir, f), []byte(content), 0o600))
	}
	return dir
}

// spec is a job as training prepares it.
func (w *world) spec(workers int, script string) engine.Spec {
	w.Helper()
	work, out, saves, scratch := w.dir("work", nil), w.dir("output", nil), w.dir("checkpoints", nil), w.dir("scratch", nil)
	s := engine.Spec{
		ID: id.New("att"), Project: "demo", Command: []string{"/bin/sh", "-ec", script}, Dir: work, Workers: workers, Grace: 20 * time.Second,
		Env: map[string]string{"PATH": "/usr/bin:/bin", "OUT": out, "SAVES": saves, "SCRATCH": scratch, "WORK": work},
		Mounts: []engine.Mount{
			{Path: work, Writable: true},
			{Path: out, Writable: true, Role: engine.Output},
			{Path: saves, Writable: true, Role: engine.Checkpoints},
			{Path: scratch, Writable: true, Role: engine.Scratch},
		},
	}
	if workers > 1 {
		s.Launch = launch.Spec{Framework: launch.Plain, Run: s.ID}
	}
	return s
}

func (w *world) start(s engine.Spec) engine.Handle {
	w.Helper()
	h, err := w.d.Start(w.ctx, s)
	w.check(err)
	return h
}

func (w *world) wait(h engine.Handle) engine.Status {
	w.Helper()
	st, err := w.d.Wait(w.ctx, h)
	w.check(err)
	return st
}

func (w *world) run(s engine.Spec) engine.Status {
	w.Helper()
	return w.wait(w.start(s))
}

func (w *world) logs(h engine.Handle) string {
	w.Helper()
	r, err := w.d.Logs(w.ctx, h, 0, false)
	w.check(err)
	defer r.Close()
	b, err := io.ReadAll(r)
	w.check(err)
	return string(b)
}

// until waits for a line of the log.
func (w *world) until(h engine.Handle, want string) {
	w.Helper()
	r, err := w.d.Logs(w.ctx, h, 0, true)
	w.check(err)
	defer r.Close()
	var all strings.Builder
	b := make([]byte, 4096)
	for !strings.Contains(all.String(), want) {
		n, err := r.Read(b)
		all.Write(b[:n])
		if err != nil {
			w.Fatalf("waiting for %q: %v in %q", want, err, all.String())
		}
	}
}

// files is what a directory has.
func (w *world) files(dir string) map[string]string {
	w.Helper()
	got := map[string]string{}
	w.check(filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		rel, _ := filepath.Rel(dir, path)
		got[rel] = string(b)
		return err
	}))
	return got
}

func (w *world) ok(st engine.Status) {
	w.Helper()
	if st.State != engine.Ended || st.Reason != engine.Exited || st.ExitCode != 0 {
		w.Fatalf("%+v", st)
	}
}

// TestMirror: what a worker needs is there, under other paths; what it leaves
// comes back, what it changes elsewhere does not.
func TestMirror(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	s := w.spec(1, `
		cat "$DATA/a/b" main.txt "$SAVES/step-1/w"
		test "$(ls -A "$SCRATCH")" = "" && test "$(ls -A "$OUT")" = ""
		case "$DATA" in "$SERVER"*) exit 9;; esac
		echo changed >main.txt; echo x >"$SCRATCH/x"
		mkdir -p "$OUT/model/deep" "$OUT/empty"; echo model >"$OUT/model/deep/m"
		mkdir "$SAVES/step-2.tmp"; echo two >"$SAVES/step-2.tmp/w"; mv "$SAVES/step-2.tmp" "$SAVES/step-2"
		mkdir "$SAVES/step-3.tmp"; echo three >"$SAVES/step-3.tmp/w"`)
	data := w.dir("data", map[string]string{"a/b": "data\n"})
	w.dir("work", map[string]string{"main.txt": "main\n"})
	w.dir("checkpoints", map[string]string{"step-1/w": "one\n"})
	w.dir("scratch", map[string]string{"not": "there"})
	s.Env["DATA"] = data
	s.Env["SERVER"] = strings.ToUpper(w.root) // not a path of a mount
	s.Mounts = append(s.Mounts, engine.Mount{Path: data, Digest: "sha256:1"})
	h := w.start(s)
	w.ok(w.wait(h))
	if got := w.logs(h); got != "data\nmain\none\n" {
		t.Errorf("log %q", got)
	}
	want := map[string]string{
		"output/model/deep/m": "model\n", "checkpoints/step-1/w": "one\n", "checkpoints/step-2/w": "two\n",
		"data/a/b": "data\n", "work/main.txt": "main\n", "scratch/not": "there",
	}
	if got := w.files(w.root); !maps.Equal(got, want) {
		t.Errorf("on the server: %q", got)
	}
	if _, err := os.Stat(filepath.Join(w.root, "output", "empty")); err != nil {
		t.Errorf("the empty directory did not come back: %v", err)
	}
	left, _ := filepath.Glob(filepath.Join(w.nodes, "falaj-agent-*", "[^.]*"))
	if len(left) > 0 {
		t.Errorf("left on the node: %q", left)
	}
	cached, _ := filepath.Glob(filepath.Join(w.nodes, "falaj-cache-*", "*.lock"))
	if len(cached) != 1 {
		t.Errorf("in the node's cache: %q", cached)
	}
}

// TestGang: members know each other, and what they say and leave is one.
func TestGang(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	s := w.spec(3, `
		echo "rank $RANK of $WORLD_SIZE, worker $FALAJ_WORKER_INDEX of $FALAJ_WORKERS at $MASTER_ADDR:${MASTER_PORT:+port}"
		echo "from $RANK" >"$OUT/all"; echo "$RANK" >"$OUT/rank-$RANK"
		printf 'no end'`)
	h := w.start(s)
	w.ok(w.wait(h))
	lines := slices.Sorted(strings.SplitSeq(strings.TrimSpace(w.logs(h)), "\n"))
	var want []string
	for i := range 3 {
		want = append(want, fmt.Sprintf("[%d] no end", i), fmt.Sprintf("[%d] rank %d of 3, worker %d of 3 at 127.0.0.1:port", i, i, i))
	}
	slices.Sort(want)
	if !slices.Equal(lines, want) {
		t.Errorf("log %q", lines)
	}
	got := w.files(filepath.Join(w.root, "output"))
	if want := map[string]string{"all": "from 0\n", "rank-0": "0\n", "rank-1": "1\n", "rank-2": "2\n"}; !maps.Equal(got, want) {
		t.Errorf("output %q", got)
	}
	members, err := w.d.Members(w.ctx, h)
	w.check(err)
	for i, m := range members {
		if m.Index != i || m.Node != fmt.Sprintf("node-%d", i) || m.State != engine.Ended || m.Reason != engine.Exited || m.Started.IsZero() || m.Ended.IsZero() {
			t.Errorf("member %+v", m)
		}
	}
	if len(members) != 3 {
		t.Errorf("%d members", len(members))
	}
}

// TestOneFails: a member that fails stops the others, which may save.
func TestOneFails(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	s := w.spec(3, `
		if [ "$RANK" = 1 ]; then while ! [ -e "$NODES/go" ]; do sleep 0.05; done; exit 7; fi
		trap 'mkdir "$SAVES/last.tmp"; echo saved >"$SAVES/last.tmp/part-$RANK"; mv "$SAVES/last.tmp" "$SAVES/last"; echo saved; exit 75' TERM
		echo ready; sleep 1000 & wait`)
	s.Env["NODES"] = w.nodes
	h := w.start(s)
	w.until(h, "[0] ready")
	w.until(h, "[2] ready")
	w.check(os.WriteFile(filepath.Join(w.nodes, "go"), nil, 0o600))
	st := w.wait(h)
	if st.State != engine.Ended || st.Reason != engine.Exited || st.ExitCode != 7 || !strings.Contains(st.Message, "worker 1 on node-1") {
		t.Errorf("%+v", st)
	}
	members, err := w.d.Members(w.ctx, h)
	w.check(err)
	for i, m := range members {
		if i != 1 && (m.ExitCode != 75 || m.Reason != engine.Stopped || !strings.Contains(m.Message, "worker 1")) {
			t.Errorf("member %+v", m)
		}
	}
	got := w.files(filepath.Join(w.root, "checkpoints"))
	if want := map[string]string{"last/part-0": "saved\n", "last/part-2": "saved\n"}; !maps.Equal(got, want) {
		t.Errorf("checkpoints %q", got)
	}
}

// TestNodeLost: an agent that was killed is a lost node; the others are stopped,
// and nothing of the job runs on.
func TestNodeLost(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(c *remote.Config) { c.Lease = 2 * time.Second })
	s := w.spec(2, `echo ready; exec sleep 1000`)
	s.Grace = time.Second
	h := w.start(s)
	w.until(h, "[0] ready")
	w.until(h, "[1] ready")
	w.p.Kill(t, string(h), 1)
	st := w.wait(h)
	if st.State != engine.Lost || !strings.Contains(st.Message, "node-1") || !strings.Contains(st.Message, "no report from it") {
		t.Errorf("%+v", st)
	}
	members, err := w.d.Members(w.ctx, h)
	w.check(err)
	if members[0].Reason != engine.Stopped || members[1].State != engine.Lost {
		t.Errorf("%+v", members)
	}
}

// TestCheckpointsInPlace: of what a program on a node writes in place, the server gets what is
// complete: all when it ends in order, and only what was at rest when it is killed. Files beside
// directories keep their place.
func TestCheckpointsInPlace(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		end  string
		want map[string]string
	}{
		"in order": {"exit 75", map[string]string{"last.ckpt": "one\n", "opt.ckpt": "two\n", "checkpoint-1/w": "half\n"}},
		"killed":   {"kill -9 $$", map[string]string{"last.ckpt": "", "opt.ckpt": "", "checkpoint-1/w": "", "step-1/w": "whole\n"}},
	} {
		w := newWorld(t, nil)
		h := w.start(w.spec(1, `
			mkdir "$SAVES/step-1.tmp"; echo whole >"$SAVES/step-1.tmp/w"; sleep 0.05; mv "$SAVES/step-1.tmp" "$SAVES/step-1"
			echo one >"$SAVES/last.ckpt"; echo two >"$SAVES/opt.ckpt"
			mkdir "$SAVES/checkpoint-1"; echo half >"$SAVES/checkpoint-1/w"; `+c.end))
		w.wait(h)
		got := w.files(filepath.Join(w.root, "checkpoints"))
		for file, content := range c.want {
			if got[file] != content {
				t.Errorf("%s: %s is %q, want %q; all: %q", name, file, got[file], content, got)
			}
		}
	}
}

// TestServerAway: a worker goes on without the server, and nothing it said or
// saved meanwhile is lost.
func TestServerAway(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	go1, go2 := filepath.Join(w.nodes, "go1"), filepath.Join(w.nodes, "go2")
	s := w.spec(1, fmt.Sprintf(`
		echo before
		while ! [ -e %s ]; do sleep 0.05; done
		mkdir "$SAVES/x.tmp"; echo saved >"$SAVES/x.tmp/w"; mv "$SAVES/x.tmp" "$SAVES/x"
		echo during; echo done >%s`, go1, go2))
	h := w.start(s)
	w.until(h, "before")
	w.close()
	w.check(os.WriteFile(go1, nil, 0o600))
	w.eventually(func() bool { _, err := os.Stat(go2); return err == nil })
	w.open()
	w.ok(w.wait(h))
	if got := w.logs(h); got != "before\nduring\n" {
		t.Errorf("log %q", got)
	}
	if got := w.files(filepath.Join(w.root, "checkpoints")); got["x/w"] != "saved\n" {
		t.Errorf("checkpoints %q", got)
	}
}

// eventually waits for what nothing tells of.
func (w *world) eventually(ok func() bool) {
	w.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-w.ctx.Done():
			w.Fatal("it did not come")
		}
	}
}

// TestLease: without the server for longer than the lease, a worker is stopped,
// and may save.
func TestLease(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(c *remote.Config) { c.Lease = time.Second })
	saved := filepath.Join(w.nodes, "saved")
	s := w.spec(1, fmt.Sprintf(`trap 'echo x >%s; exit 75' TERM; echo ready; sleep 1000 & wait`, saved))
	h := w.start(s)
	w.until(h, "ready")
	w.close()
	w.eventually(func() bool { _, err := os.Stat(saved); return err == nil })
	w.eventually(func() bool {
		o, _ := w.p.Observe(w.ctx, []string{string(h)})
		return o[string(h)].State == engine.Ended
	})
	w.open()
	if st := w.wait(h); st.State != engine.Lost {
		t.Errorf("%+v", st)
	}
}

// TestCheckpointsOfAGang: parts merge, and nothing is there half.
func TestCheckpointsOfAGang(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	s := w.spec(3, `
		save() { mkdir "$SAVES/$1.tmp"; echo "$2" >"$SAVES/$1.tmp/rank-$RANK"; echo same >"$SAVES/$1.tmp/config"; mv "$SAVES/$1.tmp" "$SAVES/$1"; }
		if [ "$RANK" != 2 ]; then save step-1 one; fi
		if [ "$RANK" = 0 ]; then save alone zero; fi
		while ! [ -e "$NODES/go" ]; do sleep 0.05; done
		if [ "$RANK" != 2 ]; then save step-2 two; fi`)
	s.Env["NODES"] = w.nodes
	h := w.start(s)
	saves := filepath.Join(w.root, "checkpoints")
	w.eventually(func() bool {
		_, one := os.Stat(filepath.Join(saves, "step-1"))
		_, alone := os.Stat(filepath.Join(saves, "alone"))
		return one == nil && alone == nil
	})
	want := map[string]string{"step-1/rank-0": "one\n", "step-1/rank-1": "one\n", "step-1/config": "same\n", "alone/rank-0": "zero\n", "alone/config": "same\n"}
	if got := w.files(saves); !maps.Equal(got, want) {
		t.Errorf("before the end: %q", got)
	}
	w.check(os.WriteFile(filepath.Join(w.nodes, "go"), nil, 0o600))
	w.ok(w.wait(h))
	maps.Copy(want, map[string]string{"step-2/rank-0": "two\n", "step-2/rank-1": "two\n", "step-2/config": "same\n"})
	if got := w.files(saves); !maps.Equal(got, want) {
		t.Errorf("at the end: %q", got)
	}
}

// TestUnchangedFilesStay: a file that the checkpoint before has is not sent
// again, and a full disk holds up the checkpoint, not the job.
func TestUnchangedFilesStay(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	s := w.spec(1, `
		save() { mkdir "$SAVES/$1.tmp"; head -c 300000 /dev/zero >"$SAVES/$1.tmp/big"; echo "$1" >"$SAVES/$1.tmp/small"; mv "$SAVES/$1.tmp" "$SAVES/$1"; }
		save a; while ! [ -e "$NODES/go" ]; do sleep 0.05; done; save b; echo went on`)
	s.Env["NODES"] = w.nodes
	var sent, refused atomic.Int64
	w.server.Before(func(r *http.Request) error {
		if r.Method != http.MethodPut {
			return nil
		}
		if refused.Add(1) < 3 {
			return fault.New(fault.Exhausted, "the disk is full")
		}
		r.Body = counted{r.Body, &sent}
		return nil
	})
	h := w.start(s)
	a, b := filepath.Join(w.root, "checkpoints", "a"), filepath.Join(w.root, "checkpoints", "b")
	w.eventually(func() bool { _, err := os.Stat(a); return err == nil })
	first := sent.Load()
	w.check(os.WriteFile(filepath.Join(w.nodes, "go"), nil, 0o600))
	w.ok(w.wait(h))
	if first < 300_000 || sent.Load()-first > 20_000 {
		t.Errorf("the first took %d bytes, the second %d", first, sent.Load()-first)
	}
	got := w.files(b)
	if len(got["big"]) != 300_000 || got["small"] != "b\n" {
		t.Errorf("b has %d bytes and %q", len(got["big"]), got["small"])
	}
}

// TestOutputWithoutRoom: a worker's output that the server has no room for is
// tried for as long as the lease, and then the success is none.
func TestOutputWithoutRoom(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(c *remote.Config) { c.Lease = time.Second })
	s := w.spec(1, `echo model >"$OUT/model"`)
	var tried atomic.Int64
	w.server.Before(func(r *http.Request) error {
		if r.Method != http.MethodPut {
			return nil
		}
		tried.Add(1)
		return fault.New(fault.Exhausted, "the disk is full")
	})
	st := w.wait(w.start(s))
	if st.Reason != engine.NotStarted || !strings.Contains(st.Message, "what it left was not brought back") || !strings.Contains(st.Message, "the disk is full") || tried.Load() < 2 {
		t.Errorf("%+v after %d tries", st, tried.Load())
	}
}

// TestRefusedCheckpoint: one that is too large is told to people while the job
// goes on.
func TestRefusedCheckpoint(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(c *remote.Config) { c.MaxTree = 1000 })
	s := w.spec(1, `mkdir "$SAVES/a.tmp"; head -c 3000 /dev/zero >"$SAVES/a.tmp/big"; mv "$SAVES/a.tmp" "$SAVES/a"; while ! [ -e "$NODES/go" ]; do sleep 0.05; done`)
	s.Env["NODES"] = w.nodes
	h := w.start(s)
	w.eventually(func() bool {
		m, err := w.d.Members(w.ctx, h)
		w.check(err)
		return strings.Contains(strings.Join(m[0].Notes, "\n"), "the last refused checkpoint: a: there are too many bytes")
	})
	w.check(os.WriteFile(filepath.Join(w.nodes, "go"), nil, 0o600))
	w.ok(w.wait(h))
}

type counted struct {
	io.ReadCloser
	n *atomic.Int64
}

func (c counted) Read(b []byte) (int, error) {
	n, err := c.ReadCloser.Read(b)
	c.n.Add(int64(n))
	return n, err
}
