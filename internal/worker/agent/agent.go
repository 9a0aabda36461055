// Package agent is `falaj-worker agent`: one worker of a workload on a node of
// another machine. It joins the gang at the server, fetches what the worker
// needs, runs it, and brings back what it says, saves and leaves.
//
// Parts: client.go (talks to the server), fetch.go and venv.go (what the worker
// needs), output.go (what it says), send.go (what it saves and leaves), usage.go
// (what it uses), look.go (what it does, when somebody asks), wanted.go (what it has written
// so far, when somebody asks), proxy.go (Falaj's
// API for the worker), end.go (how it ended).
//
// The server may be away for as long as the lease: the worker goes on, its output
// waits on disk. After that the agent stops it, checkpoint first, because the
// server counts it as lost. Standard library only; nothing of the agent's own
// environment reaches the worker but what the order lets in.
package agent

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/worker/launch"
	"github.com/falaj-ml/falaj/internal/worker/protocol"
	"github.com/falaj-ml/falaj/internal/worker/secret"
	"github.com/falaj-ml/falaj/internal/worker/tree"
)

// Mode is the first argument of falaj-worker.
const Mode = "agent"

const (
	beatEvery    = 2 * time.Second
	defaultLease = 5 * time.Minute
	defaultGrace = 30 * time.Second
)

// agent is one run of the program.
type agent struct {
	env    map[string]string // its own
	stderr io.Writer         // for people who read the engine's own log
	c      *client
	index  int
	order  protocol.Order
	dir    string // this one's
	began  time.Time
	out    *output
	mask   *secret.Mask // of the output
	places []place      // of the mounts, by number
	// locks are held as long as the process lives. The collector closes files
	// that nothing refers to, and with them goes the lock.
	locks []*os.File

	mu      sync.Mutex
	phase   protocol.Phase
	halted  *halt
	halting chan struct{} // closed at the first halt
	killing chan struct{} // closed when its grace has passed
	timer   *time.Timer
	started time.Time
	tree    *tree.Tree
	peak    int64
	notes   map[string]string
	sender  *sender
}

// halt is why the worker is to stop.
type halt struct {
	reason string
	why    string
	until  time.Time // when it is killed
}

// Run is the program; environ its environment. It returns 0 when the server
// knows how the worker ended, so that the engine does nothing by itself. Else it
// returns the worker's exit code, 128 and the signal's number for one that was
// killed (also of an agent that was stopped before there was a worker), or 1 when
// there was no worker to run.
func Run(environ []string, stderr io.Writer) int {
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	a := &agent{
		env: map[string]string{}, stderr: stderr, phase: protocol.Fetching,
		halting: make(chan struct{}), killing: make(chan struct{}), notes: map[string]string{},
	}
	for _, v := range environ {
		name, value, _ := strings.Cut(v, "=")
		a.env[name] = value
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		for s := range signals {
			a.halt("stopped", "its engine sent "+unix.SignalName(s.(syscall.Signal)), a.grace())
		}
	}()
	code, err := a.run(ctx)
	if err != nil {
		a.say("%v", err)
		if hint := fault.HintOf(err); hint != "" {
			a.say("%s", hint)
		}
		return 1
	}
	return code
}

func (a *agent) run(ctx context.Context) (int, error) {
	// 1. Who we are and where the server is.
	index, err := strconv.Atoi(a.env[protocol.EnvIndex])
	if err != nil || index < 0 {
		return 0, fault.New(fault.Invalid, "%s is %q, not the number of a worker", protocol.EnvIndex, a.env[protocol.EnvIndex])
	}
	if s := a.env[protocol.EnvFirst]; s != "" {
		first, err := strconv.Atoi(s)
		if err != nil || first < 0 {
			return 0, fault.New(fault.Invalid, "%s is %q, not the number of a worker", protocol.EnvFirst, s)
		}
		index += first
	}
	a.index = index
	lease := defaultLease
	if s := a.env[protocol.EnvLease]; s != "" {
		if lease, err = time.ParseDuration(s); err != nil {
			return 0, fault.New(fault.Invalid, "%s: %w", protocol.EnvLease, err)
		}
	}
	if a.c, err = newClient(a.env[protocol.EnvURL], a.env[protocol.EnvToken], a.env[protocol.EnvCA], index, rand.Text(), lease); err != nil {
		return 0, err
	}

	// 2. Join; the answer says what to run.
	port, err := a.join(ctx)
	select {
	case <-a.halting: // by the engine: it is as if it had been killed
		if err != nil {
			a.say("stopped before it had joined: %v", err)
			return 128 + int(syscall.SIGTERM), nil
		}
	default:
	}
	if err != nil {
		return 0, err
	}

	// 3. Run it, telling the server that we are there.
	beating, stop := context.WithCancel(ctx)
	var beats sync.WaitGroup
	beats.Go(func() { a.beat(beating) })
	end := a.work(ctx, port)

	// 4. Bring back what it left, and tell how it ended.
	a.enter(protocol.Returning)
	end, told := a.finish(ctx, end)
	stop()
	beats.Wait()
	if told {
		return 0, nil
	}
	return code(end), nil
}

// join takes part in the gang. The listener holds the port that the others were
// told until the worker takes it.
func (a *agent) join(ctx context.Context) (net.Listener, error) {
	address, iface := a.address(ctx)
	port, err := new(net.ListenConfig).Listen(ctx, "tcp", net.JoinHostPort(address, "0"))
	if err != nil { // an address that others reach us at and that is not our own
		if port, err = new(net.ListenConfig).Listen(ctx, "tcp", ":0"); err != nil {
			return nil, fault.Wrap(err, "finding a free port")
		}
	}
	node := a.env[protocol.EnvNode]
	if node == "" {
		node, _ = os.Hostname()
	}
	j := protocol.Join{
		Version: protocol.Version, Index: a.index, Start: a.c.start, Node: node, Address: address, Interface: iface,
		Port: port.Addr().(*net.TCPAddr).Port, PID: os.Getpid(), Facts: facts(ctx),
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-a.halting:
			cancel()
		case <-ctx.Done():
		}
	}()
	for {
		var order protocol.Order
		var waiting protocol.Waiting
		var ordered bool
		err := a.c.retry(ctx, func(ctx context.Context) (err error) {
			ordered, err = a.c.join(ctx, j, &order, &waiting)
			return err
		})
		if err != nil {
			_ = port.Close()
			return nil, fault.Wrap(err, "joining")
		}
		if ordered {
			a.mu.Lock()
			a.order = order
			a.mu.Unlock()
			if order.Lease > 0 {
				a.c.setLease(order.Lease)
			}
			return port, nil
		}
	}
}

// address is where the others reach this node, and its interface.
func (a *agent) address(ctx context.Context) (address, iface string) {
	address = a.env[protocol.EnvAddr]
	if address == "" {
		// No packet is sent: the kernel says which address it would use.
		conn, err := new(net.Dialer).DialContext(ctx, "udp", a.c.host())
		if err != nil {
			return "127.0.0.1", "lo"
		}
		address = conn.LocalAddr().(*net.UDPAddr).IP.String()
		_ = conn.Close()
	}
	all, err := net.Interfaces()
	if err != nil {
		return address, ""
	}
	for _, i := range all {
		addrs, err := i.Addrs()
		if err != nil {
			continue
		}
		for _, n := range addrs {
			if ip, ok := n.(*net.IPNet); ok && ip.IP.String() == address {
				return address, i.Name
			}
		}
	}
	return address, ""
}

// work does all that is between the order and the worker's end.
func (a *agent) work(ctx context.Context, port net.Listener) protocol.End {
	defer port.Close()
	a.began = time.Now()
	fetching, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-a.halting:
			cancel()
		case <-fetching.Done():
		}
	}()
	p, err := a.prepare(fetching)
	if h := a.isHalted(); h != nil {
		return protocol.End{Reason: h.reason, ExitCode: -1, Message: h.why}
	}
	if err != nil {
		return protocol.End{Reason: "not_started", ExitCode: -1, Message: notStarted(err)}
	}
	if a.order.API {
		proxy, err := a.serve(ctx)
		if err != nil {
			return protocol.End{Reason: "not_started", ExitCode: -1, Message: err.Error()}
		}
		defer proxy.Close()
		url := "http://" + proxy.Addr().String()
		p.Env["FALAJ_URL"], p.Env["MLFLOW_TRACKING_URI"] = url, url
	}
	if a.order.Secrets {
		set, err := secret.Fetch(fetching, p.Env)
		remove := func() {}
		if err == nil {
			remove, err = set.Place(p.Env)
		}
		if err != nil {
			return protocol.End{Reason: "not_started", ExitCode: -1, Message: notStarted(err)}
		}
		defer remove()
		a.mask = secret.NewMask(set.Values())
	}
	_ = port.Close() // it is the worker's now
	return a.execute(ctx, p)
}

func notStarted(err error) string {
	if hint := fault.HintOf(err); hint != "" {
		return err.Error() + ". " + hint
	}
	return err.Error()
}

// prepare fetches what the worker needs, and says what to run.
func (a *agent) prepare(ctx context.Context) (launch.Process, error) {
	if err := a.makeDir(); err != nil {
		return launch.Process{}, err
	}
	var err error
	if a.out, err = newOutput(filepath.Join(a.dir, "output"), a.order.LogLimit); err != nil {
		return launch.Process{}, err
	}
	go a.out.send(context.WithoutCancel(ctx), a.c)
	if err := a.fetch(ctx); err != nil {
		return launch.Process{}, err
	}
	return a.plan()
}

// plan is what this worker runs, on this node.
func (a *agent) plan() (launch.Process, error) {
	move := mover(a.places)
	p := launch.Process{Env: map[string]string{}}
	for _, arg := range a.order.Command {
		p.Argv = append(p.Argv, move(arg))
	}
	for name, v := range a.order.Env {
		p.Env[name] = move(v)
	}
	for name, v := range a.env {
		if slices.ContainsFunc(a.order.Inherit, func(prefix string) bool { return strings.HasPrefix(name, prefix) }) {
			p.Env[name] = v
		}
	}
	a.keep(p.Env)
	s := a.order.Launch
	if s.Framework == "" && s.Processes <= 1 && len(a.order.Roster) <= 1 {
		return p, nil
	}
	if len(s.Command) == 0 {
		s.Command = a.order.Command
	}
	s.Command = slices.Clone(s.Command)
	for i, arg := range s.Command {
		s.Command[i] = move(arg)
	}
	s.Python = move(s.Python)
	s.Roles = slices.Clone(s.Roles)
	for i, r := range s.Roles {
		s.Roles[i].Command, s.Roles[i].Env = slices.Clone(r.Command), maps.Clone(r.Env)
		for k, arg := range r.Command {
			s.Roles[i].Command[k] = move(arg)
		}
		for name, v := range r.Env {
			s.Roles[i].Env[name] = move(v)
		}
	}
	planned, err := launch.Plan(s, a.order.Roster, a.index)
	if err != nil {
		return p, fault.New(fault.Invalid, "%w", err)
	}
	own := p.Env
	p = launch.Process{Argv: planned.Argv, Env: maps.Clone(own)}
	Overlay(p.Env, planned.Env)
	return p, nil
}

// keep hands variables of the node to the worker that the launcher names, such
// as those of site modules: paths go behind the order's own, others only where
// it has none.
func (a *agent) keep(env map[string]string) {
	for name := range strings.SplitSeq(a.env[protocol.EnvKeep], ",") {
		node, there := a.env[name]
		own, given := env[name]
		switch {
		case !there || name == "":
		case !given:
			env[name] = node
		case strings.HasSuffix(name, "PATH"):
			env[name] = own + ":" + node
		}
	}
}

// Overlay adds what launch.Plan gives to a worker's own environment.
func Overlay(own, planned map[string]string) {
	for name, v := range planned {
		if _, given := own[name]; given && strings.HasSuffix(name, "SOCKET_IFNAME") {
			continue
		}
		own[name] = v
	}
}

// execute runs the worker to its end.
func (a *agent) execute(ctx context.Context, p launch.Process) protocol.End {
	oom := newOOM()
	r, w, err := os.Pipe()
	if err != nil {
		return protocol.End{Reason: "not_started", ExitCode: -1, Message: err.Error()}
	}
	var env []string
	for name, v := range p.Env {
		env = append(env, name+"="+v)
	}
	slices.Sort(env)
	t, err := tree.Start(tree.Program{Argv: p.Argv, Env: env, Dir: mover(a.places)(a.order.Dir), Output: w})
	_ = w.Close()
	if err != nil {
		_ = r.Close()
		return protocol.End{Reason: "not_started", ExitCode: -1, Message: err.Error()}
	}
	copied := make(chan struct{})
	go func() {
		defer close(copied)
		defer r.Close()
		a.out.take(a.mask.Reader(r))
	}()
	a.mu.Lock()
	a.tree, a.started, a.phase = t, time.Now(), protocol.Running
	a.mu.Unlock()
	var timeout <-chan time.Time
	if a.order.Timeout > 0 {
		timer := time.NewTimer(a.order.Timeout)
		defer timer.Stop()
		timeout = timer.C
	}
	sending, stop := context.WithCancel(ctx)
	var sends sync.WaitGroup
	sends.Go(func() { a.sender.watch(sending) })
	halting, killing := a.halting, a.killing
	for ended := false; !ended; {
		select {
		case <-t.Done():
			ended = true
		case <-timeout:
			a.halt("timed_out", "did not finish in "+a.order.Timeout.String(), a.order.Grace)
		case <-halting:
			a.enter(protocol.Stopping)
			t.Terminate()
			halting = nil
		case <-killing:
			t.Kill()
			killing = nil
		}
	}
	<-copied
	stop()
	sends.Wait()
	return a.ended(t.Exit(), oom)
}

// halt asks the worker to stop; it is killed after the grace. The first reason
// counts, the shortest time, too.
func (a *agent) halt(reason, why string, grace time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	until := time.Now().Add(max(grace, 0))
	switch {
	case a.halted == nil:
		a.say("stopping: %s", why)
		a.halted = &halt{reason: reason, why: why, until: until}
		close(a.halting)
		a.timer = time.AfterFunc(max(grace, 0), sync.OnceFunc(func() { close(a.killing) }))
	case until.Before(a.halted.until):
		a.halted.until = until
		if a.timer.Stop() {
			a.timer.Reset(max(grace, 0))
		}
	}
}

func (a *agent) isHalted() *halt {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.halted
}

// grace is the order's; nothing before there is one.
func (a *agent) grace() time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.order.Grace
}

func (a *agent) enter(p protocol.Phase) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.phase = p
}

// say writes a line for people.
func (a *agent) say(format string, args ...any) {
	_, _ = fmt.Fprintf(a.stderr, "falaj-worker agent: "+format+"\n", args...)
}

// note says with the next beats what is in the way; empty words take it back.
func (a *agent) note(what, words string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if words == "" {
		delete(a.notes, what)
		return
	}
	if a.notes[what] != words {
		a.say("%s: %s", what, words)
	}
	a.notes[what] = words
}

// beat tells the server that we are there, and does what it says.
func (a *agent) beat(ctx context.Context) {
	var asked []string
	looks := looks{take: a.look}
	defer looks.end()
	searches := searches{find: a.find, under: map[string]context.CancelFunc{}}
	defer searches.end()
	u := newUsage()
	for next := time.NewTimer(0); ; {
		select {
		case <-ctx.Done():
			return
		case <-next.C:
		}
		b := protocol.Beat{Wait: beatEvery}
		a.mu.Lock()
		b.Phase = a.phase
		if a.halted != nil {
			b.Wait = 0
		}
		for _, what := range slices.Sorted(maps.Keys(a.notes)) {
			b.Notes = append(b.Notes, what+": "+a.notes[what])
		}
		t, s := a.tree, a.sender
		a.mu.Unlock()
		if t != nil {
			b.Usage, b.CPU = u.sample(ctx, t)
			a.mu.Lock()
			a.peak = max(a.peak, b.Usage.Memory)
			b.PeakRSS = a.peak
			a.mu.Unlock()
		}
		if s != nil {
			b.None = s.none(asked)
		}
		before := time.Now()
		told, err := a.c.beat(ctx, b)
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			asked = told.Asked
			if told.Stop {
				a.halt("stopped", told.Why, told.Grace)
			}
			looks.told(ctx, told.Profile)
			searches.told(ctx, told.Wanted)
		case !transient(err):
			a.halt("stopped", "the server no longer needs it: "+err.Error(), a.order.Grace)
		case a.c.away() > a.c.lease():
			a.halt("stopped", fmt.Sprintf("the server was not reached for %s: %v", a.c.lease(), err), a.order.Grace)
		}
		wait := beatEvery - time.Since(before)
		if err == nil && b.Wait > 0 && !told.Stop {
			wait = 0 // the server has held it back
		}
		next.Reset(max(wait, 50*time.Millisecond))
	}
}
