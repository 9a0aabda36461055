package attack

import (
	"errors"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/falaj-ml/falaj/client"
	"github.com/falaj-ml/falaj/test/live"
)

// runtimeIn reports whether ONNX Runtime is in the memory of a process.
func runtimeIn(t *testing.T, pid int) bool {
	t.Helper()
	maps, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "maps"))
	if err != nil {
		t.Fatal(err)
	}
	return strings.Contains(string(maps), "libonnxruntime")
}

// TestModelProcess: a model runs in a process that has nothing of the server's; when its
// native code crashes, it takes only itself down, and comes back.
func TestModelProcess(t *testing.T) {
	s := live.New(t, "")
	s.Up(t)
	p := s.Project(t, "apart")
	p.Register("alien", p.Logistic())
	manifest := func(name, more string) string {
		return "{api_version: falaj/v1, kind: Deployment, name: " + name + ", project: PROJECT, spec: {model: alien" + more + "}}"
	}
	if _, err := p.Try(p.C, manifest("first", ", runtime: {isolation: in-process}")); err == nil || !strings.Contains(err.Error(), "serving.in_process") {
		t.Errorf("it runs in the server: %v", err)
	}
	names := []string{"first", "second"}
	p.Apply(manifest("first", "") + "\n---\n" + manifest("second", ", runtime: {isolation: child, memory: 1GiB}"))
	asks := func(name string) error {
		_, err := p.Infer(p.C, name, nil, live.Tensor("X", "FP32", []float64{1, 2}, 1, 2))
		return err
	}
	for _, name := range names {
		if err := asks(name); err != nil {
			t.Fatal(err)
		}
	}
	children := modelProcesses(t, s.PID())
	if len(children) != len(names) {
		t.Fatalf("%d processes of models", len(children))
	}
	if runtimeIn(t, s.PID()) {
		t.Error("ONNX Runtime is in the server's process")
	}
	network := func(pid int) string {
		link, err := os.Readlink(filepath.Join("/proc", strconv.Itoa(pid), "ns", "net"))
		if err != nil {
			t.Fatal(err)
		}
		return link
	}
	for _, pid := range children {
		dir := filepath.Join("/proc", strconv.Itoa(pid))
		env, err := os.ReadFile(filepath.Join(dir, "environ"))
		if err != nil || strings.Contains(string(env), "FALAJ") {
			t.Errorf("its environment is the server's: %q %v", env, err)
		}
		if network(pid) == network(s.PID()) {
			t.Error("its network is the server's")
		}
		limits, _ := os.ReadFile(filepath.Join(dir, "limits"))
		for limit, want := range map[string]string{"Max file size": "16777216", "Max open files": "256", "Max processes": "1024"} {
			if _, rest, _ := strings.Cut(string(limits), limit); strings.Fields(rest + " -")[0] != want {
				t.Errorf("%s is not %s:\n%s", limit, want, limits)
			}
		}
		mounts, _ := os.ReadFile(filepath.Join(dir, "mountinfo"))
		for line := range strings.Lines(string(mounts)) {
			if strings.Contains(line, " /tmp ") && !strings.Contains(line, "size=16384k") {
				t.Errorf("what it may write: %s", line)
			}
		}
		fds, err := os.ReadDir(filepath.Join(dir, "fd"))
		if err != nil {
			t.Fatal(err)
		}
		for _, fd := range fds {
			if to, _ := os.Readlink(filepath.Join(dir, "fd", fd.Name())); strings.Contains(to, s.Data) || strings.HasPrefix(to, "socket:") {
				t.Errorf("it has %s open", to)
			}
		}
	}

	server := s.PID()
	if err := syscall.Kill(children[0], syscall.SIGSEGV); err != nil {
		t.Fatal(err)
	}
	failed := 0
	for _, name := range names {
		if err := asks(name); err != nil {
			failed++
			if !strings.Contains(err.Error(), "the model's process exited") {
				t.Errorf("%s says %v", name, err)
			}
		}
	}
	if failed > 1 {
		t.Error("one crash took both models down")
	}
	for _, name := range names {
		p.Eventually(name+" does not answer again", func() (bool, error) {
			err := asks(name)
			return err == nil, err
		})
	}
	if s.PID() != server {
		t.Error("the server is another")
	}
	p.Eventually("the number of processes is another", func() (bool, error) { return len(modelProcesses(t, server)) == len(names), nil })
	p.Must(p.C.Do(t.Context(), http.MethodDelete, p.Path("deployments/first"), nil, nil))
	p.Eventually("a process is left", func() (bool, error) { return len(modelProcesses(t, server)) == 1, nil })

	groups := groupsOf(t, modelProcesses(t, server)[0])
	for _, g := range groups {
		if _, err := os.Stat(g); err != nil {
			t.Errorf("its group is not where it is: %v", err)
		}
	}
	if err := s.Stop(); err != nil {
		t.Error(err)
	}
	for _, g := range groups {
		if _, err := os.Stat(g); err == nil {
			t.Errorf("%s is left by a server that stopped", g)
		}
	}
}

// TestJobsModelIsApart: neither a model that a job wrote, nor another project's, nor a
// version that is tried, nor a step, shares a process with another one or the server.
func TestJobsModelIsApart(t *testing.T) {
	s := live.New(t, "")
	s.Up(t)
	north, south := s.Project(t, "north"), s.Project(t, "south")
	for _, name := range []string{"first", "second"} {
		job := north.Apply(`{api_version: falaj/v1, kind: Job, name: ` + name + `, project: PROJECT, spec: {source: "` + north.Source("model.onnx", north.Logistic()) +
			`", register: made, command: [/bin/sh, -ec, ': ` + name + `; mkdir "$FALAJ_OUTPUT_DIR/model"; cp model.onnx "$FALAJ_OUTPUT_DIR/model/"']}}`)
		north.Ends(job[0].ID, "succeeded")
	}
	south.Register("made", south.Logistic())
	manifest := `{api_version: falaj/v1, kind: Deployment, name: d, project: PROJECT, spec: {model: made, version: "1"}}`
	north.Apply(manifest)
	south.Apply(manifest)
	north.Run(0, "deploy", "canary", "d", "--version", "2", "--weight", "50")
	for _, p := range []*live.Project{north, south} {
		if _, err := p.Infer(p.C, "d", nil, live.Tensor("X", "FP32", []float64{1, 2}, 1, 2)); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(modelProcesses(t, s.PID())); n != 3 {
		t.Errorf("%d processes of 3 models with the same bytes", n)
	}
	if runtimeIn(t, s.PID()) {
		t.Error("ONNX Runtime is in the server's process")
	}
}

// TestPermittedInProcess: what the administrator's setting names runs in the server's
// process, and nothing else does.
func TestPermittedInProcess(t *testing.T) {
	s := live.New(t, "")
	config := filepath.Join(t.TempDir(), "falaj.yaml")
	if err := os.WriteFile(config, []byte("serving: {in_process: [{project: north, model: trusted}]}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s.Args = []string{"--config", config}
	s.Up(t)
	north, south := s.Project(t, "north"), s.Project(t, "south")
	for _, p := range []*live.Project{north, south} {
		p.Register("trusted", p.Logistic())
		p.Register("other", p.Logistic())
	}
	manifest := func(model, more string) string {
		return "{api_version: falaj/v1, kind: Deployment, name: " + model + ", project: PROJECT, spec: {model: " + model + more + "}}"
	}
	for _, c := range []struct {
		p     *live.Project
		model string
	}{{north, "other"}, {south, "trusted"}} {
		if _, err := c.p.Try(c.p.C, manifest(c.model, ", runtime: {isolation: in-process}")); err == nil || !strings.Contains(err.Error(), "serving.in_process") {
			t.Errorf("%s of %s: %v", c.model, c.p.Name, err)
		}
		c.p.Apply(manifest(c.model, ""))
	}
	if len(modelProcesses(t, s.PID())) != 2 || runtimeIn(t, s.PID()) {
		t.Error("a model runs in the server that no setting names")
	}
	north.Apply(manifest("trusted", ", runtime: {isolation: child}"))
	if len(modelProcesses(t, s.PID())) != 3 || runtimeIn(t, s.PID()) {
		t.Error("isolation: child is not obeyed")
	}
	north.Apply(manifest("trusted", ""))
	north.Eventually("its process is left", func() (bool, error) { return len(modelProcesses(t, s.PID())) == 2, nil })
	if !runtimeIn(t, s.PID()) {
		t.Error("what the setting names does not run in the server")
	}
}

// TestProcessSetAside: a version whose process dies three times is not started again, its
// status says why, and the last good one serves.
func TestProcessSetAside(t *testing.T) {
	s := live.New(t, "")
	s.Up(t)
	p := s.Project(t, "aside")
	p.Register("m", p.Logistic(), p.Logistic())
	version := func(v string) string {
		return `{api_version: falaj/v1, kind: Deployment, name: d, project: PROJECT, spec: {model: m, version: "` + v + `"}}`
	}
	status := func() (o client.Object) {
		p.Must(p.C.Do(t.Context(), http.MethodGet, p.Path("deployments/d"), nil, &o))
		return o
	}
	var last int
	kill := func() {
		p.Eventually("no process is started", func() (bool, error) {
			pids := modelProcesses(t, s.PID())
			if status().Text("state") != "ready" || len(pids) != 1 || pids[0] == last {
				return false, nil
			}
			last = pids[0]
			return true, syscall.Kill(last, syscall.SIGSEGV)
		})
	}
	p.Apply(version("1"))
	kill()
	p.Eventually("it is not started again", func() (bool, error) { return status().Text("state") == "ready", nil })
	if said := p.Run(0, "deploy", "status", "d"); !strings.Contains(said, "restarts: 1; last death at") || !strings.Contains(said, "SIGSEGV") {
		t.Errorf("the status does not say why it died:\n%s", said)
	}
	p.Apply(version("2"))
	p.Eventually("the process of version 1 is left", func() (bool, error) { return len(modelProcesses(t, s.PID())) == 1, nil })
	for range 3 {
		kill()
	}
	p.Eventually("the last good version does not serve", func() (bool, error) {
		o := status()
		return o.Text("version") == "1" && o.Text("state") == "ready", nil
	})
	if said := p.Run(0, "deploy", "status", "d"); !strings.Contains(said, "version 2 was set aside: its process crashed 3 times") || !strings.Contains(said, "rollback") {
		t.Errorf("the status does not say what was done:\n%s", said)
	}
	if _, err := p.Infer(p.C, "d", nil, live.Tensor("X", "FP32", []float64{1, 2}, 1, 2)); err != nil {
		t.Error(err)
	}
	p.Apply(version("2")) // somebody tries it again
	if o := status(); o.Text("version") != "2" || o.Text("state") != "ready" {
		t.Errorf("applied again, it is %s: %s", o.Text("state"), o.Text("reason"))
	}
	// Of one that is alone, the state says what to do.
	p.Run(0, "delete", "deployment", "d")
	p.Eventually("a process is left", func() (bool, error) { return len(modelProcesses(t, s.PID())) == 0, nil })
	p.Apply(version("1"))
	for range 3 {
		kill()
	}
	p.Eventually("it is not set aside", func() (bool, error) {
		o := status()
		return o.Text("state") == "failed" && strings.Contains(o.Text("reason"), "set aside") && strings.Contains(o.Text("reason"), "SIGSEGV"), nil
	})
	if n := len(modelProcesses(t, s.PID())); n != 0 {
		t.Errorf("%d processes", n)
	}
	var refused *client.Error
	if _, err := p.Infer(p.C, "d", nil, live.Tensor("X", "FP32", []float64{1, 2}, 1, 2)); !errors.As(err, &refused) || refused.Status != http.StatusServiceUnavailable || strings.Contains(refused.Detail, "SIGSEGV") {
		t.Errorf("a request: %v", err)
	}
	verify(t, s)
}

// groupsOf are the directories of the control groups that were made for a process.
func groupsOf(t *testing.T, pid int) (dirs []string) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cgroup"))
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for line := range strings.Lines(string(b)) {
		if name := filepath.Base(strings.TrimSpace(line)); strings.HasPrefix(name, "falaj-") {
			names[name] = true
		}
	}
	_ = filepath.WalkDir("/sys/fs/cgroup", func(dir string, e fs.DirEntry, err error) error {
		if err == nil && e.IsDir() && names[e.Name()] {
			dirs = append(dirs, dir)
		}
		return nil
	})
	t.Logf("groups %v", dirs)
	return dirs
}

// modelProcesses are those below a process.
func modelProcesses(t *testing.T, server int) (pids []int) {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	parent := map[int]int{}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		dir := filepath.Join("/proc", e.Name())
		stat, _ := os.ReadFile(filepath.Join(dir, "stat"))
		if fields := strings.Fields(string(stat)[strings.LastIndexByte(string(stat), ')')+1:]); len(fields) > 1 {
			parent[pid], _ = strconv.Atoi(fields[1])
		}
		line, _ := os.ReadFile(filepath.Join(dir, "cmdline"))
		if args := strings.Split(string(line), "\x00"); len(args) > 2 && args[1] == "child" && args[2] == "model" {
			pids = append(pids, pid)
		}
	}
	mine := pids[:0]
	for _, pid := range pids {
		for up := pid; up > 1; up = parent[up] {
			if up == server {
				mine = append(mine, pid)
				break
			}
		}
	}
	return mine
}
