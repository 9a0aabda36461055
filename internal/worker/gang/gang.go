// Package gang is `falaj-worker gang`: all workers of a gang on one machine, as
// children of one supervisor inside the gang's sandbox.
//
// Each line of a worker's output has "[i] " before it, where there are several. When one fails, or the
// supervisor is asked to stop, the others get SIGTERM, the grace, and SIGKILL;
// those that serve get it when all others have ended.
// The supervisor leaves with the exit code of the worker that explains the end.
package gang

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/worker/agent"
	"github.com/falaj-ml/falaj/internal/worker/launch"
	"github.com/falaj-ml/falaj/internal/worker/protocol"
	"github.com/falaj-ml/falaj/internal/worker/secret"
	"github.com/falaj-ml/falaj/internal/worker/tree"
)

// Mode is the first argument of falaj-worker.
const Mode = "gang"

const (
	sampleEvery = 2 * time.Second
	maxSpec     = 16 << 20
)

// worker is one member.
type worker struct {
	index   int
	tree    *tree.Tree
	started time.Time
	ended   time.Time
	told    bool // to stop, before it had ended
	served  bool // until all others had ended: how it ends says nothing
	copied  chan struct{}
	peak    int64
	cpu     time.Duration
	usage   protocol.Usage
	exit    tree.Exit
}

// gang is one run of the program.
type gang struct {
	spec   protocol.Gang
	out    *lines
	mask   *secret.Mask
	remove func() // deletes the files of secrets

	mu      sync.Mutex
	workers []*worker
}

// Read reads a spec: a file's, or standard input's for "-".
func Read(path string, stdin io.Reader) (protocol.Gang, error) {
	var g protocol.Gang
	r := stdin
	if path != "-" {
		f, err := os.Open(path)
		if err != nil {
			return g, err
		}
		defer f.Close()
		r = f
	}
	b, err := io.ReadAll(io.LimitReader(r, maxSpec))
	if err != nil {
		return g, err
	}
	return Parse(b)
}

// Parse reads a spec and refuses one that makes no sense.
func Parse(b []byte) (protocol.Gang, error) {
	var g protocol.Gang
	if err := json.Unmarshal(b, &g); err != nil {
		return g, fault.New(fault.Invalid, "the gang is not valid JSON: %w", err)
	}
	switch {
	case len(g.Members) == 0 || len(g.Members) > launch.MaxWorkers:
		return g, fault.New(fault.Invalid, "a gang of %d is not between 1 and %d", len(g.Members), launch.MaxWorkers)
	case g.Grace < 0:
		return g, fault.New(fault.Invalid, "the grace is negative")
	}
	return g, nil
}

// Run runs a gang to its end and returns the exit code.
func Run(spec protocol.Gang, environ []string, stdout io.Writer) (int, error) {
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	defer signal.Stop(signals)
	g := &gang{spec: spec, out: &lines{w: stdout, alone: single(spec)}, remove: func() {}}
	defer func() { g.remove() }()
	if err := g.start(environ); err != nil {
		g.end(0)
		return 0, err
	}
	g.watch(signals)
	return g.code(), nil
}

// single reports a program that is no gang: it has the supervisor for its secrets.
func single(s protocol.Gang) bool {
	f := s.Launch.Framework
	return len(s.Members) == 1 && s.Launch.Processes <= 1 && len(s.Launch.Roles) == 0 && (f == "" || f == launch.Plain)
}

// plan is what a member runs.
func plan(s protocol.Gang, roster []launch.Peer, index int) (launch.Process, error) {
	if single(s) {
		return launch.Process{Argv: s.Launch.Command}, nil
	}
	return launch.Plan(s.Launch, roster, index)
}

// start starts all members.
func (g *gang) start(environ []string) error {
	roster, err := roster(len(g.spec.Members), max(g.spec.Launch.Processes, 1))
	if err != nil {
		return err
	}
	own := map[string]string{}
	for _, v := range environ {
		name, value, _ := strings.Cut(v, "=")
		own[name] = value
	}
	if g.spec.Secrets {
		set, err := secret.Fetch(context.Background(), own)
		if err != nil {
			return err
		}
		if g.remove, err = set.Place(own); err != nil {
			return err
		}
		g.mask = secret.NewMask(set.Values())
	}
	for i, m := range g.spec.Members {
		p, err := plan(g.spec, roster, i)
		if err != nil {
			return fault.New(fault.Invalid, "%w", err)
		}
		env := maps.Clone(own)
		agent.Overlay(env, p.Env)
		maps.Copy(env, m.Env)
		w := &worker{index: i, copied: make(chan struct{}), started: time.Now()}
		r, out, err := os.Pipe()
		if err != nil {
			return err
		}
		var vars []string
		for name, v := range env {
			vars = append(vars, name+"="+v)
		}
		slices.Sort(vars)
		w.tree, err = tree.Start(tree.Program{Argv: p.Argv, Env: vars, Dir: g.spec.Dir, CPUs: m.CPUs, Nodes: m.Nodes, Output: out})
		_ = out.Close()
		if err != nil {
			_ = r.Close()
			return err
		}
		go func() {
			defer close(w.copied)
			defer r.Close()
			g.out.copy(i, g.mask.Reader(r))
		}()
		g.mu.Lock()
		g.workers = append(g.workers, w)
		g.mu.Unlock()
	}
	return nil
}

// roster is all members on this machine, each with a free port.
func roster(n, slots int) ([]launch.Peer, error) {
	host, _ := os.Hostname()
	out := make([]launch.Peer, n)
	listeners := make([]net.Listener, 0, n) // held together, so that no two are the same
	defer func() {
		for _, l := range listeners {
			_ = l.Close()
		}
	}()
	for i := range out {
		l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // Nothing to wait for.
		if err != nil {
			return nil, fault.Wrap(err, "finding a free port")
		}
		listeners = append(listeners, l)
		out[i] = launch.Peer{Index: i, Node: host, Address: "127.0.0.1", Port: l.Addr().(*net.TCPAddr).Port, Slots: slots, Interface: "lo"}
	}
	return out, nil
}

// watch returns when all members have ended.
func (g *gang) watch(signals <-chan os.Signal) {
	ends := make(chan *worker)
	for _, w := range g.workers {
		go func() {
			<-w.tree.Done()
			<-w.copied
			ends <- w
		}()
	}
	tick := time.NewTicker(sampleEvery)
	defer tick.Stop()
	g.report(true)
	for left := len(g.workers); left > 0; {
		select {
		case w := <-ends:
			left--
			g.mu.Lock()
			w.ended, w.exit = time.Now(), w.tree.Exit()
			failed := w.exit.Failed != "" || w.exit.Code != 0 || w.exit.Signal != 0
			g.mu.Unlock()
			if failed && !w.served && left > 0 {
				g.end(g.spec.Grace)
			}
			g.dismiss()
			g.report(false)
		case <-signals:
			g.end(g.spec.Grace)
		case <-tick.C:
			g.report(true)
		}
	}
}

// dismiss stops those that serve, once all others have ended well.
func (g *gang) dismiss() {
	g.mu.Lock()
	for _, w := range g.workers {
		if !g.spec.Launch.Serves(w.index) && (w.ended.IsZero() || w.gravity() > 0) {
			g.mu.Unlock()
			return
		}
	}
	for _, w := range g.workers {
		w.served = g.spec.Launch.Serves(w.index) && (w.served || w.ended.IsZero())
	}
	g.mu.Unlock()
	g.end(g.spec.Grace)
}

// end stops those that run.
func (g *gang) end(grace time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, w := range g.workers {
		if w.told || !w.ended.IsZero() {
			continue
		}
		w.told = true
		if grace <= 0 {
			w.tree.Kill()
			continue
		}
		w.tree.Terminate()
		time.AfterFunc(grace, w.tree.Kill)
	}
}

// tempFail is EX_TEMPFAIL of sysexits.h: "saved, run me again".
const tempFail = 75

// gravity orders ends by how much they explain of the others'. Of those that were told to
// stop, one that saved speaks for the gang, and only a gang whose members all end with 0
// ends with it.
func (w *worker) gravity() int {
	switch e := w.exit; {
	case w.served:
		return 0
	case e.Failed != "":
		return 5
	case e.Signal == 0 && e.Code == 0:
		return 0
	case w.told && e.Signal == 0 && e.Code == tempFail:
		return 2
	case w.told:
		return 1
	case e.Signal != 0:
		return 4
	}
	return 3
}

// code is the exit code of the member that explains the end, the first of equal ones. When
// all others have ended with 0, the ends of those that serve say nothing.
func (g *gang) code() int {
	done := !slices.ContainsFunc(g.workers, func(w *worker) bool { return !g.spec.Launch.Serves(w.index) && w.gravity() > 0 })
	worst := g.workers[0]
	for _, w := range g.workers {
		w.served = w.served || done && w.told && g.spec.Launch.Serves(w.index)
		if w.gravity() > worst.gravity() || w.gravity() == worst.gravity() && w.ended.Before(worst.ended) && !w.told {
			worst = w
		}
	}
	switch e := worst.exit; {
	case worst.gravity() == 0:
		return 0
	case e.Failed != "":
		g.out.copy(worst.index, strings.NewReader(e.Failed+"\n"))
		return 127
	case e.Signal != 0:
		return 128 + int(e.Signal)
	default:
		return e.Code
	}
}

// report writes what is known of the members.
func (g *gang) report(sample bool) {
	if g.spec.Report == "" {
		return
	}
	g.mu.Lock()
	all := make([]protocol.Member, 0, len(g.workers))
	for _, w := range g.workers {
		all = append(all, w.member(sample))
	}
	g.mu.Unlock()
	b, err := json.Marshal(all)
	if err != nil {
		return
	}
	tmp := filepath.Join(filepath.Dir(g.spec.Report), "."+filepath.Base(g.spec.Report)+".tmp")
	if os.WriteFile(tmp, b, 0o644) == nil { //nolint:gosec // Whoever started the gang is another user.
		_ = os.Rename(tmp, g.spec.Report)
	}
}

func (w *worker) member(sample bool) protocol.Member {
	m := protocol.Member{Index: w.index, State: "running", Started: w.started.UTC(), Heard: time.Now().UTC()}
	if w.ended.IsZero() {
		if sample {
			u := w.tree.Usage()
			w.usage = protocol.Usage{Memory: u.RSS}
			if w.cpu > 0 {
				w.usage.CPU = max(u.CPU-w.cpu, 0).Seconds() / sampleEvery.Seconds()
			}
			w.cpu, w.peak = max(u.CPU, w.cpu), max(w.peak, u.RSS)
		}
		m.CPU, m.PeakRSS, m.Usage = w.cpu, w.peak, w.usage
		return m
	}
	e := w.exit
	m.State, m.Ended, m.CPU, m.PeakRSS, m.ExitCode, m.Reason = "ended", w.ended.UTC(), e.CPU, max(w.peak, e.RSS), e.Code, "exited"
	switch {
	case e.Failed != "":
		m.Reason, m.Message, m.ExitCode = "not_started", e.Failed, -1
	case w.told:
		m.Reason = "stopped"
	case e.Signal != 0:
		m.Reason = "signalled"
	}
	if e.Signal != 0 {
		m.Signal, m.ExitCode = unix.SignalName(e.Signal), -1
	}
	return m
}

// lines writes whole lines of several members.
type lines struct {
	mu    sync.Mutex
	w     io.Writer
	alone bool // one member: its lines are not numbered
}

func (l *lines) write(text []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, _ = l.w.Write(text)
}

// copy passes one member's output on; a line that does not end is cut.
func (l *lines) copy(index int, r io.Reader) {
	if l.alone {
		_, _ = io.Copy(l.w, r)
		return
	}
	b := make([]byte, protocol.MaxLine)
	var text []byte
	for n := 0; ; {
		m, err := r.Read(b[n:])
		n += m
		var taken int
		text, taken = protocol.Numbered(text[:0], index, b[:n], err != nil)
		if len(text) > 0 {
			l.write(text)
		}
		n = copy(b, b[taken:n])
		if err != nil {
			return
		}
	}
}

var errNoSpec = errors.New("usage: falaj-worker gang --spec PATH|-")

// Main is the mode: args are what follows "gang".
func Main(args, environ []string, stdin io.Reader, stdout, stderr io.Writer) int {
	var path string
	switch {
	case len(args) == 2 && args[0] == "--spec":
		path = args[1]
	case len(args) == 1 && !strings.HasPrefix(args[0], "--"):
		path = args[0]
	default:
		fmt.Fprintln(stderr, errNoSpec)
		return 2
	}
	spec, err := Read(path, stdin)
	if err == nil {
		var code int
		if code, err = Run(spec, environ, stdout); err == nil {
			return code
		}
	}
	fmt.Fprintln(stderr, "falaj-worker gang:", err)
	return 1
}
