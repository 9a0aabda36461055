package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/falaj-ml/falaj/client"
)

// server is a child process that answers at url.
type server struct {
	cmd   *exec.Cmd
	url   string
	token string
	ready time.Duration // from the start of the process
	ended chan struct{} // closed when the output has ended
}

// up starts bin/falaj on a data directory, confined to a core unless negative.
func (b *bench) up(ctx context.Context, data string, core int) (*server, error) {
	cmd := exec.CommandContext(ctx, filepath.Join(b.root, "bin", "falaj"), "up", "--data", data,
		"--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--flight", "127.0.0.1:0")
	cmd.Env = []string{"XDG_CONFIG_HOME=" + filepath.Join(b.dir, "config")}
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "FALAJ_") && !strings.HasPrefix(kv, "XDG_") || strings.HasPrefix(kv, "FALAJ_ORT_LIB=") {
			cmd.Env = append(cmd.Env, kv)
		}
	}
	s, err := b.launch(cmd, core, "Falaj is ready at ")
	if err != nil {
		return nil, err
	}
	if s.token != "" {
		return s, os.WriteFile(data+".token", []byte(s.token), 0o600)
	}
	token, err := os.ReadFile(data + ".token")
	s.token = string(token)
	return s, err
}

// launch starts cmd and waits until a line of its output begins with said and
// goes on with its address.
func (b *bench) launch(cmd *exec.Cmd, core int, said string) (*server, error) {
	log, err := os.OpenFile(filepath.Join(b.dir, "server.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd.Stderr = log
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	s := &server{cmd: cmd, ended: make(chan struct{})}
	began := time.Now()
	if err := startOn(core, cmd.Start); err != nil {
		return nil, err
	}
	stuck := time.AfterFunc(2*time.Minute, func() { _ = cmd.Process.Kill() })
	defer stuck.Stop()
	lines := bufio.NewScanner(out)
	for s.url == "" && lines.Scan() {
		s.ready = time.Since(began)
		if token, ok := strings.CutPrefix(lines.Text(), "Admin token (shown once): "); ok {
			s.token = token
		}
		s.url, _ = strings.CutPrefix(lines.Text(), said)
		if s.url == lines.Text() {
			s.url = ""
		}
	}
	if s.url == "" {
		close(s.ended)
		err := s.stop()
		text, _ := os.ReadFile(log.Name())
		return nil, fmt.Errorf("%s did not start: %w\n%s", filepath.Base(cmd.Path), err, text[max(0, len(text)-2000):])
	}
	go func() {
		_, _ = io.Copy(io.Discard, out)
		close(s.ended)
	}()
	return s, nil
}

// stop ends the process in order.
func (s *server) stop() error {
	_ = s.cmd.Process.Signal(syscall.SIGTERM)
	stuck := time.AfterFunc(20*time.Second, func() { _ = s.cmd.Process.Kill() })
	defer stuck.Stop()
	<-s.ended
	err := s.cmd.Wait()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() && status.Signal() == syscall.SIGTERM {
			return nil
		}
	}
	return err
}

func (s *server) pid() int { return s.cmd.Process.Pid }

func (s *server) client() (*client.Client, error) { return client.New(s.url, s.token) }

// mustBeReady asks /readyz, so that a line of text is not all there is.
func (s *server) mustBeReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url+"/readyz", http.NoBody)
	if err != nil {
		return err
	}
	resp, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		return err
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("/readyz answers %s", resp.Status)
	}
	return nil
}
