// Package raytest runs a real Ray on this machine for tests: a head and nodes,
// each in a PID namespace, all in a network namespace of the test binary in which
// there is only loopback.
//
// Fail kills everything on a node at once, as a power failure does. All of a
// cluster ends with the caller, even with a killed one. It needs root, and the
// Python environment that `make engines` makes.
package raytest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
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
	"time"

	"github.com/falaj-ml/falaj/internal/repotest"
)

const (
	install = "make engines"
	wait    = 3 * time.Minute // the longest that anything here is waited for
	inside  = "FALAJ_RAYTEST_INSIDE"
	storage = 80 << 20 // of each node's object store
)

// Token is what the cluster's APIs ask for.
const Token = "0123456789abcdef0123456789abcdef"

// Node of a cluster.
type Node struct {
	Name      string
	CPUs      int
	Resources map[string]float64
	Labels    map[string]string
}

// Cluster is a running Ray.
type Cluster struct {
	Address   string // of the Jobs API
	TokenFile string
	Dir       string // logs are in Dir/session_latest/logs

	gcs   string
	mu    sync.Mutex
	nodes map[string]*running
	last  int // byte of the last node's address, 127.0.0.LAST
}

// running is a node's process.
type running struct {
	*exec.Cmd
	address string
	ended   chan struct{} // closed when it was waited for
}

func (r *running) over() bool {
	select {
	case <-r.ended:
		return true
	default:
		return false
	}
}

// bin is where Ray's commands are.
func bin() string {
	root, err := repotest.Root()
	if err != nil {
		return "" // and Absent says that Ray is
	}
	return filepath.Join(root, ".tmp", "venv", "ray", "bin")
}

// Absent says what is missing for a cluster here; empty is nothing.
func Absent() string {
	if os.Geteuid() != 0 {
		return "a test cluster of Ray needs root"
	}
	if _, err := os.Stat(filepath.Join(bin(), "ray")); err != nil {
		return "Ray is not installed; run `" + install + "`"
	}
	if _, err := exec.LookPath("unshare"); err != nil {
		return "unshare is not installed; install util-linux"
	}
	return ""
}

// Main is TestMain's body: it runs the tests in namespaces of their own.
func Main(m *testing.M) int {
	if os.Getenv(inside) != "" { //nolint:forbidigo // Set by the branch below.
		if out, err := exec.Command("ip", "link", "set", "lo", "up").CombinedOutput(); err != nil { //nolint:noctx // It ends at once.
			fmt.Fprintln(os.Stderr, "raytest:", err, string(out))
			return 1
		}
		return m.Run()
	}
	if Absent() != "" {
		return m.Run()
	}
	runtime.LockOSThread() // the child dies with this thread
	defer runtime.UnlockOSThread()
	self, err := os.Executable()
	if err != nil {
		fmt.Fprintln(os.Stderr, "raytest:", err)
		return 1
	}
	argv := append([]string{"--net", "--mount", "--pid", "--fork", "--kill-child=KILL", "--mount-proc", self}, os.Args[1:]...)
	cmd := exec.Command("unshare", argv...) //nolint:noctx,gosec // It lives as long as this process; the arguments are ours.
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), inside+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	err = cmd.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return max(exit.ExitCode(), 1)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "raytest:", err)
		return 1
	}
	return 0
}

// New starts a cluster and ends it with the test. Its head takes no work. Without
// Ray the test is skipped, and fails under CI.
func New(tb testing.TB, nodes ...Node) *Cluster {
	tb.Helper()
	if why := Absent(); why != "" {
		if os.Getenv("CI") == "true" { //nolint:forbidigo // The rule of every engine's tests.
			tb.Fatal(why)
		}
		tb.Skip(why)
	}
	dir, err := os.MkdirTemp("", "ray") //nolint:usetesting // Sockets lie in it: the path must be short.
	check(tb, err)
	c := &Cluster{Dir: dir, TokenFile: filepath.Join(dir, "token"), nodes: map[string]*running{}}
	tb.Cleanup(func() {
		for _, name := range c.names() {
			c.Fail(tb, name)
		}
		_ = os.RemoveAll(dir)
	})
	check(tb, os.WriteFile(c.TokenFile, []byte(Token+"\n"), 0o600))
	ports := free(tb, 2)
	c.gcs, c.Address = "127.0.0.1:"+ports[0], "http://127.0.0.1:"+ports[1]
	c.bring(tb, Node{Name: "head"}, "--head", "--port="+ports[0], "--dashboard-host=127.0.0.1", "--dashboard-port="+ports[1], "--temp-dir="+dir)
	for _, n := range nodes { // two that start at once choose the same sockets
		c.Add(tb, n)
	}
	return c
}

// Add starts one more node, or one that failed, and returns when Ray has it.
func (c *Cluster) Add(tb testing.TB, n Node) {
	tb.Helper()
	c.Fail(tb, n.Name)
	c.bring(tb, n, "--address="+c.gcs)
}

// bring starts a node until Ray has it: it gives up by itself after 30 s, which a
// busy machine may need.
func (c *Cluster) bring(tb testing.TB, n Node, more ...string) {
	tb.Helper()
	r := c.start(tb, n, more...)
	c.await(tb, n.Name, func() bool {
		if r.over() {
			r = c.start(tb, n, more...)
		}
		return slices.Contains(c.alive(), r.address)
	})
}

// Fail kills a node with everything on it.
func (c *Cluster) Fail(tb testing.TB, name string) {
	tb.Helper()
	c.mu.Lock()
	cmd := c.nodes[name]
	delete(c.nodes, name)
	c.mu.Unlock()
	if cmd == nil {
		return
	}
	_ = cmd.Process.Kill() // unshare takes its namespace with it
	<-cmd.ended
}

// KillRaylet kills what speaks for a node; all else on it ends soon. It reports
// whether there was one.
func (c *Cluster) KillRaylet(name string) bool {
	c.mu.Lock()
	r := c.nodes[name]
	c.mu.Unlock()
	entries, err := os.ReadDir("/proc")
	if err != nil || r == nil {
		return false
	}
	for _, e := range entries {
		line, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		argv := strings.Split(string(line), "\x00")
		if filepath.Base(argv[0]) != "raylet" || !slices.Contains(argv, "--node_ip_address="+r.address) || !slices.Contains(argv, "--gcs-address="+c.gcs) {
			continue
		}
		pid, err := strconv.Atoi(e.Name())
		return err == nil && syscall.Kill(pid, syscall.SIGKILL) == nil
	}
	return false
}

func (c *Cluster) names() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var names []string
	for n := range c.nodes {
		names = append(names, n)
	}
	slices.Sort(names)
	slices.Reverse(names)
	return names
}

func (c *Cluster) start(tb testing.TB, n Node, more ...string) *running {
	tb.Helper()
	resources, err := json.Marshal(n.Resources)
	check(tb, err)
	// Of its own: a driver speaks to the first node that has its address.
	c.last++
	address := "127.0.0." + strconv.Itoa(c.last)
	argv := []string{
		"--pid", "--fork", "--kill-child=KILL", "--mount", "--mount-proc", filepath.Join(bin(), "ray"), "start", "--block", "--disable-usage-stats",
		"--node-ip-address=" + address, "--min-worker-port=0", "--max-worker-port=0", "--dashboard-agent-listen-port=0",
		"--node-name=" + n.Name, "--num-cpus=" + strconv.Itoa(n.CPUs), "--object-store-memory=" + strconv.Itoa(storage),
	}
	if len(n.Resources) > 0 {
		argv = append(argv, "--resources="+string(resources))
	}
	var labels []string
	for k, v := range n.Labels {
		labels = append(labels, k+"="+v)
	}
	if len(labels) > 0 {
		argv = append(argv, "--labels="+strings.Join(labels, ","))
	}
	cmd := exec.Command("unshare", append(argv, more...)...) //nolint:noctx // Fail ends it.
	log, err := os.Create(filepath.Join(c.Dir, n.Name+".out"))
	check(tb, err)
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Env = []string{
		"PATH=" + bin() + ":/usr/bin:/bin", "HOME=" + c.Dir, "LANG=C.UTF-8", "TMPDIR=" + c.Dir,
		"RAY_AUTH_MODE=token", "RAY_AUTH_TOKEN=" + Token,
		// A lost node is noticed in seconds, and a lost head.
		"RAY_gcs_rpc_server_reconnect_timeout_s=10",
		"RAY_health_check_initial_delay_ms=1000", "RAY_health_check_period_ms=1000", "RAY_health_check_timeout_ms=3000", "RAY_health_check_failure_threshold=3",
		"RAY_enable_metrics_collection=0", "RAY_memory_monitor_refresh_ms=250",
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	check(tb, cmd.Start())
	r := &running{Cmd: cmd, address: address, ended: make(chan struct{})}
	go func() {
		_ = cmd.Wait()
		close(r.ended)
	}()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.nodes[n.Name] = r
	return r
}

// alive are the addresses of the nodes that Ray has.
func (c *Cluster) alive() []string {
	r, err := http.NewRequestWithContext(context.Background(), http.MethodGet, c.Address+"/api/v0/nodes?detail=1", nil)
	if err != nil {
		return nil
	}
	r.Header.Set("Authorization", "Bearer "+Token)
	client := http.Client{Timeout: 5 * time.Second}
	answer, err := client.Do(r)
	if err != nil {
		return nil
	}
	defer answer.Body.Close()
	var all struct {
		Data struct {
			Result struct {
				Result []struct {
					Address string `json:"node_ip"`
					State   string `json:"state"`
				} `json:"result"`
			} `json:"result"`
		} `json:"data"`
	}
	if json.NewDecoder(answer.Body).Decode(&all) != nil {
		return nil
	}
	var addresses []string
	for _, n := range all.Data.Result.Result {
		if n.State == "ALIVE" {
			addresses = append(addresses, n.Address)
		}
	}
	return addresses
}

func (c *Cluster) await(tb testing.TB, what string, there func() bool) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	tick := time.NewTicker(250 * time.Millisecond)
	defer tick.Stop()
	for !there() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			tb.Fatalf("%s: not after %s\n%s", what, wait, c.output())
		}
	}
}

// output is the end of what the nodes wrote.
func (c *Cluster) output() string {
	var b strings.Builder
	files, _ := filepath.Glob(filepath.Join(c.Dir, "*.out"))
	for _, f := range files {
		text, _ := os.ReadFile(f)
		fmt.Fprintf(&b, "%s: %s\n", filepath.Base(f), text[max(len(text)-2000, 0):])
	}
	return b.String()
}

func free(tb testing.TB, n int) []string {
	tb.Helper()
	var ports []string
	var open []io.Closer
	for range n {
		l, err := new(net.ListenConfig).Listen(tb.Context(), "tcp", "127.0.0.1:0")
		check(tb, err)
		open = append(open, l)
		_, port, err := net.SplitHostPort(l.Addr().String())
		check(tb, err)
		ports = append(ports, port)
	}
	for _, c := range open {
		check(tb, c.Close())
	}
	return ports
}

func check(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}
