// Package slurmtest runs a real Slurm on this machine for tests: munged,
// slurmctld and a slurmd for each virtual node, as children of the caller, in a
// directory and on ports of their own. Several clusters stand beside each other;
// all of one ends with the caller, even with a killed one.
//
// A node is a slurmd in a PID namespace: Fail kills everything in it at once, as
// a power failure does. KillDaemon kills slurmd alone, which jobs survive.
//
// It needs root, and the packages slurmctld, slurmd, slurm-client and munge.
package slurmtest

import (
	"bytes"
	"context"
	_ "embed" // the configuration
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"text/template"
	"time"

	"golang.org/x/sys/unix"
)

// Install is the command that installs what a cluster needs.
const Install = "make engines"

// wait is the longest that anything here is waited for.
const wait = 2 * time.Minute

// Options of a Cluster.
type Options struct {
	Dir   string   // short, for sockets lie in it; a new one below the temporary directory when empty
	Nodes int      // n1, n2 …; 0 is 4
	Extra []string // lines for slurm.conf
	// Power has Slurm's power saving start and end the nodes, which are off at first.
	Power bool
}

// Cluster is a running Slurm.
type Cluster struct {
	Dir   string
	Conf  string // SLURM_CONF
	Nodes []string

	temporary bool
	power     chan struct{} // closed when nobody switches nodes any more; nil without power saving
	switching sync.WaitGroup
	mu        sync.Mutex
	daemons   map[string]*daemon // by name: munged, slurmctld, n1 …
}

// Absent says what is missing for a cluster here; empty is nothing.
func Absent() string {
	if os.Geteuid() != 0 {
		return "a test cluster of Slurm needs root"
	}
	for _, name := range []string{"munged", "slurmctld", "slurmd", "sbatch", "unshare"} {
		if _, err := program(name); err != nil {
			return name + " is not installed; run `" + Install + "`"
		}
	}
	return ""
}

// New starts a cluster for a test and ends it with the test. Without Slurm the
// test is skipped, and fails under CI.
func New(tb testing.TB, o Options) *Cluster {
	tb.Helper()
	if why := Absent(); why != "" {
		if os.Getenv("CI") == "true" { //nolint:forbidigo // The rule of every engine's tests.
			tb.Fatal(why)
		}
		tb.Skip(why)
	}
	c, err := Start(tb.Context(), o)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if tb.Failed() {
			tb.Logf("end of slurmctld's log:\n%s", c.Log("slurmctld"))
		}
		if err := c.Close(); err != nil {
			tb.Error(err)
		}
	})
	return c
}

// Start starts a cluster and returns when its nodes are idle.
func Start(ctx context.Context, o Options) (_ *Cluster, err error) {
	c := &Cluster{Dir: o.Dir, daemons: map[string]*daemon{}}
	if c.Dir == "" {
		if c.Dir, err = os.MkdirTemp("", "slurm"); err != nil {
			return nil, err
		}
		c.temporary = true
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("starting Slurm: %w\n%s", err, c.Log("slurmctld")), c.Close())
		}
	}()
	for i := range max(o.Nodes, 0) {
		c.Nodes = append(c.Nodes, "n"+strconv.Itoa(i+1))
	}
	if o.Nodes == 0 {
		c.Nodes = []string{"n1", "n2", "n3", "n4"}
	}
	if o.Power {
		if err := c.powerSaving(&o); err != nil {
			return nil, err
		}
		defer func() {
			if err == nil {
				err = c.switchOff(ctx)
			}
		}()
	}
	// Ports are free when they are drawn, and may be taken a moment later.
	for try := 0; ; try++ {
		if err = c.configure(o); err == nil {
			err = c.up(ctx)
		}
		if err == nil || try == 2 || ctx.Err() != nil {
			return c, err
		}
		c.stop()
	}
}

//go:embed slurm.conf.tmpl
var slurmConf string

var configuration = template.Must(template.New("slurm.conf").Parse(slurmConf))

// Worker puts a falaj-worker where the users of jobs can read it.
func (c *Cluster) Worker(tb testing.TB, program string) (path string) {
	tb.Helper()
	path = filepath.Join(c.Dir, "falaj-worker")
	text, err := os.ReadFile(program)
	if err == nil {
		err = os.WriteFile(path, text, 0o755) //nolint:gosec // They are others.
	}
	if err != nil {
		tb.Fatal(err)
	}
	return path
}

func (c *Cluster) configure(o Options) error {
	for _, sub := range append([]string{"etc", "state", "dev", "spool", "log"}, spools(c.Nodes)...) {
		if err := os.MkdirAll(filepath.Join(c.Dir, sub), 0o755); err != nil { //nolint:gosec // Users of jobs read it.
			return err
		}
	}
	if err := os.Chmod(c.Dir, 0o755); err != nil { //nolint:gosec // Users of jobs read the configuration.
		return err
	}
	for i := range 8 { // what stands for accelerators
		err := unix.Mknod(filepath.Join(c.Dir, "dev", "nvidia"+strconv.Itoa(i)), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))) //nolint:gosec // A small number.
		if err != nil && !errors.Is(err, unix.EEXIST) {
			return err
		}
	}
	port, err := ports(len(c.Nodes) + 1)
	if err != nil {
		return err
	}
	host, err := os.Hostname()
	if err != nil {
		return err
	}
	host, _, _ = strings.Cut(host, ".")
	var conf bytes.Buffer
	err = configuration.Execute(&conf, map[string]any{
		"Host": host, "Dir": c.Dir, "Port": port, "First": port + 1, "Last": port + len(c.Nodes), "Nodes": len(c.Nodes), "Extra": o.Extra,
	})
	if err != nil {
		return err
	}
	c.Conf = filepath.Join(c.Dir, "etc", "slurm.conf")
	gres := fmt.Sprintf("AutoDetect=off\nNodeName=n[1-%d] Name=gpu Type=h100 File=%s/dev/nvidia[0-7]\n", len(c.Nodes), c.Dir)
	for name, text := range map[string]string{"slurm.conf": conf.String(), "gres.conf": gres, "cgroup.conf": "CgroupPlugin=cgroup/v1\n"} {
		if err := os.WriteFile(filepath.Join(c.Dir, "etc", name), []byte(text), 0o644); err != nil { //nolint:gosec // Users of jobs read it.
			return err
		}
	}
	// Secret enough for loopback.
	return os.WriteFile(filepath.Join(c.Dir, "munge.key"), bytes.Repeat([]byte(strconv.Itoa(port)+c.Dir), 40), 0o600)
}

func spools(nodes []string) []string {
	out := make([]string, len(nodes))
	for i, n := range nodes {
		out[i] = filepath.Join("spool", n)
	}
	return out
}

// ports finds n free ports beside each other, below those that the kernel gives
// to clients.
func ports(n int) (int, error) {
	for try := range 200 {
		first := 10000 + (os.Getpid()*37+int(time.Now().UnixNano()/1000)+try*101)%20000
		free := 0
		for ; free < n; free++ {
			l, err := net.Listen("tcp", "127.0.0.1:"+strconv.Itoa(first+free)) //nolint:noctx // Closed at once.
			if err != nil {
				break
			}
			_ = l.Close()
		}
		if free == n {
			return first, nil
		}
	}
	return 0, errors.New("no free ports for Slurm")
}

func (c *Cluster) up(ctx context.Context) error {
	m := func(name string) string { return filepath.Join(c.Dir, name) }
	err := c.start("munged", "munged", "--foreground", "--force", "--num-threads=2", "--key-file="+m("munge.key"), "--socket="+m("munge.sock"),
		"--pid-file="+m("munged.pid"), "--log-file="+m("munged.log"), "--seed-file="+m("munged.seed"))
	if err != nil {
		return err
	}
	if err := until(ctx, "munged", func() bool { _, err := os.Stat(m("munge.sock")); return err == nil }); err != nil {
		return err
	}
	if err := c.StartController(ctx); err != nil {
		return err
	}
	for _, n := range c.Nodes {
		if err := c.startNode(n); err != nil {
			return err
		}
	}
	return c.Idle(ctx, c.Nodes...)
}

// StartController starts slurmctld and waits until it answers.
func (c *Cluster) StartController(ctx context.Context) error {
	if err := c.start("slurmctld", "slurmctld", "-D"); err != nil {
		return err
	}
	return until(ctx, "slurmctld", func() bool {
		_, err := c.Command(ctx, "scontrol", "ping")
		return err == nil
	})
}

// KillController kills slurmctld.
func (c *Cluster) KillController() { c.kill("slurmctld") }

// StopController ends slurmctld, which saves its state first.
func (c *Cluster) StopController() { c.end("slurmctld", syscall.SIGTERM) }

// Fail kills a node with all that runs on it.
func (c *Cluster) Fail(node string) { c.kill(node) }

// Restore starts a node that was killed and waits until it takes work.
func (c *Cluster) Restore(ctx context.Context, node string) error {
	if err := c.startNode(node); err != nil {
		return err
	}
	return c.Idle(ctx, node)
}

// KillDaemon kills slurmd of a node; its jobs go on, without anybody to look
// after them until RestartDaemon.
func (c *Cluster) KillDaemon(node string) error {
	b, err := os.ReadFile(filepath.Join(c.Dir, "slurmd."+node+".pid"))
	if err != nil {
		return err
	}
	inside, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		return err
	}
	pid, err := c.outside(node, inside)
	if err != nil {
		return err
	}
	return unix.Kill(pid, unix.SIGKILL)
}

// startNode starts slurmd below an init of its namespace that outlives it.
func (c *Cluster) startNode(node string) error {
	boot := ""
	if c.power != nil {
		boot = "-b" // it has booted: Slurm waits for that after it switched a node on
	}
	return c.start(node, "unshare", "--pid", "--fork", "--kill-child=KILL", "--mount", "--mount-proc", "--propagation", "slave",
		"sh", "-c", `trap : TERM; while [ -e "$2" ]; do slurmd -D $3 -N "$1" & wait $!; sleep 0.2; done`, "slurmd", node, c.Conf, boot)
}

// outside is the number that a process of a node has here.
func (c *Cluster) outside(node string, inside int) (int, error) {
	c.mu.Lock()
	d := c.daemons[node]
	c.mu.Unlock()
	if d == nil {
		return 0, fmt.Errorf("node %s does not run", node)
	}
	for _, pid := range descendants(d.cmd.Process.Pid) {
		status, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(status)) {
			if rest, ok := strings.CutPrefix(line, "NSpid:"); ok {
				numbers := strings.Fields(rest)
				if len(numbers) > 1 && numbers[len(numbers)-1] == strconv.Itoa(inside) {
					return pid, nil
				}
			}
		}
	}
	return 0, fmt.Errorf("node %s has no process %d", node, inside)
}

func descendants(pid int) []int {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	if err != nil {
		return nil
	}
	var all []int
	for field := range strings.FieldsSeq(string(b)) {
		child, err := strconv.Atoi(field)
		if err != nil {
			continue
		}
		all = append(append(all, child), descendants(child)...)
	}
	return all
}

// Idle waits until nodes take work.
func (c *Cluster) Idle(ctx context.Context, nodes ...string) error {
	return until(ctx, "nodes "+strings.Join(nodes, ","), func() bool {
		out, err := c.Command(ctx, "sinfo", "--noheader", "--Node", "--partition=batch", "--format=%N %T", "--nodes="+strings.Join(nodes, ","))
		if err != nil {
			return false
		}
		up := 0
		for line := range strings.Lines(out) {
			state := strings.TrimSpace(line)
			if strings.HasSuffix(state, " idle") || strings.HasSuffix(state, " mixed") || strings.HasSuffix(state, " allocated") {
				up++
			}
		}
		return up == len(nodes)
	})
}

// Command runs one of Slurm's commands on the cluster and gives its output.
func (c *Cluster) Command(ctx context.Context, name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = c.Environ()
	out, err := cmd.CombinedOutput()
	if err != nil {
		return string(out), fmt.Errorf("%s: %w: %s", name, err, out)
	}
	return string(out), nil
}

// Environ is an environment in which Slurm's commands find the cluster.
func (c *Cluster) Environ() []string {
	return []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "SLURM_CONF=" + c.Conf}
}

// Log is the end of what a daemon has said.
func (c *Cluster) Log(daemon string) string {
	b, _ := os.ReadFile(filepath.Join(c.Dir, "log", daemon+".log"))
	return string(b[max(0, len(b)-4000):])
}

// Close ends the cluster. It may be called twice.
func (c *Cluster) Close() error {
	if c.power != nil {
		close(c.power)
		c.switching.Wait()
		c.power = nil
	}
	c.stop()
	if !c.temporary {
		return nil
	}
	return os.RemoveAll(c.Dir)
}

// powerSaving makes the programs that Slurm switches nodes with: they leave a file
// for each node, and switch does it.
func (c *Cluster) powerSaving(o *Options) error {
	dir := filepath.Join(c.Dir, "power")
	if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // Slurm's programs write to it.
		return err
	}
	for _, order := range []string{"up", "down"} {
		script := fmt.Sprintf("#!/bin/sh\nexport SLURM_CONF=%s/etc/slurm.conf\nfor n in $(scontrol show hostnames \"$1\"); do : >%s/%s.$n; done\n", c.Dir, dir, order)
		if err := os.WriteFile(filepath.Join(c.Dir, order+".sh"), []byte(script), 0o755); err != nil { //nolint:gosec // A program.
			return err
		}
	}
	o.Extra = append(slices.Clone(o.Extra), "ResumeProgram="+c.Dir+"/up.sh", "SuspendProgram="+c.Dir+"/down.sh", "SuspendTime=31536000",
		"ResumeTimeout=60", "SuspendTimeout=2", "ResumeRate=0", "SuspendRate=0")
	c.power = make(chan struct{})
	c.switching.Go(func() {
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
			case <-c.power:
				return
			}
			orders, _ := os.ReadDir(dir)
			for _, o := range orders {
				_ = os.Remove(filepath.Join(dir, o.Name()))
				switch order, node, _ := strings.Cut(o.Name(), "."); order {
				case "up":
					c.kill(node)
					_ = c.startNode(node)
				case "down":
					c.kill(node)
				}
			}
		}
	})
	return nil
}

// switchOff switches all nodes off and waits.
func (c *Cluster) switchOff(ctx context.Context) error {
	if out, err := c.Command(ctx, "scontrol", "update", "nodename="+strings.Join(c.Nodes, ","), "state=power_down"); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return until(ctx, "nodes that are off", func() bool {
		out, err := c.Command(ctx, "scontrol", "--oneliner", "show", "nodes")
		return err == nil && strings.Count(out, "+POWERED_DOWN") == len(c.Nodes)
	})
}

func (c *Cluster) stop() {
	for _, n := range slices.Backward(c.Nodes) {
		c.kill(n)
	}
	c.kill("slurmctld")
	c.kill("munged")
}

// daemon is a child. It is started by a thread that lives as long, for the
// kernel kills it when that thread ends.
type daemon struct {
	cmd   *exec.Cmd
	ended chan struct{}
}

func (c *Cluster) start(name, file string, args ...string) error {
	path, err := program(file)
	if err != nil {
		return err
	}
	log, err := os.OpenFile(filepath.Join(c.Dir, "log", name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	d := &daemon{cmd: exec.Command(path, args...), ended: make(chan struct{})} //nolint:noctx // Lives until it is killed.
	d.cmd.Env, d.cmd.Stdout, d.cmd.Stderr, d.cmd.Dir = c.Environ(), log, log, c.Dir
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := d.cmd.Start()
		started <- err
		if err == nil {
			_ = d.cmd.Wait()
		}
		close(d.ended)
	}()
	if err := <-started; err != nil {
		return err
	}
	c.mu.Lock()
	c.daemons[name] = d
	c.mu.Unlock()
	return nil
}

// kill kills a daemon and waits until it is gone; one that does not run is fine.
func (c *Cluster) kill(name string) { c.end(name, syscall.SIGKILL) }

func (c *Cluster) end(name string, signal syscall.Signal) {
	c.mu.Lock()
	d := c.daemons[name]
	delete(c.daemons, name)
	c.mu.Unlock()
	if d == nil {
		return
	}
	_ = d.cmd.Process.Signal(signal)
	<-d.ended
}

// program finds a program also where only root looks.
func program(name string) (string, error) {
	for _, dir := range []string{"/usr/sbin", "/usr/bin", "/sbin", "/bin"} {
		if path, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
			return path, nil
		}
	}
	return exec.LookPath(name)
}

// until asks again and again until the answer is yes.
func until(ctx context.Context, what string, done func() bool) error {
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for !done() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("%s: not ready: %w", what, ctx.Err())
		}
	}
	return nil
}
