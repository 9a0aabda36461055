package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// ray is a Ray on this machine.
type ray struct {
	dir, program, address string
	env                   []string
	down                  bool
}

// startRay starts one from the environment of the engines' tests, or says why
// there is none.
func (b *bench) startRay(ctx context.Context) (r *ray, reason string) {
	if b.Quick {
		return nil, notNow
	}
	program := filepath.Join(b.Root, ".tmp", "venv", "ray", "bin", "ray")
	if _, err := os.Stat(program); err != nil {
		return nil, "Ray is not installed; run `make engines`"
	}
	ports, err := freePorts(ctx, 2)
	if err != nil {
		return nil, err.Error()
	}
	dir, err := os.MkdirTemp("", "ray") // short, for sockets
	if err != nil {
		return nil, err.Error()
	}
	r = &ray{dir: dir, program: program, address: "http://127.0.0.1:" + ports[1]}
	r.env = append(os.Environ(), "RAY_DISABLE_IMPORT_WARNING=1", "RAY_USAGE_STATS_ENABLED=0")
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	if err := r.command(ctx, "start", "--head", "--node-ip-address=127.0.0.1", "--port="+ports[0], "--dashboard-host=127.0.0.1", "--dashboard-port="+ports[1],
		"--temp-dir="+dir, "--num-cpus=4", "--object-store-memory=100000000", "--disable-usage-stats"); err != nil {
		r.stop()
		return nil, b.line(err.Error())
	}
	return r, ""
}

func freePorts(ctx context.Context, n int) ([]string, error) {
	var ports []string
	for range n {
		l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer l.Close()
		ports = append(ports, strconv.Itoa(l.Addr().(*net.TCPAddr).Port))
	}
	return ports, nil
}

func (r *ray) command(ctx context.Context, args ...string) error {
	cmd := exec.CommandContext(ctx, r.program, args...)
	cmd.Env = r.env
	text, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("ray %s: %w: %s", args[0], err, text)
	}
	return nil
}

// noop is a job that does nothing.
func (r *ray) noop(ctx context.Context) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	began := time.Now()
	err := r.command(ctx, "job", "submit", "--address="+r.address, "--", "/bin/true")
	return time.Since(began), err
}

// stop kills the processes of this Ray and no other: those that name its
// directory.
func (r *ray) stop() {
	if r.down {
		return
	}
	r.down = true
	lines, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, file := range lines {
		text, err := os.ReadFile(file)
		if err != nil || !strings.Contains(string(text), r.dir) {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file))); err == nil {
			if p, err := os.FindProcess(pid); err == nil {
				_ = p.Kill()
			}
		}
	}
	_ = os.RemoveAll(r.dir)
}
