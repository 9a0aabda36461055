package harness

import (
	"bufio"
	"bytes"
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

// Server is a child process that answers at URL.
type Server struct {
	URL   string
	Token string
	Ready time.Duration // from the start of the process

	cmd   *exec.Cmd
	ended chan struct{} // closed when the output has ended
}

// Up starts bin/falaj on a data directory, confined to a core unless negative.
// settings are variables of its environment.
func (r *Run) Up(ctx context.Context, data string, core int, settings ...string) (*Server, error) {
	cmd := exec.CommandContext(ctx, filepath.Join(r.Root, "bin", "falaj"), "up", "--data", data,
		"--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--flight", "127.0.0.1:0")
	cmd.Env = []string{"XDG_CONFIG_HOME=" + filepath.Join(r.Dir, "config")}
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "FALAJ_") && !strings.HasPrefix(kv, "XDG_") || strings.HasPrefix(kv, "FALAJ_ORT_LIB=") {
			cmd.Env = append(cmd.Env, kv)
		}
	}
	cmd.Env = append(cmd.Env, settings...)
	s, err := r.Launch(cmd, core, "Falaj is ready at ")
	if err != nil {
		return nil, err
	}
	if s.Token != "" {
		return s, os.WriteFile(data+".token", []byte(s.Token), 0o600)
	}
	token, err := os.ReadFile(data + ".token")
	s.Token = string(token)
	return s, err
}

// Launch starts cmd and waits until a line of its output begins with said and
// goes on with its address.
func (r *Run) Launch(cmd *exec.Cmd, core int, said string) (*Server, error) {
	log, err := os.OpenFile(filepath.Join(r.Dir, "server.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
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
	s := &Server{cmd: cmd, ended: make(chan struct{})}
	began := time.Now()
	if err := StartOn(core, cmd.Start); err != nil {
		return nil, err
	}
	stuck := time.AfterFunc(2*time.Minute, func() { _ = cmd.Process.Kill() })
	defer stuck.Stop()
	lines := bufio.NewScanner(out)
	for s.URL == "" && lines.Scan() {
		s.Ready = time.Since(began)
		if token, ok := strings.CutPrefix(lines.Text(), "Admin token (shown once): "); ok {
			s.Token = token
		}
		s.URL, _ = strings.CutPrefix(lines.Text(), said)
		if s.URL == lines.Text() {
			s.URL = ""
		}
	}
	if s.URL == "" {
		close(s.ended)
		err := s.Stop()
		text, _ := os.ReadFile(log.Name())
		return nil, fmt.Errorf("%s did not start: %w\n%s", filepath.Base(cmd.Path), err, text[max(0, len(text)-2000):])
	}
	go func() {
		_, _ = io.Copy(io.Discard, out)
		close(s.ended)
	}()
	return s, nil
}

// Stop ends the process in order.
func (s *Server) Stop() error {
	_ = s.cmd.Process.Signal(syscall.SIGTERM)
	stuck := time.AfterFunc(time.Minute, func() { _ = s.cmd.Process.Kill() })
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

// PID is the process.
func (s *Server) PID() int { return s.cmd.Process.Pid }

// Client is a client of the server, as its administrator.
func (s *Server) Client() (*client.Client, error) { return client.New(s.URL, s.Token) }

// Do sends a request of a protocol that names no project in its path.
func (s *Server) Do(ctx context.Context, c *client.Client, project, method, path string, body, out any) error {
	resp, err := c.Send(ctx, method, path, body, http.Header{"Falaj-Project": {project}})
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode >= 300 {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 4096))
		return fmt.Errorf("%s: %s: %s", path, resp.Status, text)
	}
	if out == nil {
		return nil
	}
	return client.Decode(resp.Body, out)
}

// Register brings an ONNX file through MLflow's API to version 1 of a model.
func (s *Server) Register(ctx context.Context, c *client.Client, project, name string, model []byte) error {
	var created struct {
		Run struct {
			Info struct {
				RunID string `json:"run_id"`
			} `json:"info"`
		} `json:"run"`
	}
	mlflow := func(path string, body, out any) error {
		return s.Do(ctx, c, project, http.MethodPost, "/api/2.0/mlflow/"+path, body, out)
	}
	if err := mlflow("runs/create", map[string]any{"experiment_id": "0", "run_name": name}, &created); err != nil {
		return err
	}
	run := created.Run.Info.RunID
	err := s.Do(ctx, c, project, http.MethodPut, "/api/2.0/mlflow-artifacts/artifacts/0/"+run+"/artifacts/model/model.onnx", bytes.NewReader(model), nil)
	if err != nil {
		return err
	}
	if err := mlflow("registered-models/create", map[string]any{"name": name}, nil); err != nil {
		return err
	}
	return mlflow("model-versions/create", map[string]any{"name": name, "source": "runs:/" + run + "/model", "run_id": run}, nil)
}

// MustBeReady asks /readyz, so that a line of text is not all there is.
func (s *Server) MustBeReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL+"/readyz", http.NoBody)
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
