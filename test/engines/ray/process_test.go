package ray_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"github.com/falaj-ml/falaj/internal/worker/protocol"
)

func mkfifo(path string) error { return syscall.Mkfifo(path, 0o600) }

// killAgents kills the agents of a workload, those whose environment names it,
// and nothing below them: that is for what they leave behind to do.
func killAgents(t *testing.T, id string) {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	check(t, err)
	killed := 0
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		line, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		env, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "environ"))
		argv := bytes.Split(line, []byte{0})
		if len(argv) < 2 || filepath.Base(string(argv[0])) != "falaj-worker" || string(argv[1]) != "agent" {
			continue
		}
		for kv := range bytes.SplitSeq(env, []byte{0}) {
			if url, ok := bytes.CutPrefix(kv, []byte(protocol.EnvURL+"=")); ok && bytes.Contains(url, []byte("/"+id+"/")) {
				check(t, syscall.Kill(pid, syscall.SIGKILL))
				killed++
			}
		}
	}
	if killed == 0 {
		t.Fatalf("no agent of %s", id)
	}
}
