// Package jobs runs jobs on the real binary and the local engine: failures of
// every kind are planted, and what Falaj says of them is held against what they
// are.
package jobs

import (
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/falaj-ml/falaj/client"
	"github.com/falaj-ml/falaj/test/live"
)

const python = "/usr/bin/python3"

// said is what describe answers of a job.
type said struct {
	State, Class, Reason, Hint string
	Attempts                   int
	Tries                      []struct {
		Class, Reason, Hint string
		Workers             int
		Evidence            []string
		Lines               []struct {
			Worker, Number int
			Text           string
		}
		Members []struct {
			Index  int
			Reason string
			Code   int `json:"exit_code"`
		}
	}
}

func submit(p *live.Project, name string, spec map[string]any) string {
	p.T.Helper()
	if spec["resources"] == nil {
		spec["resources"] = map[string]string{"cpu": "200m", "memory": "256MiB"}
	}
	if spec["grace"] == nil {
		spec["grace"] = "2s"
	}
	if spec["max_attempts"] == nil {
		spec["max_attempts"] = 1
	}
	var o client.Object
	p.Must(p.C.Do(p.T.Context(), http.MethodPost, p.Path("jobs"), map[string]any{"name": name, "spec": spec}, &o))
	return o.Text("id")
}

func describe(p *live.Project, job string) said {
	p.T.Helper()
	var s said
	p.Must(p.C.Do(p.T.Context(), http.MethodGet, p.Path("jobs/"+job+"?view=full"), nil, &s))
	return s
}

func ended(p *live.Project, job string) said {
	p.T.Helper()
	p.Eventually("job "+job+" does not end", func() (bool, error) {
		var o client.Object
		err := p.C.Do(p.T.Context(), http.MethodGet, p.Path("jobs/"+job+"?wait=30s"), nil, &o)
		return slices.Contains([]string{"failed", "succeeded", "cancelled"}, o.Text("state")), err
	})
	return describe(p, job)
}

func script(lines ...string) []string { return []string{python, "-c", strings.Join(lines, "\n")} }

func TestPlantedFailures(t *testing.T) {
	t.Parallel()
	s := live.New(t, "")
	s.Up(t)
	p := s.Project(t, "planted")
	source := p.Source("train.py", []byte("import json\n\ndef load(text):\n    return json.loads(text)\n\nprint('begin', flush=True)\nload('{broken')\n"))
	for name, c := range map[string]struct {
		spec  map[string]any
		class string
		says  string // in describe's text, as people see it
		hint  string
		line  string // the last of the decisive lines
		tries int
	}{
		"exception":              {map[string]any{"source": source, "command": []string{python, "train.py"}}, "user_error", "JSONDecodeError", "last lines show the location", "JSONDecodeError", 1},
		"no module":              {map[string]any{"command": script("import not_there_at_all")}, "environment", "No module named 'not_there_at_all'", "requirements", "ModuleNotFoundError", 1},
		"no script":              {map[string]any{"source": source, "command": []string{"python3", "trian.py"}}, "user_error", `file "trian.py" is not in the job's source`, "the source has train.py", "", 1},
		"no file":                {map[string]any{"command": script("open('/nowhere/x.parquet')")}, "user_error", "/nowhere/x.parquet", "FALAJ_DATA_NAME", "FileNotFoundError", 1},
		"no program":             {map[string]any{"command": []string{"no-such-program"}}, "user_error", "no-such-program", "give its path", "", 1},
		"not found by the shell": {map[string]any{"command": []string{"/bin/sh", "-c", "no-such-program"}}, "user_error", "does not exist", "give its path", "not found", 1},
		"permission":             {map[string]any{"command": script("open('/etc/results', 'w')")}, "user_error", "/etc/results", "FALAJ_OUTPUT_DIR", "Error", 1},
		"network":                {map[string]any{"command": script("import socket", "socket.create_connection(('packages.example', 443))")}, "user_error", "the egress allow-list does not contain the host", "spec.network", "gaierror", 1},
		"memory":                 {map[string]any{"command": script("x = bytearray(1 << 30)", "for i in range(0, len(x), 4096): x[i] = 1", "print(len(x))")}, "out_of_memory", "memory", "resources.memory", "", 1},
		"segfault":               {map[string]any{"command": script("import ctypes", "print('here', flush=True)", "ctypes.string_at(0)")}, "user_error", "SIGSEGV", "PYTHONFAULTHANDLER", "here", 1},
		"killed":                 {map[string]any{"command": script("import os, signal", "os.kill(os.getpid(), signal.SIGKILL)"), "max_attempts": 2}, "killed", "failed 2 of at most 2", "killed by a user", "", 2},
		"timeout":                {map[string]any{"command": script("import time", "time.sleep(60)"), "timeout": "2s"}, "timeout", "time-out of 2s", "Raise timeout", "", 1},
		"hung": {
			map[string]any{"command": script("import time", "print('begin', flush=True)", "time.sleep(3600)"), "progress_timeout": "4s", "max_attempts": 2},
			"hung", "made no progress for 4s", "progress_timeout", "", 2,
		},
		"idle":  {map[string]any{"command": []string{"/bin/sh", "-c", "exit 75"}, "max_attempts": 2}, "no_progress", "without a new checkpoint", "FALAJ_CHECKPOINT_DIR", "", 2},
		"token": {map[string]any{"command": script("import os, urllib.request as u", "u.urlopen(u.Request(os.environ['FALAJ_URL']+'/api/v1/projects/other/jobs', headers={'Authorization': 'Bearer '+os.environ['FALAJ_TOKEN']}))")}, "user_error", "a server refused", "The job's token", "HTTPError", 1},
		"one of a gang": {
			map[string]any{"workers": 2, "command": script("import os, time", "r = os.environ['RANK']", "print('worker', r, flush=True)", "if r == '1': raise ValueError('batch 17 has 3 channels')", "time.sleep(60)")},
			"user_error", "worker 1", "last lines show the location", "batch 17", 1,
		},
		"no driver":      {map[string]any{"command": script("import ctypes", "ctypes.CDLL('libcuda.so.1')")}, "environment", "driver is incompatible", "falaj env check", "libcuda.so.1", 1},
		"no privileges":  {map[string]any{"command": script("import os", "os.chroot('/tmp')")}, "user_error", "not permitted in the sandbox", "no privileges", "PermissionError", 1},
		"not executable": {map[string]any{"source": source, "command": []string{"/bin/sh", "-c", "./train.py"}}, "user_error", "cannot be executed", "chmod", "Permission denied", 1},
		"nan":            {map[string]any{"command": script("print('step 1 loss 0.5')", "print('step 2 loss nan')", "raise RuntimeError('diverged')")}, "user_error", "not a number at line 2", "last lines show the location", "diverged", 1},
		"long line":      {map[string]any{"command": script("print('x' * 100_000_000)", "raise RuntimeError('after it')"), "resources": map[string]string{"cpu": "500m", "memory": "512MiB"}}, "user_error", "RuntimeError", "last lines show the location", "after it", 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := &live.Project{Server: p.Server, T: t, C: p.C, Name: p.Name}
			job := submit(p, strings.ReplaceAll(name, " ", "-"), c.spec)
			got := ended(p, job)
			text := p.Run(0, "job", "describe", job)
			if got.State != "failed" || got.Class != c.class || got.Attempts != c.tries || !strings.Contains(text, c.says) || !strings.Contains(text, c.hint) {
				t.Fatalf("%+v\n%s", got, text)
			}
			last := got.Tries[len(got.Tries)-1]
			if n := len(last.Lines); c.line != "" && (n == 0 || !strings.Contains(last.Lines[n-1].Text, c.line)) {
				t.Errorf("the decisive lines are %+v", last.Lines)
			}
		})
	}
}

// TestResize has a job go on with another number of workers from what it saved.
func TestResize(t *testing.T) {
	s := live.New(t, "")
	s.Up(t)
	p := s.Project(t, "resize")
	job := submit(p, "count", map[string]any{
		"workers": 2, "command": script(
			"import os, signal, sys, time",
			"stop = []",
			"signal.signal(signal.SIGTERM, lambda *_: stop.append(1))",
			"ck, rank, size = os.environ['FALAJ_CHECKPOINT_DIR'], os.environ['RANK'], os.environ['WORLD_SIZE']",
			"done = sorted(os.listdir(ck))",
			"n = int(done[-1][5:]) if done else 0",
			"print('of', size, 'from', n, flush=True)",
			"if size == '3': sys.exit(0)",
			"while not stop: time.sleep(0.05)",
			"if rank == '0':",
			"    os.mkdir(ck + '/.new'); open(ck + '/.new/x', 'w').write(size); os.rename(ck + '/.new', ck + '/step-%d' % (n + 1))",
			"sys.exit(75)",
		),
	})
	logs := func() string { return p.Run(0, "job", "logs", job) }
	p.Eventually("two workers do not begin", func() (bool, error) { return strings.Count(logs(), "of 2 from 0") == 2, nil })
	p.Run(2, "job", "resize", job, "0")
	p.Run(2, "job", "resize", job, "many")
	p.Run(0, "job", "resize", job, "1")
	p.Eventually("one worker does not go on", func() (bool, error) { return strings.Contains(logs(), "of 1 from 1"), nil })
	p.Run(0, "job", "resize", job, "3")
	got := ended(p, job)
	if got.State != "succeeded" || got.Attempts != 3 || got.Tries[0].Class != "resized" || got.Tries[1].Class != "resized" || got.Tries[2].Workers != 3 || len(got.Tries[2].Members) != 3 {
		t.Fatalf("%+v", got)
	}
	if out := p.Run(0, "job", "logs", job, "--worker", "2"); out != "of 3 from 2\n" {
		t.Fatalf("the third worker of three said %q", out)
	}
	p.Run(5, "job", "resize", job, "2") // it has ended
}

// TestRepeat submits a directory, and the same again from the job.
func TestRepeat(t *testing.T) {
	s := live.New(t, "")
	s.Up(t)
	p := s.Project(t, "repeat")
	dir := t.TempDir()
	for name, content := range map[string]string{
		"train.py": "print(open('words.txt').read())", "words.txt": "the same", "secret.key": "x", ".falajignore": "*.key\n",
		"job.yaml": "{api_version: falaj/v1, kind: Job, name: hello, spec: {command: [python3, train.py], max_attempts: 1}}",
	} {
		p.Must(os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600))
	}
	out := p.Run(0, "job", "submit", "-f", filepath.Join(dir, "job.yaml"), "--source", dir, "--list")
	if strings.Contains(out, "secret.key") || !strings.Contains(out, "words.txt (8 bytes)") {
		t.Fatalf("the snapshot has: %s", out)
	}
	lines := strings.Fields(out)
	first := lines[slices.IndexFunc(lines, func(w string) bool { return strings.HasPrefix(w, "job_") })]
	ended(p, first)
	p.Must(os.WriteFile(filepath.Join(dir, "words.txt"), []byte("other"), 0o600))
	second := strings.TrimSpace(p.Run(0, "job", "submit", "--from", first))
	if got := ended(p, second); got.State != "succeeded" || p.Run(0, "job", "logs", second) != "the same\n" {
		t.Fatalf("%+v", got)
	}
	if text := p.Run(0, "job", "describe", second); !strings.Contains(text, "repeats "+first) {
		t.Fatal(text)
	}
	p.Run(4, "job", "submit", "--from", "job_00000000000000000000000000")
}

// TestRefused holds bad specifications against what is said of them.
func TestRefused(t *testing.T) {
	s := live.New(t, "")
	s.Up(t)
	p := s.Project(t, "refused")
	for name, c := range map[string]struct{ spec, says, hint string }{
		"size that does not divide": {"{command: [x], workers: 3, parallel: {tensor: 2}}", "3 workers × 1 processes are 3 processes, which does not equal", "2, 4, 6"},
		"range that does not":       {"{command: [x], workers: {min: 2, max: 4}, parallel: {tensor: 2}}", "3 workers", "from min to max"},
		"all factors":               {"{command: [x], workers: 4, parallel: {data: 3, tensor: 1}}", "data 3", "workers are 3"},
		"no workers":                {"{command: [x], workers: 0}", "less than one worker", "workers: 4"},
		"workers backwards":         {"{command: [x], workers: {min: 4, max: 2}}", "4 to 2 workers", "{min: 2, max: 4}"},
		"framework":                 {"{command: [x], framework: magic}", `spec.framework: unknown framework "magic"`, "torchrun"},
		"torchrun without python":   {"{command: [x], framework: torchrun}", "needs an environment", "environment"},
		"mpi over workers":          {"{command: [x], framework: mpi, workers: 2, processes: 2}", "one worker", "processes: 4"},
		"processes of plain":        {"{command: [x], processes: 4}", "one process per worker", "torchrun"},
		"precision":                 {"{command: [x], precision: fp64}", "fp64", "bf16"},
		"progress":                  {"{command: [x], progress_timeout: 1ms}", "progress_timeout", "disable"},
		"resume":                    {"{command: [x], resume: job_00000000000000000000000000/step-1}", "resume", ""},
		"environment":               {"{script: x, environment: absent}", "absent", ""},
		"unknown field":             {"{command: [x], worker: 4}", "worker", "workers"},
	} {
		_, err := p.Try(p.C, "{api_version: falaj/v1, kind: Job, name: bad, project: PROJECT, spec: "+c.spec+"}")
		refused, ok := err.(*client.Error) //nolint:errorlint // nothing wraps it here
		if !ok || !strings.Contains(refused.Detail, c.says) || !strings.Contains(refused.Hint+refused.Detail, c.hint) {
			t.Errorf("%s: %v (%+v)", name, err, refused)
		}
	}
}

// TestTwoOfOneName: names are for people; each submission is a job of its own.
func TestTwoOfOneName(t *testing.T) {
	s := live.New(t, "")
	s.Up(t)
	p := s.Project(t, "twins")
	jobs := make([]string, 2)
	var both sync.WaitGroup
	for i := range jobs {
		both.Go(func() { jobs[i] = submit(p, "twin", map[string]any{"command": []string{"/bin/true"}}) })
	}
	both.Wait()
	if jobs[0] == jobs[1] || ended(p, jobs[0]).State != "succeeded" || ended(p, jobs[1]).State != "succeeded" {
		t.Fatal(jobs)
	}
}
