package jobs

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/falaj-ml/falaj/test/live"
)

// TestPeers: the worker that failed is named, not those that lost it.
func TestPeers(t *testing.T) {
	t.Parallel()
	s := live.New(t, "")
	s.Up(t)
	p := s.Project(t, "peers")
	for name, c := range map[string]struct{ fails, says string }{
		"it ends":                  {"raise ValueError('batch 17 has 3 channels')", ": ValueError: batch 17"},
		"it hangs in its teardown": {"import traceback\ntry: raise ValueError('batch 17 has 3 channels')\nexcept ValueError: traceback.print_exc()\nsys.stderr.flush()\nc.close()\ntime.sleep(600)", "worker 1 failed and was stopped: ValueError: batch 17"},
		"it is killed":             {"os.kill(os.getpid(), 11)", "worker 1 was killed by SIGSEGV"},
	} {
		job := submit(p, strings.ReplaceAll(name, " ", "-"), map[string]any{"workers": 2, "command": script(
			"import os, socket, struct, sys, time",
			"at = (os.environ['MASTER_ADDR'], int(os.environ['MASTER_PORT']))",
			"if os.environ['RANK'] == '0':",
			"    l = socket.create_server(at); c, _ = l.accept(); c.sendall(b'x')",
			"    while c.recv(1): pass",
			"    raise ConnectionResetError('Connection closed by peer')",
			"while True:",
			"    try: c = socket.create_connection(at); break",
			"    except OSError: time.sleep(0.05)",
			"c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))", // its end is a reset
			"c.recv(1)",
			c.fails,
		)})
		got := ended(p, job)
		text := p.Run(0, "job", "describe", job)
		if got.Class != "user_error" || !strings.Contains(text, "Diagnosis\n  worker 1 ") || !strings.Contains(text, c.says) {
			t.Errorf("%s: %s", name, text)
		}
	}
}

// TestStraggler: a gang that waits for one of its workers says for which.
func TestStraggler(t *testing.T) {
	t.Parallel()
	s := live.New(t, "")
	s.Up(t)
	p := s.Project(t, "straggler")
	job := submit(p, "waits", map[string]any{"workers": 3, "progress_timeout": "15s", "resources": map[string]string{"cpu": "500m", "memory": "64MiB"}, "command": script(
		"import os, time",
		"while os.environ['RANK'] != '1' and time.process_time() < 4: pass",
		"time.sleep(600)",
	)})
	got := ended(p, job)
	text := p.Run(0, "job", "describe", job)
	if got.Class != "straggler" || !strings.Contains(text, "worker 1 made less progress than the others") || !strings.Contains(text, "worker 1 computed for") {
		t.Error(text)
	}
}

// TestKilledFromOutside: somebody kills a job's process, once, in the middle of
// writing a checkpoint. It goes on from the one that was finished.
func TestKilledFromOutside(t *testing.T) {
	t.Parallel()
	s := live.New(t, "")
	s.Up(t)
	p := s.Project(t, "killed")
	job := submit(p, "half", map[string]any{"max_attempts": 2, "env": map[string]string{"MARK": "killed-from-outside"}, "command": script(
		"import os, time",
		"d = os.environ['FALAJ_CHECKPOINT_DIR']",
		"print('found', sorted(n for n in os.listdir(d)), flush=True)",
		"if os.path.exists(d + '/step-1'): raise SystemExit(0)",
		"os.mkdir(d + '/.one'); open(d + '/.one/state', 'w').write('1'); os.rename(d + '/.one', d + '/step-1')",
		"os.mkdir(d + '/.two'); open(d + '/.two/state', 'w').write('2'); print('half', flush=True)",
		"time.sleep(600)",
	)})
	p.Eventually("it does not write", func() (bool, error) {
		out, code := p.Command(t.Context(), "job", "logs", job, "-p", p.Name)
		return code == 0 && strings.Contains(out, "half"), nil
	})
	killed := 0
	for _, pid := range marked(t, "MARK=killed-from-outside") {
		if syscall.Kill(pid, syscall.SIGKILL) == nil {
			killed++
		}
	}
	if killed != 1 {
		t.Fatalf("%d processes killed", killed)
	}
	got := ended(p, job)
	text := p.Run(0, "job", "describe", job)
	if got.State != "succeeded" || got.Attempts != 2 || got.Tries[0].Class != "killed" || !strings.Contains(text, "The last failure, attempt 1 (killed)\n  killed by SIGKILL") {
		t.Error(text)
	}
	if log := p.Run(0, "job", "logs", job); !strings.Contains(log, "'step-1'") || strings.Contains(log, "'step-2'") {
		t.Error(log)
	}
}

// marked are the Python processes whose environment has an entry.
func marked(t *testing.T, entry string) (pids []int) {
	t.Helper()
	found, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range found {
		env, _ := os.ReadFile(file) // it may have ended
		line, _ := os.ReadFile(filepath.Join(filepath.Dir(file), "cmdline"))
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file))); err == nil && bytes.Contains(env, []byte(entry+"\x00")) && bytes.HasPrefix(line, []byte(python)) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// TestFailureEndsTorchrun: the gang ends when one worker has failed, also where
// the others do not notice; torchrun itself would wait for them.
func TestFailureEndsTorchrun(t *testing.T) {
	t.Parallel()
	live.Torch(t)
	s := live.New(t, "")
	s.Up(t)
	p := s.Project(t, "torchrun")
	p.Apply("{api_version: falaj/v1, kind: Environment, name: torch, project: PROJECT, spec: {python: /usr/bin/python3.11, site_packages: true, requirements: []}}")
	job := submit(p, "fails", map[string]any{
		"environment": "torch", "framework": "torchrun", "workers": 2, "resources": map[string]string{"cpu": "500m", "memory": "1GiB"},
		"script": strings.Join([]string{
			"import os, sys, time, torch.distributed as dist",
			"dist.init_process_group('gloo')",
			"if dist.get_rank() == 1: sys.exit('batch 17 has 3 channels')",
			"time.sleep(120)",
			"print('not ended', flush=True)",
		}, "\n"),
	})
	got := ended(p, job)
	if log := p.Run(0, "job", "logs", job); got.State != "failed" || got.Class != "user_error" || strings.Contains(log, "not ended") {
		t.Errorf("%+v\n%s", got, log)
	}
}
