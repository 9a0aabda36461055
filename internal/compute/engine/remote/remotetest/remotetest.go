// Package remotetest gives tests of engines the server's side of the agents'
// routes, and Processes, a Launcher whose nodes are processes of this machine.
package remotetest

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/compute/engine"
	"github.com/falaj-ml/falaj/internal/compute/engine/remote"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/sandbox/shim"
	"github.com/falaj-ml/falaj/internal/worker/protocol"
)

// Server answers the agents' routes from one hub after another, as a restarted
// Falaj does. Without a hub it is away.
type Server struct {
	*httptest.Server

	mu     sync.Mutex
	hub    *remote.Hub
	before func(r *http.Request) error
}

// Serve serves on an address, or on loopback where that is empty, until the test
// ends.
func Serve(tb testing.TB, address string) *Server {
	tb.Helper()
	s := &Server{}
	s.Server = httptest.NewUnstartedServer(s.handler())
	if address != "" {
		l, err := new(net.ListenConfig).Listen(tb.Context(), "tcp", address)
		if err != nil {
			tb.Fatal(err)
		}
		_ = s.Listener.Close()
		s.Listener = l
	}
	s.Start()
	tb.Cleanup(func() {
		s.CloseClientConnections()
		s.Close()
	})
	return s
}

// Use makes a driver's hub the one that answers; nil is none.
func (s *Server) Use(d *remote.Driver) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hub = nil
	if d != nil {
		s.hub = d.Hub()
	}
}

// Before is asked before each request; its error is the answer.
func (s *Server) Before(f func(r *http.Request) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.before = f
}

func (s *Server) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/api/v1/projects/{project}/workloads/{workload}/worker/{rest...}", func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		hub, before := s.hub, s.before
		s.mu.Unlock()
		err := error(fault.New(fault.Unavailable, "the server is away"))
		if hub != nil {
			err = nil
		}
		if err == nil && before != nil {
			err = before(r)
		}
		if err == nil {
			err = hub.Serve(w, r, r.PathValue("workload"), r.PathValue("rest"))
		}
		if err == nil {
			return
		}
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(http.StatusTeapot) // agents read the kind
		_ = json.NewEncoder(w).Encode(protocol.Problem{Kind: fault.KindOf(err).String(), Detail: err.Error(), Hint: fault.HintOf(err)})
	})
	return mux
}

// Processes is a Launcher that starts agents as processes of this machine. What
// it knows is in Dir: another Processes with the same directory finds it again.
type Processes struct {
	Dir    string // made
	Worker string // falaj-worker
	// Env is added to the agents' environment.
	Env []string

	mu sync.Mutex
}

// launched is what is known of a launch.
type launched struct {
	Agents []shim.Process `json:"agents"`
}

func (p *Processes) file(id string) string { return filepath.Join(p.Dir, id+".json") }

// Start implements remote.Launcher.
func (p *Processes) Start(_ context.Context, l remote.Launch) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, err := p.read(l.ID); err == nil {
		return nil
	}
	if err := os.MkdirAll(p.Dir, 0o700); err != nil {
		return err
	}
	var x launched
	for i := range l.Workers {
		cmd := exec.CommandContext(context.Background(), p.Worker, "agent")
		cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), protocol.EnvIndex + "=" + strconv.Itoa(i), protocol.EnvNode + "=node-" + strconv.Itoa(i)}, p.Env...) //nolint:forbidigo // A test's own.
		for k, v := range l.Agent {
			cmd.Env = append(cmd.Env, k+"="+v)
		}
		log, err := os.OpenFile(filepath.Join(p.Dir, l.ID+"-"+strconv.Itoa(i)+".log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
		if err != nil {
			return err
		}
		cmd.Stdout, cmd.Stderr = log, log
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		err = cmd.Start()
		_ = log.Close()
		if err != nil {
			return err
		}
		process, err := shim.ProcessOf(cmd.Process.Pid)
		if err != nil {
			process = shim.Process{PID: cmd.Process.Pid} // it has ended
		}
		x.Agents = append(x.Agents, process)
		go func() { _ = cmd.Wait() }()
	}
	return shim.Write(p.Dir, l.ID+".json", x)
}

func (p *Processes) read(id string) (launched, error) {
	return shim.Read[launched](p.Dir, id+".json")
}

// Observe implements remote.Launcher.
func (p *Processes) Observe(_ context.Context, ids []string) (map[string]remote.Observed, error) {
	out := map[string]remote.Observed{}
	for _, id := range ids {
		x, err := p.read(id)
		if err != nil {
			out[id] = remote.Observed{State: engine.Lost}
			continue
		}
		o := remote.Observed{State: engine.Ended, Message: "its processes are gone"}
		for i, a := range x.Agents {
			o.Nodes = append(o.Nodes, "node-"+strconv.Itoa(i))
			if a.Alive() {
				o.State, o.Message = engine.Running, ""
			}
		}
		out[id] = o
	}
	return out, nil
}

// Stop implements remote.Launcher.
func (p *Processes) Stop(_ context.Context, id string, grace time.Duration) error {
	x, err := p.read(id)
	if err != nil {
		return fault.New(fault.NotFound, "there is no launch %s", id)
	}
	for _, a := range x.Agents {
		_ = a.Signal(syscall.SIGTERM)
		time.AfterFunc(grace, func() { _ = a.Signal(syscall.SIGKILL) })
	}
	return nil
}

// Kill kills some agents of a launch without a word; without indexes, all.
func (p *Processes) Kill(tb testing.TB, id string, indexes ...int) {
	tb.Helper()
	x, err := p.read(id)
	if err != nil {
		tb.Fatal(err)
	}
	for i, a := range x.Agents {
		if len(indexes) > 0 && i != indexes[0] {
			continue
		}
		if err := a.Signal(syscall.SIGKILL); err != nil && !errors.Is(err, os.ErrProcessDone) {
			tb.Fatal(err)
		}
	}
}

// Output is what the agents of a launch wrote for people.
func (p *Processes) Output(id string) string {
	var all strings.Builder
	logs, _ := filepath.Glob(filepath.Join(p.Dir, id+"-*.log"))
	for _, l := range logs {
		b, _ := os.ReadFile(l)
		all.Write(b)
	}
	return all.String()
}

// List implements remote.Launcher.
func (p *Processes) List(context.Context) ([]string, error) {
	files, err := filepath.Glob(filepath.Join(p.Dir, "*.json"))
	if err != nil {
		return nil, err
	}
	var ids []string
	for _, f := range files {
		ids = append(ids, strings.TrimSuffix(filepath.Base(f), ".json"))
	}
	return ids, nil
}

// Forget implements remote.Launcher.
func (p *Processes) Forget(_ context.Context, id string) error {
	err := os.Remove(p.file(id))
	if errors.Is(err, fs.ErrNotExist) {
		return fault.New(fault.NotFound, "there is no launch %s", id)
	}
	return err
}

var _ remote.Launcher = (*Processes)(nil)
