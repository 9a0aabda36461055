package local

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/falaj-ml/falaj/internal/compute/engine"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/sandbox"
	"github.com/falaj-ml/falaj/internal/sandbox/shim"
	"github.com/falaj-ml/falaj/internal/worker/launch"
	"github.com/falaj-ml/falaj/internal/worker/protocol"
)

// A gang on this machine is one sandbox: its program is the supervisor
// `falaj-worker gang`, which starts the workers, tells them of each other, and
// ends all when one fails. They share the sandbox's network and its limits,
// which are those of all workers together; each is bound to cores of its own.
//
// What the supervisor reports of the workers is written in the sandbox, by the
// user of the workers: it is shown to people, and decides nothing.

const (
	gangDir    = "gang"
	gangSpec   = "gang.json"
	gangReport = "members.json"

	defaultGrace = 30 * time.Second // as the shim's

	maxReport  = 8 << 20
	maxMembers = 1024 // of a gang on one machine
	nodeName   = "local"
)

// supervised reports whether a workload needs the supervisor: a gang does, and a
// program with secrets, which the supervisor fetches and masks in its output.
func supervised(s engine.Spec) bool {
	f := s.Launch.Framework
	return s.Secrets || s.Workers > 1 || s.Launch.Processes > 1 || len(s.Launch.Roles) > 0 || f != "" && f != launch.Plain
}

// gangOf describes the gang of a spec. cores are those of each worker, devices
// the variables that show each its accelerators; both may be empty.
func gangOf(s engine.Spec, dir string, cores [][]int, devices []map[string]string) protocol.Gang {
	g := protocol.Gang{Launch: s.Launch, Dir: s.Dir, Grace: s.Grace, Secrets: s.Secrets, Report: filepath.Join(dir, gangReport)}
	if g.Grace <= 0 {
		g.Grace = defaultGrace
	}
	if len(g.Launch.Command) == 0 {
		g.Launch.Command = s.Command
	}
	if g.Launch.Run == "" {
		g.Launch.Run = s.ID
	}
	for i := range s.Size() {
		m := protocol.GangMember{Env: map[string]string{}}
		env := s.Env
		if r, _, ok := s.Launch.Role(i); ok && len(r.Env) > 0 {
			env = maps.Clone(s.Env)
			maps.Copy(env, r.Env)
		}
		if i < len(cores) {
			m.CPUs = cores[i]
		}
		if i < len(devices) {
			maps.Copy(m.Env, devices[i])
		}
		for _, mount := range s.Mounts {
			if mount.Role == engine.Scratch {
				moved(m.Env, env, mount.Path, scratchOf(mount.Path, i))
			}
		}
		g.Members = append(g.Members, m)
	}
	return g
}

// scratchOf is a worker's part of a scratch directory.
func scratchOf(path string, index int) string {
	return filepath.Join(path, "worker-"+strconv.Itoa(index))
}

// moved sets the variables that lead to a path to another.
func moved(env, from map[string]string, path, to string) {
	for name, v := range from {
		if rest, ok := strings.CutPrefix(v, path); ok && (rest == "" || rest[0] == '/') {
			env[name] = to + rest
		}
	}
}

// supervise is the program of a gang and what it needs to see.
func (d *Driver) supervise(id string) ([]string, []sandbox.Mount) {
	dir := filepath.Join(d.c.Dir, id, gangDir)
	return []string{d.c.Worker, "gang", "--spec", filepath.Join(dir, gangSpec)}, []sandbox.Mount{{Path: dir, Writable: true}, {Path: d.c.Worker}}
}

// place writes the gang into the workload's directory.
func place(dir string, g protocol.Gang, mounts []engine.Mount) error {
	path := filepath.Join(dir, gangDir)
	if err := os.Mkdir(path, 0o700); err != nil {
		return err
	}
	for _, m := range mounts {
		if m.Role != engine.Scratch {
			continue
		}
		for i := range g.Members {
			if err := os.Mkdir(scratchOf(m.Path, i), 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
				return err
			}
		}
	}
	return shim.Write(path, gangSpec, g)
}

// Members tells what is known of each worker.
func (d *Driver) Members(ctx context.Context, h engine.Handle) ([]engine.Member, error) {
	w, err := d.find(h)
	if err != nil {
		return nil, err
	}
	if !w.extras.Gang {
		return []engine.Member{d.single(ctx, w)}, nil
	}
	reported, err := readReport(filepath.Join(w.dir, gangDir))
	if err != nil {
		return nil, fault.Wrap(err, "reading what the supervisor of %s reports", h)
	}
	if w.over() {
		// The supervisor's last word may be from before it was killed.
		st := w.status()
		for i := range reported {
			if m := &reported[i]; m.State != engine.Ended {
				m.State, m.Reason, m.ExitCode, m.Signal, m.Ended = st.State, st.Reason, st.ExitCode, st.Signal, st.Ended
			}
			reported[i].Usage = engine.Usage{}
		}
	}
	for i := range reported {
		reported[i].Node, reported[i].Usage.Accelerators = nodeName, nil
		if reported[i].State == engine.Running {
			reported[i].Usage.Accelerators = d.accelerators(w, i)
			reported[i].Usage.NoNetwork = true // all have one
		}
	}
	return reported, nil
}

// readReport reads the supervisor's report; none when it has written none yet.
// Writers of this directory are not trusted: only regular files are opened.
func readReport(dir string) ([]engine.Member, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	f, err := root.OpenFile(gangReport, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, errors.Join(err, fault.New(fault.Invalid, "it is not a regular file"))
	}
	b, err := io.ReadAll(io.LimitReader(f, maxReport+1))
	if err != nil {
		return nil, err
	}
	return parseReport(b)
}

// parseReport decodes a report; what makes no sense in it is an error.
func parseReport(b []byte) ([]engine.Member, error) {
	if len(b) > maxReport {
		return nil, fault.New(fault.TooLarge, "it has more than %d bytes", maxReport)
	}
	var all []engine.Member
	if err := json.Unmarshal(b, &all); err != nil {
		return nil, fault.New(fault.Invalid, "it is not a list of workers: %w", err)
	}
	if len(all) > maxMembers {
		return nil, fault.New(fault.TooLarge, "it lists %d workers", len(all))
	}
	for i := range all {
		m := &all[i]
		known := slices.Contains([]engine.State{engine.Pending, engine.Running, engine.Ended, engine.Lost}, m.State)
		if m.Index != i || !known || m.CPU < 0 || m.PeakRSS < 0 || len(m.Message) > 4096 || len(m.Signal) > 20 || len(m.Reason) > 20 {
			return nil, fault.New(fault.Invalid, "the record of worker %d is invalid", i)
		}
		m.Notes = nil // what is in its way is for us to say
	}
	return all, nil
}

// single describes a workload that has one worker.
func (d *Driver) single(ctx context.Context, w *workload) engine.Member {
	st := w.status()
	m := engine.Member{
		Node: nodeName, State: st.State, Reason: st.Reason, ExitCode: st.ExitCode, Signal: st.Signal, Message: st.Message,
		Started: st.Started, Ended: st.Ended, CPU: st.CPU, PeakRSS: st.PeakRSS,
	}
	if st.State != engine.Running {
		return m
	}
	if w.damaged != nil {
		m.Notes = []string{w.unknown()}
	}
	if u, ok := w.usage(ctx); ok {
		m.Usage, m.CPU, m.PeakRSS = u.Usage, max(m.CPU, u.cpu), max(m.PeakRSS, u.Memory)
		m.Heard = time.Now()
		m.Usage.Accelerators = d.accelerators(w, 0)
	}
	w.diskUse(&m.Usage)
	return m
}

var _ engine.Members = (*Driver)(nil)

// checkGang refuses what one sandbox cannot be.
func checkGang(s engine.Spec) error {
	if s.Workers < 0 || s.Workers > maxMembers {
		return fault.New(fault.Invalid, "workload %s has %d workers; this machine's engine runs at most %d", s.ID, s.Workers, maxMembers)
	}
	for _, n := range s.Nodes {
		if n != nodeName && n != s.Nodes[0] {
			return fault.New(fault.Invalid, "workload %s is placed on several nodes, and this engine has one", s.ID).
				WithHint("List one node in the pool, or give the pool another engine.")
		}
	}
	if _, err := plan(s, firstPort); err != nil {
		return fault.New(fault.Invalid, "workload %s: %s", s.ID, fmt.Sprint(err))
	}
	return nil
}

// firstPort is where the workers of a gang meet that has a network of its own.
const firstPort = 29500

// plan is what the first worker of a spec runs.
func plan(s engine.Spec, port int) (launch.Process, error) {
	g := s.Launch
	if len(g.Command) == 0 {
		g.Command = s.Command
	}
	roster := make([]launch.Peer, s.Size())
	for i := range roster {
		roster[i] = launch.Peer{Index: i, Node: nodeName, Address: "127.0.0.1", Port: port + i}
	}
	return launch.Plan(g, roster, 0)
}

// alone adds to env how a worker without others finds itself, so that the same
// program runs alone and in a gang.
func alone(s engine.Spec, level sandbox.Level, env map[string]string) error {
	if supervised(s) || s.Launch.Framework == "" && len(s.Launch.Command) == 0 {
		return nil
	}
	port := firstPort
	if level < sandbox.Sandbox { // the network is the machine's
		l, err := new(net.ListenConfig).Listen(context.Background(), "tcp", "127.0.0.1:0")
		if err != nil {
			return fault.Wrap(err, "finding a free port")
		}
		port = l.Addr().(*net.TCPAddr).Port
		if err := l.Close(); err != nil {
			return err
		}
	}
	p, err := plan(s, port)
	if err != nil {
		return err
	}
	for name, v := range p.Env {
		if _, given := env[name]; !given {
			env[name] = v
		}
	}
	return nil
}
