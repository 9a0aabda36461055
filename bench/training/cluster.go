package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// cluster is a Slurm of virtual nodes.
type cluster struct {
	conf string
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  *bufio.Scanner
}

// startSlurm starts one, or says why there is none.
func (b *bench) startSlurm(ctx context.Context) (c *cluster, reason string) {
	program := filepath.Join(b.Dir, "cluster")
	build := exec.CommandContext(ctx, "go", "build", "-o", program, "./test/engines/slurm/cluster")
	build.Dir = b.Root
	if text, err := build.CombinedOutput(); err != nil {
		return nil, "the cluster cannot be built: " + b.line(string(text))
	}
	// Sockets lie in its directory, and their paths are short.
	c = &cluster{cmd: exec.CommandContext(ctx, program)}
	var said strings.Builder
	c.cmd.Stderr = &said
	c.cmd.Cancel = func() error { return c.cmd.Process.Signal(syscall.SIGTERM) }
	c.cmd.WaitDelay = 20 * time.Second
	in, err := c.cmd.StdinPipe()
	if err != nil {
		return nil, err.Error()
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		return nil, err.Error()
	}
	c.in, c.out = in, bufio.NewScanner(out)
	if err := c.cmd.Start(); err != nil {
		return nil, err.Error()
	}
	if !c.out.Scan() {
		_ = c.cmd.Wait()
		return nil, b.line(said.String())
	}
	c.conf = strings.TrimPrefix(c.out.Text(), "SLURM_CONF=")
	return c, ""
}

// line is the last line of a message, without this machine's directories.
func (b *bench) line(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.ReplaceAll(lines[len(lines)-1], b.Root, ".")
}

func (c *cluster) stop() {
	_ = c.cmd.Process.Signal(syscall.SIGTERM)
	for c.out.Scan() { // until it has closed its output
	}
	_ = c.cmd.Wait()
}

// order has the cluster kill or start a node.
func (c *cluster) order(order string) error {
	if _, err := fmt.Fprintln(c.in, order); err != nil {
		return err
	}
	if !c.out.Scan() {
		return errors.New("the cluster has ended")
	}
	if c.out.Text() != "ok" {
		return errors.New(c.out.Text())
	}
	return nil
}

// command runs one of Slurm's commands.
func (c *cluster) command(ctx context.Context, stdin, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Env, cmd.Stdin = "/", append(os.Environ(), "SLURM_CONF="+c.conf), strings.NewReader(stdin)
	text, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s: %w: %s", name, err, text)
	}
	return strings.TrimSpace(string(text)), nil
}

// engine is the configuration of a server that has the cluster.
func (b *bench) engine(c *cluster) string {
	return fmt.Sprintf("engines: {hpc: {kind: slurm, conf: %s, default_user: root, worker: %s}}\n", c.conf, filepath.Join(b.Root, "bin", "falaj-worker"))
}

const slurmPool = `{api_version: falaj/v1, kind: Pool, name: hpc, spec: {engine: hpc, mode: delegated, options: {partition: batch}}}`

// onSlurm is the specification of a job there.
func onSlurm(command ...string) map[string]any {
	return map[string]any{
		"command": command, "pools": []string{"hpc"}, "resources": map[string]any{"cpu": "1", "memory": "64MiB"},
	}
}
