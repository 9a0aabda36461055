package slurm_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/falaj-ml/falaj/internal/compute/engine"
	"github.com/falaj-ml/falaj/internal/compute/engine/enginetest"
	"github.com/falaj-ml/falaj/internal/compute/engine/remote"
	"github.com/falaj-ml/falaj/internal/compute/engine/remote/remotetest"
	"github.com/falaj-ml/falaj/internal/compute/engine/slurm"
	"github.com/falaj-ml/falaj/internal/compute/engine/slurm/slurmtest"
	"github.com/falaj-ml/falaj/internal/sandbox/sandboxtest"
)

// TestConformance runs the engines' suite on a cluster of four nodes, with the
// real agent. The nodes see the suite's directories, where its named pipes are.
func TestConformance(t *testing.T) {
	t.Parallel()
	w := &world{c: slurmtest.New(t, slurmtest.Options{}), worker: sandboxtest.Worker(t)}
	enginetest.Run(t, enginetest.Options{
		New: w.open, Lose: lose, Isolation: "process", Pool: map[string]string{remote.Shared: "true", "partition": "batch"},
	})
}

// world opens drivers on one cluster; the servers outlive them, as they do when
// Falaj starts again.
type world struct {
	c       *slurmtest.Cluster
	worker  string
	servers sync.Map // by directory
}

func (w *world) open(t *testing.T, dir string) engine.Driver {
	t.Helper()
	s, ok := w.servers.Load(dir)
	if !ok {
		s = remotetest.Serve(t, "")
		w.servers.Store(dir, s)
	}
	server := s.(*remotetest.Server)
	l, err := slurm.New(slurm.Config{Conf: w.c.Conf, DefaultUser: "root", Worker: w.worker, Dir: filepath.Join(dir, "slurm")})
	if err != nil {
		t.Fatal(err)
	}
	d, err := remote.New(remote.Config{Name: "slurm", Dir: filepath.Join(dir, "workloads"), Launcher: l, URL: server.URL, Isolation: "process"})
	if err != nil {
		t.Fatal(err)
	}
	server.Use(d)
	return d
}

// lose kills the agents of a workload, so that nobody says how it ended.
func lose(t *testing.T, _ string, h engine.Handle) {
	t.Helper()
	killed := 0
	found, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, file := range found {
		dir := filepath.Dir(file)
		line, _ := os.ReadFile(file)
		env, _ := os.ReadFile(filepath.Join(dir, "environ"))
		if !bytes.HasSuffix(line, []byte("falaj-worker\x00agent\x00")) || !bytes.Contains(env, []byte(fmt.Sprintf("SLURM_JOB_NAME=%s\x00", h))) {
			continue
		}
		pid, err := strconv.Atoi(strings.TrimPrefix(filepath.Base(dir), "/proc/"))
		if err != nil {
			t.Fatal(err)
		}
		if err := syscall.Kill(pid, syscall.SIGKILL); err == nil {
			killed++
		}
	}
	if killed == 0 {
		t.Fatalf("no agent of %s runs", h)
	}
}
