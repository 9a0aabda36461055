package jobs

import (
	"encoding/json"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/falaj-ml/falaj/client"
	"github.com/falaj-ml/falaj/test/live"
)

// TestParameterServer runs examples/parameter-server: three roles with amounts and
// commands of their own, of which one does not end by itself.
func TestParameterServer(t *testing.T) {
	t.Parallel()
	s := live.New(t, "")
	s.Up(t)
	p := s.Project(t, "servers")
	example := filepath.Join(s.Bin.Root, "examples", "parameter-server")
	said := strings.Fields(p.Run(0, "job", "submit", "-f", filepath.Join(example, "job.yaml"), "--source", example))
	job := said[len(said)-1]
	got := ended(p, job)
	log, text := p.Run(0, "job", "logs", job), p.Run(0, "job", "describe", job)
	if got.State != "succeeded" || got.Tries[0].Workers != 5 {
		t.Fatalf("%s\n%s", text, log)
	}
	for _, line := range []string{"[0] chief has the weights", "[1] worker 0 ends after", "[2] worker 1 ends after", "[3] server 0 of 2", "[4] server 1 of 2"} {
		if !strings.Contains(log, line) {
			t.Errorf("the log has no %q:\n%s", line, log)
		}
	}
	for _, words := range []string{"Roles", "500m cpu, 128MiB", "python3 ps.py"} {
		if !strings.Contains(text, words) {
			t.Errorf("describe does not say %q:\n%s", words, text)
		}
	}
	if out := p.Run(0, "job", "advise", job); !strings.Contains(out, "There is no advice for jobs with roles") || !strings.Contains(text, out) {
		t.Errorf("%s\n%s", out, text)
	}
	if top := p.Run(0, "job", "top", job); !strings.Contains(top, "0 chief") || !strings.Contains(top, "4 ps") {
		t.Error(top)
	}
}

// TestTFConfig: what TensorFlow would read, of each role, and one environment each.
func TestTFConfig(t *testing.T) {
	t.Parallel()
	s := live.New(t, "")
	s.Up(t)
	p := s.Project(t, "tensorflow")
	job := submit(p, "config", map[string]any{
		"framework": "tensorflow", "env": map[string]string{"BOTH": "job", "JOB": "yes"},
		"command": script("import json, os, socket", "print(os.environ['BOTH'], os.environ['JOB'], os.environ['OMP_NUM_THREADS'], os.environ['TF_CONFIG'])",
			"host, port = json.loads(os.environ['TF_CONFIG'])['cluster']['ps'][0].split(':')", "served = False",
			"while not served:", "  try: served = socket.create_connection((host, int(port))).recv(1)", "  except OSError: pass"),
		"roles": []map[string]any{
			{"name": "chief", "resources": map[string]string{"cpu": "1100m"}},
			{"name": "worker", "workers": 2, "env": map[string]string{"BOTH": "role"}},
			{"name": "ps", "command": script("import json, os, socket", "print('ps', os.environ['TF_CONFIG'], flush=True)",
				"host, port = json.loads(os.environ['TF_CONFIG'])['cluster']['ps'][0].split(':')", "s = socket.create_server((host, int(port)))",
				"while True: s.accept()[0].sendall(b'x')")},
		},
	})
	got := ended(p, job)
	log := p.Run(0, "job", "logs", job)
	if got.State != "succeeded" {
		t.Fatalf("%s\n%s", p.Run(0, "job", "describe", job), log)
	}
	for i, c := range []struct {
		before, kind string
		index        int
	}{{"job yes 2 ", "chief", 0}, {"role yes 1 ", "worker", 0}, {"role yes 1 ", "worker", 1}, {"ps ", "ps", 0}} {
		before := fmt.Sprintf("[%d] %s", i, c.before)
		at := strings.Index(log, before+"{")
		if at < 0 {
			t.Fatalf("no line begins with %q:\n%s", before, log)
		}
		line, _, _ := strings.Cut(log[at+len(before):], "\n")
		var config struct {
			Cluster map[string][]string `json:"cluster"`
			Task    struct {
				Type  string
				Index int
			} `json:"task"`
		}
		if err := json.Unmarshal([]byte(line), &config); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		if config.Task.Type != c.kind || config.Task.Index != c.index || len(config.Cluster["chief"]) != 1 || len(config.Cluster["worker"]) != 2 || len(config.Cluster["ps"]) != 1 {
			t.Errorf("worker %d: %+v", i, config)
		}
	}
}

// TestRolesFailTogether: one role's failure ends the attempt, and what cannot be is
// said before anything starts.
func TestRolesFailTogether(t *testing.T) {
	t.Parallel()
	s := live.New(t, "")
	s.Up(t)
	p := s.Project(t, "together")
	roles := func(learner string) []map[string]any {
		return []map[string]any{
			{"name": "learner", "command": script(learner)},
			{"name": "actor", "workers": 2, "command": script("import time", "time.sleep(600)")},
		}
	}
	job := submit(p, "fails", map[string]any{"roles": roles("raise SystemExit('no more memory for replay')")})
	if got := ended(p, job); got.State != "failed" || got.Class != "user_error" || !strings.Contains(got.Reason, "worker 0") {
		t.Errorf("%+v", got)
	}
	large := roles("pass")
	large[0]["resources"] = map[string]string{"cpu": "900"}
	job = submit(p, "large", map[string]any{"roles": large})
	p.Eventually("it does not say why it waits", func() (bool, error) {
		return strings.Contains(p.Run(0, "job", "describe", job), "no node large enough for a worker of role learner: 900 cpu wanted"), nil
	})
	p.Run(0, "job", "cancel", job)
	for words, spec := range map[string]map[string]any{
		"workers or roles":      {"workers": 2, "roles": roles("pass")},
		"identical workers":     {"parallel": map[string]int{"tensor": 3}, "roles": roles("pass")},
		"has no roles":          {"framework": "horovod", "environment": "py", "roles": roles("pass")},
		"TF_CONFIG has no":      {"framework": "tensorflow", "roles": roles("pass")},
		"unknown value \"tea\"": {"roles": []map[string]any{{"name": "a", "command": []string{"/bin/true"}, "until": "tea"}}},
		"so none would end":     {"roles": []map[string]any{{"name": "a", "command": []string{"/bin/true"}, "until": "end"}}},
		"a command or a scrip":  {"roles": []map[string]any{{"name": "a", "command": []string{"/bin/true"}}, {"name": "b"}}},
	} {
		var o client.Object
		if err := p.C.Do(t.Context(), http.MethodPost, p.Path("jobs"), map[string]any{"name": "bad", "spec": spec}, &o); err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("%q: %v", words, err)
		}
	}
}
