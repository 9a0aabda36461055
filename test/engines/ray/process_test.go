package ray_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/falaj-ml/falaj/internal/worker/protocol"
)

func mkfifo(path string) error { return syscall.Mkfifo(path, 0o600) }

// killAgents kills the agents of a workload with all below them: those whose
// environment names it.
func killAgents(t *testing.T, id string) {
	t.Helper()
	children, agents := map[int][]int{}, []int(nil)
	entries, err := os.ReadDir("/proc")
	check(t, err)
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		dir := filepath.Join("/proc", e.Name())
		b, err := os.ReadFile(filepath.Join(dir, "stat"))
		if err != nil {
			continue
		}
		f := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
		parent, _ := strconv.Atoi(f[1])
		children[parent] = append(children[parent], pid)
		env, _ := os.ReadFile(filepath.Join(dir, "environ"))
		for kv := range bytes.SplitSeq(env, []byte{0}) {
			if url, ok := bytes.CutPrefix(kv, []byte(protocol.EnvURL+"=")); ok && bytes.Contains(url, []byte("/"+id+"/")) {
				agents = append(agents, pid)
			}
		}
	}
	if len(agents) == 0 {
		t.Fatalf("no agent of %s", id)
	}
	var all []int
	for next := agents; len(next) > 0; next = next[1:] {
		all = append(all, next[0])
		next = append(next, children[next[0]]...)
	}
	for _, s := range []syscall.Signal{syscall.SIGSTOP, syscall.SIGKILL} {
		for _, pid := range all {
			_ = syscall.Kill(pid, s)
		}
	}
}
