package live

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/falaj-ml/falaj/internal/sandbox/shim"
)

// Process is a process that has to do with a data directory.
type Process struct {
	PID  int
	Line string
}

// Processes are those, beside the server itself, whose command line, working
// directory or environment names the data directory or the mark: shims, jobs,
// parsers. In a sandbox a job sees other paths, so tests mark their jobs.
func (s *Server) Processes() []Process {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var out []Process
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() || pid == s.PID() {
			continue
		}
		dir := filepath.Join("/proc", e.Name())
		line, _ := os.ReadFile(filepath.Join(dir, "cmdline"))
		env, _ := os.ReadFile(filepath.Join(dir, "environ"))
		cwd, _ := os.Readlink(filepath.Join(dir, "cwd"))
		if len(line) == 0 { // a kernel thread, or ended and not yet reaped
			continue
		}
		all := string(line) + "\x00" + string(env) + "\x00" + cwd
		if strings.Contains(all, s.Data) || (s.Mark != "" && strings.Contains(all, s.Mark)) {
			out = append(out, Process{PID: pid, Line: strings.ReplaceAll(strings.TrimRight(string(line), "\x00"), "\x00", " ")})
		}
	}
	return out
}

// Identity is a process's number and the time it started, "PID STARTED", which no other
// process has, whatever numbers it sees.
func Identity(tb testing.TB, pid int) string {
	tb.Helper()
	p, err := shim.ProcessOf(pid)
	if err != nil {
		tb.Fatal(err)
	}
	return fmt.Sprint(p.PID, p.Start)
}
