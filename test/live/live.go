// Package live runs the real binary for tests: it builds bin/falaj and
// bin/falaj-worker once, starts `falaj up` on a temporary data directory with a
// home of its own, waits until it is ready, kills it at once (SIGKILL) or
// softly, and starts it again on the same directory.
//
//   - build.go: Binaries.
//   - live.go: Server.
//   - project.go: Project, which makes datasets, versions and deployments.
//   - disk.go: full disks.
//   - processes.go: what still runs of a data directory.
//
// The directory test/ holds what is tested so: script (the command line),
// crash (kill -9 at random moments), attack (a hostile job, a tampered model),
// full (a full disk), sealed (classified values in no file), loop (what closes the loop, attacked),
// pythonmodels (models that are no ONNX file, hostile ones among them).
package live

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/client"
)

// Wait is the longest that anything is waited for: generous, because tests run
// beside others on a small machine.
const Wait = 2 * time.Minute

// WaitProgram is the longest that a program of others is waited for: one in Python may
// import its packages for minutes there.
const WaitProgram = 5 * Wait

// Server is one data directory and the server on it. Not safe for concurrent
// Start, Kill and Stop.
type Server struct {
	Bin    Bin
	Home   string // HOME of the server and of Command
	Data   string
	URL    string // of the last start
	Token  string // the admin's, after the first start
	Args   []string
	Env    []string // beside those that every process gets
	Mark   string   // in the environment or command line of jobs that the test submits; see Processes
	cmd    *exec.Cmd
	ended  chan struct{}
	mu     sync.Mutex
	log    strings.Builder
	starts int
}

// New makes the directories below dir, which is t.TempDir() when empty; Start
// starts. Whatever still runs is killed when the test ends.
func New(tb testing.TB, dir string) *Server {
	tb.Helper()
	if dir == "" {
		dir = tb.TempDir()
	}
	s := &Server{Bin: Build(tb), Home: filepath.Join(dir, "home"), Data: filepath.Join(dir, "data")}
	if err := os.MkdirAll(s.Home, 0o700); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		_ = s.Kill()
		// They are gone before their directory is removed.
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for end := time.Now().Add(Wait); time.Now().Before(end); <-tick.C {
			left := s.Processes()
			if len(left) == 0 {
				break
			}
			for _, p := range left {
				_ = syscall.Kill(p.PID, syscall.SIGKILL)
			}
		}
		if tb.Failed() {
			tb.Logf("end of the server's log:\n%s", s.LogTail(6000))
		}
	})
	return s
}

// Environ is the environment of the server and of Command: nothing of the
// tests' own settings leaks in.
func (s *Server) Environ() []string {
	return append([]string{
		"HOME=" + s.Home, "XDG_CONFIG_HOME=" + filepath.Join(s.Home, ".config"),
		"PATH=" + os.Getenv("PATH"), "TZ=UTC", "LANG=C.UTF-8",
		"FALAJ_WORKER_PATH=" + s.Bin.Worker,
		"FALAJ_ENVIRONMENTS_UV=" + filepath.Join(s.Bin.Root, "bin", "uv"),
		"FALAJ_ORT_LIB=" + filepath.Join(s.Bin.Root, "lib", "libonnxruntime.so"),
	}, s.Env...)
}

// Start starts the server and returns when it said that it is ready. The error
// holds what it said when it ends before.
func (s *Server) Start(ctx context.Context) error {
	cmd := exec.Command(s.Bin.Falaj, append([]string{
		"up", "--data", s.Data, "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--flight", "127.0.0.1:0",
	}, s.Args...)...)
	return s.StartCommand(ctx, cmd)
}

// StartCommand is Start with a command of the caller's, such as one that enters
// a namespace first. Its environment is set here.
func (s *Server) StartCommand(ctx context.Context, cmd *exec.Cmd) error {
	cmd.Env = s.Environ()
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	cmd.Stderr = logWriter{s}
	if err := cmd.Start(); err != nil {
		return err
	}
	s.cmd, s.ended = cmd, make(chan struct{})
	s.starts++
	ready := make(chan string, 1)
	go func(ended chan struct{}) {
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			line := lines.Text()
			if token, ok := strings.CutPrefix(line, "Admin token (shown once): "); ok {
				s.mu.Lock()
				s.Token = token
				s.mu.Unlock()
			}
			if url, ok := strings.CutPrefix(line, "Falaj is ready at "); ok {
				ready <- url
			}
			_, _ = fmt.Fprintln(logWriter{s}, line)
		}
		_ = cmd.Wait()
		close(ended)
	}(s.ended)
	timeout := time.NewTimer(Wait)
	defer timeout.Stop()
	select {
	case s.URL = <-ready:
		if s.token() == "" {
			s.mu.Lock()
			s.Token = s.stored()
			s.mu.Unlock()
		}
		return nil
	case <-s.ended:
		return fmt.Errorf("falaj up ended with code %d:\n%s", cmd.ProcessState.ExitCode(), s.LogTail(4000))
	case <-timeout.C:
		_ = s.Kill()
		return errors.New("falaj up was not ready in time:\n" + s.LogTail(4000))
	case <-ctx.Done():
		_ = s.Kill()
		return ctx.Err()
	}
}

// stored is the token that `falaj up` left for this home's command line: a
// server killed between keeping and printing it printed none.
func (s *Server) stored() string {
	var c struct{ Token string }
	if b, err := os.ReadFile(filepath.Join(s.Home, ".config", "falaj", "credentials.json")); err == nil {
		_ = json.Unmarshal(b, &c)
	}
	return c.Token
}

func (s *Server) token() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.Token
}

// PID is the server's, 0 when none was started.
func (s *Server) PID() int {
	if s.cmd == nil || s.cmd.Process == nil {
		return 0
	}
	return s.cmd.Process.Pid
}

// Kill ends the server with SIGKILL and waits until it is gone. Jobs go on:
// their shims are no children of the server's life.
func (s *Server) Kill() error { return s.end(syscall.SIGKILL) }

// Stop asks the server to end and waits.
func (s *Server) Stop() error { return s.end(syscall.SIGTERM) }

func (s *Server) end(signal syscall.Signal) error {
	if s.cmd == nil {
		return nil
	}
	_ = s.cmd.Process.Signal(signal)
	timeout := time.NewTimer(Wait)
	defer timeout.Stop()
	select {
	case <-s.ended:
		return nil
	case <-timeout.C:
		return errors.New("the server did not end")
	}
}

// Client is a client with the admin's token.
func (s *Server) Client(tb testing.TB) *client.Client {
	tb.Helper()
	return s.ClientWith(tb, s.token())
}

// ClientWith is a client with another token.
func (s *Server) ClientWith(tb testing.TB, token string) *client.Client {
	tb.Helper()
	c, err := client.New(s.URL, token)
	if err != nil {
		tb.Fatal(err)
	}
	return c
}

// Command is a command line of this home, with its token. It returns what it
// printed and its exit code.
func (s *Server) Command(ctx context.Context, args ...string) (output string, code int) {
	return s.Begin(ctx, args...)()
}

// Begin is Command that goes on while the test does something else, such as
// killing the server; end waits for it.
func (s *Server) Begin(ctx context.Context, args ...string) (end func() (output string, code int)) {
	cmd := exec.CommandContext(ctx, s.Bin.Falaj, args...)
	cmd.Env = append(s.Environ(), "FALAJ_URL="+s.URL, "FALAJ_TOKEN="+s.token())
	var b bytes.Buffer
	cmd.Stdout, cmd.Stderr = &b, &b
	if err := cmd.Start(); err != nil {
		return func() (string, int) { return err.Error(), -1 }
	}
	return func() (string, int) {
		_ = cmd.Wait() // its exit code says it
		return b.String(), cmd.ProcessState.ExitCode()
	}
}

// LogTail is the end of everything that the server said, in all its lives.
func (s *Server) LogTail(n int) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	text := s.log.String()
	return text[max(0, len(text)-n):]
}

type logWriter struct{ s *Server }

func (w logWriter) Write(b []byte) (int, error) {
	w.s.mu.Lock()
	defer w.s.mu.Unlock()
	return w.s.log.Write(b)
}

var _ io.Writer = logWriter{}
