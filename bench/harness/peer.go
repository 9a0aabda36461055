package harness

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
)

// Peer is a Python program that answers each line with a line.
type Peer struct {
	Name string // what it said first
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  *bufio.Scanner
}

// Install makes the locked environment of a peer (a requirements file, relative to the
// root; env is for its installation, options are uv's for the environment) and gives
// its Python, or says why it cannot. Quick runs install nothing.
func (r *Run) Install(ctx context.Context, environment, requirements string, env []string, options ...string) (python, reason string) {
	python = filepath.Join(r.Root, ".tmp", "venv", environment, "bin", "python")
	if r.Quick {
		if _, err := os.Stat(python); err != nil {
			return "", "the peer is not installed"
		}
		return python, ""
	}
	args := append([]string{"-euo", "pipefail", "-c", `. scripts/lib.sh; venv "$@"`, "bench", environment, requirements}, options...)
	install := exec.CommandContext(ctx, "bash", args...)
	install.Dir, install.Env = r.Root, append(os.Environ(), env...)
	if text, err := install.CombinedOutput(); err != nil {
		lines := strings.Split(strings.TrimSpace(string(text)), "\n")
		return "", "the peer cannot be installed: " + strings.ReplaceAll(lines[len(lines)-1], r.Root, ".")
	}
	return python, ""
}

// StartPeer installs a peer and starts its program with arguments, or says why it
// cannot.
func (r *Run) StartPeer(ctx context.Context, environment, requirements string, env []string, args ...string) (_ *Peer, reason string) {
	python, reason := r.Install(ctx, environment, requirements, env)
	if reason != "" {
		return nil, reason
	}
	p := &Peer{cmd: exec.CommandContext(ctx, python, args...)}
	p.cmd.Dir, p.cmd.Stderr = r.Root, r.Log
	p.cmd.Cancel = func() error { return p.cmd.Process.Signal(syscall.SIGTERM) }
	in, err := p.cmd.StdinPipe()
	if err != nil {
		return nil, err.Error()
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err.Error()
	}
	p.in, p.out = in, bufio.NewScanner(out)
	if err := p.cmd.Start(); err != nil {
		return nil, "the peer does not start: " + err.Error()
	}
	if !p.out.Scan() {
		p.Stop()
		return nil, "the peer ended: " + p.cmd.ProcessState.String()
	}
	p.Name = strings.TrimSpace(p.out.Text())
	return p, ""
}

// Ask sends a line and waits for the answer.
func (p *Peer) Ask(line string) (string, error) {
	if _, err := fmt.Fprintln(p.in, line); err != nil {
		return "", err
	}
	if !p.out.Scan() {
		return "", errors.New("the peer ended")
	}
	return p.out.Text(), nil
}

// Stop closes the peer's input, upon which it ends.
func (p *Peer) Stop() {
	_ = p.in.Close()
	_ = p.cmd.Wait()
}
