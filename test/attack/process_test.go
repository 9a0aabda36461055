package attack

import (
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/falaj-ml/falaj/test/live"
)

// TestModelProcess: a model that no job made runs in a process that has nothing
// of the server's; when its native code crashes, it takes only itself down, and
// comes back.
func TestModelProcess(t *testing.T) {
	s := live.New(t, "")
	s.Up(t)
	p := s.Project(t, "apart")
	p.Register("alien", p.Logistic())
	manifest := func(name, more string) string {
		return "{api_version: falaj/v1, kind: Deployment, name: " + name + ", project: PROJECT, spec: {model: alien" + more + "}}"
	}
	if _, err := p.Try(p.C, manifest("first", ", runtime: {isolation: in-process}")); err == nil || !strings.Contains(err.Error(), "was not made by a job") {
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
			if !strings.Contains(err.Error(), "the model's process ended") {
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
	if s.PID() != server || len(modelProcesses(t, server)) != len(names) {
		t.Error("the server or a process is another")
	}
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
