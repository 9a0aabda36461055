package jobs

import (
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/falaj-ml/falaj/test/live"
)

// TestProfile: py-spy of the job's own environment looks into the sandbox of what
// runs, and what it sees is kept with the job.
func TestProfile(t *testing.T) {
	t.Parallel()
	s := live.New(t, "")
	s.Up(t)
	p := s.Project(t, "profiles")
	p.Apply(live.Spied)
	spec := map[string]any{"environment": "spied", "script": strings.Join([]string{
		"import pickle, time",
		"def multiply(until):",
		"    while time.monotonic() < until: 3 * 7",
		"def rest():",
		"    time.sleep(0.1)",
		"def load(until):",
		"    while time.monotonic() < until: pickle._loads(pickle._dumps(list(range(50))))",
		"while True:",
		"    multiply(time.monotonic() + 0.2)",
		"    rest()",
		"    load(time.monotonic() + 0.1)",
	}, "\n")}
	job := submit(p, "mixed", spec)
	got := p.Look(job, map[string]any{"seconds": 4})
	if got.Compute < 0.2 || got.Idle < 0.1 || got.Memory < 0.1 || got.Communication != 0 || got.Processes != 1 || len(got.Top) == 0 || got.Top[0].Name != "multiply" {
		t.Errorf("%+v", got)
	}
	if len(got.Artifacts) != 2 {
		t.Fatalf("%+v", got)
	}
	if text := p.Run(0, "job", "profile", job, "--seconds", "2"); !strings.Contains(text, "compute ") || !strings.Contains(text, "multiply  ") || !strings.Contains(text, "profiles/prf_") {
		t.Error(text)
	}
	if text := p.Run(0, "job", "describe", job); strings.Count(text, "worker 0, 2 s by py-spy: compute ")+strings.Count(text, "worker 0, 4 s by py-spy: compute ") != 2 {
		t.Error(text)
	}
	if text := p.Run(2, "job", "profile", job, "--worker", "1"); !strings.Contains(text, "worker 1 does not exist") {
		t.Error(text)
	}
	if text := p.Run(1, "job", "profile", job, "--tool", "torch", "--seconds", "1"); !strings.Contains(text, "falaj.step()") {
		t.Error(text)
	}
	p.Run(0, "job", "cancel", job)
	ended(p, job)
	if text := p.Run(5, "job", "profile", job); !strings.Contains(text, "only running jobs") {
		t.Error(text)
	}
	without := submit(p, "without", map[string]any{"command": script("import time", "print('there', flush=True)", "time.sleep(600)")})
	p.Eventually("it does not say that py-spy is missing", func() (bool, error) {
		err := p.C.Do(t.Context(), http.MethodPost, p.Path("jobs/"+without+"/profiles"), map[string]any{"seconds": 1}, nil)
		return err != nil && strings.Contains(err.Error(), "py-spy is neither in the job's environment nor on its node"), err
	})
	p.Run(0, "job", "cancel", without)
}

// TestProfileOfGang: one of two workers of real DDP, and what it does in its
// all-reduce is communication.
func TestProfileOfGang(t *testing.T) {
	t.Parallel()
	live.Torch(t)
	s := live.New(t, "")
	s.Up(t)
	p := s.Project(t, "profiled-gang")
	p.Apply(`{api_version: falaj/v1, kind: Environment, name: spied, project: PROJECT, spec: {python: /usr/bin/python3.11, site_packages: true, requirements: [py-spy==0.4.1]}}`)
	sdk, err := os.ReadFile("../../sdk/python/falaj/_profile.py")
	p.Must(err)
	job := submit(p, "reduces", map[string]any{
		"environment": "spied", "framework": "torchrun", "workers": 2, "resources": map[string]string{"cpu": "500m", "memory": "1GiB"},
		"script": strings.Join([]string{
			"import os, time, types, torch, torch.distributed as dist",
			"falaj = types.ModuleType('falaj'); exec(" + strconv.Quote(string(sdk)) + ", falaj.__dict__)",
			"dist.init_process_group('gloo')",
			"x = torch.ones(1 << 18)",
			"dist.all_reduce(x); print('met', flush=True)",
			"while True:",
			"    if dist.get_rank() == 0: time.sleep(0.3)", // the other one waits for it
			"    dist.all_reduce(x); x.fill_(1)",
			"    falaj.step()",
		}, "\n"),
	})
	p.Eventually("the workers do not meet", func() (bool, error) {
		return strings.Count(p.Run(0, "job", "logs", job), "met") == 2, nil
	})
	got := p.Look(job, map[string]any{"seconds": 4, "worker": 1})
	if got.Worker != 1 || got.Communication < 0.5 || got.Processes != 1 {
		t.Errorf("%+v", got)
	}
	got = p.Look(job, map[string]any{"seconds": 4, "worker": 0})
	if got.Worker != 0 || got.Idle < 0.3 {
		t.Errorf("%+v", got)
	}
	text := p.Run(0, "job", "profile", job, "--tool", "torch", "--seconds", "2", "--worker", "1")
	if !strings.Contains(text, "worker 1, 2 s by torch") || !strings.Contains(text, "gloo:all_reduce") || !strings.Contains(text, "trace-1.json.gz") {
		t.Error(text)
	}
	p.Run(0, "job", "cancel", job)
}
